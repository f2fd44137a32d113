"""Batching: 64 clients of four protocols with one row each, and one slow model.

A call of the model takes 2 ms and 0.05 ms for each row, and one call runs at a time (`costly`).
Without batches the model is the bottleneck. With them it is the CPU time of the gateway. All load
generators run at once. Figures are medians over rounds.
"""

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from benchmarks import costly, graphpipe, grps, load, messages, systems, tensorrt
from benchmarks.load import Measured, Target
from benchmarks.messages import Arrays, Case, Message
from benchmarks.processes import cores, cpu_seconds
from benchmarks.progress import Say
from benchmarks.systems import Running

CLIENTS = 64
TRANSPORTS = ("reference", "native")
MODEL = "costly"
CALLABLE = f"{costly.__name__}:{costly.costly.__name__}"
BATCHING = {"max_batch_size": CLIENTS, "max_delay": "1ms"}

_ROW = np.arange(costly.WIDTH, dtype=np.float32).reshape(1, -1)
CASE = Case("row", MODEL, {"X": _ROW}, {"Y": 2 * _ROW})


@dataclass(frozen=True)
class Row:
    """Medians of one system.

    Attributes:
        way: Transport of the listener.
        rate: Requests per second of all clients.
        speedup: The rate in units of the rate without batches, the median over rounds.
        p50_us: Median latency of the slowest protocol.
        cpu: Share of its core that the gateway used.
    """

    way: str
    batches: bool
    rate: float
    speedup: float
    p50_us: float
    p50_ratio: float
    cpu: float
    errors: int

    def document(self) -> dict[str, object]:
        """Return the row for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Sample:
    """One measurement; see `Row`."""

    rate: float
    p50_us: float
    cpu: float
    errors: int


@dataclass(frozen=True)
class Question:
    """A request with one row in one protocol, and the reader of its response."""

    protocol: str
    target: Target
    read: Callable[[Message], Arrays]

    def check(self, answer: Message) -> None:
        """Check that a response is the one of the model."""
        found = self.read(answer)
        if not messages.same(found, CASE.outputs):
            raise RuntimeError(f"{self.protocol} answers otherwise than the model: {found}")


@dataclass(frozen=True)
class System:
    """A running gateway.

    Attributes:
        sample: Measures it for a number of seconds.
    """

    way: str
    batches: bool
    sample: Callable[[float], Sample]


def run(rounds: int, seconds: float, say: Say) -> list[Row]:
    """Measure gateways with and without batches in turn."""
    with ExitStack() as stack:
        both = (False, True)
        up = [_reached(way, batches, stack) for way in TRANSPORTS for batches in both]
        for system in up:
            system.sample(1)  # warm-up
        samples: list[list[Sample]] = [[] for _ in up]
        for number in range(1, rounds + 1):
            say(f"  round {number} of {rounds}: batching")
            for system, found in zip(up, samples, strict=True):
                found.append(system.sample(seconds))
    base = {
        system.way: found for system, found in zip(up, samples, strict=True) if not system.batches
    }
    return [
        _row(system, found, base[system.way]) for system, found in zip(up, samples, strict=True)
    ]


def models(*, batches: bool) -> dict[str, object]:
    """Return the section `models` of the configuration."""
    settings = {"batching": BATCHING} if batches else {}
    return {MODEL: {"backend": "python", "options": {"callable": CALLABLE}, **settings}}


def _reached(transport: str, batches: bool, stack: ExitStack) -> System:
    sections = {"models": models(batches=batches)}
    running = stack.enter_context(systems.serving(sections, transport))
    return System(transport, batches, partial(_sample, running, _targets(running)))


def questions(running: Running) -> list[Question]:
    """Return the same request in each protocol."""
    http = partial(Target, "http", running.http_port)
    grpc = partial(Target, "grpc", running.grpc_port)
    return [
        Question("oip", grpc("", messages.grpc_request(CASE)), messages.read_grpc),
        Question("grps", grpc(grps.METHOD, grps.grpc_request(CASE)), grps.read_grpc),
        Question("trtis", http(tensorrt.path(CASE), tensorrt.request(CASE)), tensorrt.read(CASE)),
        Question(
            "graphpipe", http(f"/graphpipe/{MODEL}", graphpipe.request(CASE)), graphpipe.read(CASE)
        ),
    ]


def _targets(running: Running) -> list[Target]:
    """Return a target for each request, after one checked response."""
    found = []
    for question in questions(running):
        question.check(load.ask(question.target))
        found.append(question.target)
    return found


def _sample(running: Running, targets: Sequence[Target], seconds: float) -> Sample:
    each = CLIENTS // len(targets)
    before = cpu_seconds(running.pid)

    def measured(target: Target) -> Measured:
        return load.run(target, each, seconds, cores()[1])

    with ThreadPoolExecutor(len(targets)) as pool:
        found = list(pool.map(measured, targets))
    took = max(one.seconds for one in found)
    return Sample(
        rate=sum(one.requests / one.seconds for one in found),
        p50_us=max(one.p50_us for one in found),
        cpu=(cpu_seconds(running.pid) - before) / took,
        errors=sum(one.errors for one in found),
    )


def _row(system: System, samples: Sequence[Sample], base: Sequence[Sample]) -> Row:
    middle = statistics.median
    pairs = list(zip(samples, base, strict=True))
    return Row(
        way=system.way,
        batches=system.batches,
        rate=middle(one.rate for one in samples),
        speedup=middle(one.rate / other.rate for one, other in pairs),
        p50_us=middle(one.p50_us for one in samples),
        p50_ratio=middle(one.p50_us / other.p50_us for one, other in pairs),
        cpu=middle(one.cpu for one in samples),
        errors=sum(one.errors for one in samples),
    )
