"""Calls and answers of Open Inference over HTTP beside their wire form, for both directions."""

from __future__ import annotations

import json
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
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.metadata import ModelMetadata, RepositoryEntry, ServerMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    items_tensor,
    raw_tensor,
)
from gateway.wire.http import Headers, HttpRequest, HttpResponse

LENGTH_HEADER = "Inference-Header-Content-Length"
M = ModelRef("m")


@dataclass(frozen=True)
class CallCase:
    """A call and the request that says it in a dialect."""

    name: str
    call: Call[Any]
    method: str
    path: str
    document: dict[str, Any] | None = None
    binary: bytes | None = None
    dialect: str = "triton"


@dataclass(frozen=True)
class ReplyCase:
    """A client's request, the answer to it, and the response that says it."""

    name: str
    request: HttpRequest
    reply: Any
    document: dict[str, Any]
    binary: bytes | None = None
    status: int = 200


def compact(document: Any) -> bytes:
    """Return *document* as JSON without spaces."""
    return json.dumps(document, separators=(",", ":")).encode()


def post(
    document: Any,
    binary: bytes | None = None,
    path: str = "/v2/models/m/infer",
    headers: tuple[tuple[str, str], ...] = (),
) -> HttpRequest:
    """Return an inference request; *document* may be text of JSON as it is."""
    text = document if isinstance(document, bytes) else compact(document)
    if binary is not None:
        headers = (*headers, (LENGTH_HEADER, str(len(text))))
    body = text + (binary or b"")
    return HttpRequest("POST", path, "", Headers(headers), (memoryview(body),))


def get(path: str) -> HttpRequest:
    """Return a question without a body."""
    return HttpRequest("GET", path)


def answer(
    document: Any, binary: bytes | None = None, status: int = 200, content_type: str = ""
) -> HttpResponse:
    """Return a server's answer; *document* may be text as it is."""
    text = document if isinstance(document, bytes) else compact(document)
    headers: tuple[tuple[str, str], ...] = ()
    if content_type:
        headers = (("Content-Type", content_type),)
    if binary is not None:
        headers = (*headers, (LENGTH_HEADER, str(len(text))))
    return HttpResponse(status, Headers(headers), (text + (binary or b""),))


def one_input(datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    """Return a request of one JSON input called x."""
    return {"inputs": [{"name": "x", "shape": shape, "datatype": datatype, "data": data}]}


X = array_tensor("x", np.arange(4, dtype="<i4").reshape(1, 4))
X_RAW = np.arange(4, dtype="<i4").tobytes()
X_JSON = {"name": "x", "shape": [1, 4], "datatype": "INT32", "data": [0, 1, 2, 3]}
X_BINARY = {
    "name": "x",
    "shape": [1, 4],
    "datatype": "INT32",
    "parameters": {"binary_data_size": 16},
}
TEXTS = items_tensor("t", (2,), (b"a", "é".encode()))
TEXTS_RAW = b"\x01\x00\x00\x00a\x02\x00\x00\x00\xc3\xa9"
EMPTY = array_tensor("e", np.zeros((0, 2), "<f4"))
BF16 = raw_tensor("b", Datatype.BF16, (1,), memoryview(b"\x80\x3f"))

CALLS = [
    CallCase("server_live", ServerLiveRequest(), "GET", "/v2/health/live"),
    CallCase("server_ready", ServerReadyRequest(), "GET", "/v2/health/ready"),
    CallCase("server_metadata", ServerMetadataRequest(), "GET", "/v2"),
    CallCase("model_ready", ModelReadyRequest(model=M), "GET", "/v2/models/m/ready"),
    CallCase("model_metadata", ModelMetadataRequest(model=M), "GET", "/v2/models/m"),
    CallCase(
        "model_metadata_version",
        ModelMetadataRequest(model=ModelRef("m", "2")),
        "GET",
        "/v2/models/m/versions/2",
    ),
    CallCase(
        "model_ready_quoted",
        ModelReadyRequest(model=ModelRef("a/ü%:b", "v 1")),
        "GET",
        "/v2/models/a%2F%C3%BC%25:b/versions/v%201/ready",
    ),
    CallCase("index_kserve", RepositoryIndexRequest(), "GET", "/v2/models", dialect="kserve"),
    CallCase(
        "infer_binary",
        InferRequest(model=M, inputs=(X,), id="1"),
        "POST",
        "/v2/models/m/infer",
        {"id": "1", "parameters": {"binary_data_output": True}, "inputs": [X_BINARY]},
        X_RAW,
    ),
    CallCase(
        "infer_listed_outputs",
        InferRequest(
            model=ModelRef("m", "3"),
            inputs=(X, TEXTS),
            outputs=(RequestedOutput("y"), RequestedOutput("z", parameters={"k": 1.5})),
        ),
        "POST",
        "/v2/models/m/versions/3/infer",
        {
            "inputs": [
                X_BINARY,
                {
                    "name": "t",
                    "shape": [2],
                    "datatype": "BYTES",
                    "parameters": {"binary_data_size": 11},
                },
            ],
            "outputs": [
                {"name": "y", "parameters": {"binary_data": True}},
                {"name": "z", "parameters": {"k": 1.5, "binary_data": True}},
            ],
        },
        X_RAW + TEXTS_RAW,
    ),
    CallCase(
        "infer_empty",
        InferRequest(model=M, inputs=(EMPTY,), id="e"),
        "POST",
        "/v2/models/m/infer",
        {
            "id": "e",
            "parameters": {"binary_data_output": True},
            "inputs": [
                {
                    "name": "e",
                    "shape": [0, 2],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": 0},
                }
            ],
        },
        b"",
    ),
    CallCase(
        "infer_bf16",
        InferRequest(model=M, inputs=(BF16,)),
        "POST",
        "/v2/models/m/infer",
        {
            "parameters": {"binary_data_output": True},
            "inputs": [
                {
                    "name": "b",
                    "shape": [1],
                    "datatype": "BF16",
                    "parameters": {"binary_data_size": 2},
                }
            ],
        },
        b"\x80\x3f",
    ),
    CallCase(
        "infer_parameters",
        InferRequest(
            model=M,
            inputs=(X,),
            id="p",
            sequence=CallSequence("s", start=True),
            priority=2,
            timeout_us=1000,
            parameters={"b": True, "i": -5, "f": 0.5, "s": "x"},
        ),
        "POST",
        "/v2/models/m/infer",
        {
            "id": "p",
            "parameters": {
                "b": True,
                "i": -5,
                "f": 0.5,
                "s": "x",
                "sequence_id": "s",
                "sequence_start": True,
                "sequence_end": False,
                "priority": 2,
                "timeout": 1000,
                "binary_data_output": True,
            },
            "inputs": [X_BINARY],
        },
        X_RAW,
    ),
    CallCase(
        "infer_json_for_mlserver",
        InferRequest(
            model=M, inputs=(X, TEXTS), outputs=(RequestedOutput("y"),), id="j", parameters={"k": 1}
        ),
        "POST",
        "/v2/models/m/infer",
        {
            "id": "j",
            "parameters": {"k": 1},
            "inputs": [
                X_JSON,
                {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["a", "é"]},
            ],
            "outputs": [{"name": "y"}],
        },
        dialect="mlserver",
    ),
]


def _reply(*outputs: Tensor, **more: Any) -> InferResponse:
    return InferResponse(model=ModelRef("m", "1"), outputs=outputs, **more)


_OUT_JSON = {"name": "x", "datatype": "INT32", "shape": [1, 4], "data": [0, 1, 2, 3]}
_OUT_BINARY = {
    "name": "x",
    "datatype": "INT32",
    "shape": [1, 4],
    "parameters": {"binary_data_size": 16},
}
_TEXT_JSON = {"name": "t", "datatype": "BYTES", "shape": [2], "data": ["a", "é"]}
_HEAD = {"model_name": "m", "model_version": "1"}
_LIST = [{"name": "x", "parameters": {"binary_data": True}}, {"name": "t"}]

REPLIES = [
    ReplyCase("live", get("/v2/health/live"), True, {"live": True}),
    ReplyCase("not_live", get("/v2/health/live"), False, {"live": False}, status=503),
    ReplyCase("ready", get("/v2/health/ready"), True, {"ready": True}),
    ReplyCase("not_ready", get("/v2/health/ready"), False, {"ready": False}, status=503),
    ReplyCase("model_ready", get("/v2/models/m/ready"), True, {"name": "m", "ready": True}),
    ReplyCase(
        "model_not_ready",
        get("/v2/models/m/ready"),
        False,
        {"name": "m", "ready": False},
        status=503,
    ),
    ReplyCase(
        "server_metadata",
        get("/v2"),
        ServerMetadata("gw", "1.0", ("binary_tensor_data",)),
        {"name": "gw", "version": "1.0", "extensions": ["binary_tensor_data"]},
    ),
    ReplyCase(
        "model_metadata",
        get("/v2/models/m"),
        ModelMetadata(
            name="m",
            versions=("1", "2"),
            platform="onnx",
            inputs=(TensorMetadata("x", Datatype.FP32, (-1, 4)),),
            outputs=(TensorMetadata("y", None, None),),
        ),
        {
            "name": "m",
            "versions": ["1", "2"],
            "platform": "onnx",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
            "outputs": [{"name": "y"}],
        },
    ),
    ReplyCase(
        "models",
        get("/v2/models"),
        (RepositoryEntry("a"), RepositoryEntry("b")),
        {"models": ["a", "b"]},
    ),
    ReplyCase(
        "infer_json",
        post({"id": "7", "inputs": [X_JSON]}),
        _reply(X, TEXTS, id="7", parameters={"k": 1}),
        {"id": "7", **_HEAD, "parameters": {"k": 1}, "outputs": [_OUT_JSON, _TEXT_JSON]},
    ),
    ReplyCase(
        "infer_no_id",
        post({"inputs": [X_JSON]}),
        _reply(X),
        {**_HEAD, "outputs": [_OUT_JSON]},
    ),
    ReplyCase(
        "infer_binary_output",
        post({"inputs": [X_JSON], "parameters": {"binary_data_output": True}}),
        _reply(X),
        {**_HEAD, "outputs": [_OUT_BINARY]},
        X_RAW,
    ),
    ReplyCase(
        "infer_listed_output_is_json_under_binary_data_output",
        post(
            {
                "inputs": [X_JSON],
                "outputs": _LIST,
                "parameters": {"binary_data_output": True},
            }
        ),
        _reply(X, TEXTS),
        {**_HEAD, "outputs": [_OUT_BINARY, _TEXT_JSON]},
        X_RAW,
    ),
    ReplyCase(
        "infer_all_binary_outputs_empty",
        post({"inputs": [X_JSON], "parameters": {"binary_data_output": True}}),
        _reply(EMPTY),
        {
            **_HEAD,
            "outputs": [
                {
                    "name": "e",
                    "datatype": "FP32",
                    "shape": [0, 2],
                    "parameters": {"binary_data_size": 0},
                }
            ],
        },
    ),
    ReplyCase(
        "infer_raw_binary_request",
        post(b"", X_RAW),
        _reply(X),
        {**_HEAD, "outputs": [_OUT_BINARY]},
        X_RAW,
    ),
]
