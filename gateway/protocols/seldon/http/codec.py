"""The REST codec of Seldon: functions between HTTP messages and calls.

`bodies.py` and `requests.py` read messages, `replies.py` writes them, and `upstream.py` is the side
of a client.

Source: docs/protocols/seldon.md.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

import orjson
from msgspec import Struct

from gateway.api.protocol import Codec, unsupported
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    OpaqueCall,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.errors import GatewayError, InternalError, NotFound, NotReady
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.seldon.declarations import NO_DECLARATION, SeldonForm, reply_form
from gateway.protocols.seldon.errors import JSON, OK, GraphVerb, error_response
from gateway.protocols.seldon.http import upstream
from gateway.protocols.seldon.http.bodies import read_message
from gateway.protocols.seldon.http.openapi import OPENAPI
from gateway.protocols.seldon.http.paths import METHODS, SeldonPath, SeldonRoute, find_path
from gateway.protocols.seldon.http.replies import answer_json, meta_json
from gateway.protocols.seldon.http.requests import PayloadReader
from gateway.protocols.seldon.messages import (
    MessageForm,
    Meta,
    checked_puid,
    meta_of,
    requested_outputs,
)
from gateway.protocols.seldon.metadata import metadata_document
from gateway.protocols.seldon.options import FORWARD, WORDS, read_options, value_rules
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.errors import MethodNotAllowed
from gateway.wire.http import Headers, HttpRequest, HttpResponse, is_printable_ascii
from gateway.wire.metadata import form_of, http_context
from gateway.wire.request_id import new_request_ids
from gateway.wire.url_names import decoded_name

R = TypeVar("R")

NAME: Final = "seldon.http"
_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
_GET: Final = ("GET", "HEAD")
_HTML: Final = ("Content-Type", "text/html; charset=utf-8")
_HEADERS: Final = Headers((JSON,))
_PUID: Final = "Seldon-Puid"
_DEFAULT: Final = ModelRef("")


class SeldonRestForm(Struct, frozen=True):
    """What the response to one request depends on.

    Attributes:
        kind: What its path is for.
        message: The form of its message.
    """

    kind: SeldonPath
    message: MessageForm = MessageForm()


class HttpCodec(Codec[HttpRequest, HttpResponse], DeclaringCodec):
    """Seldon's protocol over REST, in both directions.

    Args:
        limits: The limits of a message.
        options: Options of a listener or an upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = _NEEDS | {Need.UNTYPED}

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._options = read_options(options or {})
        self._rules = value_rules(self._options, limits)
        self._style = self._options.style
        self._declared: Mapping[str, SeldonForm] = {}
        self._puids = new_request_ids()

    def declare(self, declared: Mapping[str, Any], /) -> None:
        """Replace what the configuration declares of models, by their names."""
        self._declared = declared

    def decode_call(self, wire: HttpRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request; numbers wait for the datatypes of the model.

        Raises:
            InvalidRequest: Method, content type or message is wrong, or the path is a graph's.
            NotFound: The path does not exist.
            TooLarge: A limit is exceeded.
        """
        route = find_path(wire.path)
        kind = route.kind
        if kind is None:
            raise NotFound(f"nothing is served at {wire.path[:200]!r}")
        methods = METHODS.get(kind, _GET)
        if wire.method not in methods:
            allow = ", ".join(methods)
            raise MethodNotAllowed(
                f"method {wire.method[:32]!r} is not allowed on {wire.path[:200]!r}: expected "
                f"{allow}",
                allow=allow,
            )
        if kind is SeldonPath.VERB:
            raise GraphVerb(
                f"{wire.path[:200]!r} is a step of a graph, which the gateway does not run: "
                "expected a prediction (pipelines of the configuration have steps)"
            )
        if kind in (SeldonPath.PREDICTIONS, SeldonPath.PREDICT):
            return self._decode_prediction(route, wire)
        if kind in (SeldonPath.FEEDBACK, SeldonPath.SEND_FEEDBACK):
            return self._decode_feedback(route, wire)
        return self._decode_question(route, wire)

    def encode_reply(self, call: Call[R], reply: R, /) -> HttpResponse:
        """Write the response to *call*.

        Raises:
            Unsupported: There are several outputs, and none is declared.
            InvalidOutput: An element of an output cannot be written.
        """
        form, content = form_of(call, SeldonRestForm), cast("Any", reply)
        if isinstance(call, InferRequest) and isinstance(content, InferResponse):
            return self._encode_inference(call, content, form)
        if isinstance(call, ModelMetadataRequest):
            name = "" if call.model is None else call.model.name
            return _json(orjson.dumps(metadata_document(content, name)))
        if isinstance(call, OpaqueCall):
            return upstream.write_answer(content)
        if not isinstance(call, ServerLiveRequest | ServerReadyRequest):
            raise unsupported(call, NAME)
        if not content:
            return self.encode_error(call, NotReady("the model is not ready"))
        return self._encode_health(form)

    def encode_error(self, _call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        """Write *error*. Never raises."""
        return error_response(error, NAME, self._limits)

    def encode_call(self, call: Call[Any], /) -> HttpRequest:
        """Write a request to an upstream.

        Raises:
            Unsupported: The protocol does not carry it, or has no such request.
        """
        return upstream.encode_call(call, self._options, self._style, NAME)

    def decode_reply(self, call: Call[R], wire: HttpResponse, /) -> R:
        """Read an upstream's response to *call*; numbers wait for the datatypes of the model.

        Raises:
            GatewayError: The response is an error, or cannot be used.
        """
        declared = reply_form(self._declared, call.model)
        found: Any = upstream.decode_reply(call, wire, self._rules, self._limits, declared, NAME)
        # The type of a call determines that of its reply, which mypy cannot follow.
        return cast("R", found)

    def _decode_prediction(self, route: SeldonRoute, wire: HttpRequest) -> InferRequest:
        has_words = self._options.nonfinite == WORDS
        document = read_message(wire, self._limits, has_nonfinite=has_words)
        model = self._model(route)
        name = "" if model is None else model.name
        declared = self._declared.get(name, NO_DECLARATION)
        payload = PayloadReader(document, self._limits, self._rules, declared).read()
        meta = meta_of(document.plain("meta"), self._limits)
        if not meta.puid:
            puid = checked_puid(wire.headers.get(_PUID.lower()) or "", self._limits)
            meta = Meta(puid, meta.tags)
        form = SeldonRestForm(SeldonPath.PREDICTIONS, MessageForm(payload.kind, meta, declared))
        return InferRequest(
            model=model,
            context=http_context(wire, NAME, _NEEDS, form),
            inputs=payload.tensors,
            outputs=requested_outputs(declared),
            id=meta.puid,
            parameters=meta.tags,
        )

    def _decode_feedback(self, route: SeldonRoute, wire: HttpRequest) -> Call[Any]:
        read_message(wire, self._limits, has_nonfinite=True)
        context = http_context(wire, NAME, frozenset(), SeldonRestForm(SeldonPath.FEEDBACK))
        if self._options.feedback != FORWARD:
            return ServerLiveRequest(context=context)
        return OpaqueCall(model=self._model(route), context=context, message=Origin(NAME, wire))

    def _decode_question(self, route: SeldonRoute, wire: HttpRequest) -> Call[Any]:
        kind = route.kind
        if kind is None:
            raise InternalError("a path without a kind has no question")
        context = http_context(wire, NAME, _NEEDS, SeldonRestForm(kind))
        model = self._model(route)
        if kind is SeldonPath.METADATA:
            return ModelMetadataRequest(model=model, context=context)
        if kind in (SeldonPath.STATUS, SeldonPath.READY):
            return ServerReadyRequest(about=model or _DEFAULT, context=context)
        return ServerLiveRequest(context=context)

    def _encode_inference(
        self, call: InferRequest, reply: InferResponse, form: SeldonRestForm
    ) -> HttpResponse:
        message = form.message.of_model(self._declared, call, reply)
        puid = message.meta.puid or call.context.request_id or next(self._puids)
        text = answer_json(reply, message, self._style, puid)
        pairs = (JSON, (_PUID, puid)) if is_printable_ascii(puid) else (JSON,)
        return HttpResponse(OK, Headers(pairs), (text,), is_compressible=True)

    def _encode_health(self, form: SeldonRestForm) -> HttpResponse:
        kind = form.kind
        if kind is SeldonPath.PING:
            return HttpResponse(OK, Headers((_HTML,)), (b"pong",))
        if kind is SeldonPath.OPENAPI:
            return _json(OPENAPI)
        if kind is SeldonPath.FEEDBACK:
            meta = meta_json(next(self._puids), {})
            return _json(b'{"data":{"names":[],"ndarray":[]},"meta":%b}\n' % meta)
        return _json(b'{"meta":{},"strData":"healthy"}\n')

    def _model(self, route: SeldonRoute) -> ModelRef | None:
        """Return the model of a request; None for that of the listener."""
        if route.model:
            return ModelRef(decoded_name("model name", route.model, self._limits))
        return self._options.default_model


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(OK, _HEADERS, (body,), is_compressible=True)
