"""Metrics of configuration reloads."""

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.telemetry import names
from gateway.telemetry.families import counter_family, gauge_family

APPLIED: Final = "applied"
REJECTED: Final = "rejected"
FAILED: Final = "failed"


class ReloadMetrics(Collector):
    """Counts reloads by outcome, and publishes the time of the last successful one.

    Args:
        now: The time of the start, in seconds since the epoch.
    """

    def __init__(self, now: float) -> None:
        self._counts = dict.fromkeys((APPLIED, REJECTED, FAILED), 0)
        self._last_success = now

    def record(self, outcome: str, now: float) -> None:
        """Count a reload that ended at *now*."""
        self._counts[outcome] += 1
        if outcome == APPLIED:
            self._last_success = now

    def collect(self) -> Iterable[Metric]:
        """Yield both metrics."""
        reloads = counter_family(names.CONFIG_RELOADS)
        for outcome, count in self._counts.items():
            reloads.add_metric((outcome,), count)
        yield reloads
        last = gauge_family(names.CONFIG_LAST_RELOAD)
        last.add_metric((), self._last_success)
        yield last
