"""What travels beside an TensorRT v1 message over gRPC: metadata, request id, deadline."""

from __future__ import annotations

import re

from gateway.ir.context import Context, Need, Origin
from gateway.wire.grpc import GrpcRequest, Metadata

NAME = "trtis.grpc"
REPLY_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES, Need.BATCHING})
NEEDS = REPLY_NEEDS | {Need.OUTPUTS}

_REQUEST_ID = "x-request-id"
_REQUEST_ID_BYTES = 128

# Keys of metadata that hold text: "-bin" ends those of bytes, "grpc-" begins the runtime's own.
_KEY = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")
_OF_ONE_CONNECTION = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)


def context_of(wire: GrpcRequest) -> Context:
    """Return what travels beside a client's message."""
    metadata = []
    request_id = ""
    for key, value in wire.metadata:
        if isinstance(value, str):
            metadata.append((key, value))
            if key == _REQUEST_ID:
                request_id = value
    if len(request_id) > _REQUEST_ID_BYTES or not request_id.isprintable():
        request_id = ""  # not fit for a log: the gateway makes one
    return Context(
        NAME, tuple(metadata), request_id, wire.deadline, None, REPLY_NEEDS, Origin(NAME, wire)
    )


def metadata_of(context: Context) -> Metadata:
    """Return the metadata of a request to an upstream, the id of the call among them.

    All that the context holds and gRPC can carry: what may cross was decided before
    (`gateway.policies.forward`).
    """
    metadata: Metadata = ()
    if context.metadata:
        metadata = tuple([entry for entry in context.metadata if _may_cross(*entry)])
    if context.request_id and _REQUEST_ID not in dict(metadata):
        metadata = (*metadata, (_REQUEST_ID, context.request_id))
    return metadata


def _may_cross(key: str, value: str) -> bool:
    """Tell whether gRPC can carry an entry: HTTP headers may have come this way."""
    return (
        key not in _OF_ONE_CONNECTION
        and _KEY.fullmatch(key) is not None
        and value.isascii()
        and value.isprintable()
    )
