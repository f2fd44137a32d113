"""TorchServe over HTTP and gRPC: inference, health, and questions of its management.

Read `messages.py` first: bytes of clients become inputs, and outputs become bytes. `options.py`
describes the options of listeners and upstreams, `declarations.py` what the configuration declares
of a model.
"""

from gateway.api.protocol import GrpcBinding, HttpBinding, ProtocolSpec
from gateway.protocols.torchserve.declarations import read_declaration
from gateway.protocols.torchserve.grpc.codec import (
    METHODS,
    PING_METHOD,
    GrpcCodec,
    file_descriptors,
)
from gateway.protocols.torchserve.http.codec import SEQUENCE_HEADERS, STREAM, HttpCodec
from gateway.protocols.torchserve.options import check_options
from gateway.protocols.torchserve.paths import claims

SPEC = ProtocolSpec(
    name="torchserve",
    title="TorchServe",
    page="torchserve.md",
    http=HttpBinding(
        codec=HttpCodec,
        claims=claims,
        request_headers=SEQUENCE_HEADERS,
        response_headers=STREAM[:1],
    ),
    grpc=GrpcBinding(
        codec=GrpcCodec, methods=METHODS, file_descriptors=file_descriptors, public=(PING_METHOD,)
    ),
    options=check_options,
    default_model="default_model",
    declaration=read_declaration,
)
