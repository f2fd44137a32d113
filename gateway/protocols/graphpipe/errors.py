"""Error codes as the numbers GraphPipe answers carry, over HTTP and in messages, and back.

GraphPipe gives its error numbers no meaning. We write HTTP's, as ForestFlow does, so one table
serves the status line and the message.

Source: docs/protocols/graphpipe.md, "6. Errors".
"""

from __future__ import annotations

import re

from gateway.ir.errors import ERROR_CLASSES, ErrorCode, GatewayError, InvalidRequest

STATUS: dict[ErrorCode, int] = {
    ErrorCode.INVALID_ARGUMENT: 400,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.NOT_READY: 503,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.OVERLOADED: 429,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.DEADLINE_EXCEEDED: 504,
    ErrorCode.CANCELLED: 499,
    ErrorCode.BAD_UPSTREAM: 502,
    ErrorCode.UPSTREAM: 500,
    ErrorCode.INTERNAL: 500,
}

_CODE_OF: dict[int, ErrorCode] = {
    400: ErrorCode.INVALID_ARGUMENT,
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    408: ErrorCode.DEADLINE_EXCEEDED,
    413: ErrorCode.TOO_LARGE,
    429: ErrorCode.OVERLOADED,
    499: ErrorCode.CANCELLED,
    501: ErrorCode.UNSUPPORTED,
    502: ErrorCode.BAD_UPSTREAM,
    503: ErrorCode.UNAVAILABLE,
    504: ErrorCode.DEADLINE_EXCEEDED,
}

OK = 200
METHOD_NOT_ALLOWED = 405
_ERRORS = range(400, 600)
_CLIENT_ERRORS = range(400, 500)

# What breaks a line of text or a header; a message may be shown anywhere.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_BYTES_PER_CHARACTER = 4


class MethodNotAllowed(InvalidRequest):
    """The path exists and is asked with another HTTP method."""


def status_of(error: GatewayError) -> int:
    """Return the number, of HTTP's, that *error* is answered with."""
    if isinstance(error, MethodNotAllowed):
        return METHOD_NOT_ALLOWED
    return STATUS[error.code]


def error_class_of(number: int) -> type[GatewayError]:
    """Return the kind of error that an HTTP status or the number in an error message means.

    Go and Python servers leave the number 0, which tells nothing.
    """
    code = _CODE_OF.get(number)
    if code is None:
        code = ErrorCode.INVALID_ARGUMENT if number in _CLIENT_ERRORS else ErrorCode.UPSTREAM
    return ERROR_CLASSES[code]


def is_error_status(number: int) -> bool:
    """Tell whether an upstream's number may go on to a client as an error's."""
    return number in _ERRORS


def clip(text: str, limit_bytes: int) -> str:
    """Cut an error text to at most *limit_bytes* of UTF-8, without control characters; never ""."""
    text = _CONTROL.sub("?", text[:limit_bytes]).strip() or "error without a text"
    data = text.encode()
    if len(data) <= limit_bytes:
        return text
    return data[: max(limit_bytes - 3, 0)].decode("utf-8", "ignore") + "..."


def text_of(data: memoryview, limit_bytes: int) -> str:
    """Return untrusted bytes as a text that may be shown; "" when there is nothing in them."""
    text = str(data[: limit_bytes * _BYTES_PER_CHARACTER], "utf-8", "replace").strip()
    return clip(text, limit_bytes) if text else ""
