"""A real server that tests may kill, innocent requests to it, and a bystander who sends them.

A test hurts the server directly first, revives it, and then sends the same through a gateway, where
neither the server nor the bystander may notice anything.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc

from gateway.schema import open_inference_pb2 as pb
from tests.integration.workers_kit import eventually
from tests.interop.servers.process import Prepare, RunningServer, free_ports, start, stop
from tests.scheduling import delayed_s

INNOCENT_TIMEOUT_S = 5.0
INTERVAL_S = 0.1
BLOCKED_S = 0.25
"""A wait of this length shows that a server is blocked: its usual wait is a few milliseconds."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Innocent:
    """A request with one FP32 or INT32 input of *values*, which the model *name* answers as given.

    Attributes:
        name: Of the model.
        datatype: Of its one input, INPUT0, and its one output, OUTPUT0.
        shape: Of both.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    def by_http(self, address: str, timeout_s: float = INNOCENT_TIMEOUT_S) -> None:
        """Send it to "host:port" and check the answer. Raises AssertionError, OSError."""
        tensor = {"name": "INPUT0", "datatype": self.datatype, "shape": self.shape}
        body = json.dumps({"inputs": [{**tensor, "data": [1, 2, 3, 4]}]})
        path = f"/v2/models/{self.name}/infer"
        # KServe reads a body of no type as binary.
        headers = {"Content-Type": "application/json"}
        status, text = post(address, path, body.encode(), timeout_s, headers)
        assert status == 200, text[:300]
        assert json.loads(text)["outputs"][0]["data"] == [1, 2, 3, 4]

    def by_grpc(self, address: str, timeout_s: float = INNOCENT_TIMEOUT_S) -> None:
        """Send it as gRPC. Raises AssertionError, grpc.RpcError."""
        request = pb.ModelInferRequest(model_name=self.name)
        request.inputs.add(name="INPUT0", datatype=self.datatype, shape=self.shape)
        raw = b"".join(
            number.to_bytes(4, "little") if self.datatype == "INT32" else _FLOATS[number]
            for number in (1, 2, 3, 4)
        )
        request.raw_input_contents.append(raw)
        with channel(address) as opened:
            answer = infer_method(opened)(request, timeout=timeout_s)
        if answer.raw_output_contents:
            assert answer.raw_output_contents[0] == raw
        else:
            contents = answer.outputs[0].contents
            found = contents.int_contents or contents.fp32_contents
            assert list(found) == [1, 2, 3, 4]


_FLOATS = {1: b"\0\0\x80?", 2: b"\0\0\0@", 3: b"\0\0@@", 4: b"\0\0\x80@"}


class Sacrifice:
    """A server that is started again, on the same ports, whenever it was hurt."""

    def __init__(self, name: str, prepare: Prepare, folder: Path, innocent: Innocent) -> None:
        self._name = name
        self._prepare = prepare
        self._folder = folder
        self._ports = free_ports()
        self._numbers = itertools.count(1)
        self.innocent = innocent
        self.server: RunningServer = self._start()

    @property
    def metrics_address(self) -> str:
        """Return "host:port" of its metrics, where it has a port for them."""
        return f"127.0.0.1:{self._ports.metrics}"

    def is_hurt(self) -> bool:
        """Tell whether it has ended, or does not answer an innocent request right."""
        if self.server.process.poll() is not None:
            return True
        try:
            self.innocent.by_http(self.server.http_address)
            self.innocent.by_grpc(self.server.grpc_address)
        except (AssertionError, OSError, http.client.HTTPException, grpc.RpcError):
            return True
        return False

    def is_hurt_soon(self, wait_s: float = 15.0) -> bool:
        """Tell whether it is hurt within *wait_s*: a process may take a while to end."""
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            if self.is_hurt():
                return True
            time.sleep(0.2)
        return False

    def revive(self) -> None:
        """Start it again if it is hurt."""
        if self.is_hurt():
            self.restart()

    def restart(self) -> None:
        """Stop it, if it has not ended, and start it again."""
        self.close()
        self.server = self._start()

    def cpu_seconds(self) -> float:
        """Return the CPU time that its process has taken."""
        fields = Path(f"/proc/{self.server.process.pid}/stat").read_text().rpartition(")")[2]
        return sum(map(int, fields.split()[11:13])) / _TICKS_PER_S

    def peak_bytes(self) -> int:
        """Return the most memory that its process has had."""
        lines = Path(f"/proc/{self.server.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

    def close(self) -> None:
        """Stop it; harmless when it has ended."""
        self.server.process.kill()  # one that hangs takes its whole time to end
        stop(self.server.process)

    def _start(self) -> RunningServer:
        folder = self._folder / f"life-{next(self._numbers)}"
        return start(self._name, self._prepare, folder, self._ports)


@dataclass
class Bystander:
    """Somebody who sends an innocent request every 100 ms.

    Attributes:
        worst_s: The longest wait for an answer, without the time when there was no processor.
        failures: What went wrong, in words.
    """

    worst_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    count: int = 0

    def await_requests(self, count: int = 3) -> None:
        """Wait until so many requests have ended."""
        eventually(lambda: self.count >= count)


@contextmanager
def bystander(send: Callable[[str], None], address: str, *processes: int) -> Iterator[Bystander]:
    """Call *send* with *address* every 100 ms until the block ends.

    Args:
        send: Sends a request and checks the reply.
        address: "host:port".
        processes: Those that reply; the time for which they had no processor does not count.
    """
    seen, leave = Bystander(), threading.Event()

    def run() -> None:
        while not leave.wait(INTERVAL_S):
            delayed, started_s = delayed_s(*processes), time.monotonic()
            try:
                send(address)
            except (AssertionError, OSError, http.client.HTTPException, grpc.RpcError) as error:
                seen.failures.append(repr(error))
            seen.count += 1
            waited_s = time.monotonic() - started_s
            seen.worst_s = max(seen.worst_s, waited_s - max(0.0, delayed_s(*processes) - delayed))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        leave.set()
        thread.join()


def post(
    address: str,
    path: str,
    body: bytes,
    timeout_s: float = 20.0,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, bytes]:
    """POST *body* and return status and body of the answer."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    with contextlib.closing(connection):
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@contextmanager
def channel(address: str) -> Iterator[grpc.Channel]:
    """Open a channel of its own, which no other call has broken."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as opened:
        yield opened


def infer_method(opened: grpc.Channel) -> Any:
    """Return what sends a ModelInferRequest."""
    return opened.unary_unary(
        INFER,
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )


def stream_method(opened: grpc.Channel) -> Any:
    """Return what opens a ModelStreamInfer."""
    return opened.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )
