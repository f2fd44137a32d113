"""The TensorRT v1 gRPC codec: a table of functions between gRPC messages and calls.

It reads and writes inferences, whose tensors are views; `management.py` has the other messages.

Every call succeeds, with its status in `request_status`, field 1 of every response.  Each message
of a client's stream is a call of its own.  The response to a wrong one has its id, because clients
match responses by id and wait for each of them.

The codec is pure except for two things: a counter, since every response has a number, and a cache
of headers.

Source: docs/protocols/tensorrt-v1.md, "7. gRPC methods", "8. Inference over gRPC" and
"9. StreamInfer".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from google.protobuf.message import DecodeError, Message

from gateway.api.protocol import FramingCodec, Handling, with_replies
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
    SharedStatusRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.limits import MessageLimits, check_management_size
from gateway.protocols.trtis import management
from gateway.protocols.trtis.errors import status_of
from gateway.protocols.trtis.extension_policy import check_allowed
from gateway.protocols.trtis.infer_request import request_of, tensors_of_entries, views_of
from gateway.protocols.trtis.infer_request_header import (
    HeaderReader,
    id_of_message,
    number_of,
    write_header,
)
from gateway.protocols.trtis.infer_response import CALLER_NEEDS, REPLY_NEEDS, read_reply
from gateway.protocols.trtis.management import SERVICE
from gateway.protocols.trtis.model_names import checked_model, checked_version, required_model
from gateway.protocols.trtis.options import TrtisOptions, read_options
from gateway.protocols.trtis.response_header_cache import ResponseHeaderCache
from gateway.protocols.trtis.status_replies import (
    MODEL_CONTROL_CALLS,
    STATUS_READERS,
    StatusReader,
    error_of,
)
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.errors import (
    GRPC_STATUS,
    TOO_MANY_REQUESTS,
    clip,
    unknown_method,
)
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.heads.metadata import grpc_context, unary_request
from gateway.wire.protobuf.library import methods_of, parse, serialized_files
from gateway.wire.protobuf.messages import FieldKind, MessageDescriptor, MessageField
from gateway.wire.protobuf.plain import (
    ProtobufMessages,
    ended_call,
    passed_message,
    passed_metadata,
    with_name,
    without_field,
)
from gateway.wire.protobuf.wire_format import LEN, Parts, WireError, put_bytes, tag, varint
from gateway.wire.status_errors import StatusErrorForm


class InferMessage(NamedTuple):
    """The parts of a request.

    Attributes:
        headers: The occurrences of the serialized header.
        raws: Entries of raw_input, in order.
    """

    model_name: str
    model_version: int
    headers: list[memoryview]
    raws: list[memoryview]

    @property
    def meta_data(self) -> bytes:
        """The serialized header."""
        return b"".join(self.headers)


class InferAnswer(NamedTuple):
    """The parts of a response.

    Attributes:
        statuses: The occurrences of the serialized RequestStatus.
        headers: The occurrences of the serialized header.
        raws: Entries of raw_output, in order.
    """

    statuses: list[memoryview]
    headers: list[memoryview]
    raws: list[memoryview]

    @property
    def meta_data(self) -> bytes:
        """The serialized header."""
        return b"".join(self.headers)


REQUEST: Final = MessageDescriptor(
    "InferRequest",
    InferMessage,
    [
        MessageField(1, FieldKind.TEXT, "model_name", "model_name"),
        MessageField(2, FieldKind.INT64, "model_version"),
        MessageField(3, FieldKind.CLOSED, "meta_data"),
        MessageField(4, FieldKind.VIEW, "raw_input", repeated=True),
    ],
)
RESPONSE: Final = MessageDescriptor(
    "InferResponse",
    InferAnswer,
    [
        MessageField(1, FieldKind.CLOSED, "request_status"),
        MessageField(2, FieldKind.CLOSED, "meta_data"),
        MessageField(3, FieldKind.VIEW, "raw_output", repeated=True),
    ],
)

NAME: Final = "trtis.grpc"
_ERRORS: Final = StatusErrorForm(codec=NAME)

_INFER, _STREAM = SERVICE + "Infer", SERVICE + "StreamInfer"

METHODS: Final = methods_of(pb.DESCRIPTOR)
file_descriptors: Final = partial(serialized_files, pb.DESCRIPTOR)

_STATUS, _META_DATA = RESPONSE.key("request_status"), RESPONSE.key("meta_data")
_INDEX = varint(tag(2, LEN))
_NEWEST = -1
# The id of a stream's only message: real servers read 0 as no id.
_ALONE = 1
# Codes by which a server says that a model does not exist.
_NO_MODEL = (pb.INVALID_ARG, pb.NOT_FOUND)


class GrpcCodec(FramingCodec[GrpcRequest, GrpcResponse]):
    """Reads and writes the messages of `nvidia.inferenceserver.GRPCService`.

    Args:
        limits: The limits of a message.
        options: The checked options of its listener or upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = REPLY_NEEDS | {Need.OUTPUTS}
    messages = ProtobufMessages(pb.DESCRIPTOR)

    def __init__(self, limits: MessageLimits, options: Mapping[str, Any]) -> None:
        self._limits = limits
        self._options = read_options(options)
        self._headers = HeaderReader(limits)
        self._heads = ResponseHeaderCache()
        self._request_ids = self._options.request_ids.counter(self._options.server_id)
        self.whole = "" if self._options.version_zero == "latest" else NAME
        readers: dict[type[Call[Any]], Callable[[Any, GrpcResponse], Any]] = {
            ServerLiveRequest: _read_health,
            ServerReadyRequest: _read_health,
            SharedStatusRequest: partial(_read_shared, limits),
            **dict.fromkeys(MODEL_CONTROL_CALLS, partial(_read_control, limits)),
            **{kind: partial(_read_status, limits, read) for kind, read in STATUS_READERS.items()},
        }
        calls: dict[type[Call[Any]], Handling] = {
            kind: Handling(
                partial(_question, method, write),
                readers[kind],
                by_status=_is_absent if kind is ModelReadyRequest else None,
            )
            for kind, (method, write) in management.CALL_WRITERS.items()
        }
        calls[InferRequest] = Handling(_infer, partial(_read_inference, limits))
        calls[StreamInferRequest] = Handling(_stream)
        replies: dict[type[Call[Any]], Callable[[Any, Any], GrpcResponse]] = {
            kind: partial(self._encode, write) for kind, write in management.REPLY_WRITERS.items()
        }
        replies[InferRequest] = self._encode_infer
        self.calls = with_replies(calls, replies, {InferRequest: _passed_inference})

    def decode_call(self, wire: GrpcRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request; tensors are views into its message.

        Raises:
            InvalidRequest: The message is wrong; its id is kept for the response.
            TooLarge: A limit is exceeded.
            Unsupported: The method does not exist.
            Forbidden: The listener does not allow the call.
        """
        if wire.method in (_INFER, _STREAM):
            return self._decode_infer(wire)
        read = management.CALL_READERS.get(wire.method)
        if read is None:
            raise unknown_method(wire.method)
        view = wire.view
        check_management_size(wire.method.rpartition("/")[2], len(view))
        call = read(view, grpc_context(wire, NAME, CALLER_NEEDS, has_bytes=False), self._limits)
        try:
            check_allowed(call, self._options)
        except errors.GatewayError as error:
            error.origin = Origin(NAME, wire, type(call))
            raise
        if type(call) is ServerStatusRequest and call.about is not None and self.is_plain(wire):
            return call.with_context(origin=Origin(NAME, wire, call.about, whole=self.whole))
        return call

    def send_on(self, call: Call[Any], message: Origin, /) -> GrpcRequest:
        """Write a client's request to a server, with the target's model.

        Raises:
            Unsupported: It asks for the status of a model that has another name here.
        """
        model, wire = required_model(call), message.wire
        if model == message.form:
            return unary_request(call, wire.method, wire.message)
        if wire.method != _INFER:
            raise errors.Unsupported("a status has the names of models", model=model)
        head = REQUEST.write(model_name=model.name, model_version=_number_of(model))
        rest = [piece for part in without_field(wire.view, 1) for piece in without_field(part, 2)]
        return unary_request(call, _INFER, [*head, *rest])

    def encode_error(self, call: Call[Any] | None, error: errors.GatewayError, /) -> GrpcResponse:
        """Write an error as `request_status`, with the id of an inference; never raises.

        A rate ends a unary call, and so does what ended the call of an upstream: other calls of a
        stream go on. A credential that the gateway refuses ends every call.
        """
        in_stream = call is not None and call.context.session is not None
        is_denied = call is None and error.code is errors.ErrorCode.UNAUTHENTICATED
        if is_denied or (isinstance(error, TOO_MANY_REQUESTS) and not in_stream):
            details = clip(error.message, self._limits.error_text_bytes)
            return GrpcResponse(status=GRPC_STATUS[error.code], details=details)
        passed = None if call is None else passed_message(call, error, self._limits)
        if passed is None and not in_stream:
            passed = ended_call(error, NAME, self._limits)
        if passed is not None:
            return passed
        status = status_of(call, error, self._limits.error_text_bytes)
        head = self._head(status.code, status.text)
        if _refused_type(call, error) is RepositoryIndexRequest:
            # Without an index the client reports a wrong response, and ignores the status.
            put_bytes(head, _INDEX, b"")
        number = _id_of_error(call, error)
        if number is not None:
            put_bytes(head, _META_DATA, pb.InferResponseHeader(id=number).SerializeToString())
        return GrpcResponse((head,))

    def error_in(self, call: Call[Any], wire: GrpcResponse, /) -> errors.GatewayError | None:
        """Return the error of an upstream's gRPC status; that in a message is read with it."""
        return _ERRORS.read(call.model, wire)

    def decode_item(self, call: StreamInferRequest, wire: GrpcResponse, /) -> InferResponse:
        """Read the response of an upstream's stream, which has one for each request.

        Raises:
            GatewayError: As `decode_reply`.
            MalformedMessage: It is the response to another request.
        """
        request = call.request.with_context(needs=call.context.needs)
        reply = self.decode_reply(request, wire)
        header = pb.InferResponseHeader.FromString(_parts_of(wire, self._limits).meta_data)
        sent_id = number_of(request.id) or _ALONE
        if header.id != sent_id:
            raise errors.MalformedMessage(
                f"response has the id {header.id}: the request has {sent_id}"
            )
        return reply

    def splitter(self) -> SingleReplySplitter:
        """Return a splitter that requires exactly one response to a stream of one request."""
        return SingleReplySplitter()

    def _status(self, code: int, text: str) -> bytes:
        status = pb.RequestStatus(
            code=cast("pb.RequestStatusCode", code),
            msg=text,
            server_id=self._options.server_id,
            request_id=next(self._request_ids),
        )
        return status.SerializeToString()

    def _head(self, code: int, text: str) -> bytearray:
        head = bytearray()
        put_bytes(head, _STATUS, self._status(code, text))
        return head

    def _decode_infer(self, wire: GrpcRequest) -> InferRequest:
        meta_data = b""
        try:
            try:
                message = REQUEST.read((wire.view,), self._limits)
            except WireError as error:
                raise errors.MalformedMessage(f"message is not an InferRequest: {error}") from error
            meta_data = message.meta_data
            model = self._model(message)
            header = self._headers.message(meta_data)
            whole = self.whole if wire.method == _INFER else ""
            context = grpc_context(wire, NAME, CALLER_NEEDS, model, has_bytes=False, whole=whole)
            return request_of(model, context, header, tensors_of_entries(header, message.raws))
        except errors.GatewayError as error:
            error.origin = error.origin or Origin(NAME, wire, id_of_message(meta_data))
            raise

    def _model(self, message: InferMessage) -> ModelRef:
        model = checked_model(message.model_name, self._limits)
        version = message.model_version
        if version == _NEWEST or (not version and self._options.version_zero == "latest"):
            return model
        if version < 0:
            raise errors.InvalidRequest(
                f"model version is {version}: expected a version or {_NEWEST} for the newest",
                model=model,
            )
        return ModelRef(model.name, str(version))

    def _encode_infer(self, call: InferRequest, reply: InferResponse) -> GrpcResponse:
        written, views = self._heads.write(call, reply)
        status, header = self._status(pb.SUCCESS, ""), written.message(number_of(call.id))
        return GrpcResponse(
            RESPONSE.write(request_status=status, meta_data=header, raw_output=views)
        )

    def _encode(
        self, write: Callable[[Any, Any, TrtisOptions], Message], call: Call[Any], reply: Any
    ) -> GrpcResponse:
        body = write(reply, call, self._options).SerializeToString()
        return GrpcResponse((self._head(pb.SUCCESS, ""), body))


def _number_of(model: ModelRef) -> int:
    return int(checked_version(model)) if model.version else _NEWEST


def _question(method: str, write: Callable[[Any], Message], call: Call[Any]) -> GrpcRequest:
    return unary_request(call, method, (write(call).SerializeToString(),))


def _infer(call: InferRequest) -> GrpcRequest:
    return unary_request(call, _INFER, _written_infer(call))


def _stream(call: StreamInferRequest) -> GrpcRequest:
    message = _written_infer(call.request, number_of(call.request.id) or _ALONE)
    return unary_request(call, _STREAM, message)


def _written_infer(call: InferRequest, stream_id: int = 0) -> Parts:
    model = required_model(call)
    # Over gRPC a server of any version ignores an unknown field.
    header = write_header(call, schedule=True)
    header.id = stream_id or header.id
    return REQUEST.write(
        model_name=model.name,
        model_version=_number_of(model),
        meta_data=header.SerializeToString(),
        raw_input=views_of(call),
    )


def _check(
    call: Call[Any], status: pb.RequestStatus, wire: GrpcResponse, limits: MessageLimits
) -> None:
    if status.code != pb.SUCCESS:
        raise error_of(call, status, Origin(NAME, wire, whole=NAME), limits.error_text_bytes)


def _is_absent(wire: GrpcResponse) -> bool | None:
    return False if parse(wire.view, pb.StatusResponse).request_status.code in _NO_MODEL else None


def _read_status(
    limits: MessageLimits, read: StatusReader, call: Call[Any], wire: GrpcResponse
) -> Any:
    message = parse(wire.view, pb.StatusResponse)
    _check(call, message.request_status, wire, limits)
    return read(call, message.server_status, limits)


def _read_shared(limits: MessageLimits, call: SharedStatusRequest, wire: GrpcResponse) -> Any:
    shared = parse(wire.view, pb.SharedMemoryControlResponse)
    _check(call, shared.request_status, wire, limits)
    found = shared.shared_memory_status
    regions = found.shared_memory_region or found.declared_region
    return management.read_shared_status(regions, limits)


def _read_control(limits: MessageLimits, call: Call[Any], wire: GrpcResponse) -> None:
    _check(call, parse(wire.view, pb.ModelControlResponse).request_status, wire, limits)


def _read_inference(limits: MessageLimits, call: InferRequest, wire: GrpcResponse) -> InferResponse:
    message = _parts_of(wire, limits)
    try:
        status = pb.RequestStatus.FromString(b"".join(message.statuses))
        header = pb.InferResponseHeader.FromString(message.meta_data)
    except DecodeError as error:
        raise errors.MalformedMessage("message is not an InferResponse") from error
    _check(call, status, wire, limits)
    if len(message.raws) != len(header.output):
        raise errors.MalformedMessage(
            f"response has {len(message.raws)} raw_output: expected {len(header.output)}"
        )
    return read_reply(call, header, message.raws, Origin(NAME, wire), limits)


def _parts_of(wire: GrpcResponse, limits: MessageLimits) -> InferAnswer:
    try:
        return RESPONSE.read((wire.view,), limits)
    except WireError as error:
        raise errors.MalformedMessage(f"message is not an InferResponse: {error}") from error


def _passed_inference(call: InferRequest, reply: Origin) -> GrpcResponse:
    """Return a server's response, with the name that the client has for the model."""
    name = "" if call.model is None else call.model.name
    message = with_name(reply.wire, (2, 1), name)
    return GrpcResponse(message, metadata=passed_metadata(reply.wire))


def _read_health(_call: Call[bool], wire: GrpcResponse) -> bool:
    health = parse(wire.view, pb.HealthResponse)
    return health.health and health.request_status.code == pb.SUCCESS


class SingleReplySplitter:
    """Returns the only response, and refuses a missing or a second one."""

    def __init__(self) -> None:
        self._answers = 0

    def receive(self, part: GrpcResponse, /) -> Sequence[GrpcResponse]:
        """Return the response.

        Raises:
            MalformedMessage: It is the second one.
        """
        self._answers += 1
        if self._answers > 1:
            raise errors.MalformedMessage("stream of one request has a second response")
        return (part,)

    def end(self) -> Sequence[GrpcResponse]:
        """Return nothing.

        Raises:
            MalformedMessage: The stream ended without a response.
        """
        if not self._answers:
            raise errors.MalformedMessage("stream ended without a response")
        return ()


def _refused_type(call: Call[Any] | None, error: errors.GatewayError) -> Any:
    """Return the type of the refused call; None where it could not be read."""
    if call is not None:
        return type(call)
    return None if error.origin is None else error.origin.form


def _id_of_error(call: Call[Any] | None, error: errors.GatewayError) -> int | None:
    """Return the id to echo; None for a call that is not an inference."""
    if isinstance(call, InferRequest):
        return number_of(call.id)
    if call is None and error.origin is not None and type(error.origin.form) is int:
        return error.origin.form
    return None
