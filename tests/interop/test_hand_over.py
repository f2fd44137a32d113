"""Large tensors in shared memory, between two gateways and a real Triton that are killed.

A model returns the checksums of all bytes, and each reply is checked. `HAND_OVER_CALLS=100000` is a
whole campaign.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio
import numpy as np
import pytest

import benchmarks
from gateway.schema import open_inference_pb2 as pb
from tests.integration import http_kit
from tests.integration.cli_kit import Running, free_port, get
from tests.integration.shared_memory_kit import SEGMENTS
from tests.integration.workers_kit import eventually, is_alive, pids
from tests.interop.environments import environment
from tests.interop.gateways import serving
from tests.interop.sacrifice import INFER
from tests.interop.servers.process import Command, Ports, RunningServer, free_ports, start, stop
from tests.interop.servers.triton import start as triton

CALLS = int(os.environ.get("HAND_OVER_CALLS", "2000"))
PATIENCE_S = 60 + CALLS / 40

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300 + CALLS // 40)]

CONFIG = """
version: 1
workers: {workers}
listeners: [{{http: "127.0.0.1:{http}", grpc: "127.0.0.1:{grpc}", protocols: [oip]}}]
admin: {{address: "127.0.0.1:0"}}
upstreams:
  t: {{url: "oip+{carrier}://{address}", hand_over: auto, probe: {{interval: 200ms}}}}
routes: [{{name: all, match: {{model: "*"}}, targets: [{{upstream: t}}]}}]
lifecycle: {{drain: 5s}}
telemetry: {{log: {{calls_per_second: 0}}}}
"""
PREFIX = "tensor-gateway-"
KIB, MIB = 1024, 1 << 20
KILLS = 5
CLIENTS = 4
"""Of each carrier, at each gateway."""

CANCELLED = 0.1
LONGEST_STAY_S = 0.02
LONGEST_S = 30.0
PAUSE_S = 0.05
SLACK_S = 1.0
"""An error so long after all are well again may still be one of a kill."""

REST_S = 35.0
"""A gateway returns free memory every 30 s, while it has no call."""

MOST_GROWTH = 8 * MIB
"""Of the heap of a process at rest, in the last quarter of the calls."""

TRITON = "triton"
OF_KILLS = re.compile("502|503|UNAVAILABLE|Connection|BrokenPipe|IncompleteRead")
PLACES = ("bytes", "shared memory", "not looked up")
RANDOM = np.random.default_rng(1).integers(0, 256, 32 * MIB, np.uint8).tobytes()


def checksum(data: memoryview) -> int:
    """Return the sum of each 8 bytes, as a number, times 1, 3, 5 and so on, modulo 2^64."""
    whole = len(data) & -8
    words = np.frombuffer(data[:whole], "<u8")
    factors = np.arange(1, 2 * len(words) + 1, 2, dtype=np.uint64)
    last = int.from_bytes(data[whole:], "little") * (2 * len(words) + 1)
    return (int(np.dot(words, factors)) + last) % (1 << 64)


@dataclass
class Disturbance:
    """Something that was killed.

    Attributes:
        what: The server, or the name of a gateway.
        end: When every client had a reply again.
    """

    what: str
    start: float
    end: float = float("inf")


@dataclass
class Campaign:
    """What clients saw.

    Attributes:
        outcomes: Calls by client and outcome.
        places: Where the model found the inputs of right replies.
        started: How many calls were begun.
        wrong: What may never happen.
        disturbances: All kills.
        is_paused: Whether clients begin no more calls.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    started: int = 0
    wrong: list[str] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    is_paused: bool = False

    def judge(self, gateway: str, began: float, error: str) -> None:
        """Note an error, which a kill must explain."""
        assert PREFIX not in error, "a client sees the name of a region"
        kind = re.sub(r"\d+", "N", error)[:90]
        self.outcomes[f"{gateway} error: {kind}"] += 1
        if not OF_KILLS.match(error) or not any(
            each.start <= time.monotonic() and began <= each.end + SLACK_S
            for each in self.disturbances
            if each.what in {TRITON, gateway}
        ):
            self.wrong.append(f"{gateway}: {error[:300]}")


class Client:
    """Sends tensors of random sizes, one call after the other, and leaves some of its calls.

    Args:
        campaign: Gets the results.
        name: That of its gateway.
        seed: Of all decisions.
        sender: Its connection.
    """

    def __init__(self, campaign: Campaign, name: str, seed: int, sender: Sender) -> None:
        self._campaign = campaign
        self._name = name
        self._draw = random.Random(seed)  # noqa: S311  # it must be repeatable
        self._sender = sender
        self.right = 0

    def is_beyond(self, right: int) -> bool:
        """Return whether more than *right* calls had a right reply."""
        return self.right > right

    async def run(self) -> None:
        """Send until the campaign pauses."""
        campaign = self._campaign
        while not campaign.is_paused:
            campaign.started += 1
            began = time.monotonic()
            outcome = await self._call(began)
            campaign.outcomes[f"{self._name} {self._sender.carrier} {outcome}"] += 1
            if outcome == "failed":
                await asyncio.sleep(PAUSE_S)

    async def close(self) -> None:
        """End the connection."""
        await self._sender.close()

    async def _call(self, began: float) -> str:
        draw = self._draw
        least, most = draw.choices(
            ((64 * KIB, 256 * KIB), (256 * KIB, MIB), (MIB, 4 * MIB)), (75, 20, 5)
        )[0]
        size = draw.randrange(least, most)
        at = draw.randrange(len(RANDOM) - size)
        data = memoryview(RANDOM)[at : at + size]
        sending = asyncio.ensure_future(self._sender.send(data))
        is_left = draw.random() < CANCELLED
        if is_left:
            await asyncio.wait([sending], timeout=draw.random() * LONGEST_STAY_S)
            sending.cancel()
        try:
            async with asyncio.timeout(LONGEST_S):
                error, found = await sending
        except asyncio.CancelledError:
            if not is_left:
                raise
            return "left"
        except TimeoutError:
            error, found = "no reply in time", ()
        except (OSError, EOFError) as failure:
            error, found = repr(failure), ()
        if error:
            self._campaign.judge(self._name, began, error)
            return "failed"
        expected, (*sums, place) = checksum(data), found
        if sums != [expected, expected]:
            self._campaign.wrong.append(f"{size} bytes at {at}: {sums}, not {expected}")
            return "WRONG"
        self._campaign.places[PLACES[place]] += 1
        self.right += 1
        return "right"


class Sender(Protocol):
    """A connection to a gateway."""

    carrier: str

    async def send(self, data: memoryview) -> tuple[str, tuple[int, ...]]:
        """Return an error, "" for none, and what the model returned. Cancelling it ends the call."""

    async def close(self) -> None:
        """End the connection."""


class HttpSender:
    """Sends binary tensors over HTTP; a call that is left ends its connection."""

    carrier = "http"

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: memoryview) -> tuple[str, tuple[int, ...]]:
        tensor = {"name": "x", "datatype": "UINT8", "shape": [len(data)]}
        parameters = {"binary_data_size": len(data)}
        head = json.dumps({"inputs": [{**tensor, "parameters": parameters}]}).encode()
        is_whole = False
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(
                b"POST /v2/models/checksum/infer HTTP/1.1\r\nHost: h\r\n"
                b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%b"
                % (len(head), len(head) + len(data), head)
            )
            writer.write(data)
            await writer.drain()
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
            assert length is not None, answer
            body = await reader.readexactly(int(length[1]))
            is_whole = b"connection: close" not in answer.lower()
        finally:
            if not is_whole:
                await self.close()
        assert PREFIX.encode() not in body, "a client sees the name of a region"
        if answer[9:12] != b"200":
            return f"{answer[9:12].decode()} {body.decode()}", ()
        return "", tuple(json.loads(body)["outputs"][0]["data"])

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()


class GrpcSender:
    """Sends raw contents over gRPC."""

    carrier = "grpc"

    def __init__(self, port: int) -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 200),
        ]
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._infer = self._channel.unary_unary(
            INFER,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )

    async def send(self, data: memoryview) -> tuple[str, tuple[int, ...]]:
        request = pb.ModelInferRequest(model_name="checksum")
        request.inputs.add(name="x", datatype="UINT8", shape=[len(data)])
        request.raw_input_contents.append(bytes(data))
        try:
            reply = await self._infer(request)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} {error.details()}", ()
        return "", tuple(np.frombuffer(reply.raw_output_contents[0], "<u8").tolist())

    async def close(self) -> None:
        await self._channel.close()


class Server:
    """A Triton with the model `checksum`, which is killed and started on the same ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives = 0
        self.ports = free_ports()
        self.running = self._start()

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.running.process.kill()
        self.running.process.wait()
        self.running = self._start()

    def regions(self) -> list[str]:
        """Return the regions of gateways that it has registered."""
        found = get(f"{self.running.http_url}/v2/systemsharedmemory/status")[1]
        return [each["name"] for each in found if each["name"].startswith(PREFIX)]

    def close(self) -> None:
        """Stop it."""
        stop(self.running.process)

    def _start(self) -> RunningServer:
        self._lives += 1
        return start(TRITON, _prepare, self._folder / f"life-{self._lives}", self.ports)


def _prepare(folder: Path, ports: Ports) -> Command:
    command = triton.prepare(folder, ports, ())
    home = folder / "models" / "checksum"
    (home / "1").mkdir(parents=True)
    (home / "config.pbtxt").write_text(
        'name: "checksum" backend: "checksum" max_batch_size: 0\n'
        "instance_group [ { kind: KIND_CPU count: 4 } ]\n"
        'input [ { name: "x" data_type: TYPE_UINT8 dims: -1 } ]\n'
        'output [ { name: "sums" data_type: TYPE_UINT64 dims: 3 } ]\n'
    )
    compiler = shutil.which("cc")
    assert compiler is not None, "there is no C compiler (cc) for a backend of Triton"
    source = Path(triton.__file__).with_name("checksum.c")
    library = home / "1" / "libtriton_checksum.so"
    include = Path(benchmarks.__file__).with_name("servers")
    words = [compiler, "-O2", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)]
    subprocess.run(words, check=True, timeout=60)
    return command


class Gateway:
    """A gateway that is killed and started on the same ports.

    Attributes:
        held: The names of all regions that its processes had, when it was killed or stopped.
    """

    def __init__(self, name: str, folder: Path, url: tuple[str, str], workers: int) -> None:
        self.name = name
        self.workers = workers
        self.http, self.grpc = free_port(), free_port()
        self.held: set[str] = set()
        self._stack = ExitStack()
        path = self._path = folder / f"{name}.yaml"
        carrier, address = url
        path.write_text(
            CONFIG.format(
                workers=workers, http=self.http, grpc=self.grpc, carrier=carrier, address=address
            )
        )
        self.log: list[str] = []
        self.running = self._start()

    def processes(self) -> list[int]:
        """Return the process ids of those that serve."""
        if self.workers == 1:
            return [self.running.process.pid]
        return [pid for pid in pids(self.running).values() if is_alive(pid)]

    def restart(self) -> None:
        """Kill all of it, and start it again."""
        self._note()
        processes = self.processes()
        self.running.process.kill()
        eventually(lambda: not any(map(is_alive, processes)))
        self._end()
        self.running = self._start()

    def kill_worker(self) -> None:
        """Kill one worker, which the supervisor starts again."""
        self._note()
        os.kill(self.processes()[0], signal.SIGKILL)
        eventually(lambda: len(self.processes()) == self.workers)

    def stop(self) -> int:
        """Stop it, and return its status."""
        self._note()
        status = self.running.stop()
        self._end()
        return status

    def sizes(self) -> dict[str, int]:
        """Return the largest heap, and the largest shared memory, of its processes in bytes."""
        found = [Path(f"/proc/{pid}/status").read_text() for pid in self.processes()]
        return {name: max(_size(text, name) for text in found) for name in ("RssAnon", "RssShmem")}

    def hand_over(self) -> str:
        """Return what the status says."""
        (upstream,) = get(self.running.url("/status", "admin"))[1]["upstreams"]
        return str(upstream["endpoints"][0]["hand_over"])

    def _start(self) -> Running:
        return self._stack.enter_context(serving(str(self._path), patience_s=90))

    def _note(self) -> None:
        for pid in self.processes():
            self.held |= _regions_of(pid)

    def _end(self) -> None:
        self._stack.close()
        self.log += self.running.log


def _size(status: str, name: str) -> int:
    (line,) = [line for line in status.splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * KIB


def _regions_of(pid: int) -> set[str]:
    """Return the names of the regions that a process has open, also of removed ones."""
    found = set()
    for each in [*Path(f"/proc/{pid}/fd").iterdir()]:
        with contextlib.suppress(OSError):
            name = each.readlink().name
            if name.startswith(PREFIX):
                found.add(name.split()[0])
    return found


@asynccontextmanager
async def sending(campaign: Campaign, clients: list[Client]) -> AsyncIterator[None]:
    """Let all clients send until the block ends."""
    campaign.is_paused = False
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(client.run())
        try:
            yield
        finally:
            campaign.is_paused = True


async def sizes_at_rest(
    gateways: list[Gateway], least: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the sizes once the gateways have returned the memory that they do not use.

    It does not wait for that where none has grown by more than `MOST_GROWTH` since *least*.
    """
    end = time.monotonic() + REST_S
    while True:
        found = {
            f"{gateway.name} {name}": size
            for gateway in gateways
            for name, size in gateway.sizes().items()
        }
        if time.monotonic() > end or (least is not None and [] == grown(least, found)):
            return found
        await asyncio.sleep(1)


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Return the names of the sizes that have grown by more than `MOST_GROWTH`."""
    return [name for name, size in after.items() if size > before[name] + MOST_GROWTH]


async def disturb(
    campaign: Campaign, server: Server, gateways: list[Gateway], clients: list[Client]
) -> None:
    """Kill the server and a gateway in turns, in the first two thirds of the calls."""
    steps: list[tuple[str, Callable[[], None]]] = []
    for number in range(KILLS):
        killed = gateways[number % 2]
        steps += [(TRITON, server.restart), (killed.name, killed.restart)]
    steps.append((gateways[1].name, gateways[1].kill_worker))
    for number, (what, kill) in enumerate(steps, 1):
        await _calls(campaign, number * CALLS * 2 // 3 // len(steps))
        disturbance = Disturbance(what, time.monotonic())
        campaign.disturbances.append(disturbance)
        await asyncio.to_thread(kill)
        for client in clients:
            await http_kit.eventually(partial(client.is_beyond, client.right), PATIENCE_S)
        disturbance.end = time.monotonic()


async def _calls(campaign: Campaign, count: int) -> None:
    await http_kit.eventually(lambda: campaign.started >= count, PATIENCE_S)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Run the Triton."""
    environment("triton")
    found = Server(tmp_path)
    yield found
    found.close()


def test_no_tensor_is_wrong_whatever_is_killed(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each reply has the checksums of its call, no file and no region is left, and heaps do not grow."""
    campaign = Campaign()
    gateways = [
        Gateway("one", tmp_path, ("http", server.running.http_address), 1),
        Gateway("two", tmp_path, ("grpc", server.running.grpc_address), 2),
    ]
    sizes: list[dict[str, int]] = []

    async def main() -> None:
        seeds = iter(range(1000))
        clients = [
            Client(campaign, gateway.name, next(seeds), sender)
            for gateway in gateways
            for _ in range(CLIENTS)
            for sender in (HttpSender(gateway.http), GrpcSender(gateway.grpc))
        ]
        async with sending(campaign, clients):
            await disturb(campaign, server, gateways, clients)
            await _calls(campaign, max(campaign.started + CALLS // 10, CALLS * 3 // 4))
        sizes.append(await sizes_at_rest(gateways))
        async with sending(campaign, clients):
            await _calls(campaign, max(campaign.started + CALLS // 10, CALLS))
        sizes.append(await sizes_at_rest(gateways, sizes[0]))
        for client in clients:
            await client.close()

    started = time.monotonic()
    try:
        asyncio.run(main())
        lasted_s = time.monotonic() - started
        states = [gateway.hand_over() for gateway in gateways]
    finally:
        statuses = [gateway.stop() for gateway in gateways]
    with capsys.disabled():
        print(f"\n{campaign.started} calls in {lasted_s:.0f} s, {len(campaign.wrong)} wrong")
        print(f"  inputs: {dict(campaign.places)}")
        for outcome, count in sorted(campaign.outcomes.items()):
            print(f"  {count} {outcome}")
        for line in sizes:
            print("  MiB:", {name: round(size / MIB, 1) for name, size in line.items()})
    held = set().union(*[gateway.held for gateway in gateways])
    assert [] == campaign.wrong[:20]
    # A worker in the place of a killed one may have met no large call.
    assert {"on", "no large tensor yet"} >= {*states}
    assert campaign.places["shared memory"] > campaign.places["bytes"]
    assert [0, 0] == statuses
    assert len(held) > KILLS
    assert [] == [name for name in held if (SEGMENTS / name).exists()]
    assert [] == server.regions()
    assert PREFIX not in "".join([line for gateway in gateways for line in gateway.log])
    assert [] == grown(*sizes)
