"""Logging setup: one line for each event, as JSON or as text for a terminal.

Values are truncated at 256 characters and control characters are escaped, so that data of clients
cannot break a line or fill a disk. All lines go to standard error; standard output is for data.
Nobody waits for a line and no error of the log reaches a caller: see `line_writer.py`.
"""

import contextlib
import io
import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, ClassVar, TextIO, cast

import orjson
import structlog

from gateway.telemetry.log.line_writer import NO_LOSSES, DescriptorOutput, LineStream, LineWriter

VALUE_LIMIT = 256
LINES_MISSING = "lines of the log are missing"

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_RECENT = 20
_OF_REQUESTS = frozenset(
    {"call", "rejected", "connections refused", "lines about calls are missing"}
)
_KEPT_LEVELS = frozenset({"warning", "error", "critical"})
# Never truncated: these values come from the gateway, not from clients.
_UNLIMITED = frozenset({"exception", "timestamp"})


def configure(
    level: str = "info",
    style: str = "auto",
    stream: TextIO | None = None,
    *,
    worker: int | str | None = None,
) -> None:
    """Set up logging for the process.

    Args:
        level: debug, info, warning or error.
        style: console, json, or auto (console if *stream* is a terminal).
        stream: Gets each line at once. By default a thread writes the lines to standard error, and
            `sys.stderr` is replaced, so that nobody waits for what else is printed there.
        worker: Number or role of this process, added to every line; None with a single process.
    """
    out = _standard_error() if stream is None else stream
    console = style == "console" or (style == "auto" and out.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        cut_values,
        _keep_warning,
    ]
    _Logger.recent.clear()
    if worker is not None:
        shared.insert(1, _AddWorker(worker))
    render: Any = _console_renderer(out) if console else _json
    _Logger.form = "console" if console else "json"
    _Logger.writer = out.writer if isinstance(out, LineStream) else None
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=_Logger,
        logger_factory=lambda *_: _LinePrinter(out),
        cache_logger_on_first_use=True,
    )
    _adopt_stdlib(out, shared, render)
    set_level(level)


def current() -> tuple[str, str]:
    """Return the current level, and the current format ("console" or "json")."""
    return _Logger.level, _Logger.form


def recent_warnings() -> list[dict[str, Any]]:
    """Return the latest lines of warnings and errors, the oldest first."""
    lost = {reason: count for reason, count in lost_lines().items() if count}
    if not lost:
        return list(_Logger.recent)
    # The log cannot say it where it is not written.
    return [*_Logger.recent, {"level": "warning", "event": LINES_MISSING, **lost}]


def lost_lines() -> Mapping[str, int]:
    """Return the number of lines of the log that were lost, by reason."""
    return NO_LOSSES if _Logger.writer is None else _Logger.writer.lost


def add_sink(sink: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
    """Pass the keys of every line of the gateway to *sink*, too; return what ends that."""
    processors = structlog.get_config()["processors"]

    def pass_on(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Any:
        sink(event)
        return event

    processors.insert(len(processors) - 1, pass_on)  # before the one that writes

    def remove() -> None:
        with contextlib.suppress(ValueError):  # logging was configured again
            processors.remove(pass_on)

    return remove


def set_level(level: str) -> None:
    """Set the level of all loggers: debug, info, warning or error."""
    # Modules cache their loggers, so the methods of the shared class change.
    _Logger.level = level
    filtering = structlog.make_filtering_bound_logger(_LEVELS[level])
    for name, method in vars(filtering).items():
        if not name.startswith("__"):
            setattr(_Logger, name, method)
    logging.getLogger().setLevel(max(_LEVELS[level], logging.WARNING))


class _Logger(structlog.make_filtering_bound_logger(logging.INFO)):  # type: ignore[misc]  # dynamic
    """The class of all loggers; its methods below the level do nothing."""

    level: ClassVar[str] = "info"
    recent: ClassVar[deque[dict[str, Any]]] = deque(maxlen=_RECENT)
    form: ClassVar[str] = "console"
    writer: ClassVar[LineWriter | None] = None

    def _proxy_to_logger(self, method_name: str, event: str | None = None, **keys: Any) -> Any:
        """Write a line; one that cannot be made is counted, because no caller may fail for it."""
        try:
            return super()._proxy_to_logger(method_name, event, **keys)
        except Exception:  # noqa: BLE001  # it cannot be logged
            if self.writer is not None:
                self.writer.lose()
            return None


class _LinePrinter:
    """What structlog passes each line to."""

    def __init__(self, out: TextIO) -> None:
        self._write = out.write

    def msg(self, line: str) -> None:
        # One write for each line: several processes may share standard error.
        self._write(line + "\n")

    log = debug = info = warn = warning = error = critical = fatal = exception = msg


class _NoOutput(io.TextIOBase):
    """Standard error of a process that has none."""

    def write(self, text: str) -> int:
        return len(text)


def _standard_error() -> TextIO:
    """Return standard error as a stream that nobody waits for, and make it `sys.stderr`."""
    stream = sys.stderr
    if stream is None:  # it was closed before the start: there is no log
        return cast("TextIO", _NoOutput())
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # a stream of a notebook, for example
        return stream
    if isinstance(stream, LineStream):  # configured before
        return cast("TextIO", stream)
    writer = LineWriter(DescriptorOutput(descriptor), on_recovery=_on_recovery)
    replaced = cast("TextIO", LineStream(writer, descriptor))
    sys.stderr = replaced
    return replaced


def _on_recovery(count: int) -> None:
    structlog.get_logger(__name__).warning(LINES_MISSING, count=count)


def _keep_warning(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Remember a line of a warning or an error; a structlog processor.

    Of lines about requests the last one of each code is kept, with their number: those that one
    client causes would replace all others.
    """
    if event["level"] in _KEPT_LEVELS:
        line = {key: event[key] for key in event if key != "exception"}
        if line["event"] in _OF_REQUESTS:
            earlier = [each for each in _Logger.recent if _kind_of(each) == _kind_of(line)]
            for each in earlier:
                _Logger.recent.remove(each)
                line["count"] = each.get("count", 1) + line.get("count", 1)
        _Logger.recent.append(line)
    return event


def cut_values(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Truncate long text values and escape control characters; a structlog processor."""
    for key, value in event.items():
        if isinstance(value, str) and key not in _UNLIMITED:
            if len(value) > VALUE_LIMIT:
                value = value[:VALUE_LIMIT] + "..."  # noqa: PLW2901
            if not value.isprintable():
                value = value.encode("unicode_escape").decode("ascii")  # noqa: PLW2901
            event[key] = value
    return event


def _kind_of(line: Mapping[str, Any]) -> tuple[Any, Any]:
    return line["event"], line.get("code")


class _AddWorker:
    """Adds the number of the worker process to each line; a structlog processor."""

    def __init__(self, worker: int | str) -> None:
        self._worker = worker

    def __call__(
        self, _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event["worker"] = self._worker
        return event


def _console_renderer(out: TextIO) -> Any:
    # The default shows local variables: headers and tensors of clients.
    return structlog.dev.ConsoleRenderer(
        colors=out.isatty(),
        pad_event_to=0,
        sort_keys=False,
        exception_formatter=structlog.dev.plain_traceback,
    )


def _json(_logger: Any, _method: str, event: Mapping[str, Any]) -> str:
    return orjson.dumps(event, default=repr).decode()


def _adopt_stdlib(out: TextIO, shared: list[Any], render: Any) -> None:
    """Format the standard library's log records in the same way."""
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
