"""The gRPC codec of TensorFlow Serving: seven functions between gRPC messages and calls.

`messages.py` has Predict, whose tensors are views; the protobuf library reads and writes the
messages without tensors.

Source: docs/protocols/tensorflow-serving.md, "5. Tensors over gRPC".
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from gateway.api.protocol import Codec, unsupported
from gateway.ir import errors
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatusRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits, check_management_size
from gateway.protocols.tfs.declarations import CLASSIFY, PREDICT, REGRESS, ModelDeclaration
from gateway.protocols.tfs.errors import grpc_error_class, grpc_status_of
from gateway.protocols.tfs.examples import (
    examples_tensor,
    read_input,
    requested_outputs,
    scores_of,
    values_of,
)
from gateway.protocols.tfs.grpc import messages
from gateway.protocols.tfs.metadata import FIELD, read_metadata, write_metadata
from gateway.protocols.tfs.models import (
    NEEDS,
    CalledModel,
    ModelTable,
    Spec,
    check_plain,
    known_model,
    number_of,
    required_model,
    required_version,
)
from gateway.protocols.tfs.options import read_options
from gateway.protocols.tfs.status import is_available, versions_of, write_status
from gateway.schema import tensorflow_serving_pb2 as pb
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.errors import clip
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from gateway.wire.metadata import grpc_context, grpc_metadata
from gateway.wire.protobuf import LEN, Parts, WireError, fields, tag
from gateway.wire.protobuf_library import parse, reply_of
from gateway.wire.status_errors import error_of_status, status_response

R = TypeVar("R")

NAME: Final = "tfs.grpc"
_PREDICTION: Final = "/tensorflow.serving.PredictionService/"
_MODEL: Final = "/tensorflow.serving.ModelService/"
PREDICT_METHOD: Final = f"{_PREDICTION}Predict"
_METADATA_METHOD: Final = f"{_PREDICTION}GetModelMetadata"
_STATUS_METHOD: Final = f"{_MODEL}GetModelStatus"
_EXAMPLE_METHODS: Final = {f"{_PREDICTION}Classify": CLASSIFY, f"{_PREDICTION}Regress": REGRESS}
_FIRST, _SECOND = tag(1, LEN), tag(2, LEN)

METHODS: Mapping[str, MethodKind] = {
    f"/{service.full_name}/{method.name}": MethodKind.UNARY
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

_HEALTH: Final = (ServerLiveRequest, ServerReadyRequest)
# A server that knows no such model is there.
_LIVE: Final = (GrpcStatus.NOT_FOUND, GrpcStatus.INVALID_ARGUMENT)
_NOT_READY: Final = (*_LIVE, GrpcStatus.FAILED_PRECONDITION, GrpcStatus.UNAVAILABLE)


def file_descriptors() -> tuple[bytes, ...]:
    """Return the serialized FileDescriptorProtos of the services, for server reflection."""
    needed = [each.serialized_pb for each in pb.DESCRIPTOR.dependencies]
    return (*needed, pb.DESCRIPTOR.serialized_pb)


class GrpcCodec(Codec[GrpcRequest, GrpcResponse], DeclaringCodec):
    """Reads and writes the messages of PredictionService and ModelService.

    Args:
        limits: The limits of a message.
        options: The checked options of its listener or upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = NEEDS

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._options = read_options(options or {})
        self._models = ModelTable(limits)

    def declare(self, declared: Mapping[str, ModelDeclaration], /) -> None:
        """Replace what the configuration declares of models, by their names."""
        self._models.declare(declared)

    def decode_call(self, wire: GrpcRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request; tensors are views into its message.

        Raises:
            InvalidRequest: The message is wrong, or the model has no such label or signature.
            ModelNotFound: The request names no model.
            TooLarge: A limit is exceeded.
            Unsupported: The method is not served.
        """
        try:
            if wire.method == PREDICT_METHOD:
                return self._decode_predict(wire)
            method = _EXAMPLE_METHODS.get(wire.method)
            if method is not None:
                return self._decode_examples(wire, method)
        except WireError as error:
            raise errors.MalformedMessage(
                f"message of {len(wire.view)} bytes to {wire.method} cannot be read: {error}"
            ) from error
        check_management_size(wire.method.rpartition("/")[2], len(wire.view))
        if wire.method == _METADATA_METHOD:
            return self._decode_metadata(wire)
        if wire.method == _STATUS_METHOD:
            return self._decode_status(wire)
        raise errors.Unsupported(
            f"method {clip(wire.method, 128)!r} is not supported by this gateway"
        )

    def encode_reply(self, call: Call[R], reply: R, /) -> GrpcResponse:
        """Write the response to *call*; the data of large outputs are not copied.

        Raises:
            Unsupported: There is no such response.
            InvalidOutput: The outputs are not those of a classify or regress.
        """
        called = _called(call)
        content: Any = reply
        try:
            if isinstance(call, InferRequest) and isinstance(content, InferResponse):
                return GrpcResponse(self._written(called, call, content))
            if isinstance(call, ModelMetadataRequest):
                return reply_of(write_metadata(called, content))
            if isinstance(call, ServerStatusRequest):
                return reply_of(write_status(versions_of(called, content)))
        except ValueError as error:  # lone surrogates in a name, numbers over 64 bits
            raise errors.Unsupported(f"reply cannot be written: {error}") from error
        raise unsupported(call, NAME)

    def encode_error(self, _call: Call[Any] | None, error: errors.GatewayError, /) -> GrpcResponse:
        """Write an error as status and details; those of an upstream are unchanged."""
        details = clip(error.message, self._limits.error_text_bytes)
        return status_response(error, NAME, grpc_status_of(error), details)

    def encode_call(self, call: Call[Any], /) -> GrpcRequest:
        """Write a request to an upstream: numbers as content, and the version, if there is one.

        Raises:
            Unsupported: TensorFlow Serving cannot carry it, or has no such request.
        """
        context = call.context
        try:
            method, message = self._request(call)
        except ValueError as error:
            raise errors.Unsupported(
                f"{type(call).__name__} cannot be written: {error}", model=call.model
            ) from error
        return GrpcRequest(method, message, grpc_metadata(context), context.deadline)

    def decode_reply(self, call: Call[R], wire: GrpcResponse, /) -> R:
        """Read an upstream's response to *call*; tensors are views into its message.

        Raises:
            GatewayError: The error in the upstream's status.
            MalformedMessage, InvalidTensor, TooLarge: The response cannot be used.
        """
        # The type of a call determines that of its reply, which mypy cannot follow.
        if wire.status is not GrpcStatus.OK:
            if isinstance(call, _HEALTH) and wire.status in _LIVE:
                return cast("R", True)
            if isinstance(call, ModelReadyRequest) and wire.status in _NOT_READY:
                return cast("R", False)
            raise _error_of(call, wire)
        try:
            return cast("R", self._reply(call, wire))
        except WireError as error:
            raise errors.MalformedMessage(f"response cannot be read: {error}") from error
        except errors.InvalidRequest as error:
            if isinstance(error, errors.MalformedMessage | errors.InvalidTensor):
                raise
            raise errors.MalformedMessage(error.message) from error

    def _decode_predict(self, wire: GrpcRequest) -> InferRequest:
        message = messages.Message(
            wire.view, messages.REQUEST_SPEC, messages.REQUEST_TENSORS, self._limits
        )
        called = self._models.find(message.spec, (PREDICT,))
        return InferRequest(
            model=called.model,
            context=grpc_context(wire, NAME, called.needs, called),
            inputs=called.inputs(message.tensors(called)),
            outputs=called.requested(message.filter),
        )

    def _decode_examples(self, wire: GrpcRequest, method: str) -> InferRequest:
        specs, inputs = [], []
        for key, value in fields(wire.view):
            if key == _FIRST:
                specs.append(value)
            elif key == _SECOND:
                inputs.append(value)
        called = self._models.find(messages.read_spec(specs), (method,))
        signature = called.signature
        view = inputs[0] if len(inputs) == 1 else memoryview(b"".join(inputs))
        tensor = examples_tensor(signature, read_input(view, self._limits), self._limits)
        return InferRequest(
            model=called.model,
            context=grpc_context(wire, NAME, called.needs, called),
            inputs=(tensor,),
            outputs=requested_outputs(signature),
        )

    def _decode_metadata(self, wire: GrpcRequest) -> ModelMetadataRequest:
        message = parse(wire.view, pb.GetModelMetadataRequest)
        called = self._models.find(_spec(message.model_spec))
        if list(message.metadata_field) != [FIELD]:
            found = ", ".join(message.metadata_field) or "nothing"
            raise errors.InvalidRequest(
                f"metadata_field has {found[:200]}: expected {FIELD} and nothing else"
            )
        context = grpc_context(wire, NAME, NEEDS, called)
        return ModelMetadataRequest(model=known_model(called), context=context)

    def _decode_status(self, wire: GrpcRequest) -> ServerStatusRequest:
        message = parse(wire.view, pb.GetModelStatusRequest)
        called = self._models.find(_spec(message.model_spec))
        context = grpc_context(wire, NAME, NEEDS, called)
        return ServerStatusRequest(about=ModelRef(called.model.name), context=context)

    def _written(self, called: CalledModel, call: InferRequest, reply: InferResponse) -> Parts:
        version = number_of(reply.model.version)
        spec = messages.spec_message(called.spec.name, version, called.signature_name)
        if called.signature.method == PREDICT:
            return messages.write_reply(spec, called.outputs(reply.outputs))
        count = (call.inputs[0].shape or (0,))[0]
        if called.signature.method == CLASSIFY:
            classified = pb.ClassificationResponse()
            for found in scores_of(called.signature, reply.outputs, count):
                row = classified.result.classifications.add()
                for label, score in found:
                    row.classes.add(label=label, score=score)
            classified.model_spec.ParseFromString(spec)
            return [bytearray(classified.SerializeToString())]
        regressed = pb.RegressionResponse()
        for value in values_of(called.signature, reply.outputs, count):
            regressed.result.regressions.add(value=value)
        regressed.model_spec.ParseFromString(spec)
        return [bytearray(regressed.SerializeToString())]

    def _request(self, call: Call[Any]) -> tuple[str, Any]:
        if isinstance(call, InferRequest):
            return PREDICT_METHOD, self._predict(call)
        if isinstance(call, _HEALTH):
            return _STATUS_METHOD, (pb.GetModelStatusRequest().SerializeToString(),)
        if not isinstance(call, ModelReadyRequest | ModelMetadataRequest):
            raise unsupported(call, NAME)
        model = required_model(call)
        message: Any = pb.GetModelStatusRequest()
        method = _STATUS_METHOD
        if isinstance(call, ModelMetadataRequest):
            message, method = pb.GetModelMetadataRequest(metadata_field=[FIELD]), _METADATA_METHOD
        spec = messages.spec_message(model.name, required_version(model))
        message.model_spec.ParseFromString(spec)
        return method, (message.SerializeToString(),)

    def _predict(self, call: InferRequest) -> Parts:
        model = required_model(call)
        check_plain(call)
        spec = messages.spec_message(model.name, required_version(model), self._options.signature)
        return messages.write_request(spec, call.inputs, [each.name for each in call.outputs])

    def _reply(self, call: Call[Any], wire: GrpcResponse) -> Any:
        if isinstance(call, InferRequest):
            return self._infer_reply(call, wire)
        if isinstance(call, _HEALTH):
            return True
        if isinstance(call, ModelReadyRequest):
            return is_available(parse(wire.view, pb.GetModelStatusResponse))
        if isinstance(call, ModelMetadataRequest):
            message = parse(wire.view, pb.GetModelMetadataResponse)
            name = required_model(call).name
            return read_metadata(message, name, self._options.signature, self._limits)
        raise unsupported(call, NAME)

    def _infer_reply(self, call: InferRequest, wire: GrpcResponse) -> InferResponse:
        message = messages.Message(
            wire.view, messages.REPLY_SPEC, messages.REPLY_TENSORS, self._limits
        )
        outputs = message.tensors()
        if call.outputs:
            by_name = {each.name: each for each in outputs}
            missing = [each.name for each in call.outputs if each.name not in by_name]
            if missing:
                raise errors.MalformedMessage(
                    f"response lacks the requested output {missing[0]!r}: it has {len(outputs)}"
                )
            outputs = tuple([by_name[each.name] for each in call.outputs])
        version = message.spec.version
        model = call.model or ModelRef(message.spec.name)
        return InferResponse(
            model=ModelRef(model.name, str(version) if version > 0 else model.version),
            outputs=outputs,
            id=call.id,
            origin=Origin(NAME, wire),
        )


def _called(call: Call[Any]) -> CalledModel:
    origin = call.context.origin
    form = None if origin is None else origin.form
    if not isinstance(form, CalledModel):
        raise errors.InternalError(f"{type(call).__name__} has no model of this codec")
    return form


def _spec(message: pb.ModelSpec) -> Spec:
    version = message.version.value if message.HasField("version") else 0
    return Spec(message.name, version, message.version_label, message.signature_name)


def _error_of(call: Call[Any], wire: GrpcResponse) -> errors.GatewayError:
    """Return the error of an upstream's status, with its response as origin."""
    kind = grpc_error_class(wire.status, wire.details)
    return error_of_status(kind, call.model, wire, NAME)
