"""The REST codec of Seldon: functions between HTTP messages and calls.

`bodies.py` and `requests.py` read messages, and `replies.py` writes them.

Source: docs/protocols/seldon.md; of the side of a client, "9. Servers".
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson
from msgspec import Struct

from gateway.api.protocol import Codec, Handling
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    OpaqueCall,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.errors import (
    GatewayError,
    MalformedMessage,
    NotFound,
    NotReady,
    TooLarge,
    Unsupported,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.seldon.declarations import NO_DECLARATION, SeldonForm, reply_form
from gateway.protocols.seldon.errors import (
    FORM,
    OK,
    GraphVerb,
    is_failure,
)
from gateway.protocols.seldon.http.bodies import object_of, parts_of, plain_fields, read_message
from gateway.protocols.seldon.http.openapi import OPENAPI
from gateway.protocols.seldon.http.paths import (
    METADATA,
    METHODS,
    PREDICTIONS,
    STATUS,
    SeldonPath,
    SeldonRoute,
    find_path,
    path_at_server,
)
from gateway.protocols.seldon.http.replies import answer_json, data_json, meta_json
from gateway.protocols.seldon.http.requests import PayloadReader
from gateway.protocols.seldon.messages import (
    LIMITATIONS,
    MessageForm,
    Meta,
    PayloadKind,
    check_one_array,
    checked_puid,
    meta_of,
    only_element,
    only_text,
    own_tags,
    payload_kind,
    requested_outputs,
)
from gateway.protocols.seldon.metadata import metadata_document, read_metadata
from gateway.protocols.seldon.options import (
    FORWARD,
    WORDS,
    SeldonOptions,
    read_options,
    value_rules,
)
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.errors import method_not_allowed
from gateway.wire.heads.metadata import form_of, get_request, http_context, http_headers
from gateway.wire.heads.request_id import new_request_ids
from gateway.wire.heads.url_names import decoded_name
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse, is_printable_ascii
from gateway.wire.json.errors import JSON
from gateway.wire.json.values import read_value
from gateway.wire.opaque import JsonMessages, check_plain, passed_request
from gateway.wire.rows.read import read_rows_document
from gateway.wire.rows.write import RowStyle

NAME: Final = FORM.codec
_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
_GET: Final = ("GET", "HEAD")
_HTML: Final = ("Content-Type", "text/html; charset=utf-8")
_HEADERS: Final = Headers((JSON,))
_PUID: Final = "Seldon-Puid"
_DEFAULT: Final = ModelRef("")
_NO_PATH: Final = 404


class SeldonRestForm(Struct, frozen=True):
    """What the response to one request depends on.

    Attributes:
        kind: What its path is for.
        message: The form of its message.
    """

    kind: SeldonPath
    message: MessageForm = MessageForm()


_PREDICTED: Final = frozenset({SeldonPath.PREDICTIONS, SeldonPath.PREDICT})


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
    limitations = LIMITATIONS

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._options = read_options(options or {})
        self._rules = value_rules(self._options, limits)
        self._style = self._options.style
        self.whole = NAME if self._options.nonfinite == WORDS else ""
        self.messages = self._texts = JsonMessages(limits, has_words=True)
        self._declared: Mapping[str, SeldonForm] = {}
        self._puids = new_request_ids()
        ready = Handling(partial(get_request, path=STATUS), by_status=_is_there)
        health = replace(ready, encode_reply=partial(_encode_health, self._puids, limits))
        self.calls = {
            InferRequest: Handling(
                partial(_prediction, self._options, self._style),
                self._read_prediction,
                self._encode_inference,
                send_on=_send_whole,
            ),
            OpaqueCall: Handling(send_on=_send_whole),
            ModelMetadataRequest: Handling(
                partial(get_request, path=METADATA),
                lambda call, wire: read_metadata(
                    read_value(wire.view, "the response", limits), call.model, limits
                ),
                lambda call, reply: _json(orjson.dumps(metadata_document(reply, call.model))),
                _check_metadata_path,
            ),
            ServerLiveRequest: health,
            ServerReadyRequest: health,
            ModelReadyRequest: ready,
        }

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
            raise method_not_allowed(wire.method, wire.path, ", ".join(methods))
        if kind is SeldonPath.VERB:
            raise GraphVerb(
                f"{wire.path[:200]!r} is a step of a graph, which the gateway does not run: "
                "expected a prediction (pipelines of the configuration have steps)"
            )
        if kind in _PREDICTED:
            return self._decode_prediction(route, wire)
        if kind in (SeldonPath.FEEDBACK, SeldonPath.SEND_FEEDBACK):
            return self._decode_feedback(route, wire)
        context = http_context(wire, NAME, _NEEDS, SeldonRestForm(kind))
        model = self._model(route)
        if kind is SeldonPath.METADATA:
            return ModelMetadataRequest(model=model, context=context)
        if kind in (SeldonPath.STATUS, SeldonPath.READY):
            return ServerReadyRequest(about=model or _DEFAULT, context=context)
        return ServerLiveRequest(context=context)

    def encode_error(self, _call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        """Write *error*. Never raises."""
        return FORM.write(error, self._limits)

    def is_plain(self, wire: HttpRequest, /) -> bool:
        """Return whether all readers of a request read the same: JSON in one place."""
        try:
            fields, parts = plain_fields(wire), parts_of(wire)
        except (MalformedMessage, TooLarge):
            return False
        if parts is not None:
            texts = [memoryview(each) for each in parts.values() if type(each) is bytes]
            return not fields and all(map(self._texts.is_json, texts))
        if not fields:
            return wire.method == "POST" and self._texts.is_plain(wire)
        is_alone = len(fields) == 1 and (not wire.query or not wire.size_bytes)
        return is_alone and self._texts.is_json(fields[0])

    def for_record(self, wire: HttpRequest, /) -> HttpRequest:
        """Return a request with the JSON of its query as body: recordings keep no query."""
        if not wire.query or wire.size_bytes:
            return wire
        try:
            fields = plain_fields(wire)
        except MalformedMessage:
            return wire
        return _posted(wire, fields[0]) if len(fields) == 1 else wire

    def decode_unread(self, wire: HttpRequest, refused: GatewayError, /) -> Call[Any] | None:
        """Return a prediction whose payload only its server knows."""
        route = find_path(wire.path)
        if route.kind not in _PREDICTED or not self.is_plain(wire):
            return None
        form = SeldonRestForm(SeldonPath.PREDICTIONS)
        context = http_context(wire, NAME, _NEEDS, form, self.whole, refused)
        return InferRequest(model=self._model(route), context=context)

    def error_in(self, call: Call[Any], wire: HttpResponse, /) -> GatewayError | None:
        """Return the error of a response that has no success as status; None for a success."""
        if wire.status == OK:
            return None
        return FORM.read(call.model, wire, self._limits)

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
            context=http_context(wire, NAME, _NEEDS, form, self.whole),
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
        check_plain(is_plain=self.is_plain(wire))
        message = Origin(NAME, wire, whole=NAME)
        return OpaqueCall(model=self._model(route), context=context, message=message)

    def _encode_inference(self, call: InferRequest, reply: InferResponse) -> HttpResponse:
        message = form_of(call, SeldonRestForm).message.of_model(self._declared, call, reply)
        puid = message.meta.puid or call.context.request_id or next(self._puids)
        text = answer_json(reply, message, self._style, puid)
        pairs = (JSON, (_PUID, puid)) if is_printable_ascii(puid) else (JSON,)
        return HttpResponse(OK, Headers(pairs), (text,), is_compressible=True)

    def _read_prediction(self, call: InferRequest, wire: HttpResponse) -> InferResponse:
        document = read_rows_document(wire.view, "the response", self._limits)
        if is_failure(document.plain("status")):
            raise FORM.read(call.model, wire, self._limits)
        declared = reply_form(self._declared, call.model)
        payload = PayloadReader(document, self._limits, self._rules, declared).read()
        meta = meta_of(document.plain("meta"), self._limits)
        return InferResponse(
            model=call.model or ModelRef(""),
            outputs=payload.tensors,
            id=call.id,
            parameters=own_tags(meta, call),
            origin=Origin(NAME, wire),
        )

    def _model(self, route: SeldonRoute) -> ModelRef | None:
        """Return the model of a request; None for that of the listener."""
        if route.model:
            return ModelRef(decoded_name("model name", route.model, self._limits))
        return self._options.default_model


def _posted(wire: HttpRequest, text: Buffer, query: str = "") -> HttpRequest:
    """Return a request with a text of JSON as its body."""
    others = [pair for pair in wire.headers.pairs if pair[0].lower() != "content-type"]
    headers = Headers((JSON, *others))
    return HttpRequest(
        "POST", wire.path, query, headers, (text,), wire.deadline, client=wire.client
    )


def _send_whole(call: Call[Any], message: Origin) -> HttpRequest:
    """Return a client's request; parts of a form become JSON."""
    found = passed_request(call, message, path_at_server(message.wire.path))
    parts = parts_of(message.wire)
    return found if parts is None else _posted(found, object_of(parts), found.query)


def _encode_health(
    puids: Iterator[str], limits: MessageLimits, call: Call[bool], reply: bool
) -> HttpResponse:
    if not reply:
        return FORM.write(NotReady("the model is not ready"), limits)
    kind = form_of(call, SeldonRestForm).kind
    if kind is SeldonPath.PING:
        return HttpResponse(OK, Headers((_HTML,)), (b"pong",))
    if kind is SeldonPath.OPENAPI:
        return _json(OPENAPI)
    if kind is SeldonPath.FEEDBACK:
        return _json(b'{"data":{"names":[],"ndarray":[]},"meta":%b}\n' % meta_json(next(puids), {}))
    return _json(b'{"meta":{},"strData":"healthy"}\n')


def _prediction(options: SeldonOptions, style: RowStyle, call: InferRequest) -> HttpRequest:
    check_one_array(call)
    headers = Headers((JSON, *http_headers(call.context)))
    body = _prediction_body(options, style, call)
    return HttpRequest("POST", PREDICTIONS, "", headers, (body,), call.context.deadline)


def _prediction_body(options: SeldonOptions, style: RowStyle, call: InferRequest) -> bytes:
    meta = meta_json(call.id, dict(call.parameters))
    tensor = call.inputs[0]
    kind = payload_kind(tensor, options, has_integers=True)
    if kind is PayloadKind.TEXT:
        item, text = only_element(tensor), only_text(tensor)
        if text is None:
            return b'{"binData":"%b","meta":%b}' % (base64.b64encode(item), meta)
        return b'{"meta":%b,"strData":%b}' % (meta, orjson.dumps(text))
    return b'{"data":%b,"meta":%b}' % (data_json(tensor, kind, style, (), "input"), meta)


def _is_there(wire: HttpResponse) -> bool:
    """Return whether a server is ready: one without the path is, as Seldon's orchestrator."""
    return wire.status in (OK, _NO_PATH)


def _check_metadata_path(wire: HttpResponse) -> None:
    if wire.status == _NO_PATH:
        raise Unsupported(
            "the server has no metadata; expected models.NAME.signature in the configuration"
        )


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(OK, _HEADERS, (body,), is_compressible=True)
