"""Gauges of the state of the gateway, whose values are read at each scrape."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

T = TypeVar("T")

_Labels = tuple[tuple[str, str], ...]
_Source = tuple[weakref.ref[Any], Callable[[Any], float]]


class LabelledGauges(Collector):
    """Gauges with labels. A gauge disappears with the object that it is read from."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges: dict[str, tuple[str, dict[_Labels, _Source]]] = {}
        registry.register(self)

    def watch(
        self, name: str, text: str, labels: dict[str, str], owner: T, read: Callable[[T], float]
    ) -> None:
        """Publish what *read* returns for *owner*.

        Args:
            name: The name of the metric.
            text: Its help text.
            labels: Names and values; the same ones replace an earlier gauge.
            owner: The gauge does not keep it alive.
            read: Returns the value.
        """
        sources = self._gauges.setdefault(name, (text, {}))[1]
        sources[tuple(labels.items())] = (weakref.ref(owner), read)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        for name, (text, sources) in self._gauges.items():
            metric = Metric(name, text, "gauge")
            for labels, (reference, read) in list(sources.items()):
                owner = reference()
                if owner is None:
                    del sources[labels]
                else:
                    metric.add_sample(name, dict(labels), float(read(owner)))
            yield metric


class InfoMetric(Collector):
    """A metric with the value 1, whose labels tell a fact that may change.

    Args:
        registry: Publishes it.
        name: The name of the metric.
        text: Its help text.
        read: Returns the labels.
    """

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, read: Callable[[], dict[str, str]]
    ) -> None:
        self._name = name
        self._text = text
        self._read = read
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Yield the metric."""
        metric = Metric(self._name, self._text, "gauge")
        metric.add_sample(self._name, self._read(), 1.0)
        yield metric
