"""The REST codec of TensorFlow Serving and KServe V1: functions between HTTP messages and calls.

`paths.py` has the paths of both dialects, `predict.py` rows and columns, `events.py` CloudEvents,
and `upstream.py` the side of a client.

Source: docs/protocols/tensorflow-serving.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson
from msgspec import Struct

from gateway.api.protocol import Codec, with_replies
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    OpaqueCall,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatusRequest,
)
from gateway.ir.context import NO_PARAMETERS, Context, ModelRef, Need, Origin, Parameters
from gateway.ir.errors import GatewayError, InternalError, InvalidRequest, NotReady
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import ModelMetadata, RepositoryEntry, ServerStatus
from gateway.ir.values.nearest import loads_to_odd
from gateway.protocols.tfs.declarations import (
    B64,
    CLASSIFY,
    PREDICT,
    REGRESS,
    TEXT,
    ModelDeclaration,
)
from gateway.protocols.tfs.errors import FORM, OK, OtherContent, error_response
from gateway.protocols.tfs.examples import (
    examples_tensor,
    requested_outputs,
    scores_of,
    values_of,
)
from gateway.protocols.tfs.http import upstream
from gateway.protocols.tfs.http.events import CloudEventForm, event_form, is_event, reply_event
from gateway.protocols.tfs.http.examples_json import read_examples
from gateway.protocols.tfs.http.paths import MODELS, RestPath, Verb, kserve_path, tensorflow_path
from gateway.protocols.tfs.http.predict import (
    only_rows,
    read_parameters,
    read_signature,
    read_tensors,
    reply_style,
    row_rules,
    write_reply,
)
from gateway.protocols.tfs.metadata import metadata_document
from gateway.protocols.tfs.models import (
    LIMITATIONS,
    NEEDS,
    CalledModel,
    ModelTable,
    Spec,
    known_model,
)
from gateway.protocols.tfs.options import (
    FORWARD,
    KSERVE,
    ROOT,
    TfsOptions,
    VertexOptions,
    read_options,
)
from gateway.protocols.tfs.status import AVAILABLE, status_document, versions_of
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.errors import (
    SUCCESSES,
    MethodNotAllowed,
    clip,
    extra_headers,
    http_status_of,
    method_not_allowed,
    strip_traceback,
)
from gateway.wire.heads.metadata import form_of, http_context, sender_metadata
from gateway.wire.heads.url_names import decoded_name
from gateway.wire.http import Headers, HttpRequest, HttpResponse, media_type
from gateway.wire.json.errors import JSON
from gateway.wire.json.values import short_document
from gateway.wire.model_lists import (
    is_of_openai,
    model_object,
    models_document,
    openai_error,
    ready_names,
)
from gateway.wire.opaque import JsonMessages, check_plain, passed_response
from gateway.wire.rows.read import RowsDocument, object_members, read_rows_document
from gateway.wire.rows.templates import Cut, Read, RowTemplates

NAME: Final = FORM.codec
_HEADERS: Final = Headers((JSON,))
_PATHS: Final = 256
_GET: Final = ("GET", "HEAD")
_EXPLAIN: Final = (":explain", "%3aexplain")
_PREDICT: Final = (PREDICT,)
_PREDICTION: Final = Verb.PREDICT
_REST: Final = {
    Verb.PREDICT: ":predict",
    Verb.CLASSIFY: ":classify",
    Verb.REGRESS: ":regress",
    Verb.EXPLAIN: ":explain",
    Verb.METADATA: "/metadata",
    Verb.STATUS: "",
}
_EXPLAINED: Final = f"{NAME} {KSERVE}"
_PREDICTED: Final = _REST[Verb.PREDICT]
_METHODS: Final = {Verb.CLASSIFY: CLASSIFY, Verb.REGRESS: REGRESS}
_JSON_TYPES: Final = frozenset(
    {"", "application/json", "application/cloudevents+json", "application/ld+json"}
)


class RestForm(Struct, frozen=True):
    """What the reply to a request needs.

    Attributes:
        called: The model; None for a question about the server.
        is_rows: The request had rows.
        event: The form of a reply that is an event; None for a plain one.
        rest: What the path has after the model and its version, such as ":predict".
    """

    called: CalledModel | None = None
    is_rows: bool = False
    event: CloudEventForm | None = None
    rest: str = ""


class _Prediction(NamedTuple):
    """What a request of a prediction has besides tensors."""

    is_rows: bool
    signature: str
    parameters: Parameters


class _PredictionFields(NamedTuple):
    """The parsed header fields of a prediction.

    Attributes:
        metadata: All of them, names in lower case.
        request_id: The client's; "" for none.
        content_type: Without parameters, in lower case.
        event: The form of the reply to an event; None for a plain request.
    """

    metadata: tuple[tuple[str, str], ...]
    request_id: str
    content_type: str
    event: CloudEventForm | None


class HttpCodec(Codec[HttpRequest, HttpResponse], DeclaringCodec):
    """REST of TensorFlow Serving or of KServe V1, in both directions.

    Args:
        limits: The limits of a message.
        options: Options of a listener or an upstream, with those of the process.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = NEEDS | {Need.UNTYPED}

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._options = read_options(options or {})
        self._models = ModelTable(limits)
        self._rules = row_rules(self._options, limits)
        self._has_only_rows = only_rows(self._options)
        self._styles = {form: reply_style(self._options, form) for form in (TEXT, B64)}
        # Only the requests of Vertex AI have parameters.
        self._templates: RowTemplates[_Prediction] = RowTemplates(limits)
        self._vertex_templates: RowTemplates[_Prediction] = RowTemplates(limits)
        self._is_kserve = self._options.is_kserve
        # Clients repeat the same few paths. A path that raises is not cached.
        self._find = lru_cache(_PATHS)(partial(_found, limits=limits))
        # Clients of another protocol of the listener read the same paths.
        self._is_shared = _is_shared(self._options)
        vertex = self._options.vertex
        self._predict_route = "" if vertex is None else vertex.predict
        self._health_route = "" if vertex is None else vertex.health
        self.limitations = replace(
            LIMITATIONS,
            title="KServe V1" if self._is_kserve else LIMITATIONS.title,
            versions=self._is_kserve,
        )
        self.whole = "" if self._options.changes_messages else f"{NAME} {self._options.dialect}"
        self.messages = JsonMessages(limits, is_always_json=True)
        if self._is_kserve:  # whose models get the bytes of any other type
            self.messages = JsonMessages(limits, has_bytes=True, of_json=_JSON_TYPES)
        self._client = upstream.TfsRestClient(limits, self._options)
        replies: Mapping[type[Call[Any]], Callable[[Any, Any], HttpResponse]] = {
            InferRequest: self._encode_inference,
            ServerStatusRequest: partial(_encode_status, self._options),
            ModelMetadataRequest: _encode_metadata,
            RepositoryIndexRequest: partial(_encode_models, self._options),
            ServerLiveRequest: lambda _call, _reply: _json(b'{"status":"alive"}'),
            ServerReadyRequest: partial(_encode_ready, limits),
        }
        passed: Mapping[type[Call[Any]], Callable[[Any, Origin], HttpResponse]] = {
            ModelMetadataRequest: _passed_answer,
            ServerStatusRequest: partial(_passed_status, self._options),
        }
        self.calls = with_replies(self._client.calls, replies, passed)

    def declare(self, declared: Mapping[str, ModelDeclaration], /) -> None:
        """Replace what the configuration declares of models, by their names."""
        self._models.declare(declared)

    def decode_call(self, wire: HttpRequest, request_id: str = "", /) -> Call[Any]:
        """Read a client's request; numbers wait for the datatypes of the model.

        A prediction without an id has *request_id*.

        Raises:
            InvalidRequest: Path, body, label or signature is wrong.
            NotFound: The path does not exist.
            TooLarge: A limit is exceeded.
        """
        default = self._options.default_model
        if wire.path == self._health_route:
            _check_method(wire, *_GET)
            context = _context(wire, RestForm())
            return ServerReadyRequest(about=default or ModelRef(""), context=context)
        if wire.path == self._predict_route:
            _check_method(wire, "POST")
            return self._decode_predict(
                wire, request_id, _default_spec(default), self._options.vertex
            )
        if wire.path == ROOT and self._options.cloudevents and wire.method == "POST":
            return self._decode_predict(wire, request_id, _default_spec(default))
        is_root = wire.path == ROOT and self._options.root
        is_explain = self._is_shared and wire.path.lower().endswith(_EXPLAIN)
        is_kserve = self._is_kserve or is_root or is_explain
        try:
            found = self._find(wire.method, wire.path, is_kserve)
        except GatewayError as error:
            if not self._is_shared or not is_of_openai(wire):
                raise
            found = _openai_path(wire, error, self._limits)
        if found.verb is _PREDICTION:
            return self._decode_predict(wire, request_id, found.spec)
        return self._decode(found, wire)

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        """Write an error in the form of the dialect, or of the other clients. Never raises."""
        origin = error.origin if call is None else call.context.origin
        wire = None if origin is None else origin.wire
        if self._is_shared and isinstance(wire, HttpRequest) and is_of_openai(wire):
            text = clip(strip_traceback(error.message), self._limits.error_text_bytes)
            return openai_error(error, http_status_of(error), text, extra_headers(error))
        return error_response(error, self._limits)

    def decode_unread(self, wire: HttpRequest, refused: GatewayError, /) -> Call[Any] | None:
        """Return a request with a label, a signature or examples that only its server knows."""
        found = self._find(wire.method, wire.path, self._is_kserve)
        spec = found.spec
        unread = self._models.unread(spec)
        if unread is None:
            return None
        verb = found.verb
        model, called = unread
        form = RestForm(called, rest=_REST[verb])
        context = http_context(wire, NAME, NEEDS, form, self.whole, refused)
        if verb is Verb.METADATA:
            return ModelMetadataRequest(model=model, context=context)
        if verb is Verb.STATUS:
            return ServerStatusRequest(about=model, context=context)
        if not self.is_plain(wire):
            return None
        return InferRequest(model=model, context=context)

    def send_on(self, call: Call[Any], message: Origin, /) -> HttpRequest:
        """Write a client's request to a server, with the path of the target's model."""
        return self._client.send_on(call, message)

    def error_in(self, call: Call[Any], wire: HttpResponse, /) -> GatewayError | None:
        """Return the error of an upstream's response, with it as origin; None for a success."""
        return None if wire.status in SUCCESSES else FORM.read(call.model, wire, self._limits)

    def _decode(self, found: RestPath, wire: HttpRequest) -> Call[Any]:
        verb = found.verb
        if verb in _METHODS:
            return self._decode_examples(wire, found.spec, _METHODS[verb])
        if verb is Verb.LIVE:
            return ServerLiveRequest(context=_context(wire, RestForm()))
        if verb is not Verb.MODELS:
            return self._decode_question(found, wire)
        if not self._is_kserve and not self._is_shared:
            raise InvalidRequest("Missing model name in request.")
        return RepositoryIndexRequest(ready_only=True, context=_context(wire, RestForm()))

    def _decode_question(self, found: RestPath, wire: HttpRequest) -> Call[Any]:
        verb = found.verb
        called = self._models.find(found.spec)
        whole = self.whole if called.is_plain and not wire.size_bytes else ""
        if verb is Verb.EXPLAIN:
            check_plain(is_plain=self.is_plain(wire))
            message = Origin(NAME, wire, RestForm(called, rest=_REST[verb]), whole=_EXPLAINED)
            context = _context(wire, RestForm(called))
            return OpaqueCall(model=called.model, context=context, message=message)
        context = http_context(wire, NAME, NEEDS, RestForm(called, rest=_REST[verb]), whole)
        if verb is Verb.METADATA:
            return ModelMetadataRequest(model=known_model(called), context=context)
        return ServerStatusRequest(about=ModelRef(called.model.name), context=context)

    def _decode_predict(
        self, wire: HttpRequest, request_id: str, spec: Spec, vertex: VertexOptions | None = None
    ) -> InferRequest:
        """Read a prediction.

        Args:
            wire: The request.
            request_id: For a request without an id of the client.
            spec: The model.
            vertex: The routes of Vertex AI, for a request of it.
        """
        fields = wire.headers.parsed_with(_fields_of)
        event = None
        if self._is_kserve or vertex is not None:
            content_type = fields.content_type
            if content_type not in _JSON_TYPES:
                raise OtherContent(
                    f"content type is {content_type[:100]!r}: expected application/json"
                )
        if self._is_kserve or self._options.cloudevents:
            event = fields.event
        templates = self._templates if vertex is None else self._vertex_templates
        found, cut = templates.parse(wire.view)
        if found is None:
            found = self._read_predict(wire, vertex, cut)
        (is_rows, signature, parameters), tensors = found
        # By position, because a keyword costs more.
        called = self._models.find(spec.with_signature(signature), _PREDICT, True)
        is_whole = event is None and vertex is None and called.is_plain
        form = RestForm(called, is_rows, event, _PREDICTED)
        origin = Origin(NAME, wire, form, True, self.whole if is_whole else "")
        context = Context(
            NAME,
            fields.metadata,
            fields.request_id or request_id,
            wire.deadline,
            None,
            called.needs,
            origin,
            wire.client,
        )
        return InferRequest(
            model=called.model,
            context=context,
            inputs=called.inputs(tensors),
            parameters=parameters,
        )

    def _read_predict(
        self, wire: HttpRequest, vertex: VertexOptions | None, cut: Cut | None
    ) -> Read[_Prediction]:
        """Read a prediction without a template."""
        document = _document(wire, self._limits, is_kserve=self._is_kserve)
        if self._is_kserve and is_event(document.members):
            document = _event_data(document, self._limits)
            cut = None
        tensors, is_rows = read_tensors(document, self._limits, self._rules)
        signature = "" if self._is_kserve else read_signature(document)
        parameters: Parameters = NO_PARAMETERS
        if vertex is not None:
            parameters = read_parameters(document, self._limits)
            parameters = parameters if vertex.parameters == FORWARD else NO_PARAMETERS
        found = _Prediction(is_rows, signature, parameters)
        if cut is not None:
            templates = self._templates if vertex is None else self._vertex_templates
            templates.learn(cut, found, tensors)
        return found, tensors

    def _decode_examples(self, wire: HttpRequest, spec: Spec, method: str) -> InferRequest:
        document = _document(wire, self._limits, is_kserve=self._is_kserve)
        signature = read_signature(document)
        names = [key for key in ("examples", "context") if key in document.members]
        examples = read_examples({key: document.plain(key) for key in names}, self._limits)
        called = self._models.find(spec.with_signature(signature), (method,))
        return InferRequest(
            model=called.model,
            context=_context(wire, RestForm(called), called.needs),
            inputs=(examples_tensor(called.signature, examples, self._limits),),
            outputs=requested_outputs(called.signature),
        )

    def _encode_inference(self, call: InferRequest, reply: InferResponse) -> HttpResponse:
        form = form_of(call, RestForm)
        called = _called(form)
        signature = called.signature
        if signature.method == PREDICT:
            body = write_reply(
                called.outputs(reply.outputs),
                form.is_rows or self._has_only_rows,
                self._options,
                self._styles[called.declared.bytes],
            )
        else:
            count = (call.inputs[0].shape or (0,))[0]
            results: Any = (
                scores_of(signature, reply.outputs, count)
                if signature.method == CLASSIFY
                else values_of(signature, reply.outputs, count)
            )
            body = upstream.dump_words({"results": results})
        if form.event is None:
            return HttpResponse(OK, _HEADERS, (body,), is_compressible=True)
        headers, body = reply_event(form.event, body, called.spec.name, self._options)
        return HttpResponse(OK, Headers((JSON, *headers)), (body,))


def _found(method: str, path: str, is_kserve: bool, limits: MessageLimits) -> RestPath:
    find = kserve_path if is_kserve else tensorflow_path
    return find(method, path, limits)


def _is_shared(options: TfsOptions) -> bool:
    """Return whether clients of another protocol of the listener read the list of models."""
    return MODELS in options.shared


def _openai_path(wire: HttpRequest, error: GatewayError, limits: MessageLimits) -> RestPath:
    """Return the path of a model whose name has a slash.

    Raises:
        MethodNotAllowed: The method is not GET.
        GatewayError: *error*, for any other path.
    """
    name = wire.path.removeprefix(f"{MODELS}/")
    if wire.method not in _GET:
        error = method_not_allowed(wire.method, wire.path, "GET, HEAD")
    elif name != wire.path and name:
        return RestPath(Verb.STATUS, Spec(decoded_name("model name", name, limits)))
    error.origin = Origin(NAME, wire)
    raise error


def _check_method(wire: HttpRequest, *allowed: str) -> None:
    if wire.method not in allowed:
        raise MethodNotAllowed(
            f"{wire.method} is not allowed: expected {allowed[0]}", allow=", ".join(allowed)
        )


def _document(wire: HttpRequest, limits: MessageLimits, *, is_kserve: bool) -> RowsDocument:
    return read_rows_document(wire.view, "the body", limits, has_more_text=not is_kserve)


def _context(wire: HttpRequest, form: RestForm, needs: frozenset[Need] = NEEDS) -> Context:
    return http_context(wire, NAME, needs, form)


def _fields_of(headers: Headers) -> _PredictionFields:
    """Parse the header fields of a prediction."""
    content_type = media_type(headers.get("content-type"))
    return _PredictionFields(
        *sender_metadata(headers), content_type, event_form(headers, content_type)
    )


def _default_spec(model: ModelRef | None) -> Spec:
    """Return the model of requests that name none, without a name for the router's own."""
    model = model or ModelRef("")
    return Spec(model.name, int(model.version) if model.version.isdecimal() else 0)


def _called(form: RestForm) -> CalledModel:
    if form.called is None:
        raise InternalError("a request about a model has no model")
    return form.called


def _passed_answer(
    call: Call[Any], reply: Origin, own: Mapping[str, Any] = MappingProxyType({})
) -> HttpResponse:
    """Return a server's response, with the name that the client has for the model.

    Args:
        call: About the model.
        reply: The response.
        own: Further members, which the server's go before.
    """
    name, given = _called(form_of(call, RestForm)).spec.name, short_document(reply.wire.view)
    document, spec = {**own, **given}, given.get("model_spec", {})
    if "name" in spec:
        document["model_spec"] = {**spec, "name": name}
    if "name" in given:
        document["name"] = name
    return passed_response(reply) if document == given else _json(orjson.dumps(document))


def _encode_metadata(call: ModelMetadataRequest, reply: ModelMetadata) -> HttpResponse:
    called = _called(form_of(call, RestForm))
    return _json(orjson.dumps(metadata_document(called, reply)))


def _passed_status(options: TfsOptions, call: ServerStatusRequest, reply: Origin) -> HttpResponse:
    """Return a status, with the members of OpenAI where its clients ask, too."""
    if not _is_shared(options):
        return _passed_answer(call, reply)
    given = short_document(reply.wire.view)
    is_ready = b'"AVAILABLE"' in orjson.dumps(given.get("model_version_status"))
    name = _called(form_of(call, RestForm)).spec.name
    return _passed_answer(call, reply, {**model_object(name, options.created), "ready": is_ready})


def _encode_status(
    options: TfsOptions, call: ServerStatusRequest, status: ServerStatus
) -> HttpResponse:
    called = _called(form_of(call, RestForm))
    name = called.spec.name
    states = versions_of(called, status)
    is_ready, is_shared = any(each.state == AVAILABLE for each in states), _is_shared(options)
    if options.is_kserve and not is_ready:
        raise NotReady(f"Model with name {name} is not ready.")
    document: dict[str, Any] = {}
    if is_shared:
        document |= {**model_object(name, options.created), "ready": is_ready}
    elif options.is_kserve:
        document = {"name": name, "ready": True}
    if is_shared or not options.is_kserve:
        document["model_version_status"] = status_document(states)
    return _json(orjson.dumps(document))


def _encode_ready(limits: MessageLimits, _call: ServerReadyRequest, reply: bool) -> HttpResponse:
    return _json(b"{}") if reply else error_response(NotReady("the model is not ready"), limits)


def _encode_models(
    options: TfsOptions, _call: RepositoryIndexRequest, entries: Sequence[RepositoryEntry]
) -> HttpResponse:
    if _is_shared(options):
        return _json(models_document(entries, options.created))
    return _json(orjson.dumps({"models": ready_names(entries)}))


def _event_data(event: RowsDocument, limits: MessageLimits) -> RowsDocument:
    """Return the data of an event as a document.

    Raises:
        InvalidRequest: They are no object.
        MalformedMessage: They have a key twice.
    """
    members = object_members(event.members["data"], "data of the event", limits)
    text = event.text
    return RowsDocument(members, text, lambda: loads_to_odd(text)["data"])


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(OK, _HEADERS, (body,), is_compressible=True)
