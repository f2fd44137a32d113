"""Errors in OpenAI's form: status, type, code and the member that is wrong.

Clients repeat 408, 409, 429 and every status from 500 unless a header says otherwise, so what is
final is below 500 or has that header, and nothing is 501.

Source: docs/protocols/openai.md, "8. Errors".
"""

import math
from typing import Any, Final, NamedTuple

import orjson

from gateway.ir.errors import (
    ErrorCode,
    GatewayError,
    InvalidMember,
    InvalidOutput,
    NotFound,
    RateExceeded,
)
from gateway.ir.limits import MessageLimits
from gateway.wire.errors import (
    HTTP_METHOD_NOT_ALLOWED,
    MethodNotAllowed,
    UnsupportedContentType,
    clip,
    is_error_status,
    strip_traceback,
)
from gateway.wire.http import Headers, HttpResponse
from gateway.wire.json.values import short_document

CODEC: Final = "openai.http"
OK: Final = 200
NOT_IMPLEMENTED: Final = 501
TOO_MANY_REQUESTS: Final = 429
UNSUPPORTED_CONTENT: Final = 415

REQUEST, SERVER, RATE = "invalid_request_error", "server_error", "rate_limit_error"

JSON: Final = (("Content-Type", "application/json"),)
_FINAL: Final = ("x-should-retry", "false")
_MAX_RETRY_AFTER_S: Final = 3600.0
_WAITS: Final = frozenset({429, 503})


class ErrorRow(NamedTuple):
    """What stands in a response for one kind of error."""

    status: int
    kind: str
    code: str | None


STATUS: Final[dict[ErrorCode, ErrorRow]] = {
    ErrorCode.INVALID_ARGUMENT: ErrorRow(400, REQUEST, None),
    ErrorCode.NOT_FOUND: ErrorRow(404, REQUEST, "model_not_found"),
    ErrorCode.NOT_READY: ErrorRow(503, SERVER, "model_not_ready"),
    ErrorCode.UNSUPPORTED: ErrorRow(400, REQUEST, "unsupported"),
    ErrorCode.TOO_LARGE: ErrorRow(413, REQUEST, "request_too_large"),
    ErrorCode.UNAUTHENTICATED: ErrorRow(401, REQUEST, "invalid_api_key"),
    ErrorCode.FORBIDDEN: ErrorRow(403, REQUEST, "permission_denied"),
    ErrorCode.QUOTA_EXCEEDED: ErrorRow(429, RATE, "rate_limit_exceeded"),
    ErrorCode.OVERLOADED: ErrorRow(503, SERVER, "server_is_overloaded"),
    ErrorCode.UNAVAILABLE: ErrorRow(503, SERVER, "service_unavailable"),
    ErrorCode.DEADLINE_EXCEEDED: ErrorRow(504, SERVER, "timeout"),
    ErrorCode.CANCELLED: ErrorRow(499, REQUEST, "cancelled"),
    ErrorCode.BAD_UPSTREAM: ErrorRow(502, SERVER, "bad_upstream"),
    ErrorCode.UPSTREAM: ErrorRow(500, SERVER, "model_error"),
    ErrorCode.INTERNAL: ErrorRow(500, SERVER, "internal_error"),
}
_FINAL_CODES: Final = frozenset({ErrorCode.UPSTREAM, ErrorCode.INTERNAL})


class UnknownPath(NotFound):
    """The path does not exist; `code` is for programs."""

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


def row_of(error: GatewayError) -> ErrorRow:  # noqa: PLR0911  # one for each kind
    """Return status, type and code of *error*."""
    if isinstance(error, MethodNotAllowed):
        return ErrorRow(HTTP_METHOD_NOT_ALLOWED, REQUEST, "method_not_supported")
    if isinstance(error, UnsupportedContentType):
        return ErrorRow(UNSUPPORTED_CONTENT, REQUEST, "unsupported_content_type")
    if isinstance(error, RateExceeded):
        return ErrorRow(TOO_MANY_REQUESTS, RATE, "rate_limit_exceeded")
    row = STATUS[error.code]
    if isinstance(error, InvalidMember):
        return row._replace(code=error.reason or None)
    if isinstance(error, UnknownPath):
        return row._replace(code=error.reason)
    if isinstance(error, InvalidOutput):
        return row._replace(code="model_output_invalid")
    return row


def error_object(error: GatewayError, limits: MessageLimits) -> dict[str, Any]:
    """Return the four members of *error*."""
    row = row_of(error)
    param = None
    if isinstance(error, InvalidMember):
        param = error.member or None
    elif row.code == STATUS[ErrorCode.NOT_FOUND].code:
        param = "model"
    text = clip(strip_traceback(error.message), limits.error_text_bytes)
    return {"message": text, "type": row.kind, "param": param, "code": row.code}


def error_response(
    error: GatewayError, limits: MessageLimits, *, names_message: bool
) -> HttpResponse:
    """Write *error*. Never raises.

    Args:
        error: The failure.
        limits: For the length of its text.
        names_message: The text stands in `message` beside `error` too, where Cohere's clients look.
    """
    row = row_of(error)
    found = _of_server(error, limits)
    if found is None:
        found = error_object(error, limits)
    else:
        row = row._replace(status=error.origin.wire.status)  # type: ignore[union-attr]  # it has one
    document: dict[str, Any] = {"error": found}
    if names_message:
        document["message"] = found["message"]
    headers = [*JSON, *_headers(error, row)]
    return HttpResponse(row.status, Headers(headers), (orjson.dumps(document),))


def _of_server(error: GatewayError, limits: MessageLimits) -> dict[str, Any] | None:
    """Return the four members of the error of a server of this form; None for any other."""
    origin = error.origin
    if origin is None or not isinstance(origin.wire, HttpResponse) or origin.codec != CODEC:
        return None
    if not is_error_status(origin.wire.status) or origin.wire.status == NOT_IMPLEMENTED:
        return None
    found = short_document(origin.wire.view).get("error")
    if type(found) is not dict or type(found.get("message")) is not str:
        return None
    texts = {
        key: found[key] if type(found.get(key)) is str else None
        for key in ("type", "param", "code")
    }
    return {
        "message": clip(strip_traceback(error.message), limits.error_text_bytes),
        "type": texts["type"] or row_of(error).kind,
        "param": texts["param"],
        "code": texts["code"],
    }


def _headers(error: GatewayError, row: ErrorRow) -> list[tuple[str, str]]:
    if isinstance(error, MethodNotAllowed):
        return [("Allow", error.allow)]
    if error.code in _FINAL_CODES:
        return [_FINAL]
    if row.status not in _WAITS:
        return []
    seconds = min(error.retry_after_s or 1.0, _MAX_RETRY_AFTER_S)
    return [("Retry-After", str(max(1, math.ceil(seconds))))]
