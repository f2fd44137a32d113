"""Errors in TorchServe's form: an object with `code`, `type` and `message`, and gRPC statuses.

Source: docs/protocols/torchserve.md, "6. Errors".
"""

from typing import Final

from gateway.ir import errors
from gateway.ir.context import ModelRef
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.wire.errors import (
    GRPC_STATUS,
    HTTP_METHOD_NOT_ALLOWED,
    HTTP_TOO_MANY_REQUESTS,
    TOO_MANY_REQUESTS,
    MethodNotAllowed,
    error_class_of_grpc,
)
from gateway.wire.grpc import GrpcStatus
from gateway.wire.json.errors import NOT_FOLLOWED, ErrorRow, JsonErrorForm, class_of_status

OK: Final = 200
UNHEALTHY: Final = 500

_BAD, _INTERNAL, _BUSY = (
    "BadRequestException",
    "InternalServerException",
    "ServiceUnavailableException",
)
_MODEL, _VERSION, _RESOURCE = (
    "ModelNotFoundException",
    "ModelVersionNotFoundException",
    "ResourceNotFoundException",
)
_METHOD, _KEY = "MethodNotAllowedException", "InvalidKeyException"

STATUS: Final[dict[ErrorCode, tuple[int, str]]] = {
    ErrorCode.INVALID_ARGUMENT: (400, _BAD),
    ErrorCode.NOT_FOUND: (404, _MODEL),
    ErrorCode.NOT_READY: (503, _BUSY),
    ErrorCode.UNSUPPORTED: (400, _BAD),
    ErrorCode.TOO_LARGE: (413, "RequestEntityTooLargeException"),
    ErrorCode.UNAUTHENTICATED: (400, _KEY),
    ErrorCode.FORBIDDEN: (403, "AccessDeniedException"),
    ErrorCode.QUOTA_EXCEEDED: (429, _BUSY),
    ErrorCode.OVERLOADED: (503, _BUSY),
    ErrorCode.UNAVAILABLE: (503, _BUSY),
    ErrorCode.DEADLINE_EXCEEDED: (503, _INTERNAL),
    ErrorCode.CANCELLED: (499, _INTERNAL),
    ErrorCode.BAD_UPSTREAM: (503, _INTERNAL),
    ErrorCode.UPSTREAM: (503, _INTERNAL),
    ErrorCode.INTERNAL: (500, _INTERNAL),
}
"""Status and `type` of each error."""

_CLASSES: Final[dict[str, type[GatewayError]]] = {
    _MODEL: errors.ModelNotFound,
    _VERSION: errors.VersionNotFound,
    _KEY: errors.Unauthenticated,
    _INTERNAL: errors.UpstreamError,
    _BUSY: errors.Overloaded,
}
"""The error that a `type` of a server means; a handler that fails is not overload."""
_CLIENT_ERRORS: Final = range(400, 500)


class UnknownResource(errors.NotFound):
    """The path does not exist."""


class UnknownVersion(errors.VersionNotFound):
    """The configuration knows no such version of the model."""


class ManagementRefused(errors.Unsupported):
    """A request would change models."""


def _status_of(error: GatewayError) -> ErrorRow:
    status, kind = STATUS[error.code]
    if isinstance(error, MethodNotAllowed | ManagementRefused):
        return HTTP_METHOD_NOT_ALLOWED, _METHOD
    if isinstance(error, TOO_MANY_REQUESTS):
        return HTTP_TOO_MANY_REQUESTS, kind
    if isinstance(error, UnknownResource):
        return status, _RESOURCE
    if isinstance(error, errors.VersionNotNumeric):
        return STATUS[ErrorCode.NOT_FOUND][0], _VERSION
    is_about_version = error.model is not None and bool(error.model.version)
    if isinstance(error, errors.VersionNotFound) or (
        error.code is ErrorCode.NOT_FOUND and is_about_version
    ):
        return status, _VERSION
    return status, kind


def grpc_status_of(error: GatewayError) -> GrpcStatus:
    """Return the gRPC status of *error*; servers have INTERNAL for all."""
    if isinstance(error, TOO_MANY_REQUESTS):
        return GrpcStatus.RESOURCE_EXHAUSTED
    if isinstance(error, errors.VersionNotNumeric):  # versions are texts here
        return GrpcStatus.NOT_FOUND
    return GRPC_STATUS[error.code]


def grpc_error_class(status: GrpcStatus, details: str) -> type[GatewayError]:
    """Return the class of error that a server's status means; its text has a name of Java."""
    for name, found in _CLASSES.items():
        if name in details:
            return found
    if status is GrpcStatus.INTERNAL and _BAD in details:
        return errors.InvalidRequest
    return error_class_of_grpc(status)


def _class_of(model: ModelRef | None, status: int, kind: str, text: str) -> type[GatewayError]:
    is_of_client = status in _CLIENT_ERRORS
    if kind in _CLASSES and (is_of_client or status == _SERVICE_UNAVAILABLE):
        return _CLASSES[kind]
    if is_of_client or status in _OF_CARRIERS:
        return class_of_status(model, status, kind, text)
    return errors.UpstreamError


_SERVICE_UNAVAILABLE: Final = 503
_OF_CARRIERS: Final = (502, _SERVICE_UNAVAILABLE, 504)

FORM: Final = JsonErrorForm(
    codec="torchserve.http",
    passes=True,
    row=_status_of,
    document=lambda status, kind, text: {"code": status, "type": kind, "message": text},
    texts=(("message",),),
    kind=("type",),
    error_class=_class_of,
    no_error=NOT_FOLLOWED,
    keeps_status=True,
)
