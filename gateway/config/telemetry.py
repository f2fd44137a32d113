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
    """The file, which is appended to, and opened again when it was moved away, or by SIGUSR1."""
    format: LineFormat = "json"
    """`json`, or a text with fields in braces, such as `{code} {model} {ms} {request_id}`. An
    empty one is `-`. Default: `json`."""


class LogConfig(Model):
    """Settings of the log.

    No call waits for a line. Lines that standard error or the file does not take are lost, and
    `gateway_log_lines_lost_total` counts them.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. Default: `info`."""
    format: Literal["auto", "console", "json"] = "auto"
    """Form of a line. Default: `auto`: `console` on a terminal, else `json`."""
    calls_per_second: int = Field(100, ge=0)
    """Most lines per second about calls that succeed, over all workers, and as many about others.
    `skipped` of a line counts those omitted before it. `0` logs no calls. Default: `100`."""
    server_errors: Literal["brief", "full"] = "brief"
    """How much of error texts of servers, which may quote clients, is in log lines, spans, the
    status and pages. `brief`: the first 120 characters. Default: `brief`."""
    access: AccessLogConfig | None = None
    """A file with a line for each call and rejected request, which `calls_per_second` does not
    limit. Default: none."""


class MetricsConfig(Model):
    """Settings of the metrics."""

    compat: tuple[Literal["triton"], ...] = ()
    """Servers whose metric names are published too: of Triton `nv_inference_*` and
    `nv_cache_*_per_model`. Default: `[]`."""
    orca: bool = False
    """Whether responses tell the load of the gateway to those who ask by the header
    `endpoint-load-metrics-format`, as ORCA. Default: `false`."""
    series: int = Field(500, ge=1)
    """Most model names in labels. Further ones are `_unknown`. Default: `500`."""


class OtlpConfig(Model):
    """Export to a collector of OpenTelemetry. It needs the extra `otel`.

    The variables `OTEL_*` of the environment configure the rest, such as
    `OTEL_EXPORTER_OTLP_ENDPOINT`.
    """

    traces: bool = False
    """Whether each call has spans. Default: `false`."""
    traces_percent: float | None = Field(None, ge=0, le=100)
    """Percentage of exported traces of those that begin in the gateway. Default: what
    `OTEL_TRACES_SAMPLER` says, else all."""
    metrics: bool = False
    """Whether the metrics are exported. Default: `false`."""
    logs: bool = False
    """Whether log lines are exported, with the ids of their traces. Default: `false`."""

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
