"""Requests that Triton's own tests and clients send, right ones and wrong ones, by name."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gateway.schema import open_inference_pb2 as pb
from tests.interop.triton_requests import (
    SUM_INPUTS,
    SUMS,
    THREE,
    Grpc,
    Http,
    Outcome,
    Probe,
    infer,
    ints,
    message,
    sequence,
    streamed,
    tensor,
    unary,
)


def _shared(**parameters: Any) -> dict[str, Any]:
    return {"name": "INPUT0", "datatype": "INT32", "shape": [3], "parameters": parameters}


def _binary(size: Any, data: bytes, **more: Any) -> Http:
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "datatype": "INT32",
                    "shape": [3],
                    "parameters": {"binary_data_size": size},
                }
            ],
            **more,
        }
    ).encode()
    path = "/v2/models/identity_int32/infer"
    return Http("POST", path, text + data, {"Inference-Header-Content-Length": str(len(text))})


def _management() -> Iterator[tuple[str, Probe]]:
    """Yield read-only calls, some of them about models that do not exist."""
    for name, path in {
        "live": "health/live",
        "ready": "health/ready",
        "server": "",
        "model": "models/add_sub",
        "model_version": "models/versions/versions/3",
        "model_unknown": "models/nope",
        "model_unknown_version": "models/add_sub/versions/7",
        "model_bad_version": "models/add_sub/versions/abc",
        "model_ready": "models/add_sub/ready",
        "model_ready_unknown": "models/nope/ready",
        "model_ready_version": "models/versions/versions/1/ready",
        "model_ready_unknown_version": "models/versions/versions/2/ready",
        "config": "models/add_sub/config",
        "config_unknown": "models/nope/config",
        "config_unknown_version": "models/add_sub/versions/7/config",
        "ensemble_config": "models/ensemble_int32/config",
        "stats_unknown": "models/nope/stats",
        "stats_unknown_version": "models/add_sub/versions/7/stats",
        "trace": "trace/setting",
        "trace_model": "models/add_sub/trace/setting",
        "trace_unknown": "models/nope/trace/setting",
        "logging": "logging",
        "system_regions": "systemsharedmemory/status",
        "system_region_unknown": "systemsharedmemory/region/nope/status",
        "cuda_regions": "cudasharedmemory/status",
        "cuda_region_unknown": "cudasharedmemory/region/nope/status",
        "unknown_path": "nope",
        "unknown_model_path": "models/add_sub/nope",
    }.items():
        yield f"http_{name}", Http("GET", f"/v2/{path}".rstrip("/"))
    yield "http_outside", Http("GET", "/nope")
    yield "http_get_infer", Http("GET", "/v2/models/add_sub/infer")
    yield "http_post_ready", Http("POST", "/v2/health/ready", b"")
    yield "http_put_infer", Http("PUT", "/v2/models/add_sub/infer", b"{}")
    yield "http_delete_model", Http("DELETE", "/v2/models/add_sub")
    yield "http_index", Http("POST", "/v2/repository/index", {})
    yield "http_index_ready", Http("POST", "/v2/repository/index", {"ready": True})
    yield "http_index_no_body", Http("POST", "/v2/repository/index")
    ask = {
        "ServerLive": pb.ServerLiveRequest(),
        "ServerReady": pb.ServerReadyRequest(),
        "ServerMetadata": pb.ServerMetadataRequest(),
        "RepositoryIndex": pb.RepositoryIndexRequest(),
        "TraceSetting": pb.TraceSettingRequest(),
        "LogSettings": pb.LogSettingsRequest(),
        "SystemSharedMemoryStatus": pb.SystemSharedMemoryStatusRequest(),
        "CudaSharedMemoryStatus": pb.CudaSharedMemoryStatusRequest(),
    }
    for name, request in ask.items():
        yield f"grpc_{name}", Grpc(name, request, getattr(pb, f"{name}Response"))
    for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
        kind, reply = getattr(pb, f"{method}Request"), getattr(pb, f"{method}Response")
        if method != "ModelStatistics":
            yield f"grpc_{method}", Grpc(method, kind(name="add_sub"), reply)
        yield f"grpc_{method}_unknown", Grpc(method, kind(name="nope"), reply)
        yield f"grpc_{method}_version", Grpc(method, kind(name="add_sub", version="7"), reply)
        yield f"grpc_{method}_bad_version", Grpc(method, kind(name="add_sub", version="x"), reply)
    yield (
        "grpc_SystemSharedMemoryStatus_unknown",
        Grpc(
            "SystemSharedMemoryStatus",
            pb.SystemSharedMemoryStatusRequest(name="nope"),
            pb.SystemSharedMemoryStatusResponse,
        ),
    )
    yield (
        "grpc_TraceSetting_unknown",
        Grpc("TraceSetting", pb.TraceSettingRequest(model_name="nope"), pb.TraceSettingResponse),
    )


def _inferences() -> Iterator[tuple[str, Probe]]:
    """Yield inferences over HTTP and gRPC that succeed."""
    yield "http_add_sub", infer("add_sub", *SUMS)
    yield "http_id", infer("add_sub", *SUMS, id="request 1")
    yield "http_outputs", infer("add_sub", *SUMS, outputs=[{"name": "OUTPUT1"}])
    yield "http_version", infer("versions", tensor("X", data=[1]), path="versions/1/infer")
    yield "http_latest", infer("versions", tensor("X", data=[1]))
    yield (
        "http_parameters",
        infer("params_echo", tensor(), parameters={"a": 1, "b": "x", "c": True}),
    )
    yield (
        "http_nested",
        infer("identity_fp32", tensor(datatype="FP32", data=[[1, 2], [3, 4]], shape=[2, 2])),
    )
    yield (
        "http_texts",
        infer("identity_bytes", tensor(datatype="BYTES", data=[["a", "é"]], shape=[1, 2])),
    )
    yield "http_priority", infer("add_sub", *SUMS, parameters={"priority": 3, "timeout": 100})
    yield "http_empty", infer("identity_int32", tensor(data=[]))
    yield "http_bools", infer("identity_bool", tensor(datatype="BOOL", data=[True, False]))
    yield "http_bools_as_numbers", infer("identity_bool", tensor(datatype="BOOL", data=[1, 0]))
    yield "http_integers_as_floats", infer("identity_int32", tensor(data=[1.0, 2.0, 3.0]))
    yield (
        "http_floats_as_integers",
        infer("identity_fp32", tensor(datatype="FP32", data=[[1]], shape=[1, 1])),
    )
    yield (
        "http_binary_out",
        infer("identity_int32", tensor(), parameters={"binary_data_output": True}),
    )
    yield (
        "http_binary_output",
        infer(
            "identity_int32",
            tensor(),
            outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        ),
    )
    yield "http_binary", _binary(12, struct.pack("<3i", 1, 2, 3))
    yield (
        "http_raw",
        Http(
            "POST",
            "/v2/models/identity_int32/infer",
            struct.pack("<3i", 1, 2, 3),
            {"Inference-Header-Content-Length": "0"},
        ),
    )
    yield "http_ensemble", infer("ensemble_int32", tensor())
    yield (
        "http_classes",
        infer(
            "classify",
            tensor("SCORES_IN", "FP32", [0.5, 3, 2, 1], shape=[1, 4]),
            outputs=[{"name": "SCORES", "parameters": {"classification": 2}}],
        ),
    )
    yield "http_unknown_member", infer("identity_int32", tensor(), extra={"a": 1})
    yield "http_chunk_of_types", infer("identity_int32", tensor(data=[2**31 - 1, -(2**31)]))
    yield "grpc_add_sub", unary("add_sub", *SUM_INPUTS, id="request 1")
    yield "grpc_outputs", unary("add_sub", *SUM_INPUTS, outputs=("OUTPUT1",))
    yield "grpc_version", unary("versions", ints("X", 1), model_version="1")
    yield "grpc_parameters", unary("params_echo", THREE, parameters={"a": 1, "b": "x", "c": True})
    yield "grpc_empty", unary("identity_int32", ("INPUT0", "INT32", [0], b""))
    yield "grpc_ensemble", unary("ensemble_int32", THREE)
    yield "grpc_bools", unary("identity_bool", ("INPUT0", "BOOL", [2], b"\x07\0"))
    yield "grpc_texts", unary("identity_bytes", ("INPUT0", "BYTES", [1, 2], b"\1\0\0\0a\0\0\0\0"))
    typed = message("identity_int32", ("INPUT0", "INT32", [3], None))
    typed.inputs[0].contents.int_contents.extend([1, 2, 3])
    yield "grpc_typed", Grpc("ModelInfer", typed, pb.ModelInferResponse)


def _odd_spellings() -> Iterator[tuple[str, Probe]]:
    """Yield requests that Triton reads although their form is unusual, and such that it does not."""
    path = "/v2/models/identity_int32/infer"
    text = json.dumps({"inputs": [tensor()]})
    yield (
        "http_fp32_text",
        infer("identity_fp32", tensor(data=[0.1], shape=[1, 1], datatype="FP32")),
    )
    nan = text.replace("[1, 2, 3]", "[NaN, 2, 3]").replace("INT32", "FP64")
    yield "http_nan", Http("POST", "/v2/models/identity_fp64/infer", nan.encode())
    yield "http_key_twice", Http("POST", path, ('{"id": "a", "id": "b", ' + text[1:]).encode())
    yield "http_nested_otherwise", infer("identity_int32", {**tensor(), "data": [[1], [2, 3]]})
    deep = text.replace("[1, 2, 3]", "[" * 90 + "1, 2, 3" + "]" * 90)
    yield "http_nested_deeply", Http("POST", path, deep.encode())
    latin = json.dumps({"inputs": [tensor(datatype="BYTES", data=["a"], shape=[1, 1])]})
    yield (
        "http_not_utf8",
        Http("POST", "/v2/models/identity_bytes/infer", latin.encode().replace(b'"a"', b'"\xff"')),
    )
    yield "http_nul_behind", Http("POST", path, text.encode() + b"\0")
    yield (
        "http_gzip_goes_on",
        Http("POST", path, gzip.compress(text.encode()) + b"xx", {"Content-Encoding": "gzip"}),
    )
    yield (
        "http_coding_in_capitals",
        Http("POST", path, gzip.compress(text.encode()), {"Content-Encoding": "GZIP"}),
    )
    yield "http_id_control", infer("identity_int32", tensor(), id="a\nb")
    yield "http_id_long", infer("identity_int32", tensor(), id="x" * 2000)
    yield "http_id_null", infer("identity_int32", tensor(), id=None)
    yield "http_parameter_null", infer("params_echo", tensor(), parameters={"k": None})
    yield "http_parameter_large", infer("params_echo", tensor(), parameters={"k": 2**63})
    scores = tensor("SCORES_IN", "FP32", [0.5, 3, 2, 1], shape=[1, 4])
    counted = [{"name": "SCORES", "parameters": {"classification_count": 2}}]
    yield "http_classification_count", infer("classify", scores, outputs=counted)
    yield "http_name_encoded", Http("GET", "/v2/models/add%5Fsub")
    yield "http_models", Http("GET", "/v2/models")
    yield "http_index_list", Http("POST", "/v2/repository/index", [])
    yield "grpc_out_of_range", _typed("identity_int8", "INT8", 300)
    surplus = message("identity_int32", THREE)
    surplus.raw_input_contents.append(b"x")
    yield "grpc_raw_surplus", Grpc("ModelInfer", surplus, pb.ModelInferResponse)
    yield "grpc_empty_without_data", unary("identity_int32", ("INPUT0", "INT32", [0], None))
    yield "grpc_id_control", unary("identity_int32", THREE, id="a\nb")
    yield "grpc_version_with_sign", unary("versions", ints("X", 1), model_version="+1")


def _typed(model: str, datatype: str, value: int) -> Grpc:
    request = message(model, ("INPUT0", datatype, [1], None))
    request.inputs[0].contents.int_contents.append(value)
    return Grpc("ModelInfer", request, pb.ModelInferResponse)


def _mistakes() -> Iterator[tuple[str, Probe]]:
    """Yield inferences that Triton refuses."""
    path = "/v2/models/identity_int32/infer"
    yield "http_no_json", Http("POST", path, b"nonsense")
    yield "http_empty_body", Http("POST", path, b"")
    yield "http_empty_object", Http("POST", path, {})
    yield "http_list", Http("POST", path, [])
    yield "http_no_inputs", Http("POST", path, {"inputs": []})
    yield "http_inputs_no_list", Http("POST", path, {"inputs": {}})
    for member in ("name", "datatype", "shape", "data"):
        one = {key: value for key, value in tensor().items() if key != member}
        yield f"http_without_{member}", infer("identity_int32", one)
    yield "http_wrong_name", infer("identity_int32", tensor("OTHER"))
    yield "http_too_many", infer("identity_int32", tensor(), tensor("OTHER"))
    yield "http_twice", infer("identity_int32", tensor(), tensor())
    yield "http_missing", infer("add_sub", SUMS[0])
    yield "http_wrong_datatype", infer("identity_int32", tensor(datatype="INT64"))
    yield "http_no_datatype", infer("identity_int32", tensor(datatype="INT33"))
    yield "http_wrong_shape", infer("add_sub", *(tensor(f"INPUT{n}", shape=[1, 3]) for n in (0, 1)))
    yield "http_wrong_rank", infer("add_sub", *(tensor(f"INPUT{n}") for n in (0, 1)))
    yield (
        "http_batch_too_large",
        infer("add_sub", *(tensor(f"INPUT{n}", data=range(144), shape=[9, 16]) for n in (0, 1))),
    )
    yield "http_too_few", infer("identity_int32", tensor(shape=[4]))
    yield "http_too_much", infer("identity_int32", tensor(shape=[2]))
    yield "http_negative", infer("identity_int32", tensor(shape=[-1]))
    yield "http_text_as_number", infer("identity_int32", tensor(data=["a", "b", "c"]))
    yield "http_fraction", infer("identity_int32", tensor(data=[1.5, 2, 3]))
    yield "http_out_of_range", infer("identity_int32", tensor(data=[2**31, 0, 0]))
    yield "http_wrong_output", infer("identity_int32", tensor(), outputs=[{"name": "OTHER"}])
    yield "http_output_twice", infer("identity_int32", tensor(), outputs=[{"name": "OUTPUT0"}] * 2)
    yield "http_model_unknown", infer("nope", tensor())
    yield "http_version_unknown", infer("identity_int32", tensor(), path="versions/7/infer")
    yield "http_version_no_number", infer("identity_int32", tensor(), path="versions/x/infer")
    yield "http_model_fails", infer("fail_always", tensor())
    yield "http_id_no_text", infer("identity_int32", tensor(), id=7)
    yield "http_decoupled", infer("repeat_stream", tensor("IN"))
    yield (
        "http_region_unknown",
        infer("identity_int32", _shared(shared_memory_region="nope", shared_memory_byte_size=12)),
    )
    yield "http_region_without_size", infer("identity_int32", _shared(shared_memory_region="nope"))
    yield "http_binary_short", _binary(12, b"1234")
    yield "http_binary_long", _binary(12, bytes(16))
    yield "http_binary_size_wrong", _binary(8, bytes(8))
    yield "http_binary_size_text", _binary("12", bytes(12))
    yield (
        "http_header_too_long",
        Http("POST", path, b"{}", {"Inference-Header-Content-Length": "99"}),
    )
    yield (
        "http_header_no_number",
        Http("POST", path, b"{}", {"Inference-Header-Content-Length": "x"}),
    )
    yield "http_gzip_wrong", Http("POST", path, b"{}", {"Content-Encoding": "gzip"})
    yield "http_coding_unknown", Http("POST", path, b"{}", {"Content-Encoding": "br"})
    yield "http_priority_text", infer("add_sub", *SUMS, parameters={"priority": "high"})
    yield "http_reserved_parameter", infer("add_sub", *SUMS, parameters={"triton_x": 1})
    yield (
        "http_reserved_parameter_text",
        infer("add_sub", *SUMS, parameters={"sequence_start": "yes"}),
    )
    yield "http_parameter_object", infer("add_sub", *SUMS, parameters={"x": {"a": 1}})
    yield "http_parameter_float", infer("params_echo", tensor(), parameters={"x": 1.5})
    yield "grpc_wrong_name", unary("identity_int32", ints("OTHER", 1))
    yield "grpc_too_many", unary("identity_int32", THREE, ints("OTHER", 1))
    yield "grpc_twice", unary("identity_int32", THREE, THREE)
    yield "grpc_missing", unary("add_sub", SUM_INPUTS[0])
    yield "grpc_none", unary("identity_int32")
    yield "grpc_wrong_datatype", unary("identity_int32", ("INPUT0", "INT64", [1], bytes(8)))
    yield "grpc_no_datatype", unary("identity_int32", ("INPUT0", "INT33", [1], bytes(4)))
    yield (
        "grpc_wrong_shape",
        unary("add_sub", *((f"INPUT{n}", "INT32", [1, 3], bytes(12)) for n in (0, 1))),
    )
    yield (
        "grpc_batch_too_large",
        unary("add_sub", *((f"INPUT{n}", "INT32", [9, 16], bytes(576)) for n in (0, 1))),
    )
    yield "grpc_too_few", unary("identity_int32", ("INPUT0", "INT32", [4], bytes(12)))
    yield "grpc_too_much", unary("identity_int32", ("INPUT0", "INT32", [2], bytes(12)))
    yield "grpc_negative", unary("identity_int32", ("INPUT0", "INT32", [-1], bytes(12)))
    yield "grpc_no_data", unary("identity_int32", ("INPUT0", "INT32", [3], None))
    yield "grpc_wrong_output", unary("identity_int32", THREE, outputs=("OTHER",))
    yield "grpc_model_unknown", unary("nope", THREE)
    yield "grpc_model_empty", unary("", THREE)
    yield "grpc_version_unknown", unary("identity_int32", THREE, model_version="7")
    yield "grpc_version_no_number", unary("identity_int32", THREE, model_version="x")
    yield "grpc_model_fails", unary("fail_always", THREE)
    yield "grpc_decoupled", unary("repeat_stream", ints("IN", 1))
    yield (
        "grpc_region_unknown",
        unary("identity_int32", ("INPUT0", "INT32", [3], None), parameters={}),
    )
    mixed = message("identity_int32", THREE)
    mixed.inputs[0].contents.int_contents.extend([1, 2, 3])
    yield "grpc_raw_and_typed", Grpc("ModelInfer", mixed, pb.ModelInferResponse)
    wrong = message("identity_int32", ("INPUT0", "INT32", [3], None))
    wrong.inputs[0].contents.fp32_contents.extend([1, 2, 3])
    yield "grpc_typed_wrongly", Grpc("ModelInfer", wrong, pb.ModelInferResponse)
    region = message("identity_int32", ("INPUT0", "INT32", [3], None))
    region.inputs[0].parameters["shared_memory_region"].string_param = "nope"
    region.inputs[0].parameters["shared_memory_byte_size"].int64_param = 12
    yield "grpc_in_region_unknown", Grpc("ModelInfer", region, pb.ModelInferResponse)
    yield (
        "grpc_bad_texts",
        unary("identity_bytes", ("INPUT0", "BYTES", [1, 2], b"\1\0\0\0a\xff\0\0\0")),
    )
    yield "grpc_reserved_parameter", unary("identity_int32", THREE, parameters={"triton_x": 1})
    yield "grpc_priority_text", unary("identity_int32", THREE, parameters={"priority": "high"})
    yield "grpc_unknown_method", Grpc("NoSuchMethod", pb.ServerLiveRequest(), pb.ServerLiveResponse)


def _generated(path: str, body: Any, model: str = "generate_text") -> Http:
    return Http("POST", f"/v2/models/{model}/{path}", body)


def _streams() -> Iterator[tuple[str, Probe]]:
    """Yield streams, sequences and texts that are generated."""
    yield "stream_one", streamed(message("identity_int32", THREE, id="a"))
    yield (
        "stream_two",
        streamed(message("identity_int32", THREE, id="a"), message("add_sub", *SUM_INPUTS, id="b")),
    )
    yield "stream_decoupled", streamed(message("repeat_stream", ints("IN", 4, 2), id="a"))
    yield (
        "stream_final",
        streamed(
            message(
                "repeat_stream",
                ints("IN", 4),
                id="a",
                parameters={"triton_enable_empty_final_response": True},
            )
        ),
    )
    yield "stream_model_fails", streamed(message("fail_always", THREE, id="a"))
    yield "stream_fails_late", streamed(message("repeat_stream", ints("IN", 4, -1, 2), id="a"))
    yield "stream_model_unknown", streamed(message("nope", THREE, id="a"))
    yield "stream_wrong_name", streamed(message("identity_int32", ints("OTHER", 1), id="a"))
    yield (
        "stream_too_few",
        streamed(message("identity_int32", ("INPUT0", "INT32", [4], bytes(12)), id="a")),
    )
    yield (
        "stream_error_then_reply",
        streamed(message("nope", THREE, id="a"), message("identity_int32", THREE, id="b")),
    )
    yield (
        "sequence",
        streamed(
            *(
                sequence(n, sequence_id=77, sequence_start=n == 1, sequence_end=n == 3)
                for n in (1, 2, 3)
            )
        ),
    )
    yield (
        "sequence_without_start",
        Grpc("ModelInfer", sequence(1, sequence_id=555), pb.ModelInferResponse),
    )
    yield "sequence_without_id", Grpc("ModelInfer", sequence(1), pb.ModelInferResponse)
    yield (
        "http_sequence_without_start",
        infer(
            "sequence_sum", tensor("INPUT", data=[1], shape=[1, 1]), parameters={"sequence_id": 556}
        ),
    )
    yield "http_sequence_without_id", infer("sequence_sum", tensor("INPUT", data=[1], shape=[1, 1]))
    yield (
        "http_sequence",
        infer(
            "sequence_sum",
            tensor("INPUT", data=[4], shape=[1, 1]),
            parameters={"sequence_id": 557, "sequence_start": True, "sequence_end": True},
        ),
    )
    for path in ("generate", "generate_stream"):
        text = partial(_generated, path)

        yield (
            f"{path}_text",
            text({"text_input": "a b", "max_tokens": 2, "stream": path != "generate"}),
        )
        yield f"{path}_one", text({"INPUT0": [1, 2]}, "identity_int32")
        yield f"{path}_scalar", text({"INPUT0": 7}, "identity_int32")
        yield f"{path}_id", text({"id": "x", "INPUT0": [1]}, "identity_int32")
        yield (
            f"{path}_parameters",
            text({"INPUT0": [1], "parameters": {"a": 1}, "b": "c"}, "params_echo"),
        )
        yield f"{path}_missing", text({"max_tokens": 2})
        yield f"{path}_fails", text({"INPUT0": [1]}, "fail_always")
        yield f"{path}_unknown", text({"INPUT0": [1]}, "nope")
        yield f"{path}_version", text({"INPUT0": [1]}, "identity_int32/versions/1")
        yield f"{path}_version_unknown", text({"INPUT0": [1]}, "identity_int32/versions/7")
        yield f"{path}_several", text({"IN": [1, 2]}, "repeat_stream")
        yield f"{path}_none", text({"IN": []}, "repeat_stream")
        yield f"{path}_fails_late", text({"IN": [1, -1]}, "repeat_stream")
        yield f"{path}_fails_first", text({"IN": [-1, 1]}, "repeat_stream")


def _changes() -> Iterator[tuple[str, Probe]]:
    """Yield requests that change something, or would; each one leaves the server as it was."""
    for name, path, body in (
        ("load_unknown", "repository/models/nope/load", {}),
        ("load", "repository/models/versions/load", {}),
        ("load_bad_config", "repository/models/add_sub/load", {"parameters": {"config": "{"}}),
        ("unload_unknown", "repository/models/nope/unload", {}),
        ("trace_change", "trace/setting", {"trace_rate": "1000"}),
        ("trace_bad", "trace/setting", {"trace_rate": "x"}),
        ("trace_unknown_setting", "trace/setting", {"nope": "1"}),
        ("log_change", "logging", {"log_verbose_level": 0}),
        ("log_bad", "logging", {"log_info": 5}),
        ("log_unknown", "logging", {"nope": 1}),
        (
            "region_bad_key",
            "systemsharedmemory/region/r/register",
            {"key": "/no_such_segment", "offset": 0, "byte_size": 8},
        ),
        (
            "region_without_key",
            "systemsharedmemory/region/r/register",
            {"offset": 0, "byte_size": 8},
        ),
        ("unregister_unknown", "systemsharedmemory/region/nope/unregister", {}),
        ("unregister_all", "systemsharedmemory/unregister", {}),
        (
            "cuda_register",
            "cudasharedmemory/region/r/register",
            {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8},
        ),
    ):
        yield f"http_{name}", Http("POST", f"/v2/{path}", body)
    yield (
        "grpc_load_unknown",
        Grpc(
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(model_name="nope"),
            pb.RepositoryModelLoadResponse,
        ),
    )
    yield (
        "grpc_unload_unknown",
        Grpc(
            "RepositoryModelUnload",
            pb.RepositoryModelUnloadRequest(model_name="nope"),
            pb.RepositoryModelUnloadResponse,
        ),
    )
    log = pb.LogSettingsRequest()
    log.settings["log_verbose_level"].uint32_param = 0
    yield "grpc_log_change", Grpc("LogSettings", log, pb.LogSettingsResponse)
    bad = pb.LogSettingsRequest()
    bad.settings["log_info"].uint32_param = 5
    yield "grpc_log_bad", Grpc("LogSettings", bad, pb.LogSettingsResponse)
    trace = pb.TraceSettingRequest()
    trace.settings["trace_rate"].value.append("1000")
    yield "grpc_trace_change", Grpc("TraceSetting", trace, pb.TraceSettingResponse)
    trace = pb.TraceSettingRequest()
    trace.settings["trace_rate"].value.append("x")
    yield "grpc_trace_bad", Grpc("TraceSetting", trace, pb.TraceSettingResponse)
    yield (
        "grpc_unregister_unknown",
        Grpc(
            "SystemSharedMemoryUnregister",
            pb.SystemSharedMemoryUnregisterRequest(name="nope"),
            pb.SystemSharedMemoryUnregisterResponse,
        ),
    )


def probes() -> dict[str, Probe]:
    """Return all probes by name, in the order in which they are sent."""
    groups: tuple[Callable[[], Iterator[tuple[str, Probe]]], ...] = (
        _management,
        _inferences,
        _odd_spellings,
        _mistakes,
        _streams,
        _changes,
    )
    return {name: probe for group in groups for name, probe in group()}


def probe_all(http_address: str, grpc_address: str) -> dict[str, Outcome]:
    """Send all probes to a server; return the outcomes by name."""
    return {name: probe.ask((http_address, grpc_address)) for name, probe in probes().items()}
