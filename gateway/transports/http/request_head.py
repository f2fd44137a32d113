"""Head: the head of an HTTP/1 request, checked after parsing.

A head that two HTTP parsers might read differently is rejected here, although the parser accepted
it.  Both server implementations use this.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from gateway.transports.contract import ServerLimits
from gateway.transports.http.content_coding import coding_for
from gateway.transports.http.faults import HttpError
from gateway.transports.http.headers import decode_field
from gateway.transports.http.timeout_headers import timeout_of
from gateway.wire.http import Headers

_TARGET = re.compile(r"[!-~]+", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9.\-_~%!$&'()*+,;=:\[\]]*", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,19}", re.ASCII)
_ABSOLUTE = re.compile(
    r"https?://([A-Za-z0-9.\-_~%!$&'()*+,;=:]*@)?([A-Za-z0-9.\-_~%!$&'()*+,;=]+|\[[0-9A-Fa-f:.]+\])"
    r"(:(?P<port>[0-9]{1,5})?)?(?P<rest>([/?].*)?)",
    re.ASCII | re.IGNORECASE,
)
_PORTS_END = 65_535
_FIELD_OVERHEAD = 4  # ": " and the line's end
_VERSIONS = ((1, 0), (1, 1))
_GRPC_WEB = "application/grpc-web"

Version = tuple[int, int]


class Head(Struct, frozen=True):
    """The head of a request.

    Attributes:
        path: As on the wire, without scheme, host and query.
        length: Content-Length; None if absent.
        is_chunked: Whether the body is chunked.
        has_expectation: Whether the client waits for "100 Continue" before it sends the body.
        has_content_coding: Whether the body has a content coding.
        wants: The content coding for the response; None for none.
        timeout_s: The client's timeout in seconds; None without one.
    """

    method: str
    path: str
    query: str
    headers: Headers
    length: int | None
    is_chunked: bool
    has_expectation: bool
    has_content_coding: bool = False
    wants: str | None = None
    timeout_s: float | None = None

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
        target: The target in the request line.
        version: The HTTP version.
        fields: The fields as sent.
        limits: The limits of the listener.

    Raises:
        HttpError: The request is rejected.
    """
    if version not in _VERSIONS:
        raise HttpError(505, f"HTTP/{version[0]}.{version[1]} is not supported", close=True)
    _check_size(fields, limits)
    headers = Headers([(name.decode("ascii"), decode_field(value)) for name, value in fields])
    _check_host(fields, headers, version)
    _check_type(headers)
    path, query = _target(method, target)
    chunked = _chunked(headers, version)
    return Head(
        method=method,
        path=path,
        query=query,
        headers=headers,
        length=_length(headers),
        is_chunked=chunked,
        has_expectation=_expects(headers, version),
        has_content_coding=headers.get("content-encoding") is not None,
        wants=_wants(headers),
        timeout_s=timeout_of(headers.get("grpc-timeout"), headers.get("x-request-timeout")),
    )


def head_too_large(limits: ServerLimits) -> HttpError:
    """Return the refusal of a head that a parser would not, or should not, read to its end."""
    return HttpError(
        431,
        f"the head is too large: at most {limits.header_line_bytes} bytes in its first "
        f"line, {limits.header_field_bytes} in a field and {limits.header_total_bytes} in "
        "all are allowed",
        limit="header_total_bytes",
        close=True,
    )


def too_many_fields(limits: ServerLimits) -> HttpError:
    """Return the refusal of a head with too many fields."""
    return HttpError(
        431,
        f"more than {limits.header_count} header fields",
        limit="header_count",
        close=True,
    )


def malformed(text: str) -> HttpError:
    """Return the error for a request that the parser rejected with *text*."""
    return HttpError(400, f"malformed HTTP request: {first_line(text)}", close=True)


def first_line(text: str) -> str:
    """Return the first line of a parser's message, printable."""
    line = text.strip().splitlines()[0] if text.strip() else "unreadable"
    return line[:200].rstrip(":").encode("ascii", "backslashreplace").decode()


def head_too_slow(limits: ServerLimits) -> HttpError:
    """Return the error for a head that arrives too slowly."""
    return HttpError(
        408,
        f"the head of a request took more than {limits.header_timeout_s} s",
        limit="header_timeout_s",
        close=True,
    )


def _check_size(fields: Sequence[tuple[bytes, bytes]], limits: ServerLimits) -> None:
    sizes = [len(name) + len(value) for name, value in fields]
    total = sum(sizes) + _FIELD_OVERHEAD * len(sizes)
    if total <= limits.header_field_bytes and total <= limits.header_total_bytes:
        return  # so no single one is too large either
    largest = max(sizes, default=0)
    if largest > limits.header_field_bytes:  # the parser counts values without their names
        raise HttpError(
            431,
            f"a header field has {largest} bytes, at most {limits.header_field_bytes} are allowed",
            limit="header_field_bytes",
            close=True,
        )
    if total > limits.header_total_bytes:
        raise HttpError(
            431,
            f"header fields have {total} bytes, at most {limits.header_total_bytes} are allowed",
            limit="header_total_bytes",
            close=True,
        )


def _check_host(fields: Sequence[tuple[bytes, bytes]], headers: Headers, version: Version) -> None:
    hosts = [name for name, _ in fields if len(name) == len("host") and name.lower() == b"host"]
    if len(hosts) > 1 or (not hosts and version >= (1, 1)):
        raise HttpError(400, f"expected exactly one Host header, got {len(hosts)}", close=True)
    host = headers.get("host")
    if host is not None and _HOST.fullmatch(host) is None:
        raise HttpError(400, "the Host field is malformed", close=True)


def _check_type(headers: Headers) -> None:
    kind = headers.get("content-type")
    if kind is not None and kind.lstrip().lower().startswith(_GRPC_WEB):
        raise HttpError(
            415, f"{_GRPC_WEB} is not supported: expected gRPC over HTTP/2, or JSON over HTTP"
        )


def _target(method: str, target: str) -> tuple[str, str]:
    if method == "CONNECT":
        raise HttpError(405, "CONNECT is not supported", close=True)
    if _TARGET.fullmatch(target) is None or "#" in target:
        raise HttpError(400, "the request target has a character that is not allowed", close=True)
    if target == "*":
        return target, ""
    if not target.startswith("/"):
        target = _origin_form(target)
    path, _, query = target.partition("?")
    return path, query


def _origin_form(target: str) -> str:
    """Return path and query of a target in absolute form, as proxies get it."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None or int(found["port"] or 0) > _PORTS_END:
        raise HttpError(400, "the request target is neither a path nor an http URL", close=True)
    rest = found["rest"]
    return rest if rest.startswith("/") else f"/{rest}"


def _length(headers: Headers) -> int | None:
    value = headers.get("content-length")
    if value is None:
        return None
    if _LENGTH.fullmatch(value) is None:
        raise HttpError(400, "Content-Length is not a number", close=True)
    return int(value)


def _chunked(headers: Headers, version: Version) -> bool:
    value = headers.get("transfer-encoding")
    if value is None:
        return False
    if version < (1, 1) or headers.get("content-length") is not None:
        raise HttpError(
            400, "Transfer-Encoding is not allowed with Content-Length or in HTTP/1.0", close=True
        )
    if value.strip().lower() != "chunked":
        raise HttpError(501, "the transfer coding is not supported; expected chunked", close=True)
    return True


def _wants(headers: Headers) -> str | None:
    if headers.get("accept-encoding") is None:
        return None
    return coding_for([value for name, value in headers.lowered if name == "accept-encoding"])


def _expects(headers: Headers, version: Version) -> bool:
    value = headers.get("expect")
    if value is None or version < (1, 1):
        return False
    if value.strip().lower() != "100-continue":
        raise HttpError(417, "the expectation is not supported; expected 100-continue", close=True)
    return True
