"""The memory of large requests: those that are forwarded while they arrive, and those that wait.

The upstream is in this process and reads nothing at first, so every request stops in the middle,
where it holds the most memory. Resident sizes of the gateway come from `/proc`.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import uvloop

from benchmarks import systems
from benchmarks.progress import Say
from benchmarks.systems import Running

MIB = 1 << 20
PASSED_ON, RECEIVED = "passed on", "received whole"
PASSED, PASSED_BYTES = 8, 16 * MIB
KEPT, KEPT_BYTES = 32, 32 * MIB


_OUTPUT = {"name": "y", "datatype": "INT32", "shape": [1], "data": [7]}
_ANSWER = json.dumps({"model_name": "m", "outputs": [_OUTPUT]}).encode()
_STILL_S = 0.5
_LONGEST_S = 60.0


@dataclass(frozen=True)
class Held:
    """Memory of requests in flight.

    Attributes:
        what: Which requests.
        answered: Requests with status 200.
        refused: Requests with another status, because they waited for memory of each other.
        base_mib: Resident memory of the warm gateway.
        held_mib: Additional memory while all of them were in the middle.
        peak_mib: Additional memory at most, until all were complete.
        allowed_mib: Limit for `peak_mib`.
    """

    what: str
    requests: int
    size_mib: float
    answered: int
    refused: int
    base_mib: float
    held_mib: float
    peak_mib: float
    allowed_mib: float

    @property
    def good(self) -> bool:
        """Whether the peak is within its limit."""
        return self.peak_mib <= self.allowed_mib

    def document(self) -> dict[str, object]:
        """Return the row for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        ends = f"{self.answered} answered, {self.refused} refused"
        sizes = f"{self.base_mib:.1f} MiB before, {self.held_mib:.1f} more when all were caught"
        return (
            f"{self.requests} requests of {self.size_mib:g} MiB {self.what}: {ends}; resident "
            f"{sizes}, {self.peak_mib:.1f} more at most, {self.allowed_mib:g} allowed"
        )


class Upstream:
    """Serves inference requests, and reads their bodies only while `reads` is set."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def port(self) -> int:
        """The port of the upstream."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                remaining = _length(head)
                ready = not remaining
                while remaining:
                    await self.reads.wait()
                    remaining -= len(await _some(reader, remaining))
                body = b'{"ready": true}' if ready else _ANSWER
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


async def _some(reader: asyncio.StreamReader, most: int) -> bytes:
    piece = await reader.read(min(most, 256 * 1024))
    if not piece:
        raise asyncio.IncompleteReadError(b"", most)
    return piece


def run(say: Say) -> list[Held]:
    """Measure both."""
    return uvloop.run(_run(say))


async def _run(say: Say) -> list[Held]:
    async with Upstream() as upstream:
        say(f"  {PASSED} requests of {PASSED_BYTES // MIB} MiB, passed on as they come")
        with _gateway(upstream.port, {}) as running:
            passed = await _measured(upstream, running, PASSED_ON, PASSED, PASSED_BYTES, PASSED)
        say(f"  {KEPT} requests of {KEPT_BYTES // MIB} MiB, received whole")
        limits: dict[str, object] = {"cut_through_bytes": 0}
        budget = 512
        with _gateway(upstream.port, limits) as running:
            # A buffer for each upstream connection and for the server, and free memory of the heap.
            allowed = budget + 32
            received_row = await _measured(upstream, running, RECEIVED, KEPT, KEPT_BYTES, allowed)
    return [passed, received_row]


@contextmanager
def _gateway(port: int, limits: dict[str, object]) -> Iterator[Running]:
    server = {"url": f"oip+http://127.0.0.1:{port}", "options": {"dialect": "unknown"}}
    sections = {"upstreams": {"server": server}, "in_flight_bytes": "512MiB"}
    with ExitStack() as stack:
        yield stack.enter_context(systems.serving(sections, "native", limits))


async def _measured(
    upstream: Upstream, running: Running, what: str, requests: int, size: int, allowed_mib: float
) -> Held:
    large = message(size)
    small = message(1024)
    warm = [
        asyncio.ensure_future(request_status(running.http_port, small)) for _ in range(requests)
    ]
    assert {200} == set(await asyncio.gather(*warm))
    base = status(running.pid, "VmRSS")
    _forget_peak(running.pid)
    upstream.reads.clear()
    asking = [
        asyncio.ensure_future(request_status(running.http_port, large)) for _ in range(requests)
    ]
    held_bytes = await resident_at_rest(running.pid)
    upstream.reads.set()
    async with asyncio.timeout(_LONGEST_S):
        statuses = await asyncio.gather(*asking)
    return Held(
        what=what,
        requests=requests,
        size_mib=size / MIB,
        answered=statuses.count(200),
        refused=requests - statuses.count(200),
        base_mib=base / MIB,
        held_mib=(held_bytes - base) / MIB,
        peak_mib=(status(running.pid, "VmHWM") - base) / MIB,
        allowed_mib=allowed_mib,
    )


def message(size: int, model: str = "m") -> tuple[bytes, bytes]:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, size // 4]}
    text = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]}).encode()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: h\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\n"
        f"Content-Length: {len(text) + size}\r\n\r\n"
    )
    return head.encode() + text, bytes(size)


async def request_status(port: int, request: tuple[bytes, bytes]) -> int:
    """Send a request on its own connection and return the status of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.writelines(request)
        return int((await reader.readuntil(b"\r\n")).split()[1])
    finally:
        writer.transport.abort()


async def resident_at_rest(pid: int) -> int:
    """Return the resident size when it stops growing."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _LONGEST_S
    before = -1
    while (now := status(pid, "VmRSS")) != before and loop.time() < end:
        before = now
        await asyncio.sleep(_STILL_S)
    return now


def status(pid: int, key: str) -> int:
    """Return a size of /proc/PID/status in bytes: VmRSS is the current one, VmHWM the peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    raise KeyError(key)


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
