"""Open Inference Protocol v2, over HTTP and gRPC: what this folder exports is `SPEC`.

Options, for a listener: `not_ready_status` (503 or 409) and the extensions of options.py, each off
until it is switched on. For an upstream: `dialect` (auto, triton, mlserver, kserve, ovms or
gateway).
"""

from __future__ import annotations

from gateway.protocols.oip.dialects import dialect_of
from gateway.protocols.oip.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.options import check_options
from gateway.wire.codec import GrpcBinding, HttpBinding, Options, ProtocolSpec


def settle_dialect(options: Options, server_name: str) -> Options:
    """Return *options* with a dialect: the one given, or the one of the server's name.

    A server of no known name is taken for Triton, whose dialect is the fullest.
    """
    if options.get("dialect", "auto") != "auto":
        return options
    return {**options, "dialect": dialect_of(server_name) or "triton"}


SPEC = ProtocolSpec(
    name="oip",
    http=HttpBinding(codec=HttpCodec, prefixes=("/v2",)),
    grpc=GrpcBinding(codec=GrpcCodec, methods=METHODS, file_descriptors=file_descriptors),
    options=check_options,
    resolve_dialect=settle_dialect,
    classifies=None,
)
