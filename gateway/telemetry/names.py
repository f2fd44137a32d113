"""Metric: a metric with its labels and help, and all metrics of the core in one table.

Whoever publishes a metric takes its name from here. `docs/metrics.md` is written from the table.
Those of an extension or a layer stand with it.
"""

from dataclasses import dataclass
from typing import Final, Literal, Protocol

MetricKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as it is published.

    Attributes:
        name: The whole name; that of a counter ends in `_total`, unless it is one of Triton.
        kind: "counter", "gauge" or "histogram".
        help: One sentence.
        labels: The names of its labels.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The name without `_total`, by which the Prometheus library knows a counter."""
        return self.name.removesuffix("_total")

    @property
    def arguments(self) -> tuple[str, str, tuple[str, ...]]:
        """The first arguments of a metric of the Prometheus library."""
        return self.family, self.help, self.labels


class MetricCell(Protocol):
    """One series of a metric: a counter has `inc`, a gauge `set`, a histogram `observe`."""

    def inc(self, amount: float = 1, /) -> None:
        """Add to a counter or a gauge."""

    def set(self, value: float, /) -> None:
        """Set a gauge."""

    def observe(self, amount: float, /) -> None:
        """Add a value to a histogram."""


REQUESTS: Final = Metric(
    "gateway_requests_total",
    "counter",
    "Completed calls.",
    ("route", "model", "protocol", "kind", "code", "target"),
)
REQUEST_DURATION: Final = Metric(
    "gateway_request_duration_seconds",
    "histogram",
    "Time from the decoded call to the complete reply.",
    ("route", "protocol", "kind", "target"),
)
UPSTREAM_DURATION: Final = Metric(
    "gateway_upstream_duration_seconds",
    "histogram",
    "Time of an inference in upstreams or in-process models.",
    ("model",),
)
QUEUE_DURATION: Final = Metric(
    "gateway_queue_duration_seconds",
    "histogram",
    "Time of an inference in the queues of the gateway.",
    ("model",),
)
OVERHEAD_DURATION: Final = Metric(
    "gateway_overhead_duration_seconds",
    "histogram",
    "Time of an inference in the gateway without queues, upstreams, and sockets, decoding and "
    "encoding on the client's side.",
    ("model",),
)
REFUSED_REQUESTS: Final = Metric(
    "gateway_refused_requests_total",
    "counter",
    "Requests rejected before routing.",
    ("protocol", "code"),
)
LIMIT_EXCEEDED: Final = Metric(
    "gateway_limit_exceeded_total",
    "counter",
    "Requests rejected because they exceeded a limit.",
    ("limit", "protocol"),
)
LOOP_BLOCKED_REQUESTS: Final = Metric(
    "gateway_loop_blocked_requests_total",
    "counter",
    "Requests whose decoding or encoding blocked the event loop for more than 100 ms.",
    ("protocol", "model"),
)
RECEIVED_BYTES: Final = Metric(
    "gateway_received_bytes_total",
    "counter",
    "Bytes of requests, without headers.",
    ("listener", "protocol"),
)
SENT_BYTES: Final = Metric(
    "gateway_sent_bytes_total",
    "counter",
    "Bytes of responses, without headers.",
    ("listener", "protocol"),
)
CONNECTIONS: Final = Metric(
    "gateway_connections", "gauge", "Open connections of clients.", ("server",)
)
IN_FLIGHT_BYTES: Final = Metric(
    "gateway_in_flight_bytes",
    "gauge",
    "Bytes of the memory budget in use by requests and responses.",
)
IN_FLIGHT_BYTES_LIMIT: Final = Metric(
    "gateway_in_flight_bytes_limit", "gauge", "Size of the memory budget in bytes."
)
ROUTE_IN_FLIGHT: Final = Metric(
    "gateway_route_in_flight", "gauge", "Inferences in flight.", ("route",)
)
ROUTE_IN_FLIGHT_LIMIT: Final = Metric(
    "gateway_route_in_flight_limit",
    "gauge",
    "Limit of the inferences in flight, if there is one.",
    ("route",),
)
ROUTE_QUEUED: Final = Metric(
    "gateway_route_queued", "gauge", "Inferences that wait for a slot.", ("route",)
)
RETRIES: Final = Metric(
    "gateway_retries_total",
    "counter",
    "Retries, by outcome: ok or failed.",
    ("route", "reason", "outcome"),
)
RETRY_BUDGET_EXHAUSTED: Final = Metric(
    "gateway_retry_budget_exhausted_total",
    "counter",
    "Retries that were not made because the budget of the route was used up.",
    ("route",),
)
HEDGES: Final = Metric(
    "gateway_hedges_total",
    "counter",
    "Second attempts of slow calls, by the attempt whose reply was returned: first, second "
    "or none.",
    ("route", "won"),
)
CONCURRENCY_LIMIT: Final = Metric(
    "gateway_concurrency_limit",
    "gauge",
    "Current limit of `adaptive_concurrency`: the lowest of routes and models; 0 for none.",
    ("upstream",),
)
UPSTREAM_READY: Final = Metric(
    "gateway_upstream_ready",
    "gauge",
    "1 if the last readiness probe of the endpoint succeeded, else 0.",
    ("upstream", "endpoint"),
)
UPSTREAM_SHARE: Final = Metric(
    "gateway_upstream_share",
    "gauge",
    "Share of the endpoint, relative to 1 of the others; at most 0.0625 once it is set aside.",
    ("upstream", "endpoint"),
)
UPSTREAM_ATTEMPTS: Final = Metric(
    "gateway_upstream_attempts_total",
    "counter",
    "Requests to an endpoint, probes and retries included.",
    ("upstream", "endpoint", "kind", "code"),
)
UPSTREAM_ATTEMPT_SECONDS: Final = Metric(
    "gateway_upstream_attempt_seconds_total",
    "counter",
    "Time between the requests to an endpoint and their responses.",
    ("upstream", "endpoint", "kind"),
)
ENDPOINT_EJECTIONS: Final = Metric(
    "gateway_endpoint_ejections_total",
    "counter",
    "Ejections of an endpoint by outlier detection.",
    ("upstream", "endpoint", "cause"),
)
WITHHELD_CANCELLATIONS: Final = Metric(
    "gateway_upstream_withheld_cancellations_total",
    "counter",
    "Abandoned gRPC calls that were not cancelled at the upstream.",
    ("upstream",),
)
WITHHELD_CALLS: Final = Metric(
    "gateway_upstream_withheld_calls",
    "gauge",
    "Calls without a client that still run at an endpoint.",
    ("upstream", "endpoint"),
)
RESIDENCY_MODELS: Final = Metric(
    "gateway_residency_models",
    "gauge",
    "Models at an endpoint, by state: loading, loaded, draining, unloading or failed.",
    ("upstream", "endpoint", "state"),
)
RESIDENCY_LOADS: Final = Metric(
    "gateway_residency_loads_total",
    "counter",
    "Loads of models by the gateway, by outcome: ok or failed.",
    ("upstream", "endpoint", "model", "outcome"),
)
RESIDENCY_UNLOADS: Final = Metric(
    "gateway_residency_unloads_total",
    "counter",
    "Unloads of models by the gateway, by reason: room, idle, request or eviction.",
    ("upstream", "endpoint", "model", "reason"),
)
RESIDENCY_LOAD_SECONDS: Final = Metric(
    "gateway_residency_load_seconds",
    "histogram",
    "Time of a load that succeeded.",
    ("upstream", "endpoint"),
)
RESIDENCY_WAIT_SECONDS: Final = Metric(
    "gateway_residency_wait_seconds",
    "histogram",
    "Time that a call waited until its model was loaded.",
    ("upstream",),
)
RESIDENCY_WAITING: Final = Metric(
    "gateway_residency_waiting", "gauge", "Calls that wait for their model.", ("upstream",)
)
ROLLING_LOAD: Final = Metric(
    "gateway_rolling_load",
    "gauge",
    "1 for the state of an endpoint in a rolling load: draining, loading, warming, ready or "
    "failed; 0 for the others.",
    ("upstream", "model", "endpoint", "state"),
)
BATCH_ROWS: Final = Metric("gateway_batch_rows", "histogram", "Rows of a batch.", ("model",))
BATCH_REQUESTS: Final = Metric(
    "gateway_batch_requests", "histogram", "Requests in a batch.", ("model",)
)
BATCH_WAIT: Final = Metric(
    "gateway_batch_wait_seconds",
    "histogram",
    "Time that a request waited for its batch to be sent.",
    ("model",),
)
BATCH_REFUSED: Final = Metric(
    "gateway_batch_refused_total",
    "counter",
    "Batches the model rejected; their requests were then sent individually.",
    ("model",),
)
CACHE_LOOKUPS: Final = Metric(
    "gateway_cache_lookups_total",
    "counter",
    "Cache lookups by outcome: hit, shared (an equal request was in flight) or miss.",
    ("model", "outcome"),
)
CACHE_DROPPED: Final = Metric(
    "gateway_cache_dropped_total",
    "counter",
    "Replies removed from the cache, by reason: evicted, expired or cleared.",
    ("model", "reason"),
)
CACHE_ENTRIES: Final = Metric("gateway_cache_entries", "gauge", "Replies in the cache.", ("model",))
CACHE_BYTES: Final = Metric(
    "gateway_cache_bytes", "gauge", "Bytes of replies in the cache.", ("model",)
)
PIPELINE_STEP_DURATION: Final = Metric(
    "gateway_pipeline_step_duration_seconds",
    "histogram",
    "Time from the call of a step to its reply.",
    ("pipeline", "step", "code"),
)
EVENT_LOOP_LAG: Final = Metric(
    "gateway_event_loop_lag_seconds",
    "histogram",
    "How late the event loop runs a timer, measured twice a second.",
)
LOG_LINES_LOST: Final = Metric(
    "gateway_log_lines_lost_total",
    "counter",
    "Lines of the log that were lost, by output and reason: buffer_full or write_failed.",
    ("output", "reason"),
)
CONFIG_INFO: Final = Metric(
    "gateway_config_info", "gauge", "The configuration in force, by its hash.", ("sha256",)
)
CONFIG_RELOADS: Final = Metric(
    "gateway_config_reloads_total",
    "counter",
    "Configuration reloads: applied, rejected (an error in the file) or failed.",
    ("outcome",),
)
CONFIG_LAST_RELOAD: Final = Metric(
    "gateway_config_last_reload_success_timestamp_seconds",
    "gauge",
    "When the configuration in force was read, in seconds since the epoch.",
)
TLS_RELOADS: Final = Metric(
    "gateway_tls_reloads_total",
    "counter",
    "Changes of the TLS files of a socket: applied, or failed (the old ones serve).",
    ("socket", "outcome"),
)
TLS_CERTIFICATE_EXPIRY: Final = Metric(
    "gateway_tls_certificate_expiry_timestamp_seconds",
    "gauge",
    "Until when a certificate in force is valid, in seconds since the epoch.",
    ("socket", "file"),
)
AUTHENTICATION_FAILURES: Final = Metric(
    "gateway_authentication_failures_total",
    "counter",
    "Requests that were refused for their credentials.",
    ("listener", "kind", "reason"),
)
ACCESS_RELOADS: Final = Metric(
    "gateway_access_reloads_total",
    "counter",
    "Files of credentials read: applied, or failed at each look (the old content holds).",
    ("file", "outcome"),
)
ACCESS_DENIED: Final = Metric(
    "gateway_access_denied_total",
    "counter",
    "Calls that no rule allows the client, or that a rule denies.",
    ("client", "operation"),
)
ACCESS_REHEARSED: Final = Metric(
    "gateway_access_rehearsed_total",
    "counter",
    "Calls that would be refused if rules with `mode: shadow` were enforced, by the rule that "
    "denies them; an empty rule where none allows them.",
    ("client", "operation", "rule"),
)
QUOTA_REFUSED: Final = Metric(
    "gateway_quota_refused_total",
    "counter",
    "Calls beyond a quota, by mode: those of `shadow` were made.",
    ("quota", "client", "mode"),
)
QUOTA_USED: Final = Metric(
    "gateway_quota_used",
    "gauge",
    "What is used of a quota in the current window or burst, of all its budgets.",
    ("quota",),
)
QUOTA_STORE_UP: Final = Metric(
    "gateway_quota_store_up", "gauge", "Whether the store of quotas replies (1) or not (0)."
)
WORKER_UP: Final = Metric(
    "gateway_worker_up", "gauge", "Whether the worker is serving (1) or not (0).", ("worker",)
)
WORKER_RESTARTS: Final = Metric(
    "gateway_worker_restarts_total", "counter", "Restarts of the worker.", ("worker",)
)
WORKER_REQUESTS: Final = Metric(
    "gateway_worker_requests_total", "counter", "Calls that the worker completed.", ("worker",)
)
BUILD_INFO: Final = Metric("gateway_build_info", "gauge", "Version of the gateway.", ("version",))
COMPAT_STALE: Final = Metric(
    "gateway_compat_stale",
    "gauge",
    "1 if a server did not reply in time and its values under other names are old, else 0.",
    ("upstream",),
)
TRITON_SUCCESS: Final = Metric(
    "nv_inference_request_success",
    "counter",
    "Successful inference requests.",
    ("model", "version"),
)
TRITON_FAILURE: Final = Metric(
    "nv_inference_request_failure",
    "counter",
    "Failed inference requests, by reason.",
    ("model", "version", "reason"),
)
TRITON_COUNT: Final = Metric(
    "nv_inference_count",
    "counter",
    "Inferences, without cached ones; each row of a batch counts.",
    ("model", "version"),
)
TRITON_EXEC_COUNT: Final = Metric(
    "nv_inference_exec_count",
    "counter",
    "Executions of the model; a batch counts once.",
    ("model", "version"),
)
TRITON_DURATION: Final = Metric(
    "nv_inference_request_duration_us",
    "counter",
    "Cumulative time of successful requests, in microseconds.",
    ("model", "version"),
)
TRITON_QUEUE_DURATION: Final = Metric(
    "nv_inference_queue_duration_us",
    "counter",
    "Cumulative time of requests in queues, in microseconds.",
    ("model", "version"),
)
TRITON_INPUT_DURATION: Final = Metric(
    "nv_inference_compute_input_duration_us",
    "counter",
    "Cumulative time in which inputs are prepared, in microseconds.",
    ("model", "version"),
)
TRITON_INFER_DURATION: Final = Metric(
    "nv_inference_compute_infer_duration_us",
    "counter",
    "Cumulative time of executions, in microseconds.",
    ("model", "version"),
)
TRITON_OUTPUT_DURATION: Final = Metric(
    "nv_inference_compute_output_duration_us",
    "counter",
    "Cumulative time in which outputs are prepared, in microseconds.",
    ("model", "version"),
)
TRITON_PENDING: Final = Metric(
    "nv_inference_pending_request_count",
    "gauge",
    "Requests that wait for their execution.",
    ("model", "version"),
)
TRITON_CACHE_HITS: Final = Metric(
    "nv_cache_num_hits_per_model",
    "counter",
    "Cache hits of a model with a cache.",
    ("model", "version"),
)
TRITON_CACHE_MISSES: Final = Metric(
    "nv_cache_num_misses_per_model",
    "counter",
    "Cache misses of a model with a cache.",
    ("model", "version"),
)
TRITON_CACHE_HIT_DURATION: Final = Metric(
    "nv_cache_hit_duration_per_model",
    "counter",
    "Cumulative time of cache hits, in microseconds.",
    ("model", "version"),
)
TRITON_CACHE_MISS_DURATION: Final = Metric(
    "nv_cache_miss_duration_per_model",
    "counter",
    "Cumulative time of cache misses, in microseconds.",
    ("model", "version"),
)

TRITON_METRICS: Final[tuple[Metric, ...]] = (
    TRITON_SUCCESS,
    TRITON_FAILURE,
    TRITON_COUNT,
    TRITON_EXEC_COUNT,
    TRITON_DURATION,
    TRITON_QUEUE_DURATION,
    TRITON_INPUT_DURATION,
    TRITON_INFER_DURATION,
    TRITON_OUTPUT_DURATION,
    TRITON_PENDING,
    TRITON_CACHE_HITS,
    TRITON_CACHE_MISSES,
    TRITON_CACHE_HIT_DURATION,
    TRITON_CACHE_MISS_DURATION,
)
"""What Triton 2.51 publishes of models, in the order of its page."""

METRICS: Final[tuple[Metric, ...]] = (
    REQUESTS,
    REQUEST_DURATION,
    UPSTREAM_DURATION,
    QUEUE_DURATION,
    OVERHEAD_DURATION,
    REFUSED_REQUESTS,
    LIMIT_EXCEEDED,
    LOOP_BLOCKED_REQUESTS,
    RECEIVED_BYTES,
    SENT_BYTES,
    CONNECTIONS,
    IN_FLIGHT_BYTES,
    IN_FLIGHT_BYTES_LIMIT,
    ROUTE_IN_FLIGHT,
    ROUTE_IN_FLIGHT_LIMIT,
    ROUTE_QUEUED,
    RETRIES,
    RETRY_BUDGET_EXHAUSTED,
    HEDGES,
    CONCURRENCY_LIMIT,
    UPSTREAM_READY,
    UPSTREAM_SHARE,
    UPSTREAM_ATTEMPTS,
    UPSTREAM_ATTEMPT_SECONDS,
    ENDPOINT_EJECTIONS,
    WITHHELD_CANCELLATIONS,
    WITHHELD_CALLS,
    RESIDENCY_MODELS,
    RESIDENCY_LOADS,
    RESIDENCY_UNLOADS,
    RESIDENCY_LOAD_SECONDS,
    RESIDENCY_WAIT_SECONDS,
    RESIDENCY_WAITING,
    ROLLING_LOAD,
    BATCH_ROWS,
    BATCH_REQUESTS,
    BATCH_WAIT,
    BATCH_REFUSED,
    CACHE_LOOKUPS,
    CACHE_DROPPED,
    CACHE_ENTRIES,
    CACHE_BYTES,
    PIPELINE_STEP_DURATION,
    EVENT_LOOP_LAG,
    LOG_LINES_LOST,
    CONFIG_INFO,
    CONFIG_RELOADS,
    CONFIG_LAST_RELOAD,
    TLS_RELOADS,
    TLS_CERTIFICATE_EXPIRY,
    AUTHENTICATION_FAILURES,
    ACCESS_RELOADS,
    ACCESS_DENIED,
    ACCESS_REHEARSED,
    QUOTA_REFUSED,
    QUOTA_USED,
    QUOTA_STORE_UP,
    WORKER_UP,
    WORKER_RESTARTS,
    WORKER_REQUESTS,
    BUILD_INFO,
    COMPAT_STALE,
    *TRITON_METRICS,
)
"""All metrics of the core, in the order of the documentation."""
