"""The TensorRT v1 gRPC codec: seven functions between gRPC messages and calls.

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

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from google.protobuf.message import DecodeError

from gateway.api.protocol import FramingCodec, unsupported
from gateway.ir import errors
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    SharedStatusRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.limits import MessageLimits, check_management_size
from gateway.protocols.trtis import management
from gateway.protocols.trtis.errors import status_of
from gateway.protocols.trtis.extension_policy import check_allowed
from gateway.protocols.trtis.grpc.scan import InferMessage, scan_request, scan_response
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
from gateway.protocols.trtis.options import read_options
from gateway.protocols.trtis.response_header_cache import ResponseHeaderCache
from gateway.protocols.trtis.status_replies import (
    MODEL_CONTROL_CALLS,
    STATUS_READERS,
    error_of,
)
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.errors import (
    GRPC_STATUS,
    TOO_MANY_REQUESTS,
    clip,
    error_class_of_grpc,
    strip_traceback,
)
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from gateway.wire.metadata import grpc_context, grpc_metadata
from gateway.wire.protobuf import LEN, Parts, put_bytes, put_tail, tag, varint
from gateway.wire.protobuf_library import parse

R = TypeVar("R")

NAME: Final = "trtis.grpc"

_INFER, _STREAM = SERVICE + "Infer", SERVICE + "StreamInfer"

METHODS: Mapping[str, MethodKind] = {
    f"/{method.containing_service.full_name}/{method.name}": (
        MethodKind.BIDIRECTIONAL if method.client_streaming else MethodKind.UNARY
    )
    for method in pb.DESCRIPTOR.services_by_name["GRPCService"].methods
}

_STATUS = varint(tag(1, LEN))
_META_DATA, _RAW_OUTPUT = varint(tag(2, LEN)), varint(tag(3, LEN))
_RAW_INPUT, _INDEX = varint(tag(4, LEN)), varint(tag(2, LEN))
_NEWEST = -1
# The id of a stream's only message: real servers read 0 as no id.
_ALONE = 1
_HEALTH = (ServerLiveRequest, ServerReadyRequest)
_ABOUT_A_MODEL = frozenset(
    {ModelReadyRequest, ModelMetadataRequest, ModelLoadRequest, ModelUnloadRequest}
)
# Codes by which a server says that a model does not exist.
_NO_MODEL = (pb.INVALID_ARG, pb.NOT_FOUND)


def file_descriptors() -> tuple[bytes, ...]:
    """Return the serialized FileDescriptorProtos of the service, for server reflection."""
    return (pb.DESCRIPTOR.serialized_pb,)


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

    def __init__(self, limits: MessageLimits, options: Mapping[str, Any]) -> None:
        self._limits = limits
        self._options = read_options(options)
        self._headers = HeaderReader(limits)
        self._heads = ResponseHeaderCache()
        self._request_ids = self._options.request_ids.counter(self._options.server_id)

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
            raise errors.Unsupported(
                f"method {clip(wire.method, 128)!r} is not supported by this gateway"
            )
        view = wire.view
        check_management_size(wire.method.rpartition("/")[2], len(view))
        call = read(view, grpc_context(wire, NAME, CALLER_NEEDS), self._limits)
        try:
            check_allowed(call, self._options)
        except errors.GatewayError as error:
            error.origin = Origin(NAME, wire, type(call))
            raise
        return call

    def encode_reply(self, call: Call[R], reply: R, /) -> GrpcResponse:
        """Write the response to *call*; the data of large outputs are not copied.

        Raises:
            Unsupported: The protocol has no such response, or no form for an output.
            UpstreamProtocolError: The reply does not belong to this inference.
        """
        if isinstance(call, InferRequest) and isinstance(reply, InferResponse):
            written, views = self._heads.write(call, reply)
            head = self._head(pb.SUCCESS, "")
            put_bytes(head, _META_DATA, written.message(number_of(call.id)))
            parts: Parts = [head]
            for view in views:
                put_tail(parts, _RAW_OUTPUT, view)
            return GrpcResponse(parts)
        write = management.REPLY_WRITERS.get(type(call))
        if write is None:
            raise unsupported(call, NAME)
        body = write(reply, call, self._options).SerializeToString()
        return GrpcResponse((self._head(pb.SUCCESS, ""), body))

    def encode_error(self, call: Call[Any] | None, error: errors.GatewayError, /) -> GrpcResponse:
        """Write an error as `request_status`, with the id of an inference; never raises.

        A rate ends a unary call: other calls of a stream go on. A credential that the gateway
        refuses ends every call.
        """
        in_stream = call is not None and call.context.session is not None
        is_denied = call is None and error.code is errors.ErrorCode.UNAUTHENTICATED
        if is_denied or (isinstance(error, TOO_MANY_REQUESTS) and not in_stream):
            details = clip(error.message, self._limits.error_text_bytes)
            return GrpcResponse(status=GRPC_STATUS[error.code], details=details)
        status = status_of(call, error, self._limits.error_text_bytes)
        head = self._head(status.code, status.text)
        if _refused_type(call, error) is RepositoryIndexRequest:
            # Without an index the client reports a wrong response, and ignores the status.
            put_bytes(head, _INDEX, b"")
        number = _id_of_error(call, error)
        if number is not None:
            put_bytes(head, _META_DATA, pb.InferResponseHeader(id=number).SerializeToString())
        return GrpcResponse((head,))

    def encode_call(self, call: Call[Any], /) -> GrpcRequest:
        """Write a request to an upstream; raw inputs are not copied.

        Raises:
            Unsupported: TensorRT v1 cannot carry it, or has no such request.
        """
        context = call.context
        try:
            method, message = self._written(call)
        except ValueError as error:  # lone surrogates in a name, numbers over 64 bits
            raise errors.Unsupported(
                f"{type(call).__name__} cannot be written: {error}", model=call.model
            ) from error
        return GrpcRequest(method, message, grpc_metadata(context), context.deadline)

    def decode_reply(self, call: Call[R], wire: GrpcResponse, /) -> R:
        """Read an upstream's response to *call*; tensors are views into its message.

        Raises:
            GatewayError: The error in `request_status`, or in the gRPC status.
            MalformedMessage, InvalidTensor, TooLarge: The response cannot be used.
        """
        if wire.status is not GrpcStatus.OK:
            kind = error_class_of_grpc(wire.status)
            text = (
                strip_traceback(wire.details)
                or f"upstream responded with the gRPC status {wire.status.name}"
            )
            raise kind(text, model=call.model, origin=Origin(NAME, wire))
        # The type of a call determines that of its reply, which mypy cannot follow.
        try:
            return cast("R", self._reply(call, wire))
        except errors.InvalidRequest as error:
            if error.origin is not None or isinstance(
                error, errors.MalformedMessage | errors.InvalidTensor
            ):
                raise
            raise errors.MalformedMessage(error.message) from error

    def decode_item(self, call: StreamInferRequest, wire: GrpcResponse, /) -> InferResponse:
        """Read the response of an upstream's stream, which has one for each request.

        Raises:
            GatewayError: As `decode_reply`.
            MalformedMessage: It is the response to another request.
        """
        request = call.request.with_context(needs=call.context.needs)
        reply = self.decode_reply(request, wire)
        header = pb.InferResponseHeader.FromString(scan_response(wire.view).meta_data)
        sent_id = number_of(request.id) or _ALONE
        if header.id != sent_id:
            raise errors.MalformedMessage(
                f"response has the id {header.id}: the request has {sent_id}"
            )
        return reply

    def splitter(self) -> SingleReplySplitter:
        """Return a splitter that requires exactly one response to a stream of one request."""
        return SingleReplySplitter()

    def _head(self, code: int, text: str) -> bytearray:
        status = pb.RequestStatus(
            code=cast("pb.RequestStatusCode", code),
            msg=text,
            server_id=self._options.server_id,
            request_id=next(self._request_ids),
        )
        head = bytearray()
        put_bytes(head, _STATUS, status.SerializeToString())
        return head

    def _decode_infer(self, wire: GrpcRequest) -> InferRequest:
        context = grpc_context(wire, NAME, CALLER_NEEDS)
        meta_data = b""
        try:
            message = scan_request(wire.view)
            meta_data = message.meta_data
            model = self._model(message)
            header = self._headers.message(meta_data)
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

    def _written(self, call: Call[Any]) -> tuple[str, Parts | tuple[bytes, ...]]:
        if isinstance(call, InferRequest):
            return _INFER, self._written_infer(call)
        if isinstance(call, StreamInferRequest):
            request = call.request
            return _STREAM, self._written_infer(request, number_of(request.id) or _ALONE)
        found = management.CALL_WRITERS.get(type(call))
        if found is None:
            raise unsupported(call, NAME)
        method, write = found
        if type(call) in _ABOUT_A_MODEL:
            required_model(call)
            management.check_control(call)
        return method, (write(call).SerializeToString(),)

    def _written_infer(self, call: InferRequest, stream_id: int = 0) -> Parts:
        model = required_model(call)
        number = int(checked_version(model)) if model.version else _NEWEST
        # Over gRPC a server of any version ignores an unknown field.
        header = write_header(call, schedule=True)
        header.id = stream_id or header.id
        message = pb.InferRequest(model_name=model.name, model_version=number, meta_data=header)
        parts: Parts = [bytearray(message.SerializeToString())]
        for view in views_of(call):
            put_tail(parts, _RAW_INPUT, view)
        return parts

    def _reply(self, call: Call[Any], wire: GrpcResponse) -> Any:
        if isinstance(call, InferRequest):
            return self._infer_reply(call, wire)
        read = STATUS_READERS.get(type(call))
        if read is not None:
            message = parse(wire.view, pb.StatusResponse)
            if isinstance(call, ModelReadyRequest) and message.request_status.code in _NO_MODEL:
                return False
            self._check(call, message.request_status, wire)
            return read(call, message.server_status, self._limits)
        if isinstance(call, _HEALTH):
            health = parse(wire.view, pb.HealthResponse)
            return health.health and health.request_status.code == pb.SUCCESS
        if isinstance(call, SharedStatusRequest):
            shared = parse(wire.view, pb.SharedMemoryControlResponse)
            self._check(call, shared.request_status, wire)
            found = shared.shared_memory_status
            regions = found.shared_memory_region or found.declared_region
            return management.read_shared_status(regions, self._limits)
        if type(call) not in MODEL_CONTROL_CALLS:
            raise unsupported(call, NAME)
        control = parse(wire.view, pb.ModelControlResponse)
        self._check(call, control.request_status, wire)
        return None

    def _infer_reply(self, call: InferRequest, wire: GrpcResponse) -> InferResponse:
        message = scan_response(wire.view)
        try:
            status = pb.RequestStatus.FromString(message.status)
            header = pb.InferResponseHeader.FromString(message.meta_data)
        except DecodeError as error:
            raise errors.MalformedMessage("message is not an InferResponse") from error
        self._check(call, status, wire)
        if len(message.raws) != len(header.output):
            raise errors.MalformedMessage(
                f"response has {len(message.raws)} raw_output: expected {len(header.output)}"
            )
        return read_reply(call, header, message.raws, Origin(NAME, wire), self._limits)

    def _check(self, call: Call[Any], status: pb.RequestStatus, wire: GrpcResponse) -> None:
        if status.code != pb.SUCCESS:
            raise error_of(call, status, Origin(NAME, wire), self._limits.error_text_bytes)


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
