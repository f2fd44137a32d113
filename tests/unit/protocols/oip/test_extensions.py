"""Triton's extensions over HTTP and gRPC: round trips of calls and replies, and invalid requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    TraceSettingRequest,
)
from gateway.ir.context import NO_CONTEXT, ModelRef
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    RegionNotFound,
    TooLarge,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import ModelConfiguration, SharedRegion
from gateway.ir.statistics import (
    BatchStatistics,
    Duration,
    InferStatistics,
    MemoryUsage,
    ModelStatistics,
    ResponseStatistics,
)
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import HttpRequest, HttpResponse
from tests.cases.oip_options import EVERYTHING

M = ModelRef("m")
V = ModelRef("m", "2")
SERVICE = "/inference.GRPCInferenceService/"
SYSTEM = SharedRegion(name="r", key="/key", offset=8, size_bytes=24)
CUDA = SharedRegion(name="c", device=1, size_bytes=64, handle=bytes(range(64)))
STATISTICS = ModelStatistics(
    name="m",
    version="2",
    last_inference_ms=1_795_178_818_199,
    inference_count=(1 << 64) - 1,
    execution_count=12,
    inference=InferStatistics(success=Duration(12, 21557214), cache_hit=Duration(1, 2)),
    batches={1: BatchStatistics(compute_infer=Duration(8, 17085241)), 2: BatchStatistics()},
    memory=(MemoryUsage("GPU", 1, 4096),),
    responses={"0": ResponseStatistics(cancel=Duration(3, 4))},
)
LOADING: dict[str, bool | int | str | bytes] = {
    "config": '{"max_batch_size": 4}',
    "file:1/model.onnx": b"\x00\xff",
    "n": 5,
    "b": True,
}

EXCHANGES: list[tuple[str, Call[Any], Any]] = [
    ("config", ModelConfigRequest(model=V), ModelConfiguration({"name": "m"})),
    ("statistics", ModelStatisticsRequest(model=V), (STATISTICS,)),
    ("statistics_of_all", ModelStatisticsRequest(), ()),
    ("load", ModelLoadRequest(model=M), None),
    ("load_with", ModelLoadRequest(model=M, parameters=LOADING), None),
    ("unload", ModelUnloadRequest(model=M), None),
    ("unload_dependents", ModelUnloadRequest(model=M, dependents=True), None),
    ("trace", TraceSettingRequest(), {"trace_level": ("OFF",), "trace_rate": ("1000",)}),
    (
        "trace_of_a_model",
        TraceSettingRequest(
            model=M, changes={"trace_level": ("MIN", "MAX"), "log_frequency": (), "n": ("1",)}
        ),
        {"trace_level": ("MIN", "MAX")},
    ),
    ("log", LogSettingsRequest(), {"log_file": "", "log_info": True, "log_verbose_level": 0}),
    ("log_changes", LogSettingsRequest(changes={"log_info": False, "log_format": "x"}), {}),
    ("register", SharedRegisterRequest(region=SYSTEM), None),
    ("register_cuda", SharedRegisterRequest(region=CUDA), None),
    ("unregister", SharedUnregisterRequest(region="r", is_cuda=False), None),
    ("unregister_cuda", SharedUnregisterRequest(is_cuda=True), None),
    ("status", SharedStatusRequest(is_cuda=False), (SYSTEM,)),
    ("status_of_one", SharedStatusRequest(region="r", is_cuda=False), (SYSTEM,)),
    (
        "status_cuda",
        SharedStatusRequest(is_cuda=True),
        (SharedRegion(name="c", device=1, size_bytes=64),),
    ),
]
BOTH = pytest.mark.parametrize("codec", [HttpCodec, GrpcCodec], ids=["http", "grpc"])
CASES = pytest.mark.parametrize(("name", "call", "reply"), EXCHANGES, ids=[e[0] for e in EXCHANGES])


def listener(codec: Any, limits: MessageLimits = DEFAULT_LIMITS) -> Any:
    """Return the codec of a listener that serves everything."""
    return codec(limits, EVERYTHING)


@BOTH
@CASES
def test_calls_survive_a_round_trip(codec: Any, name: str, call: Any, reply: Any) -> None:
    """A listener decodes a request to the call that it was encoded from."""
    wire = codec(DEFAULT_LIMITS, {}).encode_call(call)
    if name == "trace_of_a_model" and codec is HttpCodec:
        assert {"trace_level": ["MIN", "MAX"], "log_frequency": None, "n": "1"} == json.loads(
            bytes(wire.view)
        )
    assert call == listener(codec).decode_call(wire).changed(context=NO_CONTEXT)


@BOTH
@CASES
def test_replies_survive_a_round_trip(codec: Any, name: str, call: Any, reply: Any) -> None:
    """A response is decoded to the reply that it was encoded from; a configuration gets its defaults."""
    wire = listener(codec).encode_reply(call, reply)
    found = codec(DEFAULT_LIMITS, {}).decode_reply(call, wire)
    if name == "config":
        assert ("m", 0) == (found.document["name"], found.document["max_batch_size"])
    else:
        assert reply == found


@BOTH
def test_status_of_an_unregistered_region_is_an_error(codec: Any) -> None:
    """A region requested by name must be registered; CUDA regions are another kind."""
    for call in (
        SharedStatusRequest(region="s", is_cuda=False),
        SharedStatusRequest(region="r", is_cuda=True),
    ):
        with pytest.raises(RegionNotFound, match=call.region):
            listener(codec).encode_reply(call, (SYSTEM,))


LOAD, UNLOAD = "/v2/repository/models/m/load", "/v2/repository/models/m/unload"
REGISTER, CUDA_REGISTER = (
    f"/v2/{kind}sharedmemory/region/r/register" for kind in ("system", "cuda")
)
TRACE, LOG = "/v2/trace/setting", "/v2/logging"
HANDLE = {"device_id": 0, "byte_size": 1}
KEY = {"key": "/k", "byte_size": 1}


def loading(**parameters: Any) -> tuple[str, Any]:
    """Return the path and the document of a request to load a model with these parameters."""
    return LOAD, {"parameters": parameters}


@pytest.mark.parametrize(
    ("sent", "error", "text"),
    [
        ((LOAD, b"{"), MalformedMessage, "not JSON"),
        ((LOAD, []), MalformedMessage, "not an object"),
        ((LOAD, {"parameters": [1]}), InvalidRequest, "'parameters' of the body is not an object"),
        (loading(config="[1]"), MalformedMessage, "configuration is JSON, but not an object"),
        (loading(config="{"), MalformedMessage, "configuration is not JSON"),
        (loading(config={}), MalformedMessage, "configuration is not JSON"),
        (loading(config="\ud800"), MalformedMessage, "not JSON"),
        (loading(x=1.5), InvalidRequest, "parameter 'x' is 1.5"),
        (loading(x=None), InvalidRequest, "parameter 'x' is None"),
        (loading(x=1 << 63), InvalidRequest, "parameter 'x'"),
        (loading(**{"file:1/model.onnx": "%%"}), InvalidRequest, "not base64"),
        (loading(**{"file:1/model.onnx": 5}), InvalidRequest, "not base64"),
        (loading(**{"file:../../etc/passwd": ""}), InvalidRequest, "not a path of a file"),
        (loading(**{"file:/etc/passwd": ""}), InvalidRequest, "not a path of a file"),
        (loading(**{"file:1/../2": ""}), InvalidRequest, "not a path of a file"),
        (loading(**{"file:1//m": ""}), InvalidRequest, "not a path of a file"),
        (loading(**{"file:": ""}), InvalidRequest, "not a path of a file"),
        (loading(**{"file:a\\b": ""}), InvalidRequest, "not a path of a file"),
        (loading(**{"a\x00b": ""}), InvalidRequest, "U\\+0000"),
        (loading(**{f"p{n}": 1 for n in range(65)}), TooLarge, "65 parameters"),
        (loading(**{"k" * 2000: 1}), TooLarge, "parameter name"),
        ((UNLOAD, {"parameters": {"unload_dependents": 1}}), InvalidRequest, "unload_dependents"),
        ((UNLOAD, {"parameters": {"x": True}}), InvalidRequest, "'x' of an unload"),
        ((TRACE, {"trace_rate": 5}), InvalidRequest, "trace_rate"),
        ((TRACE, {"trace_level": ["A", 1]}), InvalidRequest, "trace_level"),
        ((TRACE, {"trace_file": "/etc/x"}), Unsupported, "names a file"),
        ((TRACE, {"k": "v" * 2000}), TooLarge, "trace setting 'k'"),
        ((LOG, {"log_file": "/etc/x"}), Unsupported, "names a file"),
        ((LOG, {"log_verbose_level": -1}), InvalidRequest, "log_verbose_level"),
        ((LOG, {"log_info": None}), InvalidRequest, "log_info"),
        ((LOG, {f"k{n}": 1 for n in range(65)}), TooLarge, "65 settings"),
        ((REGISTER, {"byte_size": 1}), InvalidRequest, "'key' of the region is None"),
        ((REGISTER, {"key": "/k"}), InvalidRequest, "'byte_size' of the region is None"),
        ((REGISTER, {**KEY, "byte_size": -1}), InvalidRequest, "byte_size"),
        ((REGISTER, {**KEY, "byte_size": 1.0}), InvalidRequest, "byte_size"),
        ((REGISTER, {**KEY, "offset": 1 << 63}), InvalidRequest, "offset"),
        ((REGISTER, {**KEY, "key": "/k\n"}), InvalidRequest, "U\\+000A"),
        ((REGISTER, {**KEY, "key": "k" * 2000}), TooLarge, "key of the region"),
        ((CUDA_REGISTER, HANDLE), InvalidRequest, "has 0 bytes"),
        ((CUDA_REGISTER, {**HANDLE, "raw_handle": {"b64": "??"}}), InvalidRequest, "no base64"),
        ((CUDA_REGISTER, {**HANDLE, "raw_handle": {"b64": "c2hvcnQ="}}), InvalidRequest, "5 bytes"),
    ],
)
def test_invalid_http_requests_are_rejected(
    sent: tuple[str, Any], error: type[GatewayError], text: str
) -> None:
    """Requests that a server could fail on, or open a file for, are not sent."""
    path, document = sent
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(error, match=text):
        listener(HttpCodec).decode_call(HttpRequest("POST", path, body=(body,)))


LOADING_METHOD = "RepositoryModelLoad"
NO_VALUE, NO_SETTING = pb.ModelRepositoryParameter(), pb.LogSettingsRequest.SettingValue()
FILE = pb.ModelRepositoryParameter(bytes_param=b"x")


def load(**fields: Any) -> pb.RepositoryModelLoadRequest:
    return pb.RepositoryModelLoadRequest(model_name="m", **fields)


SHORT = pb.CudaSharedMemoryRegisterRequest(name="c", raw_handle=b"x")


@pytest.mark.parametrize(
    ("method", "message", "error", "text"),
    [
        (LOADING_METHOD, b"", InvalidRequest, "names no model"),
        (LOADING_METHOD, load(repository_name="r"), Unsupported, "repository is 'r'"),
        (LOADING_METHOD, load(parameters={"x": NO_VALUE}), InvalidRequest, "'x' has no value"),
        (LOADING_METHOD, load(parameters={"file:../x": FILE}), InvalidRequest, "not a path of a"),
        (
            "LogSettings",
            pb.LogSettingsRequest(settings={"x": NO_SETTING}),
            InvalidRequest,
            "'x' has",
        ),
        ("ModelConfig", b"\x0a\xff", MalformedMessage, "ModelConfigRequest"),
        ("ModelConfig", pb.ModelConfigRequest(name="m" * 300), TooLarge, "model name"),
        ("CudaSharedMemoryRegister", SHORT, InvalidRequest, "has 1 bytes: expected 64"),
    ],
)
def test_invalid_grpc_requests_are_rejected(
    method: str, message: Any, error: type[GatewayError], text: str
) -> None:
    """The same requests are rejected over gRPC as over HTTP."""
    body = message if isinstance(message, bytes) else message.SerializeToString()
    with pytest.raises(error, match=text):
        listener(GrpcCodec).decode_call(GrpcRequest(SERVICE + method, (body,)))


@pytest.mark.parametrize("call", [ModelLoadRequest(model=M), ModelUnloadRequest(model=M)])
def test_kserve_has_the_name_in_another_field_and_reports_success(call: Call[Any]) -> None:
    """An empty response counts as success; one that names the model must report it."""
    codec = GrpcCodec(DEFAULT_LIMITS, {"dialect": "kserve"})
    wire = codec.encode_call(call)
    assert b"\x0a\x01m" == b"".join(wire.message)
    assert call == listener(GrpcCodec).decode_call(wire).changed(context=NO_CONTEXT)
    codec.decode_reply(call, GrpcResponse((b"",)))
    codec.decode_reply(call, GrpcResponse((b"\x0a\x01m\x10\x01",)))
    with pytest.raises(UpstreamProtocolError, match="has not"):
        codec.decode_reply(call, GrpcResponse((b"\x0a\x01m",)))


@pytest.mark.parametrize(
    ("call", "document"),
    [
        (ModelConfigRequest(model=M), []),
        (ModelStatisticsRequest(), {"model_stats": 5}),
        (ModelStatisticsRequest(), {"model_stats": [{"inference_count": -1}]}),
        (TraceSettingRequest(), {"trace_rate": 5}),
        (TraceSettingRequest(), []),
        (LogSettingsRequest(), {"log_info": []}),
        (SharedStatusRequest(), {}),
        (SharedStatusRequest(), [{"name": 5, "key": "", "byte_size": 1}]),
        (SharedStatusRequest(is_cuda=True), [{"name": "c", "byte_size": 1}]),
    ],
)
def test_unusable_responses_are_malformed(call: Call[Any], document: Any) -> None:
    """A response of a wrong form raises MalformedMessage, whatever the call."""
    wire = HttpResponse(200, body=(json.dumps(document).encode(),))
    with pytest.raises(MalformedMessage):
        HttpCodec(DEFAULT_LIMITS, {}).decode_reply(call, wire)


@BOTH
@pytest.mark.parametrize("kind", [ModelConfigRequest, ModelLoadRequest, ModelUnloadRequest])
def test_call_without_a_model_name_is_rejected(codec: Any, kind: type[Call[Any]]) -> None:
    """A call about a model without a name is rejected before anything is sent."""
    with pytest.raises(GatewayError, match="names no model"):
        codec(DEFAULT_LIMITS, {}).encode_call(kind())


@BOTH
def test_load_of_a_version_is_rejected_for_kserve(codec: Any) -> None:
    """A server without versions cannot load one of them."""
    with pytest.raises(Unsupported, match="has no versions"):
        codec(DEFAULT_LIMITS, {"dialect": "kserve"}).encode_call(ModelLoadRequest(model=V))
