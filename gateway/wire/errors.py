"""Errors as HTTP and gRPC statuses and back, for protocols that have no statuses of their own.

A protocol whose statuses differ changes single entries, or has its own tables in
`protocols/<name>/errors.py`.
"""

import math
from collections.abc import Iterable
from typing import Any, Final

from gateway.ir.calls import Call
from gateway.ir.context import Origin
from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    GatewayError,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    RateExceeded,
    Unsupported,
)
from gateway.ir.limits import MessageLimits
from gateway.wire.grpc import GrpcStatus

HTTP_REDIRECT: Final = 307
HTTP_METHOD_NOT_ALLOWED: Final = 405

HTTP_STATUS: Final[dict[ErrorCode, int]] = {
    ErrorCode.INVALID_ARGUMENT: 400,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.NOT_READY: 503,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.QUOTA_EXCEEDED: 429,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.DEADLINE_EXCEEDED: 504,
    ErrorCode.CANCELLED: 499,
    ErrorCode.BAD_UPSTREAM: 502,
    ErrorCode.UPSTREAM: 500,
    ErrorCode.INTERNAL: 500,
}

HTTP_TOO_MANY_REQUESTS: Final = 429
TOO_MANY_REQUESTS: Final = (RateExceeded, QuotaExceeded)
"""Errors that end the call of a carrier in every protocol; over HTTP with status 429."""

# The errors that HTTP sends with `Retry-After`: a later request may succeed.
_RETRY_AFTER_CODES: Final = frozenset(
    {ErrorCode.QUOTA_EXCEEDED, ErrorCode.OVERLOADED, ErrorCode.UNAVAILABLE}
)
_MAX_RETRY_AFTER_S: Final = 3600.0

GRPC_STATUS: Final[dict[ErrorCode, GrpcStatus]] = {
    ErrorCode.INVALID_ARGUMENT: GrpcStatus.INVALID_ARGUMENT,
    ErrorCode.NOT_FOUND: GrpcStatus.NOT_FOUND,
    ErrorCode.NOT_READY: GrpcStatus.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: GrpcStatus.UNIMPLEMENTED,
    ErrorCode.TOO_LARGE: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrorCode.UNAUTHENTICATED: GrpcStatus.UNAUTHENTICATED,
    ErrorCode.FORBIDDEN: GrpcStatus.PERMISSION_DENIED,
    ErrorCode.QUOTA_EXCEEDED: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrorCode.OVERLOADED: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrorCode.UNAVAILABLE: GrpcStatus.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: GrpcStatus.DEADLINE_EXCEEDED,
    ErrorCode.CANCELLED: GrpcStatus.CANCELLED,
    ErrorCode.BAD_UPSTREAM: GrpcStatus.INTERNAL,
    ErrorCode.UPSTREAM: GrpcStatus.INTERNAL,
    ErrorCode.INTERNAL: GrpcStatus.INTERNAL,
}

_CODE_OF_HTTP: Final[dict[int, ErrorCode]] = {
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.FORBIDDEN,
    407: ErrorCode.UNAUTHENTICATED,
    404: ErrorCode.NOT_FOUND,
    408: ErrorCode.DEADLINE_EXCEEDED,
    413: ErrorCode.TOO_LARGE,
    429: ErrorCode.OVERLOADED,
    499: ErrorCode.BAD_UPSTREAM,  # the gateway cancelled nothing: its client is still there
    501: ErrorCode.UNSUPPORTED,
    502: ErrorCode.BAD_UPSTREAM,
    503: ErrorCode.UNAVAILABLE,
    504: ErrorCode.DEADLINE_EXCEEDED,
}

_CODE_OF_GRPC: Final[dict[GrpcStatus, ErrorCode]] = {
    GrpcStatus.CANCELLED: ErrorCode.BAD_UPSTREAM,
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

_REFUSALS: Final = frozenset(
    {401, 403, 407, GrpcStatus.UNAUTHENTICATED, GrpcStatus.PERMISSION_DENIED}
)
TRACEBACK: Final = "Traceback (most recent call last):"
_WITHOUT_REASON: Final = "the upstream failed and gave a traceback without a reason"
_CLIENT_ERRORS: Final = range(400, 500)
_ERRORS: Final = range(400, 600)
SUCCESSES: Final = range(200, 300)
"""HTTP statuses of a success."""


class SlashAtEnd(NotFound):
    """The path has a slash at its end, from which a server of Python's frameworks redirects.

    Args:
        location: The path without it.
    """

    def __init__(self, location: str) -> None:
        super().__init__(f"the path ends with a slash: expected {location!r}")
        self.location = location


class MethodNotAllowed(InvalidRequest):
    """The path exists, and does not allow the HTTP method of the request.

    Args:
        message: What is wrong, for the client.
        allow: The methods that the path allows, separated by commas.
        has_head: Whether the path allows HEAD where it allows GET, which may change the server.

    Attributes:
        allow: The value of the Allow header.
    """

    def __init__(self, message: str, *, allow: str, has_head: bool = True) -> None:
        super().__init__(message)
        self.allow = allowed_methods(allow.split(", ")) if has_head else allow


def method_not_allowed(method: str, path: str, allow: str) -> MethodNotAllowed:
    """Return the error for a request with a method that its path does not allow.

    Args:
        method: The method of the request.
        path: Its path.
        allow: The methods that the path allows, separated by commas.
    """
    return MethodNotAllowed(
        f"method {method[:32]!r} is not allowed on {path[:200]!r}: expected {allow}", allow=allow
    )


def unknown_method(method: str) -> Unsupported:
    """Return the error for a gRPC method, a path, that no protocol of the listener serves."""
    return Unsupported(f"method {clip(method, 128)!r} is not supported by this gateway")


def allowed_methods(methods: Iterable[str]) -> str:
    """Return the value of the Allow header: the methods, with HEAD after GET."""
    found = [each for each in methods if each != "HEAD"]
    if "GET" in found:
        found.insert(found.index("GET") + 1, "HEAD")
    return ", ".join(found)


class UnsupportedContentType(InvalidRequest):
    """The body is of a type that is not read."""


def http_status_of(error: GatewayError) -> int:
    """Return the HTTP status of *error*, for protocols without statuses of their own."""
    if isinstance(error, MethodNotAllowed):
        return HTTP_METHOD_NOT_ALLOWED
    if isinstance(error, TOO_MANY_REQUESTS):
        return HTTP_TOO_MANY_REQUESTS
    return HTTP_STATUS[error.code]


def refuses_caller(response: object) -> bool:
    """Return whether the status of a response is about the caller, and not what was asked.

    The numbers of HTTP and gRPC differ; frames have no status.
    """
    return getattr(response, "status", None) in _REFUSALS


def extra_headers(error: GatewayError) -> tuple[tuple[str, str], ...]:
    """Return what HTTP requires or recommends for *error*: `Allow`, `Location`, `Retry-After`."""
    if isinstance(error, MethodNotAllowed):
        return (("Allow", error.allow),)
    if isinstance(error, SlashAtEnd):
        return (("Location", error.location),)
    if error.code not in _RETRY_AFTER_CODES:
        return ()
    seconds = error.retry_after_s or 1.0
    if error.code is not ErrorCode.QUOTA_EXCEEDED:  # a window may last a month
        seconds = min(seconds, _MAX_RETRY_AFTER_S)
    return (("Retry-After", str(max(1, math.ceil(seconds)))),)


def error_class_of_http(status: int) -> type[GatewayError]:
    """Return the class of error that an HTTP status other than 2xx means."""
    fallback = ErrorCode.INVALID_ARGUMENT if status in _CLIENT_ERRORS else ErrorCode.UPSTREAM
    return ERROR_CLASSES[_CODE_OF_HTTP.get(status, fallback)]


def error_class_of_grpc(status: GrpcStatus) -> type[GatewayError]:
    """Return the class of error that a gRPC status other than OK means."""
    return ERROR_CLASSES[_CODE_OF_GRPC[status]]


def is_error_status(status: int) -> bool:
    """Return whether an upstream's HTTP status may go to a client as the status of an error."""
    return status in _ERRORS


def passed_failure(call: Call[Any], error: GatewayError, limits: MessageLimits) -> Origin | None:
    """Return the response with the error of a server, to a message that was sent on.

    None for all others, for long ones, and for those with the traceback of a program.
    """
    own, found = call.context.origin, error.origin
    if own is None or found is None or not own.whole or found.whole != own.whole:
        return None
    body = bytes(found.wire.view)
    if len(body) > limits.error_text_bytes or TRACEBACK.encode() in body:
        return None
    return found


def clip(text: str, limit_bytes: int) -> str:
    """Cut an error text to at most *limit_bytes* of UTF-8; lone surrogates become '?'."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return data.decode()
    return data[: max(limit_bytes - 3, 0)].decode("utf-8", "ignore") + "..."


def strip_traceback(text: str) -> str:
    """Return *text*; of a Python traceback only its last line, which contains the reason.

    A traceback names files of the upstream, and a limit on the length would cut its end.  Its
    other lines are indented.
    """
    if TRACEBACK not in text:
        return text
    for line in reversed(text.splitlines()):
        if line[:1].strip() and TRACEBACK not in line:
            return line.rstrip()
    return _WITHOUT_REASON


def read_error_text(view: memoryview, limit_bytes: int) -> str:
    """Return *view* as text, at most *limit_bytes* of it; of a Python traceback its last line."""
    text = str(view[:limit_bytes], "utf-8", "replace")
    if TRACEBACK in text and len(view) > limit_bytes:
        text = f"{TRACEBACK}\n{str(view[-limit_bytes:], 'utf-8', 'replace')}"
    return strip_traceback(text)
