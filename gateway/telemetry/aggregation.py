"""Aggregation of the metrics of several processes, including processes that have exited.

Snapshots are taken regularly and kept, so that totals never decrease when a process dies. Counts
since its last snapshot are lost.

The multiprocess mode of prometheus_client is not used: it writes every increment to a file, and
supports neither custom collectors nor callback gauges.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import nan
from operator import add
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from gateway.concurrency.slices import in_slices
from gateway.telemetry import names
from gateway.telemetry.families import HistogramFamily, in_pieces
from gateway.telemetry.usage.triton_names import Document, TritonNames

Labels = tuple[tuple[str, str], ...]
Snapshot = Sequence[Sequence[Any]]
"""Metrics in pieces as plain values: name, help text, type, and samples.

A sample has its name, labels and value, and its exemplar if there is one. A `HistogramFamily` has
rows instead, and its labels and bounds after them.
"""

# Gauges whose aggregate is the minimum.
_MINIMUM: Final = frozenset(
    {
        names.UPSTREAM_READY.name,
        names.UPSTREAM_SHARE.name,
        names.TLS_CERTIFICATE_EXPIRY.name,
    }
)
# Gauges with the same value in every process.
_MAXIMUM: Final = frozenset(
    {names.BUILD_INFO.name, names.CONFIG_INFO.name, names.RESIDENCY_MODELS.name}
)


def snapshot(*sources: Collector) -> Iterator[Sequence[Any]]:
    """Yield all metrics of registries or collectors, as values that JSON can represent."""
    for source in sources:
        yield from map(_plain_family, source.collect())


def _plain_family(metric: Metric) -> Sequence[Any]:
    head = [metric.name, metric.documentation, metric.type]
    if not isinstance(metric, HistogramFamily):
        return [*head, [_plain(sample) for sample in metric.samples]]
    rows = [
        [values, numbers, [[place, list(each)] for place, each in exemplars.items()]]
        for values, numbers, exemplars in metric.rows
    ]
    return [*head, rows, metric.labels, metric.bounds]


def _plain(sample: Sample) -> Sequence[Any]:
    values = [sample.name, sample.labels, sample.value]
    return values if sample.exemplar is None else [*values, list(sample.exemplar)]


class _Family:
    """One metric of all processes."""

    def __init__(self, name: str, text: str, kind: str) -> None:
        self.name, self.text, self.kind = name, text, kind
        self.values: dict[tuple[str, Labels], float] = {}
        self.exemplars: dict[tuple[str, Labels], Exemplar] = {}
        self._form: tuple[Sequence[str], Sequence[str]] | None = None
        self._rows: dict[tuple[str, ...], list[float]] = {}
        self._row_exemplars: dict[tuple[str, ...], dict[int, Exemplar]] = {}

    def add(self, samples: Iterable[Sequence[Any]], *form: Sequence[str]) -> None:
        """Combine the values of a process with those of the other processes.

        Args:
            samples: The rows of a snapshot.
            form: The labels and bounds of rows.
        """
        if form:
            self._form = form[0], form[1]
            for each in samples:
                self._add_row(*each)
            return
        for name, labels, value, *exemplars in samples:
            key = (name, tuple(labels.items()))
            if exemplars:  # of several processes, that of the last one
                self.exemplars[key] = Exemplar(*exemplars[0])
            number = nan if value is None else float(value)  # JSON has no NaN
            found = self.values.get(key)
            self.values[key] = number if found is None else self._combine(found, number)

    def _add_row(
        self,
        values: Sequence[str],
        numbers: list[float],
        exemplars: Iterable[tuple[int, Sequence[Any]]],
    ) -> None:
        key = tuple(values)
        found = self._rows.get(key)
        self._rows[key] = numbers if found is None else list(map(add, found, numbers))
        for place, exemplar in exemplars:  # of several processes, that of the last one
            self._row_exemplars.setdefault(key, {})[place] = Exemplar(*exemplar)

    def pieces(self) -> Iterator[Metric]:
        """Yield the metric."""
        if self._form is not None:
            rows = partial(HistogramFamily, self.name, self.text, *self._form)
            return in_pieces(rows, self._rows.items(), self._append_row)
        new = partial(Metric, self.name, self.text, self.kind)
        return in_pieces(new, self.values.items(), self._add_sample)

    def _append_row(
        self, metric: HistogramFamily, row: tuple[tuple[str, ...], list[float]]
    ) -> None:
        metric.rows.append((*row, self._row_exemplars.get(row[0], {})))

    def _add_sample(self, metric: Metric, value: tuple[tuple[str, Labels], float]) -> None:
        (name, labels), number = value
        metric.add_sample(name, dict(labels), number, exemplar=self.exemplars.get((name, labels)))

    def _combine(self, one: float, other: float) -> float:
        if self.name in _MINIMUM:
            return min(one, other)
        return max(one, other) if self.name in _MAXIMUM else one + other


class MetricsAggregator:
    """The metrics of all processes, including processes that have exited."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # so that nobody sees a process that is half added
        self._exited: dict[str, _Family] = {}
        self._running: dict[object, Snapshot] = {}
        self._triton = TritonNames()

    def update(self, process: object, latest: Snapshot, counts: Document | None = None) -> None:
        """Store the latest snapshot of a process, and its counts for the names of Triton."""
        self._running[process] = latest
        self._triton.update(process, counts)

    async def process_ended(self, process: object) -> None:
        """Keep the counters of a process that exited; drop its gauges."""
        async with self._lock:
            counted = (each for each in self._running.pop(process, ()) if each[2] != "gauge")
            await _merge(self._exited, counted)
            await self._triton.process_ended(process)

    async def collect(self) -> Iterable[Metric]:
        """Return the aggregated metrics, in pieces."""
        families: dict[str, _Family] = {}
        async with self._lock:
            exited = chain.from_iterable(
                map(_plain_family, each.pieces()) for each in self._exited.values()
            )
            await _merge(families, chain(exited, *self._running.values()))
            triton = await self._triton.collect()
        own = (each.pieces() for each in families.values())
        return chain(chain.from_iterable(own), triton)


async def _merge(families: dict[str, _Family], added: Iterable[Sequence[Any]]) -> None:
    async for name, text, kind, samples, *form in in_slices(added):
        family = families.get(name)
        if family is None:
            family = families[name] = _Family(name, text, kind)
        family.add(samples, *form)


def total_of(metrics: Snapshot, counter: names.Metric) -> float:
    """Return the sum of a counter over all labels."""
    found = (samples for name, _, _, samples, *_ in metrics if name == counter.family)
    return sum(float(value or 0) for samples in found for _, _, value, *_ in samples)


def family_of(metric: names.Metric, values: Mapping[str, float]) -> Metric:
    """Return a gauge or a counter with one label, by the values of the label."""
    family = Metric(metric.family, metric.help, metric.kind)
    for value_of, value in values.items():
        family.add_sample(metric.name, {metric.labels[0]: value_of}, value)
    return family
