"""A rolling load before three servers: no call fails, and a bad version stops at the first."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from tests.integration.cli_kit import Running, gateway, get, serving
from tests.unit.migration.replay.test_replay import calls_of, request

LOAD_S = 0.2


class Handler(BaseHTTPRequestHandler):
    """The Open Inference Protocol with one model, whose versions a load exchanges."""

    protocol_version = "HTTP/1.1"
    server: OneModelServer

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Reply to metadata and readiness."""
        tensor = {"datatype": "FP32", "shape": [1]}
        if self.path == "/v2/models/m":
            inputs, outputs = [{"name": "x", **tensor}], [{"name": "y", **tensor}]
            self.reply({"name": "m", "platform": "", "inputs": inputs, "outputs": outputs})
        else:
            self.reply({"name": "server", "version": "1", "extensions": [], "ready": True})

    def do_POST(self) -> None:
        """Infer, or load the next version."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        found = self.server
        if self.path.endswith("/load"):
            found.is_loading = True
            time.sleep(LOAD_S)
            found.is_loading = False
            found.version, found.loads = found.next, found.loads + 1
            self.reply({})
            return
        if found.is_loading:
            found.faults.append("a call while it loads")
        size = self.headers.get("inference-header-content-length")
        if size is None:
            value = json.loads(body)["inputs"][0]["data"][0]
        else:  # the elements are binary
            (value,) = struct.unpack("<f", body[int(size) :])
        output = {"name": "y", "datatype": "FP32", "shape": [1]}
        outputs = [{**output, "data": [value + (found.version == "bad")]}]
        self.reply({"model_name": "m", "model_version": "1", "outputs": outputs})

    def reply(self, document: dict[str, Any]) -> None:
        """Send a document."""
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class OneModelServer(ThreadingHTTPServer):
    """A server, its version of the model, and what a load brings."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.version, self.next, self.loads = "old", "good", 0
        self.is_loading = False
        self.faults: list[str] = []


@pytest.fixture
def servers() -> Iterator[list[OneModelServer]]:
    """Run three servers."""
    found = [OneModelServer() for _ in range(3)]
    threads = [threading.Thread(target=each.serve_forever) for each in found]
    for thread in threads:
        thread.start()
    yield found
    for each, thread in zip(found, threads, strict=True):
        each.shutdown()
        thread.join()
        each.server_close()


@contextmanager
def before(servers: list[OneModelServer], folder: Path) -> Iterator[Running]:
    """Run a gateway before the servers, which has recorded calls of the model."""
    calls_of(folder / "capture", *(request(number) for number in range(20)))
    upstream = {
        "urls": [f"oip+http://127.0.0.1:{each.server_port}" for each in servers],
        "rolling_load": {"warm_up": {"capture": "capture", "calls": 10}},
    }
    config = {
        "version": 1,
        "listeners": [{"http": "127.0.0.1:0", "options": {"oip": {"model_control": True}}}],
        "admin": {"address": "127.0.0.1:0", "metrics": None},
        "upstreams": {"servers": upstream},
        "lifecycle": {"pre_stop": "0s"},
    }
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(config))
    with serving(str(file)) as found:
        yield found


class Traffic:
    """Clients that call the model until they are stopped."""

    def __init__(self, gateway: Running, clients: int = 4) -> None:
        self.values: list[float] = []
        self.failures: list[str] = []
        self._url = gateway.url("/v2/models/m/infer")
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            status, document = get(self._url, {"inputs": [INPUT]})
            if status == 200:
                self.values.append(document["outputs"][0]["data"][0])
            else:
                self.failures.append(f"{status}: {document}")


INPUT = {"name": "x", "datatype": "FP32", "shape": [1], "data": [7.0]}


def load(gateway: Running) -> tuple[int, Any]:
    """Load the model as a client does; return the status and the reply."""
    return get(gateway.url("/v2/repository/models/m/load"), {})


def states(gateway: Running) -> list[str]:
    """Return the states of the endpoints that the metric shows."""
    connection = HTTPConnection(gateway.addresses["admin"], timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    found = [line for line in lines if line.startswith("gateway_rolling_load{")]
    return sorted(line.split('state="')[1].split('"')[0] for line in found if line.endswith(" 1.0"))


def test_a_good_version_reaches_all_endpoints_under_load(
    servers: list[OneModelServer], tmp_path: Path
) -> None:
    """No call fails, and none meets a server that loads."""
    with before(servers, tmp_path) as found:
        with Traffic(found) as traffic:
            done = gateway("models", found.url("").replace("http", "oip+http"), "--load", "m")
            assert (0, "m is loaded\n") == (done.returncode, done.stdout), done.stderr
        assert ["ready"] * 3 == states(found)
    assert [] == traffic.failures
    assert {7.0} == set(traffic.values)
    assert ["good"] * 3 == [each.version for each in servers]
    assert [] == [fault for each in servers for fault in each.faults]


def test_a_bad_version_stops_at_the_first_endpoint(
    servers: list[OneModelServer], tmp_path: Path
) -> None:
    """No client gets a reply of it, and the request has the reason."""
    for each in servers:
        each.next = "bad"
    with before(servers, tmp_path) as found:
        with Traffic(found) as traffic:
            status, reply = load(found)
            assert 503 == status
            assert "stopped at endpoint 1 of 3" in reply["error"]
            assert "mismatch 100.00%" in reply["error"]
        assert ["failed"] == states(found)
        later = get(found.url("/v2/models/m/infer"), {"inputs": [INPUT]})
        assert 7.0 == later[1]["outputs"][0]["data"][0]
    assert [] == traffic.failures
    assert {7.0} == set(traffic.values)
    assert [1, 0, 0] == sorted((each.loads for each in servers), reverse=True)


def test_a_migration_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """`gateway validate` finds it before a load does."""
    upstream = {
        "urls": ["http://127.0.0.1:1", "http://127.0.0.1:2"],
        "rolling_load": {"warm_up": {"capture": "c"}, "compare": "fraud"},
    }
    config = {"version": 1, "listeners": [{"http": "127.0.0.1:0"}], "upstreams": {"u": upstream}}
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps(config))
    done = gateway("validate", str(file))
    assert 0 != done.returncode
    assert "unknown migration 'fraud'" in done.stdout + done.stderr
