"""Families of samples, as a collector returns them, of metrics in `gateway.telemetry.names`.

A family that grows with models, endpoints or clients comes in pieces: several families of one name.
Whoever reads them lets other work run between two pieces; see `concurrency.slices`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from gateway.telemetry.names import Metric

PIECE_SERIES: Final = 64
"""A piece has no more series."""

F = TypeVar("F", bound=Family)
T = TypeVar("T")
M = TypeVar("M", bound=MetricWrapperBase)


def counter_family(metric: Metric) -> CounterMetricFamily:
    """Return the family of a counter, without samples."""
    return CounterMetricFamily(metric.family, metric.help, labels=metric.labels)


def gauge_family(metric: Metric) -> GaugeMetricFamily:
    """Return the family of a gauge, without samples."""
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


class HistogramFamily(Family):
    """A histogram whose series are rows of numbers; its samples are made when they are read.

    A series has some twenty samples, each with labels of its own.

    Args:
        name: Its name.
        text: Its help.
        labels: The names of its labels.
        bounds: The upper bounds of its buckets as texts; the last one is "+Inf".

    Attributes:
        rows: The values of the labels, the numbers, and exemplars by the place of their bucket. The
            numbers are the counts of the buckets, each without the others, and the sum.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[str]) -> None:
        self.name, self.documentation, self.type, self.unit = name, text, "histogram", ""
        self.labels, self.bounds = tuple(labels), tuple(bounds)
        self.rows: list[tuple[tuple[str, ...], Sequence[float], Mapping[int, Exemplar]]] = []

    @property
    def samples(self) -> list[Sample]:  # type: ignore[override]  # nobody sets them
        """The buckets, counts and sums of all series."""
        found: list[Sample] = []
        for values, numbers, exemplars in self.rows:
            labels = dict(zip(self.labels, values, strict=True))
            for place, (bound, total) in enumerate(self.buckets(numbers)):
                exemplar = exemplars.get(place)
                of_bucket = labels | {"le": bound}
                found.append(Sample(f"{self.name}_bucket", of_bucket, total, None, exemplar))
            found += self._totals(labels, numbers)
        return found

    @property
    def totals(self) -> Iterator[Sample]:
        """The counts and sums of all series."""
        for values, numbers, _ in self.rows:
            yield from self._totals(dict(zip(self.labels, values, strict=True)), numbers)

    def buckets(self, numbers: Sequence[float]) -> Iterable[tuple[str, float]]:
        """Return the upper bounds of the buckets and the counts up to them."""
        return zip(self.bounds, accumulate(numbers[:-1]), strict=True)

    def _totals(self, labels: dict[str, str], numbers: Sequence[float]) -> Iterable[Sample]:
        yield Sample(f"{self.name}_count", labels, sum(numbers[:-1]))
        yield Sample(f"{self.name}_sum", labels, numbers[-1])


def in_pieces(
    new: Callable[[], F], series: Iterable[T], add: Callable[[F, T], object]
) -> Iterator[F]:
    """Yield a family in pieces; one without samples if there are no series.

    Args:
        new: Returns the family without samples.
        series: What is added. A reader may let other work run between two pieces, so it is no view
            of something that changes.
        add: Adds the samples of a series.
    """
    family = new()
    for number, each in enumerate(series, start=1):
        add(family, each)
        if number % PIECE_SERIES == 0:
            yield family
            family = new()
    yield family


class LabelledSeries(Collector, Generic[M]):
    """The series of a metric with labels, each of which is a metric of the Prometheus library.

    Those of the library itself are collected all at once, however many there are.

    Args:
        registry: Publishes it.
        metric: Its name, help and labels.
        new: The class of a series.
        options: Further arguments of that class.
    """

    def __init__(
        self, registry: CollectorRegistry, metric: Metric, new: type[M], **options: Any
    ) -> None:
        self._metric = metric
        self._new = partial(new, metric.family, metric.help, registry=None, **options)
        self._series: dict[tuple[str, ...], M] = {}
        registry.register(self)

    def labels(self, *values: str) -> M:
        """Return the series with these labels."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = self._new()
        return found

    def remove(self, *values: str) -> None:
        """Remove a series, if there is one."""
        self._series.pop(values, None)

    def collect(self) -> Iterator[Family]:
        """Yield the metric."""
        metric = self._metric
        return in_pieces(
            partial(Family, metric.family, metric.help, metric.kind),
            list(self._series.items()),
            self._add,
        )

    def _add(self, family: Family, series: tuple[tuple[str, ...], M]) -> None:
        values, own = series
        labels = dict(zip(self._metric.labels, values, strict=True))
        for found in own.collect():
            for name, more, value, *_ in found.samples:
                family.add_sample(name, labels | more, value)
