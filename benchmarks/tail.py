"""Tail: latencies of small requests that arrive at a fixed rate, at the gateway and at its peers.

The load is open loop: h2load sends each request at its time, on connections that are mostly idle.
Systems get load in turn, round after round. The percentiles are those of all rounds together, so
that a thousandth of them is more than one request.
"""

from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from benchmarks import load
from benchmarks.jobs import all_jobs
from benchmarks.processes import cores
from benchmarks.progress import Say
from benchmarks.rounds import start_systems

RATES = (200, 2000)
"""Requests per second."""

_JOB = "json-grpc small"
_SYSTEMS = frozenset({"gateway", "envoy transcoder", "envoy proxy (nt)", "direct (nt)"})
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
    (job,) = (each for each in all_jobs() if each.name == _JOB)
    job = replace(job, contenders=tuple(each for each in job.contenders if each.name in _SYSTEMS))
    with ExitStack() as stack:
        systems = start_systems(job, name_parts, stack, say)
        targets = {name: target for name, (_, target) in systems.items()}
        rows = []
        for rate in RATES:
            replies: dict[str, list[load.TimedReply]] = {name: [] for name in targets}
            for number in range(1, rounds + 1):
                say(f"  round {number} of {rounds}: {rate} requests per second")
                for name, target in targets.items():
                    replies[name] += load.open_loop(target, _CONNECTIONS, rate, _TURN_S, cores()[1])
            rows += [row_of(name, rate, found) for name, found in replies.items()]
    return rows


def row_of(system: str, rate: int, replies: list[load.TimedReply]) -> Row:
    """Return the percentiles of *replies*, of which there is at least one."""
    latencies = sorted(each.us for each in replies)

    def percentile(share: float) -> float:
        return latencies[int(len(latencies) * share)]

    return Row(
        system,
        rate,
        len(replies),
        percentile(0.5),
        percentile(0.99),
        percentile(0.999),
        sum(not each.is_ok for each in replies),
    )
