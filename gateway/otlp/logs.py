"""The log lines of the gateway as log records of OpenTelemetry."""

import time
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry._logs import Logger, LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

_SEVERITIES: Final = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}
# They have fields of their own in a record.
_FIELDS: Final = frozenset({"event", "level", "timestamp", "trace_id"})


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
