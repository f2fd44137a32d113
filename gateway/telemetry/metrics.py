"""Metrics: their names, in a separate registry, in the Prometheus text format.

Labels are names of the configuration. A model name of a client becomes a label only after a target
has served it, up to a maximum number of labels; all others become `_unknown`.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.ir.errors import GatewayError
from gateway.telemetry.access_metrics import AccessMetrics
from gateway.telemetry.batching_metrics import SharingMetrics
from gateway.telemetry.call_log import OK, CallRecord
from gateway.telemetry.call_metrics import CallMetrics
from gateway.telemetry.call_path import INFERENCES
from gateway.telemetry.exposition import encode_page
from gateway.telemetry.gauges import InfoMetric, LabelledGauges
from gateway.telemetry.model_usage import Usage
from gateway.telemetry.pipeline_metrics import StepMetrics
from gateway.telemetry.rolling_stats import RollingStats
from gateway.telemetry.upstream_metrics import (
    BOUNDS_S,
    AttemptMetrics,
    ByteMetrics,
)

_BUCKETS = (0.0001, 0.00025, *BOUNDS_S)


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
        attempts: Metrics of requests to endpoints.
        bytes: Metrics of the sizes of messages.
        access: Metrics of permissions.
        trends: Rolling statistics of inferences.
        gauges: Values that are read at each scrape.
        loop_lag: Metric of the event loop's delays.
    """

    def __init__(self, version: str, *, series: int = 500, triton: bool = False) -> None:
        # Omit the `_created` series of each counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library is half typed
        self.registry = CollectorRegistry()
        self.trends = RollingStats()
        self._calls = CallMetrics(self.registry, _BUCKETS, series)
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
        self._retries = Counter(
            "gateway_retries",
            "Retries, by reason and outcome: ok or failed.",
            ("route", "reason", "outcome"),
            registry=self.registry,
        )
        self._retry_budget_exhausted = Counter(
            "gateway_retry_budget_exhausted",
            "Retries that were not made because the budget of the route was used up.",
            ("route",),
            registry=self.registry,
        )
        self._hedges = Counter(
            "gateway_hedges",
            "Second attempts of slow calls, by the attempt whose reply was returned: first, second "
            "or none.",
            ("route", "won"),
            registry=self.registry,
        )
        self._concurrency_limits = Gauge(
            "gateway_concurrency_limit",
            "Current limit of `adaptive_concurrency`: the lowest of routes and models; 0 for none.",
            ("upstream",),
            registry=self.registry,
        )
        self._withheld = Counter(
            "gateway_upstream_withheld_cancellations",
            "Abandoned gRPC calls that were not cancelled at the upstream.",
            ("upstream",),
            registry=self.registry,
        )
        self.access = AccessMetrics(self.registry)
        self.attempts = AttemptMetrics(self.registry)
        self.bytes = ByteMetrics(self.registry)
        self.gauges = LabelledGauges(self.registry)
        self.loop_lag = Histogram(
            "gateway_event_loop_lag_seconds",
            "How late the event loop runs a timer, measured twice a second.",
            buckets=BOUNDS_S,
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

    def watch_counter(
        self,
        name: str,
        help_text: str,
        read: Callable[[], Mapping[tuple[str, ...], float]],
        labels: tuple[str, ...] = (),
    ) -> None:
        """Publish a counter whose values, by their labels, are read at each scrape."""
        self.registry.register(_WatchedCounter(name, help_text, read, labels))

    def watch_config(self, read: Callable[[], dict[str, str]]) -> None:
        """Publish the labels of the configuration in force, which *read* returns."""
        text = "The configuration in force, by its hash."
        InfoMetric(self.registry, "gateway_config_info", text, read)

    def call(self, record: CallRecord) -> None:
        """Count one completed call."""
        path, protocol, kind = record.path, record.context.protocol, record.kind
        code, seconds = record.code, record.seconds
        self._calls.count(
            (path.route, record.model, protocol, kind, code, path.target), seconds, path
        )
        if kind in INFERENCES:
            self.trends.add(seconds, record.ended, code != OK)
        if record.limit is not None:
            self.limit_exceeded(protocol, record.limit)
        if self._triton is not None and kind == "InferRequest":
            model = self._calls.label_of(record.model)
            self._triton.count(model, record.version, ok=code == OK, seconds=seconds)

    def exemplify(self, record: CallRecord) -> None:
        """Keep the trace of a call as an exemplar of its duration."""
        path = record.path
        labels = path.route, record.context.protocol, record.kind, path.target
        self._calls.exemplars.note(labels, record.seconds, path.trace_id)

    def rejected(self, protocol: str, error: GatewayError) -> None:
        """Count a request that was rejected before routing."""
        self._rejected.labels(protocol, error.code.value).inc()
        self.limit_exceeded(protocol, error.limit)

    def loop_blocked(self, protocol: str, model: str, _seconds: float) -> None:
        """Count a request that blocked the event loop for long."""
        self._blocked.labels(protocol, self._calls.label_of(model)).inc()

    def limit_exceeded(self, protocol: str, limit: str | None) -> None:
        """Count an exceeded limit; None counts nothing."""
        if limit is not None:
            self._limits.labels(limit, protocol).inc()

    def upstream_ready(self, upstream: str, endpoint: str, ready: bool) -> None:
        """Set the readiness of an endpoint."""
        self._upstream_ready.labels(upstream, endpoint).set(1 if ready else 0)

    def forget_endpoint(self, upstream: str, endpoint: str) -> None:
        """Remove what was measured of an endpoint that the configuration no longer has."""
        self.attempts.forget(upstream, endpoint)
        with contextlib.suppress(KeyError):  # it was never probed
            self._upstream_ready.remove(upstream, endpoint)

    def endpoint_ejected(self, upstream: str, endpoint: str, cause: str) -> None:
        """Count an ejection: *cause* is "failures" or "timeouts"."""
        self._ejections.labels(upstream, endpoint, cause).inc()

    def retry(self, route: str, reason: str, outcome: str) -> None:
        """Count a retry: *outcome* is "ok", "failed", or "no_budget" if it was not made."""
        if outcome == "no_budget":
            self._retry_budget_exhausted.labels(route).inc()
        else:
            self._retries.labels(route, reason, outcome).inc()

    def hedge(self, route: str, won: str) -> None:
        """Count a second attempt: *won* is "first", "second" or "none"."""
        self._hedges.labels(route, won).inc()

    def concurrency_limit(self, upstream: str, read: Callable[[], float]) -> None:
        """Publish the adaptive limit of an upstream, which is read at each scrape."""
        self._concurrency_limits.labels(upstream).set_function(read)

    def withheld_cancellation(self, upstream: str) -> None:
        """Count a call to an upstream that is left to end by itself."""
        self._withheld.labels(upstream).inc()

    def allow_models(self, models: Iterable[str]) -> None:
        """Admit configured model names as labels."""
        self._calls.allow_models(models)

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page and its content type, in a format that *accept* allows."""
        return encode_page(self.registry, accept)


class _WatchedCounter(Collector):
    """A counter that is kept elsewhere."""

    def __init__(
        self,
        name: str,
        help_text: str,
        read: Callable[[], Mapping[tuple[str, ...], float]],
        labels: tuple[str, ...],
    ) -> None:
        self._name = name
        self._help = help_text
        self._read = read
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        metric = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, count in self._read().items():
            metric.add_metric(values, count)
        yield metric


class _TritonNames(Collector):
    """Metrics under Triton's names, for dashboards and autoscalers.

    They are counters without `_total`, which `encode_page` writes for the type "unknown".
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
            metric = Metric(name, text, "unknown")
            for (model, version), value in values.copy().items():
                metric.add_sample(name, {"model": model, "version": version}, value)
            yield metric
