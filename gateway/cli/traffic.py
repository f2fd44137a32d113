"""Traffic between two readings of a metrics page: rates, failures and latencies.

`top` shows them. This module reads no port.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.call_log import NO_FAILURES, TRAFFIC_KINDS

_DURATION: Final = "gateway_request_duration_seconds"

Labels = Mapping[str, str]


class Reading(Struct, frozen=True):
    """One metrics page.

    Attributes:
        at_s: When it was read, monotonic seconds.
        samples: Labels and values by the name of the sample.
    """

    at_s: float
    samples: Mapping[str, Sequence[tuple[Labels, float]]]

    @classmethod
    def of(cls, page: str, at_s: float) -> Reading:
        """Return the reading of a page in the Prometheus text format.

        Raises:
            ValueError: The page has another format.
        """
        found: defaultdict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found[sample.name].append((sample.labels, sample.value))
        return cls(at_s, found)

    def sums(
        self, name: str, *labels: str, has_probes: bool = False
    ) -> dict[tuple[str, ...], float]:
        """Return the values of a sample by some of its labels, added up over the others.

        Args:
            name: The name of the sample.
            labels: Their values are the keys of the result.
            has_probes: Whether other kinds than inferences and forwarded requests count, too.
        """
        found: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for each, value in self.samples.get(name, ()):
            if not has_probes and "kind" in each and each["kind"] not in TRAFFIC_KINDS:
                continue
            found[tuple(each.get(label, "") for label in labels)] += value
        return found


class Row(Struct, frozen=True):
    """One route, target, model or endpoint.

    Attributes:
        names: The names in its first columns.
        per_s: Calls per second.
        failed: Share of them that failed; None without calls.
        p50_ms: Median of the duration, interpolated within its bucket; None without calls.
        p99_ms: The 99th percentile of the same.
        mean_ms: Mean time upstream, in queues and in the gateway; of attempts only the first.
        pending: Calls in flight, and calls in the queue.
        is_ready: Whether the endpoint is ready; None for other rows.
    """

    names: tuple[str, ...]
    per_s: float
    failed: float | None
    p50_ms: float | None = None
    p99_ms: float | None = None
    mean_ms: tuple[float, ...] = ()
    pending: tuple[float, ...] = ()
    is_ready: bool | None = None


class Traffic(Struct, frozen=True):
    """What happened between two readings; rows with the highest rate come first.

    Attributes:
        seconds: Time between them.
        per_s: Calls per second.
        rejected_per_s: Requests per second that were rejected before routing.
        connections: Open connections of clients.
        routes: By route.
        targets: By route and target.
        models: By model.
        endpoints: By upstream and endpoint.
    """

    seconds: float
    per_s: float
    rejected_per_s: float
    connections: float
    routes: list[Row]
    targets: list[Row]
    models: list[Row]
    endpoints: list[Row]


ORDERS: Final[Mapping[str, Callable[[Row], float]]] = {
    "load": lambda row: row.per_s,
    "errors": lambda row: row.failed or 0.0,
    "latency": lambda row: max((row.p99_ms or 0.0, *row.mean_ms)),
}
"""What rows are sorted by, in descending order."""


def traffic_between(before: Reading, after: Reading, order: str = "load") -> Traffic:
    """Return what happened between two readings.

    Args:
        before: The earlier one.
        after: The later one; its counters may have begun anew since.
        order: A key of `ORDERS`.
    """
    change = _Change(before, after)
    key = ORDERS[order]
    pending = [
        after.sums(name, "route") for name in ("gateway_route_in_flight", "gateway_route_queued")
    ]

    def sort(rows: Iterable[Row]) -> list[Row]:
        return sorted(rows, key=lambda row: (-key(row), -row.per_s, row.names))

    return Traffic(
        seconds=change.seconds,
        per_s=sum(change.counts("gateway_requests_total").values()) / change.seconds,
        rejected_per_s=sum(change.counts("gateway_refused_requests_total").values())
        / change.seconds,
        connections=sum(after.sums("gateway_connections").values()),
        routes=sort(
            change.row(names, pending=tuple(each.get(names, 0.0) for each in pending))
            for names in change.names("route")
        ),
        targets=sort(change.row(names) for names in change.names("route", "target")),
        models=sort(change.model_row(names) for names in change.names("model")),
        endpoints=sort(change.endpoint_rows()),
    )


class _Change:
    """The differences between two readings."""

    def __init__(self, before: Reading, after: Reading) -> None:
        self._before = before
        self._after = after
        self.seconds = max(after.at_s - before.at_s, 1e-9)

    def names(self, *labels: str) -> list[tuple[str, ...]]:
        """Return the combinations of labels that calls have had, those without a name left out."""
        found = self._after.sums("gateway_requests_total", *labels)
        return [names for names in found if all(names)]

    def counts(
        self, name: str, *labels: str, has_probes: bool = False
    ) -> dict[tuple[str, ...], float]:
        """Return by how much a counter has grown. One that began anew has grown by its value."""
        before = self._before.sums(name, *labels, has_probes=has_probes)
        return {
            key: value - before.get(key, 0.0) if value >= before.get(key, 0.0) else value
            for key, value in self._after.sums(name, *labels, has_probes=has_probes).items()
        }

    def row(self, names: tuple[str, ...], pending: tuple[float, ...] = ()) -> Row:
        """Return the row of a route, or of a route and a target."""
        labels = ("route", "target")[: len(names)]
        per_s, failed = self._calls("gateway_requests_total", names, labels)
        buckets = [
            (float(key[-1]), count)
            for key, count in self.counts(f"{_DURATION}_bucket", *labels, "le").items()
            if key[:-1] == names
        ]
        return Row(
            names, per_s, failed, _percentile(buckets, 0.5), _percentile(buckets, 0.99), (), pending
        )

    def model_row(self, names: tuple[str, ...]) -> Row:
        """Return the row of a model."""
        per_s, failed = self._calls("gateway_requests_total", names, ("model",))
        means = []
        for part in ("upstream", "queue", "overhead"):
            metric = f"gateway_{part}_duration_seconds"
            count = self.counts(f"{metric}_count", "model").get(names, 0.0)
            total = self.counts(f"{metric}_sum", "model").get(names, 0.0)
            means.append(total / count * 1e3 if count else 0.0)
        return Row(names, per_s, failed, mean_ms=tuple(means))

    def endpoint_rows(self) -> Iterable[Row]:
        """Yield the row of each endpoint. Its rate has no probes, and its mean time has."""
        labels = ("upstream", "endpoint")
        attempts = self.counts("gateway_upstream_attempts_total", *labels, has_probes=True)
        seconds = self.counts("gateway_upstream_attempt_seconds_total", *labels)
        ready = self._after.sums("gateway_upstream_ready", *labels)
        for names in attempts | ready:
            per_s, failed = self._calls("gateway_upstream_attempts_total", names, labels)
            count = attempts.get(names, 0.0)
            mean = seconds.get(names, 0.0) / count * 1e3 if count else 0.0
            is_ready = bool(ready.get(names, 0.0))
            yield Row(names, per_s, failed, mean_ms=(mean,), is_ready=is_ready)

    def _calls(
        self, metric: str, names: tuple[str, ...], labels: tuple[str, ...]
    ) -> tuple[float, float | None]:
        """Return the rate of calls, and the share of them that failed."""
        by_code = {
            key[-1]: count
            for key, count in self.counts(metric, *labels, "code").items()
            if key[:-1] == names
        }
        total = sum(by_code.values())
        failed = sum(count for code, count in by_code.items() if code not in NO_FAILURES)
        return total / self.seconds, None if not total else failed / total


def _percentile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return a percentile of a histogram of seconds in milliseconds.

    Args:
        buckets: Upper bounds, and the counts up to them.
        share: Such as 0.99.
    """
    ordered = sorted(buckets)
    if not ordered or not ordered[-1][1]:
        return None
    wanted = share * ordered[-1][1]
    low, below = 0.0, 0.0
    for bound, count in ordered:
        if count >= wanted:
            if bound == float("inf"):
                return low * 1e3
            part = (wanted - below) / (count - below) if count > below else 1.0
            return (low + (bound - low) * part) * 1e3
        low, below = bound, count
    return low * 1e3
