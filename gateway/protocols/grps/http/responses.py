"""Writes HTTP responses of grps, by the rules of the requested path.

grps's own paths respond with JSON or bytes; brpc's HTTP layer with JSON in its own spelling or
protobuf; customised routes with their template; the status page with HTML.

Source: docs/protocols/grps.md, "6. Status and errors", "8. HTTP", "10. Streams over HTTP".
"""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

from gateway.ir.calls import Call, InferResponse, ServerStatusRequest
from gateway.ir.errors import AccessDenied, GatewayError, NotFound, QuotaExceeded, Unsupported
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ModelStatus, ServerStatus, TensorMetadata, Trend
from gateway.protocols.grps import methods
from gateway.protocols.grps.content import ReplyFormat, reply_message
from gateway.protocols.grps.custom.json_path import json_value, render
from gateway.protocols.grps.custom.routes import CustomRoute
from gateway.protocols.grps.errors import (
    OK,
    brpc_code_of,
    brpc_http_status,
    ends_call,
    status_code_of,
)
from gateway.protocols.grps.http.paths import GrpsRoute, Surface
from gateway.protocols.grps.json.message import write_json
from gateway.protocols.grps.messages import ContentFormat, Flag, GrpsMessage, GrpsStatus
from gateway.protocols.grps.protobuf.message import write_message
from gateway.wire.errors import HTTP_TOO_MANY_REQUESTS, TOO_MANY_REQUESTS, clip, extra_headers
from gateway.wire.http import Headers, HttpResponse
from gateway.wire.json.floats import dump_exact

JSON_HEADERS: Final = Headers((("Content-Type", "application/json"),))
_BYTES_HEADERS: Final = Headers((("Content-Type", "application/octet-stream"),))
_PROTO_HEADERS: Final = Headers((("Content-Type", "application/proto"),))
_PAGE_HEADERS: Final = Headers((("Content-Type", "text/html; charset=utf-8"),))
# The last second, minute, hour and day; see `RollingStats`.
_NEWEST: Final = (173, 113, 53, 29)


def encode_response(
    call: Call[Any], reply: Any, reply_format: ReplyFormat, route: GrpsRoute | None
) -> HttpResponse:
    """Return the response to *call*.

    Args:
        call: The request.
        reply: Its reply.
        reply_format: The form of the request.
        route: The path's rules; None for those of grps itself.

    Raises:
        Unsupported: The reply cannot be written by these rules.
        NotFound: The requested metric does not exist.
    """
    surface = Surface.GRPS if route is None else route.surface
    if surface is Surface.PAGE and isinstance(call, ServerStatusRequest):
        return HttpResponse(OK, _PAGE_HEADERS, (write_page(reply),), is_compressible=True)
    if route is not None and surface is Surface.SERIES:
        return HttpResponse(OK, JSON_HEADERS, (_series(reply, route.name),), is_compressible=True)
    if route is not None and route.custom is not None and surface is Surface.CUSTOM:
        document = render(route.custom.answer, _values(reply))
        return HttpResponse(OK, JSON_HEADERS, (_dumped(document),), is_compressible=True)
    message = methods.encode_method_reply(call, reply, reply_format)
    if surface is Surface.BRPC and route is not None:
        return _of_brpc(message, binary=route.is_binary)
    if message.form is ContentFormat.BIN_DATA and len(message.data):
        return HttpResponse(OK, _BYTES_HEADERS, (message.data,), is_compressible=True)
    status = OK if message.status is None else message.status.code
    return HttpResponse(status, JSON_HEADERS, (write_json(message),), is_compressible=True)


def _series(trends: Mapping[str, Trend], name: str) -> bytes:
    # Real servers mark the names of their own metrics with a star.
    found = trends.get(name.removeprefix("*"))
    if found is None:
        raise NotFound("key not found")
    label = "cdf" if found.is_distribution else "trend"
    return _dumped({"label": label, "data": found.points})


def encode_part(
    item: InferResponse, reply_format: ReplyFormat, route: GrpsRoute | None, content_type: str
) -> HttpResponse:
    """Return one item of a stream as a part of an HTTP response.

    Raises:
        Unsupported: The item cannot be written.
    """
    custom = None if route is None or route.surface is not Surface.CUSTOM else route.custom
    if custom is not None and custom.stream is not None:
        stream = custom.stream
        template = custom.answer if stream.answer is None else stream.answer
        text = _framed(custom, _dumped(render(template, _values(item))))
        headers = Headers((("Content-Type", stream.switch.content_type),))
        return HttpResponse(OK, headers, (text,))
    message = reply_message(reply_format, item)
    body = message.data if message.form is ContentFormat.BIN_DATA else write_json(message)
    return HttpResponse(OK, Headers((("Content-Type", content_type),)), (body,))


def encode_end(route: GrpsRoute | None, content_type: str, *, empty: bool) -> HttpResponse | None:
    """Return the part that ends a stream; None where nothing is needed.

    Args:
        route: The path's rules; None for those of grps itself.
        content_type: The content type that grps itself streams.
        empty: The stream had no items, so this part is the complete response.
    """
    end = b""
    custom = None if route is None or route.surface is not Surface.CUSTOM else route.custom
    if custom is not None and custom.stream is not None:
        end = custom.stream.end.encode()
        content_type = custom.stream.switch.content_type
    if not (end or empty):
        return None
    return HttpResponse(OK, Headers((("Content-Type", content_type),)), (end,))


def encode_failure(
    error: GatewayError,
    route: GrpsRoute | None,
    limits: MessageLimits,
    *,
    unread: bool,
    late: bool,
    always_200: bool,
) -> HttpResponse:
    """Return the response with *error*.

    Args:
        error: The failure.
        route: The path's rules; None for those of grps itself.
        limits: For the length of the text.
        unread: The request could not be read.
        late: The stream has already begun.
        always_200: HTTP status 200, as the C++ server has it.
    """
    message = methods.failure_of(error, limits)
    if route is not None and route.surface is Surface.BRPC:
        if ends_call(error, unread=unread):
            return _brpc_error(error, limits)
        http_status = status_code_of(error) if isinstance(error, AccessDenied) else OK
        return _of_brpc(message, binary=route.is_binary, status=http_status)
    status = message.status or GrpsStatus(500, "", Flag.FAILURE)
    extra = extra_headers(error)
    headers = Headers((*JSON_HEADERS.pairs, *extra)) if extra else JSON_HEADERS
    text = write_json(message)
    custom = None if route is None or route.surface is not Surface.CUSTOM else route.custom
    if custom is not None and custom.error is not None:
        text = _dumped(render(custom.error, {"code": status.code, "message": status.msg}))
    if custom is not None and late:
        text = _framed(custom, text)
    return HttpResponse(OK if always_200 else status.code, headers, (text,))


def _of_brpc(message: GrpsMessage, *, binary: bool, status: int = OK) -> HttpResponse:
    """Return a message as brpc's HTTP layer does: the call succeeds, whatever the Status is.

    Only a client that may not make the call gets another *status*.
    """
    if binary:
        parts = tuple(write_message(message))
        return HttpResponse(status, _PROTO_HEADERS, parts, is_compressible=True)
    body = write_json(message, numbers=True)
    return HttpResponse(status, JSON_HEADERS, (body,), is_compressible=True)


def _brpc_error(error: GatewayError, limits: MessageLimits) -> HttpResponse:
    code = brpc_code_of(error)
    extra = extra_headers(error) if isinstance(error, QuotaExceeded) else ()
    headers = Headers((("Content-Type", "text/plain"), ("x-bd-error-code", str(code)), *extra))
    text = clip(f"[E{code}]{error.message}", limits.error_text_bytes)
    is_too_fast = isinstance(error, TOO_MANY_REQUESTS)
    status = HTTP_TOO_MANY_REQUESTS if is_too_fast else brpc_http_status(code)
    return HttpResponse(status, headers, (text.encode(),))


def _values(reply: InferResponse) -> dict[str, Any]:
    """Return the values for a template: outputs first, then parameters, model and id."""
    values: dict[str, Any] = {"model": reply.model.name, "id": reply.id, **reply.parameters}
    return values | {tensor.name: json_value(tensor) for tensor in reply.outputs}


def _framed(custom: CustomRoute, text: bytes) -> bytes:
    if custom.stream is None:
        return text
    return custom.stream.before.encode() + text + custom.stream.after.encode()


def _dumped(document: Any) -> bytes:
    try:
        return dump_exact(document)
    except TypeError as error:  # lone surrogates, integers over 64 bits
        raise Unsupported(f"reply cannot be written as JSON: {error}") from error


def write_page(status: ServerStatus) -> bytes:
    """Return a page with the state of the server and its models."""
    state = "ready" if status.is_ready else "not ready"
    rows = "".join(map(_row, status.models))
    measured = "".join([_measured(name, trend) for name, trend in status.trends.items()])
    return (
        "<!DOCTYPE html><html><head><meta charset='utf-8'><title>grps</title></head><body>"
        f"<h1>grps</h1><p>The server is {state}, up for {status.uptime_s:.0f} s.</p>"
        "<table border='1'><tr><th>measured</th><th>last second</th><th>last minute</th>"
        f"<th>last hour</th><th>last day</th></tr>{measured}</table><br>"
        "<table border='1'><tr><th>model</th><th>versions</th><th>inputs</th><th>outputs</th></tr>"
        f"{rows}</table></body></html>\n"
    ).encode("utf-8", "replace")


def _measured(name: str, trend: Trend) -> str:
    """Return the newest value of each period; no values of a distribution."""
    if trend.is_distribution:
        return ""
    points = [f"{trend.points[newest][1]:.3f}" for newest in _NEWEST]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in (name, *points)) + "</tr>"


def _row(model: ModelStatus) -> str:
    metadata = model.metadata
    versions = [f"{entry.version} {entry.state.value}" for entry in model.entries]
    cells = (
        metadata.name,
        ", ".join(versions or metadata.versions),
        _tensors(metadata.inputs),
        _tensors(metadata.outputs),
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _tensors(tensors: Iterable[TensorMetadata]) -> str:
    return ", ".join(
        f"{tensor.name} {'' if tensor.datatype is None else tensor.datatype.value} "
        f"{'' if tensor.shape is None else list(tensor.shape)}".rstrip()
        for tensor in tensors
    )
