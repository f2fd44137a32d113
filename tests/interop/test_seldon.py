"""Seldon's client before a real Triton with flags alone, and its microservice as an upstream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import command_line
from tests.integration.cli_kit import Running, get
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import gateway_before, serving
from tests.interop.sacrifice import post
from tests.interop.servers.process import RunningServer, running
from tests.interop.servers.seldon import start

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CONFIG = """
version: 1
listeners:
  - {http: "127.0.0.1:0", options: {seldon: {feedback: forward}}}
admin: {address: "off"}
upstreams:
  rest: {url: "seldon+%(http)s"}
  grpc: {url: "seldon+grpc://%(grpc)s"}
  texts: {url: "seldon+%(http)s", options: {form: text}}
  rows: {url: "seldon+grpc://%(grpc)s", options: {form: ndarray, service: Model}}
routes:
  - {match: {model: rest}, targets: [{upstream: rest}]}
  - {match: {model: grpc}, targets: [{upstream: grpc}]}
  - {match: {model: texts}, targets: [{upstream: texts}]}
  - {match: {model: rows}, targets: [{upstream: rows}]}
models:
  rest: &integers
    signature:
      inputs: [{name: x, datatype: INT64, shape: [-1, -1]}]
      outputs: [{name: y, datatype: INT64, shape: [-1, -1]}]
  grpc: *integers
  rows: *integers
  texts:
    signature:
      inputs: [{name: x, datatype: BYTES, shape: [1]}]
      outputs: [{name: y, datatype: BYTES, shape: [1]}]
"""
EXACT = 2**52


@pytest.fixture(scope="module")
def seen(triton_server: RunningServer) -> dict[str, Any]:
    """Return what Seldon's client sees of a gateway with flags alone before Triton."""
    with gateway_before(triton_server, "grpc", "--default-model", "identity_fp32") as gateway:
        addresses = gateway.addresses["main.http"], gateway.addresses["main.grpc"]
        found: dict[str, Any] = Client(environment("seldon")).run(
            SCRIPTS / "seldon_client.py", *addresses
        )
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run Seldon's microservice."""
    with running("seldon", start.prepare, tmp_path_factory.mktemp("seldon")) as found:
        yield found


@pytest.fixture(scope="module")
def gateway(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a gateway before the microservice."""
    path = tmp_path_factory.mktemp("gateway") / "gateway.yaml"
    path.write_text(CONFIG % {"http": server.http_url, "grpc": server.grpc_address})
    with serving(str(path)) as found:
        yield found


def send(gateway: Running, path: str, message: dict[str, Any]) -> tuple[int, Any]:
    """POST a SeldonMessage; return status and JSON of the response."""
    body, headers = json.dumps(message).encode(), {"Content-Type": "application/json"}
    status, found = post(gateway.addresses["main.http"], path, body, headers=headers)
    return status, json.loads(found)


def infer(gateway: Running, model: str, datatype: str, shape: list[int], data: list[Any]) -> Any:
    """Return shape and elements of the output, or the status and the text of an error."""
    inputs = [{"name": "x", "datatype": datatype, "shape": shape, "data": data}]
    status, found = get(gateway.url(f"/v2/models/{model}/infer"), {"inputs": inputs})
    if status != 200:
        return status, found["error"]
    (output,) = found["outputs"]
    assert output["name"] == "y"
    return output["shape"], output["data"]


@pytest.mark.parametrize("transport", ["rest", "grpc"])
def test_the_client_reads_arrays_of_triton(seen: dict[str, Any], transport: str) -> None:
    """Through an ingress and as a microservice, in both forms of arrays."""
    values = [1.5, -2.0, 0.10000000149011612]
    for way in ("", " microservice"):
        tensor = seen[f"{transport}{way} tensor"]["data"]["tensor"]
        assert ([1, 3], values) == (tensor["shape"], tensor["values"])
        (row,) = seen[f"{transport}{way} ndarray"]["data"]["ndarray"]
        assert values == pytest.approx(row, rel=1e-7)
    assert [1, -2] == seen[f"{transport} integers tensor"]["data"]["tensor"]["values"]
    assert [1, -2] == seen[f"{transport} integers ndarray"]["data"]["ndarray"]
    assert seen[f"{transport} tensor"]["meta"]["puid"]


@pytest.mark.parametrize("transport", ["rest", "grpc"])
def test_the_client_reads_texts_bytes_and_errors(seen: dict[str, Any], transport: str) -> None:
    """A fraction for a model of integers is refused with its place."""
    assert seen[f"{transport} text"]["strData"] == "hé"
    assert seen[f"{transport} bytes"]["binData"] == "AP8="
    assert [["a", "b"]] == seen[f"{transport} texts"]["data"]["ndarray"]
    assert "data.tensor.values[0] is 1.5" in json.dumps(seen[f"{transport} fraction"])
    assert "nope" in json.dumps(seen[f"{transport} unknown"])
    assert "failed" not in seen[f"{transport} feedback"]


@pytest.mark.parametrize("model", ["rest", "grpc", "rows"])
def test_open_inference_reaches_the_microservice(gateway: Running, model: str) -> None:
    """Integers come back as the signature declares them, exactly or not at all."""
    assert ([2, 2], [2, -4, 0, EXACT]) == infer(
        gateway, model, "INT64", [2, 2], [1, -2, 0, EXACT // 2]
    )
    assert get(gateway.url(f"/v2/models/{model}/ready"))[0] == 200


def test_integers_beyond_doubles_are_exact_over_json_or_refused(gateway: Running) -> None:
    """JSON has integers of any size, and gRPC has doubles only."""
    large = 2**53 + 1
    assert ([1, 1], [2 * large]) == infer(gateway, "rest", "INT64", [1, 1], [large])
    status, text = infer(gateway, "grpc", "INT64", [1, 1], [large])
    assert (status, "2**53" in text) == (501, True)


def test_texts_reach_the_microservice(gateway: Running) -> None:
    """An error keeps the status and the text of the server."""
    assert ([1], ["HÉ"]) == infer(gateway, "texts", "BYTES", [1], ["hé"])
    status, text = infer(gateway, "texts", "BYTES", [1], ["refuse"])
    assert (status, "refused" in text) == (400, True)
    status, found = send(gateway, "/seldon/ns/texts/predict", {"strData": "refuse"})
    assert (status, found["status"]["reason"]) == (422, "MY_REASON")


def test_feedback_reaches_the_microservice(gateway: Running) -> None:
    """The option passes it on."""
    feedback = {"request": {"strData": "x"}, "response": {"strData": "x"}, "reward": 1.0}
    status, found = send(gateway, "/seldon/ns/rest/api/v1.0/feedback", feedback)
    assert status == 200
    assert found["meta"]["tags"] == {"tag": "t"}


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_the_command_line_calls_the_server(server: RunningServer, carrier: str) -> None:
    """`gateway infer` needs the datatype of the input only."""
    address = server.address(carrier)
    words = ["infer", f"seldon+{carrier}://{address}", "any", "-i", "x=[[1.5,2]]"]
    words += ["--datatype", "x=FP64", "-o", "json"]
    result = CliRunner().invoke(command_line(["infer"]), words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["outputs"][0]["data"] == [[3.0, 4.0]]
