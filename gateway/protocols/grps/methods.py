"""The methods of grps to and from calls of the IR, for all carriers.

gRPC and brpc have the same eight methods, and HTTP has a path for each.  This module creates the
Status in a response, and checks the Status in that of an upstream.

Source: docs/protocols/grps.md, "2. Model keys", "7. Methods and health", "16. Upstreams".
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace  # noqa: TID251  # of a reply, not of a call

from gateway.api.protocol import Handling, unsupported
from gateway.ir import errors
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
    ServerStatusRequest,
    ServerSwitchRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Need, Origin
from gateway.ir.limits import MessageLimits, check_name
from gateway.ir.metadata import ModelMetadata, ServerMetadata
from gateway.ir.tensors.tensor import Tensor
from gateway.protocols.grps.content import (
    ReplyFormat,
    reply_content,
    reply_format_of,
    reply_message,
    request_content,
    request_message,
)
from gateway.protocols.grps.errors import OK, STATUS_CODE, error_class_of_status, status_code_of
from gateway.protocols.grps.messages import (
    SUCCESS,
    ContentFormat,
    Flag,
    GrpsMessage,
    GrpsStatus,
    failure,
)
from gateway.protocols.grps.metadata import (
    lists_model,
    read_model,
    read_models,
    write_model,
    write_server,
)
from gateway.protocols.grps.options import LIVE, GrpsOptions
from gateway.wire.errors import clip, is_error_status, strip_traceback

REPLY_NEEDS: Final = frozenset({Need.DATATYPES, Need.SHAPES, Need.WIDENED})
"""What a reply to a client must have, and which substitutes its inputs may have."""

PREDICT: Final = "Predict"
PREDICT_STREAMING: Final = "PredictStreaming"
ONLINE, OFFLINE = "Online", "Offline"
LIVENESS, READINESS = "CheckLiveness", "CheckReadiness"
SERVER_METADATA, MODEL_METADATA = "ServerMetadata", "ModelMetadata"

METHODS: Final = (
    PREDICT,
    PREDICT_STREAMING,
    ONLINE,
    OFFLINE,
    LIVENESS,
    READINESS,
    SERVER_METADATA,
    MODEL_METADATA,
)

HEALTH: Final = (LIVENESS, READINESS)
"""The methods that ask for the health of the server."""

SERVER: Final = "grps"

NEEDS: Final = frozenset({Need.DATATYPES, Need.WIDENED})
"""What a request to an upstream must have, and which substitutes its outputs may have.

All names may be missing, and the shape of a text that is sent as text.
"""

_NOT_READY: Final = "Service Unavailable"
_UNREADY_CODES: Final = frozenset({STATUS_CODE[errors.ErrorCode.NOT_READY], 403})
_HEALTH: Final = frozenset({ServerLiveRequest, ServerReadyRequest})

_PLAIN: Final[Mapping[str, type[Call[Any]]]] = {
    LIVENESS: ServerLiveRequest,
    READINESS: ServerReadyRequest,
    SERVER_METADATA: ServerStatusRequest,
}


def decode_method(
    method: str,
    message: GrpsMessage,
    context: Context,
    settings: GrpsOptions,
    limits: MessageLimits,
) -> Call[Any]:
    """Return the call of a client's *method* with *message*.

    Args:
        method: One of `METHODS`.
        message: With the key of the model, "" for the listener's default.
        context: With the origin that the response needs.
        settings: The listener's.
        limits: The limits of names and counts.

    Raises:
        InvalidRequest: Data or a name is missing or wrong.
        ModelNotFound: No model is named, and the listener has no default.
        TooLarge: A limit is exceeded.
    """
    if method in (PREDICT, PREDICT_STREAMING):
        model = model_of(message.model, settings, limits)
        inputs, parameters = request_content(message, limits)
        request = InferRequest(model=model, context=context, inputs=inputs, parameters=parameters)
        if method == PREDICT:
            return request
        return StreamInferRequest(model=model, context=context, request=request)
    if method == MODEL_METADATA:
        return ModelMetadataRequest(model=_asked_model(message, settings, limits), context=context)
    if method in (ONLINE, OFFLINE):
        return ServerSwitchRequest(
            is_online=method == ONLINE, is_allowed=settings.switch, context=context
        )
    return _PLAIN[method](context=context)


def model_of(key: str, settings: GrpsOptions, limits: MessageLimits) -> ModelRef:
    """Return the model of a grps key on this listener.

    Raises:
        ModelNotFound: It is empty, and the listener has no default.
        InvalidRequest: It has characters that are not allowed.
        TooLarge: It is too long.
    """
    if not key:
        if settings.default_model is None:
            raise errors.ModelNotFound(
                "the request names no model and this listener has no default model"
            )
        return settings.default_model
    check_name("model", key, limits.model_name_bytes, "model_name_bytes")
    return settings.models.get(key) or ModelRef(key)


class MethodHandling(NamedTuple):
    """How one kind of call is a method of grps; None for what grps has no message for.

    Attributes:
        method: Returns the method, from the call and the settings of the upstream.
        ask: Returns the message to an upstream, from the same.
        read: Returns the reply, from `MethodResponse`.
        write: Returns the message to a client, from the call, the reply and its form.
    """

    method: Callable[[Any, GrpsOptions], str]
    ask: Callable[[Any, GrpsOptions], GrpsMessage] | None = None
    read: Callable[["MethodResponse"], Any] | None = None
    write: Callable[[Any, Any, ReplyFormat], GrpsMessage] | None = None


class MethodResponse(NamedTuple):
    """An upstream's response, whose Status is a success.

    Attributes:
        call: The request.
        message: The response.
        origin: Of the response, for errors and replies.
        settings: The upstream's.
        limits: The limits of names and counts.
    """

    call: Any
    message: GrpsMessage
    origin: Origin
    settings: GrpsOptions
    limits: MessageLimits

    @property
    def text(self) -> str:
        """The metadata in it. Raises MalformedMessage where it has none."""
        if self.message.form is not ContentFormat.STR_DATA:
            raise errors.MalformedMessage("response has no str_data, which contains the metadata")
        return self.message.text


def encode_method_reply(call: Call[Any], reply: Any, reply_format: ReplyFormat) -> GrpsMessage:
    """Return the response to *call* as a message.

    Raises:
        Unsupported: grps has no such response, or no form for it.
    """
    found = CALLS.get(type(call))
    if found is None or found.write is None:
        raise unsupported(call, "grps")
    return found.write(call, reply, reply_format)


def failure_of(error: errors.GatewayError, limits: MessageLimits) -> GrpsMessage:
    """Return *error* as a message; that of an upstream of grps is unchanged."""
    origin = error.origin
    code, words = status_code_of(error), error.message
    if origin is not None and isinstance(origin.form, GrpsStatus):
        words = origin.form.msg
        if is_error_status(origin.form.code):
            code = origin.form.code
    return failure(code, clip(words, limits.error_text_bytes))


class GrpsCarrier(NamedTuple):
    """What a carrier does with the messages of methods.

    Attributes:
        codec: The name of its codec.
        ask: Returns the request to an upstream, from the call, its method and its message.
        read: Returns the message in an upstream's response, from the call and the response.
        answer: Returns the response to a client, from the call and its message.
    """

    codec: str
    ask: Callable[[Any, str, GrpsMessage], Any]
    read: Callable[[Any, Any], GrpsMessage]
    answer: Callable[[Any, GrpsMessage], Any] | None = None


def handlings(
    carrier: GrpsCarrier, settings: GrpsOptions, limits: MessageLimits
) -> dict[type[Call[Any]], Handling]:
    """Return how a carrier handles each kind of call."""
    return {kind: _handling(found, carrier, settings, limits) for kind, found in CALLS.items()}


def _handling(
    found: MethodHandling, carrier: GrpsCarrier, settings: GrpsOptions, limits: MessageLimits
) -> Handling:
    method, ask, write, answer = found.method, found.ask, found.write, carrier.answer

    def read_reply(call: Call[Any], wire: Any) -> Any:
        message = carrier.read(call, wire)
        # Only a message that is sent on asks whether the origin is whole.
        origin = Origin(carrier.codec, wire, whole=carrier.codec)
        return decode_method_reply(call, message, origin, settings, limits)

    return Handling(
        None
        if ask is None
        else lambda call: carrier.ask(call, method(call, settings), ask(call, settings)),
        None if found.read is None else read_reply,
        None
        if answer is None or write is None
        else lambda call, reply: answer(call, write(call, reply, reply_format_of(call))),
    )


def _server_name(model: ModelRef | None, settings: GrpsOptions) -> str:
    """Return the server's plain name of *model*, which has no version, unlike for inference."""
    if model is None:
        return ""
    key = model_key(model, settings)
    configured = model.name in settings.keys or f"{model.name}/{model.version}" in settings.keys
    return (_split(key, model.name)[0] or model.name) if configured else model.name


def keyed(message: GrpsMessage, key: str) -> GrpsMessage:
    """Return *message* for the model of this grps key."""
    return GrpsMessage(
        form=message.form,
        model=key,
        data=message.data,
        text=message.text,
        tensors=message.tensors,
        entries=message.entries,
    )


def model_key(model: ModelRef | None, settings: GrpsOptions) -> str:
    """Return the grps key of *model*: the configured one, else "name-version", else the name.

    A key that is configured for a name serves requests without a version, and those for the
    version in the key.

    Raises:
        VersionNotFound: The configured key of the name contains another version, or none.
    """
    if model is None:
        return ""
    if not model.version:
        return settings.keys.get(model.name, model.name)
    known = settings.keys.get(f"{model.name}/{model.version}")
    if known is not None:
        return known
    known = settings.keys.get(model.name)
    if known is None:
        return f"{model.name}-{model.version}"
    version = _split(known, model.name)[1]
    if version != model.version:
        raise errors.VersionNotFound(
            f"model {model.name!r} has no version {model.version!r}: its key {known!r} names "
            f"{f'version {version!r}' if version else 'no version'}; expected a key for "
            f"'{model.name}/{model.version}' (keys)",
            model=model,
        )
    return known


def _split(key: str, name: str) -> tuple[str, str]:
    """Return the name and the version in the configured key of model *name*."""
    if key.startswith(f"{name}-"):
        return name, key[len(name) + 1 :]
    first, _, last = key.rpartition("-")
    return (first, last) if first and last[:1].isdigit() else (key, "")


def decode_method_reply(
    call: Call[Any],
    message: GrpsMessage,
    origin: Origin,
    settings: GrpsOptions,
    limits: MessageLimits,
) -> Any:
    """Return the reply to *call* in an upstream's response, see `MethodResponse`.

    Raises:
        GatewayError: The error in its Status.
        MalformedMessage: The response does not fit this call.
    """
    status = message.status
    if type(call) in _HEALTH and status is not None and status.code in _UNREADY_CODES:
        return False
    raise_failure(call, status, origin)
    found = CALLS.get(type(call))
    if found is None or found.read is None:
        raise unsupported(call, "grps")
    return found.read(MethodResponse(call, message, origin, settings, limits))


def _model_metadata(
    model: ModelRef, text: str, settings: GrpsOptions, limits: MessageLimits
) -> ModelMetadata:
    """Return the metadata of *model*; a configured key counts as the version in the request."""
    found = read_model(text, model.name, limits)
    version = model.version if f"{model.name}/{model.version}" in settings.keys else ""
    if not version and model.name in settings.keys:
        version = _split(settings.keys[model.name], model.name)[1]
    return found.changed(versions=(version,)) if version else found


def raise_failure(call: Call[Any], status: GrpsStatus | None, origin: Origin) -> None:
    """Raise the error in an upstream's Status, unless it is a success.

    A response without a Status is a success: C++ servers send none with their metadata.

    Raises:
        GatewayError: The Status is a failure.
    """
    if status is None or (status.flag != Flag.FAILURE and status.code in (0, OK)):
        return
    reason = strip_traceback(status.msg)
    text = reason or f"upstream responded with the code {status.code} and no text"
    kind = error_class_of_status(status.code, text)
    reduced = GrpsStatus(status.code, reason, status.flag)
    raise kind(text, model=call.model, origin=replace(origin, form=reduced))


def _asked_model(message: GrpsMessage, settings: GrpsOptions, limits: MessageLimits) -> ModelRef:
    if message.form is not ContentFormat.STR_DATA or not message.text:
        raise errors.InvalidRequest("no model name: expected the plain name in str_data")
    return model_of(message.text, settings, limits)


def _text(words: str) -> GrpsMessage:
    return GrpsMessage(status=SUCCESS, form=ContentFormat.STR_DATA, text=words)


def _infer_reply(response: MethodResponse) -> InferResponse:
    call = response.call
    outputs, parameters = reply_content(response.message, response.settings.output, response.limits)
    return InferResponse(
        model=call.model or ModelRef(""),
        outputs=_selected(call, outputs),
        id=call.id,
        parameters=parameters,
        origin=response.origin,
    )


def _item(response: MethodResponse) -> InferResponse:
    return replace(_infer_reply(response._replace(call=response.call.request)), is_final=False)


def _selected(call: InferRequest, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the requested outputs, since grps servers send all.

    Raises:
        MalformedMessage: An output is missing.
    """
    if not call.outputs or not all(tensor.name for tensor in outputs):
        return outputs
    known = {tensor.name: tensor for tensor in outputs}
    missing = [output.name for output in call.outputs if output.name not in known]
    if missing:
        there = ", ".join(map(repr, known)) or "none"
        raise errors.MalformedMessage(
            f"response lacks the requested output {missing[0]!r}: it has {there}"
        )
    return tuple([known[output.name] for output in call.outputs])


def _always(method: str) -> Callable[[Any, GrpsOptions], str]:
    return lambda _call, _settings: method


def _nothing(_call: Call[Any], _settings: GrpsOptions) -> GrpsMessage:
    return GrpsMessage()


def _inference(call: InferRequest, settings: GrpsOptions) -> GrpsMessage:
    message = request_message(call, settings.form_of(call.model), widen=settings.widen)
    return keyed(message, model_key(call.model, settings))


def _of_any_model(call: ModelReadyRequest, settings: GrpsOptions) -> GrpsMessage:
    model_key(call.model, settings)  # refuses a version without a key
    return GrpsMessage()


def _server(response: MethodResponse) -> ServerMetadata:
    _ = response.text  # a response without metadata is none
    return ServerMetadata(SERVER, "")


def _written(_call: Call[Any], reply: InferResponse, form: ReplyFormat) -> GrpsMessage:
    return reply_message(form, reply)


def _health(_call: Call[bool], reply: bool, _form: ReplyFormat) -> GrpsMessage:
    if reply:
        return GrpsMessage(status=SUCCESS)
    return failure(STATUS_CODE[errors.ErrorCode.NOT_READY], _NOT_READY)


_SERVER_METADATA = _always(SERVER_METADATA)
CALLS: Final[Mapping[type[Call[Any]], MethodHandling]] = {
    InferRequest: MethodHandling(_always(PREDICT), _inference, _infer_reply, _written),
    StreamInferRequest: MethodHandling(
        _always(PREDICT_STREAMING),
        lambda call, settings: _inference(call.request, settings),
        _item,
        _written,
    ),
    ServerLiveRequest: MethodHandling(_always(LIVENESS), _nothing, lambda _: True, _health),
    ServerReadyRequest: MethodHandling(
        lambda _call, settings: LIVENESS if settings.readiness == LIVE else READINESS,
        _nothing,
        lambda _: True,
        _health,
    ),
    ServerSwitchRequest: MethodHandling(
        lambda call, _settings: ONLINE if call.is_online else OFFLINE,
        _nothing,
        lambda _: None,
        lambda _call, _reply, _form: GrpsMessage(status=SUCCESS),
    ),
    ServerMetadataRequest: MethodHandling(_SERVER_METADATA, _nothing, _server),
    ServerStatusRequest: MethodHandling(
        _SERVER_METADATA, write=lambda _call, reply, _form: _text(write_server(reply))
    ),
    RepositoryIndexRequest: MethodHandling(
        _SERVER_METADATA, _nothing, lambda response: read_models(response.text, response.limits)
    ),
    ModelMetadataRequest: MethodHandling(
        _always(MODEL_METADATA),
        lambda call, settings: GrpsMessage(
            form=ContentFormat.STR_DATA, text=_server_name(call.model, settings)
        ),
        lambda response: _model_metadata(
            response.call.model or ModelRef(""), response.text, response.settings, response.limits
        ),
        lambda call, reply, _form: _text(
            write_model(reply, "" if call.model is None else call.model.version)
        ),
    ),
    # Readiness is the server's; its metadata lists the models.
    ModelReadyRequest: MethodHandling(
        _SERVER_METADATA,
        _of_any_model,
        lambda response: lists_model(
            response.text, model_key(response.call.model, response.settings), response.limits
        ),
    ),
}
"""How each kind of call is a method."""
