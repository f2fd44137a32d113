"""Calls whose clients leave, or whose deadlines pass, before a real Triton over gRPC.

Directly, they end it. Through the gateway they end by themselves, and no client waits longer for that.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import json
import random
import re
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from gateway.schema import open_inference_pb2 as pb
from gateway.transports.http2.frames import HEAD_BYTES, PREFACE, RST_STREAM
from tests.hostile.process import eventually
from tests.integration.cli_kit import Running
from tests.interop.attacks import (
    FP32,
    INNOCENT,
    MOST_WAIT_S,
    READY_S,
    addresses,
    await_ready,
    infer_request,
    json_body,
    row,
    unharmed,
)
from tests.interop.gateways import FREE_PORTS, serving
from tests.interop.sacrifice import INFER, Sacrifice, bystander
from tests.scheduling import delayed_s

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
FEW, MANY = 2000, 20_000
LONGEST_STAY_S = 0.004
"""A client leaves within this time, while a call takes about 1 ms."""

WARM_UP_S = 0.5
"""The first client of a storm leaves after this time, when it has connected."""

NOTE_S = 0.05

Leave = Callable[[float], Awaitable[None]]
"""Sends a call, and leaves or is answered after so many seconds."""

REQUEST = infer_request("identity_fp32", "FP32", (1, 4), bytes(16))
BODY = json_body("FP32", [1, 4], [1, 2, 3, 4])


@asynccontextmanager
async def cancelling(address: str) -> AsyncIterator[Leave]:
    """Cancel gRPC calls."""
    async with _method(address) as method:

        async def leave(after_s: float) -> None:
            call = method(REQUEST, timeout=20)
            await asyncio.sleep(after_s)
            call.cancel()
            with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
                await call

        yield leave


@asynccontextmanager
async def leaving(address: str) -> AsyncIterator[Leave]:
    """Leave streams, some of which have had a reply."""
    async with grpc.aio.insecure_channel(address) as connected:
        method = connected.stream_stream(
            STREAM_INFER, request_serializer=pb.ModelInferRequest.SerializeToString
        )

        async def leave(after_s: float) -> None:
            call = method(timeout=20)
            with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
                await call.write(REQUEST)
                await asyncio.sleep(after_s)
                call.cancel()
                async for _ in call:
                    pass

        yield leave


@asynccontextmanager
async def passing(address: str) -> AsyncIterator[Leave]:
    """Let the deadlines of gRPC calls pass."""
    async with _method(address) as method:

        async def leave(after_s: float) -> None:
            with contextlib.suppress(grpc.RpcError):
                await method(REQUEST, timeout=after_s)

        yield leave


@asynccontextmanager
async def passing_http(address: str) -> AsyncIterator[Leave]:
    """Let the deadlines of HTTP requests pass; the gateway itself replies to them."""
    host, _, port = address.rpartition(":")
    head = f"POST {FP32} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\nX-Request-Timeout: "
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def leave(after_s: float) -> None:
        reader, writer = idle.pop() if idle else await asyncio.open_connection(host, int(port))
        writer.write(f"{head}{after_s * 1e6:.0f}us\r\n\r\n".encode() + BODY)
        found = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", found, re.IGNORECASE)
        assert found[9:12] in {b"200", b"504"}, found
        assert length is not None
        await reader.readexactly(int(length[1]))
        idle.append((reader, writer))

    yield leave
    for _, writer in idle:
        writer.close()


@asynccontextmanager
async def _method(address: str) -> AsyncIterator[grpc.aio.UnaryUnaryMultiCallable[object, object]]:
    async with grpc.aio.insecure_channel(address) as connected:
        yield connected.unary_unary(
            INFER, request_serializer=pb.ModelInferRequest.SerializeToString
        )


Storm = Callable[[str], contextlib.AbstractAsyncContextManager[Leave]]


class Relay:
    """Stands between a gateway and Triton, on a thread of its own, and counts cancellations.

    Args:
        server: The address of Triton.

    Attributes:
        address: Where it listens.
        frames: Those that it has forwarded to Triton.
        resets: How many of them end a call, RST_STREAM.
    """

    def __init__(self, server: str) -> None:
        self._host, _, port = server.rpartition(":")
        self._port = int(port)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.frames = self.resets = 0
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = self._loop.run_until_complete(listening)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def close(self) -> None:
        """End all connections, and the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(READY_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.closing(writer), contextlib.suppress(OSError, EOFError):
            behind, ahead = await asyncio.open_connection(self._host, self._port)
            with contextlib.closing(ahead):
                back = asyncio.create_task(_copy(behind, writer))
                try:
                    await self._forward(reader, ahead)
                finally:
                    back.cancel()
        self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, ahead: asyncio.StreamWriter) -> None:
        ahead.write(await reader.readexactly(len(PREFACE)))
        while True:
            head = await reader.readexactly(HEAD_BYTES)
            ahead.write(head + await reader.readexactly(int.from_bytes(head[:3])))
            self.frames += 1
            self.resets += head[3] == RST_STREAM


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward bytes to the end of one side, and end the other."""
    with contextlib.closing(writer), contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)


class Delays:
    """For how long the processes of a storm had no processor, noted every 50 ms.

    Args:
        processes: Besides this one.
    """

    def __init__(self, *processes: int) -> None:
        self._processes = processes
        self._times: list[float] = []
        self._delays: list[float] = []

    def note(self) -> None:
        """Note the time and the delays until now."""
        self._delays.append(delayed_s(*self._processes))
        self._times.append(time.monotonic())

    async def watch(self) -> None:
        """Note them until this is cancelled."""
        while True:
            self.note()
            await asyncio.sleep(NOTE_S)

    def between(self, start: float, end: float) -> float:
        """Return the delays between the notes around two times."""
        first = max(0, bisect.bisect(self._times, start) - 1)
        last = min(len(self._times) - 1, bisect.bisect(self._times, end))
        return max(0.0, self._delays[last] - self._delays[first])


def run(
    storm: Storm, address: str, count: int, at_once: int, *processes: int
) -> tuple[list[float], float]:
    """Send *count* calls whose clients leave.

    Returns:
        How long each then waited, in seconds and in order. The longest, without the time for which
        *processes* and this one had no processor.
    """
    randomly = random.Random(1)  # noqa: S311  # delays of a test
    waits: list[tuple[float, float]] = []
    delays = Delays(*processes)

    async def main() -> None:
        remaining = count
        async with storm(address) as leave:
            await leave(WARM_UP_S)

            async def one() -> None:
                nonlocal remaining
                while remaining > 0:
                    remaining -= 1
                    after_s = max(1e-5, randomly.random() * LONGEST_STAY_S)
                    started_s = time.monotonic()
                    await leave(after_s)
                    waits.append((started_s, max(0.0, time.monotonic() - started_s - after_s)))

            watching = asyncio.create_task(delays.watch())
            await asyncio.gather(*(one() for _ in range(at_once)))
            watching.cancel()

    asyncio.run(main())
    delays.note()
    longest_s = max(
        waited_s - delays.between(started_s, started_s + waited_s + LONGEST_STAY_S)
        for started_s, waited_s in waits
    )
    return sorted(waited_s for _, waited_s in waits), longest_s


@pytest.fixture(scope="module")
def relay(sacrifice: Sacrifice) -> Iterator[Relay]:
    """Stand before Triton."""
    found = Relay(sacrifice.server.grpc_address)
    yield found
    found.close()


@pytest.fixture(scope="module")
def gateway(relay: Relay) -> Iterator[Running]:
    """Run a gateway with default settings."""
    with serving("--upstream", f"oip+grpc://{relay.address}", *FREE_PORTS) as running:
        yield running


def end_triton(sacrifice: Sacrifice) -> None:
    """Cancel calls directly until Triton ends, and start it again."""
    sacrifice.revive()
    for _ in range(20):
        run(cancelling, sacrifice.server.grpc_address, FEW, 4)
        if sacrifice.is_hurt():
            break
    assert sacrifice.is_hurt_soon(), "this Triton is not hurt: check its version"
    sacrifice.restart()


def check_storm(
    sacrifice: Sacrifice, relay: Relay, gateway: Running, storm: Storm, count: int, at_once: int
) -> str:
    """Check that a storm harms no other client, and cancels no call of Triton's; return the waits."""
    await_ready(gateway)
    frames, resets = relay.frames, relay.resets
    http_address, grpc_address = addresses(gateway)
    address = http_address if storm is passing_http else grpc_address
    processes = gateway.process.pid, sacrifice.server.process.pid
    with bystander(INNOCENT.by_http, http_address, *processes) as seen:
        waits, longest_s = run(storm, address, count, at_once, *processes)
    assert longest_s < MOST_WAIT_S
    unharmed(sacrifice, gateway, seen)
    _await_rest(gateway)
    assert relay.frames > frames
    assert resets == relay.resets
    return (
        f"{storm.__name__}, {at_once} at once: {len(waits)} calls, ended after their cancellation in "
        f"{waits[len(waits) // 2] * 1e3:.1f} ms (median), {waits[-len(waits) // 1000] * 1e3:.1f} ms "
        f"(99.9 %), {waits[-1] * 1e3:.1f} ms (longest); bystander {seen.worst_s * 1e3:.0f} ms"
    )


@row("cancelled_calls")
def test_cancelled_calls_do_not_end_triton(
    sacrifice: Sacrifice, relay: Relay, gateway: Running
) -> None:
    """Sent directly, cancelled calls end Triton; the gateway withholds cancellations."""
    end_triton(sacrifice)
    for storm in (cancelling, leaving, passing, passing_http):
        for at_once in (4, 32):
            check_storm(sacrifice, relay, gateway, storm, FEW, at_once)
    assert "server 7368, 8034" in _page(gateway, "/status")
    withheld = r"^gateway_upstream_withheld_cancellations_total\S* [1-9]"
    assert re.search(withheld, _page(gateway, "/metrics"), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [4, 32])
@pytest.mark.parametrize("storm", [cancelling, leaving, passing, passing_http])
def test_triton_survives_20000_cancelled_calls(
    sacrifice: Sacrifice,
    relay: Relay,
    gateway: Running,
    storm: Storm,
    at_once: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints how long the clients waited."""
    sacrifice.revive()
    found = check_storm(sacrifice, relay, gateway, storm, MANY, at_once)
    with capsys.disabled():
        print(f"\n{found}")


def _await_rest(gateway: Running) -> None:
    """Wait until nothing is in flight any more, by the metrics and the status."""
    assert eventually(lambda: not _in_flight(gateway), READY_S), _in_flight(gateway)


def _in_flight(gateway: Running) -> list[str]:
    """Return the gauges that are not zero although no request is in flight."""
    names = "gateway_in_flight_bytes|gateway_route_in_flight|gateway_route_queued"
    pattern = rf"^(?:{names}|gateway_upstream_withheld_calls)(?:{{.*}})? (?!0\.0$).*$"
    found = re.findall(pattern, _page(gateway, "/metrics"), re.MULTILINE)
    status = json.loads(_page(gateway, "/status"))
    for upstream in status["upstreams"]:
        for endpoint in upstream["endpoints"]:
            if endpoint["in_flight"] or endpoint["withheld"]:
                found.append(json.dumps(endpoint))
    return found


def _page(gateway: Running, path: str) -> str:
    """Return a page of the admin port."""
    page: bytes = urllib.request.urlopen(f"http://{gateway.addresses['admin']}{path}").read()
    return page.decode()
