"""Error codes as TensorRT v1 request statuses, and back.

Over HTTP every failure is 400 (405 for a wrong method) and the code stands in `NV-Status`; over
gRPC the call ends well and the code stands in `request_status`.

Source: docs/protocols/tensorrt-v1.md, "17. Errors".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelLoadRequest,
    ModelUnloadRequest,
    ServerStatusRequest,
    SharedRegisterRequest,
)
from gateway.ir.errors import (
    ERROR_CLASSES,
    ErrorCode,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    NotReady,
    RegionExists,
    RegionNotFound,
    RegionUnusable,
)
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.errors import clip
from gateway.wire.grpc import GrpcStatus

HTTP_OK, HTTP_ERROR = 200, 400

STATUS: dict[ErrorCode, pb.RequestStatusCode] = {
    ErrorCode.INVALID_ARGUMENT: pb.INVALID_ARG,
    ErrorCode.NOT_FOUND: pb.NOT_FOUND,
    ErrorCode.NOT_READY: pb.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: pb.UNSUPPORTED,
    ErrorCode.TOO_LARGE: pb.INVALID_ARG,
    ErrorCode.UNAUTHENTICATED: pb.UNAVAILABLE,
    ErrorCode.FORBIDDEN: pb.UNAVAILABLE,
    ErrorCode.OVERLOADED: pb.UNAVAILABLE,
    ErrorCode.UNAVAILABLE: pb.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: pb.UNAVAILABLE,
    ErrorCode.CANCELLED: pb.UNAVAILABLE,
    ErrorCode.BAD_UPSTREAM: pb.INTERNAL,
    ErrorCode.UPSTREAM: pb.INTERNAL,
    ErrorCode.INTERNAL: pb.INTERNAL,
}

_CODE: dict[int, ErrorCode] = {
    pb.INVALID: ErrorCode.BAD_UPSTREAM,
    pb.UNKNOWN: ErrorCode.UPSTREAM,
    pb.INTERNAL: ErrorCode.UPSTREAM,
    pb.NOT_FOUND: ErrorCode.NOT_FOUND,
    pb.INVALID_ARG: ErrorCode.INVALID_ARGUMENT,
    pb.UNAVAILABLE: ErrorCode.UNAVAILABLE,
    pb.UNSUPPORTED: ErrorCode.UNSUPPORTED,
    pb.ALREADY_EXISTS: ErrorCode.INVALID_ARGUMENT,
}


@dataclass(frozen=True, slots=True)
class TrtisStatus:
    """What a request status says of one call."""

    code: int
    text: str


class NoSuchPath(NotFound):
    """No handler of the real server is reached: 400 and nothing else."""


class HeaderMissing(InvalidRequest):
    """An inference without NV-InferRequest."""


class UnknownMode(InvalidRequest):
    """A mode or action that is none of those there are: UNKNOWN, not INVALID_ARG."""


def status_of(call: Call[Any] | None, error: GatewayError, limit_bytes: int) -> TrtisStatus:
    """Return the request status that *error* is answered with.

    An upstream's own goes back as it came, whichever carrier it came by. An inference with a model
    that is not served is UNAVAILABLE, a status of one INVALID_ARG: so does the real server.
    """
    origin = error.origin
    if origin is not None and isinstance(origin.form, TrtisStatus):
        return origin.form
    return TrtisStatus(_code_of(call, error), clip(error.message, limit_bytes))


def _code_of(call: Call[Any] | None, error: GatewayError) -> int:
    for kind, code in _OF_KINDS.items():
        if isinstance(error, kind):
            return code
    if error.code is ErrorCode.NOT_FOUND:
        if isinstance(call, InferRequest):
            return pb.UNAVAILABLE
        if isinstance(call, ServerStatusRequest):
            return pb.INVALID_ARG
    if error.code is ErrorCode.UNSUPPORTED and isinstance(
        call, ModelLoadRequest | ModelUnloadRequest
    ):
        return pb.UNAVAILABLE
    return STATUS[error.code]


# Finer than the codes of the IR.
_OF_KINDS: dict[type[GatewayError], int] = {
    UnknownMode: pb.UNKNOWN,
    RegionNotFound: pb.NOT_FOUND,
    RegionExists: pb.ALREADY_EXISTS,
    RegionUnusable: pb.INTERNAL,
}


def error_class_of(call: Call[Any], code: int) -> type[GatewayError]:
    """Return the kind of error that an upstream's request status means.

    UNAVAILABLE as the answer to an inference is a model that is not served or not ready, NOT_FOUND
    a region of shared memory; INVALID_ARG as the answer to a question about a model is a model that
    there is none of.
    """
    if code == pb.NOT_FOUND and isinstance(call, InferRequest):
        return RegionNotFound
    if code == pb.ALREADY_EXISTS and isinstance(call, SharedRegisterRequest):
        return RegionExists
    if code == pb.UNAVAILABLE and isinstance(call, InferRequest):
        return NotReady
    if code == pb.INVALID_ARG and call.model is not None and not isinstance(call, InferRequest):
        return ModelNotFound
    return ERROR_CLASSES[_CODE.get(code, ErrorCode.UPSTREAM)]


# Of a server that follows the protocol only these come: everything else is in request_status.
_CODE_OF_GRPC: dict[GrpcStatus, ErrorCode] = {
    GrpcStatus.CANCELLED: ErrorCode.BAD_UPSTREAM,
    GrpcStatus.INVALID_ARGUMENT: ErrorCode.INVALID_ARGUMENT,
    GrpcStatus.DEADLINE_EXCEEDED: ErrorCode.DEADLINE_EXCEEDED,
    GrpcStatus.NOT_FOUND: ErrorCode.NOT_FOUND,
    GrpcStatus.PERMISSION_DENIED: ErrorCode.FORBIDDEN,
    GrpcStatus.RESOURCE_EXHAUSTED: ErrorCode.OVERLOADED,
    GrpcStatus.UNIMPLEMENTED: ErrorCode.UNSUPPORTED,
    GrpcStatus.UNAVAILABLE: ErrorCode.UNAVAILABLE,
    GrpcStatus.UNAUTHENTICATED: ErrorCode.UNAUTHENTICATED,
}


def error_class_of_grpc(status: GrpcStatus) -> type[GatewayError]:
    """Return the kind of error a gRPC status that is not OK means."""
    return ERROR_CLASSES[_CODE_OF_GRPC.get(status, ErrorCode.UPSTREAM)]
