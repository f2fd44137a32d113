"""Headers or metadata, request id and deadline, as all protocols read and write them.

A client's headers become a Context, and a Context becomes the headers of a request to an upstream.
`gateway.policies.forward_headers` decides which headers are forwarded.  This module leaves out only
those whose names the carrier cannot write, and those of one message or connection.  Values that no
carrier writes, such as names of people, are percent-encoded: a server must not take a header that
is lost for one that was never sent.

`retry_after_s` reads when a server wants a refused call again.

A Context has text only.  The bytes of gRPC metadata whose key ends with "-bin" are base64 in it, as
in the headers of HTTP.
"""

import math
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Final, TypeVar

from gateway.accelerator import accelerated
from gateway.ir.calls import Call, words_of
from gateway.ir.context import HOP_BY_HOP_HEADERS, REQUEST_ID, Context, Need, Origin
from gateway.ir.errors import GatewayError, InternalError
from gateway.ir.texts import field_text
from gateway.wire.grpc import GrpcRequest, GrpcResponse, Metadata
from gateway.wire.heads.request_id import header_request_id, metadata_request_id
from gateway.wire.http import (
    Buffer,
    ExtendedHeaders,
    Headers,
    HttpRequest,
    HttpResponse,
    is_printable_ascii,
)

F = TypeVar("F")

_PUSHBACK: Final = "grpc-retry-pushback-ms"
_DIGITS: Final = re.compile(r"\d{1,9}", re.ASCII)
_MS_PER_S: Final = 1000

_NAME: Final = re.compile(r"(?!grpc-)[!#$%&'*+.^_`|~0-9a-z-]+")
# Keys of metadata with text: "-bin" ends those with bytes, "grpc-" begins those of the runtime.
_KEY: Final = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")
_BINARY_KEY: Final = re.compile(r"(?!grpc-)[0-9a-z_.-]+-bin")


def http_context(  # noqa: PLR0913  # the last ones are of few codecs
    wire: HttpRequest,
    codec: str,
    needs: frozenset[Need],
    form: object = None,
    whole: str = "",
    refusal: GatewayError | None = None,
    recorded: HttpRequest | None = None,
    *,
    has_bytes: bool = True,
) -> Context:
    """Return the context of a client's HTTP request.

    Args:
        wire: The request.
        codec: Name of the codec that reads it.
        needs: What the reply must have.
        form: Kept for the response.
        whole: The form of a request that may pass as it came.
        refusal: The error of one that only its own server reads.
        recorded: What recordings keep of the request; None for all of it.
        has_bytes: Whether each input certainly has its bytes: False where a codec takes inputs in
            shared memory, or before their bytes have arrived.
    """
    # Transports cache the heads of repeated messages, and with them these values.
    metadata, request_id = wire.headers.parsed_with(sender_metadata)
    origin = Origin(codec, wire, form, has_bytes, whole, refusal, recorded)
    return Context(codec, metadata, request_id, wire.deadline, None, needs, origin, wire.client)


def form_of(call: Call[Any], kind: type[F]) -> F:
    """Return the form of the response that a codec kept in the context of its call.

    Raises:
        InternalError: The call is of another codec.
    """
    origin = call.context.origin
    form = None if origin is None else origin.form
    if not isinstance(form, kind):
        raise InternalError(f"{words_of(call)} has no form of this codec")
    return form


@accelerated
def sender_metadata(headers: Headers) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return all of a client's headers as metadata, and its request id."""
    return headers.lowered, header_request_id(headers)


def grpc_context(  # noqa: PLR0913, PLR0917  # the last ones are of few codecs
    wire: GrpcRequest,
    codec: str,
    needs: frozenset[Need],
    form: object = None,
    request_id: str = "",
    has_bytes: bool = True,
    whole: str = "",
    refusal: GatewayError | None = None,
) -> Context:
    """Return the context of a client's gRPC message.

    Args:
        wire: The message.
        codec: Name of the codec that reads it.
        needs: What the reply must have.
        form: Kept for the response.
        request_id: For a message without a valid request id.
        has_bytes: Whether each input certainly has its bytes; False for inputs in shared memory,
            or read before their bytes have arrived.
        whole: The form of a message that may pass as it came.
        refusal: The error of one that only its own server reads.
    """
    origin = Origin(codec, wire, form, has_bytes, whole, refusal)
    metadata = wire.metadata
    if not metadata:  # most clients send no fields of their own
        return Context(codec, (), request_id, wire.deadline, None, needs, origin, wire.client)
    texts, found = texts_and_id(metadata)
    return Context(
        codec, texts, found or request_id, wire.deadline, None, needs, origin, wire.client
    )


@accelerated
def texts_and_id(metadata: Metadata) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return gRPC metadata as text, and the last valid request id in it."""
    texts = text_metadata(metadata)
    return texts, metadata_request_id(texts)


def text_metadata(metadata: Metadata) -> tuple[tuple[str, str], ...]:
    """Return gRPC metadata as text: bytes are base64, with padding."""
    return tuple(
        [
            (key, value if isinstance(value, str) else b64encode(value).decode())
            for key, value in metadata
        ]
    )


def http_headers(context: Context, *, without: str = "") -> tuple[tuple[str, str], ...]:
    """Return the headers of a request to an upstream, with the id of the call.

    Args:
        context: The context of the call.
        without: Prefix, in lower case, of the headers that the protocol writes itself.
    """
    if not context.metadata:
        return ((REQUEST_ID, context.request_id),) if context.request_id else ()
    return headers_with_id(context.metadata, context.request_id, without)


@accelerated
def headers_with_id(
    pairs: tuple[tuple[str, str], ...], request_id: str, without: str
) -> tuple[tuple[str, str], ...]:
    """Return the headers of a request to an upstream.

    Args:
        pairs: What is forwarded; headers whose names HTTP cannot carry are left out, and values
            that it cannot carry are percent-encoded.
        request_id: Of the call, for headers that do not contain it; "" for none.
        without: Prefix of the headers that are left out.
    """
    headers = [
        pair if is_printable_ascii(pair[1]) else (pair[0], field_text(pair[1]))
        for pair in pairs
        if is_header(pair[0]) and not (without and pair[0].startswith(without))
    ]
    if request_id and not any(name == REQUEST_ID for name, _ in headers):
        headers.append((REQUEST_ID, request_id))
    return tuple(headers)


@accelerated
def extended_headers(
    base: Headers, pairs: tuple[tuple[str, str], ...], request_id: str
) -> ExtendedHeaders:
    """Return fields of a message, and after them those of `headers_with_id`."""
    return ExtendedHeaders(base, headers_with_id(pairs, request_id, ""))


def grpc_metadata(context: Context) -> Metadata:
    """Return the metadata of a request to an upstream, with the id of the call."""
    if not context.metadata:
        return ((REQUEST_ID, context.request_id),) if context.request_id else ()
    return metadata_with_id(context.metadata, context.request_id)


@accelerated
def metadata_with_id(pairs: tuple[tuple[str, str], ...], request_id: str) -> Metadata:
    """Return the metadata of a request to an upstream.

    Args:
        pairs: What is forwarded; fields whose names gRPC cannot carry are left out, and values of
            text that it cannot carry are percent-encoded.
        request_id: Of the call, for metadata that does not contain it; "" for none.
    """
    metadata: list[tuple[str, str | bytes]] = []
    has_id = False
    for pair in pairs:
        name, value = pair
        if is_key(name):
            metadata.append(pair if is_printable_ascii(value) else (name, field_text(value)))
            has_id = has_id or name == REQUEST_ID
        elif name.endswith("-bin") and _BINARY_KEY.fullmatch(name):
            metadata += [(name, data) for data in _decoded(value)]
    if request_id and not has_id:
        metadata.append((REQUEST_ID, request_id))
    return tuple(metadata)


def get_request(call: Call[Any], path: str) -> HttpRequest:
    """Return a question to an upstream: a GET with the headers of its call, and no body."""
    context = call.context
    return HttpRequest("GET", path, "", Headers(http_headers(context)), (), context.deadline)


def unary_request(call: Call[Any], method: str, message: Sequence[Buffer]) -> GrpcRequest:
    """Return a gRPC request to an upstream, with the metadata of its call."""
    context = call.context
    return GrpcRequest(method, message, grpc_metadata(context), context.deadline)


def _decoded(value: str) -> Iterator[bytes]:
    """Yield the values of binary metadata, which commas separate; those not of base64 are left out.

    Source: gRPC over HTTP/2, "Custom-Metadata"; the padding may be missing.
    """
    for each in value.split(","):
        text = each.strip()
        try:
            yield b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (Base64Error, ValueError):
            continue


def carries_header(carrier: str, name: str, value: str) -> bool:
    """Return whether requests over a carrier have a header with this value, if one is configured.

    Args:
        carrier: "http", "grpc" or that of frames, which have no headers.
        name: In lower case.
        value: Printable ASCII.
    """
    if carrier == "http":
        return is_header(name)
    if carrier != "grpc":
        return False
    if _BINARY_KEY.fullmatch(name) is not None:
        return len(list(_decoded(value))) == value.count(",") + 1
    return is_key(name)


@lru_cache(1024)  # messages repeat the same few keys
def is_key(name: str) -> bool:
    """Return whether metadata of this name may be forwarded as text."""
    return name not in HOP_BY_HOP_HEADERS and _KEY.fullmatch(name) is not None


@lru_cache(1024)  # messages repeat the same few names
def is_header(name: str) -> bool:
    """Return whether a header of this name may be forwarded."""
    return name not in HOP_BY_HOP_HEADERS and _NAME.fullmatch(name) is not None


def retry_after_s(response: Any) -> float | None:
    """Return the seconds after which a server wants the call again; None if it does not say.

    Returns:
        `math.inf` for never.

    Source: RFC 9110, 10.2.3, "Retry-After"; gRPC proposal A6, "Pushback".
    """
    if isinstance(response, HttpResponse):
        text = response.headers.get("retry-after")
        if text is None:
            return None
        return _seconds_of_header(text.strip(), response.headers.get("date"))
    if isinstance(response, GrpcResponse):
        values = [value for key, value in response.metadata if key == _PUSHBACK]
        return _seconds_of_pushback(values[0]) if values else None
    return None


def _seconds_of_header(text: str, sent_at: str | None) -> float | None:
    """Read seconds, or a date; whatever else it is says nothing.

    Args:
        text: The value.
        sent_at: When the server sent it, on its own clock, which ours may differ from.
    """
    if _DIGITS.fullmatch(text):
        return float(text)
    try:
        seconds = (
            parsedate_to_datetime(text) - parsedate_to_datetime(sent_at or "")
        ).total_seconds()
    except (ValueError, TypeError):
        return None
    return max(0.0, seconds)


def _seconds_of_pushback(text: str | bytes) -> float:
    """Read milliseconds; whatever else it is, as a negative number, means never."""
    if isinstance(text, str) and _DIGITS.fullmatch(text):
        return int(text) / _MS_PER_S
    return math.inf
