"""Errors to and from the statuses of TensorFlow Serving, over HTTP and gRPC.

Source: docs/protocols/tensorflow-serving.md, "7. Errors".
"""

from typing import Final

from gateway.ir.errors import ErrorCode, GatewayError, InvalidRequest, TooLarge
from gateway.wire import errors
from gateway.wire.errors import TOO_MANY_REQUESTS, error_class_of_grpc
from gateway.wire.grpc import GrpcStatus

# No capacity is UNAVAILABLE, as that of the server's own batch queue.
GRPC_STATUS: Final = {**errors.GRPC_STATUS, ErrorCode.OVERLOADED: GrpcStatus.UNAVAILABLE}

# gRPC has one status for "too big" and "too busy"; the texts of servers tell them apart.
_SIZE_WORDS: Final = ("larger than", "too large", "at most", "exceeds")


class UnknownSignature(InvalidRequest):
    """The model has no signature of this name, or the signature has another method."""


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
