"""Error codes as grps statuses and brpc error codes, and back.

A grps answer holds its own Status, so a failure travels inside a message and the call beneath it
(gRPC, brpc) succeeds.  Only what never reaches the service is an error of the call: those are the
classes here.

Source: docs/protocols/grps.md, "6. Status and errors".
"""

from __future__ import annotations

from typing import Final

from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    Unsupported,
)
from gateway.wire.grpc import GrpcStatus

OK: Final = 200

STATUS_CODE: Final[dict[ErrorCode, int]] = {
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

# What a call of its own ends with when no service saw it; a service's errors are in the Status.
GRPC_STATUS: Final[dict[ErrorCode, GrpcStatus]] = {
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

ENOSERVICE: Final = 1001
ENOMETHOD: Final = 1002
EREQUEST: Final = 1003
ERPCAUTH: Final = 1004
ERPCTIMEDOUT: Final = 1008
EOVERCROWDED: Final = 1011
EINTERNAL: Final = 2001
ELOGOFF: Final = 2003
ELIMIT: Final = 2004
_ECANCELED: Final = 125
_EPERM: Final = 1

BRPC_CODE: Final[dict[ErrorCode, int]] = {
    ErrorCode.INVALID_ARGUMENT: EREQUEST,
    ErrorCode.NOT_FOUND: ENOMETHOD,
    ErrorCode.NOT_READY: ELOGOFF,
    ErrorCode.UNSUPPORTED: ENOMETHOD,
    ErrorCode.TOO_LARGE: EREQUEST,
    ErrorCode.UNAUTHENTICATED: ERPCAUTH,
    ErrorCode.FORBIDDEN: _EPERM,
    ErrorCode.OVERLOADED: ELIMIT,
    ErrorCode.UNAVAILABLE: ELOGOFF,
    ErrorCode.DEADLINE_EXCEEDED: ERPCTIMEDOUT,
    ErrorCode.CANCELLED: _ECANCELED,
    ErrorCode.BAD_UPSTREAM: EINTERNAL,
    ErrorCode.UPSTREAM: EINTERNAL,
    ErrorCode.INTERNAL: EINTERNAL,
}

# Errors of load are the server's, not the model's: real servers end the call with them.
_OF_THE_CALL: Final = frozenset({ErrorCode.OVERLOADED})

_CODE_OF_STATUS: Final[dict[int, ErrorCode]] = {
    400: ErrorCode.INVALID_ARGUMENT,
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.INVALID_ARGUMENT,
    408: ErrorCode.DEADLINE_EXCEEDED,
    413: ErrorCode.TOO_LARGE,
    415: ErrorCode.INVALID_ARGUMENT,
    429: ErrorCode.OVERLOADED,
    499: ErrorCode.CANCELLED,
    501: ErrorCode.UNSUPPORTED,
    502: ErrorCode.BAD_UPSTREAM,
    503: ErrorCode.UNAVAILABLE,
    504: ErrorCode.DEADLINE_EXCEEDED,
}

_CODE_OF_GRPC: Final[dict[GrpcStatus, ErrorCode]] = {
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

_CODE_OF_BRPC: Final[dict[int, ErrorCode]] = {
    _EPERM: ErrorCode.FORBIDDEN,
    _ECANCELED: ErrorCode.CANCELLED,
    ENOSERVICE: ErrorCode.UNSUPPORTED,
    ENOMETHOD: ErrorCode.UNSUPPORTED,
    EREQUEST: ErrorCode.INVALID_ARGUMENT,
    ERPCAUTH: ErrorCode.UNAUTHENTICATED,
    ERPCTIMEDOUT: ErrorCode.DEADLINE_EXCEEDED,
    EOVERCROWDED: ErrorCode.OVERLOADED,
    EINTERNAL: ErrorCode.UPSTREAM,
    ELOGOFF: ErrorCode.UNAVAILABLE,
    ELIMIT: ErrorCode.OVERLOADED,
}

_HTTP_OF_BRPC: Final[dict[int, int]] = {
    _EPERM: 403,
    ENOSERVICE: 404,
    ENOMETHOD: 404,
    EREQUEST: 400,
    ERPCAUTH: 401,
    ERPCTIMEDOUT: 504,
    ELOGOFF: 503,
    ELIMIT: 503,
}

_HTTP_METHOD_NOT_ALLOWED: Final = 405
_UNCONVERTIBLE: Final = 500
_NOT_FOUND_WORDS: Final = ("not found", "Not found model")
_FIRST_FAILURE: Final = 400
_CLIENT_ERRORS: Final = range(400, 500)
_MOST: Final = 599


class MethodNotAllowed(InvalidRequest):
    """The path exists and is asked with another HTTP method.

    Args:
        message: As for every `GatewayError`.
        allow: The methods it takes.
    """

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class Unreadable(MalformedMessage):
    """The bytes are no message at all, or cannot be decompressed: an error of the call."""


class NoService(NotFound):
    """There is no service of this name: an error of the call."""


class NoMethod(Unsupported):
    """The service has no such method: an error of the call."""


class Unconvertible(Unsupported):
    """The model's answer cannot be written in the form that was asked for."""


def status_code_of(error: GatewayError) -> int:
    """Return the code of the Status that says *error*; over HTTP it is the status as well."""
    if isinstance(error, MethodNotAllowed):
        return _HTTP_METHOD_NOT_ALLOWED
    if isinstance(error, NoMethod):
        return STATUS_CODE[ErrorCode.NOT_FOUND]
    if isinstance(error, Unconvertible):
        return _UNCONVERTIBLE
    return STATUS_CODE[error.code]


def ends_call(error: GatewayError, *, unread: bool) -> bool:
    """Tell whether *error* ends the gRPC or brpc call, rather than stand in a Status.

    Args:
        error: What went wrong.
        unread: No call could be made of the message.
    """
    if isinstance(error, Unreadable | NoService | NoMethod) or error.code in _OF_THE_CALL:
        return True
    # A message over the limit was never read; one with too much in it was, and is answered.
    return unread and error.code is ErrorCode.TOO_LARGE and error.limit == "message_bytes"


def brpc_code_of(error: GatewayError) -> int:
    """Return brpc's code for an error of the call."""
    return ENOSERVICE if isinstance(error, NoService) else BRPC_CODE[error.code]


def brpc_http_status(code: int) -> int:
    """Return the HTTP status with which brpc's HTTP layer says an error code."""
    return _HTTP_OF_BRPC.get(code, STATUS_CODE[ErrorCode.INTERNAL])


def error_class_of_status(code: int, text: str) -> type[GatewayError]:
    """Return the kind of error that the code and words of a FAILURE mean."""
    if code == STATUS_CODE[ErrorCode.NOT_FOUND] or any(word in text for word in _NOT_FOUND_WORDS):
        return ModelNotFound
    known = _CODE_OF_STATUS.get(code)
    if known is None:
        known = ErrorCode.INVALID_ARGUMENT if code in _CLIENT_ERRORS else ErrorCode.UPSTREAM
    return ERROR_CLASSES[known]


def error_class_of_grpc(status: GrpcStatus) -> type[GatewayError]:
    """Return the kind of error that a gRPC status other than OK means."""
    return ERROR_CLASSES[_CODE_OF_GRPC[status]]


def error_class_of_brpc(code: int) -> type[GatewayError]:
    """Return the kind of error that a brpc error code other than 0 means."""
    return ERROR_CLASSES[_CODE_OF_BRPC.get(code, ErrorCode.UPSTREAM)]


def is_failure_code(code: int) -> bool:
    """Tell whether a code may go on to a client as that of a failure, and be an HTTP status."""
    return _FIRST_FAILURE <= code <= _MOST


def clip(text: str, limit_bytes: int) -> str:
    """Cut an error text to at most *limit_bytes* of UTF-8; lone surrogates become '?'."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return data.decode()
    return data[: limit_bytes - 3].decode("utf-8", "ignore") + "..."
