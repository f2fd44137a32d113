"""The Open Inference HTTP codec: seven functions between HTTP messages and calls.

`paths.py` finds routes, `infer_request.py`, `infer_response.py` and `infer_routes.py` have
inferences, `management.py` and `extensions.py` the other calls.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from gateway.api.protocol import (
    CutThroughCodec,
    FramingCodec,
    ServerReadingCodec,
    StreamCodec,
    unsupported,
)
from gateway.ir import errors
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    OpaqueCall,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.limits import MessageLimits
from gateway.ir.streaming_body import can_cut_through, streaming_body_of
from gateway.protocols.oip.dialects import DIALECTS, MOST_LENIENT, READERS, check_whole_version
from gateway.protocols.oip.errors import GENERATE_FAILED, HTTP_OK, INFERENCE_NOT_READY
from gateway.protocols.oip.extension_policy import (
    advertised_extensions,
    apply_policy,
    check_asked,
    require_enabled,
)
from gateway.protocols.oip.http import management
from gateway.protocols.oip.http.context import NAME, NEEDS, context_of
from gateway.protocols.oip.http.errors import error_of_status, error_response
from gateway.protocols.oip.http.extensions import EXTENSIONS, HttpExtension
from gateway.protocols.oip.http.generate import encode_generate, generated
from gateway.protocols.oip.http.infer_request import (
    ALL_BINARY,
    InferReplyFormat,
    RequestTemplates,
    decode_request,
    encode_request,
)
from gateway.protocols.oip.http.infer_response import (
    ReplyTemplates,
    decode_response,
    encode_response,
    response_targets,
)
from gateway.protocols.oip.http.infer_routes import (
    GENERATED,
    decode_event,
    decode_generated,
    decode_inference,
    encode_event,
    error_event,
    is_generated,
)
from gateway.protocols.oip.http.opaque import read_opaque, write_answer, write_opaque
from gateway.protocols.oip.http.paths import INDEX_PATH, find_route, model_path, server_path
from gateway.protocols.oip.http.sse import EVENT_STREAM
from gateway.protocols.oip.json.binary_tensors import (
    JSON_HEADERS,
    LENGTH_KEY,
    NeededWhole,
    is_length,
)
from gateway.protocols.oip.json.parse import dump
from gateway.protocols.oip.json.templates import JsonTemplateCache
from gateway.protocols.oip.json.write import Nonfinite
from gateway.protocols.oip.options import check_options, read_extensions
from gateway.wire.errors import HTTP_STATUS
from gateway.wire.event_stream import EventSplitter
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse
from gateway.wire.metadata import extended_headers, http_headers

R = TypeVar("R")

_LIVE, _READY = "live", "ready"
_HEALTH: Mapping[type[Call[Any]], str] = {
    ServerLiveRequest: _LIVE,
    ServerReadyRequest: _READY,
    ModelReadyRequest: _READY,
}
_MODEL_ACTIONS: Mapping[type[Call[Any]], str] = {
    ModelReadyRequest: "ready",
    ModelMetadataRequest: "",
    InferRequest: "infer",
    StreamInferRequest: "infer_stream",
}
_OK_STATUSES = range(200, 300)
_CLIENT_ERRORS = range(400, 500)
_CACHE_ENTRIES = 1024
_REMEMBERED_BYTES = 512


class HttpCodec(
    StreamCodec[HttpRequest, HttpResponse],
    ServerReadingCodec[HttpRequest, HttpResponse],
    FramingCodec[HttpRequest, HttpResponse],
    CutThroughCodec[HttpRequest, HttpResponse],
):
    """Open Inference over HTTP, JSON and binary tensors, in both directions.

    Args:
        limits: The limits of a message.
        options: `dialect`: the kind of server of an upstream (triton, mlserver, kserve, ovms);
            `auto`, until the server's name is known, means triton;
            `not_ready_status`: the status of "not ready" for clients (503, 409); without it, 503,
            and 409 for an inference that the gateway itself refuses;
            `nonfinite`: what JSON has for NaN and infinities (refuse, literal, null); without it,
            literal for replies of Triton, else refuse.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = NEEDS
    most_lenient = MOST_LENIENT

    def __init__(self, limits: MessageLimits, options: Mapping[str, Any]) -> None:
        self._limits = limits
        checked = check_options(options)
        self._extensions = read_extensions(checked)
        nonfinite = checked.get("nonfinite")
        self._targets = response_targets(None if nonfinite is None else Nonfinite(nonfinite))
        self._dialect = DIALECTS[checked.get("dialect", "auto")]
        self.prefers_single_reply = self._dialect.has_generate_stream
        self.only_known_models = self._dialect.keeps_names
        self.dialect = self._dialect.name
        if self._dialect.has_generate_stream:
            self.needs = NEEDS | {Need.FLAT_MEMBERS}
        self._not_ready: int = checked.get(
            "not_ready_status", HTTP_STATUS[errors.ErrorCode.NOT_READY]
        )
        self._not_ready_inference: int = checked.get("not_ready_status", INFERENCE_NOT_READY)
        # KServe fails on requests without an id.
        self._spare_id = "gateway" if self._dialect.needs_id else ""
        self._requests = RequestTemplates(limits)
        self._replies: ReplyTemplates = JsonTemplateCache("output", limits)
        # Clients repeat the same few paths.
        self._find_route = partial(find_route, limits=limits)
        self._remembered = lru_cache(_CACHE_ENTRIES)(self._find_route)

    def splitter(self) -> EventSplitter:
        """Return the splitter of one streamed response of an upstream."""
        return EventSplitter(self._limits)

    def decode_call(self, wire: HttpRequest, request_id: str = "", /) -> Call[Any]:
        """Read a client's request; binary inputs are views of its body.

        An inference without an id has *request_id*.

        Raises:
            InvalidRequest: Path, method, headers or body is wrong.
            NotFound: The path does not exist.
            TooLarge: A limit is exceeded.
            Unsupported: It needs an extension that is not enabled.
        """
        path = wire.path
        try:
            find = self._remembered if len(path) <= _REMEMBERED_BYTES else self._find_route
            route = find(wire.method, path)
        except (errors.NotFound, errors.Unsupported):
            if not self._extensions.opaque:
                raise
            return read_opaque(wire, self._limits)
        model = route.model
        if model is not None and route.action == "infer":
            return decode_request(model, wire, self._requests, request_id)
        if model is not None and route.call in (InferRequest, StreamInferRequest):
            return decode_inference(route, model, wire, self._requests, request_id)
        if path == INDEX_PATH:
            require_enabled(route.call, self._extensions)
            ready_only = management.decode_index_request(wire, self._limits)
            call: Call[Any] = RepositoryIndexRequest(
                ready_only=ready_only, context=context_of(wire, management.WHOLE_INDEX)
            )
        elif route.call in EXTENSIONS:
            require_enabled(route.call, self._extensions)
            read = EXTENSIONS[route.call].read_call
            call = read(route, wire, context_of(wire, None), self._limits)
        else:  # GET /v2/models among them: only names, which every client may read
            return route.call(model=model, context=context_of(wire, None))
        return apply_policy(call, self._extensions, self._limits)

    def inferred_model(self, wire: HttpRequest, /) -> ModelRef | None:
        """Return the model of an inference request; None for any other."""
        try:
            route = self._find_route(wire.method, wire.path)
        except errors.GatewayError:
            return None
        return route.model if route.call in (InferRequest, StreamInferRequest) else None

    def decode_for_server(
        self, wire: HttpRequest, dialect: str, request_id: str = "", /
    ) -> Call[Any] | None:
        """Read an inference request as a server of *dialect* reads it; None if it is as strict."""
        server = READERS.get(dialect)
        if server is None or not (server.reads_as_numpy or server.reads_words):
            return None
        route = self._find_route(wire.method, wire.path)
        if route.model is None:
            return None
        try:
            return decode_inference(route, route.model, wire, self._requests, request_id, server)
        except NeededWhole:
            return None

    def early_bytes(self, wire: HttpRequest, /) -> int | None:
        """Return the length of the JSON of an inference request; None for any other.

        A wrong request gives None too: `decode_call` then reads it complete, and refuses it.
        """
        length = wire.headers.get(LENGTH_KEY)
        if length is None or not is_length(length) or not int(length):
            return None
        if len(wire.path) > _REMEMBERED_BYTES:
            return None
        try:
            route = self._remembered(wire.method, wire.path)
        except errors.GatewayError:
            return None
        return int(length) if route.call is InferRequest else None

    def decode_early(self, wire: HttpRequest, /) -> Call[Any] | None:
        """Read the JSON; None where the elements of an input must be checked, as of BYTES."""
        try:
            return self.decode_call(wire)
        except NeededWhole:
            return None

    def encode_reply(self, call: Call[R], reply: R, /) -> HttpResponse:  # noqa: PLR0911  # one for each kind
        """Write the response to *call*; binary outputs are not copied.

        A call that was not decoded by this codec gets binary outputs, which every datatype has.

        Raises:
            Unsupported: JSON was requested and cannot represent an output, or there is no such
                response.
        """
        if isinstance(call, InferRequest) and isinstance(reply, InferResponse):
            origin = call.context.origin
            form = origin.form if origin is not None and origin.codec == NAME else None
            if type(form) is not InferReplyFormat:
                if form == GENERATED:
                    return management.json_response(HTTP_OK, generated(call, reply, self._targets))
                form = ALL_BINARY
            return encode_response(call, reply, form, self._targets)
        answer: Any = reply
        key = _HEALTH.get(type(call))
        if key is not None:
            status = HTTP_STATUS[errors.ErrorCode.NOT_READY] if key == _LIVE else self._not_ready
            return management.encode_health(
                key, healthy=answer, unhealthy_status=status, model=call.model
            )
        if isinstance(call, ServerMetadataRequest):
            return management.encode_server_metadata(
                advertised_extensions(answer, self._extensions)
            )
        if isinstance(call, ModelMetadataRequest):
            return management.encode_model_metadata(answer)
        if isinstance(call, RepositoryIndexRequest):
            return management.encode_index(answer, whole=_wants_whole_index(call))
        return self._extension_answer(call, answer)

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> HttpResponse:
        """Write one item of a stream: an event, which is a part of one HTTP response.

        Raises:
            Unsupported: JSON cannot represent an output.
        """
        return encode_event(call, item, self._limits, self._targets)

    def has_only_text(self, _call: StreamInferRequest, _item: InferResponse, /) -> bool:
        """Return True: the items of a stream are JSON."""
        return True

    def is_terminal(self, call: StreamInferRequest, error: errors.GatewayError, /) -> bool:
        """Return whether a first error ends the stream: it has a status, so its body is no stream.

        Triton replies to `generate_stream` with 400 and a stream that begins with the error.
        """
        return not (is_generated(call) and type(error) is errors.UpstreamError)

    def encode_end(
        self, _call: StreamInferRequest, last: InferResponse | None, /
    ) -> HttpResponse | None:
        """Write a stream without items: a response without events. Other streams need no end."""
        return EVENT_STREAM if last is None else None

    def encode_late_error(
        self, _call: StreamInferRequest, error: errors.GatewayError, /
    ) -> HttpResponse:
        """Write an error after an item: as an event, since the status was sent."""
        return error_event(error, self._limits)

    def encode_error(self, call: Call[Any] | None, error: errors.GatewayError, /) -> HttpResponse:
        """Write *error* as `{"error": text}`; one of an upstream of this protocol keeps its status.

        Never raises.
        """
        if isinstance(call, StreamInferRequest) and not self.is_terminal(call, error):
            return error_event(error, self._limits, GENERATE_FAILED)
        status = self._not_ready
        if error.origin is None and isinstance(call, InferRequest | StreamInferRequest):
            status = self._not_ready_inference
        if (
            type(error) is errors.UpstreamError
            and isinstance(call, InferRequest)
            and is_generated(call)
        ):
            return error_response(error, self._limits, status, GENERATE_FAILED)
        return error_response(error, self._limits, status)

    def encode_call(self, call: Call[Any], /) -> HttpRequest:
        """Write a request to an upstream of the dialect; raw inputs are not copied.

        Raises:
            Unsupported: The dialect cannot carry it, or has no such request.
        """
        context = call.context
        deadline = context.deadline
        if isinstance(call, InferRequest):
            request_id = context.request_id
            sent_id = call.id or request_id or self._spare_id
            headers, body = encode_request(call, sent_id, self._dialect, self._limits)
            if context.metadata:
                headers = extended_headers(headers, context.metadata, request_id)
                request_id = ""
            path = self._model_path(call)
            return HttpRequest("POST", path, "", headers, body, deadline, None, request_id)
        passed = http_headers(context)
        if isinstance(call, StreamInferRequest):
            return self._stream_call(call, passed)
        if isinstance(call, RepositoryIndexRequest) and self._dialect.has_index:
            # MLServer needs a body, Triton ignores it.
            body = (dump({"ready": True} if call.ready_only else {}),)
            pairs = Headers((*JSON_HEADERS.pairs, *passed))
            return HttpRequest("POST", INDEX_PATH, "", pairs, body, deadline)
        if isinstance(call, OpaqueCall):
            return write_opaque(call)
        extension = EXTENSIONS.get(type(call))
        if extension is not None:
            return self._encode_extension(call, extension, passed)
        path = self._model_path(call) if type(call) in _MODEL_ACTIONS else self._server_path(call)
        return HttpRequest("GET", path, "", Headers(passed), (), deadline)

    def encode_cut_through(self, call: Call[Any], /) -> HttpRequest | None:
        """Write a request that ends in inputs which have not arrived; None where it cannot."""
        if (
            not isinstance(call, InferRequest)
            or not self._dialect.has_binary
            or not can_cut_through(call)
        ):
            return None
        return self.encode_call(call).with_body_stream(streaming_body_of(call))

    def decode_reply(self, call: Call[R], wire: HttpResponse, /) -> R:
        """Read an upstream's response to *call*; binary outputs are views of its body.

        Raises:
            GatewayError: The error in the response, with the response as origin.
            MalformedMessage, InvalidTensor, TooLarge: The response cannot be used.
            UpstreamProtocolError: It is the response to another request.
        """
        # The type of a call determines that of its reply, which mypy cannot follow.
        answer: R
        if wire.status not in _OK_STATUSES or isinstance(call, OpaqueCall):
            answer = self._by_status(call, wire)
            return answer
        try:
            if isinstance(call, InferRequest):
                sent_id = call.id or call.context.request_id or self._spare_id
                inferred: Any = decode_response(
                    call,
                    sent_id,
                    wire,
                    self._replies,
                    self._dialect,
                    self._dialect.echoes_id,
                )
                answer = inferred
            else:
                answer = self._answer(call, wire)
        except errors.InvalidRequest as error:
            if isinstance(error, errors.MalformedMessage | errors.InvalidTensor):
                raise
            # A name or number that is not allowed is the upstream's fault here.
            raise errors.MalformedMessage(error.message) from error
        return answer

    def decode_item(self, call: StreamInferRequest, wire: HttpResponse, /) -> InferResponse:
        """Read one event of an upstream's stream, cut out by `splitter`; as `decode_reply`.

        An error between events is an item with that error.
        """
        if wire.status not in _OK_STATUSES:
            raise error_of_status(call, wire, self._limits)
        try:
            if self._dialect.has_generate_stream:
                return decode_generated(call, wire, self._limits)
            return decode_event(call, self._stream_id(call), wire, self._replies, self._dialect)
        except errors.InvalidRequest as error:
            if isinstance(error, errors.MalformedMessage | errors.InvalidTensor):
                raise
            raise errors.MalformedMessage(error.message) from error

    def _stream_call(
        self, call: StreamInferRequest, passed: tuple[tuple[str, str], ...]
    ) -> HttpRequest:
        if self._dialect.has_generate_stream:
            pairs = Headers((*JSON_HEADERS.pairs, *passed))
            body: Sequence[Buffer] = (dump(encode_generate(call.request)),)
            path = self._model_path(call, "generate_stream")
            return HttpRequest("POST", path, "", pairs, body, call.context.deadline)
        if not self._dialect.has_infer_stream:
            raise errors.Unsupported(
                f"the dialect {self._dialect.name!r} has no streams of tensors over HTTP"
            )
        sent_id = self._stream_id(call)
        headers, body = encode_request(
            call.request, sent_id, self._dialect, self._limits, binary_out=False
        )
        pairs = Headers((*headers.pairs, *passed))
        path = self._model_path(call)
        return HttpRequest("POST", path, "", pairs, body, call.context.deadline)

    def _extension_answer(self, call: Call[Any], answer: Any) -> HttpResponse:
        if isinstance(call, OpaqueCall):
            return write_answer(answer)
        extension = EXTENSIONS.get(type(call))
        if extension is None:
            raise unsupported(call, NAME)
        return management.optional_json(extension.write_reply(call, answer))

    def _encode_extension(
        self, call: Call[Any], extension: HttpExtension, passed: tuple[tuple[str, str], ...]
    ) -> HttpRequest:
        check_asked(call, self._dialect)
        if call.model is not None:
            self._check_version(call.model)
        method, path, document = extension.write_call(call)
        deadline = call.context.deadline
        if document is None:
            return HttpRequest(method, path, "", Headers(passed), (), deadline)
        pairs = Headers((*JSON_HEADERS.pairs, *passed))
        return HttpRequest(method, path, "", pairs, (dump(document),), deadline)

    def _by_status(self, call: Call[Any], wire: HttpResponse) -> Any:
        """Return an opaque response, or False for refused health; else raise its error."""
        if isinstance(call, OpaqueCall):
            return Origin(NAME, wire)
        status = wire.status
        refused = status in _CLIENT_ERRORS or status == HTTP_STATUS[errors.ErrorCode.NOT_READY]
        if refused and type(call) in _HEALTH:
            return False
        raise error_of_status(call, wire, self._limits)

    def _answer(self, call: Call[Any], wire: HttpResponse) -> Any:
        """Read the response to a call that is not an inference."""
        if isinstance(call, ServerMetadataRequest):
            return management.decode_server_metadata(wire, self._limits)
        if isinstance(call, ModelMetadataRequest):
            return management.decode_model_metadata(call.model or ModelRef(""), wire, self._limits)
        if isinstance(call, RepositoryIndexRequest):
            return management.decode_index(wire, self._limits)
        extension = EXTENSIONS.get(type(call))
        if extension is not None:
            return extension.read_reply(call, wire, self._limits)
        key = _HEALTH.get(type(call))
        if key is None:
            raise unsupported(call, NAME)
        return management.decode_health(key, wire, self._limits)

    def _stream_id(self, call: StreamInferRequest) -> str:
        """Return the id of a stream's request on the wire."""
        return call.request.id or call.context.request_id or self._spare_id

    def _model_path(self, call: Call[Any], action: str | None = None) -> str:
        model = call.model
        if model is None or not model.name:
            raise errors.Unsupported(
                f"{type(call).__name__} names no model: Open Inference needs one"
            )
        if model.version:
            self._check_version(model)
        return model_path(model, _MODEL_ACTIONS[type(call)] if action is None else action)

    def _check_version(self, model: ModelRef) -> None:
        if self._dialect.has_whole_versions:
            check_whole_version(model)
        if model.version and not self._dialect.has_versions:
            raise errors.Unsupported(
                f"model {str(model)!r} has a version: {self._dialect.name} has no versions",
                model=model,
            )

    def _server_path(self, call: Call[Any]) -> str:
        path = server_path(type(call))
        if path is None:
            raise unsupported(call, NAME)
        return path


def _wants_whole_index(call: Call[Any]) -> bool:
    origin = call.context.origin
    return origin is None or origin.form == management.WHOLE_INDEX
