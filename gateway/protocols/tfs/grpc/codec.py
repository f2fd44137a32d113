"""The gRPC codec of TensorFlow Serving: a table of functions between gRPC messages and calls.

`messages.py` describes Predict, whose tensors are views; the protobuf library reads and writes the
messages without tensors.

Source: docs/protocols/tensorflow-serving.md, "5. Tensors over gRPC".
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from gateway.api.protocol import Codec, Handling
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
from gateway.ir.limits import (
    DEFAULT_LIMITS,
    MessageLimits,
    check_management_size,
    check_name,
)
from gateway.ir.tensors.expected_inputs import compare_inputs, is_comparing
from gateway.protocols.tfs.declarations import (
    CLASSIFY,
    PREDICT,
    REGRESS,
    ModelDeclaration,
)
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
    LIMITATIONS,
    NEEDS,
    CalledModel,
    ModelTable,
    Spec,
    known_model,
    number_of,
    required_model,
    required_version,
    version_is_same,
)
from gateway.protocols.tfs.options import read_options
from gateway.protocols.tfs.status import is_available, versions_of, write_status
from gateway.schema import tensorflow_serving_pb2 as pb
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.errors import unknown_method
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.heads.metadata import form_of, grpc_context, unary_request
from gateway.wire.http import Buffer
from gateway.wire.protobuf.library import methods_of, parse, reply_of, serialized_files
from gateway.wire.protobuf.plain import ProtobufMessages, passed_metadata, with_name
from gateway.wire.protobuf.wire_format import FieldCounter, WireError
from gateway.wire.status_errors import StatusErrorForm

NAME: Final = "tfs.grpc"
_ERRORS: Final = StatusErrorForm(codec=NAME, status=grpc_status_of, error_class=grpc_error_class)
_PREDICTION: Final = "/tensorflow.serving.PredictionService/"
_MODEL: Final = "/tensorflow.serving.ModelService/"
PREDICT_METHOD: Final = f"{_PREDICTION}Predict"
_METADATA_METHOD: Final = f"{_PREDICTION}GetModelMetadata"
_STATUS_METHOD: Final = f"{_MODEL}GetModelStatus"
_EXAMPLE_METHODS: Final = {f"{_PREDICTION}Classify": CLASSIFY, f"{_PREDICTION}Regress": REGRESS}

METHODS: Final = methods_of(pb.DESCRIPTOR)
file_descriptors: Final = partial(serialized_files, pb.DESCRIPTOR)
# The field of the model in metadata, and in replies to inferences.
_METADATA_MODEL, _REPLY_MODEL = 1, 2
_QUESTIONS: Final[Mapping[str, type[pb.GetModelMetadataRequest | pb.GetModelStatusRequest]]] = {
    _METADATA_METHOD: pb.GetModelMetadataRequest,
    _STATUS_METHOD: pb.GetModelStatusRequest,
}
_FORWARDED: Final = frozenset({PREDICT_METHOD, *_EXAMPLE_METHODS, *_QUESTIONS})

_ABSENT: Final = (GrpcStatus.NOT_FOUND, GrpcStatus.INVALID_ARGUMENT)
# A server that knows no such model is there.
_LIVE: Final = (GrpcStatus.OK, *_ABSENT)
_NOT_READY: Final = (*_ABSENT, GrpcStatus.FAILED_PRECONDITION, GrpcStatus.UNAVAILABLE)


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
    limitations = LIMITATIONS

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._options = read_options(options or {})
        self._models = ModelTable(limits)
        self.whole = "" if self._options.changes_messages else NAME
        self.messages = ProtobufMessages(pb.DESCRIPTOR)
        ask = pb.GetModelStatusRequest().SerializeToString()
        health = Handling(
            lambda call: unary_request(call, _STATUS_METHOD, (ask,)),
            by_status=lambda wire: True if wire.status in _LIVE else None,
        )
        signature, is_content = self._options.signature, self._options.tensor_content
        self.calls = {
            InferRequest: Handling(
                partial(_predict, signature),
                partial(_read_inference, limits),
                partial(_write_inference, is_content),
                pass_on=partial(_passed, _REPLY_MODEL),
            ),
            ModelMetadataRequest: Handling(
                lambda call: _about_model(
                    call, _METADATA_METHOD, pb.GetModelMetadataRequest(metadata_field=[FIELD])
                ),
                lambda call, wire: read_metadata(
                    parse(wire.view, pb.GetModelMetadataResponse),
                    required_model(call).name,
                    signature,
                    limits,
                ),
                lambda call, reply: reply_of(write_metadata(form_of(call, CalledModel), reply)),
                pass_on=partial(_passed, _METADATA_MODEL),
            ),
            ServerStatusRequest: Handling(
                encode_reply=lambda call, reply: reply_of(
                    write_status(versions_of(form_of(call, CalledModel), reply))
                )
            ),
            ServerLiveRequest: health,
            ServerReadyRequest: health,
            ModelReadyRequest: Handling(
                lambda call: _about_model(call, _STATUS_METHOD, pb.GetModelStatusRequest()),
                lambda _call, wire: is_available(parse(wire.view, pb.GetModelStatusResponse)),
                by_status=lambda wire: False if wire.status in _NOT_READY else None,
            ),
        }

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
        if wire.method not in _QUESTIONS:
            raise unknown_method(wire.method)
        return self._decode_question(wire)

    def encode_error(self, _call: Call[Any] | None, error: errors.GatewayError, /) -> GrpcResponse:
        """Write an error as status and details; those of an upstream are unchanged."""
        return _ERRORS.write(error, self._limits)

    def error_in(self, call: Call[Any], wire: GrpcResponse, /) -> errors.GatewayError | None:
        """Return the error of an upstream's status; None for a success."""
        return _ERRORS.read(call.model, wire)

    def _decode_predict(self, wire: GrpcRequest) -> InferRequest:
        counter = FieldCounter()
        message = messages.REQUEST.read((wire.view,), self._limits, counter)
        names = messages.read_filter(message, self._limits)
        called = self._models.find(message.spec, (PREDICT,))
        if is_comparing():
            own = called.signature.inputs
            compare_inputs(called.model, [own.get(name, name) for name in message.tensors])
        return InferRequest(
            model=called.model,
            context=grpc_context(
                wire, NAME, called.needs, called, whole=self.whole if called.is_plain else ""
            ),
            inputs=called.inputs(messages.read_tensors(message, self._limits, counter)),
            outputs=called.requested(names),
        )

    def _decode_examples(self, wire: GrpcRequest, method: str) -> InferRequest:
        message = messages.EXAMPLES.read((wire.view,), self._limits)
        called = self._models.find(message.spec, (method,))
        signature, inputs = called.signature, message.inputs
        view = inputs[0] if len(inputs) == 1 else memoryview(b"".join(inputs))
        tensor = examples_tensor(signature, read_input(view, self._limits), self._limits)
        return InferRequest(
            model=called.model,
            context=grpc_context(wire, NAME, called.needs, called),
            inputs=(tensor,),
            outputs=requested_outputs(signature),
        )

    def _decode_question(self, wire: GrpcRequest) -> Call[Any]:
        message = parse(wire.view, _QUESTIONS[wire.method])
        called = self._models.find(_spec(message.model_spec))
        whole = self.whole if called.is_plain and self.is_plain(wire) else ""
        context = grpc_context(wire, NAME, NEEDS, called, whole=whole)
        if isinstance(message, pb.GetModelStatusRequest):
            return ServerStatusRequest(about=ModelRef(called.model.name), context=context)
        if list(message.metadata_field) != [FIELD]:
            found = ", ".join(message.metadata_field) or "nothing"
            raise errors.InvalidRequest(
                f"metadata_field has {found[:200]}: expected {FIELD} and nothing else"
            )
        return ModelMetadataRequest(model=known_model(called), context=context)

    def decode_unread(self, wire: GrpcRequest, refused: errors.GatewayError, /) -> Call[Any] | None:
        """Return a request with a label, a signature or examples that only its server knows."""
        if wire.method not in _FORWARDED or not self.is_plain(wire):
            return None
        spec = messages.EXAMPLES.read((wire.view,), self._limits).spec
        unread = self._models.unread(spec)
        if unread is None:
            return None
        check_name("model name", spec.name, self._limits.model_name_bytes, "model_name_bytes")
        model, form = unread
        context = grpc_context(wire, NAME, NEEDS, form, whole=self.whole, refusal=refused)
        if wire.method == _METADATA_METHOD:
            return ModelMetadataRequest(model=model, context=context)
        if wire.method == _STATUS_METHOD:
            return ServerStatusRequest(about=model, context=context)
        return InferRequest(model=model, context=context)

    def send_on(self, call: Call[Any], message: Origin, /) -> GrpcRequest:
        """Write a client's request to a server, with the target's model."""
        model, wire, called = required_model(call), message.wire, message.form
        found: Sequence[Buffer] = wire.message
        version = None if version_is_same(call, called.model) else required_version(model)
        if model.name != called.model.name or version is not None:
            found = messages.with_model(wire.view, model.name, version)
        return unary_request(call, wire.method, found)


def _write_inference(is_content: bool, call: InferRequest, reply: InferResponse) -> GrpcResponse:
    called = form_of(call, CalledModel)
    version = number_of(reply.model.version)
    spec = messages.spec_message(called.spec.name, version, called.signature_name)
    if called.signature.method == PREDICT:
        tensors = messages.tensor_entries(called.outputs(reply.outputs), is_content=is_content)
        return GrpcResponse(messages.RESPONSE.write(spec=spec, tensors=tensors))
    count = (call.inputs[0].shape or (0,))[0]
    if called.signature.method == CLASSIFY:
        classified = pb.ClassificationResponse()
        for found in scores_of(called.signature, reply.outputs, count):
            row = classified.result.classifications.add()
            for label, score in found:
                row.classes.add(label=label, score=score)
        classified.model_spec.ParseFromString(spec)
        return reply_of(classified)
    regressed = pb.RegressionResponse()
    for value in values_of(called.signature, reply.outputs, count):
        regressed.result.regressions.add(value=value)
    regressed.model_spec.ParseFromString(spec)
    return reply_of(regressed)


def _predict(signature: str, call: InferRequest) -> GrpcRequest:
    model = required_model(call)
    spec = messages.spec_message(model.name, required_version(model), signature)
    names = [each.name for each in call.outputs]
    tensors = messages.tensor_entries(call.inputs)
    message = messages.REQUEST.write(spec=spec, tensors=tensors, filter=names)
    return unary_request(call, PREDICT_METHOD, message)


def _read_inference(limits: MessageLimits, call: InferRequest, wire: GrpcResponse) -> InferResponse:
    counter = FieldCounter()
    message = messages.RESPONSE.read((wire.view,), limits, counter)
    outputs = messages.read_tensors(message, limits, counter)
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


def _about_model(call: Call[Any], method: str, message: Any) -> GrpcRequest:
    """Return a request whose message names the model of a call."""
    model = required_model(call)
    spec = messages.spec_message(model.name, required_version(model))
    message.model_spec.ParseFromString(spec)
    return unary_request(call, method, (message.SerializeToString(),))


def _passed(spec: int, call: Call[Any], reply: Origin) -> GrpcResponse:
    """Return a server's response, with the name that the client has for the model."""
    name = form_of(call, CalledModel).spec.name
    message = with_name(reply.wire, (spec, 1), name)
    return GrpcResponse(message, metadata=passed_metadata(reply.wire))


def _spec(message: pb.ModelSpec) -> Spec:
    version = message.version.value if message.HasField("version") else 0
    return Spec(message.name, version, message.version_label, message.signature_name)
