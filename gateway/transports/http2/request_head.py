"""Heads of plain HTTP requests over HTTP/2, which are no gRPC calls; pure.

What HTTP/2 forbids resets the stream.  What HTTP forbids, or no listener accepts, becomes a
response: the rules are those of `http.request_head`, which reads the same fields for HTTP/1.

Source: RFC 9113 8.2 and 8.3.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from msgspec import Struct

from gateway.transports.contract import ServerLimits
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_head import Head, read_head, too_many_fields
from gateway.transports.http2 import frames
from gateway.transports.http2.field_rules import broken_fields, content_length
from gateway.transports.http2.frames import Http2StreamError, MissingPseudoHeaders
from gateway.transports.http2.hpack import FIELD_OVERHEAD, Field

_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_VERSION: Final = (1, 1)


class HttpStreamHead(Struct, frozen=True):
    """The head of a plain HTTP request on a stream.

    Attributes:
        path: That of no gRPC method: the content type decided. `head` has the path.
        length: Content-Length; None for none.
        method: In capitals.
        head: None for one that is refused.
        error: Why it is refused.
    """

    length: int | None
    method: str
    head: Head | None
    error: HttpError | None = None
    path: ClassVar[str] = ""
    oversized: ClassVar[int] = 0
    http_status: ClassVar[int] = 200


def header_block_bytes(limits: ServerLimits) -> int:
    """Return how large a header block may be for a request to be refused by name."""
    fields = limits.header_total_bytes + limits.header_line_bytes
    return fields + FIELD_OVERHEAD * limits.header_count


def read_http_head(
    fields: Sequence[Field], limits: ServerLimits
) -> HttpStreamHead | Http2StreamError:
    """Return the head of a request; a stream error where HTTP/2 forbids its fields.

    Args:
        fields: The fields that the header block has.
        limits: The limits that the listener has.
    """
    why = broken_fields(fields, _PSEUDO)
    if why is not None:
        return Http2StreamError(frames.PROTOCOL_ERROR, why)
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    if not pseudo:
        return MissingPseudoHeaders(frames.PROTOCOL_ERROR, "a request without pseudo-header fields")
    why = _forbidden(fields, pseudo)
    if why is not None:
        return Http2StreamError(frames.PROTOCOL_ERROR, why)
    length = content_length(fields)
    name = pseudo[b":method"].decode("latin-1")
    try:
        head = _read(name, pseudo, fields, limits)
    except HttpError as error:
        return HttpStreamHead(length, name, None, error.with_traceback(None))
    return HttpStreamHead(length, name, head)


def _forbidden(fields: Sequence[Field], pseudo: Mapping[bytes, bytes]) -> str | None:
    """Return what makes a request malformed; None where nothing does."""
    has_target = pseudo.get(b":path") and b":scheme" in pseudo
    if not pseudo.get(b":method") or not (has_target or pseudo[b":method"] == b"CONNECT"):
        return "a request without :method, :scheme or :path"
    if any(name == b"te" and value != b"trailers" for name, value in fields):
        return "TE is not trailers"
    try:
        content_length(fields)
    except ValueError:
        return "Content-Length is not a number, or its values differ"
    return None


def _read(
    method: str, pseudo: Mapping[bytes, bytes], fields: Sequence[Field], limits: ServerLimits
) -> Head:
    if len(fields) > limits.header_count + len(pseudo):
        raise too_many_fields(limits)
    target = pseudo.get(b":path", b"")
    if len(target) > limits.header_line_bytes:
        raise HttpError(
            414,
            f"the request target has {len(target)} bytes; at most {limits.header_line_bytes} are "
            "allowed (header_line_bytes)",
            limit="header_line_bytes",
        )
    if target[:1] != b"/" and target != b"*" and method != "CONNECT":
        raise HttpError(400, "expected a :path that begins with '/'")
    plain = _host_fields(pseudo, fields) + _plain_fields(fields)
    return read_head(method, target.decode("latin-1"), _VERSION, plain, limits)


def _host_fields(pseudo: Mapping[bytes, bytes], fields: Sequence[Field]) -> list[Field]:
    """Return the Host fields that HTTP/1 would have: `:authority` is the same field."""
    hosts = [value for name, value in fields if name == b"host"]
    authority = pseudo.get(b":authority")
    if authority is not None and all(each == authority for each in hosts):
        hosts = [authority]
    elif authority is not None:
        raise HttpError(400, "Host and :authority differ; expected the same value")
    return [(b"host", value) for value in hosts]


def _plain_fields(fields: Sequence[Field]) -> list[Field]:
    """Return the other fields. Cookies come in parts. Source: RFC 9113 8.2.3."""
    found = [
        (name, value)
        for name, value in fields
        if not name.startswith(b":") and name not in (b"host", b"cookie", b"content-length")
    ]
    lengths = {value for name, value in fields if name == b"content-length"}
    cookies = [value for name, value in fields if name == b"cookie"]
    found += [(b"content-length", value) for value in lengths]
    return [*found, (b"cookie", b"; ".join(cookies))] if cookies else found
