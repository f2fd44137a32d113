"""TensorRT Inference Server v1, over HTTP and gRPC.

Read `http/codec.py` and `grpc/codec.py` first; the other modules here serve both.  `options.py`
describes the options of listeners and upstreams.
"""

from gateway.api.protocol import GrpcBinding, HttpBinding, ProtocolSpec
from gateway.protocols.trtis.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.protocols.trtis.http.codec import HttpCodec
from gateway.protocols.trtis.options import check_options

SPEC = ProtocolSpec(
    name="trtis",
    http=HttpBinding(codec=HttpCodec, prefixes=("/api",)),
    grpc=GrpcBinding(codec=GrpcCodec, methods=METHODS, file_descriptors=file_descriptors),
    options=check_options,
    classifies=True,
    numbers_requests=True,
)
