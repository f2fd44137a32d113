"""The metrics of residency."""

import time
from collections.abc import Callable

from gateway.api.layer import LayerContext
from gateway.residency.controller import ResidencyController
from gateway.residency.homes import Homes
from gateway.residency.plan import STATES, ResidencyPlan, counts
from gateway.telemetry import names
from gateway.telemetry.metrics import Metrics


class EndpointMeters:
    """Counts the loads, unloads and waits of one endpoint.

    Args:
        at: Publishes the metrics.
        upstream: The name of the upstream.
        endpoint: The name of the endpoint.
    """

    def __init__(self, at: LayerContext, upstream: str, endpoint: str) -> None:
        self._at = at
        self._labels = {"upstream": upstream, "endpoint": endpoint}
        self._seconds = at.metric(names.RESIDENCY_LOAD_SECONDS, **self._labels)
        self._waits = at.metric(names.RESIDENCY_WAIT_SECONDS, upstream=upstream)

    def loaded(self, model: str, outcome: str, seconds: float, /) -> None:
        """Count a load: *outcome* is "ok" or "failed"."""
        labels = {**self._labels, "model": model, "outcome": outcome}
        self._at.metric(names.RESIDENCY_LOADS, **labels).inc()
        if outcome == "ok":
            self._seconds.observe(seconds)

    def unloaded(self, model: str, reason: str, /) -> None:
        """Count an unload."""
        labels = {**self._labels, "model": model, "reason": reason}
        self._at.metric(names.RESIDENCY_UNLOADS, **labels).inc()

    def waited(self, seconds: float, /) -> None:
        """Count the wait of a call."""
        self._waits.observe(seconds)

    @staticmethod
    def watch_waiting(at: LayerContext, upstream: str, waiting: Homes | ResidencyPlan) -> None:
        """Publish how many calls of an upstream wait."""
        gauges, labels = at.part(Metrics).gauges, {"upstream": upstream}
        gauges.watch(names.RESIDENCY_WAITING, labels, waiting, lambda each: each.callers)

    def watch(self, controller: ResidencyController) -> None:
        """Publish how many models the endpoint holds, by their state."""
        gauges = self._at.part(Metrics).gauges
        for state in STATES:
            labels = {**self._labels, "state": state}
            gauges.watch(names.RESIDENCY_MODELS, labels, controller, _count_of(state))


def _count_of(state: str) -> Callable[[ResidencyController], float]:
    return lambda controller: counts(controller.plan.models.values(), time.monotonic())[state]
