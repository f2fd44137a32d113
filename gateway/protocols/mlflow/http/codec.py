"""The HTTP codec of MLflow's scoring protocol: functions between HTTP messages and calls.

`requests.py` reads bodies, `replies.py` writes answers, and `upstream.py` is the side of a client.

Source: docs/protocols/mlflow.md.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import structs

from gateway.api.protocol import Limitations, StreamCodec, with_replies
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ServerLiveRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import NO_PARAMETERS, Context, ModelRef, Need, Origin, Parameters
from gateway.ir.errors import GatewayError, NotFound
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.data import UntypedRules
from gateway.protocols.mlflow.errors import (
    FORM,
    NOT_READY,
    OK,
    UnknownScoringPath,
    error_response,
)
from gateway.protocols.mlflow.http import replies, requests, upstream
from gateway.protocols.mlflow.http.form import (
    NAME,
    DeclaredRows,
    ScoringForm,
    form_of,
    origin_of,
)
from gateway.protocols.mlflow.options import NAN, REFUSE, WORDS, read_options
from gateway.protocols.mlflow.paths import INVOCATIONS, MODELS, ScoringPath, ScoringRoute, find_path
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.decoupled import StreamsDecoupled
from gateway.wire.errors import SUCCESSES, SlashAtEnd, method_not_allowed
from gateway.wire.heads.metadata import http_context, sender_metadata
from gateway.wire.heads.sagemaker import custom_attributes, inference_id
from gateway.wire.heads.url_names import decoded_name
from gateway.wire.http import Headers, HttpRequest, HttpResponse, media_type, with_headers
from gateway.wire.json.errors import JSON
from gateway.wire.opaque import JsonMessages, passed_request, passed_response
from gateway.wire.rows.templates import RowTemplates
from gateway.wire.rows.write import NonfiniteStyle, RowStyle

_REPLY_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
_GET: Final = frozenset({"GET", "HEAD"})
_DEFAULT: Final = ModelRef("")
_TABLES: Final = frozenset({requests.CSV})
_MOST_LINES: Final = 4096  # which are looked at one by one
_OF_JSON: Final = frozenset({"", requests.JSON})


class _ScoringFields(NamedTuple):
    """The parsed header fields of an inference request.

    Attributes:
        metadata: All of them, names in lower case.
        request_id: The client's; "" for none.
        content_type: The content type of the body.
        form: What the response depends on.
    """

    metadata: tuple[tuple[str, str], ...]
    request_id: str
    content_type: str
    form: ScoringForm


class HttpCodec(StreamCodec[HttpRequest, HttpResponse], StreamsDecoupled, DeclaringCodec):
    """MLflow's scoring protocol over HTTP, in both directions.

    Args:
        limits: The limits of a message.
        options: Options of a listener or an upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.UNTYPED})
    limitations = Limitations(title="MLflow", sequences=True, classes=True, shared_memory=True)

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._options = read_options(options or {})
        found = self._options
        self._rules = UntypedRules(
            protocol="mlflow",
            has_b64=False,
            has_nonfinite=found.nonfinite == WORDS,
            has_nulls=found.nulls == NAN,
            has_whole_floats=True,
            has_single_values=True,
            drops_surplus=found.surplus_inputs != REFUSE,
            bytes_element_size=limits.bytes_element_size,
        )
        self._text_rules = structs.replace(self._rules, has_texts=True)  # noqa: TID251  # of rules
        style = NonfiniteStyle.WORDS if found.nonfinite == WORDS else NonfiniteStyle.REFUSE
        self._declared = rows = DeclaredRows(RowStyle(nonfinite=style))
        self._templates: RowTemplates[Parameters] = RowTemplates(limits)
        self.whole = "" if found.changes_messages else NAME
        self._texts = JsonMessages(  # as servers read
            limits, _TABLES, has_words=True, has_bytes=True, of_json=_OF_JSON
        )
        self.messages = self._texts
        written: Mapping[type[Call[Any]], Callable[[Any, Any], HttpResponse]] = {
            InferRequest: lambda call, reply: replies.encode_inference(
                reply, form_of(call), rows.style_of(call, reply)
            ),
            ServerReadyRequest: lambda call, reply: _answer(
                call, OK if reply else NOT_READY, b"\n"
            ),
            ServerLiveRequest: lambda call, _reply: _answer(call, OK, found.version.encode()),
        }
        self.calls = with_replies(upstream.ScoringClient(limits, found, rows).calls, written)

    def declare(self, declared: Mapping[str, Any], /) -> None:
        """Replace what the configuration declares of models, by their names."""
        self._declared.declare(declared)

    def decode_call(self, wire: HttpRequest, request_id: str = "", /) -> Call[Any]:
        """Read a client's request; an inference without an id has *request_id*.

        Raises:
            InvalidRequest: Method, content type or body is wrong.
            NotFound: The path does not exist, or there is no model.
            TooLarge: A limit is exceeded.
        """
        path = find_path(wire.path, self._options.prefix)
        kind = path.kind
        if kind is None:
            without_slash = wire.path.rstrip("/")
            known = find_path(without_slash, self._options.prefix).kind is not None
            if known and without_slash != wire.path:
                raise SlashAtEnd(without_slash)
            raise UnknownScoringPath(f"nothing is served at {wire.path[:200]!r}")
        if kind is ScoringPath.MODELS:
            raise NotFound(
                f"{MODELS} is not served: models are not loaded by a client's word "
                "(options: {mlflow: {multi_model: false}})"
            )
        if kind is ScoringPath.INVOCATIONS:
            if wire.method != "POST":
                raise method_not_allowed(wire.method, wire.path, "POST")
            return self._decode_inference(path, wire, request_id)
        if wire.method not in _GET:
            raise method_not_allowed(wire.method, wire.path, "GET, HEAD")
        form = ScoringForm(kind=kind, returned=custom_attributes(wire.headers))
        context = http_context(wire, NAME, _REPLY_NEEDS, form)
        if kind is ScoringPath.VERSION:
            return ServerLiveRequest(context=context)
        return ServerReadyRequest(about=self._model(path) or _DEFAULT, context=context)

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        """Write *error*. Never raises."""
        origin = None if call is None else origin_of(call)
        headers = Headers(error.metadata) if origin is None else origin.wire.headers
        return error_response(error, self._limits, custom_attributes(headers))

    def decode_unread(self, wire: HttpRequest, refused: GatewayError, /) -> Call[Any] | None:
        """Return an inference of a form, or with values, that only its server knows."""
        path = find_path(wire.path, self._options.prefix)
        if path.kind is not ScoringPath.INVOCATIONS or wire.method != "POST":
            return None
        if not self.is_plain(wire):
            return None
        form = _form_of(wire.headers, "")
        context = http_context(wire, NAME, _REPLY_NEEDS, form, self.whole, refused)
        return InferRequest(model=self._model(path), context=context)

    def is_plain(self, wire: HttpRequest, /) -> bool:
        """Return whether all readers of a request read the same, also in each of its lines."""
        if media_type(wire.headers.get("content-type")) != requests.LINES:
            return self._texts.is_plain(wire)
        count = 0
        for lines in requests.lines_of(wire.view):
            count += len(lines)
            if count > _MOST_LINES:
                return False
            if not all(self._texts.is_json(memoryview(line)) for line in lines):
                return False
        return True

    def send_on(self, call: Call[Any], message: Origin, /) -> HttpRequest:
        """Write a client's request to a server, which has one model."""
        return passed_request(call, message, INVOCATIONS)

    def pass_on(self, call: Call[Any], reply: Origin, /) -> HttpResponse:
        """Write a server's response."""
        return with_headers(passed_response(reply), form_of(call).returned)

    def stream_of(self, call: InferRequest, /) -> StreamInferRequest | None:
        """Return *call* as a stream, if its caller takes the replies of a decoupled model."""
        if not form_of(call).can_stream:
            return None
        return StreamInferRequest(model=call.model, context=call.context, request=call)

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> HttpResponse:
        """Write one reply of a stream as a line.

        Raises:
            GatewayError: The item is an error.
            InvalidOutput: An element of an output cannot be written.
        """
        if item.error is not None:
            raise item.error
        style = self._declared.style_of(call, item)
        return replies.encode_line(item, style, form_of(call).returned)

    def error_in(self, call: Call[Any], wire: HttpResponse, /) -> GatewayError | None:
        """Return the error of an upstream's response, with it as origin; None for a success."""
        return None if wire.status in SUCCESSES else FORM.read(call.model, wire, self._limits)

    def _decode_inference(
        self, path: ScoringRoute, wire: HttpRequest, request_id: str
    ) -> InferRequest:
        fields = wire.headers.parsed_with(_fields_of)
        model = self._model(path)
        parameters: Parameters = NO_PARAMETERS
        if fields.content_type == requests.CSV:
            has_header = self._options.csv_header
            inputs = requests.read_csv(
                wire.view, self._limits, self._text_rules, has_header=has_header
            )
        elif fields.content_type == requests.LINES:
            inputs = requests.read_lines(wire.view, self._limits, self._rules)
        else:
            found, cut = self._templates.parse(wire.view)
            if found is None:
                found = requests.read_json(wire.view, self._limits, self._rules)
                if cut is not None:
                    self._templates.learn(cut, *found)
            parameters, inputs = found
        context = Context(
            NAME,
            fields.metadata,
            fields.request_id or request_id,
            wire.deadline,
            None,
            _REPLY_NEEDS,
            Origin(NAME, wire, fields.form, True, self.whole),
            wire.client,
        )
        return InferRequest(model=model, context=context, inputs=inputs, parameters=parameters)

    def _model(self, path: ScoringRoute) -> ModelRef | None:
        """Return the model of a request; None for that of the listener."""
        if path.model:
            return ModelRef(decoded_name("model name", path.model, self._limits))
        return self._options.default_model


def _answer(call: Call[Any], status: int, body: bytes) -> HttpResponse:
    return HttpResponse(status, Headers((JSON, *form_of(call).returned)), (body,))


def _fields_of(headers: Headers) -> _ScoringFields:
    """Parse the header fields of an inference request.

    Raises:
        UnsupportedContentType: The body has another content type.
    """
    kind = requests.content_type(headers)
    form = _form_of(headers, kind)
    metadata, request_id = sender_metadata(headers)
    return _ScoringFields(metadata, request_id or inference_id(headers), kind, form)


def _form_of(headers: Headers, kind: str) -> ScoringForm:
    """Return the form of the reply to a request whose body is of a content type."""
    accept = headers.get("accept")
    return ScoringForm(
        kind=ScoringPath.INVOCATIONS,
        is_csv=requests.is_only_csv(accept),
        is_lines=kind == requests.LINES or requests.wants_lines(accept),
        can_stream=requests.accepts_lines(accept),
        returned=custom_attributes(headers),
    )
