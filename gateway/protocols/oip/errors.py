"""Error codes as Open Inference statuses, over HTTP and gRPC, and back."""

from __future__ import annotations

from gateway.ir.errors import (
    ERROR_CLASSES,
    Decoupled,
    ErrorCode,
    GatewayError,
    InvalidRequest,
)
from gateway.wire.grpc import GrpcStatus

HTTP_STATUS: dict[ErrorCode, int] = {
    ErrorCode.INVALID_ARGUMENT: 400,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.NOT_READY: 503,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.DEADLINE_EXCEEDED: 504,
    ErrorCode.CANCELLED: 499,
    ErrorCode.BAD_UPSTREAM: 502,
    ErrorCode.UPSTREAM: 500,
    ErrorCode.INTERNAL: 500,
}

GRPC_STATUS: dict[ErrorCode, GrpcStatus] = {
    ErrorCode.INVALID_ARGUMENT: GrpcStatus.INVALID_ARGUMENT,
    ErrorCode.NOT_FOUND: GrpcStatus.NOT_FOUND,
    ErrorCode.NOT_READY: GrpcStatus.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: GrpcStatus.UNIMPLEMENTED,
    ErrorCode.TOO_LARGE: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrorCode.UNAUTHENTICATED: GrpcStatus.UNAUTHENTICATED,
    ErrorCode.FORBIDDEN: GrpcStatus.PERMISSION_DENIED,
    ErrorCode.OVERLOADED: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrorCode.UNAVAILABLE: GrpcStatus.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: GrpcStatus.DEADLINE_EXCEEDED,
    ErrorCode.CANCELLED: GrpcStatus.CANCELLED,
    ErrorCode.BAD_UPSTREAM: GrpcStatus.INTERNAL,
    ErrorCode.UPSTREAM: GrpcStatus.INTERNAL,
    ErrorCode.INTERNAL: GrpcStatus.INTERNAL,
}

# What servers answer, Triton, MLServer, KServe and OVMS taken together
# (docs/protocols/open-inference.md, "16. Errors").
_CODE_OF_HTTP: dict[int, ErrorCode] = {
    400: ErrorCode.INVALID_ARGUMENT,
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    408: ErrorCode.DEADLINE_EXCEEDED,
    409: ErrorCode.NOT_READY,
    413: ErrorCode.TOO_LARGE,
    429: ErrorCode.OVERLOADED,
    499: ErrorCode.CANCELLED,
    501: ErrorCode.UNSUPPORTED,
    502: ErrorCode.BAD_UPSTREAM,
    503: ErrorCode.UNAVAILABLE,
    504: ErrorCode.DEADLINE_EXCEEDED,
}

_CODE_OF_GRPC: dict[GrpcStatus, ErrorCode] = {
    GrpcStatus.CANCELLED: ErrorCode.CANCELLED,
    GrpcStatus.UNKNOWN: ErrorCode.UPSTREAM,
    GrpcStatus.INVALID_ARGUMENT: ErrorCode.INVALID_ARGUMENT,
    GrpcStatus.DEADLINE_EXCEEDED: ErrorCode.DEADLINE_EXCEEDED,
    GrpcStatus.NOT_FOUND: ErrorCode.NOT_FOUND,
    GrpcStatus.ALREADY_EXISTS: ErrorCode.INVALID_ARGUMENT,
    GrpcStatus.PERMISSION_DENIED: ErrorCode.FORBIDDEN,
    GrpcStatus.RESOURCE_EXHAUSTED: ErrorCode.OVERLOADED,
    GrpcStatus.FAILED_PRECONDITION: ErrorCode.NOT_READY,
    GrpcStatus.ABORTED: ErrorCode.UPSTREAM,
    GrpcStatus.OUT_OF_RANGE: ErrorCode.INVALID_ARGUMENT,
    GrpcStatus.UNIMPLEMENTED: ErrorCode.UNSUPPORTED,
    GrpcStatus.INTERNAL: ErrorCode.UPSTREAM,
    GrpcStatus.UNAVAILABLE: ErrorCode.UNAVAILABLE,
    GrpcStatus.DATA_LOSS: ErrorCode.UPSTREAM,
    GrpcStatus.UNAUTHENTICATED: ErrorCode.UNAUTHENTICATED,
}

# gRPC has one status for "too big" and "too busy"; the words of servers tell them apart.
_SIZE_WORDS = ("larger than", "too large", "at most", "exceeds")
# How Triton and MLServer end what they say of a model that answers in streams only; before it ran.
_DECOUPLED = ("decoupled transaction policy", "predict() method not implemented")
_DECOUPLED_HTTP = (501, 500)
_DECOUPLED_GRPC = (GrpcStatus.UNIMPLEMENTED, GrpcStatus.INTERNAL)


HTTP_OK = 200
HTTP_METHOD_NOT_ALLOWED = 405
# "Not ready" over HTTP: servers send 503, KServe's page lists 409
# (docs/protocols/open-inference.md, "16. Errors").
NOT_READY_STATUSES = (503, 409)
_FIRST_ERROR, _LAST_ERROR = 400, 599


class MethodNotAllowed(InvalidRequest):
    """The path exists and is asked with another HTTP method.

    Args:
        message: As for every `GatewayError`.
        allow: The method it takes.
    """

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


def http_status_of(error: GatewayError, not_ready_status: int) -> int:
    """Return the HTTP status that *error* is answered with, when no upstream said one."""
    if isinstance(error, MethodNotAllowed):
        return HTTP_METHOD_NOT_ALLOWED
    if error.code is ErrorCode.NOT_READY:
        return not_ready_status
    return HTTP_STATUS[error.code]


def is_error_status(status: int) -> bool:
    """Tell whether an HTTP status may go on to a client as an error's."""
    return _FIRST_ERROR <= status <= _LAST_ERROR


def error_class_of_http(status: int, said: str = "") -> type[GatewayError]:
    """Return the kind of error an HTTP status that is not 2xx means."""
    if status in _DECOUPLED_HTTP and said.endswith(_DECOUPLED):
        return Decoupled
    code = _CODE_OF_HTTP.get(status)
    if code is None:
        code = ErrorCode.INVALID_ARGUMENT if 400 <= status < 500 else ErrorCode.UPSTREAM  # noqa: PLR2004
    return ERROR_CLASSES[code]


def error_class_of_grpc(status: GrpcStatus, details: str) -> type[GatewayError]:
    """Return the kind of error a gRPC status that is not OK means."""
    if status is GrpcStatus.RESOURCE_EXHAUSTED and any(word in details for word in _SIZE_WORDS):
        return ERROR_CLASSES[ErrorCode.TOO_LARGE]
    if status in _DECOUPLED_GRPC and details.endswith(_DECOUPLED):
        return Decoupled
    return ERROR_CLASSES[_CODE_OF_GRPC[status]]


def clip(text: str, limit_bytes: int) -> str:
    """Cut an error text to at most *limit_bytes* of UTF-8; lone surrogates become '?'."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return data.decode()
    return data[: limit_bytes - 3].decode("utf-8", "ignore") + "..."
