"""Start: the time from the start of a process to its first response, and its CPU time until then.

Each round starts every system once, one after the other. The page cache is warm. The time of a
start has a resolution of 10 ms, that of the kernel.
"""

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import load
from benchmarks.jobs import Contender, Job, all_jobs
from benchmarks.load import Target
from benchmarks.processes import cores, cpu_seconds
from benchmarks.progress import Say
from benchmarks.systems import Absent, canned

_JOBS = ("json-grpc small", "json-noop small")
_LEFT_OUT = ("card", "direct (nt)", "nginx proxy (nt)", "envoy proxy (nt)")
_ANSWERED_S = 60.0
_POLL_S = 0.002


@dataclass(frozen=True)
class Row:
    """How fast one system starts.

    Attributes:
        first_ms: Until the first response, the median of the rounds.
        least_ms: The shortest of them.
        cpu_ms: CPU time until then, the median.
    """

    system: str
    first_ms: float
    least_ms: float
    cpu_ms: float

    def document(self) -> dict[str, object]:
        """Return the row for JSON."""
        return asdict(self)


def run(rounds: int, name_parts: frozenset[str], say: Say) -> list[Row]:
    """Start the systems whose names contain one of *name_parts*, or all of them, in each round."""
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(1, rounds + 1):
        say(f"  round {number} of {rounds}: start")
        for name, job, contender in _systems(name_parts):
            try:
                found.setdefault(name, []).append(_started(job, contender))
            except Absent as error:
                say(f"  skipped: {name}: {error}")
    return [
        Row(
            name,
            first_ms=statistics.median(first for first, _ in times),
            least_ms=min(first for first, _ in times),
            cpu_ms=statistics.median(cpu for _, cpu in times),
        )
        for name, times in found.items()
        if times
    ]


def _systems(name_parts: frozenset[str]) -> Iterator[tuple[str, Job, Contender]]:
    for job in all_jobs():
        for each in job.contenders if job.name in _JOBS else ():
            is_wanted = not name_parts or any(part in each.name for part in name_parts)
            if is_wanted and each.name not in _LEFT_OUT:
                yield f"{each.name}, {job.name}", job, each


def _started(job: Job, contender: Contender) -> tuple[float, float]:
    """Start a system; return the time until its first response, and its CPU time, ms."""
    if contender.back is None:
        return _answered(contender, 0)
    with canned(contender.back, job.replies[contender.back], cores()[1]) as server:
        return _answered(contender, server.http_port)


def _answered(contender: Contender, upstream_port: int) -> tuple[float, float]:
    assert contender.start is not None, contender.name
    with contender.start(contender.back or "", upstream_port) as running:
        target = Target("http", running.http_port, contender.path, contender.question)
        deadline = time.monotonic() + _ANSWERED_S
        while True:
            try:
                load.ask(target)
                break
            except (RuntimeError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
        first_s = time.clock_gettime(time.CLOCK_BOOTTIME) - _started_s(running.pid)
        return first_s * 1e3, cpu_seconds(*running.pids) * 1e3


def _started_s(pid: int) -> float:
    """Return when a process was started, seconds since the machine was."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
