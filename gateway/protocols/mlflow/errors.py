"""Errors in MLflow's form: status, `error_code` and text, or plain text.

Source: docs/protocols/mlflow.md, "6. Errors".
"""

from typing import Final

import orjson

from gateway.ir.errors import (
    ErrorCode,
    GatewayError,
    MalformedMessage,
    ModelNotNamed,
    NotFound,
)
from gateway.ir.limits import MessageLimits
from gateway.wire.errors import (
    HTTP_METHOD_NOT_ALLOWED,
    HTTP_TOO_MANY_REQUESTS,
    TOO_MANY_REQUESTS,
    MethodNotAllowed,
    UnsupportedContentType,
    clip,
    extra_headers,
    strip_traceback,
)
from gateway.wire.http import Headers, HttpResponse

OK: Final = 200
NOT_READY: Final = 503
_UNSUPPORTED_TYPE: Final = 415

JSON: Final = ("Content-Type", "application/json")
_TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")

STATUS: Final[dict[ErrorCode, tuple[int, str]]] = {
    ErrorCode.INVALID_ARGUMENT: (400, "INVALID_PARAMETER_VALUE"),
    ErrorCode.NOT_FOUND: (404, "RESOURCE_DOES_NOT_EXIST"),
    ErrorCode.NOT_READY: (503, "TEMPORARILY_UNAVAILABLE"),
    ErrorCode.UNSUPPORTED: (400, "NOT_IMPLEMENTED"),
    ErrorCode.TOO_LARGE: (413, "REQUEST_LIMIT_EXCEEDED"),
    ErrorCode.UNAUTHENTICATED: (401, "UNAUTHENTICATED"),
    ErrorCode.FORBIDDEN: (403, "PERMISSION_DENIED"),
    ErrorCode.QUOTA_EXCEEDED: (429, "REQUEST_LIMIT_EXCEEDED"),
    ErrorCode.OVERLOADED: (503, "TEMPORARILY_UNAVAILABLE"),
    ErrorCode.UNAVAILABLE: (503, "TEMPORARILY_UNAVAILABLE"),
    ErrorCode.DEADLINE_EXCEEDED: (504, "DEADLINE_EXCEEDED"),
    ErrorCode.CANCELLED: (499, "CANCELLED"),
    ErrorCode.BAD_UPSTREAM: (502, "INTERNAL_ERROR"),
    ErrorCode.UPSTREAM: (500, "INTERNAL_ERROR"),
    ErrorCode.INTERNAL: (500, "INTERNAL_ERROR"),
}
"""Status and `error_code` of each error."""

_BAD_REQUEST: Final = "BAD_REQUEST"
CODES: Final = {name: code for code, (_, name) in STATUS.items()} | {
    _BAD_REQUEST: ErrorCode.INVALID_ARGUMENT,
    "TEMPORARILY_UNAVAILABLE": ErrorCode.UNAVAILABLE,
    "INTERNAL_ERROR": ErrorCode.UPSTREAM,
    "REQUEST_LIMIT_EXCEEDED": ErrorCode.OVERLOADED,
}
"""The error that an `error_code` of a server means."""


class UnknownScoringPath(NotFound):
    """The path does not exist."""


def status_of(error: GatewayError) -> int:
    """Return the HTTP status of *error*."""
    if isinstance(error, MethodNotAllowed):
        return HTTP_METHOD_NOT_ALLOWED
    if isinstance(error, UnsupportedContentType):
        return _UNSUPPORTED_TYPE
    if isinstance(error, ModelNotNamed):
        return STATUS[ErrorCode.NOT_FOUND][0]
    if isinstance(error, TOO_MANY_REQUESTS):
        return HTTP_TOO_MANY_REQUESTS
    return STATUS[error.code][0]


def error_response(
    error: GatewayError, limits: MessageLimits, extra: tuple[tuple[str, str], ...]
) -> HttpResponse:
    """Write *error*, with more headers. Never raises."""
    text = clip(strip_traceback(error.message), limits.error_text_bytes) or error.code.value
    headers = (*extra_headers(error), *extra)
    if isinstance(error, UnsupportedContentType):
        return HttpResponse(_UNSUPPORTED_TYPE, Headers((_TEXT, *headers)), (text.encode(),))
    if isinstance(error, MethodNotAllowed | UnknownScoringPath):
        document = {"detail": text}
    else:
        name = STATUS[error.code][1]
        if isinstance(error, MalformedMessage):
            name = _BAD_REQUEST
        elif isinstance(error, ModelNotNamed):
            name = STATUS[ErrorCode.NOT_FOUND][1]
        document = {"error_code": name, "message": text}
    return HttpResponse(status_of(error), Headers((JSON, *headers)), (orjson.dumps(document),))
