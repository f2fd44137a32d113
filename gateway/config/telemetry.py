"""The parts of the configuration file that belong to logs, metrics and traces.

See `gateway.config.models`.
"""

from typing import Annotated, Literal

from pydantic import Field

from gateway.settings.fields import LogFile, field_schema, text_parser
from gateway.settings.model import Model
from gateway.telemetry.log.access_log import check_format

LineFormat = Annotated[
    str,
    text_parser(check_format, str),
    field_schema("`json` or a format", "string", "{code} {model} {ms}"),
]


class AccessLogConfig(Model):
    """A file with a line for every call and every rejected request."""

    path: LogFile
    """The file. Lines are appended. It is relative to the configuration file, and opened again when
    it was moved away, or by SIGUSR1."""
    format: LineFormat = "json"
    """`json`, or a text with fields in braces, such as `{code} {model} {ms} {request_id}`. A field
    that is empty is `-`. Default: `json`."""


class LogConfig(Model):
    """Settings of the log.

    No call waits for a line: a thread writes the lines. Lines that standard error or the file does
    not take, as a full disk, are lost, and `gateway_log_lines_lost_total` counts them.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. Default: `info`."""
    format: Literal["auto", "console", "json"] = "auto"
    """Form of a log line. Default: `auto`, which means `console` on a terminal and `json`
    elsewhere."""
    calls_per_second: int = Field(100, ge=0)
    """Most log lines per second about calls that succeed, over all workers, and as many about those
    that fail or are rejected. The line after a gap counts the omitted ones in `skipped`. `0` logs
    no calls. Default: `100`."""
    server_errors: Literal["brief", "full"] = "brief"
    """How much of the error texts of servers, which may quote clients, is shown in log lines,
    spans, the status and on pages. `brief` shows the first 120 characters, after `server said:`.
    Default: `brief`."""
    access: AccessLogConfig | None = None
    """A file with a line for every call and every rejected request, which `calls_per_second` does
    not limit. Default: none."""


class MetricsConfig(Model):
    """Settings of the metrics."""

    compat: tuple[Literal["triton"], ...] = ()
    """Servers whose metric names are published too. `triton` adds what Triton publishes of each
    model, `nv_inference_*` and `nv_cache_*_per_model`, for existing dashboards and autoscalers.
    Default: `[]`."""
    orca: bool = False
    """Whether responses tell the load of the gateway to clients and proxies that ask for it by the
    header `endpoint-load-metrics-format`, as ORCA. Default: `false`."""
    series: int = Field(500, ge=1)
    """Most model names in metric labels. Further models have the label `_unknown`. Default:
    `500`."""


class OtlpConfig(Model):
    """Export to a collector of OpenTelemetry. It needs the extra `otel`.

    The variables `OTEL_*` of the environment configure the rest, such as
    `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_EXPORTER_OTLP_PROTOCOL`.
    """

    traces: bool = False
    """Whether each call has spans: the call, its time in queues, each request to an upstream, each
    step of a pipeline and each batch. Default: `false`."""
    traces_percent: float | None = Field(None, ge=0, le=100)
    """Percentage of the traces that begin in the gateway and are exported. A client that sends
    `traceparent` decides about its own trace. Default: none, so `OTEL_TRACES_SAMPLER` decides, and
    without it all traces are exported."""
    metrics: bool = False
    """Whether the metrics of the metrics page are exported, every minute or every
    `OTEL_METRIC_EXPORT_INTERVAL` milliseconds. Default: `false`."""
    logs: bool = False
    """Whether log lines are exported, too, with the ids of their traces. Default: `false`."""

    @property
    def is_on(self) -> bool:
        """Whether anything is exported."""
        return self.traces or self.metrics or self.logs


class TelemetryConfig(Model):
    """Settings of logs, metrics and traces."""

    log: LogConfig = LogConfig()
    """Log lines on standard error."""
    metrics: MetricsConfig = MetricsConfig()
    """Contents of the metrics page."""
    otlp: OtlpConfig = OtlpConfig()
    """Export to a collector of OpenTelemetry."""
