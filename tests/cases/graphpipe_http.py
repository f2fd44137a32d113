"""Calls and answers of GraphPipe over HTTP beside their wire form, for both directions.

The messages are built by flatbuffers' Builder with flatc's classes, which the codec does not use.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from gateway import __version__
from gateway.ir.calls import Call, InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, items_tensor, raw_tensor
from tests.cases.graphpipe_oracle import (
    PlainIO,
    PlainMetadata,
    PlainRequest,
    PlainTensor,
    build_metadata,
    build_request,
    build_response,
)

FLOATS = struct.pack("<4f", 0.5, -1.25, 3.0, 1e30)
# As the Python client 1.0.4 sends it.
METADATA_REQUEST = bytes.fromhex("0c00000008000c000b000400080000000c000000000000020400040004000000")


@dataclass(frozen=True)
class CallCase:
    """A call, and the path and message that say it."""

    name: str
    call: Call[Any]
    path: str
    message: bytes


@dataclass(frozen=True)
class ReplyCase:
    """An answer to a call, and the message that says it."""

    name: str
    call: Call[Any]
    reply: Any
    message: bytes


FP32 = raw_tensor("x", Datatype.FP32, (2, 2), memoryview(FLOATS))
TEXTS = items_tensor("t", (3,), [b"a", b"", b"\xff\x00"])
NAMED = InferRequest(
    model=ModelRef("m", "3"), inputs=(FP32, TEXTS), outputs=(RequestedOutput("y"),)
)
UNNAMED = InferRequest(model=ModelRef("a b/c"), inputs=(FP32.renamed(""),))
PLAIN_FP32 = PlainTensor(10, (2, 2), FLOATS)
PLAIN_TEXTS = PlainTensor(12, (3,), b"", (b"a", b"", b"\xff\x00"))
METADATA = ModelMetadata(
    name="m",
    platform="tensor-gateway",
    inputs=(
        TensorMetadata("x", Datatype.FP32, (-1, 4)),
        TensorMetadata("flag", Datatype.BOOL, ()),
    ),
    outputs=(
        TensorMetadata("y", Datatype.BF16, (2,)),
        TensorMetadata("unknown", None, None),
    ),
)

CALLS = [
    CallCase(
        "named",
        NAMED,
        "/graphpipe/m/3",
        build_request(PlainRequest(b"", ("x", "t"), (PLAIN_FP32, PLAIN_TEXTS), ("y",))),
    ),
    CallCase(
        "unnamed",
        UNNAMED,
        "/graphpipe/a%20b%2Fc",
        build_request(PlainRequest(b"", (), (PLAIN_FP32,), ())),
    ),
    CallCase(
        "config",
        InferRequest(model=ModelRef("m"), parameters={"graphpipe_config": "debug=1"}),
        "/graphpipe/m",
        build_request(PlainRequest(b"debug=1", (), (), ())),
    ),
]

REPLIES = [
    ReplyCase(
        "one_output",
        NAMED,
        InferResponse(model=ModelRef("m", "3"), outputs=(FP32.renamed("y"),)),
        build_response([PLAIN_FP32]),
    ),
    ReplyCase(
        "strings",
        UNNAMED,
        InferResponse(model=ModelRef("a b/c"), outputs=(TEXTS.renamed(""),)),
        build_response([PLAIN_TEXTS]),
    ),
    ReplyCase(
        "metadata",
        ModelMetadataRequest(model=ModelRef("m")),
        METADATA,
        build_metadata(
            PlainMetadata(
                "m",
                __version__,
                "tensor-gateway",
                "tensor-gateway",
                (PlainIO("x", "", (-1, 4), 10), PlainIO("flag", "BOOL as Uint8", (), 1)),
                (PlainIO("y", "BF16 as Float32", (2,), 10), PlainIO("unknown", "", None, 0)),
            )
        ),
    ),
]
