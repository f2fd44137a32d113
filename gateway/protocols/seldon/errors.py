"""Errors as the status object of Seldon, and back: statuses of HTTP and gRPC, and reasons.

Source: docs/protocols/seldon.md, "6. Errors".
"""

from typing import Any, Final

from gateway.ir import errors
from gateway.ir.errors import ErrorCode, GatewayError, InvalidRequest, ModelNotNamed
from gateway.wire.errors import (
    GRPC_STATUS,
    HTTP_STATUS,
    TOO_MANY_REQUESTS,
    error_class_of_http,
    http_status_of,
    is_error_status,
)
from gateway.wire.grpc import GrpcStatus
from gateway.wire.json.errors import JsonErrorForm

OK: Final = 200
BAD_DATA: Final = "MICROSERVICE_BAD_DATA"
FAILURE: Final = 1
_CODE: Final = -1

REASONS: Final[dict[ErrorCode, str]] = {
    ErrorCode.INVALID_ARGUMENT: BAD_DATA,
    ErrorCode.NOT_FOUND: "NOT_FOUND",
    ErrorCode.NOT_READY: "NOT_READY",
    ErrorCode.UNSUPPORTED: "NOT_IMPLEMENTED",
    ErrorCode.TOO_LARGE: BAD_DATA,
    ErrorCode.UNAUTHENTICATED: "UNAUTHENTICATED",
    ErrorCode.FORBIDDEN: "PERMISSION_DENIED",
    ErrorCode.QUOTA_EXCEEDED: "RESOURCE_EXHAUSTED",
    ErrorCode.OVERLOADED: "RESOURCE_EXHAUSTED",
    ErrorCode.UNAVAILABLE: "UNAVAILABLE",
    ErrorCode.DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
    ErrorCode.CANCELLED: "CANCELLED",
    ErrorCode.BAD_UPSTREAM: "MICROSERVICE_INTERNAL_ERROR",
    ErrorCode.UPSTREAM: "MICROSERVICE_INTERNAL_ERROR",
    ErrorCode.INTERNAL: "MICROSERVICE_INTERNAL_ERROR",
}
"""The `reason` of each error."""


class GraphVerb(InvalidRequest):
    """The request is for a step of a graph, which the gateway does not run."""


def http_status(error: GatewayError) -> int:
    """Return the HTTP status of *error*."""
    if isinstance(error, ModelNotNamed):
        return HTTP_STATUS[ErrorCode.NOT_FOUND]
    return http_status_of(error)


def grpc_status(error: GatewayError) -> GrpcStatus:
    """Return the gRPC status of *error*."""
    if isinstance(error, ModelNotNamed):
        return GrpcStatus.NOT_FOUND
    if isinstance(error, GraphVerb):
        return GrpcStatus.UNIMPLEMENTED
    if isinstance(error, TOO_MANY_REQUESTS):
        return GrpcStatus.RESOURCE_EXHAUSTED
    return GRPC_STATUS[error.code]


FORM: Final = JsonErrorForm(
    codec="seldon.http",
    passes=True,
    row=lambda error: (http_status(error), REASONS[error.code]),
    document=lambda _status, reason, text: {
        "status": {"code": _CODE, "info": text, "reason": reason, "status": FAILURE}
    },
    end=b"\n",
    keeps_status=True,
    texts=(("status", "info"),),
    kind=("status", "reason"),
    error_class=lambda _model, status, _reason, _text: (
        error_class_of_http(status) if is_error_status(status) else errors.UpstreamError
    ),
)


def is_failure(status: Any) -> bool:
    """Return whether the status object of an answer says that it failed."""
    return type(status) is dict and status.get("status") in (FAILURE, "FAILURE")
