"""Metrics of pipeline steps. Labels are names of the configuration."""

from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram

from gateway.telemetry import names
from gateway.telemetry.families import LabelledSeries


class Named(Protocol):
    """A pipeline step."""

    @property
    def name(self) -> str: ...  # noqa: D102


class StepMetrics:
    """Counts steps and their durations, by pipeline, step and code."""

    def __init__(self, registry: CollectorRegistry, buckets: tuple[float, ...]) -> None:
        self._duration = LabelledSeries(
            registry, names.PIPELINE_STEP_DURATION, Histogram, buckets=buckets
        )

    def record(self, pipeline: str, step: Named, code: str, seconds: float) -> None:
        """Count an executed step; *code* is "ok" or the error code's value."""
        self._duration.labels(pipeline, step.name, code).observe(seconds)
