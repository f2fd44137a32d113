"""Errors over gRPC to and from a status with a text; `streaming.py` has those inside of a stream.

`../errors.py` has the tables.

Source: Open Inference Protocol, gRPC API; docs/protocols/open-inference.md, "16. Errors".
"""

from typing import Any, Final

from gateway.ir.calls import Call
from gateway.ir.context import Origin
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.errors import grpc_error_class, text_of
from gateway.protocols.oip.grpc.context import NAME
from gateway.wire.errors import GRPC_STATUS, strip_traceback
from gateway.wire.grpc import GrpcResponse, GrpcStatus

# Statuses of servers for a model that is not ready: Triton responds with OK and false, KServe
# with NOT_FOUND, MLServer with UNKNOWN; other statuses are failures.
NOT_READY: Final = frozenset(
    {
        GrpcStatus.UNKNOWN,
        GrpcStatus.INVALID_ARGUMENT,
        GrpcStatus.NOT_FOUND,
        GrpcStatus.FAILED_PRECONDITION,
        GrpcStatus.UNAVAILABLE,
    }
)


def error_response(error: GatewayError, limits: MessageLimits) -> GrpcResponse:
    """Write an error as status and details; those of an upstream are unchanged."""
    origin = error.origin
    if origin is not None and origin.codec == NAME and isinstance(origin.wire, GrpcResponse):
        return GrpcResponse(status=origin.wire.status, details=strip_traceback(origin.wire.details))
    return GrpcResponse(
        status=GRPC_STATUS[error.code],
        details=text_of(error, limits.error_text_bytes),
    )


def error_of_status(call: Call[Any], wire: GrpcResponse) -> GatewayError:
    """Return the error of an upstream's status, with its response as origin."""
    reason = strip_traceback(wire.details)
    text = reason or f"upstream responded with the status {wire.status.name} and no text"
    kind = grpc_error_class(wire.status, wire.details)
    return kind(text, model=call.model, origin=Origin(NAME, wire))
