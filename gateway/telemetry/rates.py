"""Rates, errors and latencies of the last minute, from counters that only grow.

This is the only place that computes them: `/api/v1/status`, `/ui/` and `gateway top` show the same.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Final, NamedTuple

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from gateway.concurrency.slices import in_slices
from gateway.telemetry import names
from gateway.telemetry.families import HistogramFamily
from gateway.telemetry.log.call_log import NO_FAILURES, TRAFFIC_KINDS

WINDOW_S: Final = 60.0
_LEAST_S: Final = 1.0
_QUANTILES: Final = (("p50_ms", 0.5), ("p99_ms", 0.99))
_ALL: Final = ("",)

# Kind of number, names of what it belongs to, and the bound of a bucket in seconds or "".
Key = tuple[str, tuple[str, ...], str]


class Reading(NamedTuple):
    """The metrics at one time.

    Attributes:
        at_s: When they were read, monotonic seconds.
        counters: What grows.
        gauges: What is so at this time, by its name and what it belongs to.
    """

    at_s: float
    counters: Mapping[Key, float]
    gauges: Mapping[tuple[str, tuple[str, ...]], float]


class TrafficWindow:
    """Compares the counters now with those of a minute ago, or of the last reading before.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._readings: deque[Reading] = deque([Reading(clock(), {}, {})])

    async def update(self, families: Iterable[Metric]) -> None:
        """Add a reading of the counters."""
        now = self._clock()
        reading = await _read(now, families)
        readings = self._readings
        # One reading a second is enough, however often somebody looks.
        if len(readings) > 2 and readings[-1].at_s - readings[-2].at_s < _LEAST_S:  # noqa: PLR2004
            readings.pop()
        readings.append(reading)
        # The first reading is the one to compare with: one older than a minute gives way to a
        # younger one that is at least a second old.
        while len(readings) > 2 and (  # noqa: PLR2004
            now - readings[0].at_s > WINDOW_S and now - readings[1].at_s >= _LEAST_S
        ):
            readings.popleft()

    async def document(self) -> dict[str, Any]:
        """Return the numbers of all calls, and by route, target, model and endpoint."""
        before, latest = self._readings[0], self._readings[-1]
        seconds = max(latest.at_s - before.at_s, _LEAST_S)
        found: dict[str, dict[tuple[str, ...], _Traffic]] = {
            kind: defaultdict(_Traffic) for kind in ("all", *_NAMES)
        }
        async for (number, key, bound), value in in_slices(latest.counters.items()):
            # A counter that is smaller than before began anew.
            earlier = before.counters.get((number, key, bound), 0.0)
            added = value - earlier if value >= earlier else value
            kind, _, part = number.partition(".")
            found[kind][key].add(part, bound, added)
        everything = found["all"][_ALL]
        return {
            "window_s": round(seconds, 1),
            "per_s": round(everything.calls / seconds, 2),
            "rejected_per_s": round(everything.rejected / seconds, 2),
            "connections": int(latest.gauges.get(("connections", _ALL), 0.0)),
            **{
                f"{kind}s": [
                    {
                        **dict(zip(_NAMES[kind], names, strict=True)),
                        **traffic.document(seconds),
                        **_EXTRA[kind](traffic, names, latest.gauges),
                    }
                    async for names, traffic in in_slices(sorted(found[kind].items(), key=_name))
                ]
                for kind in _NAMES
            },
        }


class _Traffic:
    """The calls of a route, target, model or endpoint within the window, without probes."""

    __slots__ = ("buckets", "calls", "failed", "means", "rejected", "seconds")

    def __init__(self) -> None:
        self.calls = 0.0
        self.failed = 0.0
        self.rejected = 0.0
        self.seconds = 0.0
        self.buckets: dict[float, float] = {}
        self.means: dict[str, list[float]] = {}

    def add(self, part: str, bound: str, value: float) -> None:
        """Add the change of one counter."""
        match part:
            case "buckets":
                bound_s = float(bound)
                self.buckets[bound_s] = self.buckets.get(bound_s, 0.0) + value
            case "seconds":
                self.seconds += value
            case "probes":  # they only name the endpoint
                pass
            case "rejected":
                self.rejected += value
            case "calls" | "failed":
                self.calls += value
                self.failed += value if part == "failed" else 0.0
            case _:
                self.means.setdefault(part, [0.0, 0.0])[bound == "count"] += value

    def document(self, seconds: float) -> dict[str, Any]:
        """Return rates, errors and latencies; those that are not known are None."""
        found: dict[str, Any] = {
            "calls": int(self.calls),
            "per_s": round(self.calls / seconds, 2),
            "errors": int(self.failed),
            "error_share": round(self.failed / self.calls, 4) if self.calls else 0.0,
        }
        found["mean_ms"] = None
        if self.seconds and self.calls:
            found["mean_ms"] = round(self.seconds / self.calls * 1e3, 3)
        for name, share in _QUANTILES:
            value = _quantile(self.buckets, share)
            found[name] = None if value is None else round(value * 1e3, 3)
        return found


_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "route": ("route",),
    "target": ("route", "target"),
    "model": ("model",),
    "endpoint": ("upstream", "address"),
}
Gauges = Mapping[tuple[str, tuple[str, ...]], float]


def _route_extra(_traffic: _Traffic, names: tuple[str, ...], gauges: Gauges) -> dict[str, Any]:
    return {part: int(gauges.get((part, names), 0.0)) for part in ("in_flight", "queued")}


def _no_extra(_traffic: _Traffic, _names: tuple[str, ...], _gauges: Gauges) -> dict[str, Any]:
    return {}


def _model_extra(traffic: _Traffic, _names: tuple[str, ...], _gauges: Gauges) -> dict[str, Any]:
    """Return the mean time of a call upstream, in queues and in the gateway itself."""
    found: dict[str, Any] = {}
    for part in _MEANS.values():
        seconds, count = traffic.means.get(part, (0.0, 0.0))
        found[f"{part}_ms"] = round(seconds / count * 1e3, 3) if count else None
    return found


def _endpoint_extra(_traffic: _Traffic, names: tuple[str, ...], gauges: Gauges) -> dict[str, Any]:
    return {"ready": bool(gauges.get(("ready", names), 0.0))}


_EXTRA: Final[Mapping[str, Callable[[_Traffic, tuple[str, ...], Gauges], dict[str, Any]]]] = {
    "route": _route_extra,
    "target": _no_extra,
    "model": _model_extra,
    "endpoint": _endpoint_extra,
}


def _samples(family: Metric) -> Iterable[Sample]:
    if isinstance(family, HistogramFamily) and family.name in _MEANS:
        return family.totals
    return family.samples


def _name(item: tuple[tuple[str, ...], object]) -> tuple[str, ...]:
    return item[0]


async def _read(at_s: float, families: Iterable[Metric]) -> Reading:
    counters: dict[Key, float] = defaultdict(float)
    gauges: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    async for family in in_slices(families):
        read = _READERS.get(family.name)
        if read is not None:
            for sample in _samples(family):
                for key in read(sample.name, sample.labels):
                    counters[key] += sample.value
        elif family.name in _GAUGES:
            name, labels = _GAUGES[family.name]
            for sample in family.samples:
                gauges[name, tuple(sample.labels[each] for each in labels) or _ALL] += sample.value
    return Reading(at_s, counters, gauges)


_GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    names.CONNECTIONS.family: ("connections", ()),
    names.ROUTE_IN_FLIGHT.family: ("in_flight", ("route",)),
    names.ROUTE_QUEUED.family: ("queued", ("route",)),
    names.UPSTREAM_READY.family: ("ready", ("upstream", "endpoint")),
}


def _call_keys(_name: str, labels: Mapping[str, str]) -> Iterable[Key]:
    if labels["kind"] in TRAFFIC_KINDS:
        part = "calls" if labels["code"] in NO_FAILURES else "failed"
        yield f"all.{part}", _ALL, ""
        yield f"route.{part}", (labels["route"],), ""
        yield f"model.{part}", (labels["model"],), ""
        if labels["target"]:
            yield f"target.{part}", (labels["route"], labels["target"]), ""


def _rejected_keys(_name: str, _labels: Mapping[str, str]) -> Iterable[Key]:
    yield "all.rejected", _ALL, ""


def _duration_keys(name: str, labels: Mapping[str, str]) -> Iterable[Key]:
    if name.endswith("_bucket") and labels["kind"] in TRAFFIC_KINDS:
        yield "route.buckets", (labels["route"],), labels["le"]
        if labels.get("target"):
            yield "target.buckets", (labels["route"], labels["target"]), labels["le"]


_MEANS: Final = {
    names.UPSTREAM_DURATION.family: "upstream",
    names.QUEUE_DURATION.family: "queue",
    names.OVERHEAD_DURATION.family: "overhead",
}


def _mean_keys(name: str, labels: Mapping[str, str]) -> Iterable[Key]:
    family, _, part = name.rpartition("_")
    if part in {"sum", "count"}:
        yield f"model.{_MEANS[family]}", (labels["model"],), part


def _attempt_keys(_name: str, labels: Mapping[str, str]) -> Iterable[Key]:
    part = "calls" if labels["code"] in NO_FAILURES else "failed"
    if labels["kind"] not in TRAFFIC_KINDS:
        part = "probes"
    yield f"endpoint.{part}", (labels["upstream"], labels["endpoint"]), ""


def _seconds_keys(_name: str, labels: Mapping[str, str]) -> Iterable[Key]:
    if labels["kind"] in TRAFFIC_KINDS:
        yield "endpoint.seconds", (labels["upstream"], labels["endpoint"]), ""


_READERS: Final[Mapping[str, Callable[[str, Mapping[str, str]], Iterable[Key]]]] = {
    names.REQUESTS.family: _call_keys,
    names.REFUSED_REQUESTS.family: _rejected_keys,
    names.REQUEST_DURATION.family: _duration_keys,
    names.UPSTREAM_ATTEMPTS.family: _attempt_keys,
    names.UPSTREAM_ATTEMPT_SECONDS.family: _seconds_keys,
    **dict.fromkeys(_MEANS, _mean_keys),
}


def _quantile(cumulative: Mapping[float, float], share: float) -> float | None:
    """Return a quantile in seconds, interpolated within its bucket; None without calls."""
    bounds = sorted(cumulative)
    total = cumulative[bounds[-1]] if bounds else 0.0
    if not total:
        return None
    below, last = 0.0, 0.0
    for bound in bounds:
        count = cumulative[bound]
        if count >= share * total:
            if bound == float("inf"):
                return last
            return last + (bound - last) * (share * total - below) / max(count - below, 1e-9)
        below, last = count, bound
    return last
