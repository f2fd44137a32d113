"""The values of the tensor IR that extensions use, in one place.

Semantic versioning of `gateway.api` holds for these names too.
"""

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import (
    ErrorCode,
    Forbidden,
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    ModelNotFound,
    NotFound,
    Overloaded,
    TooLarge,
    Unauthenticated,
    Unsupported,
)
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    as_items,
    as_numpy,
    as_raw,
    items_tensor,
    raw_tensor,
)

__all__ = [
    "Call",
    "Context",
    "Datatype",
    "ErrorCode",
    "Forbidden",
    "GatewayError",
    "InferRequest",
    "InferResponse",
    "InvalidRequest",
    "MalformedMessage",
    "MessageLimits",
    "ModelMetadata",
    "ModelMetadataRequest",
    "ModelNotFound",
    "ModelReadyRequest",
    "ModelRef",
    "Need",
    "NotFound",
    "Overloaded",
    "RequestedOutput",
    "ServerLiveRequest",
    "ServerReadyRequest",
    "StreamInferRequest",
    "Tensor",
    "TensorMetadata",
    "TooLarge",
    "Unauthenticated",
    "Unsupported",
    "array_tensor",
    "as_items",
    "as_numpy",
    "as_raw",
    "inference_of",
    "items_tensor",
    "raw_tensor",
]
