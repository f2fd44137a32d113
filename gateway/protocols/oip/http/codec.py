"""The Open Inference HTTP codec: a table of functions between HTTP messages and calls.

`paths.py` finds routes, `infer_request.py`, `infer_response.py` and `infer_routes.py` have
inferences, `management.py` and `extensions.py` the other calls.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from gateway.api.protocol import (
    CutThroughCodec,
    FramingCodec,
    Handling,
    ServerReadingCodec,
    StreamCodec,
)
from gateway.ir import errors
from gateway.ir.bodies.streamed_inputs import can_cut_through, streaming_body_of
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
    inference_of,
)
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.errors import GatewayError, ModelNotFound, NotFound
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.dialects import (
    DIALECTS,
    MOST_LENIENT,
    READERS,
    Dialect,
    check_version,
    required_model,
)
from gateway.protocols.oip.errors import (
    GENERATE_FAILED,
    HTTP_OK,
    INFERENCE_NOT_READY,
    http_error_class,
    http_status_of,
    text_of,
)
from gateway.protocols.oip.extension_policy import (
    advertised_extensions,
    apply_policy,
    check_asked,
    require_enabled,
)
from gateway.protocols.oip.http import management, sagemaker
from gateway.protocols.oip.http.context import NAME, NEEDS, context_of
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
    error_text,
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
from gateway.protocols.oip.http.opaque import read_opaque, write_opaque, write_opaque_reply
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
from gateway.protocols.oip.json.write import JsonTargets, Nonfinite
from gateway.protocols.oip.options import check_options, read_extensions
from gateway.wire.errors import HTTP_STATUS, SUCCESSES
from gateway.wire.event_stream import EventSplitter
from gateway.wire.heads.metadata import extended_headers, get_request, http_headers
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse
from gateway.wire.json.errors import JsonErrorForm

_NO_ID: Final = "[request id: <id_unknown>]"


def error_form(not_ready: int) -> JsonErrorForm:
    """Return the form of errors; *not_ready* is the status for a model that is not ready."""
    return JsonErrorForm(
        codec=NAME,
        row=lambda error: (http_status_of(error, not_ready), ""),
        document=lambda _status, _kind, text: {"error": text},
        text=text_of,
        keeps_status=True,
        error_class=_class_of,
        no_error="{}",
    )


def _class_of(model: ModelRef | None, status: int, _kind: str, text: str) -> type[GatewayError]:
    found = http_error_class(status, text)
    return ModelNotFound if found is NotFound and model is not None else found


def text_in_response(call: Call[Any], wire: HttpResponse, limits: MessageLimits) -> str:
    """Return the text of an error in an upstream's response to *call*."""
    text = error_text(wire, limits)
    if isinstance(call, InferRequest) and not call.id and call.context.request_id:
        # The client sent no id, and Triton's text has the gateway's.
        text = text.replace(f"[request id: {call.context.request_id}]", _NO_ID)
    return text


_LIVE, _READY = "live", "ready"
_MODEL_ACTIONS: Mapping[type[Call[Any]], str] = {
    ModelReadyRequest: "ready",
    ModelMetadataRequest: "",
}
# Statuses of a server or a model that is not ready.
_REFUSED: Final = frozenset({*range(400, 500), HTTP_STATUS[errors.ErrorCode.NOT_READY]})
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
            literal for replies of Triton, else refuse;
            `sagemaker`: the paths of a container, see `sagemaker.py`.

    Attributes:
        request_templates: What `decode_request` reads repeated requests with.
        reply_templates: What `decode_response` reads repeated responses with.

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
        self._dialect = dialect = DIALECTS[checked.get("dialect", "auto")]
        self._is_container = checked.get(sagemaker.KEY, False)
        self.prefers_single_reply = dialect.has_generate_stream
        self.only_known_models = dialect.keeps_names
        self.dialect = dialect.name
        if dialect.has_generate_stream:
            self.needs = NEEDS | {Need.FLAT_MEMBERS}
        not_ready = checked.get("not_ready_status", HTTP_STATUS[errors.ErrorCode.NOT_READY])
        self._errors = error_form(not_ready)
        self._inference_errors = error_form(checked.get("not_ready_status", INFERENCE_NOT_READY))
        self.request_templates = RequestTemplates(limits)
        self.reply_templates: ReplyTemplates = JsonTemplateCache("output", limits)
        ask = partial(_question, dialect)
        ready = _health(ask, _READY, not_ready, limits)
        self.calls = {
            InferRequest: Handling(
                partial(_write_infer, dialect, limits),
                partial(_read_infer, dialect, self.reply_templates),
                partial(_write_reply, self._targets),
            ),
            StreamInferRequest: Handling(
                partial(_write_stream, dialect, limits),
                partial(_read_item, dialect, self.reply_templates),
            ),
            ServerLiveRequest: _health(ask, _LIVE, HTTP_STATUS[errors.ErrorCode.NOT_READY], limits),
            ServerReadyRequest: ready,
            ModelReadyRequest: ready,
            ServerMetadataRequest: Handling(
                ask,
                lambda _call, wire: management.decode_server_metadata(wire, limits),
                lambda _call, reply: management.encode_server_metadata(
                    advertised_extensions(reply, self._extensions)
                ),
            ),
            ModelMetadataRequest: Handling(
                ask,
                lambda call, wire: management.decode_model_metadata(
                    call.model or ModelRef(""), wire, limits
                ),
                lambda _call, reply: management.encode_model_metadata(reply),
            ),
            RepositoryIndexRequest: Handling(
                _write_index if dialect.has_index else ask,
                lambda _call, wire: management.decode_index(wire, limits),
                lambda call, reply: management.encode_index(reply, whole=_wants_whole_index(call)),
            ),
            OpaqueCall: Handling(write_opaque, None, write_opaque_reply, partial(Origin, NAME)),
            **{kind: _extension(each, dialect, limits) for kind, each in EXTENSIONS.items()},
        }
        if self._is_container:
            self.calls = sagemaker.with_own_replies(self.calls)
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
        if self._is_container and path in sagemaker.PATHS:
            return sagemaker.decode_own(wire, self.request_templates, request_id)
        try:
            find = self._remembered if len(path) <= _REMEMBERED_BYTES else self._find_route
            route = find(wire.method, path)
        except (errors.NotFound, errors.Unsupported):
            if not self._extensions.opaque:
                raise
            return read_opaque(wire, self._limits)
        model = route.model
        if model is not None and route.action == "infer":
            return decode_request(model, wire, self.request_templates, request_id)
        if model is not None and route.call in (InferRequest, StreamInferRequest):
            return decode_inference(route, model, wire, self.request_templates, request_id)
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
            return decode_inference(
                route, route.model, wire, self.request_templates, request_id, server
            )
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
        form = self._errors
        if error.origin is None and call is not None and inference_of(call) is not None:
            form = self._inference_errors
        extra = sagemaker.attributes_of(call, error) if self._is_container else ()
        if call is None or type(error) is not errors.UpstreamError or not is_generated(call):
            return form.write(error, self._limits, extra)
        if isinstance(call, StreamInferRequest):
            return error_event(error, self._limits, GENERATE_FAILED)
        return form.write(error, self._limits, extra, row=(GENERATE_FAILED, ""))

    def encode_cut_through(self, call: Call[Any], /) -> HttpRequest | None:
        """Write a request that ends in inputs which have not arrived; None where it cannot."""
        if not self._dialect.has_binary or not can_cut_through(call):
            return None
        return self.encode_call(call).with_body_stream(streaming_body_of(call))

    def error_in(self, call: Call[Any], wire: HttpResponse, /) -> errors.GatewayError | None:
        """Return the error of a response that has no success as status; None for a success."""
        if wire.status in SUCCESSES:
            return None
        text = text_in_response(call, wire, self._limits)
        return self._errors.read(call.model, wire, self._limits, text)


def _write_infer(dialect: Dialect, limits: MessageLimits, call: InferRequest) -> HttpRequest:
    context = call.context
    request_id = context.request_id
    sent_id = call.id or request_id or _spare_id(dialect)
    headers, body = encode_request(call, sent_id, dialect, limits)
    if context.metadata:
        headers = extended_headers(headers, context.metadata, request_id)
        request_id = ""
    model = call.model
    is_plain = model and model.name and not model.version  # `_model_path` has a frame
    path = model_path(model, "infer") if is_plain else _model_path(dialect, call, "infer")
    return HttpRequest("POST", path, "", headers, body, context.deadline, None, request_id)


def _read_infer(
    dialect: Dialect, templates: ReplyTemplates, call: InferRequest, wire: HttpResponse
) -> InferResponse:
    sent_id = call.id or call.context.request_id or _spare_id(dialect)
    return decode_response(call, sent_id, wire, templates, dialect, dialect.echoes_id)


def _write_reply(targets: JsonTargets, call: InferRequest, reply: InferResponse) -> HttpResponse:
    """Write an inference; a call of another codec gets binary outputs, as any datatype has."""
    origin = call.context.origin
    form = origin.form if origin is not None and origin.codec == NAME else None
    if type(form) is not InferReplyFormat:
        if form == GENERATED:
            return management.json_response(HTTP_OK, generated(call, reply, targets))
        form = ALL_BINARY
    return encode_response(call, reply, form, targets)


def _write_stream(dialect: Dialect, limits: MessageLimits, call: StreamInferRequest) -> HttpRequest:
    if dialect.has_generate_stream:
        path = _model_path(dialect, call, "generate_stream")
        return _post(call, path, (dump(encode_generate(call.request)),))
    if not dialect.has_infer_stream:
        raise errors.Unsupported(
            f"the dialect {dialect.name!r} has no streams of tensors over HTTP"
        )
    sent_id = call.request.id or call.context.request_id or _spare_id(dialect)
    headers, body = encode_request(call.request, sent_id, dialect, limits, binary_out=False)
    return _post(call, _model_path(dialect, call, "infer_stream"), body, headers)


def _read_item(
    dialect: Dialect, templates: ReplyTemplates, call: StreamInferRequest, wire: HttpResponse
) -> InferResponse:
    """Read one event, cut out by `splitter`; an error between events is an item with it."""
    if dialect.has_generate_stream:
        return decode_generated(call, wire, templates.limits)
    sent_id = call.request.id or call.context.request_id or _spare_id(dialect)
    return decode_event(call, sent_id, wire, templates, dialect)


def _spare_id(dialect: Dialect) -> str:
    """Return the id of a request without one: KServe fails on it."""
    return "gateway" if dialect.needs_id else ""


def _question(dialect: Dialect, call: Call[Any]) -> HttpRequest:
    kind = type(call)
    action = _MODEL_ACTIONS.get(kind)
    return get_request(
        call, server_path(kind) if action is None else _model_path(dialect, call, action)
    )


def _health(
    ask: Callable[[Call[Any]], HttpRequest], key: str, unhealthy: int, limits: MessageLimits
) -> Handling:
    """Return how a health request is handled.

    Args:
        ask: Writes it.
        key: Its member in JSON.
        unhealthy: Its status for clients, where the reply is no.
        limits: The limits of a message.
    """
    return Handling(
        ask,
        lambda _call, wire: management.decode_health(key, wire, limits),
        lambda call, reply: management.encode_health(
            key, healthy=reply, unhealthy_status=unhealthy, model=call.model
        ),
        lambda wire: False if wire.status in _REFUSED else None,
    )


def _write_index(call: RepositoryIndexRequest) -> HttpRequest:
    # MLServer needs a body, Triton ignores it.
    return _post(call, INDEX_PATH, (dump({"ready": True} if call.ready_only else {}),))


def _extension(extension: HttpExtension, dialect: Dialect, limits: MessageLimits) -> Handling:
    return Handling(
        partial(_write_extension, extension, dialect),
        lambda call, wire: extension.read_reply(call, wire, limits),
        lambda call, reply: management.optional_json(extension.write_reply(call, reply)),
    )


def _write_extension(extension: HttpExtension, dialect: Dialect, call: Call[Any]) -> HttpRequest:
    check_asked(call, dialect)
    if call.model is not None:
        check_version(dialect, call.model)
    method, path, document = extension.write_call(call)
    if document is None:
        pairs = Headers(http_headers(call.context))
        return HttpRequest(method, path, "", pairs, (), call.context.deadline)
    return _post(call, path, (dump(document),))


def _model_path(dialect: Dialect, call: Call[Any], action: str) -> str:
    model = required_model(call)
    if model.version:
        check_version(dialect, model)
    return model_path(model, action)


def _post(
    call: Call[Any], path: str, body: Sequence[Buffer], headers: Headers = JSON_HEADERS
) -> HttpRequest:
    pairs = Headers((*headers.pairs, *http_headers(call.context)))
    return HttpRequest("POST", path, "", pairs, body, call.context.deadline)


def _wants_whole_index(call: Call[Any]) -> bool:
    origin = call.context.origin
    return origin is None or origin.form == management.WHOLE_INDEX
