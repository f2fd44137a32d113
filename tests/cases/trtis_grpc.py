"""Calls and answers of TensorRT v1 over gRPC beside their messages, for both directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from tests.cases.trtis_http import CUDA, SYSTEM, TEXT, TEXT_RAW, X_RAW, M, X

SERVICE = "/nvidia.inferenceserver.GRPCService/"
_Control = pb.SharedMemoryControlRequest


@dataclass(frozen=True)
class CallCase:
    """A call, and the method and message that ask it of an upstream."""

    name: str
    call: Call[Any]
    method: str
    message: Message


CALLS = [
    CallCase("live", ServerLiveRequest(), "Health", pb.HealthRequest(mode="live")),
    CallCase("ready", ServerReadyRequest(), "Health", pb.HealthRequest(mode="ready")),
    CallCase("metadata", ServerMetadataRequest(), "Status", pb.StatusRequest()),
    CallCase("index", RepositoryIndexRequest(), "Status", pb.StatusRequest()),
    CallCase("model_ready", ModelReadyRequest(model=M), "Status", pb.StatusRequest(model_name="m")),
    CallCase(
        "model_metadata", ModelMetadataRequest(model=M), "Status", pb.StatusRequest(model_name="m")
    ),
    CallCase(
        "load",
        ModelLoadRequest(model=M),
        "ModelControl",
        pb.ModelControlRequest(model_name="m", type=pb.ModelControlRequest.LOAD),
    ),
    CallCase(
        "unload",
        ModelUnloadRequest(model=M),
        "ModelControl",
        pb.ModelControlRequest(model_name="m"),
    ),
    CallCase(
        "register",
        SharedRegisterRequest(region=SYSTEM),
        "SharedMemoryControl",
        _Control(
            register={
                "name": "r",
                "system_shared_memory": {"shared_memory_key": "/k", "offset": 8},
                "byte_size": 64,
            }
        ),
    ),
    CallCase(
        "cuda_register",
        SharedRegisterRequest(region=CUDA),
        "SharedMemoryControl",
        _Control(
            register={
                "name": "c",
                "cuda_shared_memory": {"raw_handle": bytes(range(64)), "device_id": 1},
                "byte_size": 64,
            }
        ),
    ),
    CallCase(
        "unregister",
        SharedUnregisterRequest(region="r"),
        "SharedMemoryControl",
        _Control(unregister={"name": "r"}),
    ),
    CallCase(
        "unregister_all",
        SharedUnregisterRequest(),
        "SharedMemoryControl",
        _Control(unregister_all={}),
    ),
    CallCase("regions", SharedStatusRequest(), "SharedMemoryControl", _Control(status={})),
    CallCase(
        "infer",
        InferRequest(model=M, inputs=(X,), outputs=(RequestedOutput("y"),), batch_size=2),
        "Infer",
        pb.InferRequest(
            model_name="m",
            model_version=-1,
            meta_data={
                "batch_size": 2,
                "input": [{"name": "x", "dims": [2]}],
                "output": [{"name": "y"}],
            },
            raw_input=[X_RAW],
        ),
    ),
    CallCase(
        "infer_everything",
        InferRequest(
            model=ModelRef("m", "3"),
            inputs=(TEXT, Tensor("s", Datatype.INT32, (2,), SharedMemoryData("r", 4, 16)), X),
            outputs=(
                RequestedOutput("y", 5),
                RequestedOutput("z", shared=SharedMemoryData("r", 0, 9)),
            ),
            id="7",
            batch_size=2,
            sequence=CallSequence(2**63 + 5, start=True),
            priority=1,
            timeout_us=9,
        ),
        "Infer",
        pb.InferRequest(
            model_name="m",
            model_version=3,
            meta_data={
                "batch_size": 2,
                "input": [
                    {"name": "t", "dims": [1], "batch_byte_size": 9},
                    {
                        "name": "s",
                        "dims": [2],
                        "shared_memory": {"name": "r", "offset": 4, "byte_size": 16},
                    },
                    {"name": "x", "dims": [2]},
                ],
                "output": [
                    {"name": "y", "cls": {"count": 5}},
                    {"name": "z", "shared_memory": {"name": "r", "byte_size": 9}},
                ],
                "id": 7,
                "correlation_id": 2**63 + 5,
                "flags": 1,
                "priority": 1,
                "timeout_microseconds": 9,
            },
            raw_input=[TEXT_RAW, X_RAW],
        ),
    ),
]


def ask(message: Message, method: str = "Infer") -> GrpcRequest:
    """Return a client's request."""
    return GrpcRequest(SERVICE + method, (memoryview(message.SerializeToString()),))


def answer(message: Message) -> GrpcResponse:
    """Return a server's answer."""
    return GrpcResponse((message.SerializeToString(),))
