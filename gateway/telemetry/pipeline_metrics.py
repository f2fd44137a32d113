"""Metrics of pipeline steps. Labels are names of the configuration."""

from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram

from gateway.telemetry import names


class Named(Protocol):
    """A pipeline step."""

    @property
    def name(self) -> str: ...  # noqa: D102


class StepMetrics:
    """Counts steps and their durations, by pipeline, step and code."""

    def __init__(self, registry: CollectorRegistry, buckets: tuple[float, ...]) -> None:
        self._duration = Histogram(
            *names.PIPELINE_STEP_DURATION.arguments,
            buckets=buckets,
            registry=registry,
        )
        self._series: dict[tuple[str, str, str], Histogram] = {}

    def record(self, pipeline: str, step: Named, code: str, seconds: float) -> None:
        """Count an executed step; *code* is "ok" or the error code's value."""
        key = (pipeline, step.name, code)
        found = self._series.get(key)
        if found is None:
            # prometheus_client acquires a lock to look up labels: do it once.
            found = self._series[key] = self._duration.labels(*key)
        found.observe(seconds)
