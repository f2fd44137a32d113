"""TensorFlow Serving over REST and gRPC, and KServe V1 as a dialect of its REST form.

Read `grpc/codec.py` first. `options.py` describes the options of listeners and upstreams,
`declarations.py` what the configuration declares of a model.
"""

from gateway.api.protocol import GrpcBinding, HttpBinding, ProtocolSpec, SidecarDefaults
from gateway.protocols.tfs.declarations import read_declaration
from gateway.protocols.tfs.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.protocols.tfs.http.codec import HttpCodec
from gateway.protocols.tfs.http.events import EVENT_HEADERS
from gateway.protocols.tfs.http.paths import claims
from gateway.protocols.tfs.options import check_options, process_options
from gateway.protocols.tfs.platform import PLATFORM

SPEC = ProtocolSpec(
    name="tfs",
    title="TensorFlow Serving",
    page="tensorflow-serving.md",
    http=HttpBinding(
        codec=HttpCodec,
        claims=claims,
        request_headers=EVENT_HEADERS,
        response_headers=EVENT_HEADERS,
    ),
    grpc=GrpcBinding(codec=GrpcCodec, methods=METHODS, file_descriptors=file_descriptors),
    options=check_options,
    process_options=process_options,
    default_model="default_model",
    declaration=read_declaration,
    platform=PLATFORM,
    # Clients of KServe V1 ask there whether the server is alive.
    sidecar=SidecarDefaults(options={"root": True}),
)
