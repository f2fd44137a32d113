"""The header fields and trailers of gRPC over HTTP/2, without I/O.

Reading is a pure function of the fields, so its results may be cached by the bytes of a block.

Source: gRPC over HTTP/2; gRPC, "HTTP to gRPC status code mapping".
"""

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from gateway import __version__
from gateway.accelerator import accelerated
from gateway.transports.grpc.metadata import kind_of
from gateway.transports.http.headers import decode_field
from gateway.transports.http.timeout_headers import format_grpc_timeout, grpc_timeout
from gateway.transports.http2 import frames
from gateway.transports.http2.field_rules import broken_fields, content_length
from gateway.transports.http2.frames import Http2StreamError, MissingPseudoHeaders
from gateway.transports.http2.hpack import (
    FIELD_OVERHEAD,
    Field,
    Table,
    decode_block,
    indexed,
    literal,
    text,
)
from gateway.wire.grpc import GrpcStatus, Metadata

_CONTENT_TYPE: Final = b"application/grpc"
_AFTER_TYPE: Final = (b"", b"+", b";", b" ")
_CODINGS: Final = b"identity,deflate,gzip"
_AGENT: Final = f"tensor-gateway/{__version__}".encode()
# Fields that are the transport's: no frontend sees them.
_OURS: Final = frozenset({b"te", b"content-type", b"content-length", b"host"})
# The fields of gRPC itself in the metadata of a response: when a server wants the call again, and
# what it says of an error in a form of its own.
_OF_A_RESPONSE: Final = frozenset({b"grpc-retry-pushback-ms", b"grpc-status-details-bin"})
_OF_A_REQUEST: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_AN_ANSWER: Final = frozenset({b":status"})
_TE: Final = b"trailers"
_NAME: Final = re.compile(rb"[0-9a-z_.\-]+\Z")
_MOST_STATUS: Final = max(GrpcStatus)
_SHORT: Final = 127
_SIZES: Final = [bytes((size,)) for size in range(_SHORT)]
_UNSAFE: Final = re.compile(rb"[^ -$&-~]")
_MAX_MESSAGE: Final = 6144
# The meaning of an HTTP status in a response without a gRPC status.
_OF_HTTP: Final = {
    400: GrpcStatus.INTERNAL,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.UNIMPLEMENTED,
    429: GrpcStatus.UNAVAILABLE,
    502: GrpcStatus.UNAVAILABLE,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.UNAVAILABLE,
}
# A longer timeout is sent in hundredths of a second: equal heads are cheaper to read.
_COARSE_FROM_S: Final = 1.0


class GrpcRequestHead(Struct, frozen=True):
    """The header fields of a request.

    Attributes:
        path: "/package.Service/Method".
        metadata: The fields that do not belong to the transport.
        timeout_s: The client's timeout in seconds; None for none.
        coding: The compression of messages with the compressed flag.
        http_status: An HTTP status to reply with, if this is not a gRPC call; else 200.
        oversized: The size limit of metadata, if it is exceeded; else 0.
        length: Content-Length; None for none.
    """

    path: str
    metadata: Metadata
    timeout_s: float | None
    coding: str
    http_status: int
    oversized: int
    length: int | None = None


class GrpcResponseHead(Struct, frozen=True):
    """The header fields or the trailers of a response.

    Attributes:
        http_status: The HTTP status; None in trailers.
        is_grpc: Whether the content type is that of gRPC.
        status: The gRPC status; None without one.
        details: The text of the status.
        metadata: The fields that do not belong to the transport, pushback (gRPC A6) and details.
        coding: The compression of messages with the compressed flag.
    """

    http_status: int | None
    is_grpc: bool
    status: GrpcStatus | None
    details: str
    metadata: Metadata
    coding: str


@accelerated
def read_call_block(
    block_bytes: int, limit_bytes: int, block: bytes, table: Table
) -> tuple[GrpcRequestHead | Http2StreamError | None, list[Field], Table]:
    """Return the head of a gRPC call, as `read_request_head`, and the dynamic table after it.

    For a request that is no gRPC call, the fields are returned instead of the head.

    Args:
        block_bytes: The size limit of the fields.
        limit_bytes: The size limit of metadata.
        block: The header block.
        table: The dynamic table before it, which is not changed.

    Raises:
        Http2ConnectionError: The block is malformed, or its fields exceed *block_bytes*.
    """
    fields, table = decode_block(block, table, block_bytes)
    for name, value in fields:
        if name == b"content-type" and value.startswith(_CONTENT_TYPE):
            return read_request_head(fields, limit_bytes), [], table
    return None, fields, table


def read_request_head(
    fields: Sequence[Field], limit_bytes: int
) -> GrpcRequestHead | Http2StreamError:
    """Return the head of a request; an Http2StreamError if HTTP/2 forbids its fields."""
    why = broken_fields(fields, _OF_A_REQUEST)
    if why is not None:
        return Http2StreamError(frames.PROTOCOL_ERROR, why)
    pseudo: dict[bytes, bytes] = {}
    found: dict[bytes, bytes] = {}
    metadata: list[tuple[str, str | bytes]] = []
    size = 0
    for name, value in fields:
        size += len(name) + len(value) + FIELD_OVERHEAD
        if name[:1] == b":":
            pseudo[name] = value
        elif name in _OURS or name.startswith(b"grpc-"):
            found[name] = value
        else:
            metadata += _pair(name, value)
    if not pseudo:
        return MissingPseudoHeaders(frames.PROTOCOL_ERROR, "a request without pseudo-header fields")
    if not (pseudo.get(b":path") and b":method" in pseudo and b":scheme" in pseudo):
        return Http2StreamError(
            frames.PROTOCOL_ERROR, "a request without :method, :scheme or :path"
        )
    try:
        length = content_length(fields) if b"content-length" in found else None
    except ValueError:
        return Http2StreamError(
            frames.PROTOCOL_ERROR, "Content-Length is not a number, or its values differ"
        )
    if found.get(b"te", _TE) != _TE:
        return Http2StreamError(frames.PROTOCOL_ERROR, "TE is not trailers")
    timeout = found.get(b"grpc-timeout")
    return GrpcRequestHead(
        pseudo[b":path"].decode("utf-8", "replace"),
        tuple(metadata),
        None if timeout is None else grpc_timeout(timeout.decode("latin-1")),
        found.get(b"grpc-encoding", b"identity").decode("latin-1").lower(),
        _http_status(pseudo[b":method"], found.get(b"content-type", b"")),
        limit_bytes if size > limit_bytes else 0,
        length,
    )


def _http_status(method: bytes, content_type: bytes) -> int:
    if method != b"POST":
        return 405
    return 200 if _is_grpc(content_type) else 415


def _is_grpc(content_type: bytes) -> bool:
    """Return whether a content type is that of gRPC; "application/grpc-web" is another one."""
    size = len(_CONTENT_TYPE)
    return content_type[:size] == _CONTENT_TYPE and content_type[size : size + 1] in _AFTER_TYPE


@accelerated
def read_response_head(fields: Sequence[Field]) -> GrpcResponseHead | Http2StreamError:
    """Return the head or the trailers of a response; an Http2StreamError as for a request."""
    why = broken_fields(fields, _OF_AN_ANSWER)
    if why is not None:
        return Http2StreamError(frames.PROTOCOL_ERROR, why)
    http_status: int | None = None
    is_grpc = False
    status: GrpcStatus | None = None
    details, coding = "", "identity"
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name == b"grpc-status":
            status = _status(value)
        elif name == b"grpc-message":
            details = unquote_to_bytes(value).decode("utf-8", "replace")
        elif name == b":status":
            http_status = int(value) if value.isdigit() and len(value) == 3 else 0  # noqa: PLR2004
        elif name == b"content-type":
            is_grpc = _is_grpc(value)
        elif name == b"grpc-encoding":
            coding = value.decode("latin-1").lower()
        elif name in _OF_A_RESPONSE or (
            not name.startswith((b"grpc-", b":")) and name not in _OURS
        ):
            metadata += _pair(name, value)
    return GrpcResponseHead(http_status, is_grpc, status, details, tuple(metadata), coding)


def status_of_http(status: int) -> GrpcStatus:
    """Return what an HTTP status other than 200 means for a call."""
    return _OF_HTTP.get(status, GrpcStatus.UNKNOWN)


def _status(value: bytes) -> GrpcStatus:
    if value.isdigit() and int(value[:4]) <= _MOST_STATUS:
        return GrpcStatus(int(value[:4]))
    return GrpcStatus.UNKNOWN


def _pair(name: bytes, value: bytes) -> Iterable[tuple[str, str | bytes]]:
    """Return a field as metadata: none where it is illegal, several where values were joined."""
    if _NAME.match(name) is None:
        return ()
    key = name.decode("ascii")
    if key.endswith("-bin"):
        return [(key, data) for data in map(_unbased, value.split(b",")) if data is not None]
    # A name that a trusted proxy sends may have any character, as over HTTP; what writes metadata
    # leaves out those that gRPC cannot carry.
    return ((key, decode_field(value)),)


def _unbased(value: bytes) -> bytes | None:
    try:
        return b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return None


RESPONSE_HEAD: Final = indexed(b":status", b"200") + literal(b"content-type", _CONTENT_TYPE)
"""What a server says before its first message."""

TRAILERS_OK: Final = literal(b"grpc-status", b"0")
"""What it says after an answer, before metadata."""


def request_block(
    path: str, authority: str, scheme: str, metadata: Metadata, left_s: float | None
) -> bytes:
    """Return the header block of a call; metadata that gRPC cannot carry is left out."""
    if left_s is None or left_s < _COARSE_FROM_S:
        block = _request_prefix(path, authority, scheme, None)
        if left_s is not None:
            block += literal(b"grpc-timeout", format_grpc_timeout(left_s).encode())
    else:
        block = _request_prefix(path, authority, scheme, left_s * 100 // 1)
    return with_metadata(block, metadata) if metadata else block


def trailers_block(status: GrpcStatus, details: str, metadata: Metadata) -> bytes:
    """Return the header block that ends a call; metadata that gRPC cannot carry is left out."""
    block = TRAILERS_OK
    if status is not GrpcStatus.OK:
        block = literal(b"grpc-status", b"%d" % status)
    if details:
        block += literal(b"grpc-message", _percent(cut_message(details)))
    if status is GrpcStatus.UNIMPLEMENTED:
        block += literal(b"grpc-accept-encoding", _CODINGS)
    return with_metadata(block, metadata)


def trailers_only_block(
    status: GrpcStatus, details: str, metadata: Metadata, *, http_status: int = 200
) -> bytes:
    """Return the only header block of a response without messages."""
    head = RESPONSE_HEAD
    if http_status != 200:  # noqa: PLR2004  # OK
        head = literal(b":status", b"%d" % http_status) + literal(b"content-type", _CONTENT_TYPE)
    return head + trailers_block(status, details, metadata)


@lru_cache(1024)  # the same few, call for call
def _request_prefix(path: str, authority: str, scheme: str, hundredths: float | None) -> bytes:
    timeout = b""
    if hundredths is not None:
        timeout = literal(b"grpc-timeout", format_grpc_timeout(hundredths / 100).encode())
    return b"".join(
        (
            indexed(b":method", b"POST"),
            indexed(b":scheme", scheme.encode()),
            literal(b":path", path.encode("utf-8", "replace")),
            literal(b":authority", authority.encode()),
            literal(b"te", b"trailers"),
            literal(b"content-type", _CONTENT_TYPE),
            literal(b"user-agent", _AGENT),
            timeout,
        )
    )


@accelerated
def with_metadata(block: bytes, metadata: Metadata) -> bytes:
    """Return *block* with fields after it; metadata that gRPC cannot carry is left out."""
    for key, value in metadata:
        kind, start = _key_start(key)
        if isinstance(value, str):
            if kind is str and value.isascii() and value.isprintable():
                raw = value.encode()
                block += start + (_SIZES[len(raw)] + raw if len(raw) < _SHORT else text(raw))
        elif kind is bytes:
            block += start + text(b64encode(value).rstrip(b"="))
    return block


@lru_cache(1024)  # the same few keys, call for call
def _key_start(key: str) -> tuple[type[str | bytes] | None, bytes]:
    """Return the type of the values of *key* and its encoded bytes; None if it is not sent."""
    return kind_of(key), b"\0" + text(key.encode("utf-8", "replace"))


def cut_message(text: str) -> str:
    """Return *text*, or the beginning of it that a `grpc-message` may have.

    Clients fail calls with much more, because all trailers together have 8 KiB by default.
    """
    if len(text) <= _MAX_MESSAGE // 12:  # a character has up to 4 bytes, each of 3 when encoded
        return text
    encoded = _percent(text)
    if len(encoded) <= _MAX_MESSAGE:
        return text
    whole = re.sub(rb"%.?\Z", b"", encoded[: _MAX_MESSAGE - 3])
    return unquote_to_bytes(whole).decode("utf-8", "ignore") + "..."


def _percent(text: str) -> bytes:
    """Return *text* as a `grpc-message`: UTF-8, percent-encoded but for printable ASCII."""
    return _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], text.encode("utf-8", "replace"))
