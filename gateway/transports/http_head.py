"""A request's head as a parser leaves it: checked once more, and taken over.

What two HTTP parsers might read in two ways is refused here, when the parser has let it pass. Both
makes of the server read heads by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.transports.base import ServerLimits
from gateway.transports.faults import HttpFault
from gateway.transports.headers import decode_field
from gateway.wire.http import Headers

_TARGET = re.compile(r"[!-~]+", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9.\-_~%!$&'()*+,;=:\[\]]*", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,19}", re.ASCII)
_PATH_START = re.compile(r"[/?]")
_FIELD_OVERHEAD = 4  # ": " and the line's end
_VERSIONS = ((1, 0), (1, 1))

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request.

    Attributes:
        path: As on the wire, without scheme, host and query.
        length: Content-Length; None for none.
        chunked: The body comes in chunks.
        expects: The client waits for "100 Continue" before it sends the body.
    """

    method: str
    path: str
    query: str
    headers: Headers
    length: int | None
    chunked: bool
    expects: bool

    def all(self, name: str) -> list[str]:
        """Return every value of the field *name*, given in lower case."""
        return [value for key, value in self.headers if key.lower() == name]


def read_head(
    method: str,
    target: str,
    version: Version,
    fields: Sequence[tuple[bytes, bytes]],
    limits: ServerLimits,
) -> Head:
    """Check the head of a request and return it.

    Args:
        method: In capitals.
        target: As on the wire.
        version: Of HTTP.
        fields: As they were sent, names too.
        limits: Of the listener.

    Raises:
        HttpFault: It is not one we answer.
    """
    if version not in _VERSIONS:
        raise HttpFault(505, f"HTTP/{version[0]}.{version[1]} is not supported", close=True)
    _check_size(fields, limits)
    headers = Headers([(name.decode("ascii"), decode_field(value)) for name, value in fields])
    _check_host(headers)
    path, query = _target(method, target)
    chunked = _chunked(headers, version)
    return Head(
        method=method,
        path=path,
        query=query,
        headers=headers,
        length=_length(headers),
        chunked=chunked,
        expects=_expects(headers, version),
    )


def _check_size(fields: Sequence[tuple[bytes, bytes]], limits: ServerLimits) -> None:
    sizes = [len(name) + len(value) for name, value in fields]
    total = sum(sizes) + _FIELD_OVERHEAD * len(sizes)
    if total <= limits.header_field_bytes and total <= limits.header_total_bytes:
        return  # so no single one is too large either
    largest = max(sizes, default=0)
    if largest > limits.header_field_bytes:  # the parser counts values without their names
        raise HttpFault(
            431,
            f"a header field has {largest} bytes, at most {limits.header_field_bytes} are allowed",
            limit="header_field_bytes",
            close=True,
        )
    if total > limits.header_total_bytes:
        raise HttpFault(
            431,
            f"header fields have {total} bytes, at most {limits.header_total_bytes} are allowed",
            limit="header_total_bytes",
            close=True,
        )


def _check_host(headers: Headers) -> None:
    host = headers.get("host")
    if host is not None and _HOST.fullmatch(host) is None:
        raise HttpFault(400, "the Host field is malformed", close=True)


def _target(method: str, target: str) -> tuple[str, str]:
    if method == "CONNECT":
        raise HttpFault(405, "CONNECT is not supported", close=True)
    if _TARGET.fullmatch(target) is None or "#" in target:
        raise HttpFault(400, "the request target holds characters it must not", close=True)
    if target == "*":
        return target, ""
    if not target.startswith("/"):  # the absolute form, as proxies get it
        rest = target.partition("://")[2]
        start = _PATH_START.search(rest)
        target = "/" if start is None else rest[start.start() :]
        target = target if target.startswith("/") else f"/{target}"
    path, _, query = target.partition("?")
    return path, query


def _length(headers: Headers) -> int | None:
    value = headers.get("content-length")
    if value is None:
        return None
    if _LENGTH.fullmatch(value) is None:
        raise HttpFault(400, "Content-Length is not a number", close=True)
    return int(value)


def _chunked(headers: Headers, version: Version) -> bool:
    value = headers.get("transfer-encoding")
    if value is None:
        return False
    if version < (1, 1) or headers.get("content-length") is not None:
        raise HttpFault(400, "Transfer-Encoding cannot stand here", close=True)
    if value.strip().lower() != "chunked":
        raise HttpFault(501, "of transfer codings only chunked is supported", close=True)
    return True


def _expects(headers: Headers, version: Version) -> bool:
    value = headers.get("expect")
    if value is None or version < (1, 1):
        return False
    if value.strip().lower() != "100-continue":
        raise HttpFault(417, "of expectations only 100-continue is supported", close=True)
    return True
