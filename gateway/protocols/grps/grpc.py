"""The grps gRPC codec: a table of functions between gRPC messages and calls.

A failure is in the Status of a message, and the gRPC call succeeds, as with real servers.  Only an
unreadable message, an unknown method and overload end the call itself.

Source: docs/protocols/grps.md, "11. gRPC".
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from gateway.api.protocol import Codec
from gateway.ir.calls import Call, InferResponse, StreamInferRequest
from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.protocols.grps import methods
from gateway.protocols.grps.brpc import codec
from gateway.protocols.grps.content import ReplyFormat, has_only_text
from gateway.protocols.grps.errors import NoMethod, ends_call
from gateway.protocols.grps.options import read_options
from gateway.protocols.grps.protobuf.message import read_message, write_message
from gateway.schema import grps_pb2 as pb
from gateway.wire.errors import GRPC_STATUS, clip
from gateway.wire.grpc import GrpcRequest, GrpcResponse, MethodKind
from gateway.wire.heads.metadata import grpc_context, unary_request
from gateway.wire.protobuf.library import methods_of, serialized_files
from gateway.wire.protobuf.plain import (
    ProtobufMessages,
    ended_call,
    passed_message,
    with_texts,
)
from gateway.wire.status_errors import StatusErrorForm

NAME: Final = "grps.grpc"
_ERRORS: Final = StatusErrorForm(codec=NAME)
SERVICE: Final = "/grps.protos.v1.GrpsService/"

METHODS: Final = methods_of(pb.DESCRIPTOR)
file_descriptors: Final = partial(serialized_files, pb.DESCRIPTOR)
_PREDICT: Final = SERVICE + methods.PREDICT
_MODEL: Final = 2
BRPC_METHODS: Final[Mapping[str, MethodKind]] = {
    f"/{codec.SERVICE}/{method}": MethodKind.UNARY for method in codec.METHODS
}
"""The same methods in brpc's service, whose port serves gRPC too."""


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
    messages = ProtobufMessages(pb.DESCRIPTOR)

    def __init__(self, limits: MessageLimits, options: Mapping[str, Any]) -> None:
        self._limits = limits
        self._settings = read_options(options)
        self.whole = "" if self._settings.changes_messages else NAME
        carrier = methods.GrpsCarrier(
            NAME,
            lambda call, method, message: unary_request(
                call, SERVICE + method, write_message(message)
            ),
            lambda _call, wire: read_message(wire.view, limits),
            lambda _call, message: GrpcResponse(write_message(message)),
        )
        self.calls = methods.handlings(carrier, self._settings, limits)

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
        form = ReplyFormat(message.form, key=message.model)
        whole = self.whole if wire.method == _PREDICT else ""
        context = grpc_context(wire, NAME, methods.REPLY_NEEDS, form, whole=whole)
        method = wire.method.rpartition("/")[2]
        return methods.decode_method(method, message, context, self._settings, self._limits)

    def send_on(self, call: Call[Any], message: Origin, /) -> GrpcRequest:
        """Write a client's request to a server, with the target's model."""
        key, wire = methods.model_key(call.model, self._settings), message.wire
        is_same = key == message.form.key
        body = wire.message if is_same else with_texts(wire.view, {_MODEL: key})
        return unary_request(call, _PREDICT, body)

    def has_only_text(self, _call: StreamInferRequest, item: InferResponse, /) -> bool:
        """Return whether BYTES of an item can only be text."""
        return has_only_text(item)

    def encode_error(self, call: Call[Any] | None, error: GatewayError, /) -> GrpcResponse:
        """Write *error* as a message whose Status is FAILURE, or end the call with it.

        An error that ended the call of an upstream of this codec ends this call.  Never raises.
        """
        passed = None if call is None else passed_message(call, error, self._limits)
        passed = passed or ended_call(error, NAME, self._limits)
        if passed is not None:
            return passed
        if ends_call(error, unread=call is None):
            details = clip(error.message, self._limits.error_text_bytes)
            return GrpcResponse(status=GRPC_STATUS[error.code], details=details)
        return GrpcResponse(write_message(methods.failure_of(error, self._limits)))

    def error_in(self, call: Call[Any], wire: GrpcResponse, /) -> GatewayError | None:
        """Return the error that ended an upstream's call; None where there is a message."""
        return _ERRORS.read(call.model, wire)
