"""Errors to and from the statuses of TensorFlow Serving, over HTTP and gRPC.

Source: docs/protocols/tensorflow-serving.md, "7. Errors".
"""

from typing import Final

import orjson

from gateway.ir.errors import ErrorCode, GatewayError, InvalidRequest, NotFound, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.wire import errors
from gateway.wire.errors import (
    TOO_MANY_REQUESTS,
    MethodNotAllowed,
    clip,
    error_class_of_grpc,
    error_class_of_http,
    extra_headers,
    http_status_of,
    is_error_status,
    strip_traceback,
)
from gateway.wire.grpc import GrpcStatus
from gateway.wire.http import Headers, HttpResponse

JSON: Final = (("Content-Type", "application/json"),)
OK: Final = 200
NOT_FOUND: Final = 404
UNSUPPORTED_CONTENT: Final = 415
_REDIRECT: Final = 307

# No capacity is UNAVAILABLE, as that of the server's own batch queue.
GRPC_STATUS: Final = {**errors.GRPC_STATUS, ErrorCode.OVERLOADED: GrpcStatus.UNAVAILABLE}

# gRPC has one status for "too big" and "too busy"; the texts of servers tell them apart.
_SIZE_WORDS: Final = ("larger than", "too large", "at most", "exceeds")


class UnknownSignature(InvalidRequest):
    """The model has no signature of this name, or the signature has another method."""


class ForeignPath(NotFound):
    """The path is none of the protocol: a response without a body."""


class FrameworkError(NotFound):
    """The path does not exist: KServe's web framework responds, in a form of its own."""


class SlashAtEnd(NotFound):
    """The path has a slash at its end.

    Args:
        location: The path without it.
    """

    def __init__(self, location: str) -> None:
        super().__init__(f"the path ends with a slash: expected {location!r}")
        self.location = location


class OtherContent(InvalidRequest):
    """The body is of a content type that is not read."""


def grpc_status_of(error: GatewayError) -> GrpcStatus:
    """Return the gRPC status of *error*."""
    if isinstance(error, UnknownSignature):
        return GrpcStatus.FAILED_PRECONDITION
    if isinstance(error, TOO_MANY_REQUESTS):
        return GrpcStatus.RESOURCE_EXHAUSTED
    return GRPC_STATUS[error.code]


def grpc_error_class(status: GrpcStatus, details: str) -> type[GatewayError]:
    """Return the class of error that a gRPC status other than OK means."""
    if status is GrpcStatus.RESOURCE_EXHAUSTED and any(word in details for word in _SIZE_WORDS):
        return TooLarge
    if status is GrpcStatus.FAILED_PRECONDITION and "ignature" in details:
        return UnknownSignature
    return error_class_of_grpc(status)


def http_error_class(status: int) -> type[GatewayError]:
    """Return the class of error that an HTTP status other than 2xx means."""
    return error_class_of_http(status)


def error_response(error: GatewayError, codec: str, limits: MessageLimits) -> HttpResponse:
    """Write *error* as JSON; status and text of a server of this codec are unchanged. Never raises.

    Args:
        error: The failure.
        codec: Name of the codec.
        limits: For the length of its text.
    """
    if isinstance(error, ForeignPath):
        return HttpResponse(NOT_FOUND)
    if isinstance(error, SlashAtEnd):
        return HttpResponse(_REDIRECT, Headers((("Location", error.location),)))
    text = clip(strip_traceback(error.message), limits.error_text_bytes)
    key, status = "error", http_status_of(error)
    if isinstance(error, MethodNotAllowed | FrameworkError):
        key = "detail"
        text = "Method Not Allowed" if isinstance(error, MethodNotAllowed) else text
    if isinstance(error, OtherContent):
        status = UNSUPPORTED_CONTENT
    origin = error.origin
    if origin is not None and origin.codec == codec and isinstance(origin.wire, HttpResponse):
        status = origin.wire.status if is_error_status(origin.wire.status) else status
    headers = Headers((*JSON, *extra_headers(error)))
    return HttpResponse(status, headers, (orjson.dumps({key: text}),))
