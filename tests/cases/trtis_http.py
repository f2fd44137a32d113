"""Calls and answers of TensorRT v1 over HTTP beside their wire form, for both directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
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
from gateway.ir.metadata import SharedRegion
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.wire.http import Headers, HttpRequest, HttpResponse

M = ModelRef("m")


@dataclass(frozen=True)
class CallCase:
    """A call and the request that asks it of an upstream."""

    name: str
    call: Call[Any]
    method: str
    target: str
    header: str | None = None
    body: bytes = b""


def raw(name: str, datatype: Datatype | None, shape: tuple[int, ...], data: bytes) -> Tensor:
    """Return a tensor of bytes as they are."""
    return Tensor(name, datatype, shape, RawData(memoryview(data)))


X_RAW = np.arange(4, dtype="<i4").tobytes()
X = raw("x", Datatype.INT32, (2,), X_RAW)  # two items of two
TEXT_RAW = b"\x01\x00\x00\x00a\x00\x00\x00\x00"
TEXT = raw("t", Datatype.BYTES, (1,), TEXT_RAW)
SYSTEM = SharedRegion(name="r", size_bytes=64, key="/k", offset=8)
CUDA = SharedRegion(name="c", size_bytes=64, device=1, handle=bytes(range(64)))

_SHARED = "/api/sharedmemorycontrol"

CALLS = [
    CallCase("live", ServerLiveRequest(), "GET", "/api/health/live"),
    CallCase("ready", ServerReadyRequest(), "GET", "/api/health/ready"),
    CallCase("metadata", ServerMetadataRequest(), "GET", "/api/status?format=binary"),
    CallCase("index", RepositoryIndexRequest(), "GET", "/api/status?format=binary"),
    CallCase("model_ready", ModelReadyRequest(model=M), "GET", "/api/status/m?format=binary"),
    CallCase("model_metadata", ModelMetadataRequest(model=M), "GET", "/api/status/m?format=binary"),
    CallCase("load", ModelLoadRequest(model=M), "POST", "/api/modelcontrol/load/m"),
    CallCase("unload", ModelUnloadRequest(model=M), "POST", "/api/modelcontrol/unload/m"),
    CallCase(
        "register", SharedRegisterRequest(region=SYSTEM), "POST", f"{_SHARED}/register/r//k/8/64"
    ),
    CallCase(
        "cuda_register",
        SharedRegisterRequest(region=CUDA),
        "POST",
        f"{_SHARED}/cudaregister/c/64/1",
        body=bytes(range(64)),
    ),
    CallCase("unregister", SharedUnregisterRequest(region="r"), "POST", f"{_SHARED}/unregister/r"),
    CallCase("unregister_all", SharedUnregisterRequest(), "POST", f"{_SHARED}/unregisterall"),
    CallCase("regions", SharedStatusRequest(), "GET", f"{_SHARED}/status?format=binary"),
    CallCase(
        "infer",
        InferRequest(model=M, inputs=(X,), outputs=(RequestedOutput("y"),), batch_size=2),
        "POST",
        "/api/infer/m?format=binary",
        'batch_size: 2 input { name: "x" dims: 2 } output { name: "y" }',
        X_RAW,
    ),
    CallCase(
        "infer_version_text_and_classes",
        InferRequest(
            model=ModelRef("m", "3"),
            inputs=(TEXT, X),
            outputs=(RequestedOutput("y", 5),),
            id="7",
            batch_size=2,
        ),
        "POST",
        "/api/infer/m/3?format=binary",
        'batch_size: 2 input { name: "t" dims: 1 batch_byte_size: 9 } '
        'input { name: "x" dims: 2 } output { name: "y" cls { count: 5 } } id: 7',
        TEXT_RAW + X_RAW,
    ),
    CallCase(
        "infer_sequence",
        InferRequest(
            model=M, inputs=(), batch_size=1, sequence=CallSequence(2**64 - 1, start=True, end=True)
        ),
        "POST",
        "/api/infer/m?format=binary",
        "batch_size: 1 correlation_id: 18446744073709551615 flags: 3",
    ),
    CallCase(
        "infer_scalar_items",
        InferRequest(model=M, inputs=(raw("s", Datatype.UINT8, (), b"ab"),), batch_size=2),
        "POST",
        "/api/infer/m?format=binary",
        'batch_size: 2 input { name: "s" dims: 1 }',
        b"ab",
    ),
    CallCase(
        "infer_shared_memory",
        InferRequest(
            model=M,
            inputs=(Tensor("x", Datatype.INT32, (2,), SharedMemoryData("r", 4, 16)),),
            outputs=(RequestedOutput("y", shared=SharedMemoryData("r", 0, 16)),),
            batch_size=2,
        ),
        "POST",
        "/api/infer/m?format=binary",
        'batch_size: 2 input { name: "x" dims: 2 shared_memory { name: "r" offset: 4 '
        'byte_size: 16 } } output { name: "y" shared_memory { name: "r" byte_size: 16 } }',
    ),
    CallCase(
        "infer_zero_elements_and_a_name_to_escape",
        InferRequest(model=M, inputs=(raw('é"', Datatype.FP32, (0,), b""),), batch_size=1),
        "POST",
        "/api/infer/m?format=binary",
        'batch_size: 1 input { name: "\\303\\251\\"" dims: 0 }',
    ),
]


def post(
    header: str | None, body: bytes = b"", target: str = "/api/infer/m", method: str = "POST"
) -> HttpRequest:
    """Return an inference request as a client sends it."""
    path, _, query = target.partition("?")
    pairs = () if header is None else (("NV-InferRequest", header),)
    return HttpRequest(method, path, query, Headers(pairs), (memoryview(body),))


def get(target: str) -> HttpRequest:
    """Return a question without a body."""
    return post(None, target=target, method="GET")


def answer(
    status: str | None, response: str | None = None, body: bytes = b"", code: int = 200
) -> HttpResponse:
    """Return a server's answer."""
    pairs: list[tuple[str, str]] = []
    if response is not None:
        pairs.append(("nv-inferresponse", response))
    if status is not None:
        pairs.append(("nv-status", status))
    return HttpResponse(code, Headers(pairs), (body,))


OK = 'code: SUCCESS server_id: "s" request_id: 1'
Y = raw("y", Datatype.INT32, (2,), X_RAW)
REPLY = InferResponse(model=ModelRef("m", "3"), outputs=(Y,), batch_size=2)
