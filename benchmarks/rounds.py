"""Running a job: all systems run at once, and get load in turn (A B C A B C)."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from subprocess import SubprocessError

from benchmarks import load
from benchmarks.jobs import Contender, Job
from benchmarks.load import Measured, Target
from benchmarks.machine import cpu_ticks
from benchmarks.messages import SMALL, same
from benchmarks.processes import cores, cpu_seconds
from benchmarks.progress import Say
from benchmarks.systems import Absent, Running, canned

BASE = "gateway"
DIRECT = "direct (nt)"
_LINE = 250
MAX_STOLEN = 0.1
"""A measurement of which the host took away a larger share is repeated."""
_ATTEMPTS = 3


@dataclass(frozen=True)
class Settings:
    """Length and number of measurements.

    Attributes:
        seconds: How long one measurement takes.
    """

    rounds: int
    seconds: float


@dataclass(frozen=True)
class Row:
    """Medians of a system in one job.

    Attributes:
        rate: Requests per second on one core.
        cpu_us: CPU time of the system for each request, in microseconds.
        ratio: CPU time in units of the gateway's, the median over pairs of neighbouring
            measurements: 2.0 is twice the gateway's.
        spread: Largest minus smallest `cpu_us` of the rounds, divided by their median.
        p50_us: Latency with one connection.
        added_us: The latency without that of the canned server, if there is one.
        errors: Failed requests of all rounds.
        stolen: Largest share of a round that the host took away from the processors.
    """

    job: str
    system: str
    rate: float
    cpu_us: float
    ratio: float
    spread: float
    p50_us: float
    added_us: float | None
    p99_us: float
    errors: int
    stolen: float = 0.0

    def document(self) -> dict[str, object]:
        """Return the row for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Sample:
    """One round of one system.

    Attributes:
        busy: Under load.
        lone: With one connection; not in every round.
        stolen: Share of the time that the host took away from the processors.
    """

    cpu_us: float
    busy: Measured
    lone: Measured | None
    stolen: float = 0.0


def run(job: Job, settings: Settings, name_parts: frozenset[str], say: Say) -> list[Row]:
    """Run *job* for the systems whose names contain one of *name_parts*, or for all of them."""
    with ExitStack() as stack:
        up = start_systems(job, name_parts, stack, say)
        samples: dict[str, list[Sample]] = {name: [] for name in up}
        for name, (running, target) in up.items():
            load.run(target, job.connections, 1, cores()[1])  # warm-up
            if cpu_seconds(*running.pids) <= 0:
                raise RuntimeError(f"{name} of {job.name} burns no CPU that can be seen")
        for number in range(1, settings.rounds + 1):
            say(f"  round {number} of {settings.rounds}: {job.name}")
            for name, (running, target) in [*up.items()]:
                try:
                    lone = job.case.name == SMALL or number == 1
                    measure = partial(_sample, job, running, target, settings, lone=lone)
                    samples[name].append(least_stolen(measure, say))
                except (RuntimeError, OSError, SubprocessError) as error:
                    if name == BASE:
                        raise
                    say(f"  given up: {name} in {job.name}: {_line(error)}")
                    del up[name], samples[name]
    return rows_of(job, samples)


def start_systems(
    job: Job, name_parts: frozenset[str], stack: ExitStack, say: Say
) -> dict[str, tuple[Running, Target]]:
    """Start the systems of a job whose names contain one of *name_parts*, or all of them.

    Their replies are checked. *stack* stops them. *say* gets the reason if one does not start.
    """
    up: dict[str, tuple[Running, Target]] = {}
    contenders = [
        each
        for each in job.contenders
        if not name_parts or any(part in each.name for part in name_parts)
    ]
    try:
        behind = _behind(job, contenders, stack)
    except Absent as error:
        say(f"  skipped: {job.name}: {error}")
        return {}
    for each in contenders:
        try:
            running = _started(job, each, behind, stack)
            target = _target(each, running)
            _check(job, each, target)
        except (Absent, RuntimeError, OSError) as error:
            if each.name == BASE:
                raise
            say(f"  skipped: {each.name} in {job.name}: {_line(error)}")
            continue
        up[each.name] = running, target
    return up


def _behind(job: Job, contenders: Sequence[Contender], stack: ExitStack) -> dict[str, Running]:
    """Start the upstreams of the systems, by carrier."""
    if job.server is not None:
        server = stack.enter_context(job.server())
        return {"http": server, "grpc": server}
    backs = {each.back for each in contenders if each.start is not None} - {None}
    return {
        carrier: stack.enter_context(canned(carrier, reply, cores()[1], job.addresses))
        for carrier, reply in job.replies.items()
        if carrier in backs
    }


def _started(
    job: Job, contender: Contender, behind: Mapping[str, Running], stack: ExitStack
) -> Running:
    if contender.start is None and job.server is not None:
        return behind[contender.front]
    if contender.start is None:
        reply = job.replies[contender.front]
        return stack.enter_context(canned(contender.front, reply, cores()[0]))
    if contender.back is None:
        return stack.enter_context(contender.start("", 0))
    back = behind[contender.back]
    port = back.http_port if contender.back == "http" else back.grpc_port
    running = stack.enter_context(contender.start(contender.back, port))
    if not contender.with_back:
        return running
    return Running(running.pid, running.http_port, running.grpc_port, behind=back.pids)


def _target(contender: Contender, running: Running) -> Target:
    ports = {"http": running.http_port, "grpc": running.grpc_port, "brpc": running.brpc_port}
    front = contender.front
    kind = contender.kind
    return Target(front, ports[front], contender.path, contender.question, contender.others, kind)


def _check(job: Job, contender: Contender, target: Target) -> None:
    found = contender.read(load.ask(target))
    if contender.exact and not same(found, job.case.outputs):
        raise RuntimeError(f"answers otherwise than the model: {str(found)[:300]}")


def least_stolen(measure: Callable[[], Sample], say: Say) -> Sample:
    """Return the first of several samples of which the host took away little, or the best."""
    found: list[Sample] = []
    for _ in range(_ATTEMPTS):
        found.append(measure())
        if found[-1].stolen <= MAX_STOLEN:
            break
        say(f"  {found[-1].stolen:.0%} of a measurement was stolen")
    return min(found, key=lambda sample: sample.stolen)


def _sample(
    job: Job, running: Running, target: Target, settings: Settings, *, lone: bool
) -> Sample:
    stolen, total = cpu_ticks()
    before = cpu_seconds(*running.pids)
    busy = load.run(target, job.connections, settings.seconds, cores()[1])
    cpu_us = (cpu_seconds(*running.pids) - before) * 1e6 / max(1, busy.requests)
    # Only small latencies matter; one round is enough for the others.
    alone = load.run(target, 1, 1, cores()[1]) if lone else None
    stolen_after, total_after = cpu_ticks()
    share = (stolen_after - stolen) / max(1, total_after - total)
    return Sample(cpu_us, busy, alone, share)


def _line(error: Exception) -> str:
    """Return the error as one line."""
    return " ".join(str(error).split())[:_LINE]


def rows_of(job: Job, samples: Mapping[str, list[Sample]]) -> list[Row]:
    """Return the medians of each system. The first round of each has a latency."""
    return [_row(job, name, found, samples) for name, found in samples.items()]


def _row(job: Job, name: str, samples: list[Sample], of: Mapping[str, list[Sample]]) -> Row:
    middle = statistics.median
    cpu_us = [each.cpu_us for each in samples]
    pairs = zip(samples, of.get(BASE, samples), strict=True)
    lone = [each.lone for each in samples if each.lone is not None]
    direct = [each.lone for each in of.get(DIRECT, ()) if each.lone is not None]
    added = [each.p50_us - other.p50_us for each, other in zip(lone, direct, strict=False)]
    return Row(
        job=job.name,
        system=name,
        rate=middle(each.busy.requests / each.busy.seconds for each in samples),
        cpu_us=middle(cpu_us),
        ratio=middle(each.cpu_us / other.cpu_us for each, other in pairs),
        spread=(max(cpu_us) - min(cpu_us)) / middle(cpu_us),
        p50_us=middle(each.p50_us for each in lone),
        added_us=middle(added) if added and name != DIRECT else None,
        p99_us=middle(each.p99_us for each in lone),
        errors=sum(each.busy.errors for each in samples) + sum(each.errors for each in lone),
        stolen=max(each.stolen for each in samples),
    )
