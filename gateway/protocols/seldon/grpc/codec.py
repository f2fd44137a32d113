"""The gRPC codec of Seldon: functions between gRPC messages and calls.

`messages.py` has SeldonMessage, whose array is a view; the protobuf library reads and writes the
messages without arrays.

Source: docs/protocols/seldon.md, "4. gRPC".
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.json_format import MessageToDict, ParseDict
from msgspec import Struct

from gateway.api.protocol import Codec, Handling
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
from gateway.ir.metadata import ModelMetadata
from gateway.protocols.seldon.declarations import NO_DECLARATION, SeldonForm, reply_form
from gateway.protocols.seldon.errors import GraphVerb, grpc_status
from gateway.protocols.seldon.grpc.messages import (
    SeldonMessageReader,
    answer,
    message,
    meta_message,
)
from gateway.protocols.seldon.messages import (
    LIMITATIONS,
    MessageForm,
    PayloadKind,
    check_one_array,
    only_element,
    only_text,
    own_tags,
    payload_kind,
    requested_outputs,
)
from gateway.protocols.seldon.metadata import metadata_document, read_metadata
from gateway.protocols.seldon.options import FORWARD, MODEL, WORDS, read_options, value_rules
from gateway.schema import seldon_pb2 as pb
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.errors import clip, error_class_of_grpc, strip_traceback, unknown_method
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.heads.metadata import form_of, grpc_context, grpc_metadata
from gateway.wire.heads.request_id import new_request_ids
from gateway.wire.opaque import check_plain
from gateway.wire.protobuf.library import methods_of, parse, reply_of, serialized_files
from gateway.wire.protobuf.plain import ProtobufMessages
from gateway.wire.protobuf.wire_format import WireError
from gateway.wire.status_errors import StatusErrorForm

NAME: Final = "seldon.grpc"
_ERRORS: Final = StatusErrorForm(
    codec=NAME, status=grpc_status, error_class=lambda status, _text: error_class_of_grpc(status)
)
_PACKAGE: Final = "/seldon.protos."
_PREDICT, _FEEDBACK = "Predict", "SendFeedback"
_METADATA: Final = frozenset({"Metadata", "ModelMetadata", "GraphMetadata"})
_DEPLOYMENT, _NAMESPACE = "seldon", "namespace"
_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
# A server that has no such method, or fails over the metadata of its author, is there.
_DEAD: Final = frozenset({GrpcStatus.UNAVAILABLE, GrpcStatus.DEADLINE_EXCEEDED})

METHODS: Final = methods_of(pb.DESCRIPTOR)
"""All methods: those of graphs are refused by name."""
file_descriptors: Final = partial(serialized_files, pb.DESCRIPTOR)


class SeldonGrpcForm(Struct, frozen=True):
    """What the response to one request depends on.

    Attributes:
        method: The name of its method.
        message: The form of its message.
    """

    method: str
    message: MessageForm = MessageForm()


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
    limitations = LIMITATIONS

    def __init__(
        self, limits: MessageLimits = DEFAULT_LIMITS, options: Mapping[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._options = read_options(options or {})
        self._rules = value_rules(self._options, limits)
        self._style = self._options.style
        self.whole = NAME if self._options.nonfinite == WORDS else ""
        self.messages = ProtobufMessages(pb.DESCRIPTOR)
        self._declared: Mapping[str, SeldonForm] = {}
        self._puids = new_request_ids()
        self.calls = {
            InferRequest: Handling(
                self._predict,
                self._infer_reply,
                self._answer,
                send_on=partial(self._sent, _PREDICT),
            ),
            OpaqueCall: Handling(send_on=partial(self._sent, _FEEDBACK)),
            ModelMetadataRequest: Handling(self._question, self._metadata, _metadata_reply),
            ServerLiveRequest: Handling(
                self._question, encode_reply=self._no_answer, by_status=_is_there
            ),
            ServerReadyRequest: Handling(self._question, by_status=_is_there),
            ModelReadyRequest: Handling(self._question, by_status=_is_there),
        }

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
            raise unknown_method(wire.method)
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
            check_plain(is_plain=self.is_plain(wire))
            message = Origin(NAME, wire, whole=NAME)
            return OpaqueCall(model=model, context=context, message=message)
        if method in _METADATA:
            check_management_size(method, len(wire.view))
            return ModelMetadataRequest(model=self._described(wire, method), context=context)
        raise GraphVerb(
            f"{method} is a step of a graph, which the gateway does not run: expected a prediction "
            "(pipelines of the configuration have steps)"
        )

    def encode_error(self, _call: Call[Any] | None, error: errors.GatewayError, /) -> GrpcResponse:
        """Write an error as status and details; those of an upstream are kept, within the limit."""
        return _ERRORS.write(error, self._limits)

    def error_in(self, call: Call[Any], wire: GrpcResponse, /) -> errors.GatewayError | None:
        """Return the error of an upstream's status; None for a success."""
        return _ERRORS.read(call.model, wire)

    def decode_unread(self, wire: GrpcRequest, refused: errors.GatewayError, /) -> Call[Any] | None:
        """Return a prediction whose payload only its server knows."""
        if wire.method not in METHODS or wire.method.rpartition("/")[2] != _PREDICT:
            return None
        if not self.is_plain(wire):
            return None
        form = SeldonGrpcForm(_PREDICT)
        context = grpc_context(wire, NAME, _NEEDS, form, whole=self.whole, refusal=refused)
        return InferRequest(model=self._model(wire), context=context)

    def _sent(self, method: str, call: Call[Any], message: Origin) -> GrpcRequest:
        """Return a client's request to a server, which has one model."""
        return self._request(call, method, message.wire.message)

    def _decode_predict(self, wire: GrpcRequest) -> InferRequest:
        model = self._model(wire)
        declared = self._declared.get("" if model is None else model.name, NO_DECLARATION)
        reader = SeldonMessageReader(wire.view, self._limits, self._rules)
        payload = reader.payload(declared)
        meta = reader.meta
        form = SeldonGrpcForm(_PREDICT, MessageForm(payload.kind, meta, declared))
        return InferRequest(
            model=model,
            context=grpc_context(wire, NAME, _NEEDS, form, whole=self.whole),
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

    def _request(self, call: Call[Any], method: str, message: Any) -> GrpcRequest:
        context = call.context
        path = f"{_PACKAGE}{self._options.service}/{method}"
        return GrpcRequest(path, message, self._upstream_metadata(context), context.deadline)

    def _predict(self, call: InferRequest) -> GrpcRequest:
        check_one_array(call)
        tensor = call.inputs[0]
        kind = payload_kind(tensor, self._options, has_integers=False)
        if kind is PayloadKind.TEXT:
            only_element(tensor)
            kind = PayloadKind.BYTES if only_text(tensor) is None else kind
        written = message(tensor, kind, call.id, dict(call.parameters), (), "input")
        return self._request(call, _PREDICT, written)

    def _question(self, call: Call[Any]) -> GrpcRequest:
        method = "Metadata" if self._options.service == MODEL else "ModelMetadata"
        return self._request(call, method, (b"",))

    def _answer(self, call: InferRequest, reply: InferResponse) -> GrpcResponse:
        found = form_of(call, SeldonGrpcForm).message.of_model(self._declared, call, reply)
        puid = found.meta.puid or call.context.request_id or next(self._puids)
        return GrpcResponse(answer(reply, found, self._style, puid))

    def _no_answer(self, _call: ServerLiveRequest, _reply: bool) -> GrpcResponse:
        """Return the answer to feedback that no server gets."""
        empty = pb.SeldonMessage()
        empty.data.ndarray.SetInParent()
        empty.meta.ParseFromString(meta_message(next(self._puids), {}))
        return reply_of(empty)

    def _metadata(self, call: ModelMetadataRequest, wire: GrpcResponse) -> ModelMetadata:
        found = MessageToDict(parse(wire.view, pb.SeldonModelMetadata))
        for entry in (*found.get("inputs", ()), *found.get("outputs", ())):
            entry["shape"] = [int(dim) for dim in entry.get("shape", ())]
        name = "" if call.model is None else call.model.name
        return read_metadata(found, name, self._limits)

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


def _is_there(wire: GrpcResponse) -> bool | None:
    """Return whether a server is there: one that lacks the method is."""
    return None if wire.status in _DEAD else True


def _metadata_reply(call: ModelMetadataRequest, content: ModelMetadata) -> GrpcResponse:
    name = "" if call.model is None else call.model.name
    document = metadata_document(content, name)
    described = ParseDict(document, pb.SeldonModelMetadata())
    if form_of(call, SeldonGrpcForm).method != "GraphMetadata":
        return reply_of(described)
    graph = pb.SeldonGraphMetadata(name=described.name)
    graph.models[described.name].CopyFrom(described)
    graph.inputs.extend(described.inputs)
    graph.outputs.extend(described.outputs)
    return reply_of(graph)
