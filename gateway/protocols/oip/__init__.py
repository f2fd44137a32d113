"""Open Inference Protocol v2, over HTTP and gRPC.

Read `http/codec.py` and `grpc/codec.py` first; the modules here serve both, and `json/` has tensors
as JSON.  `options.py` describes the options of a listener: `not_ready_status` and the extensions,
each off by default.  An upstream has the option `dialect`.
"""

from gateway.api.protocol import GrpcBinding, HttpBinding, Options, ProtocolSpec
from gateway.protocols.oip.dialects import dialect_of
from gateway.protocols.oip.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.options import UNKNOWN, check_options, extension_status


def choose_dialect(options: Options, server_name: str) -> Options:
    """Return *options* with a dialect: the configured one, or the one of the server's name.

    For an unknown name this is like Triton's dialect, which has the most features.
    """
    if options.get("dialect", "auto") != "auto":
        return options
    return {**options, "dialect": dialect_of(server_name) or UNKNOWN}


SPEC = ProtocolSpec(
    name="oip",
    http=HttpBinding(codec=HttpCodec, prefixes=("/v2",)),
    grpc=GrpcBinding(codec=GrpcCodec, methods=METHODS, file_descriptors=file_descriptors),
    options=check_options,
    resolve_dialect=choose_dialect,
    classifies=None,
    extension_status=extension_status,
)
