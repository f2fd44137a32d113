"""The gRPC codec of TorchServe: functions between gRPC messages and calls.

`messages.py` has predictions, whose bodies are views; the protobuf library reads and writes the
others.

Source: docs/protocols/torchserve.md, "7. gRPC".
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct

from gateway.api.protocol import Handling, StreamCodec, unsupported
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
from gateway.ir.context import CallSequence, Context, ModelRef, Need, Origin
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits, check_management_size
from gateway.protocols.torchserve import management
from gateway.protocols.torchserve.declarations import NO_FORM, BodyForm
from gateway.protocols.torchserve.errors import (
    ManagementRefused,
    grpc_error_class,
    grpc_status_of,
)
from gateway.protocols.torchserve.grpc import messages
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
from gateway.protocols.torchserve.models import BodyForms, TorchServeModel, client_version
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


class PredictionForm(Struct, frozen=True):
    """What the response to a request needs.

    Attributes:
        called: The model; None for a question about the server.
        sequence: Id of the sequence; "" for none.
        is_session: The request is one of a stream, whose other requests an error leaves alone.
        page: The part of the list of models.
    """

    called: TorchServeModel | None = None
    sequence: str = ""
    is_session: bool = False
    page: management.ModelListPage | None = None


_PLAIN: Final = PredictionForm()


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
        self._style = row_style(read_options(options or {}))
        self._models = BodyForms(limits)
        self._reader = BodyReader(limits)
        self.calls = {
            InferRequest: Handling(
                self._predict,
                self._prediction,
                self._write_prediction,
                send_on=partial(self._sent, PREDICTIONS),
            ),
            StreamInferRequest: Handling(
                self._stream,
                self._prediction,
                self._write_prediction,
                send_on=partial(self._sent, STREAM),
            ),
            ServerLiveRequest: Handling(_ping, by_status=_is_healthy),
            ServerReadyRequest: Handling(_ping, None, _write_health, _is_healthy),
            ModelReadyRequest: Handling(_ping, by_status=_is_healthy),
            RepositoryIndexRequest: Handling(encode_reply=_write_list),
            ServerStatusRequest: Handling(encode_reply=_write_description),
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
            return ServerReadyRequest(context=_context(wire, _PLAIN))
        if method == LIST:
            listing = parse(wire.view, torchserve_management_pb2.ListModelsRequest)
            page = management.ModelListPage(
                str(max(listing.limit, 0)), str(max(listing.next_page_token, 0))
            )
            return RepositoryIndexRequest(context=_context(wire, PredictionForm(page=page)))
        if method == DESCRIBE:
            described = parse(wire.view, torchserve_management_pb2.DescribeModelRequest)
            version = described.model_version
            called = self._called(described.model_name, "" if version == "all" else version)
            context = _context(wire, PredictionForm(called))
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
        form = _form_of(call)
        if item.error is not None and form.is_session:
            return self._failure(form, item.error)
        return super().encode_item(call, item)

    def encode_late_error(
        self, call: StreamInferRequest, error: errors.GatewayError, /
    ) -> GrpcResponse:
        """Write an error that follows an item."""
        return self.encode_error(call, error)

    def encode_error(self, call: Call[Any] | None, error: errors.GatewayError, /) -> GrpcResponse:
        """Write an error as status and details; in a session of requests, as a message."""
        form = _PLAIN if call is None else _form_of(call)
        if form.is_session or (call is None and _is_of_session(error)):
            return self._failure(form, error)
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
        form = PredictionForm(called, found.sequence)
        context = grpc_context(wire, NAME, called.needs, form, whole=self.whole, refusal=refused)
        return _call_of(wire, InferRequest(model=called.model, context=context))

    def _sent(self, method: str, call: Call[Any], message: Origin) -> GrpcRequest:
        """Return a client's request to a server, with the target's model."""
        model, form = required_model(call), message.form
        found = message.wire.message
        if form.called is None or model != form.called.model:
            version = client_version(model.version, self._models.form(model.name))
            found = with_texts(message.wire.view, {1: model.name, 2: version})
        return unary_request(call, method, found)

    def _called(self, name: str, version: str) -> TorchServeModel:
        if not name:
            raise errors.ModelNotFound("the request names no model: expected model_name")
        return self._models.find(name, version)

    def _decode_predictions(self, wire: GrpcRequest) -> Call[Any]:
        found = messages.REQUEST.read((wire.view,), self._limits)
        fields = {name: Item(view, place=f"input {name!r}") for name, view in found.inputs.items()}
        called = self._called(found.name, found.version)
        form = PredictionForm(called, found.sequence, wire.method == SESSION)
        whole = "" if wire.method == SESSION else self.whole
        request = InferRequest(
            model=called.model,
            context=grpc_context(wire, NAME, called.needs, form, whole=whole),
            inputs=self._reader.fields(fields, called.form),
            outputs=requested_outputs(called.form),
            sequence=CallSequence(found.sequence) if found.sequence else None,
            batch_size=1 if called.form.asks_for_axis else None,
        )
        return _call_of(wire, request)

    def _failure(self, form: PredictionForm, error: errors.GatewayError) -> GrpcResponse:
        text = clip(strip_traceback(error.message), self._limits.error_text_bytes)
        status = messages.STATUS.write(
            code=grpc_status_of(error), message=text.encode("utf-8", "replace").decode()
        )
        return GrpcResponse(messages.RESPONSE.write(sequence_id=form.sequence, status=status))

    def _write_prediction(
        self, call: InferRequest | StreamInferRequest, reply: InferResponse
    ) -> GrpcResponse:
        form = _form_of(call)
        declared = NO_FORM if form.called is None else form.called.form
        body = write_reply(reply, declared, self._style)
        message = messages.RESPONSE.write(prediction=body, sequence_id=form.sequence)
        return GrpcResponse(message)

    def _predict(self, call: InferRequest) -> GrpcRequest:
        return unary_request(call, PREDICTIONS, self._message(call))

    def _stream(self, call: StreamInferRequest) -> GrpcRequest:
        return unary_request(call, STREAM, self._message(call.request))

    def _message(self, call: InferRequest) -> Any:
        model = required_model(call)
        form: BodyForm = self._models.form(model.name)
        version = client_version(model.version, form) if model.version else ""
        sequence = "" if call.sequence is None else str(call.sequence.id)
        fields = (
            write_fields(call.inputs)
            if form.has_columns
            else {DATA: write_request(call, form, has_type=False)[1]}
        )
        return messages.REQUEST.write(
            model_name=model.name, model_version=version, input=fields.items(), sequence_id=sequence
        )

    def _prediction(
        self, call: InferRequest | StreamInferRequest, wire: GrpcResponse
    ) -> InferResponse:
        found = call.model or ModelRef("")
        item = Item(messages.RESPONSE.read((wire.view,), self._limits), place="response")
        outputs = self._reader.response(item, self._models.form(found.name))
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


def _write_list(call: RepositoryIndexRequest, reply: Any) -> GrpcResponse:
    page = _form_of(call).page
    if page is None:
        raise unsupported(call, NAME)
    return _managed(management.list_document(reply, page))


def _write_description(call: ServerStatusRequest, reply: Any) -> GrpcResponse:
    called = _form_of(call).called
    if called is None:
        raise unsupported(call, NAME)
    return _managed(management.description_document(called, reply))


def _managed(document: bytes) -> GrpcResponse:
    return reply_of(torchserve_management_pb2.ManagementResponse(msg=document.decode()))


def _context(wire: GrpcRequest, form: PredictionForm, needs: frozenset[Need] = NEEDS) -> Context:
    return grpc_context(wire, NAME, needs, form)


def _form_of(call: Call[Any]) -> PredictionForm:
    origin = call.context.origin
    is_own = origin is not None and origin.codec == NAME
    form = origin.form if is_own and origin is not None else None
    return form if isinstance(form, PredictionForm) else _PLAIN


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
