"""The grps gRPC codec: seven functions between gRPC messages and calls.

A failure is in the Status of a message, and the gRPC call succeeds, as with real servers.  Only an
unreadable message, an unknown method and overload end the call itself.

Source: docs/protocols/grps.md, "11. gRPC".
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from gateway.api.protocol import Codec
from gateway.ir.calls import Call, InferResponse, StreamInferRequest
from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError, InvalidRequest, InvalidTensor, MalformedMessage
from gateway.ir.limits import MessageLimits
from gateway.protocols.grps import methods
from gateway.protocols.grps.brpc import codec
from gateway.protocols.grps.content import ReplyFormat, has_only_text, reply_format_of
from gateway.protocols.grps.errors import NoMethod, ends_call
from gateway.protocols.grps.messages import GrpsMessage
from gateway.protocols.grps.options import read_options
from gateway.protocols.grps.protobuf.message import read_message, write_message
from gateway.schema import grps_pb2 as pb
from gateway.wire.errors import GRPC_STATUS, clip, error_class_of_grpc, strip_traceback
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from gateway.wire.metadata import grpc_context, grpc_metadata

R = TypeVar("R")

NAME: Final = "grps.grpc"
SERVICE: Final = "/grps.protos.v1.GrpsService/"

METHODS: Final[Mapping[str, MethodKind]] = {
    SERVICE + method: (
        MethodKind.SERVER_STREAM if method == methods.PREDICT_STREAMING else MethodKind.UNARY
    )
    for method in methods.METHODS
}
BRPC_METHODS: Final[Mapping[str, MethodKind]] = {
    f"/{codec.SERVICE}/{method}": MethodKind.UNARY for method in codec.METHODS
}
"""The same methods in brpc's service, whose port serves gRPC too."""


def file_descriptors() -> tuple[bytes, ...]:
    """Return the serialized FileDescriptorProtos of the service, for server reflection."""
    return (pb.DESCRIPTOR.serialized_pb,)


class GrpcCodec(Codec[GrpcRequest, GrpcResponse]):
    """Reads and writes the messages of `grps.protos.v1.GrpsService`.

    Args:
        limits: The limits of a message.
        options: The checked options of its listener or upstream.

    Raises:
        ValueError: An option is wrong.
    """

    name = NAME
    needs = methods.NEEDS

    def __init__(self, limits: MessageLimits, options: Mapping[str, Any]) -> None:
        self._limits = limits
        self._settings = read_options(options)

    def decode_call(self, wire: GrpcRequest, _request_id: str = "", /) -> Call[Any]:
        """Read a client's request; float tensors and bytes are views of its message.

        Raises:
            Unreadable: The bytes are not a message.
            NoMethod: The service has no such method.
            GatewayError: The message is wrong, or exceeds a limit.
        """
        if wire.method not in METHODS and wire.method not in BRPC_METHODS:
            raise NoMethod(f"method {clip(wire.method, 128)!r} does not exist in grps")
        message = read_message(wire.view, self._limits)
        context = grpc_context(wire, NAME, methods.REPLY_NEEDS, ReplyFormat(message.form))
        method = wire.method.rpartition("/")[2]
        return methods.decode_method(method, message, context, self._settings, self._limits)

    def encode_reply(self, call: Call[R], reply: R, /) -> GrpcResponse:
        """Write the response to *call*; the data of large float tensors are not copied.

        Raises:
            Unsupported: grps cannot carry the reply.
        """
        return _response(methods.encode_method_reply(call, reply, reply_format_of(call)))

    def encode_item(self, call: StreamInferRequest, item: InferResponse, /) -> GrpcResponse:
        """Write one response of a stream.

        Raises:
            Unsupported: grps cannot carry the reply.
        """
        return _response(methods.encode_method_reply(call, item, reply_format_of(call)))

    def has_only_text(self, _call: StreamInferRequest, item: InferResponse, /) -> bool:
        """Return whether BYTES of an item can only be text."""
        return has_only_text(item)

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> GrpcResponse:
        """Write *error* as a message whose Status is FAILURE, or end the call with it.

        An error that ended the call of an upstream of this codec ends this call.  Never raises.
        """
        origin = error.origin
        if origin is not None and origin.codec == NAME and isinstance(origin.wire, GrpcResponse):
            ended = origin.wire
            if ended.status is not GrpcStatus.OK:
                return GrpcResponse(status=ended.status, details=strip_traceback(ended.details))
        if ends_call(error, unread=call is None):
            details = clip(error.message, self._limits.error_text_bytes)
            return GrpcResponse(status=GRPC_STATUS[error.code], details=details)
        return _response(methods.failure_of(error, self._limits))

    def encode_call(self, call: Call[Any], /) -> GrpcRequest:
        """Write a request to an upstream; the data of large float tensors are not copied.

        Raises:
            Unsupported: grps cannot carry it, or has no such request.
        """
        method, message = methods.encode_question(call, self._settings)
        context = call.context
        return GrpcRequest(
            SERVICE + method, write_message(message), grpc_metadata(context), context.deadline
        )

    def decode_reply(self, call: Call[R], wire: GrpcResponse, /) -> R:
        """Read an upstream's response to *call*; float tensors and bytes are views of it.

        Raises:
            GatewayError: The error in its gRPC status or its Status.
            MalformedMessage, InvalidTensor, TooLarge: The response cannot be used.
        """
        # The type of a call determines that of its reply, which mypy cannot follow.
        return cast("R", self._read(call, wire))

    def decode_item(self, call: StreamInferRequest, wire: GrpcResponse, /) -> InferResponse:
        """Read one response of an upstream's stream; raises as `decode_reply`."""
        return cast("InferResponse", self._read(call, wire))

    def _read(self, call: Call[Any], wire: GrpcResponse) -> Any:
        origin = Origin(NAME, wire)
        if wire.status is not GrpcStatus.OK:
            text = (
                strip_traceback(wire.details)
                or f"upstream responded with the status {wire.status.name}"
            )
            raise error_class_of_grpc(wire.status)(text, model=call.model, origin=origin)
        try:
            message = read_message(wire.view, self._limits)
            return methods.decode_method_reply(call, message, origin, self._settings, self._limits)
        except InvalidRequest as error:
            if isinstance(error, MalformedMessage | InvalidTensor) or error.origin is not None:
                raise
            raise MalformedMessage(error.message) from error


def _response(message: GrpsMessage) -> GrpcResponse:
    return GrpcResponse(write_message(message))
