"""What recording costs the calls of clients: latency at half load, with and without a capture.

Two gateways run beside each other, and take turns of two seconds: one records 10 % of the calls
with all elements. Requests are open loop: each has its time, from which its latency counts. The
99th percentile of a turn varies by some percent, so there are many pairs of turns, and the median
of their ratios counts.
"""

import asyncio
import itertools
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import uvloop

from benchmarks import messages, systems
from benchmarks.processes import cores, cpu_seconds
from benchmarks.progress import Say

_CONNECTIONS = 8
_TURN_S = 2.0
_PAIRS = 24
_LOAD = 0.5
_PERCENT = 10


@dataclass
class Side:
    """One gateway and what its turns showed.

    Attributes:
        p99_s: The 99th percentile of each turn.
        cpu_s: CPU time of its processes for each request of a turn.
    """

    running: systems.Running
    p99_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def measure(say: Say) -> tuple[float, float]:
    """Return the 99th percentile and the CPU time relative to no capture, medians over pairs."""
    case = messages.small()
    request = _request(case)
    with tempfile.TemporaryDirectory(dir=".") as name, ExitStack() as stack:
        capture = {
            "directory": str(Path(name).resolve() / "capture"),
            "percent": _PERCENT,
            "payload": "full",
            "min_free": 0,
        }
        server = stack.enter_context(
            systems.canned("http", messages.binary_reply(case), cores()[1])
        )
        plain, recording = [
            Side(
                stack.enter_context(
                    systems.gateway("http", server.http_port, sections=sections, anywhere=True)
                )
            )
            for sections in ({}, {"capture": capture})
        ]
        saturated = uvloop.run(_closed_loop(plain.running.http_port, request))
        say(f"  recording {_PERCENT} % at {saturated * _LOAD:,.0f} calls/s")
        for number in range(_PAIRS):
            # The other one begins next time: a machine that becomes faster favours neither.
            for side in (plain, recording) if number % 2 else (recording, plain):
                _turn(side, request, saturated * _LOAD)
    p99 = _ratios(recording.p99_s, plain.p99_s)
    lowest, middle, highest = quantiles(p99, n=4)
    say(f"  99th percentile of half of the pairs: {lowest:.3f} to {highest:.3f} times that without")
    return middle, median(_ratios(recording.cpu_s, plain.cpu_s))


def _ratios(above: list[float], below: list[float]) -> list[float]:
    return [one / other for one, other in zip(above, below, strict=True)]


def _request(case: messages.Case) -> bytes:
    message = messages.binary_request(case)
    fields = "".join(f"{name}: {value}\r\n" for name, value in message.fields)
    head = (
        f"POST /v2/models/{case.model}/infer HTTP/1.1\r\nHost: x\r\n{fields}"
        f"Content-Length: {len(message.body)}\r\n\r\n"
    )
    return head.encode() + message.body


def _turn(side: Side, request: bytes, rate: float) -> None:
    cpu = cpu_seconds(side.running.pid)
    latencies = uvloop.run(_open_loop(side.running.http_port, request, rate))
    side.cpu_s.append((cpu_seconds(side.running.pid) - cpu) / len(latencies))
    side.p99_s.append(sorted(latencies)[len(latencies) * 99 // 100])


async def _closed_loop(port: int, request: bytes) -> float:
    """Return the calls per second of `_CONNECTIONS` that always wait for one response."""
    end = time.perf_counter() + _TURN_S

    async def ask() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 0
        while time.perf_counter() < end:
            await _exchange(reader, writer, request)
            count += 1
        writer.close()
        return count

    return sum(await asyncio.gather(*(ask() for _ in range(_CONNECTIONS)))) / _TURN_S


async def _open_loop(port: int, request: bytes, rate: float) -> list[float]:
    """Return the latency of each request, from the time at which it is due."""
    latencies: list[float] = []
    numbers = itertools.count()
    started_s = time.perf_counter()

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (due := started_s + next(numbers) / rate) < started_s + _TURN_S:
            delay = due - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            await _exchange(reader, writer, request)
            latencies.append(time.perf_counter() - due)
        writer.close()

    await asyncio.gather(*(ask() for _ in range(_CONNECTIONS)))
    return latencies


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> None:
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(f"the gateway replied {head[:100]!r}")
    length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
