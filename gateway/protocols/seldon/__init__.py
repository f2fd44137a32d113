"""Seldon Core's protocol of version 1 (`seldon`, SeldonMessage), over REST and gRPC.

Read `http/codec.py` first. `options.py` describes the options of listeners and upstreams,
`declarations.py` what the configuration declares of a model.
"""

from gateway.api.protocol import GrpcBinding, HttpBinding, ProtocolSpec, SidecarDefaults
from gateway.protocols.seldon.declarations import read_declaration
from gateway.protocols.seldon.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.protocols.seldon.http.codec import HttpCodec
from gateway.protocols.seldon.http.paths import claims
from gateway.protocols.seldon.options import check_options

SPEC = ProtocolSpec(
    name="seldon",
    title="Seldon v1",
    page="seldon.md",
    http=HttpBinding(
        codec=HttpCodec,
        claims=claims,
        request_headers=("seldon-puid",),
        response_headers=("seldon-puid",),
    ),
    grpc=GrpcBinding(codec=GrpcCodec, methods=METHODS, file_descriptors=file_descriptors),
    options=check_options,
    default_model="default_model",
    # Its server has one model, which no request names, and reads feedback.
    sidecar=SidecarDefaults(default_model="model", own_options={"feedback": "forward"}),
    declaration=read_declaration,
    varying=frozenset({"meta.puid", "meta.metrics"}),
)
