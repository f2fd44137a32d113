"""Error codes to and from Open Inference statuses, over HTTP and gRPC."""

from gateway.ir.errors import Decoupled, ErrorCode, GatewayError, NotReady, TooLarge
from gateway.wire import errors
from gateway.wire.errors import clip, error_class_of_grpc, error_class_of_http
from gateway.wire.grpc import GrpcStatus

# gRPC has one status for "too big" and "too busy"; the texts of servers tell them apart.
_SIZE_WORDS = ("larger than", "too large", "at most", "exceeds")
# Ends of the texts of Triton and MLServer for a model that only streams, before it ran.
_DECOUPLED = ("decoupled transaction policy", "predict() method not implemented")
_DECOUPLED_HTTP = (501, 500)
_DECOUPLED_GRPC = (GrpcStatus.UNIMPLEMENTED, GrpcStatus.INTERNAL)


HTTP_OK = 200
# Triton's status of `generate`, and of a stream that begins with the error of a model.
GENERATE_FAILED = 400
# KServe's page lists 409 for "not ready" (docs/protocols/open-inference.md, "16. Errors").
INFERENCE_NOT_READY = 409


# Triton's text of a deadline, which clients search for.
_DEADLINE = "Deadline Exceeded"


def text_of(error: GatewayError, limit_bytes: int) -> str:
    """Return the text of *error* for clients, cut to *limit_bytes*.

    The text of a server of this protocol is unchanged.
    """
    text, origin = error.message, error.origin
    if error.code is ErrorCode.DEADLINE_EXCEEDED and not text.startswith(_DEADLINE):
        is_server_text = origin is not None and origin.codec.startswith("oip.")
        if not is_server_text:
            text = f"{_DEADLINE}: {text}"
    return clip(text, limit_bytes)


def http_status_of(error: GatewayError, not_ready_status: int) -> int:
    """Return the HTTP status of *error*, for an error without a status of an upstream."""
    return not_ready_status if error.code is ErrorCode.NOT_READY else errors.http_status_of(error)


def http_error_class(status: int, text: str = "") -> type[GatewayError]:
    """Return the class of error that an HTTP status other than 2xx means."""
    if status in _DECOUPLED_HTTP and text.endswith(_DECOUPLED):
        return Decoupled
    return NotReady if status == INFERENCE_NOT_READY else error_class_of_http(status)


def grpc_error_class(status: GrpcStatus, details: str) -> type[GatewayError]:
    """Return the class of error that a gRPC status other than OK means."""
    if status is GrpcStatus.RESOURCE_EXHAUSTED and any(word in details for word in _SIZE_WORDS):
        return TooLarge
    if status in _DECOUPLED_GRPC and details.endswith(_DECOUPLED):
        return Decoupled
    return error_class_of_grpc(status)
