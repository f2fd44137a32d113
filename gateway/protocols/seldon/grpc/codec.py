"""The gRPC codec of Seldon: functions between gRPC messages and calls.

`messages.py` has SeldonMessage, whose array is a view; the protobuf library reads and writes the
messages without arrays.

Source: docs/protocols/seldon.md, "4. gRPC".
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from gateway.ir.context import ModelRef, Need, Origin
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
from gateway.protocols.seldon.options import (
    FORWARD,
    MODEL,
    WORDS,
    SeldonOptions,
    read_options,
    value_rules,
)
from gateway.schema import seldon_pb2 as pb
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.errors import clip, strip_traceback, unknown_method
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.heads.metadata import form_of, grpc_context, unary_request
from gateway.wire.heads.request_id import new_request_ids
from gateway.wire.http import Buffer
from gateway.wire.opaque import check_plain
from gateway.wire.protobuf.library import methods_of, parse, reply_of, serialized_files
from gateway.wire.protobuf.plain import ProtobufMessages
from gateway.wire.protobuf.wire_format import WireError
from gateway.wire.status_errors import StatusErrorForm

NAME: Final = "seldon.grpc"
_ERRORS: Final = StatusErrorForm(codec=NAME, status=grpc_status)
_PACKAGE: Final = "/seldon.protos."
_PREDICT, _FEEDBACK = "Predict", "SendFeedback"
_OF_MODEL: Final = "ModelMetadata"
_METADATA: Final = frozenset({"Metadata", _OF_MODEL, "GraphMetadata"})
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
        self._options = found = read_options(options or {})
        self._rules = value_rules(found, limits)
        self._style = found.style
        self.whole = NAME if found.nonfinite == WORDS else ""
        self.messages = ProtobufMessages(pb.DESCRIPTOR)
        self._declared: Mapping[str, SeldonForm] = {}
        self._puids = new_request_ids()
        ask = partial(_question, found)
        ready = Handling(ask, by_status=_is_there)
        self.calls = {
            InferRequest: Handling(
                partial(_predict, found),
                self._infer_reply,
                self._answer,
                send_on=partial(_send_whole, found, _PREDICT),
            ),
            OpaqueCall: Handling(send_on=partial(_send_whole, found, _FEEDBACK)),
            ModelMetadataRequest: Handling(ask, partial(_read_metadata, limits), _write_metadata),
            ServerLiveRequest: replace(
                ready, encode_reply=lambda _call, _reply: _no_answer(next(self._puids))
            ),
            ServerReadyRequest: ready,
            ModelReadyRequest: ready,
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
            model = _model(wire, self._options, self._limits)
            if self._options.feedback != FORWARD:
                return ServerLiveRequest(context=context)
            check_plain(is_plain=self.is_plain(wire))
            message = Origin(NAME, wire, whole=NAME)
            return OpaqueCall(model=model, context=context, message=message)
        if method in _METADATA:
            check_management_size(method, len(wire.view))
            name = ""
            if method == _OF_MODEL:
                name = parse(wire.view, pb.SeldonModelMetadataRequest).name
            model = _model(wire, self._options, self._limits, name)
            return ModelMetadataRequest(model=model, context=context)
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
        return InferRequest(model=_model(wire, self._options, self._limits), context=context)

    def _decode_predict(self, wire: GrpcRequest) -> InferRequest:
        model = _model(wire, self._options, self._limits)
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

    def _answer(self, call: InferRequest, reply: InferResponse) -> GrpcResponse:
        found = form_of(call, SeldonGrpcForm).message.of_model(self._declared, call, reply)
        puid = found.meta.puid or call.context.request_id or next(self._puids)
        return GrpcResponse(answer(reply, found, self._style, puid))

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


def _model(
    wire: GrpcRequest, options: SeldonOptions, limits: MessageLimits, name: str = ""
) -> ModelRef | None:
    """Return the model *name*, or the deployment in metadata; None for the listener's model."""
    for key, value in wire.metadata:
        if not name and key == _DEPLOYMENT and isinstance(value, str):
            name = value
    if not name:
        return options.default_model
    check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
    return ModelRef(name)


def _request(
    options: SeldonOptions, call: Call[Any], method: str, message: Sequence[Buffer]
) -> GrpcRequest:
    found = unary_request(call, f"{_PACKAGE}{options.service}/{method}", message)
    given = {_DEPLOYMENT: options.deployment, _NAMESPACE: options.namespace}
    own = tuple([pair for pair in given.items() if pair[1]])
    if not own:
        return found
    others = [pair for pair in found.metadata if not given.get(pair[0])]
    return GrpcRequest(found.method, message, (*others, *own), found.deadline)


def _send_whole(
    options: SeldonOptions, method: str, call: Call[Any], message: Origin
) -> GrpcRequest:
    """Return a client's request to a server, which has one model."""
    return _request(options, call, method, message.wire.message)


def _predict(options: SeldonOptions, call: InferRequest) -> GrpcRequest:
    check_one_array(call)
    tensor = call.inputs[0]
    kind = payload_kind(tensor, options, has_integers=False)
    if kind is PayloadKind.TEXT:
        only_element(tensor)
        kind = PayloadKind.BYTES if only_text(tensor) is None else kind
    written = message(tensor, kind, call.id, dict(call.parameters), (), "input")
    return _request(options, call, _PREDICT, written)


def _question(options: SeldonOptions, call: Call[Any]) -> GrpcRequest:
    return _request(options, call, "Metadata" if options.service == MODEL else _OF_MODEL, (b"",))


def _no_answer(puid: str) -> GrpcResponse:
    """Return the answer to feedback that no server gets."""
    empty = pb.SeldonMessage()
    empty.data.ndarray.SetInParent()
    empty.meta.ParseFromString(meta_message(puid, {}))
    return reply_of(empty)


def _read_metadata(
    limits: MessageLimits, call: ModelMetadataRequest, wire: GrpcResponse
) -> ModelMetadata:
    found = MessageToDict(parse(wire.view, pb.SeldonModelMetadata))
    for entry in (*found.get("inputs", ()), *found.get("outputs", ())):
        entry["shape"] = [int(dim) for dim in entry.get("shape", ())]
    return read_metadata(found, call.model, limits)


def _is_there(wire: GrpcResponse) -> bool | None:
    """Return whether a server is there: one that lacks the method is."""
    return None if wire.status in _DEAD else True


def _write_metadata(call: ModelMetadataRequest, content: ModelMetadata) -> GrpcResponse:
    described = ParseDict(metadata_document(content, call.model), pb.SeldonModelMetadata())
    if form_of(call, SeldonGrpcForm).method != "GraphMetadata":
        return reply_of(described)
    graph = pb.SeldonGraphMetadata(name=described.name)
    graph.models[described.name].CopyFrom(described)
    graph.inputs.extend(described.inputs)
    graph.outputs.extend(described.outputs)
    return reply_of(graph)
