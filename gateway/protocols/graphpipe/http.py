"""The GraphPipe HTTP codec: a table of functions between HTTP messages and calls.

A POST has one bare message, whatever its content type is; GET and HEAD return metadata as JSON.
Clients expect inference errors in responses of status 200, and cannot read errors in metadata
responses, so errors of metadata always have an HTTP status.

Source: docs/protocols/graphpipe.md, "6. Errors", "7. HTTP", "10. Upstreams".
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from gateway.api.protocol import Codec, Handling
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import (
    GatewayError,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import ModelMetadata
from gateway.protocols.graphpipe import metadata_json, translate
from gateway.protocols.graphpipe.errors import OK, text_of
from gateway.protocols.graphpipe.flatbuffer_reader import FlatbufferMessage
from gateway.protocols.graphpipe.flatbuffer_writer import METADATA_REQUEST, error_response
from gateway.protocols.graphpipe.messages import open_request
from gateway.protocols.graphpipe.options import CONTROL, STATUS, read_options
from gateway.protocols.graphpipe.paths import (
    IS_ALIVE,
    IS_READY,
    PATTERN,
    PREFIX,
    find_model,
    model_path,
    no_model,
)
from gateway.protocols.graphpipe.translate import UpstreamFault
from gateway.wire.errors import (
    TOO_MANY_REQUESTS,
    MethodNotAllowed,
    extra_headers,
    is_error_status,
)
from gateway.wire.heads.metadata import get_request, http_context, http_headers
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse
from gateway.wire.opaque import passed_error_of, passed_request, passed_response

NAME: Final = "graphpipe.http"
METHODS: Final = "GET, HEAD, POST"

_BYTES: Final = Headers((("Content-Type", "application/octet-stream"),))
_JSON: Final = Headers((("Content-Type", "application/json"),))
_TEXT: Final = Headers((("Content-Type", "text/plain; charset=utf-8"),))
_UNHEALTHY: Final = 503
_HEALTH_PATHS: Final[Mapping[str, type[Call[bool]]]] = {
    IS_ALIVE: ServerLiveRequest,
    IS_READY: ServerReadyRequest,
}


class RequestKind(enum.Enum):
    """The kind of a request, which determines the form of its response."""

    INFER = "infer"
    METADATA = "metadata"
    SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """The parts of a request that its response depends on.

    Attributes:
        outputs: Names of the requested outputs, repeated and empty ones too.
        model: The model that the client named; None where it could not be read.
    """

    kind: RequestKind
    outputs: tuple[str, ...] = ()
    model: ModelRef | None = None


class FlatbufferMessages:
    """How messages pass: positions in a buffer leave readers no choice, and all were checked."""

    def is_plain(self, wire: HttpRequest, /) -> bool:
        """Return whether all readers of a request read the same."""
        return wire.method == "POST"

    def passed(self, reply: Origin, /) -> HttpResponse:
        """Return the response of a server as the client gets it."""
        return passed_response(reply)


class HttpCodec(Codec[HttpRequest, HttpResponse]):
    """GraphPipe over HTTP, in both directions.

    Args:
        limits: The limits of a message.
        options: The checked options of its listener or upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    limitations = translate.LIMITATIONS
    messages = FlatbufferMessages()

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._settings = read_options(options or {})
        self.needs = translate.needs_of(self._settings)
        self.whole = "" if self._settings.changes_messages else NAME
        self._read = read = translate.reply_reader(NAME, self._settings, limits, self.whole)
        # One path of one model has no index.
        ask_index = None if self._settings.path else partial(get_request, path=PREFIX)
        live = Handling(self._question, None, _encode_health, lambda _wire: True)
        ready = replace(live, by_status=_has_no_fault)
        if self._settings.health == CONTROL:
            live = Handling(partial(get_request, path=IS_ALIVE), None, _encode_health, _is_ok)
            ready = replace(live, encode_call=partial(get_request, path=IS_READY))
        self.calls = {
            InferRequest: Handling(
                lambda call: self._post(call, translate.encode_infer(call, self._settings)),
                self._read_inference,
                _encode_infer,
            ),
            ModelMetadataRequest: Handling(self._question, read, _encode_metadata),
            RepositoryIndexRequest: Handling(
                ask_index,
                lambda _call, wire: metadata_json.read_index(wire.view, limits),
                lambda _call, reply: _json(metadata_json.show_index(reply)),
            ),
            ServerLiveRequest: live,
            ServerReadyRequest: ready,
            ModelReadyRequest: Handling(self._question, read, by_status=_is_not_ready),
            ServerMetadataRequest: Handling(self._question, read),
        }

    def decode_call(self, wire: HttpRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request; inputs are views of its body.

        Raises:
            InvalidRequest: Path, method or message is wrong.
            NotFound: The path names no model, and there is no default.
            TooLarge: A limit is exceeded.
        """
        if wire.method == "POST":
            return self._decode_post(wire)
        if wire.method in {"GET", "HEAD"}:
            return self._decode_get(wire)
        raise MethodNotAllowed(
            f"method {wire.method[:32]!r} on a GraphPipe path: expected {METHODS} ({PATTERN})",
            allow=METHODS,
        )

    def send_on(self, call: Call[Any], message: Origin, /) -> HttpRequest:
        """Write a client's request to a server, with the path of the target's model.

        Raises:
            Unsupported: It asks for metadata of a model that has another name here.
        """
        if message.form.kind is RequestKind.METADATA and call.model != message.form.model:
            raise Unsupported("metadata have the name of the model", model=call.model)
        found = passed_request(call, message, self._path(call))
        # The query of the client may name its model.
        return HttpRequest("POST", found.path, "", found.headers, found.body, found.deadline)

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        """Write *error*: of an inference as a message with status 200, unless an option differs.

        Errors before the message was read, and those of other calls, have an HTTP status and text.
        Never raises.
        """
        passed = passed_error_of(call, error, self._limits)
        if passed is not None:
            return passed
        number, text = translate.error_message(error, NAME, self._limits)
        is_message = self._settings.errors != STATUS and _is_inference(call, error)
        if is_message and not isinstance(error, TOO_MANY_REQUESTS):
            return HttpResponse(OK, _BYTES, (error_response(number, text),))
        extra = extra_headers(error)
        headers = Headers((*_TEXT.pairs, *extra)) if extra else _TEXT
        return HttpResponse(number, headers, (f"{text}\n".encode(),))

    def error_in(self, call: Call[Any], wire: HttpResponse, /) -> GatewayError | None:
        """Return the error of a response with another status than 200; None for a success."""
        if wire.status == OK:
            return None
        if not is_error_status(wire.status):
            return UpstreamProtocolError(
                f"upstream responded with HTTP status {wire.status}: expected {OK}; "
                "redirections are not followed",
                model=call.model,
            )
        text = _error_in(wire.view, self._limits) or text_of(
            wire.view, self._limits.error_text_bytes
        )
        fault = UpstreamFault(wire.status, text or f"HTTP status {wire.status} without a text")
        return fault.error_of(call, Origin(NAME, wire, fault.error, whole=self.whole))

    def _decode_post(self, wire: HttpRequest) -> Call[Any]:
        kind = RequestKind.INFER
        try:
            message = FlatbufferMessage(wire.view, self._limits)
            at = open_request(message)
            if at is None:
                kind = RequestKind.METADATA
            model = find_model(wire.path, wire.query, self._settings.default_model, self._limits)
            if model is None:
                raise no_model(wire.path)
            if at is None:
                form = ErrorFormat(kind, model=model)
                return ModelMetadataRequest(model=model, context=_context(wire, form, self.whole))
            return translate.decode_infer(
                message,
                at,
                model,
                lambda names: _context(wire, ErrorFormat(kind, names, model), self.whole),
                self._settings,
            )
        except GatewayError as error:
            # `encode_error` needs to know that there was a message, and its kind.
            error.origin = Origin(NAME, wire, ErrorFormat(kind))
            raise

    def _decode_get(self, wire: HttpRequest) -> Call[Any]:
        context = _context(wire, ErrorFormat(RequestKind.SHOWN))
        health = _HEALTH_PATHS.get(wire.path)
        if health is not None:
            return health(context=context)
        model = find_model(wire.path, wire.query, self._settings.default_model, self._limits)
        if model is not None:
            return ModelMetadataRequest(model=model, context=context)
        if wire.path.rstrip("/") in {"", PREFIX}:
            return RepositoryIndexRequest(context=context)
        raise no_model(wire.path)

    def _post(self, call: Call[Any], body: list[Buffer] | tuple[Buffer, ...]) -> HttpRequest:
        headers = Headers((*_BYTES.pairs, *http_headers(call.context)))
        return HttpRequest("POST", self._path(call), "", headers, body, call.context.deadline)

    def _path(self, call: Call[Any]) -> str:
        if self._settings.path:
            return self._settings.path
        return PREFIX if call.model is None else model_path(call.model)

    def _question(self, call: Call[Any]) -> HttpRequest:
        return self._post(call, (METADATA_REQUEST,))

    def _read_inference(self, call: InferRequest, wire: HttpResponse) -> Any:
        names = _form_of(call).outputs
        if self.sends_on(call) and len(set(names)) < len(names):  # the server repeats them
            call = call.changed(outputs=())
        return self._read(call, wire)


def _is_ok(wire: HttpResponse) -> bool:
    return wire.status == OK


def _has_no_fault(wire: HttpResponse) -> bool:
    # A gateway without a default model responds with 404, and is ready nevertheless.
    return wire.status < 500  # noqa: PLR2004


def _is_not_ready(wire: HttpResponse) -> bool | None:
    return False if translate.is_not_ready(wire.status) else None


def _encode_infer(call: InferRequest, reply: InferResponse) -> HttpResponse:
    return HttpResponse(OK, _BYTES, translate.encode_infer_reply(reply, _form_of(call).outputs))


def _encode_metadata(call: ModelMetadataRequest, reply: ModelMetadata) -> HttpResponse:
    if _form_of(call).kind is RequestKind.SHOWN:
        return _json(metadata_json.show_metadata(reply))
    return HttpResponse(OK, _BYTES, (translate.encode_metadata(reply),))


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(OK, _JSON, (body,), is_compressible=True)


def _encode_health(_call: Call[bool], reply: bool) -> HttpResponse:
    if reply:
        return HttpResponse(OK, _TEXT, (b"ok\n",))
    return HttpResponse(_UNHEALTHY, _TEXT, (b"not ready\n",))


def _error_in(body: memoryview, limits: MessageLimits) -> str:
    """Return the text of the error message in *body*; "" when it is something else."""
    try:
        translate.decode_metadata(FlatbufferMessage(body, limits))
    except UpstreamFault as fault:
        return fault.error.text
    except GatewayError:
        return ""
    return ""


def _is_inference(call: Call[Any] | None, error: GatewayError) -> bool:
    if call is not None:
        return isinstance(call, InferRequest)
    origin = error.origin
    form = None if origin is None or origin.codec != NAME else origin.form
    return isinstance(form, ErrorFormat) and form.kind is RequestKind.INFER


def _form_of(call: Call[Any]) -> ErrorFormat:
    """Return the form of the response to *call*: a message for a call of another codec."""
    origin = call.context.origin
    if origin is not None and origin.codec == NAME and isinstance(origin.form, ErrorFormat):
        return origin.form
    outputs = call.outputs if isinstance(call, InferRequest) else ()
    return ErrorFormat(RequestKind.INFER, tuple([output.name for output in outputs]))


def _context(wire: HttpRequest, form: ErrorFormat, whole: str = "") -> Context:
    return http_context(wire, NAME, translate.REPLY_NEEDS, form, whole)
