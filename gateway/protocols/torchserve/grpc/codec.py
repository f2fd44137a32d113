"""The gRPC codec of TorchServe: functions between gRPC messages and calls.

`messages.py` has predictions, whose bodies are views; the protobuf library reads and writes the
others.

Source: docs/protocols/torchserve.md, "7. gRPC".
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

import orjson
from msgspec import Struct

from gateway.api.protocol import StreamCodec, unsupported
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
    NEEDS,
    UPSTREAM_NEEDS,
    BodyReader,
    Item,
    check_plain,
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
from gateway.wire.errors import clip, strip_traceback
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from gateway.wire.metadata import grpc_context, grpc_metadata
from gateway.wire.protobuf import WireError
from gateway.wire.protobuf_library import parse, reply_of
from gateway.wire.status_errors import error_of_status, status_response

R = TypeVar("R")

NAME: Final = "torchserve.grpc"
_INFERENCE: Final = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
_MANAGEMENT: Final = "/org.pytorch.serve.grpc.management.ManagementAPIsService/"
PING_METHOD: Final = f"{_INFERENCE}Ping"
PREDICTIONS: Final = f"{_INFERENCE}Predictions"
STREAM: Final = f"{_INFERENCE}StreamPredictions"
SESSION: Final = f"{_INFERENCE}StreamPredictions2"
DESCRIBE: Final = f"{_MANAGEMENT}DescribeModel"
LIST: Final = f"{_MANAGEMENT}ListModels"
_KINDS: Final = {STREAM: MethodKind.SERVER_STREAM, SESSION: MethodKind.BIDIRECTIONAL}

METHODS: Mapping[str, MethodKind] = {
    path: _KINDS.get(path, MethodKind.UNARY)
    for schema in (pb, torchserve_management_pb2)
    for service in schema.DESCRIPTOR.services_by_name.values()
    for path in [f"/{service.full_name}/{method.name}" for method in service.methods]
}

_HEALTH: Final = (ModelReadyRequest, ServerLiveRequest, ServerReadyRequest)


def file_descriptors() -> tuple[bytes, ...]:
    """Return the serialized FileDescriptorProtos of the services, for server reflection."""
    needed = [each.serialized_pb for each in pb.DESCRIPTOR.dependencies]
    return (
        *needed,
        pb.DESCRIPTOR.serialized_pb,
        torchserve_management_pb2.DESCRIPTOR.serialized_pb,
    )


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

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._style = row_style(read_options(options or {}))
        self._models = BodyForms(limits)
        self._reader = BodyReader(limits)

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
        raise errors.Unsupported(f"method {clip(method, 128)!r} is not supported by this gateway")

    def encode_reply(self, call: Call[R], reply: R, /) -> GrpcResponse:
        """Write the response to *call*; large bodies are not copied.

        Raises:
            Unsupported: There is no such response, or the outputs do not fit the declared form.
            NotFound: The model or the version does not exist.
        """
        form, content = _form_of(call), cast("Any", reply)
        if isinstance(call, InferRequest):
            return self._written(form, content)
        if isinstance(call, ServerReadyRequest):
            text = management.HEALTHY if content else management.UNHEALTHY
            return reply_of(pb.TorchServeHealthResponse(health=text.decode()))
        document: bytes | None = None
        if isinstance(call, RepositoryIndexRequest) and form.page is not None:
            document = management.list_document(content, form.page)
        elif isinstance(call, ServerStatusRequest) and form.called is not None:
            document = management.description_document(form.called, content)
        if document is None:
            raise unsupported(call, NAME)
        return reply_of(torchserve_management_pb2.ManagementResponse(msg=document.decode()))

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> GrpcResponse:
        """Write one reply of a stream.

        Raises:
            GatewayError: The item is an error.
            Unsupported: The outputs do not fit the declared form.
        """
        form = _form_of(call)
        if item.error is not None:
            if form.is_session:
                return self._failure(form, item.error)
            raise item.error
        return self._written(form, item)

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
        details = clip(error.message, self._limits.error_text_bytes)
        return status_response(error, NAME, grpc_status_of(error), details)

    def encode_call(self, call: Call[Any], /) -> GrpcRequest:
        """Write a request to an upstream.

        Raises:
            Unsupported: TorchServe cannot carry it, or has no such request.
        """
        context = call.context
        if isinstance(call, _HEALTH):
            return GrpcRequest(PING_METHOD, (), grpc_metadata(context), context.deadline)
        if isinstance(call, InferRequest):
            method, request = PREDICTIONS, call
        elif isinstance(call, StreamInferRequest):
            method, request = STREAM, call.request
        else:
            raise unsupported(call, NAME)
        try:
            message = self._request(request)
        except WireError as error:
            raise errors.Unsupported(
                f"{type(call).__name__} cannot be written: {error}", model=call.model
            ) from error
        return GrpcRequest(method, message, grpc_metadata(context), context.deadline)

    def decode_reply(self, call: Call[R], wire: GrpcResponse, /) -> R:
        """Read an upstream's response to *call*; numbers wait for the datatypes of the model.

        Raises:
            GatewayError: The error in the upstream's status.
            MalformedMessage: The response cannot be used.
        """
        # The type of a call determines that of its reply, which mypy cannot follow.
        if isinstance(call, _HEALTH):
            return cast("R", wire.status is GrpcStatus.OK and _is_healthy(wire))
        if wire.status is not GrpcStatus.OK:
            raise _error_of(call, wire)
        return cast("R", self._prediction(call.model, wire))

    def decode_item(self, call: StreamInferRequest, wire: GrpcResponse, /) -> InferResponse:
        """Read one response of an upstream's stream; raises as `decode_reply`."""
        if wire.status is not GrpcStatus.OK:
            raise _error_of(call, wire)
        return self._prediction(call.model, wire)

    def _called(self, name: str, version: str) -> TorchServeModel:
        if not name:
            raise errors.ModelNotFound("the request names no model: expected model_name")
        return self._models.find(name, version)

    def _decode_predictions(self, wire: GrpcRequest) -> Call[Any]:
        found = messages.read_request(wire.view, self._limits)
        called = self._called(found.name, found.version)
        form = PredictionForm(called, found.sequence, wire.method == SESSION)
        request = InferRequest(
            model=called.model,
            context=_context(wire, form, called.needs),
            inputs=self._reader.fields(found.fields, called.form),
            outputs=requested_outputs(called.form),
            sequence=CallSequence(found.sequence) if found.sequence else None,
            batch_size=1 if called.form.asks_for_axis else None,
        )
        if wire.method == PREDICTIONS:
            return request
        return StreamInferRequest(model=request.model, context=request.context, request=request)

    def _written(self, form: PredictionForm, reply: InferResponse) -> GrpcResponse:
        declared = NO_FORM if form.called is None else form.called.form
        body = write_reply(reply, declared, self._style)
        return GrpcResponse(messages.write_prediction(body, form.sequence))

    def _failure(self, form: PredictionForm, error: errors.GatewayError) -> GrpcResponse:
        text = clip(strip_traceback(error.message), self._limits.error_text_bytes)
        return GrpcResponse(messages.write_failure(grpc_status_of(error), text, form.sequence))

    def _request(self, call: InferRequest) -> Any:
        check_plain(call)
        model = required_model(call)
        form: BodyForm = self._models.form(model.name)
        version = client_version(model.version, form) if model.version else ""
        sequence = "" if call.sequence is None else str(call.sequence.id)
        fields = (
            write_fields(call.inputs)
            if form.has_columns
            else {DATA: write_request(call, form, has_type=False)[1]}
        )
        return messages.write_request(model.name, version, fields, sequence)

    def _prediction(self, model: ModelRef | None, wire: GrpcResponse) -> InferResponse:
        found = model or ModelRef("")
        try:
            item = Item(messages.read_prediction(wire.view), place="response")
            outputs = self._reader.response(item, self._models.form(found.name))
        except WireError as error:
            raise errors.MalformedMessage(f"response cannot be read: {error}") from error
        except errors.InvalidRequest as error:
            if isinstance(error, errors.MalformedMessage):
                raise
            raise errors.MalformedMessage(error.message) from error
        return InferResponse(model=found, outputs=outputs, batch_size=1)


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
    try:
        message = parse(wire.view, pb.TorchServeHealthResponse)
        document = orjson.loads(message.health)
    except (errors.MalformedMessage, orjson.JSONDecodeError):
        return False
    return isinstance(document, dict) and document.get("status") == "Healthy"


def _error_of(call: Call[Any], wire: GrpcResponse) -> errors.GatewayError:
    """Return the error of an upstream's status, with its response as origin."""
    kind = grpc_error_class(wire.status, wire.details)
    return error_of_status(kind, call.model, wire, NAME)
