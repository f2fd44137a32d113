"""The gRPC codec of TorchServe: functions between gRPC messages and calls.

`messages.py` has predictions, whose bodies are views; the protobuf library reads and writes the
others.

Source: docs/protocols/torchserve.md, "7. gRPC".
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from gateway.api.protocol import Handling, StreamCodec
from gateway.ir import errors
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, ModelRef, Origin
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits, check_management_size
from gateway.protocols.torchserve import management
from gateway.protocols.torchserve.errors import (
    ManagementRefused,
    grpc_error_class,
    grpc_status_of,
)
from gateway.protocols.torchserve.grpc import messages
from gateway.protocols.torchserve.management import TorchServeForm, form_of
from gateway.protocols.torchserve.messages import (
    DATA,
    LIMITATIONS,
    NEEDS,
    UPSTREAM_NEEDS,
    BodyReader,
    Item,
    requested_outputs,
    required_model,
    write_fields,
    write_reply,
    write_request,
)
from gateway.protocols.torchserve.models import BodyForms, TorchServeModel
from gateway.protocols.torchserve.options import read_options, row_style
from gateway.schema import torchserve_inference_pb2 as pb
from gateway.schema import torchserve_management_pb2
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.errors import clip, strip_traceback, unknown_method
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.heads.metadata import grpc_context, unary_request
from gateway.wire.json.values import short_document
from gateway.wire.protobuf.library import methods_of, parse, reply_of, serialized_files
from gateway.wire.protobuf.plain import ProtobufMessages, with_texts
from gateway.wire.protobuf.wire_format import WireError
from gateway.wire.rows.write import RowStyle
from gateway.wire.status_errors import StatusErrorForm

NAME: Final = "torchserve.grpc"
_ERRORS: Final = StatusErrorForm(codec=NAME, status=grpc_status_of, error_class=grpc_error_class)
_INFERENCE: Final = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
_MANAGEMENT: Final = "/org.pytorch.serve.grpc.management.ManagementAPIsService/"
PING_METHOD: Final = f"{_INFERENCE}Ping"
PREDICTIONS: Final = f"{_INFERENCE}Predictions"
STREAM: Final = f"{_INFERENCE}StreamPredictions"
SESSION: Final = f"{_INFERENCE}StreamPredictions2"
DESCRIBE: Final = f"{_MANAGEMENT}DescribeModel"
LIST: Final = f"{_MANAGEMENT}ListModels"

_FILES: Final = (pb.DESCRIPTOR, torchserve_management_pb2.DESCRIPTOR)
METHODS: Final = methods_of(*_FILES)
file_descriptors: Final = partial(serialized_files, *_FILES)


class GrpcCodec(StreamCodec[GrpcRequest, GrpcResponse], DeclaringCodec):
    """TorchServe over gRPC, in both directions.

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
    messages = ProtobufMessages(pb.DESCRIPTOR)

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._models = models = BodyForms(limits)
        self._reader = BodyReader(limits)
        read = partial(_read_prediction, models, self._reader, limits)
        write = partial(_write_prediction, row_style(read_options(options or {})))
        self.calls = {
            InferRequest: Handling(
                lambda call: unary_request(call, PREDICTIONS, _message(models, call)),
                read,
                write,
                send_on=partial(_send_whole, models, PREDICTIONS),
            ),
            StreamInferRequest: Handling(
                lambda call: unary_request(call, STREAM, _message(models, call.request)),
                read,
                write,
                send_on=partial(_send_whole, models, STREAM),
            ),
            ServerLiveRequest: Handling(_ping, by_status=_is_healthy),
            ServerReadyRequest: Handling(_ping, None, _write_health, _is_healthy),
            ModelReadyRequest: Handling(_ping, by_status=_is_healthy),
            RepositoryIndexRequest: Handling(
                encode_reply=lambda call, reply: _managed(management.list_document(call, reply))
            ),
            ServerStatusRequest: Handling(
                encode_reply=lambda call, reply: _managed(
                    management.description_document(call, reply)
                )
            ),
        }

    def declare(self, declared: Mapping[str, Any], /) -> None:
        """Replace what the configuration declares of models, by their names."""
        self._models.declare(declared)

    def decode_call(self, wire: GrpcRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request; bodies are views into its message.

        Raises:
            InvalidRequest: The message is wrong.
            ModelNotFound: The request names no model.
            TooLarge: A limit is exceeded.
            Unsupported: The method is not served.
        """
        method = wire.method
        if method in (PREDICTIONS, STREAM, SESSION):
            try:
                return self._decode_predictions(wire)
            except WireError as error:
                failed = errors.MalformedMessage(
                    f"message of {len(wire.view)} bytes to {method} cannot be read: {error}"
                )
                failed.origin = Origin(NAME, wire)
                raise failed from error
            except errors.GatewayError as error:
                error.origin = error.origin or Origin(NAME, wire)
                raise
        check_management_size(method.rpartition("/")[2], len(wire.view))
        if method == PING_METHOD:
            return ServerReadyRequest(context=grpc_context(wire, NAME, NEEDS))
        if method == LIST:
            listing = parse(wire.view, torchserve_management_pb2.ListModelsRequest)
            page = management.ModelListPage(
                str(max(listing.limit, 0)), str(max(listing.next_page_token, 0))
            )
            form = TorchServeForm(page=page)
            return RepositoryIndexRequest(context=grpc_context(wire, NAME, NEEDS, form))
        if method == DESCRIBE:
            described = parse(wire.view, torchserve_management_pb2.DescribeModelRequest)
            version = described.model_version
            version = "" if version == "all" else version
            called = _called(self._models, described.model_name, version)
            context = grpc_context(wire, NAME, NEEDS, TorchServeForm(called))
            return ServerStatusRequest(about=ModelRef(called.name), context=context)
        if method in METHODS:
            raise ManagementRefused(
                f"{method.rpartition('/')[2]} would change models: the management of TorchServe is "
                "read-only, because models are not loaded by a client's word"
            )
        raise unknown_method(method)

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> GrpcResponse:
        """Write one reply of a stream.

        Raises:
            GatewayError: The item is an error.
            Unsupported: The outputs do not fit the declared form.
        """
        form = form_of(call)
        if item.error is not None and form.is_session:
            return _failure(form, item.error, self._limits)
        return super().encode_item(call, item)

    def encode_late_error(
        self, call: StreamInferRequest, error: errors.GatewayError, /
    ) -> GrpcResponse:
        """Write an error that follows an item."""
        return self.encode_error(call, error)

    def encode_error(self, call: Call[Any] | None, error: errors.GatewayError, /) -> GrpcResponse:
        """Write an error as status and details; in a session of requests, as a message."""
        form = form_of(call)
        if form.is_session or (call is None and _is_of_session(error)):
            return _failure(form, error, self._limits)
        return _ERRORS.write(error, self._limits)

    def error_in(self, call: Call[Any], wire: GrpcResponse, /) -> errors.GatewayError | None:
        """Return the error of an upstream's status; None for a success."""
        return _ERRORS.read(call.model, wire)

    def decode_unread(self, wire: GrpcRequest, refused: errors.GatewayError, /) -> Call[Any] | None:
        """Return a prediction whose fields have another form than the model declares."""
        if wire.method not in (PREDICTIONS, STREAM) or not self.is_plain(wire):
            return None
        found = messages.REQUEST.read((wire.view,), self._limits)
        called = self._models.unread(found.name, found.version)
        form = TorchServeForm(called, sequence=found.sequence)
        context = grpc_context(wire, NAME, called.needs, form, whole=self.whole, refusal=refused)
        return _call_of(wire, InferRequest(model=called.model, context=context))

    def _decode_predictions(self, wire: GrpcRequest) -> Call[Any]:
        found = messages.REQUEST.read((wire.view,), self._limits)
        fields = {name: Item(view, place=f"input {name!r}") for name, view in found.inputs.items()}
        called = _called(self._models, found.name, found.version)
        is_session = wire.method == SESSION
        form = TorchServeForm(called, None, found.sequence, is_session)
        whole = "" if is_session else self.whole
        request = InferRequest(
            model=called.model,
            context=grpc_context(wire, NAME, called.needs, form, whole=whole),
            inputs=self._reader.fields(fields, called.form),
            outputs=requested_outputs(called.form),
            sequence=CallSequence(found.sequence) if found.sequence else None,
            batch_size=1 if called.form.asks_for_axis else None,
        )
        return _call_of(wire, request)


def _called(models: BodyForms, name: str, version: str) -> TorchServeModel:
    if not name:
        raise errors.ModelNotFound("the request names no model: expected model_name")
    return models.find(name, version)


def _failure(
    form: TorchServeForm, error: errors.GatewayError, limits: MessageLimits
) -> GrpcResponse:
    text = clip(strip_traceback(error.message), limits.error_text_bytes)
    status = messages.STATUS.write(
        code=grpc_status_of(error), message=text.encode("utf-8", "replace").decode()
    )
    return GrpcResponse(messages.RESPONSE.write(sequence_id=form.sequence, status=status))


def _write_prediction(
    style: RowStyle, call: InferRequest | StreamInferRequest, reply: InferResponse
) -> GrpcResponse:
    form = form_of(call)
    body = write_reply(reply, form.body, style)
    return GrpcResponse(messages.RESPONSE.write(prediction=body, sequence_id=form.sequence))


def _send_whole(models: BodyForms, method: str, call: Call[Any], message: Origin) -> GrpcRequest:
    """Return a client's request to a server, with the target's model."""
    model, form = required_model(call), message.form
    found = message.wire.message
    if form.called is None or model != form.called.model:
        found = with_texts(message.wire.view, {1: model.name, 2: models.version_of(model)})
    return unary_request(call, method, found)


def _message(models: BodyForms, call: InferRequest) -> Any:
    model = required_model(call)
    form = models.form(model.name)
    fields = (
        write_fields(call.inputs)
        if form.has_columns
        else {DATA: write_request(call, form, has_type=False)[1]}
    )
    return messages.REQUEST.write(
        model_name=model.name,
        model_version=models.version_of(model),
        input=fields.items(),
        sequence_id="" if call.sequence is None else str(call.sequence.id),
    )


def _read_prediction(
    models: BodyForms,
    reader: BodyReader,
    limits: MessageLimits,
    call: InferRequest | StreamInferRequest,
    wire: GrpcResponse,
) -> InferResponse:
    found = call.model or ModelRef("")
    item = Item(messages.RESPONSE.read((wire.view,), limits), place="response")
    outputs = reader.response(item, models.form(found.name))
    return InferResponse(model=found, outputs=outputs, batch_size=1)


def _call_of(wire: GrpcRequest, request: InferRequest) -> Call[Any]:
    """Return the call of a request by its method: one reply, or a stream."""
    if wire.method == PREDICTIONS:
        return request
    return StreamInferRequest(model=request.model, context=request.context, request=request)


def _ping(call: Call[bool]) -> GrpcRequest:
    return unary_request(call, PING_METHOD, ())


def _write_health(_call: ServerReadyRequest, reply: bool) -> GrpcResponse:
    text = management.HEALTHY if reply else management.UNHEALTHY
    return reply_of(pb.TorchServeHealthResponse(health=text.decode()))


def _managed(document: bytes) -> GrpcResponse:
    return reply_of(torchserve_management_pb2.ManagementResponse(msg=document.decode()))


def _is_of_session(error: errors.GatewayError) -> bool:
    """Return whether *error* is of a message of a session, which could not be read."""
    origin = error.origin
    is_own = origin is not None and origin.codec == NAME and isinstance(origin.wire, GrpcRequest)
    return is_own and origin is not None and origin.wire.method == SESSION


def _is_healthy(wire: GrpcResponse) -> bool:
    if wire.status is not GrpcStatus.OK:
        return False
    try:
        message = parse(wire.view, pb.TorchServeHealthResponse)
    except errors.MalformedMessage:
        return False
    return short_document(memoryview(message.health.encode())).get("status") == "Healthy"
