"""The TensorRT v1 HTTP codec: a table of functions between HTTP messages and calls.

`paths.py` has the paths, `upstream.py` the client's side, and the package above the headers, bodies
and statuses.

The codec is pure except for two things: a counter, since every response has a number, and a cache
of headers.

Source: docs/protocols/tensorrt-v1.md, "3. HTTP endpoints", "4. Inference request over HTTP" and
"5. Inference response over HTTP".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from google.protobuf import json_format, text_format
from google.protobuf.message import Message
from msgspec.structs import replace  # noqa: TID251  # of an origin, not of a call

from gateway.api.protocol import CutThroughCodec, with_replies
from gateway.ir.bodies.streamed_inputs import can_cut_through, streaming_body_of
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    SharedStatusRequest,
)
from gateway.ir.context import Origin
from gateway.ir.errors import (
    AccessDenied,
    ErrorCode,
    GatewayError,
)
from gateway.ir.limits import MessageLimits
from gateway.protocols.trtis.errors import HTTP_ERROR, HTTP_OK, HeaderMissing, NoSuchPath, status_of
from gateway.protocols.trtis.extension_policy import check_allowed
from gateway.protocols.trtis.http import paths, upstream
from gateway.protocols.trtis.http.context import NAME, NEEDS, REQUEST, RESPONSE, STATUS, context_of
from gateway.protocols.trtis.http.whole import (
    STATUS_PATH,
    TextHeaderMessages,
    passed_inference,
    send_whole,
)
from gateway.protocols.trtis.infer_request import request_of, tensors_of_body
from gateway.protocols.trtis.infer_request_header import HeaderReader, id_of_text, number_of
from gateway.protocols.trtis.infer_response import CALLER_NEEDS
from gateway.protocols.trtis.management import write_index, write_shared_status
from gateway.protocols.trtis.options import read_options
from gateway.protocols.trtis.response_header_cache import ResponseHeaderCache
from gateway.protocols.trtis.server_status import write_status
from gateway.protocols.trtis.status_replies import MODEL_CONTROL_CALLS
from gateway.protocols.trtis.textproto.writer import response_line, status_line
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.errors import (
    HTTP_METHOD_NOT_ALLOWED,
    TOO_MANY_REQUESTS,
    MethodNotAllowed,
    extra_headers,
    http_status_of,
)
from gateway.wire.heads.metadata import http_context
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.opaque import passed_error_of

_BINARY, _JSON, _TEXT = "binary", "json", "text"
_OCTETS = ("Content-Type", "application/octet-stream")
_JSON_TYPE = ("Content-Type", "application/json")
# What the gateway itself refuses has the status that clients know of HTTP.
_WITH_OWN_STATUS = (AccessDenied, *TOO_MANY_REQUESTS)
_NO_HEADER = b"NV-InferRequest header is required"
_REQUEST_KEY = REQUEST.lower()


@dataclass(frozen=True, slots=True)
class TextReplyFormat:
    """The form of the response to a request.

    Attributes:
        format: "text", "binary" or "json".
        is_inference: The request is an inference, whose responses have an additional header.
        id: Of an inference that could not be read.
    """

    format: str = _TEXT
    is_inference: bool = False
    id: int = 0


_PLAIN = TextReplyFormat()


class HttpCodec(CutThroughCodec[HttpRequest, HttpResponse]):
    """TensorRT v1 over HTTP, in both directions.

    Args:
        limits: The limits of a message.
        options: The checked options of its listener or upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = NEEDS
    whole = NAME

    def __init__(self, limits: MessageLimits, options: Mapping[str, Any]) -> None:
        self._limits = limits
        self._options = read_options(options)
        self._headers = HeaderReader(limits)
        self._heads = ResponseHeaderCache()
        self._request_ids = self._options.request_ids.counter(self._options.server_id)
        self._success_prefix = status_line(pb.SUCCESS, "", self._options.server_id, 0).removesuffix(
            "0"
        )
        self.messages = TextHeaderMessages()
        self._client = upstream.V1Client(limits, self._options)
        documents: dict[type[Call[Any]], Callable[[Any, Any], Message]] = {
            ServerStatusRequest: lambda call, reply: write_status(
                reply, self._options, only=call.about is not None
            ),
            RepositoryIndexRequest: lambda _call, reply: write_index(reply),
            SharedStatusRequest: lambda _call, reply: pb.SharedMemoryStatus(
                shared_memory_region=write_shared_status(reply)
            ),
        }
        replies: dict[type[Call[Any]], Callable[[Any, Any], HttpResponse]] = {
            InferRequest: self._encode_infer,
            ServerLiveRequest: self._encode_health,
            ServerReadyRequest: self._encode_health,
            **dict.fromkeys(
                MODEL_CONTROL_CALLS, lambda call, _reply: self._encode_health(call, True)
            ),
            **{kind: partial(self._document, write) for kind, write in documents.items()},
        }
        self.calls = with_replies(self._client.calls, replies, {InferRequest: passed_inference})

    def decode_call(self, wire: HttpRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request; inputs are views of its body.

        Raises:
            InvalidRequest: Path, method, headers or body is wrong.
            NotFound: The path does not exist.
            TooLarge: A limit is exceeded.
            Forbidden: The listener does not allow the call.
        """
        infer = paths.find_infer(wire.method, wire.path)
        query = paths.read_query(wire.query)
        if infer is not None:
            return self._decode_infer(wire, infer, query)
        match, read = paths.find_call(wire.method, wire.path)
        form = TextReplyFormat(_format_of(query, wire))
        parsed = paths.ParsedPath(match, query, wire.view, context_of(wire, form), self._limits)
        call = read(parsed)
        check_allowed(call, self._options)
        if wire.path.startswith(STATUS_PATH) and self.is_plain(wire):
            return call.with_context(origin=Origin(NAME, wire, form, whole=self.whole))
        return call

    def decode_unread(self, wire: HttpRequest, refused: GatewayError, /) -> Call[Any] | None:
        """Return an inference whose header has fields that only its server knows."""
        match = paths.find_infer(wire.method, wire.path)
        if match is None or not self.is_plain(wire):
            return None
        query = paths.read_query(wire.query)
        call = self._decode_infer(wire, match, query, allow_unknown=True)
        origin = replace(cast("Origin", call.context.origin), refusal=refused)
        return call.with_context(origin=origin)

    def send_on(self, call: Call[Any], message: Origin, /) -> HttpRequest:
        """Write a client's request to a server, with the path of the target's model."""
        return send_whole(call, message)

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        """Write *error* as status 400 with an empty body, and the reason in `NV-Status`.

        A credential that the gateway refuses is status 401, a client that may not make the call
        403, and one that makes too many 429.
        Never raises.
        """
        passed = passed_error_of(call, error, self._limits)
        if passed is not None:
            return passed
        if isinstance(error, MethodNotAllowed | NoSuchPath):
            is_path = isinstance(error, NoSuchPath)
            refused = HTTP_ERROR if is_path else HTTP_METHOD_NOT_ALLOWED
            return HttpResponse(refused, Headers(extra_headers(error)))
        status = status_of(call, error, self._limits.error_text_bytes)
        number, server_id = next(self._request_ids), self._options.server_id
        status_header = (STATUS, status_line(status.code, status.text, server_id, number))
        if isinstance(error, HeaderMissing):
            return HttpResponse(HTTP_ERROR, Headers((status_header,)), (_NO_HEADER,))
        is_denied = call is None and error.code is ErrorCode.UNAUTHENTICATED
        if is_denied or isinstance(error, _WITH_OWN_STATUS):
            headers = Headers((status_header, *extra_headers(error)))
            return HttpResponse(http_status_of(error), headers)
        form = _form_of_error(call, error)
        if not form.is_inference:
            return HttpResponse(HTTP_ERROR, Headers((status_header,)))
        own_id = number_of(call.id) if isinstance(call, InferRequest) else form.id
        echoed = (RESPONSE, response_line(pb.InferResponseHeader(id=own_id)))
        return HttpResponse(HTTP_ERROR, Headers((echoed, status_header, _OCTETS)))

    def error_in(self, call: Call[Any], wire: HttpResponse, /) -> GatewayError | None:
        """Return the error in an upstream's response, with it as origin; None for a success."""
        return self._client.error_in(call, wire)

    def encode_cut_through(self, call: Call[Any], /) -> HttpRequest | None:
        """Write a request whose last inputs have not arrived; None where it cannot."""
        if not can_cut_through(call):
            return None
        return self.encode_call(call).with_body_stream(streaming_body_of(call))

    def _decode_infer(
        self,
        wire: HttpRequest,
        match: Any,
        query: Mapping[str, str],
        *,
        allow_unknown: bool = False,
    ) -> InferRequest:
        form = TextReplyFormat(query.get("format", _TEXT), is_inference=True)
        text = wire.headers.get(_REQUEST_KEY)
        try:
            if text is None:
                raise HeaderMissing("an inference needs the header NV-InferRequest")
            context = http_context(wire, NAME, CALLER_NEEDS, form, self.whole, has_bytes=False)
            parsed = paths.ParsedPath(match, query, wire.view, context, self._limits)
            header = self._headers.text(text, allow_unknown=allow_unknown)
            inputs = tensors_of_body(header, parsed.body)
            return request_of(parsed.model(), parsed.context, header, inputs)
        except GatewayError as error:
            # The response has the id even of a refused request.
            refused = TextReplyFormat(form.format, is_inference=True, id=id_of_text(text or ""))
            error.origin = error.origin or Origin(NAME, wire, refused)
            raise

    def _encode_health(self, _call: Call[bool], reply: bool) -> HttpResponse:
        return HttpResponse(HTTP_OK if reply else HTTP_ERROR, Headers((self._success(),)))

    def _encode_infer(self, call: InferRequest, reply: InferResponse) -> HttpResponse:
        form = _form_of(call)
        head, views = self._heads.write(call, reply)
        number = number_of(call.id)
        trailer = head.message(number) if form.format == _BINARY else head.text(number)
        headers = Headers(((RESPONSE, head.line(number)), self._success(), _OCTETS))
        return HttpResponse(HTTP_OK, headers, (*[view for view in views if view.nbytes], trailer))

    def _document(
        self, write: Callable[[Any, Any], Message], call: Call[Any], reply: Any
    ) -> HttpResponse:
        """Write a message as the body of a response, in the requested form."""
        message, form = write(call, reply), _form_of(call)
        if form.format == _BINARY:
            headers = Headers((self._success(), _OCTETS))
            return HttpResponse(HTTP_OK, headers, (message.SerializeToString(),))
        if form.format == _JSON:
            text = json_format.MessageToJson(
                message, preserving_proto_field_name=self._options.is_snake_case, indent=None
            )
            return HttpResponse(HTTP_OK, Headers((self._success(), _JSON_TYPE)), (text.encode(),))
        body = text_format.MessageToString(message).encode()
        return HttpResponse(HTTP_OK, Headers((self._success(),)), (body,))

    def _success(self) -> tuple[str, str]:
        return STATUS, f"{self._success_prefix}{next(self._request_ids)}"


def _format_of(query: Mapping[str, str], wire: HttpRequest) -> str:
    """Return the form of a status: text for any unknown form, as real servers do."""
    requested = query.get("format")
    if requested is not None:
        return requested
    accepted = wire.headers.get("accept") or ""
    return _JSON if "application/json" in accepted and "/status" in wire.path else _TEXT


def _form_of(call: Call[Any]) -> TextReplyFormat:
    origin = call.context.origin
    if origin is not None and isinstance(origin.form, TextReplyFormat):
        return origin.form
    return TextReplyFormat(_BINARY, is_inference=isinstance(call, InferRequest))


def _form_of_error(call: Call[Any] | None, error: GatewayError) -> TextReplyFormat:
    if call is not None:
        return _form_of(call)
    if error.origin is not None and isinstance(error.origin.form, TextReplyFormat):
        return error.origin.form
    return _PLAIN
