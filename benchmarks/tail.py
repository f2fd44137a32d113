"""Tail: latencies of small requests that arrive at a fixed rate, at the gateway and at its peers.

The load is open loop: each request is sent at its time, on connections that are mostly idle, by
h2load where it is repeated, and by appload where it is as applications send it. Systems get load in
turn, round after round. The percentiles are those of all rounds together, so that a thousandth of
them is more than one request. The gateway runs with and without Python's garbage collector: the
difference is the collector's share.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial

from benchmarks import load, systems
from benchmarks.applications import EVERYTHING
from benchmarks.jobs import Job, all_jobs
from benchmarks.processes import cores
from benchmarks.progress import Say
from benchmarks.rounds import start_systems

RATES = (200, 2000)
"""Requests per second."""

_REPEATED = "json-grpc small"
_AS_SENT = f"json-grpc {EVERYTHING}"
_SYSTEMS = {
    _REPEATED: ("gateway", "envoy transcoder", "envoy proxy (nt)", "direct (nt)"),
    _AS_SENT: ("gateway", "envoy transcoder"),
}
UNCOLLECTED = "gateway, no collector"
_CONNECTIONS = 20
_TURN_S = 5.0


@dataclass(frozen=True)
class Row:
    """The latencies of one system at one rate.

    Attributes:
        rate: Requests per second that are due.
        requests: All that were sent.
        errors: How many of them failed.
    """

    job: str
    system: str
    rate: int
    requests: int
    p50_us: float
    p99_us: float
    p99_9_us: float
    errors: int

    def document(self) -> dict[str, object]:
        """Return the row for JSON."""
        return asdict(self)


def run(rounds: int, name_parts: frozenset[str], say: Say) -> list[Row]:
    """Measure the systems whose names contain one of *name_parts*, or all of them.

    Raises:
        RuntimeError: h2load is missing or has failed.
    """
    return [row for job in _jobs() for row in _rows(job, rounds, name_parts, say)]


def _jobs() -> Iterator[Job]:
    """Yield the jobs, each with the systems whose latencies are measured."""
    for job in all_jobs():
        if job.name in _SYSTEMS:
            found = [each for each in job.contenders if each.name in _SYSTEMS[job.name]]
            if job.name == _AS_SENT:
                start = partial(systems.gateway, collects=False)
                found.append(replace(found[0], name=UNCOLLECTED, start=start))
            yield replace(job, contenders=tuple(found))


def _rows(job: Job, rounds: int, name_parts: frozenset[str], say: Say) -> list[Row]:
    with ExitStack() as stack:
        started = start_systems(job, name_parts, stack, say)
        targets = {name: target for name, (_, target) in started.items()}
        rows = []
        for rate in RATES:
            replies: dict[str, list[load.TimedReply]] = {name: [] for name in targets}
            for number in range(1, rounds + 1):
                say(f"  round {number} of {rounds}: {job.name}, {rate} requests per second")
                for name, target in targets.items():
                    replies[name] += load.open_loop(target, _CONNECTIONS, rate, _TURN_S, cores()[1])
            rows += [row_of(job.name, name, rate, found) for name, found in replies.items()]
    return rows


def row_of(job: str, system: str, rate: int, replies: list[load.TimedReply]) -> Row:
    """Return the percentiles of *replies*, of which there is at least one."""
    latencies = sorted(each.us for each in replies)

    def percentile(share: float) -> float:
        return latencies[int(len(latencies) * share)]

    return Row(
        job,
        system,
        rate,
        len(replies),
        percentile(0.5),
        percentile(0.99),
        percentile(0.999),
        sum(not each.is_ok for each in replies),
    )
