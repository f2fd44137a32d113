"""Errors to and from the statuses of TensorFlow Serving, over HTTP and gRPC.

Source: docs/protocols/tensorflow-serving.md, "7. Errors".
"""

from typing import Final

from gateway.ir.errors import ErrorCode, GatewayError, InvalidRequest, NotFound, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.wire import errors
from gateway.wire.errors import (
    HTTP_METHOD_NOT_ALLOWED,
    HTTP_REDIRECT,
    TOO_MANY_REQUESTS,
    MethodNotAllowed,
    SlashAtEnd,
    error_class_of_grpc,
    extra_headers,
    http_status_of,
)
from gateway.wire.grpc import GrpcStatus
from gateway.wire.http import Headers, HttpResponse
from gateway.wire.json.errors import JSON, ErrorRow, JsonErrorForm

OK: Final = 200
NOT_FOUND: Final = 404
UNSUPPORTED_CONTENT: Final = 415
_ERROR, _DETAIL = "error", "detail"
_NO_METHOD: Final = b'{"detail":"Method Not Allowed"}'

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


def _row(error: GatewayError) -> ErrorRow:
    if isinstance(error, OtherContent):
        return UNSUPPORTED_CONTENT, _ERROR
    return http_status_of(error), _DETAIL if isinstance(error, FrameworkError) else _ERROR


FORM: Final = JsonErrorForm(
    codec="tfs.http",
    passes=True,
    row=_row,
    document=lambda _status, key, text: {key: text},
    keeps_status=True,
    texts=((_ERROR,), (_DETAIL,)),
)


def error_response(error: GatewayError, limits: MessageLimits) -> HttpResponse:
    """Write *error* as JSON; status and text of a server of this codec are unchanged. Never raises.

    Args:
        error: The failure.
        limits: For the length of its text.
    """
    if isinstance(error, ForeignPath):
        return HttpResponse(NOT_FOUND)
    if isinstance(error, SlashAtEnd):
        return HttpResponse(HTTP_REDIRECT, Headers(extra_headers(error)))
    if isinstance(error, MethodNotAllowed):
        return HttpResponse(
            HTTP_METHOD_NOT_ALLOWED, Headers((JSON, *extra_headers(error))), (_NO_METHOD,)
        )
    return FORM.write(error, limits)
