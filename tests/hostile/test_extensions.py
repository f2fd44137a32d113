"""Hostile requests to Open Inference's extensions, on a listener that serves all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.hostile.judge import CLIENTS_FAULT, Patient
from tests.hostile.wire import Raw, head, post

pytestmark = pytest.mark.hostile

SERVICE = "/inference.GRPCInferenceService/"
LOAD, UNLOAD = "/v2/repository/models/simple/load", "/v2/repository/models/identity_bool/unload"
REGION = "/v2/systemsharedmemory/region/{}/register"
CUDA = "/v2/cudasharedmemory/region/r/register"
INDEX, TRACE, LOG = "/v2/repository/index", "/v2/trace/setting", "/v2/logging"

REFUSED = frozenset({400, 404, 405, 413, 414, 431, 501})
LONG = "n" * 5000


def _loading(name: str, value: object) -> bytes:
    return json.dumps({"parameters": {name: value}}).encode()


def _segment(key: str, **members: object) -> bytes:
    return json.dumps({"key": key, "byte_size": 8, **members}).encode()


BODIES: dict[str, tuple[str, bytes]] = {
    **{
        f"{path.rpartition('/')[2]}-{name}": (path, body)
        for path in (LOAD, UNLOAD, REGION.format("r"), CUDA, INDEX, TRACE, LOG)
        for name, body in {
            "cut": b'{"parameters": {',
            "list": b"[]",
            "text": b'"x"',
            "deep": b'{"a":' * 500 + b"1" + b"}" * 500,
            "binary": bytes(range(256)),
            "bom": b"\xef\xbb\xbf{}x",
        }.items()
    },
    "load-file-above": (LOAD, _loading("file:../../etc/passwd", "")),
    "load-file-root": (LOAD, _loading("file:/etc/passwd", "")),
    "load-file-nul": (LOAD, _loading("file:1/model\0.py", "")),
    "load-file-dots": (LOAD, _loading("file:1/..", "")),
    "load-file-backslash": (LOAD, _loading("file:1\\..\\x", "")),
    "load-file-no-base64": (LOAD, _loading("file:1/model.py", "%%%")),
    "load-file-number": (LOAD, _loading("file:1/model.py", 5)),
    "load-config-cut": (LOAD, _loading("config", '{"name": ')),
    "load-config-list": (LOAD, _loading("config", "[]")),
    "load-config-deep": (LOAD, _loading("config", '{"a":' * 500 + "1" + "}" * 500)),
    "load-config": (LOAD, _loading("config", '{"max_batch_size": -1}')),
    "load-float": (LOAD, _loading("x", 1e300)),
    "load-null": (LOAD, _loading("x", None)),
    "load-long-name": (LOAD, _loading(LONG, 1)),
    "load-many": (
        LOAD,
        json.dumps({"parameters": dict.fromkeys(map(str, range(900)), 1)}).encode(),
    ),
    "unload-unknown": (UNLOAD, _loading("x", 1)),
    "unload-number": (UNLOAD, _loading("unload_dependents", 1)),
    "key-above": (REGION.format("r"), _segment("/../etc/passwd")),
    "key-deep": (REGION.format("r"), _segment("/a/b")),
    "key-root": (REGION.format("r"), _segment("/")),
    "key-dots": (REGION.format("r"), _segment("..")),
    "key-empty": (REGION.format("r"), _segment("")),
    "key-nul": (REGION.format("r"), _segment("/x\0y")),
    "key-long": (REGION.format("r"), _segment("/" + LONG)),
    "key-surrogate": (REGION.format("r"), b'{"key": "/\\ud800", "byte_size": 8}'),
    "key-semaphore": (REGION.format("r"), _segment("/sem.x")),
    "key-of-triton": (REGION.format("r"), _segment("/triton_python_backend_shm_region_1")),
    "key-number": (REGION.format("r"), b'{"key": 5, "byte_size": 8}'),
    "size-negative": (REGION.format("r"), _segment("/x", byte_size=-1)),
    "size-over-64-bits": (REGION.format("r"), _segment("/x", byte_size=1 << 64)),
    "offset-over-63-bits": (REGION.format("r"), _segment("/x", offset=1 << 63)),
    "region-above": (REGION.format("%2e%2e%2fx"), _segment("/../x")),
    "region-long": (REGION.format(LONG), _segment("/x")),
    "region-bad-escape": (REGION.format("%zz"), _segment("/x")),
    "handle-short": (CUDA, b'{"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8}'),
    "handle-none": (CUDA, b'{"device_id": 0, "byte_size": 8}'),
    "trace-file": (TRACE, b'{"trace_file": "/etc/cron.d/x"}'),
    "trace-number": (TRACE, b'{"trace_rate": 1}'),
    "log-file": (LOG, b'{"log_file": "/etc/cron.d/x"}'),
    "log-unknown": (LOG, b'{"nope": 1}'),
    "log-huge": (LOG, b'{"log_verbose_level": 99999999999}'),
    "log-contradiction": (LOG, b'{"log_warning": false}'),
    "opaque-above": ("/v2/models/simple/../../x", b"{}"),
    "opaque": ("/v2/models/simple/explain", b"{}"),
    "opaque-server": ("/v2/nope/nope", b"{}"),
}


@pytest.mark.parametrize("name", BODIES)
def test_hostile_http_requests_are_client_errors(patient: Patient, name: str) -> None:
    """No body or path crashes or hangs the gateway, opens a file or becomes a server error."""
    path, body = BODIES[name]
    with Raw(patient.gateway.addresses["open.http"]) as raw:
        raw.send([post(body, path=path)])
        response = raw.answer()
    assert response is not None
    assert response.status in REFUSED, response
    assert b"Traceback" not in response.body
    assert "error" in json.loads(response.body)


def test_good_requests_succeed(patient: Patient) -> None:
    """The endpoints under attack are served on this listener."""
    paths = ("/v2/models/simple/config", "/v2/models/stats", LOG, "/v2/systemsharedmemory/status")
    for path in paths:
        with Raw(patient.gateway.addresses["open.http"]) as raw:
            raw.send([head("GET", path)])
            response = raw.answer()
        assert response is not None
        assert 200 == response.status, path


@pytest.fixture
def channel(patient: Patient) -> Iterator[grpc.Channel]:
    """Connect to the listener that serves everything."""
    with grpc.insecure_channel(patient.gateway.address("open.grpc")) as channel:
        yield channel


FILE = pb.ModelRepositoryParameter(bytes_param=b"x" * 1000)
MESSAGES: dict[str, tuple[str, bytes]] = {
    **{
        f"garbage-{method}": (method, b"\x0a\xff\xff\xff\xff\x0f")
        for method in (
            "ModelConfig",
            "ModelStatistics",
            "RepositoryModelLoad",
            "RepositoryModelUnload",
            "TraceSetting",
            "LogSettings",
            "SystemSharedMemoryRegister",
            "CudaSharedMemoryRegister",
        )
    },
    "load-file-above": (
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(
            model_name="simple", parameters={"file:../x": FILE}
        ).SerializeToString(),
    ),
    "load-file": (
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(
            model_name="simple", parameters={"file:1/model.py": FILE}
        ).SerializeToString(),
    ),
    "load-many": (
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(
            model_name="simple", parameters={f"p{n}": FILE for n in range(500)}
        ).SerializeToString(),
    ),
    "config-long": ("ModelConfig", pb.ModelConfigRequest(name=LONG).SerializeToString()),
    "key-above": (
        "SystemSharedMemoryRegister",
        pb.SystemSharedMemoryRegisterRequest(
            name="r", key="/../../etc/passwd", byte_size=8
        ).SerializeToString(),
    ),
    "size-lies": (
        "SystemSharedMemoryRegister",
        pb.SystemSharedMemoryRegisterRequest(
            name="r", key="/x", byte_size=(1 << 64) - 1
        ).SerializeToString(),
    ),
    "log-file": (
        "LogSettings",
        pb.LogSettingsRequest(
            settings={"log_file": pb.LogSettingsRequest.SettingValue(string_param="/etc/x")}
        ).SerializeToString(),
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_hostile_grpc_messages_are_client_errors(channel: grpc.Channel, name: str) -> None:
    """The same requests over gRPC get a status of the client."""
    method, message = MESSAGES[name]
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(SERVICE + method)(message, timeout=30)
    assert caught.value.code() in CLIENTS_FAULT
    assert "Traceback" not in (caught.value.details() or "")
