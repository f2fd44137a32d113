"""Logging setup: one line for each event, as JSON or as text for a terminal.

Values are truncated at 256 characters and control characters are escaped, so that data of clients
cannot break a line or fill a disk. All lines go to standard error; standard output is for data.
"""

import contextlib
import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, ClassVar, TextIO

import orjson
import structlog

VALUE_LIMIT = 256

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_RECENT = 20
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
        stream: Standard error by default.
        worker: Number or role of this process, added to every line; None with a single process.
    """
    out = sys.stderr if stream is None else stream
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
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=_Logger,
        # One write for each line: several processes may share standard error.
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    _adopt_stdlib(out, shared, render)
    set_level(level)


def current() -> tuple[str, str]:
    """Return the current level, and the current format ("console" or "json")."""
    return _Logger.level, _Logger.form


def recent_warnings() -> list[dict[str, Any]]:
    """Return the latest lines of warnings and errors, the oldest first."""
    return list(_Logger.recent)


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


def _keep_warning(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Remember a line of a warning or an error; a structlog processor."""
    if event["level"] in _KEPT_LEVELS:
        _Logger.recent.append({key: event[key] for key in event if key != "exception"})
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
    return structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=0, sort_keys=False)


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
