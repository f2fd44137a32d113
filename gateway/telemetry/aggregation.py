"""Aggregation of the metrics of several processes, including processes that have exited.

Snapshots are taken regularly and kept, so that totals never decrease when a process dies. Counts
since its last snapshot are lost.

The multiprocess mode of prometheus_client is not used: it writes every increment to a file, and
supports neither custom collectors nor callback gauges.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from gateway.telemetry import names
from gateway.telemetry.exposition import encode_page
from gateway.telemetry.triton_names import Document, TritonNames

Labels = tuple[tuple[str, str], ...]
Snapshot = Sequence[Sequence[Any]]
"""Metrics as plain values: name, help text, type, and samples.

A sample has its name, labels and value, and its exemplar if there is one.
"""

# Gauges whose aggregate is the minimum.
_MINIMUM: Final = frozenset({names.UPSTREAM_READY.name, names.TLS_CERTIFICATE_EXPIRY.name})
# Gauges with the same value in every process.
_MAXIMUM: Final = frozenset(
    {names.BUILD_INFO.name, names.CONFIG_INFO.name, names.RESIDENCY_MODELS.name}
)


def snapshot(registry: Collector) -> Snapshot:
    """Return all metrics of a registry or a collector as values that JSON can represent."""
    return [
        [
            metric.name,
            metric.documentation,
            metric.type,
            [_plain(sample) for sample in metric.samples],
        ]
        for metric in registry.collect()
    ]


def _plain(sample: Sample) -> Sequence[Any]:
    values = [sample.name, sample.labels, sample.value]
    return values if sample.exemplar is None else [*values, list(sample.exemplar)]


class _Family:
    """One metric of all processes."""

    def __init__(self, name: str, text: str, kind: str) -> None:
        self.name, self.text, self.kind = name, text, kind
        self.values: dict[tuple[str, Labels], float] = {}
        self.exemplars: dict[tuple[str, Labels], Exemplar] = {}

    @property
    def is_counted(self) -> bool:
        """Whether its values never decrease; they are kept when a process exits."""
        return self.kind != "gauge"

    def add(self, samples: Iterable[Sequence[Any]]) -> None:
        """Combine the values of a process with those of the other processes."""
        for name, labels, value, *exemplars in samples:
            key = (name, tuple(labels.items()))
            if exemplars:  # of several processes, that of the last one
                self.exemplars[key] = Exemplar(*exemplars[0])
            number = nan if value is None else float(value)  # JSON has no NaN
            found = self.values.get(key)
            self.values[key] = number if found is None else self._combine(found, number)

    def _combine(self, one: float, other: float) -> float:
        if self.name in _MINIMUM:
            return min(one, other)
        return max(one, other) if self.name in _MAXIMUM else one + other


class MetricsAggregator:
    """The metrics of all processes, including processes that have exited."""

    def __init__(self) -> None:
        self._exited: dict[str, _Family] = {}
        self._running: dict[object, Snapshot] = {}
        self._triton = TritonNames()

    def update(self, process: object, latest: Snapshot, counts: Document | None = None) -> None:
        """Store the latest snapshot of a process, and its counts for the names of Triton."""
        self._running[process] = latest
        self._triton.update(process, counts)

    def process_ended(self, process: object) -> None:
        """Keep the counters of a process that exited; drop its gauges."""
        _merge(self._exited, self._running.pop(process, ()), counters_only=True)
        self._triton.process_ended(process)

    def collect(self) -> list[Metric]:
        """Return the aggregated metrics."""
        families: dict[str, _Family] = {}
        _merge(families, [_values(family) for family in self._exited.values()])
        for latest in self._running.values():
            _merge(families, latest)
        return [*(_metric(family) for family in families.values()), *self._triton.collect()]


def _merge(families: dict[str, _Family], added: Snapshot, *, counters_only: bool = False) -> None:
    for name, text, kind, samples in added:
        family = families.get(name) or _Family(name, text, kind)
        if counters_only and not family.is_counted:
            continue
        families[name] = family
        family.add(samples)


def _values(family: _Family) -> Sequence[Any]:
    samples = [[name, dict(labels), value] for (name, labels), value in family.values.items()]
    return [family.name, family.text, family.kind, samples]


def _metric(family: _Family) -> Metric:
    metric = Metric(family.name, family.text, family.kind)
    for (name, labels), value in family.values.items():
        metric.add_sample(name, dict(labels), value, exemplar=family.exemplars.get((name, labels)))
    return metric


def total_of(metrics: Snapshot, sample: str) -> float:
    """Return the sum of all samples of that name, over all labels."""
    return sum(
        float(value or 0)
        for _, _, _, samples in metrics
        for name, _, value, *_ in samples
        if name == sample
    )


def write_page(metrics: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Return a metrics page and its content type, in a format that *accept* allows."""
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(tuple(metrics)))
    return encode_page(registry, accept)


class _SnapshotCollector(Collector):
    """Metrics of a snapshot."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._metrics


def family_of(metric: names.Metric, values: Mapping[str, float]) -> Metric:
    """Return a gauge or a counter with one label, by the values of the label."""
    family = Metric(metric.family, metric.help, metric.kind)
    for value_of, value in values.items():
        family.add_sample(metric.name, {metric.labels[0]: value_of}, value)
    return family
