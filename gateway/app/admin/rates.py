"""Rates, errors and latencies of the last minute, from counters that only grow."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Final

from prometheus_client.core import Metric

from gateway.telemetry import names
from gateway.telemetry.call_log import NO_FAILURES, TRAFFIC_KINDS

WINDOW_S: Final = 60.0
_LEAST_S: Final = 1.0
_QUANTILES: Final = (("p50_ms", 0.5), ("p99_ms", 0.99))

# Kind of number, names of what it belongs to, and the bound of a bucket in seconds or "".
Key = tuple[str, tuple[str, ...], str]
Reading = Mapping[Key, float]


class TrafficWindow:
    """Compares the counters now with those of a minute ago, or of the last reading before.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._readings: deque[tuple[float, Reading]] = deque([(clock(), {})])

    def update(self, families: Iterable[Metric]) -> None:
        """Add a reading of the counters."""
        now = self._clock()
        readings = self._readings
        readings.append((now, _read(families)))
        # The first reading is the one to compare with: one older than a minute gives way to a
        # younger one that is at least a second old.
        while len(readings) > 2 and (  # noqa: PLR2004
            now - readings[0][0] > WINDOW_S and now - readings[1][0] >= _LEAST_S
        ):
            readings.popleft()

    def document(self) -> dict[str, Any]:
        """Return the numbers by route, by target and by endpoint."""
        (then, before), (now, latest) = self._readings[0], self._readings[-1]
        seconds = max(now - then, _LEAST_S)
        found: dict[str, dict[tuple[str, ...], _Traffic]] = {
            kind: defaultdict(_Traffic) for kind in ("route", "target", "endpoint")
        }
        for (number, key, bound), value in latest.items():
            # A counter that is smaller than before began anew.
            earlier = before.get((number, key, bound), 0.0)
            added = value - earlier if value >= earlier else value
            kind, _, part = number.partition(".")
            found[kind][key].add(part, bound, added)
        return {
            "window_s": round(seconds, 1),
            **{
                f"{kind}s": [
                    {**_named(kind, names), **traffic.document(seconds)}
                    for names, traffic in sorted(rows.items())
                ]
                for kind, rows in found.items()
            },
        }


class _Traffic:
    """The calls of a route, a target or an endpoint within the window, and its probes."""

    __slots__ = ("buckets", "calls", "failed", "probes", "seconds")

    def __init__(self) -> None:
        self.calls = 0.0
        self.failed = 0.0
        self.probes = 0.0
        self.seconds = 0.0
        self.buckets: dict[float, float] = {}

    def add(self, part: str, bound: str, value: float) -> None:
        """Add the change of one counter."""
        if part == "buckets":
            bound_s = float(bound)
            self.buckets[bound_s] = self.buckets.get(bound_s, 0.0) + value
        elif part == "seconds":
            self.seconds += value
        elif part == "probes":
            self.probes += value
        else:
            self.calls += value
            self.failed += value if part == "failed" else 0.0

    def document(self, seconds: float) -> dict[str, Any]:
        """Return rates, errors and latencies; those that are not known are None."""
        found: dict[str, Any] = {
            "calls": int(self.calls),
            "per_s": round(self.calls / seconds, 2),
            "errors": int(self.failed),
            "error_share": round(self.failed / self.calls, 4) if self.calls else 0.0,
        }
        found["mean_ms"] = None
        if self.seconds:  # which is measured with the probes
            found["mean_ms"] = round(self.seconds / (self.calls + self.probes) * 1e3, 3)
        for name, share in _QUANTILES:
            value = _quantile(self.buckets, share)
            found[name] = None if value is None else round(value * 1e3, 3)
        return found


def _named(kind: str, names: tuple[str, ...]) -> dict[str, str]:
    keys = {"route": ("route",), "target": ("route", "target"), "endpoint": ("upstream", "address")}
    return dict(zip(keys[kind], names, strict=True))


def _read(families: Iterable[Metric]) -> Reading:
    found: dict[Key, float] = defaultdict(float)
    for family in families:
        read = _READERS.get(family.name)
        if read is None:
            continue
        for sample in family.samples:
            for key in read(sample.name, sample.labels):
                found[key] += sample.value
    return found


def _call_keys(_name: str, labels: Mapping[str, str]) -> Iterable[Key]:
    if labels["kind"] in TRAFFIC_KINDS:
        part = "calls" if labels["code"] in NO_FAILURES else "failed"
        yield f"route.{part}", (labels["route"],), ""
        if labels["target"]:
            yield f"target.{part}", (labels["route"], labels["target"]), ""


def _duration_keys(name: str, labels: Mapping[str, str]) -> Iterable[Key]:
    if name.endswith("_bucket") and labels["kind"] in TRAFFIC_KINDS:
        yield "route.buckets", (labels["route"],), labels["le"]
        if labels.get("target"):
            yield "target.buckets", (labels["route"], labels["target"]), labels["le"]


def _attempt_keys(_name: str, labels: Mapping[str, str]) -> Iterable[Key]:
    part = "calls" if labels["code"] in NO_FAILURES else "failed"
    if labels["kind"] not in TRAFFIC_KINDS:
        part = "probes"
    yield f"endpoint.{part}", (labels["upstream"], labels["endpoint"]), ""


def _seconds_keys(_name: str, labels: Mapping[str, str]) -> Iterable[Key]:
    yield "endpoint.seconds", (labels["upstream"], labels["endpoint"]), ""


_READERS: Final[Mapping[str, Callable[[str, Mapping[str, str]], Iterable[Key]]]] = {
    names.REQUESTS.family: _call_keys,
    names.REQUEST_DURATION.family: _duration_keys,
    names.UPSTREAM_ATTEMPTS.family: _attempt_keys,
    names.UPSTREAM_ATTEMPT_SECONDS.family: _seconds_keys,
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
