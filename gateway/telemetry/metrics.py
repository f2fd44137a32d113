"""Metrics: their names, in a separate registry, in the Prometheus text format.

Labels are names of the configuration. A model name of a client becomes a label only after a target
has served it, up to a maximum number of labels; all others become `_unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
)
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway.ir.errors import GatewayError
from gateway.telemetry.batching_metrics import SharingMetrics
from gateway.telemetry.call_metrics import CallMetrics, Labels
from gateway.telemetry.model_usage import Usage
from gateway.telemetry.pipeline_metrics import StepMetrics

UNKNOWN = "_unknown"

_BUCKETS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)


class Metrics:
    """All metrics of the gateway.

    Args:
        version: Version of the gateway.
        series: Maximum number of model labels that requests may create.
        triton: Also publish Triton's names for inference counts and durations.

    Attributes:
        usage: Usage statistics of models.
        sharing: Metrics of batches and of cached replies.
        steps: Metrics of pipeline steps.
    """

    def __init__(self, version: str, *, series: int = 500, triton: bool = False) -> None:
        # Omit the `_created` series of each counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library is half typed
        self.registry = CollectorRegistry()
        self._series = series
        self._models: set[str] = set()
        self._calls = CallMetrics(self.registry, _BUCKETS)
        self._rejected = Counter(
            "gateway_refused_requests",
            "Requests rejected before routing.",
            ("protocol", "code"),
            registry=self.registry,
        )
        self._limits = Counter(
            "gateway_limit_exceeded",
            "Requests rejected because they exceeded a limit, by the limit's name.",
            ("limit", "protocol"),
            registry=self.registry,
        )
        self._blocked = Counter(
            "gateway_loop_blocked_requests",
            "Requests whose decoding or encoding blocked the event loop for more than 100 ms.",
            ("protocol", "model"),
            registry=self.registry,
        )
        self._upstream_ready = Gauge(
            "gateway_upstream_ready",
            "1 if the last readiness probe of the endpoint succeeded, else 0.",
            ("upstream", "endpoint"),
            registry=self.registry,
        )
        self._ejections = Counter(
            "gateway_endpoint_ejections",
            "Ejections of an endpoint by outlier detection, by cause.",
            ("upstream", "endpoint", "cause"),
            registry=self.registry,
        )
        self._withheld = Counter(
            "gateway_upstream_withheld_cancellations",
            "Abandoned gRPC calls that were not cancelled at the upstream.",
            ("upstream",),
            registry=self.registry,
        )
        self.usage = Usage()
        self.sharing = SharingMetrics(self.registry, self.usage)
        self.steps = StepMetrics(self.registry, _BUCKETS)
        Gauge(
            "gateway_build_info", "Version of the gateway.", ("version",), registry=self.registry
        ).labels(version).set(1)
        self._triton = _TritonNames(self.registry) if triton else None

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Publish a gauge whose value is read at each scrape."""
        Gauge(name, help_text, registry=self.registry).set_function(read)

    def call(self, labels: Labels, version: str, seconds: float) -> None:
        """Count one completed call.

        Args:
            labels: The code is "ok" or the value of the error's code.
            version: The requested version of the model.
            seconds: Duration.
        """
        if labels[1] not in self._models:
            labels = self._admit(labels)
        self._calls.count(labels, seconds)
        if self._triton is not None:
            _, model, _, kind, code = labels
            if kind == "InferRequest":
                self._triton.count(model, version, ok=code == "ok", seconds=seconds)

    def rejected(self, protocol: str, error: GatewayError) -> None:
        """Count a request that was rejected before routing."""
        self._rejected.labels(protocol, error.code.value).inc()
        self.limit_exceeded(protocol, error.limit)

    def loop_blocked(self, protocol: str, model: str, _seconds: float) -> None:
        """Count a request that blocked the event loop for long."""
        label = model if not model or model in self._models else UNKNOWN
        self._blocked.labels(protocol, label).inc()

    def limit_exceeded(self, protocol: str, limit: str | None) -> None:
        """Count an exceeded limit; None counts nothing."""
        if limit is not None:
            self._limits.labels(limit, protocol).inc()

    def upstream_ready(self, upstream: str, endpoint: str, ready: bool) -> None:
        """Set the readiness of an endpoint."""
        self._upstream_ready.labels(upstream, endpoint).set(1 if ready else 0)

    def endpoint_ejected(self, upstream: str, endpoint: str, cause: str) -> None:
        """Count an ejection: *cause* is "failures" or "timeouts"."""
        self._ejections.labels(upstream, endpoint, cause).inc()

    def withheld_cancellation(self, upstream: str) -> None:
        """Count a call to an upstream that is left to end by itself."""
        self._withheld.labels(upstream).inc()

    def allow_models(self, models: Iterable[str]) -> None:
        """Admit configured model names as labels."""
        self._models.update(models)

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page and its content type, in a format that *accept* allows."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _admit(self, labels: Labels) -> Labels:
        """Return *labels*, with a placeholder for a model that no target has served yet."""
        route, model, protocol, kind, code = labels
        if model and code == "ok" and len(self._models) < self._series:
            self._models.add(model)
            return labels
        return route, UNKNOWN if model else "", protocol, kind, code


class _TritonNames(Collector):
    """Metrics under Triton's names, for dashboards and autoscalers.

    The collector writes the samples itself, because prometheus_client would add `_total`.
    Source: Triton metrics documentation, "Inference Request Metrics".
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._success: dict[tuple[str, str], float] = {}
        self._failure: dict[tuple[str, str], float] = {}
        self._duration_us: dict[tuple[str, str], float] = {}
        registry.register(self)

    def count(self, model: str, version: str, *, ok: bool, seconds: float) -> None:
        labels = (model, version)
        counts = self._success
        if not ok:
            counts = self._failure
            # Versions come from clients: only one that has served becomes a label.
            labels = labels if labels in self._success else (model, "")
        counts[labels] = counts.get(labels, 0) + 1
        self._duration_us[labels] = self._duration_us.get(labels, 0) + seconds * 1e6

    def collect(self) -> Iterable[Metric]:
        for name, text, values in (
            ("nv_inference_request_success", "Successful inference requests.", self._success),
            ("nv_inference_request_failure", "Failed inference requests.", self._failure),
            ("nv_inference_request_duration_us", "Cumulative duration.", self._duration_us),
        ):
            # For a counter, prometheus_client would write another name in the help line.
            metric = Metric(name, text, "gauge")
            for (model, version), value in values.copy().items():
                metric.add_sample(name, {"model": model, "version": version}, value)
            yield metric
