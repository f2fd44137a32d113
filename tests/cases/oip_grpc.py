"""Calls and answers of Open Inference over gRPC beside their wire form, for both directions.

The wire form is made by the protobuf library, which the codec does not use for these.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    RepositoryEntry,
    ServerMetadata,
    TensorMetadata,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    items_tensor,
    raw_tensor,
)
from gateway.schema import open_inference_pb2 as pb

METHOD = "/inference.GRPCInferenceService/"


@dataclass(frozen=True)
class CallCase:
    """A call and the request message that says it."""

    name: str
    call: Call[Any]
    method: str
    message: bytes


@dataclass(frozen=True)
class ReplyCase:
    """An answer to a call and the response message that says it."""

    name: str
    call: Call[Any]
    reply: Any
    message: bytes


def _parameter(**choice: Any) -> pb.InferParameter:
    return pb.InferParameter(**choice)


def _input(name: str, datatype: str, shape: list[int], **more: Any) -> Any:
    return pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape, **more)


def _output(name: str, datatype: str, shape: list[int], **more: Any) -> Any:
    return pb.ModelInferResponse.InferOutputTensor(
        name=name, datatype=datatype, shape=shape, **more
    )


ONES = np.ones((1, 16), "<i4")
FIRST = array_tensor("INPUT0", np.arange(16, dtype="<i4").reshape(1, 16))
SECOND = array_tensor("INPUT1", ONES)
M = ModelRef("m")

CALLS = [
    CallCase("server_live", ServerLiveRequest(), METHOD + "ServerLive", b""),
    CallCase("server_ready", ServerReadyRequest(), METHOD + "ServerReady", b""),
    CallCase("server_metadata", ServerMetadataRequest(), METHOD + "ServerMetadata", b""),
    CallCase(
        "model_ready",
        ModelReadyRequest(model=ModelRef("m", "3")),
        METHOD + "ModelReady",
        pb.ModelReadyRequest(name="m", version="3").SerializeToString(),
    ),
    CallCase(
        "model_metadata",
        ModelMetadataRequest(model=M),
        METHOD + "ModelMetadata",
        pb.ModelMetadataRequest(name="m").SerializeToString(),
    ),
    CallCase(
        "repository_index",
        RepositoryIndexRequest(ready_only=True),
        METHOD + "RepositoryIndex",
        pb.RepositoryIndexRequest(ready=True).SerializeToString(),
    ),
    CallCase(
        "two_int32_inputs",
        InferRequest(model=ModelRef("add_sub", "1"), id="abc", inputs=(FIRST, SECOND)),
        METHOD + "ModelInfer",
        pb.ModelInferRequest(
            model_name="add_sub",
            model_version="1",
            id="abc",
            inputs=[_input("INPUT0", "INT32", [1, 16]), _input("INPUT1", "INT32", [1, 16])],
            raw_input_contents=[np.arange(16, dtype="<i4").tobytes(), ONES.tobytes()],
        ).SerializeToString(),
    ),
    CallCase(
        "bytes_elements",
        InferRequest(model=M, inputs=(items_tensor("TEXT", (2,), [b"plum", b""]),)),
        METHOD + "ModelInfer",
        pb.ModelInferRequest(
            model_name="m",
            inputs=[_input("TEXT", "BYTES", [2])],
            raw_input_contents=[struct.pack("<I4sI", 4, b"plum", 0)],
        ).SerializeToString(),
    ),
    CallCase(
        "scalar_and_empty",
        InferRequest(
            model=M,
            inputs=(
                raw_tensor("S", Datatype.BF16, (), memoryview(b"\x80\x3f")),
                raw_tensor("E", Datatype.FP16, (0, 3), memoryview(b"")),
            ),
        ),
        METHOD + "ModelInfer",
        pb.ModelInferRequest(
            model_name="m",
            inputs=[_input("S", "BF16", []), _input("E", "FP16", [0, 3])],
            raw_input_contents=[b"\x80\x3f", b""],
        ).SerializeToString(),
    ),
    CallCase(
        "double_parameter",
        InferRequest(model=M, parameters={"half": 0.5}),
        METHOD + "ModelInfer",
        pb.ModelInferRequest(
            model_name="m", parameters={"half": _parameter(double_param=0.5)}
        ).SerializeToString(),
    ),
    CallCase(
        "negative_integer_parameter",
        InferRequest(model=M, parameters={"depth": -(2**63)}),
        METHOD + "ModelInfer",
        pb.ModelInferRequest(
            model_name="m", parameters={"depth": _parameter(int64_param=-(2**63))}
        ).SerializeToString(),
    ),
    CallCase(
        "text_parameter",
        InferRequest(model=M, parameters={"who": "Zoë"}),
        METHOD + "ModelInfer",
        pb.ModelInferRequest(
            model_name="m", parameters={"who": _parameter(string_param="Zoë")}
        ).SerializeToString(),
    ),
    CallCase(
        "false_parameter",
        InferRequest(model=M, parameters={"deep": False}),
        METHOD + "ModelInfer",
        pb.ModelInferRequest(
            model_name="m", parameters={"deep": _parameter(bool_param=False)}
        ).SerializeToString(),
    ),
    CallCase(
        "priority_that_needs_64_bits",
        InferRequest(model=M, priority=2**64 - 1),
        METHOD + "ModelInfer",
        pb.ModelInferRequest(
            model_name="m", parameters={"priority": _parameter(uint64_param=2**64 - 1)}
        ).SerializeToString(),
    ),
    CallCase(
        "timeout",
        InferRequest(model=M, timeout_us=500_000),
        METHOD + "ModelInfer",
        pb.ModelInferRequest(
            model_name="m", parameters={"timeout": _parameter(int64_param=500_000)}
        ).SerializeToString(),
    ),
    CallCase(
        "parameters_of_tensors",
        InferRequest(
            model=M,
            inputs=(Tensor("X", FIRST.datatype, FIRST.shape, FIRST.data, {"layout": "NC"}),),
            outputs=(RequestedOutput("Y"), RequestedOutput("Z", parameters={"k": 3})),
        ),
        METHOD + "ModelInfer",
        pb.ModelInferRequest(
            model_name="m",
            inputs=[
                _input("X", "INT32", [1, 16], parameters={"layout": _parameter(string_param="NC")})
            ],
            outputs=[
                pb.ModelInferRequest.InferRequestedOutputTensor(name="Y"),
                pb.ModelInferRequest.InferRequestedOutputTensor(
                    name="Z", parameters={"k": _parameter(int64_param=3)}
                ),
            ],
            raw_input_contents=[np.arange(16, dtype="<i4").tobytes()],
        ).SerializeToString(),
    ),
]

INFER = InferRequest(model=M, id="abc")

REPLIES = [
    ReplyCase(
        "live", ServerLiveRequest(), True, pb.ServerLiveResponse(live=True).SerializeToString()
    ),
    ReplyCase("not_ready", ServerReadyRequest(), False, b""),
    ReplyCase(
        "model_ready",
        ModelReadyRequest(model=M),
        True,
        pb.ModelReadyResponse(ready=True).SerializeToString(),
    ),
    ReplyCase(
        "server_metadata",
        ServerMetadataRequest(),
        ServerMetadata("triton", "2.51.0", ("sequence", "statistics")),
        pb.ServerMetadataResponse(
            name="triton", version="2.51.0", extensions=["sequence", "statistics"]
        ).SerializeToString(),
    ),
    ReplyCase(
        "model_metadata",
        ModelMetadataRequest(model=M),
        ModelMetadata(
            name="m",
            versions=("1", "3"),
            platform="onnx",
            inputs=(TensorMetadata("X", Datatype.FP32, (-1, 64)),),
            outputs=(TensorMetadata("Y", Datatype.INT64, ()), TensorMetadata("Z", None, None)),
        ),
        pb.ModelMetadataResponse(
            name="m",
            versions=["1", "3"],
            platform="onnx",
            inputs=[
                pb.ModelMetadataResponse.TensorMetadata(name="X", datatype="FP32", shape=[-1, 64])
            ],
            outputs=[
                pb.ModelMetadataResponse.TensorMetadata(name="Y", datatype="INT64"),
                pb.ModelMetadataResponse.TensorMetadata(name="Z"),
            ],
        ).SerializeToString(),
    ),
    ReplyCase(
        "repository_index",
        RepositoryIndexRequest(),
        (
            RepositoryEntry("a", "1", ModelState.READY),
            RepositoryEntry("b", "", ModelState.UNAVAILABLE, "unloaded"),
        ),
        pb.RepositoryIndexResponse(
            models=[
                pb.RepositoryIndexResponse.ModelIndex(name="a", version="1", state="READY"),
                pb.RepositoryIndexResponse.ModelIndex(
                    name="b", state="UNAVAILABLE", reason="unloaded"
                ),
            ]
        ).SerializeToString(),
    ),
    ReplyCase(
        "two_outputs",
        INFER,
        InferResponse(
            model=ModelRef("m", "1"),
            id="abc",
            outputs=(
                array_tensor("SUM", ONES),
                items_tensor("TEXT", (1,), [b"plum"]),
            ),
            parameters={"cached": True},
        ),
        pb.ModelInferResponse(
            model_name="m",
            model_version="1",
            id="abc",
            parameters={"cached": _parameter(bool_param=True)},
            outputs=[_output("SUM", "INT32", [1, 16]), _output("TEXT", "BYTES", [1])],
            raw_output_contents=[ONES.tobytes(), b"\4\0\0\0plum"],
        ).SerializeToString(),
    ),
    ReplyCase(
        "parameters_of_an_output",
        INFER,
        InferResponse(
            model=M,
            id="abc",
            outputs=(raw_tensor("E", Datatype.FP64, (0,), memoryview(b""), {"k": 2**64 - 1}),),
        ),
        pb.ModelInferResponse(
            model_name="m",
            id="abc",
            outputs=[
                _output("E", "FP64", [0], parameters={"k": _parameter(uint64_param=2**64 - 1)})
            ],
            raw_output_contents=[b""],
        ).SerializeToString(),
    ),
]
