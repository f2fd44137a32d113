"""Errors over gRPC to and from a status with a text, for protocols that send nothing else."""

from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import GatewayError
from gateway.wire.errors import strip_traceback
from gateway.wire.grpc import GrpcResponse, GrpcStatus


def status_response(
    error: GatewayError, codec: str, status: GrpcStatus, details: str
) -> GrpcResponse:
    """Write *error* as *status* and *details*; those of a server of the same codec are unchanged.

    Args:
        error: The failure.
        codec: Name of the codec.
        status: Its status.
        details: Its text, within the limit.
    """
    origin = error.origin
    if origin is not None and origin.codec == codec and isinstance(origin.wire, GrpcResponse):
        return GrpcResponse(status=origin.wire.status, details=strip_traceback(origin.wire.details))
    return GrpcResponse(status=status, details=details)


def error_of_status(
    kind: type[GatewayError], model: ModelRef | None, wire: GrpcResponse, codec: str
) -> GatewayError:
    """Return the error of an upstream's status, with its response as origin.

    Args:
        kind: The class of error that the status means.
        model: The model of the call.
        wire: The response.
        codec: Name of the codec.
    """
    reason = strip_traceback(wire.details)
    text = reason or f"upstream responded with the status {wire.status.name} and no text"
    return kind(text, model=model, origin=Origin(codec, wire))
