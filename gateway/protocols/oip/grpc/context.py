"""The context of an Open Inference message over gRPC, and the codec's name and needs."""

from typing import Final

from gateway.ir.context import Context, Need
from gateway.wire.grpc import GrpcRequest
from gateway.wire.heads.metadata import grpc_context

NAME: Final = "oip.grpc"
NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def context_of(wire: GrpcRequest) -> Context:
    """Return the context of a client's message."""
    return grpc_context(wire, NAME, NEEDS, has_bytes=False)
