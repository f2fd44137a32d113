"""Running a job: every system up at once, rounds in turn (A B C A B C), medians over rounds."""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from benchmarks import load
from benchmarks.jobs import Contender, Job
from benchmarks.load import Measured, Target
from benchmarks.messages import same
from benchmarks.processes import cores, cpu_seconds
from benchmarks.systems import Absent, Running, canned

BASE = "gateway"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How long and how often.

    Attributes:
        seconds: Of one measurement.
    """

    rounds: int
    seconds: float


@dataclass(frozen=True)
class Row:
    """A system's medians in one job.

    Attributes:
        rate: Requests per second, all on one core.
        cpu_us: CPU time of the system per request, microseconds.
        ratio: Its CPU time per request in units of the gateway's, the median over rounds of
            the two measured one after the other: 2.0 needs twice as much as the gateway.
        spread: Largest less smallest `cpu_us` of the rounds, over their median.
        p50_us: Latency with one connection.
        errors: Requests that failed, of all rounds.
    """

    job: str
    system: str
    rate: float
    cpu_us: float
    ratio: float
    spread: float
    p50_us: float
    p99_us: float
    errors: int

    def document(self) -> dict[str, object]:
        """Return the row for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Sample:
    cpu_us: float
    busy: Measured
    lone: Measured


def run(job: Job, settings: Settings, wanted: frozenset[str], say: Say) -> list[Row]:
    """Run *job* for the systems whose names hold one of *wanted*; all when that is empty."""
    with ExitStack() as stack:
        up = _start(job, wanted, stack, say)
        samples: dict[str, list[_Sample]] = {name: [] for name in up}
        for name, (running, target) in up.items():
            load.run(target, job.connections, 1, cores()[1])  # warms
            if cpu_seconds(running.pid) <= 0:
                raise RuntimeError(f"{name} of {job.name} burns no CPU that can be seen")
        for number in range(1, settings.rounds + 1):
            say(f"  round {number} of {settings.rounds}: {job.name}")
            for name, (running, target) in up.items():
                samples[name].append(_sample(job, running, target, settings))
    return [_row(job, name, found, samples.get(BASE)) for name, found in samples.items()]


def _start(
    job: Job, wanted: frozenset[str], stack: ExitStack, say: Say
) -> dict[str, tuple[Running, Target]]:
    up: dict[str, tuple[Running, Target]] = {}
    chosen = [
        each for each in job.contenders if not wanted or any(part in each.name for part in wanted)
    ]
    backs = {each.back for each in chosen if each.start is not None} - {None}
    behind = {
        carrier: stack.enter_context(canned(carrier, reply, cores()[1]))
        for carrier, reply in job.replies.items()
        if carrier in backs
    }
    for each in chosen:
        try:
            running = _started(job, each, behind, stack)
            target = _target(each, running)
            _check(job, each, target)
        except (Absent, RuntimeError, OSError) as error:
            if each.name == BASE:
                raise
            say(f"  skipped: {each.name} in {job.name}: {error}")
            continue
        up[each.name] = running, target
    return up


def _started(
    job: Job, contender: Contender, behind: dict[str, Running], stack: ExitStack
) -> Running:
    if contender.start is None:
        return stack.enter_context(
            canned(contender.front, job.replies[contender.front], cores()[0])
        )
    if contender.back is None:
        return stack.enter_context(contender.start("", 0))
    port = behind[contender.back].http_port
    return stack.enter_context(contender.start(contender.back, port))


def _target(contender: Contender, running: Running) -> Target:
    ports = {"http": running.http_port, "grpc": running.grpc_port, "brpc": running.brpc_port}
    front = contender.front
    return Target(front, ports[front], contender.path, contender.question)


def _check(job: Job, contender: Contender, target: Target) -> None:
    found = contender.read(load.ask(target))
    if contender.exact and not same(found, job.case.outputs):
        raise RuntimeError(f"answers otherwise than the model: {str(found)[:300]}")


def _sample(job: Job, running: Running, target: Target, settings: Settings) -> _Sample:
    before = cpu_seconds(running.pid)
    busy = load.run(target, job.connections, settings.seconds, cores()[1])
    cpu_us = (cpu_seconds(running.pid) - before) * 1e6 / max(1, busy.requests)
    lone = load.run(target, 1, 1, cores()[1])
    return _Sample(cpu_us, busy, lone)


def _row(job: Job, name: str, samples: list[_Sample], base: list[_Sample] | None) -> Row:
    middle = statistics.median
    cpu_us = [each.cpu_us for each in samples]
    pairs = zip(samples, samples if base is None else base, strict=True)
    return Row(
        job=job.name,
        system=name,
        rate=middle(each.busy.requests / each.busy.seconds for each in samples),
        cpu_us=middle(cpu_us),
        ratio=middle(each.cpu_us / other.cpu_us for each, other in pairs),
        spread=(max(cpu_us) - min(cpu_us)) / middle(cpu_us),
        p50_us=middle(each.lone.p50_us for each in samples),
        p99_us=middle(each.lone.p99_us for each in samples),
        errors=sum(each.busy.errors + each.lone.errors for each in samples),
    )
