"""Errors in MLflow's form: status, `error_code` and text, or plain text.

Source: docs/protocols/mlflow.md, "6. Errors".
"""

from typing import Final

from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    GatewayError,
    MalformedMessage,
    ModelNotNamed,
    NotFound,
)
from gateway.ir.limits import MessageLimits
from gateway.wire.errors import (
    HTTP_METHOD_NOT_ALLOWED,
    HTTP_REDIRECT,
    HTTP_TOO_MANY_REQUESTS,
    TOO_MANY_REQUESTS,
    MethodNotAllowed,
    SlashAtEnd,
    UnsupportedContentType,
    extra_headers,
)
from gateway.wire.http import Headers, HttpResponse
from gateway.wire.json.errors import (
    NOT_FOLLOWED,
    ErrorRow,
    JsonErrorForm,
    class_of_status,
    error_text,
)

OK: Final = 200
NOT_READY: Final = 503
_UNSUPPORTED_TYPE: Final = 415

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


_CLASSES: Final = {
    _BAD_REQUEST: {"sqlstate": "KAM00", "error_class": "INVALID_PARAMETER_VALUE"},
    "INVALID_PARAMETER_VALUE": {"sqlstate": "KAM01", "error_class": "SCHEMA_ENFORCEMENT_FAILED"},
}
"""What the server sends beside an `error_code`, where it was observed."""


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


def _row(error: GatewayError) -> ErrorRow:
    status = status_of(error)
    if isinstance(error, MethodNotAllowed | UnknownScoringPath):
        return status, ""
    if isinstance(error, MalformedMessage):
        return status, _BAD_REQUEST
    if isinstance(error, ModelNotNamed):
        return status, STATUS[ErrorCode.NOT_FOUND][1]
    return status, STATUS[error.code][1]


def _document(_status: int, name: str, text: str) -> dict[str, str]:
    if not name:
        return {"detail": text}
    return {"error_code": name, "message": text} | _CLASSES.get(name, {})


def _class_of(model: ModelRef | None, status: int, name: str, text: str) -> type[GatewayError]:
    code = CODES.get(name)
    return class_of_status(model, status, name, text) if code is None else ERROR_CLASSES[code]


FORM: Final = JsonErrorForm(
    codec="mlflow.http",
    passes=True,
    row=_row,
    document=_document,
    texts=(("message",), ("detail",)),
    kind=("error_code",),
    no_text="HTTP status {} without a text",
    error_class=_class_of,
    no_error=NOT_FOLLOWED,
)


def error_response(
    error: GatewayError, limits: MessageLimits, extra: tuple[tuple[str, str], ...]
) -> HttpResponse:
    """Write *error*, with more headers. Never raises."""
    if isinstance(error, SlashAtEnd):
        return HttpResponse(HTTP_REDIRECT, Headers((*extra_headers(error), *extra)))
    if not isinstance(error, UnsupportedContentType):
        return FORM.write(error, limits, extra)
    text = error_text(error, limits.error_text_bytes)
    headers = Headers((_TEXT, *extra_headers(error), *extra))
    return HttpResponse(_UNSUPPORTED_TYPE, headers, (text.encode(),))
