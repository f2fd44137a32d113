"""The messages of wires that a codec reads and writes, and the statuses of errors, in one place.

Semantic versioning of `gateway.api` holds for these names too.
"""

from gateway.wire.errors import (
    GRPC_STATUS,
    MethodNotAllowed,
    error_class_of_grpc,
    error_class_of_http,
    extra_headers,
    http_status_of,
)
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from gateway.wire.heads.metadata import grpc_context, grpc_metadata, http_context, http_headers
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse
from gateway.wire.protobuf.messages import FieldKind, MessageDescriptor, MessageField
from gateway.wire.protobuf.wire_format import WireError
from gateway.wire.stream import Frame, Framer

__all__ = [
    "GRPC_STATUS",
    "Buffer",
    "FieldKind",
    "Frame",
    "Framer",
    "GrpcRequest",
    "GrpcResponse",
    "GrpcStatus",
    "Headers",
    "HttpRequest",
    "HttpResponse",
    "MessageDescriptor",
    "MessageField",
    "MethodKind",
    "MethodNotAllowed",
    "WireError",
    "error_class_of_grpc",
    "error_class_of_http",
    "extra_headers",
    "grpc_context",
    "grpc_metadata",
    "http_context",
    "http_headers",
    "http_status_of",
]
