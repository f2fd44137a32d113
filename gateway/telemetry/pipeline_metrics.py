"""Metrics of the steps of pipelines: what they cost, apart from what clients ask.

Labels are names of the configuration.
"""

from __future__ import annotations

from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram


class Named(Protocol):
    """A step, as far as it is counted."""

    @property
    def name(self) -> str:
        """Its name in the pipeline."""
        ...


class StepMetrics:
    """Counts steps and their time, by pipeline, step and outcome."""

    def __init__(self, registry: CollectorRegistry, buckets: tuple[float, ...]) -> None:
        self._duration = Histogram(
            "gateway_pipeline_step_duration_seconds",
            "Time from a step's question to its answer.",
            ("pipeline", "step", "code"),
            buckets=buckets,
            registry=registry,
        )
        self._known: dict[tuple[str, str, str], Histogram] = {}

    def asked(self, pipeline: str, step: Named, code: str, seconds: float) -> None:
        """Count a step that was asked; *code* is "ok" or the error code's value."""
        key = (pipeline, step.name, code)
        found = self._known.get(key)
        if found is None:
            # prometheus_client looks labels up under a lock each time: do it once.
            found = self._known[key] = self._duration.labels(*key)
        found.observe(seconds)
