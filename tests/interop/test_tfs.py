"""Real clients of TensorFlow Serving and KServe V1 before a real Triton, and a KServe V1 server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_kit import Running
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import gateway_before, serving
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ROW = list(range(16))
SUM, DIFFERENCE = [each + 1 for each in ROW], [each - 1 for each in ROW]
INT64, UINT64 = [-(2**63), 2**63 - 1], [0, 2**64 - 1]
FRONT = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "off"}}
upstreams: {{kserve: {{url: "tfs+{url}", options: {{dialect: kserve}}}}}}
models:
  rows:
    signature:
      inputs: [{{name: x, datatype: FP64, shape: [-1, 2]}}]
      outputs: [{{name: y, datatype: FP64, shape: [-1, 2]}}]
"""


@pytest.fixture(scope="module")
def sidecar(triton_server: RunningServer) -> Iterator[Running]:
    """Run a gateway with flags alone before Triton."""
    with gateway_before(triton_server, "grpc") as found:
        yield found


@pytest.fixture(scope="module")
def kserve_seen(sidecar: Running) -> dict[str, Any]:
    """Return what KServe's client sees."""
    url = f"http://{sidecar.addresses['main.http']}"
    found: dict[str, Any] = Client(environment("kserve")).run(SCRIPTS / "kserve_v1_client.py", url)
    return found


@pytest.fixture(scope="module")
def ovms_seen(sidecar: Running) -> dict[str, Any]:
    """Return what OpenVINO's client sees over both carriers."""
    http, grpc = sidecar.addresses["main.http"], sidecar.addresses["main.grpc"]
    found: dict[str, Any] = Client(environment("ovms")).run(SCRIPTS / "ovms_client.py", http, grpc)
    return found


def test_kserve_clients_read_the_state_of_server_and_model(kserve_seen: dict[str, Any]) -> None:
    """Both are there; an unknown model is 404, and an explanation 501."""
    assert (True, True) == (kserve_seen["live"], kserve_seen["ready"])
    assert 404 == kserve_seen["unknown"]["status"]
    assert 501 == kserve_seen["explain"]["status"]


def test_kserve_clients_get_rows(kserve_seen: dict[str, Any]) -> None:
    """Rows of two inputs have both outputs, and a wrong value is named in the error."""
    expected = {"predictions": [{"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}]}
    assert expected == kserve_seen["rows"]
    assert expected == kserve_seen["graph"]
    assert 400 == kserve_seen["wrong"]["status"]
    assert "INPUT1" in kserve_seen["wrong"]["text"]


def test_kserve_clients_get_exact_values(kserve_seen: dict[str, Any]) -> None:
    """64-bit integers are whole, and texts and booleans are themselves."""
    assert (INT64, UINT64) == (kserve_seen["int64"], kserve_seen["uint64"])
    assert ([[0.1], [3.4028234663852886e38]], [True, False]) == (
        kserve_seen["fp32"],
        kserve_seen["bool"],
    )
    assert [["é"], ["b"]] == kserve_seen["bytes"]


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_tensorflow_clients_before_triton(ovms_seen: dict[str, Any], carrier: str) -> None:
    """Status, metadata and predictions are read by a client that always sends version 0."""
    found = ovms_seen[carrier]
    assert "AVAILABLE" == found["status"]
    assert {"INPUT0", "INPUT1"} == set(found["inputs"])
    assert {"OUTPUT0": [SUM], "OUTPUT1": [DIFFERENCE]} == found["simple"]
    assert INT64 == found["int64"][1]
    assert [True, False] == found["bool"][1]
    assert "ModelNotFoundError" == found["unknown"]


def test_tensorflow_clients_get_typed_arrays_over_grpc(ovms_seen: dict[str, Any]) -> None:
    """Every datatype arrives as itself."""
    found = ovms_seen["grpc"]
    assert ["uint64", UINT64] == found["uint64"]
    assert ["int8", [-128, 127]] == found["int8"]
    assert ["float64", [0.1, 1e300]] == found["fp64"]


def test_a_kserve_server_of_v1_is_an_upstream(kserve_server: RunningServer, tmp_path: Path) -> None:
    """A client of Open Inference reaches a model that has rows only."""
    path = tmp_path / "gateway.yaml"
    path.write_text(FRONT.format(url=kserve_server.http_url))
    values = [0.1, -2.5, 1e300, 3.0]
    tensor = {"name": "x", "datatype": "FP64", "shape": [2, 2], "data": values}
    with serving(str(path)) as gateway:
        host, port = gateway.addresses["main.http"].split(":")
        connection = HTTPConnection(host, int(port), timeout=60)
        connection.request("POST", "/v2/models/rows/infer", json.dumps({"inputs": [tensor]}))
        (output,) = json.loads(connection.getresponse().read())["outputs"]
        connection.request("GET", "/v2/models/rows/ready")
        assert 200 == connection.getresponse().status
        connection.close()
    assert ("y", [2, 2], values) == (output["name"], output["shape"], output["data"])
