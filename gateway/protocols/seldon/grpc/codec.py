"""The gRPC codec of Seldon: functions between gRPC messages and calls.

`messages.py` has SeldonMessage, whose array is a view; the protobuf library reads and writes the
messages without arrays.

Source: docs/protocols/seldon.md, "4. gRPC".
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from google.protobuf.json_format import MessageToDict, ParseDict
from msgspec import Struct

from gateway.api.protocol import Codec, unsupported
from gateway.ir import errors
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
from gateway.ir.context import Metadata, ModelRef, Need, Origin
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits, check_management_size, check_name
from gateway.protocols.seldon.declarations import NO_DECLARATION, SeldonForm, reply_form
from gateway.protocols.seldon.errors import GraphVerb, grpc_status
from gateway.protocols.seldon.grpc.messages import (
    SeldonMessageReader,
    answer,
    message,
    meta_message,
)
from gateway.protocols.seldon.messages import (
    MessageForm,
    PayloadKind,
    check_plain,
    only_element,
    only_text,
    own_tags,
    payload_kind,
    requested_outputs,
)
from gateway.protocols.seldon.metadata import metadata_document, read_metadata
from gateway.protocols.seldon.options import FORWARD, MODEL, read_options, value_rules
from gateway.schema import seldon_pb2 as pb
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.errors import clip, error_class_of_grpc, strip_traceback
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from gateway.wire.metadata import form_of, grpc_context, grpc_metadata
from gateway.wire.protobuf import WireError
from gateway.wire.protobuf_library import parse, reply_of
from gateway.wire.request_id import new_request_ids
from gateway.wire.status_errors import error_of_status, status_response

R = TypeVar("R")

NAME: Final = "seldon.grpc"
_PACKAGE: Final = "/seldon.protos."
_PREDICT, _FEEDBACK = "Predict", "SendFeedback"
_METADATA: Final = frozenset({"Metadata", "ModelMetadata", "GraphMetadata"})
_DEPLOYMENT, _NAMESPACE = "seldon", "namespace"
_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
_HEALTH: Final = (ServerLiveRequest, ServerReadyRequest, ModelReadyRequest)
# A server that has no such method, or fails over the metadata of its author, is there.
_DEAD: Final = frozenset({GrpcStatus.UNAVAILABLE, GrpcStatus.DEADLINE_EXCEEDED})

METHODS: Mapping[str, MethodKind] = {
    f"/{service.full_name}/{method.name}": MethodKind.UNARY
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""All methods: those of graphs are refused by name."""


class SeldonGrpcForm(Struct, frozen=True):
    """What the response to one request depends on.

    Attributes:
        method: The name of its method.
        message: The form of its message.
    """

    method: str
    message: MessageForm = MessageForm()


def file_descriptors() -> tuple[bytes, ...]:
    """Return the serialized FileDescriptorProtos of the services, for server reflection."""
    needed = [each.serialized_pb for each in pb.DESCRIPTOR.dependencies]
    return (*needed, pb.DESCRIPTOR.serialized_pb)


class GrpcCodec(Codec[GrpcRequest, GrpcResponse], DeclaringCodec):
    """Seldon's protocol over gRPC, in both directions.

    Args:
        limits: The limits of a message.
        options: The checked options of its listener or upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = _NEEDS | {Need.UNTYPED}

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._options = read_options(options or {})
        self._rules = value_rules(self._options, limits)
        self._style = self._options.style
        self._declared: Mapping[str, SeldonForm] = {}
        self._puids = new_request_ids()

    def declare(self, declared: Mapping[str, Any], /) -> None:
        """Replace what the configuration declares of models, by their names."""
        self._declared = declared

    def decode_call(self, wire: GrpcRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request; its array is a view into its message.

        Raises:
            InvalidRequest: The message is wrong, or the method is a graph's.
            TooLarge: A limit is exceeded.
            Unsupported: The method is not served.
        """
        method = wire.method.rpartition("/")[2]
        if wire.method not in METHODS:
            raise errors.Unsupported(
                f"method {clip(wire.method, 128)!r} is not supported by this gateway"
            )
        if method == _PREDICT:
            try:
                return self._decode_predict(wire)
            except WireError as error:
                raise errors.MalformedMessage(
                    f"message of {len(wire.view)} bytes to {wire.method} cannot be read: {error}"
                ) from error
        context = grpc_context(wire, NAME, _NEEDS, SeldonGrpcForm(method))
        if method == _FEEDBACK:
            model = self._model(wire)
            if self._options.feedback != FORWARD:
                return ServerLiveRequest(context=context)
            return OpaqueCall(model=model, context=context, message=Origin(NAME, wire))
        if method in _METADATA:
            check_management_size(method, len(wire.view))
            return ModelMetadataRequest(model=self._described(wire, method), context=context)
        raise GraphVerb(
            f"{method} is a step of a graph, which the gateway does not run: expected a prediction "
            "(pipelines of the configuration have steps)"
        )

    def encode_reply(self, call: Call[R], reply: R, /) -> GrpcResponse:
        """Write the response to *call*; the data of large outputs are not copied.

        Raises:
            Unsupported: There is no such response, or there are several outputs and none is
                declared.
            InvalidOutput: An element of an output cannot be written.
        """
        form, content = form_of(call, SeldonGrpcForm), cast("Any", reply)
        try:
            if isinstance(call, InferRequest) and isinstance(content, InferResponse):
                found = form.message.of_model(self._declared, call, content)
                puid = found.meta.puid or call.context.request_id or next(self._puids)
                return GrpcResponse(answer(content, found, self._style, puid))
            if isinstance(call, ModelMetadataRequest):
                return _metadata_reply(call, content, form)
        except ValueError as error:  # lone surrogates in a name, numbers over 64 bits
            raise errors.Unsupported(f"reply cannot be written: {error}") from error
        if isinstance(call, OpaqueCall):
            return GrpcResponse(content.wire.message)
        if isinstance(call, ServerLiveRequest):
            empty = pb.SeldonMessage()
            empty.data.ndarray.SetInParent()
            empty.meta.ParseFromString(meta_message(next(self._puids), {}))
            return reply_of(empty)
        raise unsupported(call, NAME)

    def encode_error(self, _call: Call[Any] | None, error: errors.GatewayError, /) -> GrpcResponse:
        """Write an error as status and details; those of an upstream are unchanged."""
        details = clip(error.message, self._limits.error_text_bytes)
        return status_response(error, NAME, grpc_status(error), details)

    def encode_call(self, call: Call[Any], /) -> GrpcRequest:
        """Write a request to an upstream.

        Raises:
            Unsupported: Seldon cannot carry it, or has no such request.
        """
        context = call.context
        try:
            method, body = self._request(call)
        except errors.InvalidOutput as error:
            text = error.message.replace("output", "input", 1)
            raise errors.Unsupported(text, model=call.model) from error
        except ValueError as error:
            raise errors.Unsupported(
                f"{type(call).__name__} cannot be written: {error}", model=call.model
            ) from error
        path = f"{_PACKAGE}{self._options.service}/{method}"
        return GrpcRequest(path, body, self._upstream_metadata(context), context.deadline)

    def decode_reply(self, call: Call[R], wire: GrpcResponse, /) -> R:
        """Read an upstream's response to *call*; its array is a view into its message.

        Raises:
            GatewayError: The error in the upstream's status.
            MalformedMessage, InvalidTensor, TooLarge: The response cannot be used.
        """
        # The type of a call determines that of its reply, which mypy cannot follow.
        if isinstance(call, _HEALTH):
            if wire.status in _DEAD:
                raise error_of_status(error_class_of_grpc(wire.status), call.model, wire, NAME)
            return cast("R", True)
        if wire.status is not GrpcStatus.OK:
            raise error_of_status(error_class_of_grpc(wire.status), call.model, wire, NAME)
        try:
            return cast("R", self._reply(call, wire))
        except WireError as error:
            raise errors.MalformedMessage(f"response cannot be read: {error}") from error
        except errors.InvalidRequest as error:
            if isinstance(error, errors.MalformedMessage | errors.InvalidTensor):
                raise
            raise errors.MalformedMessage(error.message) from error

    def _decode_predict(self, wire: GrpcRequest) -> InferRequest:
        model = self._model(wire)
        declared = self._declared.get("" if model is None else model.name, NO_DECLARATION)
        reader = SeldonMessageReader(wire.view, self._limits, self._rules)
        payload = reader.payload(declared)
        meta = reader.meta
        form = SeldonGrpcForm(_PREDICT, MessageForm(payload.kind, meta, declared))
        return InferRequest(
            model=model,
            context=grpc_context(wire, NAME, _NEEDS, form),
            inputs=payload.tensors,
            outputs=requested_outputs(declared),
            id=meta.puid,
            parameters=meta.tags,
        )

    def _model(self, wire: GrpcRequest) -> ModelRef | None:
        """Return the deployment in the metadata of a request; None for the listener's model."""
        for key, value in wire.metadata:
            if key == _DEPLOYMENT and isinstance(value, str) and value:
                check_name("model name", value, self._limits.model_name_bytes, "model_name_bytes")
                return ModelRef(value)
        return self._options.default_model

    def _described(self, wire: GrpcRequest, method: str) -> ModelRef | None:
        """Return the model whose metadata are asked for."""
        if method == "ModelMetadata":
            name = parse(wire.view, pb.SeldonModelMetadataRequest).name
            if name:
                check_name("model name", name, self._limits.model_name_bytes, "model_name_bytes")
                return ModelRef(name)
        return self._model(wire)

    def _upstream_metadata(self, context: Any) -> Any:
        found = grpc_metadata(context)
        options = self._options
        own: Metadata = ()
        if options.deployment:
            own = ((_DEPLOYMENT, options.deployment),)
        if options.namespace:
            own = (*own, (_NAMESPACE, options.namespace))
        if not own:
            return found
        names = {key for key, _ in own}
        return (*[pair for pair in found if pair[0] not in names], *own)

    def _request(self, call: Call[Any]) -> tuple[str, Any]:
        if isinstance(call, InferRequest):
            return _PREDICT, self._predict(call)
        if isinstance(call, OpaqueCall):
            if call.message.codec != NAME:
                raise errors.Unsupported("only a server of Seldon takes feedback", model=call.model)
            return _FEEDBACK, call.message.wire.message
        if isinstance(call, (*_HEALTH, ModelMetadataRequest)):
            method = "Metadata" if self._options.service == MODEL else "ModelMetadata"
            return method, (b"",)
        raise unsupported(call, NAME)

    def _predict(self, call: InferRequest) -> Any:
        check_plain(call)
        tensor = call.inputs[0]
        kind = payload_kind(tensor, self._options, has_integers=False)
        if kind is PayloadKind.TEXT:
            only_element(tensor)
            kind = PayloadKind.BYTES if only_text(tensor) is None else kind
        return message(tensor, kind, call.id, dict(call.parameters), (), "input")

    def _reply(self, call: Call[Any], wire: GrpcResponse) -> Any:
        if isinstance(call, OpaqueCall):
            return Origin(NAME, wire)
        if isinstance(call, ModelMetadataRequest):
            found = MessageToDict(parse(wire.view, pb.SeldonModelMetadata))
            for entry in (*found.get("inputs", ()), *found.get("outputs", ())):
                entry["shape"] = [int(dim) for dim in entry.get("shape", ())]
            name = "" if call.model is None else call.model.name
            return read_metadata(found, name, self._limits)
        if isinstance(call, InferRequest):
            return self._infer_reply(call, wire)
        raise unsupported(call, NAME)

    def _infer_reply(self, call: InferRequest, wire: GrpcResponse) -> InferResponse:
        reader = SeldonMessageReader(wire.view, self._limits, self._rules)
        failure = reader.failure
        if failure is not None:
            text = clip(strip_traceback(failure), self._limits.error_text_bytes)
            raise errors.UpstreamError(text or "the server failed without a text", model=call.model)
        return InferResponse(
            model=call.model or ModelRef(""),
            outputs=reader.payload(reply_form(self._declared, call.model)).tensors,
            id=call.id,
            parameters=own_tags(reader.meta, call),
            origin=Origin(NAME, wire),
        )


def _metadata_reply(call: ModelMetadataRequest, content: Any, form: SeldonGrpcForm) -> GrpcResponse:
    name = "" if call.model is None else call.model.name
    document = metadata_document(content, name)
    described = ParseDict(document, pb.SeldonModelMetadata())
    if form.method != "GraphMetadata":
        return reply_of(described)
    graph = pb.SeldonGraphMetadata(name=described.name)
    graph.models[described.name].CopyFrom(described)
    graph.inputs.extend(described.inputs)
    graph.outputs.extend(described.outputs)
    return reply_of(graph)
