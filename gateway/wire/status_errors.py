"""Errors over gRPC as a status with a text: one description of a protocol writes and reads them.

`json/errors.py` has its twin over HTTP.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.wire.errors import GRPC_STATUS, clip, error_class_of_grpc, strip_traceback
from gateway.wire.grpc import GrpcResponse, GrpcStatus
from gateway.wire.protobuf.plain import passed_metadata


def usual_status(error: GatewayError) -> GrpcStatus:
    """Return the status of *error* in protocols without statuses of their own."""
    return GRPC_STATUS[error.code]


def class_of_status(status: GrpcStatus, _text: str) -> type[GatewayError]:
    """Return the class of error that a status means, where nothing else tells it."""
    return error_class_of_grpc(status)


def message_of(error: GatewayError, _limit_bytes: int) -> str:
    """Return the text of *error*."""
    return error.message


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusErrorForm:
    """How errors stand in the status of one protocol over gRPC.

    Attributes:
        codec: The codec of the protocol. An error of a server of it keeps status, text and
            metadata.
        status: Returns the status of an error.
        error_class: Returns the class of a server's error from its status and text.
        text: Returns the text of an error, from the error and the limit of its bytes.
    """

    codec: str
    status: Callable[[GatewayError], GrpcStatus] = usual_status
    error_class: Callable[[GrpcStatus, str], type[GatewayError]] = class_of_status
    text: Callable[[GatewayError, int], str] = message_of

    def write(self, error: GatewayError, limits: MessageLimits) -> GrpcResponse:
        """Return the response with *error*; a longer text than allowed is cut. Never raises."""
        limit_bytes, origin = limits.error_text_bytes, error.origin
        if (
            origin is not None
            and origin.codec == self.codec
            and isinstance(origin.wire, GrpcResponse)
        ):
            status, text = origin.wire.status, strip_traceback(origin.wire.details)
            metadata = passed_metadata(origin.wire, limit_bytes)
            return GrpcResponse((), status, clip(text, limit_bytes), metadata)
        details = clip(self.text(error, limit_bytes), limit_bytes)
        return GrpcResponse(status=self.status(error), details=details)

    def read(self, model: ModelRef | None, wire: GrpcResponse) -> GatewayError | None:
        """Return the error of an upstream's status, with its response as origin; None for OK.

        Args:
            model: The model of the call.
            wire: The response.
        """
        status = wire.status
        if status is GrpcStatus.OK:
            return None
        text = strip_traceback(wire.details)
        text = text or f"upstream responded with the status {status.name} and no text"
        kind = self.error_class(status, wire.details)
        return kind(text, model=model, origin=Origin(self.codec, wire))
