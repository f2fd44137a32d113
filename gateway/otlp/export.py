"""The export of one process: started with the gateway, flushed when it stops; its log records."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from opentelemetry._logs import Logger, LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from gateway import __version__
from gateway.concurrency.own_thread import on_own_thread
from gateway.config.telemetry import OtlpConfig
from gateway.otlp.exporters import exporters, logger_provider, resource, tracer_provider
from gateway.otlp.metrics import Collect, MetricsExport, interval_s
from gateway.otlp.spans import CallSpans, TracedPath, record_with_trace
from gateway.policies.observe import Recorder
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.log import logs

_SCOPE: Final = "tensor_gateway"
_FLUSH_S: Final = 3.0
# They log each invalid header of a client.
_PROPAGATORS: Final = ("opentelemetry.trace.propagation", "opentelemetry.baggage.propagation")
_SEVERITIES: Final = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}
# They have fields of their own in a record.
_FIELDS: Final = frozenset({"event", "level", "timestamp", "trace_id"})


class Export:
    """Exports what the configuration lists.

    Args:
        config: What to export.

    Attributes:
        tracing: Builds the layers that make spans; None without traces.
        new_path: Makes the record of a call's path.

    Raises:
        ValueError: A variable of the environment is invalid.
    """

    def __init__(self, config: OtlpConfig) -> None:
        for name in _PROPAGATORS:
            logging.getLogger(name).setLevel(logging.ERROR)
        self._closes: list[Callable[[], None]] = []
        self._new_metrics: Callable[[Collect], MetricsExport] | None = None
        self._metrics: MetricsExport | None = None
        if config.metrics:
            scope, sends = InstrumentationScope(_SCOPE, __version__), exporters("metrics")
            self._new_metrics = partial(
                MetricsExport,
                exporters=sends,
                resource=resource(),
                scope=scope,
                every_s=interval_s(),
            )
        self.tracing: CallSpans | None = None
        self.new_path: Callable[..., CallPath] = CallPath
        if config.traces:
            percent = config.traces_percent
            tracers = tracer_provider(None if percent is None else percent / 100)
            self._closes.append(tracers.shutdown)
            self.new_path = TracedPath
            self.tracing = CallSpans(tracers.get_tracer(_SCOPE, __version__))
        self._remove_sink: Callable[[], None] | None = None
        if config.logs:
            loggers = logger_provider()
            self._closes.append(loggers.shutdown)
            self._remove_sink = logs.add_sink(LogExport(loggers.get_logger(_SCOPE, __version__)))

    def recorder(self, record: Recorder, exemplify: Recorder) -> Recorder:
        """Return what records a call, and keeps its trace as an exemplar."""
        return record if self.tracing is None else partial(record_with_trace, record, exemplify)

    def start_metrics(self, collect: Collect) -> None:
        """Export the metrics that *collect* returns, if the configuration lists them."""
        if self._new_metrics is not None:
            self._metrics = self._new_metrics(collect)
            self._metrics.start()

    async def close(self) -> None:
        """Send what is left, for 3 seconds at most; idempotent."""
        closes, self._closes = self._closes, []
        if self._remove_sink is not None:
            self._remove_sink()
            self._remove_sink = None
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            closes.append(await metrics.stop())
        await asyncio.gather(*(_within(close, _FLUSH_S) for close in closes))


async def _within(run: Callable[[], None], seconds: float) -> None:
    """Run a blocking function on a thread of its own, and leave it there after *seconds*."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await on_own_thread(run)


class LogExport:
    """Passes each line to a logger of OpenTelemetry.

    Args:
        logger: Exports the records.
    """

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Export one line: the event is the body, and the other keys are attributes."""
        level = line["level"]
        self._logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                context=_context(line.get("trace_id", "")),
                severity_text=level,
                severity_number=_SEVERITIES[level],
                body=line["event"],
                attributes={
                    key: value if isinstance(value, str | bool | int | float) else str(value)
                    for key, value in line.items()
                    if key not in _FIELDS
                },
            )
        )


def _context(trace_id: str) -> Context:
    """Return a context with the trace of a line, which names no span of it."""
    if not trace_id:
        return set_span_in_context(NonRecordingSpan(SpanContext(0, 0, is_remote=False)))
    span = NonRecordingSpan(SpanContext(int(trace_id, 16), 0, is_remote=False))
    return set_span_in_context(span)
