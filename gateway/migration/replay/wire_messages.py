"""Messages outside of a connection: as a head and a body, in files and in rows of a capture."""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final, cast

import orjson

from gateway.api.protocol import GrpcBinding, HttpBinding, StreamBinding
from gateway.api.tap import TappedCall
from gateway.ir.errors import MalformedMessage
from gateway.ir.limits import MessageLimits
from gateway.shadow.records.records import WireRow
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import Headers, HttpRequest, HttpResponse, view_of
from gateway.wire.stream import Frame, Framer

Message = HttpRequest | HttpResponse | GrpcRequest | GrpcResponse | Frame
Binding = HttpBinding | GrpcBinding | StreamBinding

READING_HEADERS: Final = frozenset(
    {
        "content-type",
        "content-encoding",
        "accept",
        "inference-header-content-length",
        "nv-inferrequest",
        "nv-inferresponse",
        "nv-status",
    }
)
"""Headers without which nobody can read the body of a message."""

READING_QUERY: Final = frozenset(
    {"format=binary", "format=json", "format=text", "streaming=true", "return-ndarray=true"}
)
"""Parts of a query that choose the form of the response; all others may contain secrets."""

_OK: Final = 200
# A view of a small body would keep the buffer that it was received in.
_SMALL_BYTES: Final = 64 << 10
# The body of a message value is decoded already, and the other one is no part of the request.
_NOT_SENT: Final = frozenset({"content-encoding", "accept-encoding"})
_INFERENCE: Final = re.compile(r".*/(ModelInfer|Infer|Predict)")


def head_of(message: Message, headers: Container[str] | None) -> dict[str, Any]:
    """Return what a message has besides its body: carrier, and method and path or status.

    Args:
        message: The message.
        headers: Names of HTTP headers, in lower case, that the head includes, with no more of a
            query than `READING_QUERY`; None for all headers and the whole query.
    """
    if isinstance(message, HttpRequest | HttpResponse):
        listed = [
            list(pair) for pair in message.headers if headers is None or pair[0].lower() in headers
        ]
        if isinstance(message, HttpResponse):
            return {"carrier": "http", "status": message.status, "headers": listed}
        parts = message.query.split("&")
        query = "&".join(each for each in parts if headers is None or each in READING_QUERY)
        path = f"{message.path}?{query}" if query else message.path
        head = {"carrier": "http", "method": message.method, "path": path}
        return {**head, "headers": listed}
    if isinstance(message, GrpcRequest):
        return {"carrier": "grpc", "method": message.method}
    if isinstance(message, GrpcResponse):
        return {"carrier": "grpc", "status": int(message.status)}
    return {"carrier": "stream", "correlation": message.correlation}


def body_of(message: Message) -> bytes:
    """Return the body of a message; copies it."""
    return bytes(_view_of(message))


def row_of(side: str, place: int, message: Message, headers: Container[str] | None) -> WireRow:
    """Return a message as a row; copies its body only where it is small.

    Args:
        side: "request" or "reply".
        place: Position among the messages of this side.
        message: The message.
        headers: What its head includes, as for `head_of`.
    """
    view = _view_of(message)
    body = cast("bytes", view) if view.nbytes > _SMALL_BYTES else bytes(view)
    return WireRow(side, place, orjson.dumps(head_of(message, headers)).decode(), body)


def messages_of(
    exchange: TappedCall, kept: memoryview, headers: Container[str] | None
) -> list[WireRow]:
    """Return the messages of an exchange.

    Args:
        exchange: The call, with its responses.
        kept: What its teed body kept.
        headers: What their heads include, as for `row_of`; None for a message that is sent, and
            not recorded.
    """
    responses = enumerate(exchange.responses)
    rows = [row_of("reply", place, each, headers) for place, each in responses]
    origin = exchange.call.context.origin
    if origin is None:
        return rows
    is_recorded = headers is not None and origin.recorded is not None
    row = row_of("request", 0, origin.recorded if is_recorded else origin.wire, headers)
    if kept:
        row = WireRow(row.side, row.place, row.head, b"".join((row.body, kept)))
    return [row, *rows]


def _view_of(message: Message) -> memoryview:
    return view_of(message.payload) if isinstance(message, Frame) else message.view


def request_of(head: Mapping[str, Any], body: bytes) -> HttpRequest | GrpcRequest | Frame:
    """Return the request of a head and a body, without the query and headers of the hop.

    Raises:
        MalformedMessage: The head is not that of a request.
    """
    try:
        if head["carrier"] == "http":
            path, _, query = str(head["path"]).partition("?")
            return HttpRequest(str(head["method"]), path, query, _headers(head), (body,))
        if head["carrier"] == "grpc":
            return GrpcRequest(str(head["method"]), (body,))
        return Frame((body,), head.get("correlation"))
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedMessage(f"head {str(head)[:80]!r} is not that of a request") from error


def response_of(head: Mapping[str, Any], body: bytes) -> HttpResponse | GrpcResponse | Frame:
    """Return the response of a head and a body.

    Raises:
        MalformedMessage: The head is not that of a response.
    """
    try:
        if head["carrier"] == "http":
            return HttpResponse(int(head["status"]), _headers(head), (body,))
        if head["carrier"] == "grpc":
            status = GrpcStatus(int(head["status"]))
            return GrpcResponse((body,) if status is GrpcStatus.OK else (), status)
        return Frame((body,), head.get("correlation"))
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedMessage(f"head {str(head)[:80]!r} is not that of a response") from error


def _headers(head: Mapping[str, Any]) -> Headers:
    pairs = [(str(name), str(value)) for name, value in head.get("headers", ())]
    return Headers([pair for pair in pairs if pair[0].lower() not in _NOT_SENT])


def read_request(
    binding: Binding, body: bytes, path: str, headers: Sequence[tuple[str, str]] = ()
) -> HttpRequest | GrpcRequest | Frame:
    """Return the request in a file: a body, a gRPC message without its prefix, or a frame.

    Args:
        binding: The carrier of the protocol.
        body: Contents of the file.
        path: Path with a query, or gRPC method; "" for the usual method.
        headers: HTTP headers.

    Raises:
        GatewayError: The frame is incomplete or malformed.
    """
    if isinstance(binding, HttpBinding):
        head = {"carrier": "http", "method": "POST", "path": path or "/", "headers": headers}
        return request_of(head, body)
    if isinstance(binding, GrpcBinding):
        return GrpcRequest(path or next(filter(_INFERENCE.fullmatch, binding.methods)), (body,))
    return _frame_of(binding.server_framer, body)


def read_response(
    binding: Binding, body: bytes, headers: Sequence[tuple[str, str]] = ()
) -> HttpResponse | GrpcResponse | Frame:
    """Return the response in a file, as `read_request`; its status is that of success.

    Raises:
        GatewayError: The frame is incomplete or malformed.
    """
    if isinstance(binding, HttpBinding):
        return response_of({"carrier": "http", "status": _OK, "headers": headers}, body)
    if isinstance(binding, GrpcBinding):
        return GrpcResponse((body,))
    return _frame_of(binding.client_framer, body)


def _frame_of(framer: Callable[[MessageLimits], Framer], data: bytes) -> Frame:
    reader = framer(MessageLimits())
    frames = reader.receive(data)
    if reader.fault is not None:
        raise reader.fault
    if len(frames) != 1 or reader.held:
        raise MalformedMessage(f"{len(data)} bytes have {len(frames)} whole frames; expected 1")
    return frames[0]


def write_file(binding: Binding, message: Message) -> bytes:
    """Return what a file of *message* contains: its body, or its frame."""
    if not isinstance(message, Frame):
        return body_of(message)
    assert isinstance(binding, StreamBinding)  # noqa: S101  # no other carrier has frames
    frame = Frame(message.payload, message.correlation or (None if binding.is_ordered else 1))
    return b"".join(binding.client_framer(MessageLimits()).send(frame))
