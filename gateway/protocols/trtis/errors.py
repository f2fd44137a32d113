"""Error codes to and from request statuses of TensorRT v1.

Over HTTP every failure is 400 (405 for a wrong method), with the code in `NV-Status`.  Over gRPC
the call succeeds, with the code in `request_status`.

Source: docs/protocols/tensorrt-v1.md, "17. Errors".
"""

from collections.abc import Mapping
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

HTTP_OK, HTTP_ERROR = 200, 400

STATUS: dict[ErrorCode, pb.RequestStatusCode] = {
    ErrorCode.INVALID_ARGUMENT: pb.INVALID_ARG,
    ErrorCode.NOT_FOUND: pb.NOT_FOUND,
    ErrorCode.NOT_READY: pb.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: pb.UNSUPPORTED,
    ErrorCode.TOO_LARGE: pb.INVALID_ARG,
    ErrorCode.UNAUTHENTICATED: pb.UNAVAILABLE,
    ErrorCode.FORBIDDEN: pb.UNAVAILABLE,
    ErrorCode.QUOTA_EXCEEDED: pb.UNAVAILABLE,
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
    """Code and text of a request status."""

    code: int
    text: str


class NoSuchPath(NotFound):
    """The path has no handler in the real server: 400 and no status."""


class HeaderMissing(InvalidRequest):
    """An inference without NV-InferRequest."""


class UnknownMode(InvalidRequest):
    """An unknown mode or action: UNKNOWN, not INVALID_ARG."""


def status_of(call: Call[Any] | None, error: GatewayError, limit_bytes: int) -> TrtisStatus:
    """Return the request status of *error*.

    That of an upstream is returned unchanged, whichever carrier it used.  Like the real server,
    this returns UNAVAILABLE for an inference with an unknown model, and INVALID_ARG for its status.
    """
    origin = error.origin
    if origin is not None and isinstance(origin.form, TrtisStatus):
        return origin.form
    return TrtisStatus(_code_of(call, error), clip(error.message, limit_bytes))


def _code_of(call: Call[Any] | None, error: GatewayError) -> int:
    for kind, code in _OF_KINDS.items():
        if isinstance(error, kind):
            return code
    found = _OF_CALLS.get((error.code, type(call)))
    return STATUS[error.code] if found is None else found


# Codes for some calls that differ from those for others.
_OF_CALLS: Mapping[tuple[ErrorCode, type[Any]], int] = {
    (ErrorCode.NOT_FOUND, InferRequest): pb.UNAVAILABLE,
    (ErrorCode.NOT_FOUND, ServerStatusRequest): pb.INVALID_ARG,
    (ErrorCode.UNSUPPORTED, ModelLoadRequest): pb.UNAVAILABLE,
    (ErrorCode.UNSUPPORTED, ModelUnloadRequest): pb.UNAVAILABLE,
}

# Kinds of errors that differ from their codes in the IR.
_OF_KINDS: dict[type[GatewayError], int] = {
    UnknownMode: pb.UNKNOWN,
    RegionNotFound: pb.NOT_FOUND,
    RegionExists: pb.ALREADY_EXISTS,
    RegionUnusable: pb.INTERNAL,
}


def error_class_of(call: Call[Any], code: int) -> type[GatewayError]:
    """Return the class of error that an upstream's request status means.

    For an inference, UNAVAILABLE means a model that is not served or not ready, and NOT_FOUND a
    region of shared memory.  For other calls about a model, INVALID_ARG means that the model does
    not exist.
    """
    found = _CLASSES.get((code, type(call)))
    if found is None and code == pb.INVALID_ARG and call.model is not None:
        return ModelNotFound
    return found or ERROR_CLASSES[_CODE.get(code, ErrorCode.UPSTREAM)]


_CLASSES: Mapping[tuple[int, type[Any]], type[GatewayError]] = {
    (pb.NOT_FOUND, InferRequest): RegionNotFound,
    (pb.UNAVAILABLE, InferRequest): NotReady,
    (pb.INVALID_ARG, InferRequest): InvalidRequest,
    (pb.ALREADY_EXISTS, SharedRegisterRequest): RegionExists,
}
