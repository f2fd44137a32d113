"""`python -m benchmarks.soak`: memory of large requests, then mixed load that must not leak.

Clients of every protocol send small and large requests. Some are wrong, and some clients disconnect
in the middle. A third of the models run in the gateway. The others are behind a second gateway,
over HTTP and over gRPC. The number of concurrent requests is bounded, and the same number of the
largest requests runs first, so that the heap reaches its full size. The resident size of the first
gateway is recorded every few seconds. The slope is that of the regression line after the first
third.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import uvloop

from benchmarks import resident, systems
from benchmarks.progress import Say
from benchmarks.resident import MIB, message, status
from benchmarks.systems import Running
from gateway.app.build.upstreams import Connected, connect
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.tensor import Tensor, array_tensor
from gateway.policies.complete.policy import Complete
from gateway.service import Service
from gateway.settings.units import parse_url

Ask = Callable[[], Awaitable[None]]

_NOTE_EVERY_S = 5.0
_EXAMPLES = "gateway.backends.examples"
_SMALL, _MIDDLE, _LARGE = 16, 150_528, 4 * MIB // 4
_WARM_SHARE = 3
_FLAT_MIB_PER_HOUR = 16.0
_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
_DEADLINE_S = 20.0
_AT_A_TIME = 4
# The slope of a shorter load is random.
_LEAST_MINUTES = 10
_OK = "as it should"


@dataclass(frozen=True)
class Line:
    """The result of the mixed load.

    Attributes:
        start_mib: Resident memory after the first third of the time.
        slope_mib_per_hour: Slope of the line from then on.
        outcomes: Number of requests, by kind and outcome.
        unexpected: Number of requests with a wrong outcome.
    """

    minutes: float
    requests: int
    first_mib: float
    start_mib: float
    end_mib: float
    most_mib: float
    slope_mib_per_hour: float
    outcomes: dict[str, int]
    unexpected: int

    @property
    def flat(self) -> bool:
        """Whether the line is flat and every request ended as expected."""
        return self.slope_mib_per_hour <= _FLAT_MIB_PER_HOUR and not self.unexpected


def run(minutes: float, rate: float, file: Path | None, say: Say) -> Line:
    """Send *rate* requests a second for *minutes*, and write sizes to *file* as CSV."""
    return uvloop.run(_run(minutes, rate, file, say))


async def _run(minutes: float, rate: float, file: Path | None, say: Say) -> Line:
    with _gateways() as running:
        clients = [connect(parse_url(url)) for url in _urls(running)]
        try:
            load = _Load(running, clients)
            return await load.run(minutes, rate, file, say)
        finally:
            for client in clients:
                await client.close()


@contextmanager
def _gateways() -> Iterator[Running]:
    """Run a gateway with models, and the measured one in front of it."""
    models: dict[str, dict[str, object]] = {
        name: {"backend": "python", "options": {"callable": f"{_EXAMPLES}:{name}"}}
        for name in ("simple", "identity_fp32", "slow")
    }
    # TensorRT v1 and GraphPipe do not send shapes of any rank.
    flat = {"datatype": "FP32", "shape": [-1, -1]}
    models["identity_fp32"]["signature"] = {
        "inputs": [{"name": "INPUT0", **flat}],
        "outputs": [{"name": "OUTPUT0", **flat}],
    }
    with systems.serving({"models": models}, "native") as behind:
        ports = {"http": behind.http_port, "grpc": behind.grpc_port}
        sections = {
            "models": models,
            "upstreams": {
                name: {"url": f"oip+{name}://127.0.0.1:{port}", "options": {"dialect": "triton"}}
                for name, port in ports.items()
            },
            "routes": [
                {
                    "name": f"{model}-{name}",
                    "match": {"model": f"{model}-{name}"},
                    "targets": [{"upstream": name, "model": model}],
                }
                for name in ports
                for model in models
            ]
            + [
                {"name": model, "match": {"model": model}, "targets": [{"model": model}]}
                for model in models
            ],
        }
        with systems.serving(sections, "native") as running:
            yield running


def _urls(running: Running) -> list[str]:
    http, grpc = f"127.0.0.1:{running.http_port}", f"127.0.0.1:{running.grpc_port}"
    return [
        f"oip+http://{http}",
        f"oip+grpc://{grpc}",
        f"trtis+http://{http}",
        f"trtis+grpc://{grpc}",
        f"grps+http://{http}",
        f"grps+grpc://{grpc}",
        f"grps+brpc://127.0.0.1:{running.brpc_port}",
        f"graphpipe+http://{http}/graphpipe/identity_fp32",
    ]


class _Load:
    """All the requests."""

    def __init__(self, running: Running, clients: list[Connected]) -> None:
        self._running = running
        self._draw = random.Random(7)  # noqa: S311  # a mixture, the same each time
        self._outcomes: Counter[str] = Counter()
        self._unexpected = 0
        self._sizes: list[tuple[float, int]] = []
        self._floats = np.arange(_LARGE, dtype=np.float32).reshape(1, -1)
        self._ints = np.arange(_SMALL, dtype=np.int32).reshape(1, -1)
        services = [Complete(client.service, client.needs) for client in clients]
        *open_, graphpipe = self._services = services
        kinds: list[tuple[str, float, Ask]] = []
        for url, service in zip(_urls(running), open_, strict=False):
            name = url.partition(":")[0]
            kinds.append((f"{name} small", 8, partial(self._sum, service)))
            kinds.append((f"{name} 602 KB", 1, partial(self._same, service, _MIDDLE)))
            kinds.append((f"{name} unknown model", 0.5, partial(self._unknown, service)))
            kinds.append((f"{name} left", 0.5, partial(self._leave, service)))
        kinds.append(("oip+http 4 MiB", 2, partial(self._same, open_[0], _LARGE)))
        kinds.append(("graphpipe+http small", 4, partial(self._piped, graphpipe, _SMALL)))
        kinds.append(("graphpipe+http 602 KB", 1, partial(self._piped, graphpipe, _MIDDLE)))
        kinds.append(("http broken", 1, self._broken))
        kinds.append(("http left in the body", 1, self._half))
        self._kinds = kinds

    async def run(self, minutes: float, rate: float, file: Path | None, say: Say) -> Line:
        """Send requests until the time is over."""
        loop = asyncio.get_running_loop()
        await self._fill()
        begin = loop.time()
        end = begin + 60 * minutes
        asking: set[asyncio.Task[None]] = set()
        weights = [weight for _, weight, _ in self._kinds]
        noted = begin
        requests = 0
        lines = ["seconds,resident_bytes,requests"]
        while (now := loop.time()) < end:
            if now >= noted:
                noted += _NOTE_EVERY_S
                self._sizes.append((now - begin, status(self._running.pid, "VmRSS")))
                lines.append(f"{now - begin:.0f},{self._sizes[-1][1]},{requests}")
                _write(file, lines)
                if len(self._sizes) % 12 == 1:
                    say(f"  {(now - begin) / 60:.0f} min: {self._sizes[-1][1] / MIB:.1f} MiB")
            name, _, ask = self._draw.choices(self._kinds, weights)[0]
            task = asyncio.ensure_future(self._noted(name, ask))
            asking.add(task)
            task.add_done_callback(asking.discard)
            requests += 1
            await asyncio.sleep(max(0.0, begin + requests / rate - loop.time()))
            if len(asking) >= _AT_A_TIME:
                await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*asking)
        self._sizes.append((loop.time() - begin, status(self._running.pid, "VmRSS")))
        return self._line(minutes, requests)

    async def _fill(self) -> None:
        """Send as many requests at once as the load ever has."""
        inputs = (array_tensor("INPUT0", self._floats),)
        for service in self._services[:2]:
            for end in ("", "-http", "-grpc"):
                model = f"identity_fp32{end}"
                requests = [service(_call(model, inputs)) for _ in range(_AT_A_TIME)]
                await asyncio.gather(*requests)

    def _line(self, minutes: float, requests: int) -> Line:
        after = [each for each in self._sizes if each[0] >= 60 * minutes / _WARM_SHARE]
        seconds, sizes = np.array(after, dtype=float).T
        slope = float(np.polyfit(seconds, sizes, 1)[0]) if len(after) > 1 else 0.0
        return Line(
            minutes=minutes,
            requests=requests,
            first_mib=self._sizes[0][1] / MIB,
            start_mib=after[0][1] / MIB,
            end_mib=after[-1][1] / MIB,
            most_mib=status(self._running.pid, "VmHWM") / MIB,
            slope_mib_per_hour=3600 * slope / MIB,
            outcomes=dict(sorted(self._outcomes.items())),
            unexpected=self._unexpected,
        )

    async def _noted(self, name: str, ask: Ask) -> None:
        try:
            await ask()
            outcome = _OK
        except Exception as error:  # noqa: BLE001  # whatever it is, it is counted
            self._unexpected += 1
            outcome = f"{type(error).__name__}: {error}"[:100]
        self._outcomes[f"{name}: {outcome}"] += 1

    def _model(self, name: str) -> str:
        return self._draw.choice((name, f"{name}-http", f"{name}-grpc"))

    async def _sum(self, service: Service) -> None:
        inputs = tuple(array_tensor(name, self._ints) for name in ("INPUT0", "INPUT1"))
        await service(_call(self._model("simple"), inputs))

    async def _same(self, service: Service, size: int) -> None:
        inputs = (array_tensor("INPUT0", self._floats[:, :size]),)
        reply = await service(_call(self._model("identity_fp32"), inputs))
        assert 4 * size == reply.outputs[0].nbytes, "it is not what was sent"

    async def _piped(self, service: Service, size: int) -> None:
        await service(_call("identity_fp32", (array_tensor("INPUT0", self._floats[:, :size]),)))

    async def _unknown(self, service: Service) -> None:
        try:
            await service(_call("none", (array_tensor("INPUT0", self._floats[:, :4]),)))
        except GatewayError:
            return
        raise RuntimeError("an unknown model has answered")

    async def _leave(self, service: Service) -> None:
        """Send a slow request and disconnect."""
        wait = array_tensor("INPUT0", np.array([1000], dtype=np.int32))
        asking = asyncio.ensure_future(service(_call(self._model("slow"), (wait,))))
        await asyncio.sleep(0.02)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking

    async def _broken(self) -> None:
        """Send bytes that are a request of no protocol."""
        body = os.urandom(100)
        head = (
            f"POST /v2/models/simple/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self._running.http_port)
        try:
            writer.write(f"{head}\r\n".encode() + body)
            line = await reader.readuntil(b"\r\n")
            assert b"400" in line, line
        finally:
            writer.close()

    async def _half(self) -> None:
        """Send half of a large body and disconnect."""
        head, body = message(2 * MIB, self._model("identity_fp32"))
        _, writer = await asyncio.open_connection("127.0.0.1", self._running.http_port)
        writer.write(head + body[:MIB])
        await asyncio.sleep(0.02)
        writer.transport.abort()


def _call(model: str, inputs: tuple[Tensor, ...]) -> InferRequest:
    context = Context(deadline=time.monotonic() + _DEADLINE_S, needs=_NEEDS)
    return InferRequest(model=ModelRef(model), context=context, inputs=inputs)


def _write(file: Path | None, lines: list[str]) -> None:
    if file is not None:
        file.write_text("\n".join(lines) + "\n")


def _text(line: Line) -> str:
    bad = [
        f"  {count} x {outcome}" for outcome, count in line.outcomes.items() if _OK not in outcome
    ]
    ends = f"{line.unexpected} of them ended as they should not"
    sizes = f"{line.start_mib:.1f} after a third of the time, {line.end_mib:.1f} at the end"
    summary = (
        f"{line.requests} requests in {line.minutes:g} minutes, {ends}; resident "
        f"{line.first_mib:.1f} MiB at first, {sizes}, {line.most_mib:.1f} at most; slope "
        f"{line.slope_mib_per_hour:+.1f} MiB an hour"
    )
    return "\n".join([summary, *bad])


def main() -> int:
    """Measure both and print them. Return 1 if memory exceeds its limit or rises."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of mixed load")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="gets the sizes over time")
    arguments = parser.parse_args()
    rows = resident.run(_say)
    for row in rows:
        print(row)
    line = run(arguments.minutes, arguments.rate, arguments.csv, _say)
    print(_text(line))
    good = all(row.good for row in rows) and not line.unexpected
    return 0 if good and (line.flat or arguments.minutes < _LEAST_MINUTES) else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
