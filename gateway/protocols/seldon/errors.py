"""Errors as the status object of Seldon, and back: statuses of HTTP and gRPC, and reasons.

Source: docs/protocols/seldon.md, "6. Errors".
"""

from typing import Any, Final

import orjson

from gateway.ir import errors
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import ErrorCode, GatewayError, InvalidRequest, ModelNotNamed
from gateway.ir.limits import MessageLimits
from gateway.wire.errors import (
    GRPC_STATUS,
    HTTP_STATUS,
    TOO_MANY_REQUESTS,
    clip,
    error_class_of_http,
    extra_headers,
    http_status_of,
    is_error_status,
    read_error_text,
    strip_traceback,
)
from gateway.wire.grpc import GrpcStatus
from gateway.wire.http import Headers, HttpResponse

JSON: Final = ("Content-Type", "application/json")
OK: Final = 200
BAD_DATA: Final = "MICROSERVICE_BAD_DATA"
FAILURE: Final = 1
_CODE: Final = -1
_SHOWN: Final = 128

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


def error_response(error: GatewayError, codec: str, limits: MessageLimits) -> HttpResponse:
    """Write *error*; status, text and reason of a server of this codec are unchanged. Never raises.

    Args:
        error: The failure.
        codec: Name of the codec.
        limits: For the length of its text.
    """
    text = clip(strip_traceback(error.message), limits.error_text_bytes) or error.code.value
    status, reason = http_status(error), REASONS[error.code]
    origin = error.origin
    if origin is not None and origin.codec == codec and isinstance(origin.wire, HttpResponse):
        status = origin.wire.status if is_error_status(origin.wire.status) else status
        reason = origin.form if isinstance(origin.form, str) and origin.form else reason
    body = {"status": {"code": _CODE, "info": text, "reason": reason, "status": FAILURE}}
    headers = Headers((JSON, *extra_headers(error)))
    return HttpResponse(status, headers, (orjson.dumps(body) + b"\n",))


def error_of_response(
    model: ModelRef | None, wire: HttpResponse, codec: str, limits: MessageLimits
) -> GatewayError:
    """Return the error of a server's response, with the response as its origin."""
    text, reason = read_error_text(wire.view, limits.error_text_bytes), ""
    try:
        found = orjson.loads(wire.view[: limits.json_bytes])["status"]
        text, reason = status_texts(found, text)
    except (orjson.JSONDecodeError, TypeError, KeyError):
        pass  # not in the protocol's form: the text is all that there is
    text = clip(strip_traceback(text), limits.error_text_bytes)
    text = text or f"upstream responded with status {wire.status} and no text"
    kind = (
        error_class_of_http(wire.status) if is_error_status(wire.status) else errors.UpstreamError
    )
    return kind(text, model=model, origin=Origin(codec, wire, reason))


def status_texts(status: Any, text: str) -> tuple[str, str]:
    """Return text and reason of a status object; *text* where it has none."""
    if type(status) is not dict:
        return text, ""
    info, reason = status.get("info"), status.get("reason")
    found = info if isinstance(info, str) and info else text
    return found, reason[:_SHOWN] if isinstance(reason, str) else ""


def is_failure(status: Any) -> bool:
    """Return whether the status object of an answer says that it failed."""
    return type(status) is dict and status.get("status") in (FAILURE, "FAILURE")
