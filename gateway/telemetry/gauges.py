"""Gauges of the state of the gateway, read at each scrape; and how late its event loop is."""

import asyncio
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.telemetry import names
from gateway.telemetry.families import in_pieces

T = TypeVar("T")

_INTERVAL_S: Final = 0.5

_Labels = tuple[tuple[str, str], ...]
_Source = tuple[weakref.ref[Any], Callable[[Any], float]]


class LabelledGauges(Collector):
    """Gauges with labels. A gauge disappears with the object that it is read from."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges: dict[names.Metric, dict[_Labels, _Source]] = {}
        registry.register(self)

    def watch(
        self, metric: names.Metric, labels: dict[str, str], owner: T, read: Callable[[T], float]
    ) -> None:
        """Publish what *read* returns for *owner*.

        Args:
            metric: Its name and help.
            labels: Names and values; the same ones replace an earlier gauge.
            owner: The gauge does not keep it alive.
            read: Returns the value.
        """
        sources = self._gauges.setdefault(metric, {})
        sources[tuple(labels.items())] = (weakref.ref(owner), read)

    def total(self, metric: names.Metric) -> float:
        """Return the sum of one gauge over all labels."""
        sources = self._gauges.get(metric, {}).values()
        found = ((reference(), read) for reference, read in sources)
        return sum(float(read(owner)) for owner, read in found if owner is not None)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        for described, sources in list(self._gauges.items()):
            yield from in_pieces(
                partial(Metric, described.name, described.help, "gauge"),
                list(sources),
                partial(_add, sources),
            )


def _add(sources: dict[_Labels, _Source], family: Metric, labels: _Labels) -> None:
    """Add a gauge, unless its owner is gone."""
    found = sources.get(labels)
    owner = None if found is None else found[0]()
    if found is None or owner is None:
        sources.pop(labels, None)
    else:
        family.add_sample(family.name, dict(labels), float(found[1](owner)))


class InfoMetric(Collector):
    """A metric with the value 1, whose labels tell a fact that may change.

    Args:
        registry: Publishes it.
        metric: Its name and help.
        read: Returns the labels.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        metric: names.Metric,
        read: Callable[[], dict[str, str]],
    ) -> None:
        self._metric = metric
        self._read = read
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Yield the metric."""
        metric = Metric(self._metric.name, self._metric.help, "gauge")
        metric.add_sample(self._metric.name, self._read(), 1.0)
        yield metric


class LoopLag:
    """Measures the delay of a timer, twice a second.

    Args:
        report: Called with each delay, in seconds.
    """

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to measure."""
        loop = asyncio.get_running_loop()
        due = loop.time() + _INTERVAL_S
        self._timer = loop.call_at(due, self._on_timer, loop, due)

    def stop(self) -> None:
        """Stop measuring; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._report(max(0.0, loop.time() - due))
        self.start()
