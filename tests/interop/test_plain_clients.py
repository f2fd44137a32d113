"""Common clients: curl, nghttp, h2load and Node.js, and grpcio with reflection."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.integration.cli_kit import Running
from tests.interop.client import Client
from tests.interop.gateways import make, serving
from tests.interop.programs import program

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]  # apt-get may install a program first

TESTING = Path(__file__).parents[2] / "config" / "testing.yaml"
FREE = "127.0.0.1:0"
ONE_PORT = "main.http+grpc"
ON_ONE_PORT = pytest.mark.skipif(make() != "native", reason="other transports have no HTTP/2")

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


@pytest.fixture(scope="module")
def one_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Serve config/testing.yaml with one port for HTTP/1, HTTP/2 and gRPC, and one for brpc."""
    config = yaml.safe_load(TESTING.read_text())
    listener = config["listeners"][0]
    del listener["http"], listener["grpc"]
    listener |= {"address": FREE, "streams": [{"protocol": "grps", "address": FREE}]}
    config["admin"] = {"address": None, "metrics": None}
    file = tmp_path_factory.mktemp("one-port") / "testing.yaml"
    file.write_text(yaml.safe_dump(config))
    with serving(str(file)) as running:
        yield running


def run(name: str, *arguments: str) -> bytes:
    """Return the output of a program."""
    command = [program(name), *arguments]
    return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout


def curl(gateway: Running, path: str, *options: str, name: str = "main.http") -> tuple[int, Any]:
    """Return the status and the document that curl received."""
    written = "\n%{http_code}"
    url = gateway.url(path, name)
    printed = run("curl", "--silent", "--write-out", written, *options, url)
    body, _, status = printed.rpartition(b"\n")
    return int(status), json.loads(body)


VERSIONS = [["--http1.1"], ["--http2-prior-knowledge"], ["--http2"]]


@ON_ONE_PORT
@pytest.mark.parametrize("options", VERSIONS, ids=lambda options: options[0])
def test_curl_uses_both_http_versions_on_one_port(one_port: Running, options: list[str]) -> None:
    """HTTP/2 needs prior knowledge; an offered upgrade gets a response in HTTP/1."""
    path = "/v2/models/simple/infer"
    status, answer = curl(one_port, path, *options, "--data", json.dumps(ADD), name=ONE_PORT)
    assert (200, "curl-1") == (status, answer["id"])
    version = run("curl", "-so", "/dev/null", "-w", "%{http_version}", *options,
                  one_port.url("/v2/health/live", ONE_PORT))  # fmt: skip
    assert version == (b"2" if "prior" in options[0] else b"1.1")


@ON_ONE_PORT
def test_curl_uploads_over_http_2(one_port: Running, tmp_path: Path) -> None:
    """A large body is sent with a length and without one."""
    size = 4_000_000
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, size // 4]}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]}).encode()
    (tmp_path / "body").write_bytes(head + bytes(size))
    header = f"Inference-Header-Content-Length: {len(head)}"
    for options in (("--data-binary", f"@{tmp_path / 'body'}"), ("-X", "POST", "-T", "-")):
        command = [program("curl"), "-s", "--http2-prior-knowledge", "-H", header, *options]
        command += ["-o", str(tmp_path / "out"), "-w", "%{http_code}"]
        url = one_port.url("/v2/models/identity_fp32/infer", ONE_PORT)
        with (tmp_path / "body").open("rb") as body:
            done = subprocess.run([*command, url], stdin=body, capture_output=True, check=True)
        assert b"200" == done.stdout
        assert (tmp_path / "out").read_bytes().count(b"0.0") >= size // 4


@ON_ONE_PORT
@pytest.mark.parametrize("name", [ONE_PORT, "main.grps.brpc"])
def test_nghttp_reads_the_status_page(one_port: Running, name: str) -> None:
    """The page of grps is at / of the shared port and of the brpc port."""
    assert b"<h1>grps</h1>" in run("nghttp", one_port.url("/", name))


@ON_ONE_PORT
def test_h2load_requests_all_succeed(one_port: Running) -> None:
    """Many streams on many connections have responses."""
    url = one_port.url("/v2/health/ready", ONE_PORT)
    printed = run("h2load", "-n", "5000", "-c", "20", "-m", "20", url)
    assert b"5000 succeeded, 0 failed, 0 errored, 0 timeout" in printed


@ON_ONE_PORT
def test_node_uses_http_2(one_port: Running) -> None:
    """The module http2 of Node.js sends and receives JSON."""
    script = (
        "const c = require('http2').connect(process.argv[1]);"
        "const r = c.request({':method': 'POST', ':path': '/v2/models/simple/infer'});"
        "let t = ''; r.on('response', h => { t += h[':status'] + ' '; });"
        "r.on('data', d => { t += d; }); r.on('end', () => { console.log(t); c.close(); });"
        "r.end(process.argv[2]);"
    )
    printed = run("node", "-e", script, one_port.url("", ONE_PORT), json.dumps(ADD))
    status, _, body = printed.decode().partition(" ")
    assert ("200", "curl-1") == (status, json.loads(body)["id"])


@ON_ONE_PORT
def test_grpc_on_one_port(one_port: Running) -> None:
    """Grpcio reaches the reflection service on the same port."""
    with grpc.insecure_channel(one_port.addresses[ONE_PORT]) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()


def test_curl_infers_with_json(gateway: Running) -> None:
    """The response has the outputs and the request's id."""
    status, answer = curl(gateway, "/v2/models/simple/infer", "--data", json.dumps(ADD))
    assert (200, "curl-1") == (status, answer["id"])
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    assert [value + 1 for value in range(16)] == outputs["OUTPUT0"]
    assert [value - 1 for value in range(16)] == outputs["OUTPUT1"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/simple/ready", {"name": "simple", "ready": True}),
    ],
)
def test_curl_receives_health_as_json(gateway: Running, path: str, expected: Any) -> None:
    """Health has a JSON body, which the kserve client needs."""
    assert (200, expected) == curl(gateway, path)


def test_curl_gets_a_helpful_error(gateway: Running) -> None:
    """A tensor sent without JSON gets an error with the required header."""
    status, answer = curl(gateway, "/v2/models/simple/infer", "--data-binary", "\x01\x02")
    assert 400 == status
    assert "Inference-Header-Content-Length" in answer["error"]


def test_reflection_is_enough_to_call(gateway: Running) -> None:
    """A client without a schema lists the service, reads its messages and infers."""
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
    """Both copies of the messages work in one process, whichever is imported first."""
    ours, theirs = client.run(BESIDE, first)
    assert ours == theirs
