"""A container of SageMaker: `gateway serve` with nothing but the environment and the folders of the platform."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_kit import free_port
from tests.integration.container_kit import await_ready, await_refusal
from tests.integration.workers_kit import eventually

pytestmark = pytest.mark.slow

CONFIG = """
version: 1
listeners:
  - http: 127.0.0.1:${env:SAGEMAKER_BIND_TO_PORT:-8080}
    protocols: %(protocols)s
    limits: {message_bytes: 8MiB}
    options: %(options)s
%(default)s
admin: {address: "off", metrics: "off"}
models:
  house: {backend: python, options: {callable: "sagemaker_models:house"}}
%(models)s
policies: {timeout: 58s}
lifecycle: {pre_stop: 0s, drain: 25s}
"""
MODELS = """
import pathlib
import time

import numpy as np

from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.metadata import TensorMetadata

FOLDER = pathlib.Path(__file__).parent


def house(inputs):
    values = inputs["x"]
    if values.size and values[0, 0] == -1:  # until the file is there
        (FOLDER / "busy").touch()
        while not (FOLDER / "go").exists():
            time.sleep(0.005)
    return {"y": values.sum(axis=1)}


house.inputs = (TensorMetadata("x", Datatype.FP32, (-1, -1)),)
house.outputs = (TensorMetadata("y", Datatype.FP32, (-1,)),)


def words(inputs):
    for number in range(int(inputs["n"][0])):
        if number == 3:
            raise ValueError("the third word is broken")
        yield {"word": np.array([number], np.int64)}


words.inputs = (TensorMetadata("n", Datatype.INT64, (-1,)),)
words.outputs = (TensorMetadata("word", Datatype.INT64, (-1,)),)
"""


@dataclass
class Container:
    """A started container.

    Attributes:
        base: Its folder of SageMaker.
        port: The only port.
    """

    process: subprocess.Popen[bytes]
    base: Path
    port: int

    def ask(
        self, method: str, path: str, body: bytes | str = b"", **headers: str
    ) -> tuple[int, bytes, HTTPResponse]:
        """Return status, body and response of a request on a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body or None, names)
            response = connection.getresponse()
            return response.status, response.read(), response
        finally:
            connection.close()

    def invoke(self, body: bytes | str, **headers: str) -> tuple[int, bytes, HTTPResponse]:
        """Return the response to an invocation of JSON, if no other type is given."""
        return self.ask(
            "POST", "/invocations", body, **{"Content_Type": "application/json"} | headers
        )

    def call_in_flight(self, pool: ThreadPoolExecutor) -> Any:
        """Begin an invocation that lasts until `release`, and wait until the model has it."""
        call = pool.submit(self.invoke, '{"instances": [[-1, 3]]}')
        eventually((self.base / "model" / "busy").exists)
        return call

    def release(self) -> None:
        (self.base / "model" / "go").touch()


def environment(base: Path, port: int, **more: str) -> dict[str, str]:
    """Return what the platform sets, and the path of the models."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(base),
        "PYTHONPATH": str(base / "model"),
        "SAGEMAKER_BASE_DIR": str(base),
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{port + 1}-{port + 999}",
        **more,
    }


def artefact(base: Path, **parts: str) -> None:
    """Write a model archive as it is unpacked."""
    values = {"protocols": "[mlflow]", "options": "{}", "default": "", "models": "", **parts}
    (base / "model").mkdir(parents=True)
    (base / "model" / "gateway.yaml").write_text(CONFIG % values)
    (base / "model" / "sagemaker_models.py").write_text(MODELS)


WORDS = {
    "models": '  words: {backend: python, options: {callable: "sagemaker_models:words"}}',
    "default": "    default_model: words",
}


@contextmanager
def container(base: Path, **parts: str) -> Iterator[Container]:
    """Run `gateway serve` alone, until `/ping` is 200."""
    artefact(base, **parts)
    port = free_port()
    with (base / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve"],
            env=environment(base, port),
            cwd="/",
            stdout=log,
            stderr=log,
        )
    found = Container(process, base, port)
    try:
        await_ready(found, "/ping", base / "log")
        yield found
    finally:
        found.release()
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with container(tmp_path_factory.mktemp("house")) as found:
        yield found


def test_the_file_of_the_variable_comes_first(tmp_path: Path) -> None:
    """Without any file, the error names those that it looked for, and the status is 2."""
    artefact(tmp_path / "ml")
    for more, text in (
        ({"GATEWAY_CONFIG": str(tmp_path / "own.yaml")}, "own.yaml"),
        ({"SAGEMAKER_BASE_DIR": str(tmp_path / "none")}, "none/model/gateway.yaml"),
    ):
        found = subprocess.run(
            [sys.executable, "-m", "gateway", "serve"],
            env=environment(tmp_path / "ml", 1) | more,
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 2
        assert text in found.stderr


def test_probes(house: Container) -> None:
    """GET is 200, other methods are 405, and other paths 404."""
    assert house.ask("GET", "/ping")[:2] == (200, b"\n")
    for method in ("POST", "PUT", "DELETE"):
        assert house.ask(method, "/ping")[0] == 405
    assert house.ask("GET", "/invocations")[0] == 405
    assert house.ask("GET", "/other")[0] == 404


def test_the_only_model_is_the_default(house: Container) -> None:
    """The archive needs no other setting."""
    status, body, response = house.invoke('{"instances": [[1, 2], [3, 4]]}')
    assert (status, json.loads(body)) == (200, {"predictions": [3.0, 7.0]})
    assert response.getheader("content-type") == "application/json"


PLATFORM = {
    "Accept": "application/json;verbose",
    "X_Amzn_SageMaker_Custom_Attributes": "trace=1",
    "X_Amzn_SageMaker_Target_Model": "other.tar.gz",
    "X_Amzn_SageMaker_Inference_Id": "caller-7",
    "X_Amzn_SageMaker_Session_Id": "NEW_SESSION",
    "X_Amzn_SageMaker_Target_Variant": "AllTraffic",
    "X_Amzn_SageMaker_Enable_Explanations": "`true`",
    "X_Amzn_SageMaker_Inference_Component": "c",
}


@pytest.mark.parametrize(("body", "status"), [('{"instances": [[1, 2]]}', 200), ("{", 400)])
def test_headers_of_the_platform(house: Container, body: str, status: int) -> None:
    """None disturbs; custom attributes and the id return with success and with errors."""
    found, _, response = house.invoke(body, **PLATFORM)
    assert found == status
    assert response.getheader("X-Amzn-SageMaker-Custom-Attributes") == "trace=1"
    if status == 200:
        assert response.getheader("x-request-id") == "caller-7"


def test_the_largest_body(house: Container) -> None:
    """6,291,456 bytes are read."""
    row = ",".join(["0.5"] * 1024)
    body = f'{{"instances": [{",".join([f"[{row}]"] * 1500)}]}}'
    body += " " * (6_291_456 - len(body))
    status, found, _ = house.invoke(body)
    assert (status, json.loads(found)) == (200, {"predictions": [512.0] * 1500})


def test_multi_model_paths_are_refused_by_name(house: Container) -> None:
    """The text names the setting."""
    status, body, _ = house.ask("POST", "/models", '{"model_name": "m", "url": "/opt/ml/models/m"}')
    assert status == 404
    assert "multi_model" in json.loads(body)["message"]


def test_errors_have_the_place_of_the_value(house: Container) -> None:
    """The platform passes the text on: it has the place of the value."""
    status, body, _ = house.invoke('{"instances": [[1, "q"]]}')
    assert status == 400
    assert "instances[0][1] is 'q'" in json.loads(body)["message"]


def test_nothing_else_listens(house: Container) -> None:
    """The process has one listening socket."""
    inodes = {
        Path(link).readlink().name
        for link in Path(f"/proc/{house.process.pid}/fd").iterdir()
        if link.is_symlink()
    }
    listening = [
        fields.split()
        for name in ("tcp", "tcp6")
        for fields in Path(f"/proc/{house.process.pid}/net/{name}").read_text().splitlines()[1:]
        if fields.split()[3] == "0A"
    ]
    own = [fields for fields in listening if f"socket:[{fields[9]}]" in inodes]
    assert [int(fields[1].rpartition(":")[2], 16) for fields in own] == [house.port]


def test_probes_get_responses_while_the_model_is_busy(tmp_path: Path) -> None:
    """All instances and the queue are full of calls that do not end."""
    with container(tmp_path) as found, ThreadPoolExecutor(40) as pool:
        calls = [found.call_in_flight(pool)]
        calls += [pool.submit(found.invoke, '{"instances": [[-1, 3]]}') for _ in range(30)]
        for _ in range(20):
            assert found.ask("GET", "/ping")[0] == 200
        assert not any(call.done() for call in calls)
        found.release()
        assert {call.result()[0] for call in calls} == {200}


def test_the_end_loses_no_call(tmp_path: Path) -> None:
    """SIGTERM ends the process with status 0, after the call in flight."""
    with container(tmp_path) as found, ThreadPoolExecutor(1) as pool:
        call = found.call_in_flight(pool)
        found.process.send_signal(signal.SIGTERM)
        await_refusal(found, "/ping")
        assert not call.done()
        found.release()
        status, body, _ = call.result()
        assert (status, json.loads(body)) == (200, {"predictions": [2.0]})
        assert found.process.wait() == 0


def test_replies_of_a_decoupled_model_are_chunks(tmp_path: Path) -> None:
    """An error after the first one ends the body before its last chunk."""
    with container(tmp_path, **WORDS) as found:
        status, body, response = found.invoke('{"inputs": [2]}')
        assert (status, response.getheader("content-type")) == (200, "application/jsonlines")
        assert response.getheader("transfer-encoding") == "chunked"
        assert [json.loads(line) for line in body.splitlines()] == [
            {"predictions": [0]},
            {"predictions": [1]},
        ]
        with pytest.raises(IncompleteRead):
            found.invoke('{"inputs": [9]}')
        assert found.ask("GET", "/ping")[0] == 200


def test_open_inference_on_the_paths_of_the_container(tmp_path: Path) -> None:
    """JSON and binary tensors have their own content types, and the model is the default."""
    with container(tmp_path, protocols="[oip]", options="{oip: {sagemaker: true}}") as found:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
        status, body, response = found.invoke(
            json.dumps({"inputs": [{**tensor, "data": [1, 2]}]}),
            X_Amzn_SageMaker_Custom_Attributes="a",
        )
        document = json.loads(body)
        assert (status, document["outputs"][0]["data"]) == (200, [3.0])
        assert document["model_name"] == "house"
        assert response.getheader("X-Amzn-SageMaker-Custom-Attributes") == "a"
        head = json.dumps(
            {
                "inputs": [{**tensor, "parameters": {"binary_data_size": 8}}],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        kind = "application/vnd.sagemaker-triton.binary+json;json-header-size="
        status, body, response = found.invoke(
            head + struct.pack("<2f", 1, 2), Content_Type=f"{kind}{len(head)}"
        )
        given = response.getheader("content-type") or ""
        assert given.startswith(kind)
        size = int(given.removeprefix(kind))
        assert json.loads(body[:size])["outputs"][0]["name"] == "y"
        assert struct.unpack("<f", body[size:]) == (3.0,)
        assert found.invoke(head, Content_Type=kind)[0] == 400
        assert found.ask("POST", "/ping")[0] == 405
        assert found.ask("GET", "/invocations")[0] == 405
