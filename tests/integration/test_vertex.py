"""A container of Vertex AI: `gateway serve` with nothing but the environment of the platform."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest

from gateway.schema import tensorflow_messages_pb2
from gateway.schema import tensorflow_serving_pb2 as pb
from tests.integration import fork_server
from tests.integration.cli_kit import free_port, gateway
from tests.integration.container_kit import await_ready, await_refusal
from tests.integration.fork_server import ForkedProcess
from tests.integration.workers_kit import eventually

CONFIG = """
version: 1
listeners:
  - address: 127.0.0.1:${env:AIP_HTTP_PORT:-8080}
    options:
      tfs:
        vertex:
          predict: "${env:AIP_PREDICT_ROUTE:-/predict}"
          health: "${env:AIP_HEALTH_ROUTE:-/health}"
          parameters: %s
admin: {address: "off", metrics: "off"}
models:
  house: {backend: python, options: {callable: "vertex_models:house"}}
lifecycle: {pre_stop: 0s, drain: 25s}
"""
MODELS = """
import pathlib
import time

import numpy as np

from gateway.backends.python import declares
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.metadata import TensorMetadata

FOLDER = pathlib.Path(__file__).parent


@declares(
    inputs=(TensorMetadata("x", Datatype.FP32, (-1, -1)),),
    outputs=(TensorMetadata("y", Datatype.FP32, (-1,)),),
)
def house(inputs, job):
    values = inputs["x"]
    if values.size and values[0, 0] == -1:  # until the file is there
        (FOLDER / "busy").touch()
        while not (FOLDER / "go").exists():
            time.sleep(0.005)
    return {"y": values.sum(axis=1) * np.float32(job.parameters.get("scale", 1))}
"""
ROUTES = {
    "AIP_PREDICT_ROUTE": "/v1/endpoints/17/deployedModels/42:predict",
    "AIP_HEALTH_ROUTE": "/v1/endpoints/17/deployedModels/42",
}


class Container:
    """A started container.

    Args:
        process: The gateway.
        folder: Its models.
        port: The only port.
        routes: The variables of the routes.
    """

    def __init__(
        self, process: ForkedProcess, folder: Path, port: int, routes: dict[str, str]
    ) -> None:
        self.process = process
        self.folder = folder
        self.port = port
        self.predict_route = routes.get("AIP_PREDICT_ROUTE", "/predict")
        self.health_route = routes.get("AIP_HEALTH_ROUTE", "/health")

    def ask(
        self, method: str, path: str, body: str = "", kind: str = "application/json"
    ) -> tuple[int, bytes]:
        """Return status and body of a request on a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body or None, {"Content-Type": kind})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def predict(self, body: str, kind: str = "application/json") -> tuple[int, bytes]:
        """Return status and body of a prediction."""
        return self.ask("POST", self.predict_route, body, kind)

    def release(self) -> None:
        """Let the model return."""
        (self.folder / "go").touch()


@contextmanager
def container(
    folder: Path, routes: dict[str, str], parameters: str = "forward"
) -> Iterator[Container]:
    """Run `gateway serve` alone, until the health route is 200."""
    port = free_port()
    (folder / "gateway.yaml").write_text(CONFIG % parameters)
    (folder / "vertex_models.py").write_text(MODELS)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(folder),
        "GATEWAY_CONFIG": str(folder / "gateway.yaml"),
        "AIP_MODE": "PREDICTION",
        "AIP_MODE_VERSION": "2.0.0",
        "AIP_HTTP_PORT": str(port),
        "AIP_ENDPOINT_ID": "17",
        "AIP_STORAGE_URI": "",
        **routes,
    }
    with (folder / "log").open("w") as log:
        output = log.fileno()
        process = fork_server.start(["serve"], output, output, Path("/"), environment)
    found = Container(process, folder, port, routes)
    try:
        await_ready(found, found.health_route, folder / "log")
        yield found
    finally:
        found.release()
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=[ROUTES, {}], ids=["routes", "defaults"])
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    """A container with the platform's default routes, and one without any in its environment."""
    with container(tmp_path_factory.mktemp("house"), request.param) as found:
        yield found


def test_predictions_are_one_for_each_instance(house: Container) -> None:
    """Rows and columns are read; `parameters` are parameters of the call."""
    status, body = house.predict('{"instances": [[1, 2], [3, 4]]}')
    assert (200, {"predictions": [3.0, 7.0]}) == (status, json.loads(body))
    status, body = house.predict('{"instances": [[1, 2]], "parameters": {"scale": 10}}')
    assert (200, {"predictions": [30.0]}) == (status, json.loads(body))
    for empty in ("null", "{}"):
        status, body = house.predict(f'{{"instances": [[1, 2]], "parameters": {empty}}}')
        assert (200, {"predictions": [3.0]}) == (status, json.loads(body))
    status, body = house.predict('{"inputs": [[1, 2]]}')
    assert (200, {"outputs": [3.0]}) == (status, json.loads(body))


@pytest.mark.parametrize(
    ("parameters", "member"), [("[1]", "parameters is"), ('{"a": [1]}', "parameters.a is")]
)
def test_wrong_parameters_are_named(house: Container, parameters: str, member: str) -> None:
    """Lists, and values that are no scalars, are 400 with the member."""
    status, body = house.predict(f'{{"instances": [[1, 2]], "parameters": {parameters}}}')
    assert 400 == status
    assert member in json.loads(body)["error"]


def test_only_json_is_read(house: Container) -> None:
    """Another content type is 415, another method 405, and a wrong body 400."""
    assert 415 == house.predict("1,2", "text/csv")[0]
    assert 405 == house.ask("PUT", house.predict_route)[0]
    assert 405 == house.ask("POST", house.health_route, "{}")[0]
    assert 400 == house.predict('{"instances": []}')[0]


def test_large_bodies_are_read(house: Container) -> None:
    """1.5 MB are accepted, which is what the platform lets pass."""
    row = ",".join(["0.5"] * 375)
    body = f'{{"instances": [{",".join([f"[{row}]"] * 990)}]}}'
    assert len(body) > 1_480_000
    status, found = house.predict(body)
    assert (200, [187.5] * 990) == (status, json.loads(found)["predictions"])


def test_custom_routes_reach_every_protocol(house: Container) -> None:
    """With an invoke route, the paths of all protocols are reachable on the one port."""
    tensor = '{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}'
    status, body = house.ask("POST", "/v2/models/house/infer", f'{{"inputs": [{tensor}]}}')
    assert (200, [3.0]) == (status, json.loads(body)["outputs"][0]["data"])
    assert 200 == house.ask("GET", "/v2/health/ready")[0]
    status, body = house.ask("GET", "/v1/models")
    assert (200, ["house"]) == (status, json.loads(body)["models"])
    status, body = house.ask("POST", "/v1/models/house:predict", '{"instances": [[1, 2]]}')
    assert (200, {"predictions": [3.0]}) == (status, json.loads(body))


def test_grpc_is_on_the_same_address(house: Container) -> None:
    """TensorFlow Serving's own service serves the model."""
    message = pb.PredictRequest()
    message.model_spec.name = "house"
    message.inputs["x"].dtype = tensorflow_messages_pb2.DT_FLOAT
    message.inputs["x"].tensor_shape.dim.add(size=1)
    message.inputs["x"].tensor_shape.dim.add(size=2)
    message.inputs["x"].float_val.extend([1, 2])
    with grpc.insecure_channel(f"127.0.0.1:{house.port}") as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            pb.PredictRequest.SerializeToString,
            pb.PredictResponse.FromString,
        )
        reply = call(message, timeout=30)
    assert [3.0] == list(reply.outputs["y"].float_val)


def test_the_log_names_the_platform(house: Container) -> None:
    """It tells mode and endpoint, and warns of another version of the contract."""
    log = house.folder / "log"
    eventually(lambda: "Vertex AI" in log.read_text())
    eventually(lambda: "unknown contract of the platform" in log.read_text())


def test_ignored_parameters_change_nothing(tmp_path: Path) -> None:
    """`parameters: ignore` drops all of them."""
    with container(tmp_path, {}, "ignore") as found:
        status, body = found.predict('{"instances": [[1, 2]], "parameters": {"scale": 10}}')
        assert (200, {"predictions": [3.0]}) == (status, json.loads(body))


def test_the_end_loses_no_call(tmp_path: Path) -> None:
    """Probes are answered while the model is busy; SIGTERM waits for the call in flight."""
    with container(tmp_path, ROUTES) as found, ThreadPoolExecutor(1) as pool:
        call = pool.submit(found.predict, '{"instances": [[-1, 3]]}')
        eventually((tmp_path / "busy").exists)
        assert 200 == found.ask("GET", found.health_route)[0]
        found.process.send_signal(signal.SIGTERM)
        await_refusal(found, found.health_route)
        assert not call.done()
        found.release()
        status, body = call.result()
        assert (200, {"predictions": [2.0]}) == (status, json.loads(body))
        assert 0 == found.process.wait()


def test_artefacts_that_are_not_here_are_named(tmp_path: Path) -> None:
    """Without a configuration, the error names the storage and says what to do."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AIP_STORAGE_URI": "gs://b/m",
    }
    found = gateway("serve", folder=tmp_path, environment=environment)
    assert 2 == found.returncode
    assert "gs://b/m" in found.stderr
    assert "start command" in found.stderr
