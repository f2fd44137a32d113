"""Calls and answers of grps over gRPC beside their messages, for both directions.

The messages are built by the protobuf library, which the codec does not use for them.
"""

from __future__ import annotations

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
    ServerSwitchRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelMetadata, ModelState, RepositoryEntry, ServerMetadata
from gateway.ir.tensors.tensor import Tensor, array_tensor, items_tensor
from gateway.schema import grps_pb2 as pb


@dataclass(frozen=True)
class CallCase:
    """A call to an upstream, and the method and message that say it."""

    name: str
    call: Call[Any]
    method: str
    message: pb.GrpsMessage


@dataclass(frozen=True)
class ReplyCase:
    """An upstream's answer to a call."""

    name: str
    call: Call[Any]
    message: pb.GrpsMessage
    reply: Any


M = ModelRef("m", "1")
INT32 = array_tensor("a", np.array([[1, -2]], np.int32))
TEXT = items_tensor("t", (2,), [b"x", "é".encode()])
HALF = array_tensor("h", np.array(1.5, np.float16))
TENSORS = (INT32, TEXT, HALF)
GTENSORS = pb.GenericTensorData(
    tensors=[
        pb.GenericTensor(name="a", dtype=pb.DT_INT32, shape=[1, 2], flat_int32=[1, -2]),
        pb.GenericTensor(name="t", dtype=pb.DT_STRING, shape=[2], flat_string=["x", "é"]),
        pb.GenericTensor(name="h", dtype=pb.DT_FLOAT16, flat_float16=[1.5]),
    ]
)
OK = pb.Status(code=200, msg="OK", status=pb.Status.SUCCESS)
INFER = InferRequest(model=M, inputs=TENSORS, id="7")
STREAM = StreamInferRequest(model=M, request=INFER)


def one(form: str, item: bytes) -> InferRequest:
    """Return a request that was text or bytes, as a frontend of grps makes it."""
    return InferRequest(
        model=ModelRef("k"),
        inputs=(items_tensor("IN", (1,), [item]),),
        parameters={"grps_form": form},
    )


def answered(*outputs: Tensor, form: str | None = None, **fields: Any) -> InferResponse:
    """Return an answer as an upstream of grps gives it."""
    parameters = {} if form is None else {"grps_form": form}
    return InferResponse(model=M, outputs=outputs, id="7", parameters=parameters, **fields)


CALLS = [
    CallCase("tensors", INFER, "Predict", pb.GrpsMessage(model="m-1", gtensors=GTENSORS)),
    CallCase("stream", STREAM, "PredictStreaming", pb.GrpsMessage(model="m-1", gtensors=GTENSORS)),
    CallCase("text", one("str_data", b"x"), "Predict", pb.GrpsMessage(model="k", str_data="x")),
    CallCase(
        "bytes", one("bin_data", b"\xff"), "Predict", pb.GrpsMessage(model="k", bin_data=b"\xff")
    ),
    CallCase(
        "map",
        InferRequest(
            model=M,
            inputs=(items_tensor("gmap.s_b.k.x", (1,), [b"\x00"]),),
            parameters={
                "grps_form": "gmap",
                "gmap.s_s.a": "b",
                "gmap.s_i32.i": -1,
                "gmap.s_d.d": 2.5,
            },
        ),
        "Predict",
        pb.GrpsMessage(
            model="m-1",
            gmap=pb.GenericMapData(
                s_s={"a": "b"}, s_b={"k.x": b"\x00"}, s_i32={"i": -1}, s_d={"d": 2.5}
            ),
        ),
    ),
    CallCase("live", ServerLiveRequest(), "CheckLiveness", pb.GrpsMessage()),
    CallCase("ready", ServerReadyRequest(), "CheckReadiness", pb.GrpsMessage()),
    CallCase("model_ready", ModelReadyRequest(model=M), "ServerMetadata", pb.GrpsMessage()),
    CallCase("online", ServerSwitchRequest(is_online=True), "Online", pb.GrpsMessage()),
    CallCase("offline", ServerSwitchRequest(is_online=False), "Offline", pb.GrpsMessage()),
    CallCase("server", ServerMetadataRequest(), "ServerMetadata", pb.GrpsMessage()),
    CallCase("index", RepositoryIndexRequest(), "ServerMetadata", pb.GrpsMessage()),
    CallCase("model", ModelMetadataRequest(model=M), "ModelMetadata", pb.GrpsMessage(str_data="m")),
]

REPLIES = [
    ReplyCase("tensors", INFER, pb.GrpsMessage(status=OK, gtensors=GTENSORS), answered(*TENSORS)),
    ReplyCase(
        "text",
        INFER,
        pb.GrpsMessage(status=OK, str_data="x"),
        answered(items_tensor("str_data", (1,), [b"x"]), form="str_data"),
    ),
    ReplyCase(
        "bytes",
        INFER,
        pb.GrpsMessage(bin_data=b"\x00"),
        answered(items_tensor("bin_data", (1,), [b"\x00"]), form="bin_data"),
    ),
    ReplyCase(
        "empty_text",
        INFER,
        pb.GrpsMessage(status=OK, str_data=""),
        answered(items_tensor("str_data", (1,), [b""]), form="str_data"),
    ),
    ReplyCase("live", ServerLiveRequest(), pb.GrpsMessage(status=OK), True),
    ReplyCase(
        "not_ready_python",
        ServerReadyRequest(),
        pb.GrpsMessage(status=pb.Status(code=403, status=pb.Status.FAILURE)),
        False,
    ),
    ReplyCase("online", ServerSwitchRequest(is_online=True), pb.GrpsMessage(status=OK), None),
    ReplyCase(
        "server",
        ServerMetadataRequest(),
        pb.GrpsMessage(str_data="port: 1"),
        ServerMetadata("grps", ""),
    ),
    ReplyCase(
        "index",
        RepositoryIndexRequest(),
        pb.GrpsMessage(status=OK, str_data="models:\n- {name: m, version: 1.0}"),
        (RepositoryEntry("m", "1.0", ModelState.UNKNOWN),),
    ),
    ReplyCase(
        "model_listed",
        ModelReadyRequest(model=M),
        pb.GrpsMessage(status=OK, str_data="models:\n- {name: m, version: 1}"),
        True,
    ),
    ReplyCase(
        "model_not_listed",
        ModelReadyRequest(model=M),
        pb.GrpsMessage(status=OK, str_data="models:\n- {name: m, version: 2}\n- {name: m-}"),
        False,
    ),
    ReplyCase(
        "model_listed_by_its_whole_key",
        ModelReadyRequest(model=ModelRef("m-1")),
        pb.GrpsMessage(status=OK, str_data="models:\n- {name: m, version: 1}"),
        True,
    ),
    ReplyCase(
        "model_of_a_server_that_lists_none",
        ModelReadyRequest(model=M),
        pb.GrpsMessage(status=OK, str_data="port: 1"),
        True,
    ),
    ReplyCase(
        "model",
        ModelMetadataRequest(model=M),
        pb.GrpsMessage(status=OK, str_data="name: m\nversion: 1.0\ninferer_type: torch"),
        ModelMetadata(name="m", versions=("1.0",), platform="torch"),
    ),
]
