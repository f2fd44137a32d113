"""The HTTP codec of OpenAI's form: functions between HTTP messages and calls.

`document.py` reads the JSON of a request. `embeddings.py`, `rerank.py` and `completions.py` have
the tasks, `models.py` the list of models, and `upstream.py` the side of a client.

Source: docs/protocols/openai.md.
"""

import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

import orjson

from gateway.api.protocol import FramingCodec, StreamCodec, unsupported
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.errors import GatewayError, InvalidMember, InvalidRequest, NotReady, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits, check_name
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
from gateway.protocols.openai.http.form import NAME, ReplyForm, form_of, stream_form
from gateway.protocols.openai.http.rerank import RERANK_MEMBERS, encode_rerank, read_rerank
from gateway.protocols.openai.options import IGNORE, read_options
from gateway.protocols.openai.paths import PathKind, PathMatch, PathTable
from gateway.wire.errors import MethodNotAllowed
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.metadata import http_context, http_headers
from gateway.wire.model_lists import model_object, models_document
from gateway.wire.url_names import decoded_name

R = TypeVar("R")

_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.OUTPUTS})
_QUESTIONS: Final = frozenset(
    {
        ModelMetadataRequest,
        ModelReadyRequest,
        RepositoryIndexRequest,
        ServerLiveRequest,
        ServerReadyRequest,
    }
)
_TEXTS: Final = frozenset({Need.TEXTS})
EMPTY: Final[frozenset[Need]] = frozenset()
_HEADERS: Final = Headers(JSON)
EVENTS: Final = Headers(
    (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))
)
_GET: Final = frozenset({"GET", "HEAD"})
_CHAT: Final = (
    "chat completions are not served: the gateway translates tensors; /v1/completions serves "
    "models of texts"
)


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

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._options = read_options(options or {})
        self._paths = PathTable(self._options.prefixes)
        self.max_rows = self._options.max_inputs
        self._is_lenient = self._options.unknown_members == IGNORE

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

    def encode_reply(self, call: Call[R], reply: R, /) -> HttpResponse:
        """Write the response to *call*.

        Raises:
            InvalidOutput: The output of the model cannot be written.
            Unsupported: There is no such response.
        """
        form, content = form_of(call), reply
        if isinstance(call, InferRequest) and isinstance(content, InferResponse) and form:
            return self._encode_inference(call, content, form)
        if isinstance(call, RepositoryIndexRequest):
            entries: Any = content
            return _json(models_document(entries, self._options.created, self._options.owned_by))
        if isinstance(call, ModelReadyRequest):
            name = "" if call.model is None else call.model.name
            if content:
                created, owner = self._options.created, self._options.owned_by
                return _json(orjson.dumps(model_object(name, created, owner)))
            return self.encode_error(call, NotReady(f"model {name!r} is not ready"))
        raise unsupported(call, NAME)

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        """Write *error* in OpenAI's form. Never raises."""
        form = form_of(call, error)
        names_message = form is not None and form.kind.is_rerank
        return error_response(error, self._limits, names_message=names_message)

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> HttpResponse:
        """Write one item of a stream as an event.

        Raises:
            InvalidOutput: A text is not UTF-8.
        """
        return HttpResponse(OK, EVENTS, (encode_piece(call, item, stream_form(call)),))

    def encode_end(
        self, call: StreamInferRequest, last: InferResponse | None, /
    ) -> HttpResponse | None:
        """Write the end of a stream, which OpenAI's clients wait for."""
        return HttpResponse(OK, EVENTS, (encode_stream_end(call, last, stream_form(call)),))

    def encode_late_error(self, _call: StreamInferRequest, error: GatewayError, /) -> HttpResponse:
        """Write an error within a stream, as an event: the status was sent."""
        return HttpResponse(OK, EVENTS, (event({"error": error_object(error, self._limits)}),))

    def encode_call(self, call: Call[Any], /) -> HttpRequest:
        """Write a request to an upstream.

        Raises:
            InvalidRequest: An input or a parameter is not that of the upstream's task.
            Unsupported: The form does not carry it, or has no such request.
        """
        if isinstance(call, InferRequest | StreamInferRequest):
            return upstream.encode_inference(call, self._options)
        if type(call) in _QUESTIONS:
            path = upstream.question_path(call, self._options)
            headers = Headers(http_headers(call.context))
            return HttpRequest("GET", path, "", headers, (), call.context.deadline)
        raise unsupported(call, NAME)

    def decode_reply(self, call: Call[R], wire: HttpResponse, /) -> R:
        """Read an upstream's response to *call*.

        Raises:
            GatewayError: The error in the response, with the response as origin.
            MalformedMessage: The response cannot be used.
        """
        if isinstance(call, InferRequest):
            found: Any = upstream.decode_inference(call, wire, self._options, self._limits)
        else:
            found = upstream.decode_question(call, wire, self._options, self._limits)
        # The type of a call determines that of its reply, which mypy cannot follow.
        return cast("R", found)

    def splitter(self) -> upstream.StreamSplitter:
        """Return the splitter of one streamed response of an upstream."""
        return upstream.StreamSplitter(self._limits)

    def decode_item(self, call: StreamInferRequest, wire: HttpResponse, /) -> InferResponse:
        """Read one event of an upstream's stream.

        Raises:
            GatewayError: The event is an error, or cannot be used.
        """
        return upstream.decode_event(call, wire, self._options, self._limits)

    def _decode(self, route: PathMatch, wire: HttpRequest) -> Call[Any]:
        endpoint = route.kind
        if endpoint is None:
            raise UnknownPath(f"nothing is served at {wire.path[:200]!r}")
        if endpoint is PathKind.MODELS:
            return self._decode_models(route, wire)
        if wire.method != "POST":
            raise _method_not_allowed(wire, "POST")
        if endpoint is PathKind.CHAT:
            raise UnknownPath(_CHAT, reason="unsupported_endpoint")
        if endpoint is PathKind.EMBEDDINGS:
            return self._decode_embeddings(wire)
        if endpoint.is_rerank:
            return self._decode_rerank(wire, endpoint)
        return self._decode_completion(wire)

    def _decode_models(self, route: PathMatch, wire: HttpRequest) -> Call[Any]:
        if wire.method not in _GET:
            raise _method_not_allowed(wire, "GET, HEAD")
        context = http_context(wire, NAME, EMPTY, ReplyForm(kind=PathKind.MODELS))
        if not route.model:
            return RepositoryIndexRequest(ready_only=True, context=context)
        name = decoded_name("model name", route.model, self._limits)
        return ModelReadyRequest(model=ModelRef(name), context=context)

    def _decode_embeddings(self, wire: HttpRequest) -> InferRequest:
        document = read_document(wire, EMBEDDINGS_MEMBERS, self._limits, lenient=self._is_lenient)
        wire = without_user(wire) if USER in document else wire
        model = self._model(document)
        inputs, task, is_base64 = read_embeddings(document, self._limits)
        form = ReplyForm(kind=PathKind.EMBEDDINGS, is_base64=is_base64)
        return InferRequest(
            model=model, context=http_context(wire, NAME, _TEXTS, form), inputs=inputs, texts=task
        )

    def _decode_rerank(self, wire: HttpRequest, kind: PathKind) -> InferRequest:
        document = read_document(wire, RERANK_MEMBERS, self._limits, lenient=self._is_lenient)
        wire = without_user(wire) if USER in document else wire
        model = self._model(document)
        inputs, task, form = read_rerank(document, kind, self._limits)
        return InferRequest(
            model=model, context=http_context(wire, NAME, _TEXTS, form), inputs=inputs, texts=task
        )

    def _decode_completion(self, wire: HttpRequest) -> Call[Any]:
        document = read_document(wire, COMPLETIONS_MEMBERS, self._limits, lenient=self._is_lenient)
        wire = without_user(wire) if USER in document else wire
        model = self._model(document)
        inputs, task, include_usage = read_completion(document, self._limits)
        form = ReplyForm(
            kind=PathKind.COMPLETIONS,
            include_usage=include_usage,
            created=int(time.time()),  # noqa: TID251  # a time of day, which clients show
        )
        context = http_context(wire, NAME, _TEXTS, form)
        request = InferRequest(model=model, context=context, inputs=inputs, texts=task)
        if not task.wants_stream:
            return request
        return StreamInferRequest(model=model, context=context, request=request)

    def _model(self, document: Document) -> ModelRef:
        name = text(document, "model", "the name of a model")
        try:
            check_name("model name", name, self._limits.model_name_bytes, "model_name_bytes")
        except (InvalidRequest, TooLarge) as error:
            raise InvalidMember(error.message, member="model") from None
        return ModelRef(name)

    def _encode_inference(
        self, call: InferRequest, reply: InferResponse, form: ReplyForm
    ) -> HttpResponse:
        if form.kind is PathKind.EMBEDDINGS:
            body = encode_embeddings(call, reply, is_base64=form.is_base64)
        elif form.kind.is_rerank:
            body = encode_rerank(call, reply, form)
        else:
            body = encode_completion(call, reply, form)
        return HttpResponse(OK, _HEADERS, body, is_compressible=True)


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(OK, _HEADERS, (body,), is_compressible=True)


def _method_not_allowed(wire: HttpRequest, allow: str) -> MethodNotAllowed:
    return MethodNotAllowed(
        f"method {wire.method[:32]!r} is not allowed on {wire.path[:200]!r}: expected {allow}",
        allow=allow,
    )
