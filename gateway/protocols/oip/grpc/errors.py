"""Errors over gRPC to and from a status with a text; `streaming.py` has those inside of a stream.

`../errors.py` has the tables.

Source: Open Inference Protocol, gRPC API; docs/protocols/open-inference.md, "16. Errors".
"""

from typing import Any, Final

from gateway.ir.calls import Call
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.errors import grpc_error_class, text_of
from gateway.protocols.oip.grpc.context import NAME
from gateway.wire import status_errors
from gateway.wire.errors import GRPC_STATUS
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
    text = text_of(error, limits.error_text_bytes)
    return status_errors.status_response(error, NAME, GRPC_STATUS[error.code], text)


def error_of_status(call: Call[Any], wire: GrpcResponse) -> GatewayError:
    """Return the error of an upstream's status, with its response as origin."""
    kind = grpc_error_class(wire.status, wire.details)
    return status_errors.error_of_status(kind, call.model, wire, NAME)
