"""TensorRT Inference Server v1, over HTTP and gRPC.

Read `http/codec.py` and `grpc/codec.py` first; the other modules here serve both.  `options.py`
describes the options of listeners and upstreams.
"""

from typing import Final

from gateway.api.protocol import (
    DefectKind,
    GrpcBinding,
    HttpBinding,
    ProtocolSpec,
    ServerDefect,
)
from gateway.protocols.trtis.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.protocols.trtis.http.codec import HttpCodec
from gateway.protocols.trtis.options import check_options
from gateway.protocols.trtis.request_numbers import process_options

_CANCELLED_CALLS: Final = ServerDefect(
    name="cancelled_calls",
    server="",
    source="presumed: Triton has it, and TensorRT Inference Server is its ancestor",
    repaired=None,
    request="gRPC calls that are cancelled, or whose deadline passes",
    effect="the process ends",
    defence="cancellation is withheld: the call ends by itself, and its reply is dropped",
    option="`cancellation` of an upstream",
    carrier="grpc",
    kind=DefectKind.CANCELLED_CALLS,
)

SPEC = ProtocolSpec(
    name="trtis",
    title="TensorRT Inference Server v1",
    page="tensorrt-v1.md",
    http=HttpBinding(
        codec=HttpCodec, prefixes=("/api",), public=("/api/health/live", "/api/health/ready")
    ),
    grpc=GrpcBinding(
        codec=GrpcCodec,
        methods=METHODS,
        file_descriptors=file_descriptors,
        public=tuple(each for each in METHODS if each.endswith("/Health")),
    ),
    options=check_options,
    classifies=True,
    process_options=process_options,
    defects=(_CANCELLED_CALLS,),
    varying=frozenset({"request_status.request_id"}),
)
