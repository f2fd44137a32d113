"""TensorFlow Serving over REST and gRPC, and KServe V1 as a dialect of its REST form.

Read `grpc/codec.py` first. `options.py` describes the options of listeners and upstreams,
`declarations.py` what the configuration declares of a model.
"""

from gateway.api.protocol import GrpcBinding, ProtocolSpec
from gateway.protocols.tfs.declarations import read_declaration
from gateway.protocols.tfs.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.protocols.tfs.options import check_options

SPEC = ProtocolSpec(
    name="tfs",
    title="TensorFlow Serving",
    page="tensorflow-serving.md",
    grpc=GrpcBinding(codec=GrpcCodec, methods=METHODS, file_descriptors=file_descriptors),
    options=check_options,
    declaration=read_declaration,
)
