"""Metrics of calls: their number, their duration, and where the time of an inference went.

The metrics of prometheus_client acquire a lock for each increment and search a histogram's bucket
linearly. This collector is only used on the event loop's thread and needs no lock. Each call finds
the cells of all its metrics by one key, and adds its times to a list. Full lists, and all lists at
each scrape, are counted at once.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from struct import pack
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from gateway.telemetry import names
from gateway.telemetry.call_path import INFERENCES
from gateway.telemetry.families import HistogramFamily, counter_family, in_pieces
from gateway.telemetry.log.call_log import OK, CallRecord
from gateway.telemetry.upstream_metrics import BOUNDS_S
from gateway.telemetry.usage.rolling_stats import RollingStats

UNKNOWN: Final = "_unknown"

Labels = tuple[str, str, str, str, str, str]
"""Route, model, protocol, kind, code and target of a call."""

_NONE: Final[Mapping[int, Exemplar]] = MappingProxyType({})
_UNCOUNTED: Final = 4 * 256
_BOUNDS: Final[npt.NDArray[np.float64]] = np.array(BOUNDS_S)


class _Histogram:
    """The histogram of one combination of labels."""

    __slots__ = ("_bounds", "buckets", "seconds")

    def __init__(self, bounds: npt.NDArray[np.float64]) -> None:
        self._bounds = bounds
        self.seconds = 0.0
        self.buckets = [0] * (bounds.size + 1)

    def count(self, seconds: npt.NDArray[np.float64]) -> None:
        """Count several values; a bucket includes its upper bound."""
        self.seconds += float(seconds.sum())
        places = np.bincount(np.searchsorted(self._bounds, seconds), minlength=len(self.buckets))
        self.buckets = [old + new for old, new in zip(self.buckets, places.tolist(), strict=True)]


class _ModelTimes:
    """Where the time of a model's inferences went; those that never waited count at each scrape."""

    __slots__ = ("own", "queue", "upstream")

    def __init__(self) -> None:
        self.upstream = _Histogram(_BOUNDS)
        self.queue = _Histogram(_BOUNDS)
        self.own = _Histogram(_BOUNDS)

    def count(self, seconds: npt.NDArray[np.float64], parts: npt.NDArray[np.float64]) -> None:
        """Count inferences of *seconds*; the columns of *parts* are upstream, queue and batch."""
        upstream, queued = parts[:, 0], parts[:, 1] + parts[:, 2]
        self.upstream.count(upstream)
        self.queue.count(queued[queued > 0])
        # Attempts and steps at the same time may take longer than the call.
        self.own.count(np.maximum(seconds - upstream - queued, 0.0))

    @property
    def queue_buckets(self) -> Sequence[int]:
        """The buckets of the times in queues, with those that never waited."""
        first, *others = self.queue.buckets
        return (first + sum(self.upstream.buckets) - sum(self.queue.buckets), *others)


class _Cells:
    """What one combination of labels counts; *times* is None for a call that is no inference.

    Attributes:
        uncounted: Four values for each call that is not counted yet: its seconds, and those
            upstream, in queues and in batches.
    """

    __slots__ = ("_calls", "_durations", "_times", "uncounted")

    def __init__(self, durations: _Histogram, times: _ModelTimes | None) -> None:
        self.uncounted: list[float] = []
        self._calls = 0
        self._durations = durations
        self._times = times

    def count(self) -> int:
        """Count the calls that are not counted yet, and return the number of all calls."""
        if self.uncounted:
            found = np.frombuffer(pack(f"{len(self.uncounted)}d", *self.uncounted)).reshape(-1, 4)
            self._calls += len(found)
            self.uncounted.clear()
            self._durations.count(found[:, 0])
            if self._times is not None:
                self._times.count(found[:, 0], found[:, 1:])
        return self._calls


class CallMetrics(Collector):
    """Counts calls by all labels, durations by all but model and code, and times by model.

    A model name of a client becomes a label only after a target has served it.

    Args:
        registry: Publishes the metrics.
        bounds_s: Upper bounds of the buckets of durations, in ascending order.
        series: Maximum number of model labels that requests may create.
        trends: Get the inferences, too.
        on_limit: Called with the protocol and the name of a limit that a call exceeded.

    Attributes:
        exemplars: Traces of the durations, by route, protocol, kind and target.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        bounds_s: Sequence[float],
        series: int = 500,
        *,
        trends: RollingStats,
        on_limit: Callable[[str, str], None],
    ) -> None:
        self._bounds = np.array(bounds_s)
        self._bound_names = _names(bounds_s)
        self.exemplars = Exemplars(bounds_s)
        self._series = series
        self._trends = trends
        self._on_limit = on_limit
        self._models: set[str] = set()
        self._cells: dict[Labels, _Cells] = {}
        self._durations: dict[tuple[str, ...], _Histogram] = {}
        self._times: dict[str, _ModelTimes] = {}
        registry.register(self)

    def allow_models(self, models: Iterable[str]) -> None:
        """Admit configured model names as labels."""
        self._models.update(models)

    def label_of(self, model: str) -> str:
        """Return the label of *model*, which is a placeholder if no target has served it yet."""
        return model if not model or model in self._models else UNKNOWN

    def record(self, record: CallRecord) -> None:
        """Count one completed call."""
        path, protocol, kind = record.path, record.context.protocol, record.kind
        code, seconds = record.code, record.seconds
        labels = (path.route, record.model, protocol, kind, code, path.target)
        cells = self._cells.get(labels)
        if cells is None:
            cells = self._cells_of(labels)
        uncounted = cells.uncounted
        uncounted += (seconds, path.upstream_s, path.queued_s, path.batched_s)
        if len(uncounted) >= _UNCOUNTED:
            cells.count()
        if kind in INFERENCES:
            trends = self._trends
            if record.ended >= trends.until_s:
                trends.end_second(int(record.ended))
            trends.latencies.append(seconds)
            trends.failed += code != OK
        if record.limit is not None:
            self._on_limit(protocol, record.limit)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        yield from in_pieces(
            partial(counter_family, names.REQUESTS),
            list(self._cells.items()),
            lambda family, each: family.add_metric(each[0], each[1].count()),
        )
        yield from in_pieces(
            partial(_family, names.REQUEST_DURATION, self._bound_names),
            list(self._durations.items()),
            self._add_durations,
        )
        for metric, read in _TIMES.items():
            yield from in_pieces(
                partial(_family, metric, _TIME_NAMES),
                list(self._times.items()),
                partial(_add_times, read),
            )

    def _add_durations(
        self, family: HistogramFamily, series: tuple[tuple[str, ...], _Histogram]
    ) -> None:
        key, durations = series
        numbers = (*durations.buckets, durations.seconds)
        family.rows.append((key, numbers, self.exemplars.of(key)))

    def _cells_of(self, labels: Labels) -> _Cells:
        """Return the cells of a call that has none, or not under the name of its model."""
        labels = self._admit(labels)
        found = self._cells.get(labels)
        if found is None:
            route, model, protocol, kind, _, target = labels
            durations = self._durations.setdefault(
                (route, protocol, kind, target), _Histogram(self._bounds)
            )
            times = self._times.setdefault(model, _ModelTimes()) if kind in INFERENCES else None
            found = self._cells[labels] = _Cells(durations, times)
        return found

    def _admit(self, labels: Labels) -> Labels:
        """Return *labels*, with a placeholder for a model that no target has served yet."""
        route, model, protocol, kind, code, target = labels
        if model and code == "ok" and len(self._models) < self._series:
            self._models.add(model)
        return route, self.label_of(model), protocol, kind, code, target


def _names(bounds: Iterable[float]) -> tuple[str, ...]:
    """Return the labels of the buckets with these upper bounds."""
    return (*(floatToGoString(bound) for bound in bounds), "+Inf")  # type: ignore[no-untyped-call]  # the library is half typed


_TIME_NAMES: Final = _names(BOUNDS_S)
_TIMES: Final[Mapping[names.Metric, Callable[[_ModelTimes], tuple[Sequence[int], float]]]] = {
    names.UPSTREAM_DURATION: lambda times: (times.upstream.buckets, times.upstream.seconds),
    names.QUEUE_DURATION: lambda times: (times.queue_buckets, times.queue.seconds),
    names.OVERHEAD_DURATION: lambda times: (times.own.buckets, times.own.seconds),
}
"""The histograms of each model: their buckets and sums."""


def _add_times(
    read: Callable[[_ModelTimes], tuple[Sequence[int], float]],
    family: HistogramFamily,
    series: tuple[str, _ModelTimes],
) -> None:
    model, times = series
    counts, seconds = read(times)
    family.rows.append(((model,), (*counts, seconds), {}))


def _family(metric: names.Metric, bounds: Sequence[str]) -> HistogramFamily:
    return HistogramFamily(metric.name, metric.help, metric.labels, bounds)


class Exemplars:
    """The exemplars of one metric, by the labels of its histograms: the latest call with a trace.

    Each bucket has one. They are shown on the metrics page in the format of OpenMetrics only.

    Args:
        bounds: Upper bounds of the buckets, in ascending order.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._latest: dict[tuple[str, ...], dict[int, Exemplar]] = {}

    def note(self, labels: tuple[str, ...], value: float, trace_id: str) -> None:
        """Keep the trace of a call for the bucket of *value*."""
        exemplar = Exemplar({"trace_id": trace_id}, value, round(time.time_ns() / 1e9, 3))
        self._latest.setdefault(labels, {})[bisect_left(self._bounds, value)] = exemplar

    def of(self, labels: tuple[str, ...]) -> Mapping[int, Exemplar]:
        """Return the exemplars of a histogram by the place of their bucket."""
        return self._latest.get(labels, _NONE)
