"""What travels beside a TensorRT v1 message over gRPC, and the codec's name and needs."""

from __future__ import annotations

from typing import Final

from gateway.ir.context import Context, Need
from gateway.wire.grpc import GrpcRequest
from gateway.wire.metadata import grpc_context

NAME: Final = "trtis.grpc"
REPLY_NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.BATCHING})
NEEDS: Final = REPLY_NEEDS | {Need.OUTPUTS}
CALLERS: Final = REPLY_NEEDS | {Need.NUMERIC_VERSIONS}


def context_of(wire: GrpcRequest) -> Context:
    """Return what travels beside a client's message."""
    return grpc_context(wire, NAME, CALLERS)
