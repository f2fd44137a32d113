"""Shared by the tests of workers: a gateway of two, the state of each, and clients of either."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import grpc

from gateway.schema import open_inference_pb2 as pb
from tests.integration.cli_kit import Running, serving

T = TypeVar("T")

CONFIG = """
version: 1
workers: 2
listeners:
  - http: "127.0.0.1:{port}"
    grpc: "127.0.0.1:0"
    streams: [{{protocol: grps, address: "unix:{folder}/g.sock"}}]
    transport: {transport}
admin: {{address: "127.0.0.1:0", metrics: null}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
{more}
lifecycle: {{pre_stop: 0s, drain: 5s}}
"""
ROW = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
BODY = json.dumps({"inputs": [{"name": f"INPUT{number}", **ROW} for number in range(2)]})
# Three processes take their time where others are busy too.
PATIENCE_S = 45.0
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_REQUEST = pb.ModelInferRequest(
    model_name="simple",
    inputs=[
        pb.ModelInferRequest.InferInputTensor(
            name=f"INPUT{number}", datatype="INT32", shape=[1, 16]
        )
        for number in range(2)
    ],
    raw_input_contents=[struct.pack("<16i", *range(16))] * 2,
).SerializeToString()
_SAMPLE = re.compile(r'^gateway_(worker_\w+)\{worker="(\d)"\} (\S+)$', re.MULTILINE)
_IN_FLIGHT = re.compile(r"^gateway_in_flight_bytes (\S+)$", re.MULTILINE)
_CALLS = re.compile(r"^gateway_requests_total\{.*\} (\S+)$", re.MULTILINE)


@contextmanager
def two_workers(
    folder: Path, *flags: str, transport: str = "native", more: str = ""
) -> Iterator[Running]:
    """Run a gateway of two workers, by the file or by *flags*; both share g.sock in *folder*."""
    path = folder / "workers.yaml"
    text = CONFIG.format(folder=folder, port=0, transport=transport, more=more)
    path.write_text(text.replace("workers: 2", "workers: 1") if flags else text)
    with serving(str(path), *flags, patience_s=PATIENCE_S) as running:
        yield running


def ask(connection: HTTPConnection, model: str = "simple", body: str = BODY) -> int:
    """Send one inference and return the response's status."""
    connection.request("POST", f"/v2/models/{model}/infer", body)
    response = connection.getresponse()
    response.read()
    return response.status


def connect(running: Addressed) -> HTTPConnection:
    """Return a connection to whichever worker the kernel chooses."""
    return HTTPConnection(running.addresses["main.http"], timeout=PATIENCE_S)


def metrics(running: Running) -> str:
    """Return the metrics of all."""
    with closing(HTTPConnection(running.addresses["admin"], timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def of_workers(running: Running, name: str) -> dict[int, float]:
    """Return one of the metrics that each worker has, by its number."""
    found = _SAMPLE.findall(metrics(running))
    return {int(worker): float(value) for metric, worker, value in found if metric == name}


def calls(running: Running) -> float:
    """Return the number of calls with a reply."""
    return sum(float(value) for value in _CALLS.findall(metrics(running)))


def in_flight(running: Running) -> float:
    """Return the bytes of requests that the workers hold."""
    (found,) = _IN_FLIGHT.findall(metrics(running))
    return float(found)


def ask_slowly(running: Running, connection: HTTPConnection) -> None:
    """Send a request that takes its time, and wait until a worker has it."""
    before = in_flight(running)
    connection.request("POST", "/v2/models/slow/infer", BODY)
    eventually(lambda: in_flight(running) > before)


def connected_to(running: Running, worker: int) -> HTTPConnection:
    """Return a connection to one of the workers, found by what it counts."""
    for _ in range(100):
        before = of_workers(running, "worker_requests_total")
        connection = connect(running)
        assert ask(connection) == 200
        after = of_workers(running, "worker_requests_total")
        if after[worker] > before[worker]:
            return connection
        connection.close()
    raise AssertionError(f"the kernel gives worker {worker} no connection")


_LOGGED_WITHIN_S = 20.0


def pids(running: Running) -> dict[int, int]:
    """Return the process ids of the workers, by the last lines of the log."""
    lines = [json.loads(line) for line in list(running.log) if line.startswith("{")]
    return {line["worker"]: line["pid"] for line in lines if line["event"] == "worker started"}


def events(running: Running, name: str) -> list[dict[str, Any]]:
    """Return the log's lines of one kind; a line is written a moment after its event."""
    end = time.monotonic() + _LOGGED_WITHIN_S
    while True:
        lines = [json.loads(line) for line in list(running.log) if line.startswith("{")]
        found = [line for line in lines if line["event"] == name]
        if found or time.monotonic() >= end:
            return found
        time.sleep(0.01)


def eventually(found: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Return the first true result of *found*, which another process or thread makes true."""
    end = time.monotonic() + patience_s
    while not (result := found()):
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.01)
    return result


def read_when_stable(path: Path) -> int:
    """Return a number in a file once it has not changed for half a second."""
    until = time.monotonic() + PATIENCE_S
    seen, since = "", time.monotonic()
    while not seen or time.monotonic() - since < 0.5:
        assert time.monotonic() < until, f"the model never stops: {seen}"
        time.sleep(0.02)
        found = path.read_text() or seen
        if found != seen:
            seen, since = found, time.monotonic()
    return int(seen)


def is_alive(pid: int) -> bool:
    """Return whether there is such a process, and not only its remains."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def end(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that the gateway started."""
    os.kill(pid, number)


class Addressed(Protocol):
    """What has addresses of servers by name: a gateway, or a balancer before several."""

    addresses: dict[str, str]


class Load:
    """Clients that send one inference after another, each on a thread.

    Args:
        running: The gateway.
        clients: The number of clients.
        keep: Keep one connection as long as it lasts; else each request has its own.
        grpc: Over gRPC; else over HTTP.
    """

    def __init__(
        self, running: Addressed, clients: int = 4, *, keep: bool = True, grpc: bool = False
    ) -> None:
        self._running = running
        self._keep = keep
        self._over = threading.Event()
        target = self._ask_grpc if grpc else self._ask
        self._threads = [threading.Thread(target=target) for _ in range(clients)]
        self.answered = 0
        self.lost: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask_grpc(self) -> None:
        while not self._over.is_set():
            # Channels of one process would share a connection.
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(self._running.addresses["main.grpc"], options) as channel:
                call = channel.unary_unary(_INFER)
                while not self._over.is_set():
                    try:
                        call(_REQUEST, timeout=PATIENCE_S)
                        self.answered += 1
                    except grpc.RpcError as error:
                        self.lost.append(str(error.code()))
                    if not self._keep:
                        break

    def _ask(self) -> None:
        connection = connect(self._running)
        while not self._over.is_set():
            try:
                status = ask(connection)
            except (OSError, HTTPException) as error:
                self.lost.append(repr(error))
                connection.close()
                continue
            if status != 200:
                self.lost.append(str(status))
            self.answered += 1
            if not self._keep:
                connection.close()
        connection.close()
