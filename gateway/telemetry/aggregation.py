"""Metrics of several processes as those of one: counters are added up, also of those that ended.

What a process has counted is taken now and then and kept: so a total never goes back when a process
dies, though it lacks what that one counted since it was last asked.

The client library has a way of its own, files that all processes write to. It knows neither
collectors nor gauges that are read when asked for, and makes each addition a write to a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

Labels = tuple[tuple[str, str], ...]
Figures = Sequence[Sequence[Any]]
"""Metrics as plain values: name, text, kind, and samples of name, labels and value."""

# What is true only where it is true of all.
_LEAST: Final = frozenset({"gateway_upstream_ready"})
# The same everywhere.
_SAME: Final = frozenset({"gateway_build_info"})
# Counters that are published as gauges, for the sake of their names.
_COUNTERS: Final = ("nv_inference_",)


def snapshot(registry: CollectorRegistry) -> Figures:
    """Return all of a registry's metrics as values that JSON can carry."""
    return [
        [
            metric.name,
            metric.documentation,
            metric.type,
            [[sample.name, sample.labels, sample.value] for sample in metric.samples],
        ]
        for metric in registry.collect()
    ]


class _Family:
    """One metric of all processes."""

    def __init__(self, name: str, text: str, kind: str) -> None:
        self.name, self.text, self.kind = name, text, kind
        self.values: dict[tuple[str, Labels], float] = {}

    @property
    def is_counted(self) -> bool:
        """Whether its values only grow, and stay when a process has gone."""
        return self.kind != "gauge" or self.name.startswith(_COUNTERS)

    def add(self, samples: Iterable[Sequence[Any]]) -> None:
        """Join a process's values with those that are there."""
        for name, labels, value in samples:
            key = (name, tuple(labels.items()))
            # JSON has no number that is none.
            given = nan if value is None else float(value)
            found = self.values.get(key)
            self.values[key] = given if found is None else self._joined(found, given)

    def _joined(self, one: float, other: float) -> float:
        if self.name in _LEAST:
            return min(one, other)
        return max(one, other) if self.name in _SAME else one + other


class MetricsAggregator:
    """What all processes have counted, those that have ended among them."""

    def __init__(self) -> None:
        self._ended: dict[str, _Family] = {}
        self._seen: dict[object, Figures] = {}

    def update(self, process: object, figures: Figures) -> None:
        """Note what a process has counted so far."""
        self._seen[process] = figures

    def process_ended(self, process: object) -> None:
        """Keep what a process has counted; its gauges end with it."""
        figures = self._seen.pop(process, ())
        _join(self._ended, figures, counted_only=True)

    def collect(self) -> list[Metric]:
        """Return the metrics of all."""
        families: dict[str, _Family] = {}
        _join(families, [_plain(family) for family in self._ended.values()])
        for figures in self._seen.values():
            _join(families, figures)
        return [_metric(family) for family in families.values()]


def _join(families: dict[str, _Family], figures: Figures, *, counted_only: bool = False) -> None:
    for name, text, kind, samples in figures:
        family = families.get(name) or _Family(name, text, kind)
        if counted_only and not family.is_counted:
            continue
        families[name] = family
        family.add(samples)


def _plain(family: _Family) -> Sequence[Any]:
    samples = [[name, dict(labels), value] for (name, labels), value in family.values.items()]
    return [family.name, family.text, family.kind, samples]


def _metric(family: _Family) -> Metric:
    metric = Metric(family.name, family.text, family.kind)
    for (name, labels), value in family.values.items():
        metric.add_sample(name, dict(labels), value)
    return metric


def total_of(figures: Figures, sample: str) -> float:
    """Return the sum of all samples of that name, whatever their labels."""
    return sum(
        float(value or 0)
        for _, _, _, samples in figures
        for name, _, value in samples
        if name == sample
    )


def write_page(metrics: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Return metrics as a page and its content type, in the form *accept* asks for."""
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(tuple(metrics)))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _SnapshotCollector(Collector):
    """Metrics that were collected elsewhere."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Give them as they are."""
        return self._metrics


def gauge(name: str, text: str, values: Mapping[str, float], label: str) -> Metric:
    """Return a gauge of one label."""
    metric = Metric(name, text, "gauge")
    for value_of, value in values.items():
        metric.add_sample(name, {label: value_of}, value)
    return metric


def counter(name: str, text: str, values: Mapping[str, float], label: str) -> Metric:
    """Return a counter of one label; *name* is without `_total`."""
    metric = Metric(name, text, "counter")
    for value_of, value in values.items():
        metric.add_sample(f"{name}_total", {label: value_of}, value)
    return metric
