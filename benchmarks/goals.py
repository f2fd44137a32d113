"""The goals of the native transports, and how a run compares with them.

Each goal has a required value, a stretch value, or both. Ratios are of CPU time per request, the
median over pairs within a round. Where a goal names a peer, 2.0 means that the peer takes twice the
CPU time of the gateway.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.codecs import SIMDJSON
from benchmarks.resident import PASSED_ON, RECEIVED
from benchmarks.rounds import BASE, Row
from benchmarks.workers import TWO

MAX_SPREAD = 0.3
"""A row whose rounds differ by more, +-15 %, judges nothing."""

_P99_FACTOR = 1.5
JSON, GRPC, HTTP_602K = "json-grpc small", "grpc-http small", "binary-http 602KB"
FLOATS, HUGE = "json-grpc 150k floats", "binary-http 16MB"
NOOP, TRITON, TRITON_FLOATS = "json-noop small", "json-triton small", "json-triton 150k floats"
_BINARY_CODECS = ("oip.grpc", "oip.http", "graphpipe messages")


class Results:
    """The measurements of a run.

    Args:
        sections: The sections of results.json.

    Attributes:
        two_workers: CPU time per request of two workers in units of one worker's, if measured.
    """

    def __init__(self, sections: Mapping[str, Any]) -> None:
        rows = [Row(**row) for row in sections.get("jobs", {}).get("rows", ())]
        self._rows = {(row.job, row.system): row for row in rows if _is_steady(row)}
        self._codecs: list[Mapping[str, Any]] = sections.get("codecs", {}).get("rows", [])
        self._memory_rows: list[Mapping[str, Any]] = sections.get("held", {}).get("rows", [])
        found = [Row(**row) for row in sections.get("workers", {}).get("rows", ())]
        self.two_workers = next(
            (row.ratio for row in found if row.system == TWO and _is_steady(row)), None
        )

    def row(self, job: str, system: str = BASE) -> Row | None:
        """Return the row of a system, or None if it was not measured, or judges nothing."""
        return self._rows.get((job, system))

    def times(self, job: str, peer: str) -> float | None:
        """Return a peer's CPU time per request in units of the gateway's."""
        row = self.row(job, peer)
        return None if row is None or self.row(job) is None else row.ratio

    def throughput(self, job: str, peer: str) -> float | None:
        """Return the gateway's requests per second in units of a peer's."""
        row, own = self.row(job, peer), self.row(job)
        return None if row is None or own is None else own.rate / row.rate

    def codec(self, name: str, step: str = "") -> list[Mapping[str, Any]]:
        """Return the timings of a codec."""
        return [one for one in self._codecs if one["codec"] == name and step in one["step"]]

    def memory(self, what: str) -> Mapping[str, Any] | None:
        """Return the memory of large requests, or None if it was not measured."""
        return next((one for one in self._memory_rows if one["what"] == what), None)


def _is_steady(row: Row) -> bool:
    """Return whether a row may judge a goal: it has no errors, and its rounds agree."""
    return not row.errors and row.spread <= MAX_SPREAD


Measure = Callable[[Results], float | None]


@dataclass(frozen=True)
class Goal:
    """A value to reach.

    Attributes:
        required: The value that a release must reach, if there is one.
        stretch: A harder value, if there is one.
        most: The value is an upper bound. Otherwise it is a lower bound.
        by_rate: The same ratio by requests per second, where it is meaningful.
    """

    what: str
    measure: Measure
    required: float | None = None
    stretch: float | None = None
    most: bool = False
    by_rate: Measure | None = None


@dataclass(frozen=True)
class Judged:
    """A goal with its measurement, which is None if the run has none."""

    what: str
    required: float | None
    stretch: float | None
    most: bool
    measured: float | None
    by_rate: float | None

    def reaches(self, limit: float | None) -> bool | None:
        """Return whether the measured value meets *limit*; None if either is missing."""
        if limit is None or self.measured is None:
            return None
        return self.measured <= limit if self.most else self.measured >= limit

    def document(self) -> dict[str, object]:
        """Return it for JSON."""
        return asdict(self)


def judged(sections: Mapping[str, Any]) -> list[Judged]:
    """Return every goal with its measurement in *sections*."""
    results = Results(sections)
    return [
        Judged(
            goal.what,
            goal.required,
            goal.stretch,
            goal.most,
            goal.measure(results),
            None if goal.by_rate is None else goal.by_rate(results),
        )
        for goal in GOALS
    ]


def _peer(job: str, peer: str, required: float | None, stretch: float | None) -> Goal:
    """Return the goal that *peer* costs at least a multiple of the gateway."""
    return Goal(
        f"{job}: {peer}",
        lambda results: results.times(job, peer),
        required,
        stretch,
        by_rate=lambda results: results.throughput(job, peer),
    )


def _no_more(job: str, peer: str, stretch: float) -> Goal:
    """Return the goal that the gateway costs at most a multiple of *peer*."""

    def measure(results: Results) -> float | None:
        times = results.times(job, peer)
        return None if times is None else 1 / times

    return Goal(f"{job}: gateway / {peer}", measure, None, stretch, most=True)


def _added(results: Results) -> float | None:
    own, peer = results.row(JSON), results.row(JSON, "envoy transcoder")
    if own is None or peer is None or own.added_us is None or not peer.added_us:
        return None
    return own.added_us / peer.added_us


def _tail(results: Results) -> float | None:
    own = results.row(JSON)
    return None if own is None else own.p99_us / own.p50_us


def _to_grpc(results: Results) -> float | None:
    grpc, http = results.row("binary-grpc 602KB"), results.row(HTTP_602K)
    return None if grpc is None or http is None else grpc.cpu_us / http.cpu_us


def _parse(results: Results) -> float | None:
    own, parse = results.row(FLOATS), results.codec(SIMDJSON)
    return None if own is None or not parse else own.cpu_us / parse[0]["micros"][1]


def _share(results: Results) -> float | None:
    own = results.row(TRITON, "gateway, without triton's share")
    triton = results.row(TRITON, "triton itself")
    return None if own is None or triton is None else own.cpu_us / triton.cpu_us


def _growth(results: Results) -> float | None:
    found = [one["growth"] for name in _BINARY_CODECS for one in results.codec(name)]
    return max((growth for growth in found if growth is not None), default=None)


def _graphpipe(results: Results) -> float | None:
    found = results.codec("graphpipe messages", "build")
    return found[0]["peer_us"] / found[0]["micros"][1] if found else None


def _passed(results: Results) -> float | None:
    found = results.memory(PASSED_ON)
    return None if found is None else found["peak_mib"] / found["requests"]


def _received(results: Results) -> float | None:
    found = results.memory(RECEIVED)
    return None if found is None else found["peak_mib"] / found["allowed_mib"]


def _two_workers(results: Results) -> float | None:
    return results.two_workers


GOALS: Iterable[Goal] = (
    _peer(JSON, "envoy transcoder", 1.5, 2.0),
    _peer(JSON, "gateway, reference", 2.8, 3.3),
    _peer(JSON, "rest-proxy", None, 1.8),
    _peer(JSON, "envoy proxy (nt)", None, 1.0),
    _no_more(JSON, "nginx proxy (nt)", 2.0),
    Goal(f"{JSON}: added p50, gateway / transcoder", _added, None, 0.45, most=True),
    Goal(f"{JSON}: p99 / p50 at one connection", _tail, None, _P99_FACTOR, most=True),
    _peer(GRPC, "gateway, reference", 8.0, 10.0),
    _no_more(GRPC, "envoy proxy (nt)", 1.1),
    _peer(HTTP_602K, "envoy proxy (nt)", 1.15, 1.3),
    _peer(HTTP_602K, "nginx proxy (nt)", None, 0.9),
    _peer(HTTP_602K, "gateway, reference", None, 2.0),
    Goal("602KB: binary-grpc / binary-http", _to_grpc, None, 1.5, most=True),
    _peer("grpc-http 602KB", "envoy proxy (nt)", None, 1.3),
    _peer(HUGE, "envoy proxy (nt)", None, 1.2),
    _peer(HUGE, "nginx proxy (nt)", None, 0.95),
    _peer(FLOATS, "envoy transcoder", 7.0, 8.0),
    Goal(f"{FLOATS}: gateway / {SIMDJSON}", _parse, None, 1.15, most=True),
    _peer(TRITON_FLOATS, "triton itself", 2.8, 3.0),
    Goal(f"{TRITON}: gateway's share / triton itself", _share, None, 0.9, most=True),
    _peer(NOOP, "triton", 2.0, 2.5),
    _peer(NOOP, "mlserver", 12.0, 15.0),
    _peer(NOOP, "kserve", None, 28.0),
    _peer("grpc-noop small", "triton", None, 1.6),
    _peer("binary-noop 602KB", "triton", None, 6.0),
    Goal("memory: MiB for each forwarded 16 MiB", _passed, 1.0, 1.0, most=True),
    Goal("memory: 32 of 32 MiB / allowed", _received, 1.0, None, most=True),
    Goal("codecs: 16 MiB / 602 KB, the worst of binary ones", _growth, None, 1.2, most=True),
    Goal(f"{JSON}: cpu us with 2 workers / 1", _two_workers, 1.05, 1.05, most=True),
    Goal("codecs: flatbuffers' builder / ours at 602 KB", _graphpipe, None, 100.0),
)
