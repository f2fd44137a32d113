"""Clients of TorchServe before a Triton with flags alone, and the real TorchServe behind a gateway."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from gateway.cli.commands import command_line
from gateway.protocols.torchserve.grpc.codec import LIST, PING_METHOD, PREDICTIONS, STREAM
from gateway.schema import torchserve_inference_pb2 as pb
from gateway.schema import torchserve_management_pb2
from tests.integration.cli_kit import Running
from tests.interop.gateways import gateway_before, serving
from tests.interop.programs import program
from tests.interop.servers.process import RunningServer, running
from tests.interop.servers.torchserve.start import prepare

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: "off"}
upstreams: {server: {url: "URL"}}
models:
  digits:
    signature:
      inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
      outputs: [{name: y, datatype: FP32, shape: [-1]}]
  add_sub:
    signature:
      inputs:
        - {name: INPUT0, datatype: INT64, shape: [-1, 2]}
        - {name: INPUT1, datatype: INT64, shape: [-1, 2]}
      outputs:
        - {name: OUTPUT0, datatype: INT64, shape: [-1, 2]}
        - {name: OUTPUT1, datatype: INT64, shape: [-1, 2]}
  raw:
    signature:
      inputs: [{name: x, datatype: BYTES, shape: [1]}]
      outputs: [{name: y, datatype: BYTES, shape: [1]}]
    protocols: {torchserve: {request: bytes, response: bytes}}
  columns:
    signature:
      inputs:
        - {name: x, datatype: FP32, shape: [-1, 1]}
        - {name: t, datatype: BYTES, shape: [-1, 1]}
      outputs: [{name: y, datatype: FP32, shape: [-1]}]
    protocols: {torchserve: {request: columns}}
  fail:
    signature:
      inputs: [{name: x, datatype: FP32, shape: [-1]}]
      outputs: [{name: y, datatype: FP32, shape: [-1]}]
"""


@pytest.fixture(scope="module")
def torchserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run the real server."""
    with running("torchserve", prepare, tmp_path_factory.mktemp("torchserve")) as server:
        with grpc.insecure_channel(server.grpc_address) as channel:  # which opens last
            grpc.channel_ready_future(channel).result(60)
        yield server


@pytest.fixture(scope="module", params=["http", "grpc"])
def gateway(
    request: pytest.FixtureRequest,
    torchserve: RunningServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    """Run a gateway before the server, over either carrier."""
    address = torchserve.address(request.param)
    path = tmp_path_factory.mktemp("gateway") / "gateway.yaml"
    path.write_text(CONFIG.replace("URL", f"torchserve+{request.param}://{address}"))
    with serving(str(path)) as found:
        yield found


@pytest.fixture(scope="module")
def before_triton(triton_server: RunningServer) -> Iterator[Running]:
    """Run a gateway with flags alone before a Triton."""
    with gateway_before(triton_server, "grpc") as found:
        yield found


def ask(address: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return status and body of a response, as JSON if it is any."""
    with closing(HTTPConnection(address, timeout=60)) as connection:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        headers = {} if isinstance(body, bytes) else {"Content-Type": "application/json"}
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        text = response.read()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text


def infer(gateway: Running, model: str, *inputs: dict[str, Any]) -> Any:
    """Return the outputs by name, or status and text of an error."""
    address = gateway.addresses["main.http"]
    status, found = ask(address, "POST", f"/v2/models/{model}/infer", {"inputs": inputs})
    if status != 200:
        return status, found["error"]
    return {each["name"]: (each["shape"], each["data"]) for each in found["outputs"]}


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def test_open_inference_reaches_the_server(gateway: Running) -> None:
    """Each item of a batch is a request, and the reply has the declared datatypes."""
    x = tensor("x", "FP32", [2, 4], [1, 2, 3, 4, 0.5, 0.25, 0, 0])
    assert infer(gateway, "digits", x) == {"y": ([2], [10.0, 0.75])}
    large = 9007199254740993
    a = tensor("INPUT0", "INT64", [1, 2], [large, 1])
    b = tensor("INPUT1", "INT64", [1, 2], [0, 2])
    assert infer(gateway, "add_sub", a, b) == {
        "OUTPUT0": ([1, 2], [large, 3]),
        "OUTPUT1": ([1, 2], [large, -1]),
    }
    assert infer(gateway, "raw", tensor("x", "BYTES", [1], ["{é"])) == {"y": ([1], ["{é"])}
    x = tensor("x", "FP32", [1, 1], [1.5])
    assert infer(gateway, "columns", x, tensor("t", "BYTES", [1, 1], ["abc"])) == {
        "y": ([1], [4.5])
    }


def test_a_failure_of_the_server_reaches_the_client(gateway: Running) -> None:
    """A handler that fails is an error of the model, and an unknown model is not found."""
    status, text = infer(gateway, "fail", tensor("x", "FP32", [1], [1]))
    assert status == 500
    assert "Prediction failed" in text
    for method, path in (("GET", "/v2/models/digits/ready"), ("GET", "/v2/health/ready")):
        assert ask(gateway.addresses["main.http"], method, path)[0] == 200


def test_the_command_line_calls_the_server(torchserve: RunningServer) -> None:
    """`gateway infer` needs the datatype of the input only."""
    url = f"torchserve+{torchserve.http_url}"
    words = ["infer", url, "digits", "-i", "x=[[1,2,3,4]]", "--datatype", "x=FP32", "-o", "json"]
    result = CliRunner().invoke(command_line(["infer"]), words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["outputs"][0]["data"] == [10.0]


def test_import_reads_what_the_server_reads(torchserve: RunningServer, tmp_path: Path) -> None:
    """The settings and archives of the running server become a configuration."""
    out = tmp_path / "gateway.yaml"
    source = torchserve.log_path.parent / "config.properties"
    words = ["import", "torchserve", str(source), "-o", str(out)]
    result = CliRunner().invoke(command_line(["import"]), words)
    assert result.exit_code == 0, result.output
    for line in ("add_sub:", "torchserve+http://127.0.0.1:"):
        assert line in out.read_text()


def test_curl_reaches_triton(before_triton: Running, tmp_path: Path) -> None:
    """Bodies with and without a content type, files and forms."""
    url = f"http://{before_triton.addresses['main.http']}"
    row = json.dumps(list(range(16)))
    file = tmp_path / "item.json"
    file.write_text(f'{{"INPUT0": {row}, "INPUT1": {row}}}')

    def curl(*words: str) -> Any:
        command = [program("curl"), "-sS", *words]
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        return json.loads(done.stdout)

    expected = {"OUTPUT0": [2 * each for each in range(16)], "OUTPUT1": [0] * 16}
    predict = f"{url}/predictions/add_sub"
    assert curl("-T", str(file), predict) == expected
    assert curl("-F", f"data=@{file}", f"{predict}/1.0") == expected
    json_type = "Content-Type: application/json"
    assert curl("-H", json_type, "-d", f"@{file}", predict) == expected
    assert curl("-H", json_type, "-d", f"@{file}", f"{url}/models/add_sub/invoke") == expected
    for version in ("1.0", "3.0"):
        found = curl("-H", json_type, "-d", "[0]", f"{url}/predictions/versions/{version}")
        assert found == [int(version[0])]
    text = curl("-H", "Content-Type: text/plain", "-d", "a b", f"{url}/predictions/identity_bytes")
    assert text == [["a b"]]
    found = curl("-T", str(file), f"{url}/predictions/identity_fp32")
    assert (found["code"], "models.NAME.protocols.torchserve" in found["message"]) == (400, True)
    assert curl(f"{url}/models")["models"]
    assert curl(f"{url}/models/add_sub")[0]["modelName"] == "add_sub"
    found = curl("-H", json_type, "-d", "[1]", f"{url}/predictions/none")
    assert (found["code"], found["type"]) == (404, "ModelNotFoundException")
    found = curl("-H", json_type, "-d", "[0]", f"{url}/predictions/versions/9.0")
    assert (found["code"], found["type"]) == (404, "ModelVersionNotFoundException")
    with subprocess.Popen(
        [
            program("curl"),
            "-sS",
            "-H",
            json_type,
            "-d",
            '{"IN": [1, 2, 3]}',
            f"{url}/predictions/repeat_stream",
        ],
        stdout=subprocess.PIPE,
    ) as stream:
        data = (stream.communicate(timeout=60)[0]).decode()
    assert [json.loads(each + "}")["OUT"] for each in data.split("}") if each] == [[1], [2], [3]]


def test_stubs_of_grpc_reach_triton(before_triton: Running) -> None:
    """Unary calls, streams, health and the list of models."""
    row = json.dumps(list(range(16)))
    body = f'{{"INPUT0": {row}, "INPUT1": {row}}}'.encode()
    with grpc.insecure_channel(before_triton.addresses["main.grpc"]) as channel:
        predict = channel.unary_unary(
            PREDICTIONS,
            request_serializer=pb.PredictionsRequest.SerializeToString,
            response_deserializer=pb.PredictionResponse.FromString,
        )
        found = predict(pb.PredictionsRequest(model_name="add_sub", input={"data": body}))
        assert json.loads(found.prediction)["OUTPUT0"] == [2 * each for each in range(16)]
        with pytest.raises(grpc.RpcError) as caught:
            predict(pb.PredictionsRequest(model_name="none", input={"data": body}))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        stream = channel.unary_stream(
            STREAM,
            request_serializer=pb.PredictionsRequest.SerializeToString,
            response_deserializer=pb.PredictionResponse.FromString,
        )
        request = pb.PredictionsRequest(
            model_name="repeat_stream", input={"data": b'{"IN": [4, 5]}'}
        )
        assert [json.loads(each.prediction)["OUT"] for each in stream(request)] == [[4], [5]]
        ping = channel.unary_unary(
            PING_METHOD, response_deserializer=pb.TorchServeHealthResponse.FromString
        )
        assert json.loads(ping(b"").health) == {"status": "Healthy"}
        listed = channel.unary_unary(
            LIST, response_deserializer=torchserve_management_pb2.ManagementResponse.FromString
        )
        assert json.loads(listed(b"").msg)["models"]
