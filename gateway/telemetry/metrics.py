"""Metrics: their names, in a separate registry, in the Prometheus text format.

Labels are names of the configuration. A model name of a client becomes a label only after a target
has served it, up to a maximum number of labels; all others become `_unknown`.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.ir.errors import GatewayError
from gateway.telemetry import names
from gateway.telemetry.access_metrics import AccessMetrics
from gateway.telemetry.batching_metrics import SharingMetrics
from gateway.telemetry.call_metrics import CallMetrics
from gateway.telemetry.exposition import PageWriter
from gateway.telemetry.families import LabelledSeries, counter_family, in_pieces
from gateway.telemetry.gauges import InfoMetric, LabelledGauges
from gateway.telemetry.log.call_log import CallRecord
from gateway.telemetry.upstream_metrics import (
    BOUNDS_S,
    AttemptMetrics,
    ByteMetrics,
)
from gateway.telemetry.usage.model_counts import ModelCounts
from gateway.telemetry.usage.model_usage import Usage
from gateway.telemetry.usage.rolling_stats import RollingStats

_BUCKETS = (0.0001, 0.00025, *BOUNDS_S)


class Metrics:
    """All metrics of the gateway.

    Args:
        version: Version of the gateway.
        series: Maximum number of model labels that requests may create.
        triton: Also count inferences by model, for Triton's names.

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
        model_counts: Counts of inferences for the names of other servers; None without `triton`.
    """

    def __init__(self, version: str, *, series: int = 500, triton: bool = False) -> None:
        # Omit the `_created` series of each counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library is half typed
        self.registry = CollectorRegistry()
        self.trends = RollingStats()
        self._calls = CallMetrics(
            self.registry, _BUCKETS, series, trends=self.trends, on_limit=self.limit_exceeded
        )
        self.call = self._calls.record
        self._rejected = LabelledSeries(self.registry, names.REFUSED_REQUESTS, Counter)
        self._limits = LabelledSeries(self.registry, names.LIMIT_EXCEEDED, Counter)
        self._blocked = LabelledSeries(self.registry, names.LOOP_BLOCKED_REQUESTS, Counter)
        self._upstream_ready = LabelledSeries(self.registry, names.UPSTREAM_READY, Gauge)
        self._ejections = LabelledSeries(self.registry, names.ENDPOINT_EJECTIONS, Counter)
        self._retries = LabelledSeries(self.registry, names.RETRIES, Counter)
        self._retry_budget_exhausted = LabelledSeries(
            self.registry, names.RETRY_BUDGET_EXHAUSTED, Counter
        )
        self._hedges = LabelledSeries(self.registry, names.HEDGES, Counter)
        self._concurrency_limits = LabelledSeries(self.registry, names.CONCURRENCY_LIMIT, Gauge)
        self._withheld = LabelledSeries(self.registry, names.WITHHELD_CANCELLATIONS, Counter)
        self.access = AccessMetrics(self.registry)
        self.attempts = AttemptMetrics(self.registry)
        self.bytes = ByteMetrics(self.registry)
        self.gauges = LabelledGauges(self.registry)
        self.loop_lag = Histogram(
            *names.EVENT_LOOP_LAG.arguments,
            buckets=BOUNDS_S,
            registry=self.registry,
        )
        self.usage = Usage()
        self.sharing = SharingMetrics(self.registry, self.usage)
        self.steps = StepMetrics(self.registry, _BUCKETS)
        Gauge(*names.BUILD_INFO.arguments, registry=self.registry).labels(version).set(1)
        self._own: dict[str, Counter | Gauge | Histogram | LabelledSeries[Any]] = {}
        self.model_counts = ModelCounts(self.usage) if triton else None

    def watch(self, metric: names.Metric, read: Callable[[], float]) -> None:
        """Publish a gauge without labels whose value is read at each scrape."""
        Gauge(*metric.arguments, registry=self.registry).set_function(read)

    def watch_counter(
        self, metric: names.Metric, read: Callable[[], Mapping[tuple[str, ...], float]]
    ) -> None:
        """Publish a counter whose values, by their labels, are read at each scrape."""
        self.registry.register(_WatchedCounter(metric, read))

    def watch_config(self, read: Callable[[], dict[str, str]]) -> None:
        """Publish the labels of the configuration in force, which *read* returns."""
        InfoMetric(self.registry, names.CONFIG_INFO, read)

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

    def cell(self, metric: names.Metric, /, **labels: str) -> names.MetricCell:
        """Return one series of a metric that a layer or an extension owns."""
        found = self._own.get(metric.name)
        if found is None:
            new = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}[metric.kind]
            found = self._own[metric.name] = (
                LabelledSeries(self.registry, metric, new)
                if metric.labels
                else new(*metric.arguments, registry=self.registry)
            )
        if isinstance(found, LabelledSeries):
            if labels.keys() != set(metric.labels):
                expected = ", ".join(metric.labels)
                raise ValueError(
                    f"labels {', '.join(labels)} of {metric.name}; expected {expected}"
                )
            found = found.labels(*(labels[each] for each in metric.labels))
        # A series has the method of its kind.
        return cast("names.MetricCell", found)

    def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page at once, and its content type; see `exposition.write_page`."""
        page = PageWriter(accept)
        for piece in self.registry.collect():
            page.add(piece)
        return page.text(), page.content_type


class _WatchedCounter(Collector):
    """A counter that is kept elsewhere."""

    def __init__(
        self,
        metric: names.Metric,
        read: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        self._metric = metric
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return in_pieces(
            partial(counter_family, self._metric),
            list(self._read().items()),
            lambda family, each: family.add_metric(*each),
        )


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
