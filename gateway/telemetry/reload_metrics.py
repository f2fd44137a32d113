"""Metrics of configuration reloads."""

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
        reloads = CounterMetricFamily(
            "gateway_config_reloads",
            "Configuration reloads: applied, rejected (an error in the file) or failed.",
            labels=("outcome",),
        )
        for outcome, count in self._counts.items():
            reloads.add_metric((outcome,), count)
        yield reloads
        yield GaugeMetricFamily(
            "gateway_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was read, in seconds since the epoch.",
            value=self._last_success,
        )
