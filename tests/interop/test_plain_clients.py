"""Clients that everybody has: curl with JSON, and grpcio with nothing but server reflection."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.integration.cli_kit import Running
from tests.interop.client import Client
from tests.interop.gateways import serving

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

TESTING = Path(__file__).parents[2] / "config" / "testing.yaml"
FREE = "127.0.0.1:0"

ADD = {
    "id": "curl-1",
    "inputs": [
        {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))},
        {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [[1] * 16]},
    ],
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Serve config/testing.yaml on free ports."""
    text = TESTING.read_text()
    for port in (8000, 8001, 9901, 8002):
        text = text.replace(f"127.0.0.1:{port}", FREE)
    file = tmp_path_factory.mktemp("testing") / "testing.yaml"
    file.write_text(text)
    with serving(str(file)) as running:
        yield running


def curl(gateway: Running, path: str, *options: str) -> tuple[int, Any]:
    """Return the status and the document that curl got."""
    program = shutil.which("curl")
    assert program is not None, "curl is needed: apt-get install curl"
    done = subprocess.run(
        [program, "--silent", "--write-out", "\n%{http_code}", *options, gateway.url(path)],
        check=True,
        capture_output=True,
        timeout=30,
    )
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status), json.loads(body)


def test_curl_infers_with_json(gateway: Running) -> None:
    """Flat and nested data in one request; the id comes back."""
    status, answer = curl(gateway, "/v2/models/simple/infer", "--data", json.dumps(ADD))
    assert (200, "curl-1") == (status, answer["id"])
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    assert [value + 1 for value in range(16)] == outputs["OUTPUT0"]
    assert [value - 1 for value in range(16)] == outputs["OUTPUT1"]


def test_curl_asks_for_compression(gateway: Running) -> None:
    """`--compressed`, as many type it, changes nothing in the answer."""
    options = ("--compressed", "--data", json.dumps(ADD))
    status, answer = curl(gateway, "/v2/models/simple/infer", *options)
    assert (200, "simple") == (status, answer["model_name"])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/simple/ready", {"name": "simple", "ready": True}),
    ],
)
def test_curl_sees_health_as_json(gateway: Running, path: str, expected: Any) -> None:
    """Health has a JSON body, which the kserve client needs."""
    assert (200, expected) == curl(gateway, path)


def test_curl_gets_a_helpful_error(gateway: Running) -> None:
    """A tensor posted without its JSON is told how it is done."""
    status, answer = curl(gateway, "/v2/models/simple/infer", "--data-binary", "\x01\x02")
    assert 400 == status
    assert "Inference-Header-Content-Length" in answer["error"]


def test_reflection_is_enough_to_call(gateway: Running) -> None:
    """A client with no schema of its own lists the service, learns its messages and infers."""
    with grpc.insecure_channel(gateway.addresses["main.grpc"]) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        pool = DescriptorPool(database)
        service = pool.FindServiceByName("inference.GRPCInferenceService")
        method = service.FindMethodByName("ModelInfer")
        request: Any = GetMessageClass(method.input_type)(model_name="simple", id="r-1")
        for name, values in (("INPUT0", range(16)), ("INPUT1", [1] * 16)):
            tensor = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
            tensor.contents.int_contents.extend(values)
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=type(request).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        answer = call(request, timeout=10)
    assert "r-1" == answer.id
    expected = b"".join((value + 1).to_bytes(4, "little") for value in range(16))
    assert expected == answer.raw_output_contents[0]


BESIDE = """
import json, sys
def ours():
    from gateway.schema import open_inference_pb2
    return open_inference_pb2.ModelInferRequest(model_name="ours").SerializeToString()
def theirs():
    from tritonclient.grpc import service_pb2
    return service_pb2.ModelInferRequest(model_name="ours").SerializeToString()
order = [ours, theirs] if sys.argv[1] == "ours" else [theirs, ours]
print(json.dumps([make().hex() for make in order]))
"""


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_the_gateway_imports_beside_tritonclient(client: Client, first: str) -> None:
    """Whichever is imported first, both sets of the same messages work in one process."""
    ours, theirs = client.run(BESIDE, first)
    assert ours == theirs
