"""Metrics of calls: their number and duration.

The metrics of prometheus_client acquire a lock for each increment and search a histogram's bucket
linearly. This collector is only used on the event loop's thread and needs no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, str, str, str, str]
"""Route, model, protocol, kind and code of a call."""

_LABELS: Final = ("route", "model", "protocol", "kind", "code")
_DURATION_LABELS: Final = ("route", "protocol", "kind")


class _DurationHistogram:
    """The histogram of one combination of labels."""

    __slots__ = ("buckets", "seconds")

    def __init__(self, buckets: int) -> None:
        self.seconds = 0.0
        self.buckets = [0] * buckets


class _Count:
    """The number of calls of one combination of labels."""

    __slots__ = ("calls", "durations")

    def __init__(self, durations: _DurationHistogram) -> None:
        self.calls = 0
        self.durations = durations


class CallMetrics(Collector):
    """Counts calls by route, model, protocol, kind and code; durations by route, protocol, kind.

    Args:
        registry: Publishes the metrics.
        bounds_s: Upper bounds of the histogram's buckets, in ascending order.
    """

    def __init__(self, registry: CollectorRegistry, bounds_s: Sequence[float]) -> None:
        self._bounds = tuple(bounds_s)
        texts = [floatToGoString(bound) for bound in bounds_s]  # type: ignore[no-untyped-call]  # the library is half typed
        self._names = (*texts, "+Inf")
        self._counts: dict[tuple[str, ...], _Count] = {}
        self._durations: dict[tuple[str, ...], _DurationHistogram] = {}
        registry.register(self)

    def count(self, labels: Labels, seconds: float) -> None:
        """Count one call."""
        found = self._counts.get(labels)
        if found is None:
            found = self._counts[labels] = _Count(self._durations_of(labels))
        found.calls += 1
        durations = found.durations
        durations.seconds += seconds
        durations.buckets[bisect_left(self._bounds, seconds)] += 1

    def collect(self) -> Iterable[Metric]:
        """Yield both metrics."""
        requests = CounterMetricFamily("gateway_requests", "Completed calls.", labels=_LABELS)
        for labels, count in self._counts.copy().items():
            requests.add_metric(labels, count.calls)
        yield requests
        duration = HistogramMetricFamily(
            "gateway_request_duration_seconds",
            "Time from the decoded call to the complete reply.",
            labels=_DURATION_LABELS,
        )
        for labels, durations in self._durations.copy().items():
            total = 0
            buckets = []
            for name, calls in zip(self._names, durations.buckets, strict=True):
                total += calls
                buckets.append((name, float(total)))
            duration.add_metric(labels, buckets, durations.seconds)
        yield duration

    def _durations_of(self, labels: Labels) -> _DurationHistogram:
        route, _, protocol, kind, _ = labels
        key = (route, protocol, kind)
        found = self._durations.get(key)
        if found is None:
            found = self._durations[key] = _DurationHistogram(len(self._names))
        return found
