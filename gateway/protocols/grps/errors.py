"""Error codes to and from grps statuses and brpc error codes.

A grps response has its own Status, so a failure is part of a message and the gRPC or brpc call
succeeds.  Only a request that does not reach the service ends the call with an error; the classes
here are such errors.

Source: docs/protocols/grps.md, "6. Status and errors".
"""

from typing import Final

from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    GatewayError,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    Unsupported,
)
from gateway.wire.errors import HTTP_STATUS, error_class_of_http, http_status_of

OK: Final = 200

STATUS_CODE: Final = HTTP_STATUS

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
    ErrorCode.QUOTA_EXCEEDED: ELIMIT,
    ErrorCode.OVERLOADED: ELIMIT,
    ErrorCode.UNAVAILABLE: ELOGOFF,
    ErrorCode.DEADLINE_EXCEEDED: ERPCTIMEDOUT,
    ErrorCode.CANCELLED: _ECANCELED,
    ErrorCode.BAD_UPSTREAM: EINTERNAL,
    ErrorCode.UPSTREAM: EINTERNAL,
    ErrorCode.INTERNAL: EINTERNAL,
}

# Overload is an error of the server, not of the model: real servers end the call with it.
_OF_THE_CALL: Final = frozenset({ErrorCode.QUOTA_EXCEEDED, ErrorCode.OVERLOADED})

_CODE_OF_BRPC: Final[dict[int, ErrorCode]] = {
    _EPERM: ErrorCode.FORBIDDEN,
    _ECANCELED: ErrorCode.BAD_UPSTREAM,
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

_UNCONVERTIBLE: Final = 500
_NOT_FOUND_WORDS: Final = ("not found", "Not found model")


class Unreadable(MalformedMessage):
    """The bytes are not a message, or cannot be decompressed: an error of the call."""


class NoService(NotFound):
    """The service does not exist: an error of the call."""


class NoMethod(Unsupported):
    """The service does not have the method: an error of the call."""


class Unconvertible(Unsupported):
    """The model's reply cannot be written in the requested form."""


def status_code_of(error: GatewayError) -> int:
    """Return the code in the Status of *error*, which is also its HTTP status."""
    if isinstance(error, NoMethod):
        return STATUS_CODE[ErrorCode.NOT_FOUND]
    if isinstance(error, Unconvertible):
        return _UNCONVERTIBLE
    return http_status_of(error)


def ends_call(error: GatewayError, *, unread: bool) -> bool:
    """Return whether *error* ends the gRPC or brpc call, rather than set a Status.

    Args:
        error: The failure.
        unread: The message could not be read.
    """
    if isinstance(error, Unreadable | NoService | NoMethod) or error.code in _OF_THE_CALL:
        return True
    if unread and error.code is ErrorCode.UNAUTHENTICATED:  # the gateway itself refuses the client
        return True
    # A message over the limit was not read; one with too many parts was, and has a response.
    return unread and error.code is ErrorCode.TOO_LARGE and error.limit == "message_bytes"


def brpc_code_of(error: GatewayError) -> int:
    """Return brpc's code for an error of the call."""
    return ENOSERVICE if isinstance(error, NoService) else BRPC_CODE[error.code]


def brpc_http_status(code: int) -> int:
    """Return the HTTP status of an error code in brpc's HTTP layer."""
    return _HTTP_OF_BRPC.get(code, STATUS_CODE[ErrorCode.INTERNAL])


def error_class_of_status(code: int, text: str) -> type[GatewayError]:
    """Return the class of error that the code and text of a FAILURE mean."""
    if code == STATUS_CODE[ErrorCode.NOT_FOUND] or any(word in text for word in _NOT_FOUND_WORDS):
        return ModelNotFound
    return error_class_of_http(code)


def error_class_of_brpc(code: int) -> type[GatewayError]:
    """Return the class of error that a brpc error code other than 0 means."""
    return ERROR_CLASSES[_CODE_OF_BRPC.get(code, ErrorCode.UPSTREAM)]
