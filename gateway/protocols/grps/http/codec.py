"""The grps HTTP codec: JSON, bytes, streams, brpc's HTTP layer and customised routes.

`paths.py` finds routes, `requests.py` reads requests and `responses.py` writes responses.

Source: docs/protocols/grps.md, "8. HTTP", "10. Streams over HTTP".
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

from gateway.api.protocol import FramingCodec, StreamCodec
from gateway.ir import errors
from gateway.ir.calls import Call, InferResponse, StreamInferRequest
from gateway.ir.context import Origin
from gateway.ir.limits import MessageLimits
from gateway.protocols.grps import methods
from gateway.protocols.grps.content import ReplyFormat, has_only_text, reply_format_of
from gateway.protocols.grps.custom.streaming import BODY, HEADER, Streaming
from gateway.protocols.grps.http import responses
from gateway.protocols.grps.http.json_stream import JsonStreamSplitter
from gateway.protocols.grps.http.paths import METHOD_PATHS, GrpsRoute, Surface, find_route, is_brpc
from gateway.protocols.grps.http.requests import BYTES_TYPE, JSON_TYPE, NAME, Reader, reply_route
from gateway.protocols.grps.json.document import read_leniently
from gateway.protocols.grps.json.message import read_response, write_json
from gateway.protocols.grps.messages import ContentFormat, Flag, GrpsMessage, GrpsStatus
from gateway.protocols.grps.options import GrpsOptions, read_options
from gateway.wire.errors import SUCCESSES, clip, is_error_status, read_error_text
from gateway.wire.heads.metadata import http_headers
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse, media_type
from gateway.wire.opaque import JsonMessages, passed_error_of, passed_request

R = TypeVar("R")

_WITH_BODY: Final = frozenset({methods.PREDICT, methods.PREDICT_STREAMING, methods.MODEL_METADATA})
_BRACE: Final = b"{"
_READ_BYTES: Final = 64 * 1024
_UNREAD_BRPC: Final = GrpsRoute(Surface.BRPC, methods.PREDICT)


class HttpCodec(StreamCodec[HttpRequest, HttpResponse], FramingCodec[HttpRequest, HttpResponse]):
    """grps over HTTP.

    Args:
        limits: The limits of a message.
        options: The checked options of its listener or upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = methods.NEEDS

    def __init__(self, limits: MessageLimits, options: Mapping[str, Any]) -> None:
        self._limits = limits
        self._settings: GrpsOptions = read_options(options)
        customized = {route.path: route for route in self._settings.customized}
        self._customized = customized
        self.whole = "" if self._settings.changes_messages else NAME
        self.messages = JsonMessages(limits, has_bytes=True)
        self._reader = Reader(limits, self._settings, customized)
        read = partial(_message, limits)
        carrier = methods.GrpsCarrier(NAME, partial(_ask, self._settings.streaming), read)
        self.calls = methods.handlings(carrier, self._settings, limits)
        streamed = carrier._replace(read=partial(read, sniff=True))
        stream = methods.handlings(streamed, self._settings, limits)[StreamInferRequest]
        self.calls[StreamInferRequest] = stream

    def splitter(self) -> JsonStreamSplitter:
        """Return the splitter of one streamed response of an upstream."""
        return JsonStreamSplitter(self._limits)

    def decode_call(self, wire: HttpRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request; bytes are a view of its body.

        Raises:
            InvalidRequest: Path, method, content type or body is wrong.
            NotFound: The path does not exist, or no model is named.
            TooLarge: A limit is exceeded.
        """
        route = _UNREAD_BRPC if is_brpc(wire.path) else None
        try:
            route = reply_route(find_route(wire.method, wire.path, self._customized), wire)
            return self._reader.read(route, wire)
        except errors.GatewayError as error:
            # There is no call with the route that determines the form of the error.
            error.origin = Origin(NAME, wire, route)
            raise

    def sends_on(self, call: Call[Any], /) -> bool:
        """Return whether an upstream gets the message of *call*, which has its key of the model."""
        if not super().sends_on(call):
            return False
        return methods.model_key(call.model, self._settings) == reply_format_of(call).key

    def send_on(self, call: Call[Any], message: Origin, /) -> HttpRequest:
        """Write a client's request to a server."""
        return passed_request(call, message, METHOD_PATHS[methods.PREDICT])

    def encode_reply(self, call: Call[R], reply: R, /) -> HttpResponse:
        """Write the response to *call*; bytes are not copied.

        Raises:
            Unsupported: grps cannot carry the reply in the requested form.
        """
        origin, own = getattr(reply, "origin", None), call.context.origin
        if own is not None and own.whole and origin is not None and origin.whole == own.whole:
            return self.pass_on(call, origin)
        reply_format = reply_format_of(call)
        return responses.encode_response(call, reply, reply_format, _route(reply_format))

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> HttpResponse:
        """Write one response of a stream, as a part of one HTTP response.

        Raises:
            Unsupported: grps cannot carry the reply.
        """
        if item.error is not None:
            return self.encode_late_error(call, item.error)
        reply_format = reply_format_of(call)
        return responses.encode_part(
            item, reply_format, _route(reply_format), self._settings.streaming.content_type
        )

    def has_only_text(self, call: StreamInferRequest, item: InferResponse, /) -> bool:
        """Return whether BYTES of an item can only be text, as in the JSON of custom routes."""
        route = _route(reply_format_of(call))
        return (route is not None and route.custom is not None) or has_only_text(item)

    def encode_error(self, call: Call[Any] | None, error: errors.GatewayError, /) -> HttpResponse:
        """Write *error* as a message whose Status is FAILURE, with its code as HTTP status too.

        Never raises.
        """
        return self._failure(call, error, late=False)

    def note_request(self, wire: HttpRequest, error: errors.GatewayError, /) -> None:
        """Note in *error* that its path has brpc's form."""
        if is_brpc(wire.path):
            error.origin = Origin(NAME, wire, _UNREAD_BRPC)

    def encode_end(
        self, call: StreamInferRequest, last: InferResponse | None, /
    ) -> HttpResponse | None:
        """Write the end of a customised route's stream; the headers of a stream without items."""
        reply_format = reply_format_of(call)
        content_type = self._settings.streaming.content_type
        return responses.encode_end(_route(reply_format), content_type, empty=last is None)

    def encode_late_error(
        self, call: StreamInferRequest, error: errors.GatewayError, /
    ) -> HttpResponse:
        """Write *error* as the last message of a stream, whose HTTP status was sent before."""
        return self._failure(call, error, late=True)

    def _failure(
        self, call: Call[Any] | None, error: errors.GatewayError, *, late: bool
    ) -> HttpResponse:
        passed = passed_error_of(call, error, self._limits)
        if passed is not None:
            return passed
        if call is not None:
            route = _route(reply_format_of(call))
        else:
            form = None if error.origin is None else error.origin.form
            route = form if isinstance(form, GrpsRoute) else None
        return responses.encode_failure(
            error,
            route,
            self._limits,
            unread=call is None,
            late=late,
            always_200=self._settings.http_always_200,
        )


def _ask(switch: Streaming, call: Call[Any], method: str, message: GrpsMessage) -> HttpRequest:
    path, deadline = METHOD_PATHS[method], call.context.deadline
    headers = http_headers(call.context)
    if method not in _WITH_BODY:
        return HttpRequest("GET", path, "", Headers(headers), (), deadline)
    query = []
    streaming = method == methods.PREDICT_STREAMING
    if message.form is ContentFormat.BIN_DATA:
        if streaming and switch.mode == BODY:
            raise errors.Unsupported(
                "bin_data cannot request a stream in the body", model=call.model
            )
        headers = (*headers, ("Content-Type", BYTES_TYPE))
        body: tuple[Buffer, ...] = (message.data,)
        if message.model:
            query.append(f"model={quote(message.model, safe='')}")
    else:
        headers = (*headers, ("Content-Type", JSON_TYPE))
        text = write_json(message)
        if streaming and switch.mode == BODY:
            key = write_json(GrpsMessage(form=ContentFormat.STR_DATA, text=switch.key))
            # {"str_data":"<key>"} -> "<key>"
            text = text[:-1] + b"," + key[len(b'{"str_data":') : -1] + b":true}"
        body = (text,)
    if streaming and switch.mode == HEADER:
        headers = (*headers, (switch.key, "true"))
    elif streaming and switch.mode != BODY:
        query.append(f"{quote(switch.key, safe='')}=true")
    return HttpRequest("POST", path, "&".join(query), Headers(headers), body, deadline)


def _message(
    limits: MessageLimits, _call: Call[Any], wire: HttpResponse, *, sniff: bool = False
) -> GrpsMessage:
    view = wire.view
    kind = media_type(wire.headers.get("content-type"))
    if wire.status in SUCCESSES and kind == BYTES_TYPE:
        is_json = sniff and bytes(view[:1]) == _BRACE
        message = _with_status(view, limits) if is_json else None
        return message or GrpsMessage(form=ContentFormat.BIN_DATA, data=view)
    try:
        message = _read_json(view, limits)
    except errors.MalformedMessage:
        if wire.status in SUCCESSES:
            raise
        message = GrpsMessage()
    if wire.status in SUCCESSES:
        return message
    status = message.status
    if status is None or not is_error_status(status.code):
        text = clip(read_error_text(view, _READ_BYTES), 512)
        text = f"upstream responded with HTTP status {wire.status}: {text}"
        status = GrpsStatus(wire.status, text, Flag.FAILURE)
    return GrpsMessage(status=status)


def _read_json(view: memoryview, limits: MessageLimits) -> GrpsMessage:
    document = read_leniently(view, "the response", limits)
    return read_response(document, limits, view)


def _with_status(view: memoryview, limits: MessageLimits) -> GrpsMessage | None:
    """Return the message with a Status in a stream of bytes, such as the error at its end."""
    try:
        message = _read_json(view, limits)
    except errors.GatewayError:
        return None
    return None if message.status is None else message


def _route(reply_format: ReplyFormat) -> GrpsRoute | None:
    return reply_format.route if isinstance(reply_format.route, GrpsRoute) else None
