"""MLflow's scoring client before the gateway, and `mlflow models serve` behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import command_line
from tests.integration.cli_kit import Running
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import serving
from tests.interop.servers.mlflow import start
from tests.interop.servers.process import RunningServer, running

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

MODELS = ("digits", "add_sub", "frame")
CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0", default_model: digits}]
admin: {address: "off"}
upstreams: %(upstreams)s
routes: %(routes)s
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
  frame:
    signature:
      inputs:
        - {name: a, datatype: FP64, shape: [-1]}
        - {name: b, datatype: INT64, shape: [-1]}
        - {name: s, datatype: BYTES, shape: [-1]}
      outputs:
        - {name: total, datatype: FP64, shape: [-1]}
        - {name: text, datatype: BYTES, shape: [-1]}
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningServer]]:
    """Run a server of each model."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                running(name, start.serving(name), tmp_path_factory.mktemp(name))
            )
            for name in MODELS
        }


@pytest.fixture(scope="module")
def gateway(
    servers: dict[str, RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Run a gateway before the servers."""
    path = tmp_path_factory.mktemp("gateway") / "gateway.yaml"
    upstreams = {name: {"url": f"mlflow+{each.http_url}"} for name, each in servers.items()}
    routes = [{"name": n, "match": {"model": n}, "targets": [{"upstream": n}]} for n in MODELS]
    path.write_text(CONFIG % {"upstreams": json.dumps(upstreams), "routes": json.dumps(routes)})
    with serving(str(path)) as found:
        yield found


def ask(gateway: Running, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    """Return status and body of a response."""
    with closing(HTTPConnection(gateway.addresses["main.http"], timeout=60)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()


def infer(gateway: Running, model: str, inputs: list[dict[str, Any]], **more: Any) -> Any:
    """Return the outputs by name, or the text of an error."""
    body = json.dumps({"inputs": inputs, **more})
    status, found = ask(gateway, "POST", f"/v2/models/{model}/infer", body)
    if status != 200:
        return status, json.loads(found)["error"]
    outputs = json.loads(found)["outputs"]
    return {each["name"]: (each["datatype"], each["shape"], each["data"]) for each in outputs}


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def test_open_inference_reaches_the_server(gateway: Running) -> None:
    """Values, objects of columns and rows of objects are read as the signature declares them."""
    x = tensor("x", "FP32", [2, 4], [1, 2, 3, 4, 0.5, 0.25, 0, 0])
    assert infer(gateway, "digits", [x]) == {"y": ("FP32", [2], [10.0, 0.75])}
    large = 9007199254740993
    inputs = [
        tensor("INPUT0", "INT64", [1, 2], [large, 1]),
        tensor("INPUT1", "INT64", [1, 2], [0, 2]),
    ]
    assert infer(gateway, "add_sub", inputs) == {
        "OUTPUT0": ("INT64", [1, 2], [large, 3]),
        "OUTPUT1": ("INT64", [1, 2], [large, -1]),
    }
    table = [
        tensor("a", "FP64", [2], [1.5, 2.5]),
        tensor("b", "INT64", [2], [2, 3]),
        tensor("s", "BYTES", [2], ["x", "é"]),
    ]
    assert infer(gateway, "frame", table, parameters={"scale": 2.0}) == {
        "total": ("FP64", [2], [7.0, 11.0]),
        "text": ("BYTES", [2], ["x", "é"]),
    }


def test_a_refusal_of_the_server_reaches_the_client(gateway: Running) -> None:
    """The status is that of the server, and its text has the reason."""
    status, text = infer(gateway, "digits", [tensor("x", "FP32", [1, 2], [1, 2])])
    assert status == 400
    assert "shape" in text.lower()


def test_a_model_is_ready_with_its_server(gateway: Running) -> None:
    """`/ping` of the gateway is that of the server."""
    for path in ("/v2/models/digits/ready", "/ping"):
        assert ask(gateway, "GET", path)[0] == 200


def test_the_real_client_reads_what_the_server_sends(gateway: Running) -> None:
    """Arrays, lists, tables and texts give the same sums."""
    client = Client(environment("mlflow"))
    seen = client.run(SCRIPTS / "mlflow_clients.py", gateway.addresses["main.http"])
    sums = [10.0, 0.75]
    for form in ("array", "list", "frame", "text", "params"):
        assert sums == _values(seen[form]), form
    assert "could not convert string to float: 'q'" in seen["refused"]  # as the server says it


def _values(found: Any) -> list[float]:
    """Return the only column of a table, or a list itself."""
    values: list[float] = next(iter(found.values())) if isinstance(found, dict) else found
    return values


def test_the_command_line_calls_the_server(servers: dict[str, RunningServer]) -> None:
    """`gateway infer` needs the datatype of the input only."""
    url = f"mlflow+{servers['digits'].http_url}"
    words = ["infer", url, "digits", "-i", "x=[[1,2,3,4]]", "--datatype", "x=FP32", "-o", "json"]
    result = CliRunner().invoke(command_line(["infer"]), words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["outputs"][0]["data"] == [10.0]


def test_import_writes_the_signature(servers: dict[str, RunningServer], tmp_path: Path) -> None:
    """The file of a saved model becomes a configuration for its server."""
    folder = servers["frame"].log_path.parent / "frame"
    out = tmp_path / "gateway.yaml"
    result = CliRunner().invoke(
        command_line(["import"]), ["import", "mlflow", str(folder), "-o", str(out)]
    )
    assert result.exit_code == 0, result.output
    for line in ("name: total", "datatype: BYTES", "columns: each", "mlflow+http://127.0.0.1:5000"):
        assert line in out.read_text()
