"""The HTTP codec of OpenAI's form: functions between HTTP messages and calls.

`document.py` reads the JSON of a request. `embeddings.py`, `rerank.py` and `completions.py` have
the tasks, `models.py` the list of models, and `upstream.py` the side of a client.

Source: docs/protocols/openai.md.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from gateway.api.protocol import (
    FramingCodec,
    Limitations,
    StreamCodec,
    unsupported,
    with_replies,
)
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    RepositoryIndexRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.errors import (
    GatewayError,
    InvalidMember,
    InvalidRequest,
    NotFound,
    NotReady,
    TooLarge,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits, check_name
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.text_tasks import Generate, TextTask
from gateway.protocols.openai.errors import JSON, OK, UnknownPath, error_object, error_response
from gateway.protocols.openai.http import upstream
from gateway.protocols.openai.http.completions import (
    COMPLETIONS_MEMBERS,
    encode_completion,
    encode_piece,
    encode_stream_end,
    event,
    read_completion,
)
from gateway.protocols.openai.http.document import USER, Document, read_document, text, without_user
from gateway.protocols.openai.http.embeddings import (
    EMBEDDINGS_MEMBERS,
    encode_embeddings,
    read_embeddings,
)
from gateway.protocols.openai.http.form import NAME, TASKS, ReplyForm, form_of, stream_form
from gateway.protocols.openai.http.rerank import RERANK_MEMBERS, encode_rerank, read_rerank
from gateway.protocols.openai.options import IGNORE, OpenAiOptions, read_options
from gateway.protocols.openai.paths import PathKind, PathMatch, PathTable
from gateway.wire.errors import method_not_allowed
from gateway.wire.heads.metadata import http_context
from gateway.wire.heads.url_names import decoded_name
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse
from gateway.wire.json.values import load_json
from gateway.wire.model_lists import model_object, models_document
from gateway.wire.opaque import JsonMessages

_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.OUTPUTS})
_TEXTS: Final = frozenset({Need.TEXTS})
EMPTY: Final[frozenset[Need]] = frozenset()
_HEADERS: Final = Headers(JSON)
EVENTS: Final = Headers(
    (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))
)
_GET: Final = frozenset({"GET", "HEAD"})
_CHAT: Final = (
    "chat completions reach servers of OpenAI's form only: the gateway translates tensors; "
    "/v1/completions serves models of texts"
)


class TaskMessages(NamedTuple):
    """The messages of one task.

    Attributes:
        members: The members of a request.
        read: Returns inputs, task and form of the response, from document, path and limits.
        encode: Returns the body of a response, from call, reply and form.
    """

    members: frozenset[str]
    read: Callable[
        [Document, PathKind, MessageLimits], tuple[tuple[Tensor, ...], TextTask, ReplyForm]
    ]
    encode: Callable[[InferRequest, InferResponse, ReplyForm], tuple[Buffer, ...]]


_RERANK: Final = TaskMessages(RERANK_MEMBERS, read_rerank, encode_rerank)
_COMPLETIONS: Final = TaskMessages(COMPLETIONS_MEMBERS, read_completion, encode_completion)
_MESSAGES: Final[Mapping[PathKind, TaskMessages]] = {
    PathKind.EMBEDDINGS: TaskMessages(EMBEDDINGS_MEMBERS, read_embeddings, encode_embeddings),
    PathKind.RERANK: _RERANK,
    PathKind.RERANK_2: _RERANK,
    PathKind.COMPLETIONS: _COMPLETIONS,
    PathKind.CHAT: _COMPLETIONS,  # as the gateway writes the reply of another server
}


class HttpCodec(StreamCodec[HttpRequest, HttpResponse], FramingCodec[HttpRequest, HttpResponse]):
    """OpenAI's form over HTTP, in both directions.

    Args:
        limits: The limits of a message.
        options: Options of a listener or an upstream, with those of the process.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = _NEEDS
    only_known_models = True
    whole = NAME
    limitations = Limitations(
        title="OpenAI's form", sequences=True, classes=True, shared_memory=True
    )

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._options = read_options(options or {})
        self._paths = PathTable(self._options.prefixes)
        self.max_rows = self._options.max_inputs
        self._is_lenient = self._options.unknown_members == IGNORE
        self.messages = JsonMessages(limits)
        client = upstream.TextClient(limits, self._options)
        replies: Mapping[type[Call[Any]], Callable[[Any, Any], HttpResponse]] = {
            InferRequest: _encode_inference,
            RepositoryIndexRequest: partial(_encode_models, self._options),
            ModelReadyRequest: partial(_encode_model, self._options, limits),
            StreamInferRequest: lambda call, item: _event(
                encode_piece(call, item, stream_form(call))
            ),
        }
        passes: Mapping[type[Call[Any]], Any] = {
            InferRequest: client.pass_on,
            StreamInferRequest: client.pass_on,
        }
        self.calls = with_replies(client.calls, replies, passes)

    def decode_call(self, wire: HttpRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request.

        Raises:
            InvalidRequest: Method, content type, body or a member is wrong.
            NotFound: The path does not exist, or is not served.
            TooLarge: A limit is exceeded.
        """
        route = self._paths.find(wire.path)
        form = None if route.kind is None else ReplyForm(kind=route.kind)
        try:
            return self._decode(route, wire)
        except GatewayError as error:
            # The form of an error depends on the path.
            error.origin = Origin(NAME, wire, form)
            raise

    def for_record(self, wire: HttpRequest, /) -> HttpRequest:
        """Return a request without `user`; without its body where it cannot be read."""
        return without_user(wire)

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        """Write *error* in OpenAI's form. Never raises."""
        passed = upstream.passed_failure(error, self._limits)
        if passed is not None:
            return passed
        form = form_of(call, error)
        origin = None if call is None else call.context.origin
        is_chat = form is not None and form.kind is PathKind.CHAT
        if is_chat and isinstance(error, NotFound) and origin is not None:
            error = origin.refusal or error  # no server has its model
        names_message = form is not None and form.kind.is_rerank
        return error_response(error, self._limits, names_message=names_message)

    def sends_on(self, call: Call[Any], /) -> bool:
        """Return whether an upstream gets the message of *call*, which it need not divide."""
        request = inference_of(call)
        inputs = () if request is None else request.inputs
        most = self._options.max_inputs
        is_small = all(math.prod(each.shape or ()) <= most for each in inputs[-1:])
        origin, form = call.context.origin, form_of(call)
        if form is not None and form.is_plain:
            return is_small and origin is not None and origin.whole == self.whole
        return is_small and super().sends_on(call)

    def decode_unread(self, wire: HttpRequest, refused: GatewayError, /) -> Call[Any] | None:
        """Return a request with members, or values of them, that only its server knows."""
        kind = self._paths.find(wire.path).kind
        if kind not in TASKS or wire.method != "POST" or not self.is_plain(wire):
            return None
        document = load_json(wire.view, "the body")
        if type(document) is not dict:
            return None
        model, form = _model(document, self._limits), ReplyForm(kind=kind)
        recorded = without_user(wire) if USER in document else None
        context = http_context(wire, NAME, _TEXTS, form, NAME, refused, recorded)
        request = InferRequest(model=model, context=context)
        if document.get("stream"):
            return StreamInferRequest(model=model, context=context, request=request)
        return request

    def writes_end_mark(self, _call: StreamInferRequest, /) -> bool:
        """Return True: the last event has the reason of the end."""
        return True

    def encode_end(
        self, call: StreamInferRequest, last: InferResponse | None, /
    ) -> HttpResponse | None:
        """Write the end of a stream, which OpenAI's clients wait for; a server has written its."""
        if last is not None and last.origin is not None and last.origin.whole:
            return None
        return _event(encode_stream_end(call, last, stream_form(call)))

    def encode_late_error(self, _call: StreamInferRequest, error: GatewayError, /) -> HttpResponse:
        """Write an error within a stream, as an event: the status was sent."""
        passed = upstream.passed_failure(error, self._limits)
        if passed is not None:
            return passed
        return _event(event({"error": error_object(error, self._limits)}))

    def splitter(self) -> upstream.StreamSplitter:
        """Return the splitter of one streamed response of an upstream."""
        return upstream.StreamSplitter(self._limits)

    def is_item(self, call: StreamInferRequest, wire: HttpResponse, /) -> bool:
        """Return whether an event is an item: a comment is one for a client of this form alone."""
        origin = call.context.origin
        is_whole = origin is not None and origin.whole == self.whole
        return is_whole or not upstream.is_comment(wire)

    def _decode(self, route: PathMatch, wire: HttpRequest) -> Call[Any]:
        endpoint = route.kind
        if endpoint is None:
            raise UnknownPath(f"nothing is served at {wire.path[:200]!r}")
        if endpoint is PathKind.MODELS:
            return _decode_models(route, wire, self._limits)
        if wire.method != "POST":
            raise method_not_allowed(wire.method, wire.path, "POST")
        if endpoint is PathKind.CHAT:
            return self._decode_chat(wire)
        members, read, _ = _MESSAGES[endpoint]
        document, recorded, is_plain = read_document(
            wire, members, self._limits, lenient=self._is_lenient
        )
        model = _model(document, self._limits)
        inputs, task, form = read(document, endpoint, self._limits)
        whole = NAME if endpoint in TASKS else ""
        form = replace(form, is_plain=is_plain)
        context = http_context(wire, NAME, _TEXTS, form, whole, recorded=recorded)
        request = InferRequest(model=model, context=context, inputs=inputs, texts=task)
        if not (isinstance(task, Generate) and task.wants_stream):
            return request
        return StreamInferRequest(model=model, context=context, request=request)

    def _decode_chat(self, wire: HttpRequest) -> Call[Any]:
        refused = UnknownPath(_CHAT, reason="unsupported_endpoint")
        try:
            call = self.decode_unread(wire, refused)
        except GatewayError:
            call = None
        if call is None:
            raise refused
        return call


def _decode_models(route: PathMatch, wire: HttpRequest, limits: MessageLimits) -> Call[Any]:
    if wire.method not in _GET:
        raise method_not_allowed(wire.method, wire.path, "GET, HEAD")
    context = http_context(wire, NAME, EMPTY, ReplyForm(kind=PathKind.MODELS))
    if not route.model:
        return RepositoryIndexRequest(ready_only=True, context=context)
    name = decoded_name("model name", route.model, limits)
    return ModelReadyRequest(model=ModelRef(name), context=context)


def _model(document: Document, limits: MessageLimits) -> ModelRef:
    name = text(document, "model", "the name of a model")
    try:
        check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
    except (InvalidRequest, TooLarge) as error:
        raise InvalidMember(error.message, member="model") from None
    return ModelRef(name)


def _encode_models(
    options: OpenAiOptions, _call: RepositoryIndexRequest, reply: Any
) -> HttpResponse:
    return _json((models_document(reply, options.created, options.owned_by),))


def _encode_model(
    options: OpenAiOptions, limits: MessageLimits, call: ModelReadyRequest, reply: bool
) -> HttpResponse:
    name = "" if call.model is None else call.model.name
    if not reply:
        return error_response(NotReady(f"model {name!r} is not ready"), limits, names_message=False)
    return _json((orjson.dumps(model_object(name, options.created, options.owned_by)),))


def _encode_inference(call: InferRequest, reply: InferResponse) -> HttpResponse:
    form = form_of(call)
    if form is None:
        raise unsupported(call, NAME)
    return _json(_MESSAGES[form.kind].encode(call, reply, form))


def _json(body: tuple[Buffer, ...]) -> HttpResponse:
    return HttpResponse(OK, _HEADERS, body, is_compressible=True)


def _event(text: bytes) -> HttpResponse:
    return HttpResponse(OK, EVENTS, (text,))
