"""The HTTP codec of TorchServe: functions between HTTP messages and calls.

`form_fields.py` reads bodies of several fields, and `upstream.py` is the side of a client.

Source: docs/protocols/torchserve.md.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from gateway.api.protocol import StreamCodec, with_replies
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
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, ModelRef, Need, Origin
from gateway.ir.errors import GatewayError, InvalidRequest, NotFound
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.torchserve import management
from gateway.protocols.torchserve.errors import (
    FORM,
    OK,
    UNHEALTHY,
    ManagementRefused,
    UnknownResource,
)
from gateway.protocols.torchserve.http import upstream
from gateway.protocols.torchserve.http.form_fields import (
    FORMS,
    JSON_TYPE,
    is_plain_form,
    read_form,
)
from gateway.protocols.torchserve.http.upstream import NAME
from gateway.protocols.torchserve.management import TorchServeForm, form_of
from gateway.protocols.torchserve.messages import (
    LIMITATIONS,
    NEEDS,
    UPSTREAM_NEEDS,
    BodyReader,
    Item,
    requested_outputs,
    write_reply,
)
from gateway.protocols.torchserve.models import BodyForms, TorchServeModel
from gateway.protocols.torchserve.options import read_options, row_style
from gateway.protocols.torchserve.paths import (
    EXPLANATIONS,
    MODELS,
    TorchServePath,
    TorchServePathKind,
    find_path,
)
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.decoupled import StreamsDecoupled
from gateway.wire.errors import SUCCESSES, MethodNotAllowed
from gateway.wire.heads.metadata import http_context
from gateway.wire.heads.url_names import decoded_name, read_query
from gateway.wire.http import NO_HEADERS, Headers, HttpRequest, HttpResponse, media_type
from gateway.wire.json.errors import JSON
from gateway.wire.opaque import JsonMessages, check_plain
from gateway.wire.rows.write import RowStyle

_HEADERS: Final = Headers((JSON,))
STREAM: Final = ("ts_stream_next", "true")
"""The header of the replies of a decoupled model."""
_SEQUENCE: Final = "ts_request_sequence_id"
_SEQUENCE_START: Final = "ts_request_sequence_start"
_SEQUENCE_END: Final = "ts_request_sequence_end"
SEQUENCE_HEADERS: Final = (_SEQUENCE, _SEQUENCE_START, _SEQUENCE_END)
"""The headers of a request to a stateful model."""
_READING: Final = frozenset({"GET", "HEAD"})
_DESCRIBING: Final = "OPTIONS"
_WRITING: Final = frozenset({"POST", "PUT"})
_TRUE: Final = "true"

_INVOKED: Final = TorchServePathKind.INVOCATION
_PREDICTED: Final = frozenset({TorchServePathKind.PREDICTION, _INVOKED})


class HttpCodec(StreamCodec[HttpRequest, HttpResponse], StreamsDecoupled, DeclaringCodec):
    """TorchServe over HTTP, in both directions.

    Args:
        limits: The limits of a message.
        options: Options of a listener or an upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = UPSTREAM_NEEDS
    limitations = LIMITATIONS
    whole = NAME

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self.messages = JsonMessages(limits, has_bytes=True)
        self._options = read_options(options or {})
        self._models = BodyForms(limits)
        self._reader = BodyReader(limits)
        self._style = row_style(self._options)
        self._is_shared = MODELS in self._options.shared
        client = upstream.TorchServeRestClient(self._models, self._reader)
        replies: Mapping[type[Call[Any]], Callable[[Any, Any], HttpResponse]] = {
            InferRequest: partial(_encode_inference, self._style, ()),
            ServerReadyRequest: _encode_ready,
            RepositoryIndexRequest: lambda call, reply: _json(
                management.list_document(call, reply)
            ),
            ServerStatusRequest: lambda call, reply: _json(
                management.description_document(call, reply)
            ),
            ModelMetadataRequest: _encode_api,
            ServerLiveRequest: _encode_api,
        }
        self.calls = with_replies(client.calls, replies)

    def declare(self, declared: Mapping[str, Any], /) -> None:
        """Replace what the configuration declares of models, by their names."""
        self._models.declare(declared)

    def decode_call(self, wire: HttpRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request; bytes wait for the inputs of the model.

        Raises:
            InvalidRequest: Method, name or body is wrong.
            NotFound: The path or the version does not exist.
            Unsupported: It would change models.
            TooLarge: A limit is exceeded.
        """
        found = find_path(wire.path)
        kind = found.kind
        if kind is None:
            raise UnknownResource(
                "Requested resource is not found, please refer to API document: nothing is served "
                f"at {wire.path[:200]!r}"
            )
        if wire.method == _DESCRIBING:
            return self._decode_description(found, wire)
        if kind is TorchServePathKind.PING:
            return ServerReadyRequest(context=http_context(wire, NAME, NEEDS))
        if kind in _PREDICTED:
            _check_method(wire, _WRITING)
            return self._decode_inference(found, wire)
        if kind is TorchServePathKind.EXPLANATION:
            _check_method(wire, _WRITING)
            check_plain(is_plain=self.is_plain(wire))
            called = self._called(found, wire)
            context = http_context(wire, NAME, NEEDS, TorchServeForm(called))
            message = Origin(NAME, wire, EXPLANATIONS, whole=NAME)
            return OpaqueCall(model=called.model, context=context, message=message)
        return self._decode_management(found, wire)

    def encode_error(self, _call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        """Write *error*. Never raises."""
        return FORM.write(error, self._limits)

    def is_plain(self, wire: HttpRequest, /) -> bool:
        """Return whether all readers of a body read the same; bytes are of one input."""
        given = wire.headers.get("content-type")
        kind = media_type(given)
        if kind in FORMS and given is not None:
            return is_plain_form(wire.view, given, self._limits)
        return super().is_plain(wire)

    def decode_unread(self, wire: HttpRequest, refused: GatewayError, /) -> Call[Any] | None:
        """Return a prediction whose body has another form than the model declares."""
        found = find_path(wire.path)
        if found.kind not in _PREDICTED or wire.method not in _WRITING or not self.is_plain(wire):
            return None
        called = self._called(found, wire, self._models.unread)
        form = TorchServeForm(called)
        context = http_context(wire, NAME, called.needs, form, self.whole, refused)
        return InferRequest(model=called.model, context=context)

    def stream_of(self, call: InferRequest, /) -> StreamInferRequest | None:
        """Return *call* as a stream: its caller takes the replies of a decoupled model."""
        return StreamInferRequest(model=call.model, context=call.context, request=call)

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> HttpResponse:
        """Write one reply of a stream, with nothing between it and the next one.

        Raises:
            GatewayError: The item is an error.
            Unsupported: The outputs do not fit the declared form.
        """
        if item.error is not None:
            raise item.error
        return _encode_inference(self._style, (STREAM,), call, item)

    def error_in(self, call: Call[Any], wire: HttpResponse, /) -> GatewayError | None:
        """Return the error of an upstream's response, with it as origin; None for a success."""
        return None if wire.status in SUCCESSES else FORM.read(call.model, wire, self._limits)

    def _called(
        self,
        found: TorchServePath,
        wire: HttpRequest,
        find: Callable[[str, str], TorchServeModel] | None = None,
    ) -> TorchServeModel:
        """Return the model of a request; a parameter of the query may name that of `/invocations`.

        Args:
            found: The path.
            wire: The request.
            find: Returns a model by name and version; None for that of the declarations.
        """
        if found.kind is not _INVOKED:
            name = decoded_name("model name", found.model, self._limits)
            version = decoded_name("model version", found.version, self._limits)
            return (find or self._models.find)(name, version)
        name = read_query(wire.query).get("model_name", "")
        if name:
            return self._models.find(name, "")
        return self._models.default(self._options.default_model)

    def _decode_inference(self, found: TorchServePath, wire: HttpRequest) -> Call[Any]:
        called = self._called(found, wire)
        given = wire.headers.get("content-type")
        kind = media_type(given)
        if kind in FORMS and given is not None:
            fields = read_form(wire.view, given, self._limits)
            inputs = self._reader.fields(fields, called.form)
        else:
            inputs = self._reader.body(Item(wire.view, kind == JSON_TYPE), called.form)
        return InferRequest(
            model=called.model,
            context=http_context(wire, NAME, called.needs, TorchServeForm(called), self.whole),
            inputs=inputs,
            outputs=requested_outputs(called.form),
            sequence=_sequence(wire.headers),
            batch_size=1 if called.form.asks_for_axis else None,
        )

    def _decode_management(self, found: TorchServePath, wire: HttpRequest) -> Call[Any]:
        if wire.method not in _READING or found.kind is TorchServePathKind.CHANGE:
            _refuse_change(wire, is_shared=self._is_shared)
        if found.kind is TorchServePathKind.LIST:
            query = read_query(wire.query)
            page = management.ModelListPage(
                query.get("limit", ""), query.get("next_page_token", "")
            )
            form = TorchServeForm(page=page)
            return RepositoryIndexRequest(context=http_context(wire, NAME, NEEDS, form))
        if found.kind is TorchServePathKind.ROOT:
            raise MethodNotAllowed("expected OPTIONS on '/'", allow=_DESCRIBING)
        called = self._called(found, wire)
        context = http_context(wire, NAME, NEEDS, TorchServeForm(called))
        return ServerStatusRequest(about=ModelRef(called.name), context=context)

    def _decode_description(self, found: TorchServePath, wire: HttpRequest) -> Call[Any]:
        """Return the call of a question for the OpenAPI document."""
        if not found.model:
            return ServerLiveRequest(context=http_context(wire, NAME, NEEDS))
        called = self._called(found, wire)
        model = called.model if Need.NUMERIC_VERSIONS not in called.needs else ModelRef(called.name)
        is_whole = found.kind is TorchServePathKind.PREDICTION and not wire.size_bytes
        whole = self.whole if is_whole else ""
        context = http_context(wire, NAME, NEEDS, TorchServeForm(called), whole)
        return ModelMetadataRequest(model=model, context=context)


def _refuse_change(wire: HttpRequest, *, is_shared: bool) -> None:
    """Refuse to load, scale or unload a model; containers of SageMaker expect 404.

    Raises:
        NotFound: Clients of MLflow and of SageMaker use the listener too.
        ManagementRefused: They do not.
    """
    text = (
        f"{wire.method[:32]} {wire.path[:200]} would change models, and models are not loaded, "
        "scaled or unloaded by a client's word"
    )
    if is_shared:
        raise NotFound(f"{text} (options: {{mlflow: {{multi_model: false}}}})")
    raise ManagementRefused(f"{text}: the management of TorchServe is read-only")


def _encode_inference(
    style: RowStyle,
    extra: tuple[tuple[str, str], ...],
    call: InferRequest | StreamInferRequest,
    reply: InferResponse,
) -> HttpResponse:
    form = form_of(call).body
    body = write_reply(reply, form, style)
    kind = (("Content-Type", form.content_type),) if form.content_type else ()
    headers = Headers((*kind, *extra)) if kind or extra else NO_HEADERS
    return HttpResponse(OK, headers, (body,), is_compressible=not extra)


def _encode_ready(_call: ServerReadyRequest, reply: bool) -> HttpResponse:
    text = management.HEALTHY if reply else management.UNHEALTHY
    return HttpResponse(OK if reply else UNHEALTHY, _HEADERS, (text,))


def _encode_api(call: Call[Any], _reply: Any) -> HttpResponse:
    called = form_of(call).called
    return _json(management.api_document("" if called is None else called.name))


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(OK, _HEADERS, (body,), is_compressible=True)


def _sequence(headers: Headers) -> CallSequence | None:
    """Return the sequence of a request to a stateful model; None for none.

    Raises:
        InvalidRequest: Its id is too long.
    """
    found = headers.get(_SEQUENCE)
    if not found:
        return None
    if len(found) > 255 or not found.isascii():  # noqa: PLR2004  # as ids of models
        raise InvalidRequest(f"{_SEQUENCE} is too long: expected at most 255 ASCII characters")
    is_start = (headers.get(_SEQUENCE_START) or "").lower() == _TRUE
    is_end = (headers.get(_SEQUENCE_END) or "").lower() == _TRUE
    return CallSequence(found, is_start, is_end)


def _check_method(wire: HttpRequest, allowed: frozenset[str]) -> None:
    if wire.method not in allowed:
        expected = ", ".join(sorted(allowed))
        raise MethodNotAllowed(
            f"method {wire.method[:32]!r} is not allowed on {wire.path[:200]!r}: "
            f"expected {expected}",
            allow=f"{expected}, {_DESCRIBING}",
        )
