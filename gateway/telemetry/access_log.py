"""AccessLog: every line about calls in a file of its own, as JSON or in a format of the operator.

Lines wait in memory for at most a second, so that no call waits for the disk. A file that was moved
away, as logrotate does, is opened again.
"""

import asyncio
import os
import string
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from gateway.telemetry.logs import cut_values

log = structlog.get_logger(__name__)

JSON: Final = "json"
FIELDS: Final = (
    "timestamp",
    "event",
    "code",
    "model",
    "ms",
    "version",
    "kind",
    "path",
    "protocol",
    "listener",
    "route",
    "target",
    "endpoint",
    "attempts",
    "upstream_ms",
    "queue_ms",
    "request_bytes",
    "response_bytes",
    "limit",
    "rule",
    "error",
    "request_id",
    "trace_id",
    "client",
    "agent",
)
"""The fields of a line, which a format names in braces."""

_FLUSH_S: Final = 1.0
_MAX_WAITING: Final = 10_000
_MODE: Final = 0o640


def check_format(text: str) -> str:
    """Return *text* if it is "json" or a format of known fields.

    Raises:
        ValueError: It names an unknown field, or is no format.
    """
    if text == JSON:
        return text
    names = []
    for _, name, spec, conversion in string.Formatter().parse(text):
        if name is not None:
            names.append(name)
            if name not in FIELDS:
                raise ValueError(f"unknown field {{{name}}}; expected {', '.join(FIELDS)}")
            if spec or conversion:  # an absent number is text
                raise ValueError(f"field {{{name}}} has a format of its own; expected {{{name}}}")
    if not names:
        raise ValueError("expected 'json', or a text with fields such as '{code} {model} {ms}'")
    return text


class AccessLog:
    """A file with one line for each call.

    Args:
        path: The file, which lines are appended to.
        form: "json", or a text with fields in braces; an empty field is "-".

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, form: str = JSON) -> None:
        self._path = path
        self._form = form
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._dropped = 0
        self._file = self._open()

    def write(self, event: str, keys: Mapping[str, Any]) -> None:
        """Write a line with *keys*, at the latest in a second."""
        if len(self._lines) >= _MAX_WAITING:
            self._dropped += 1
            return
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = cut_values(None, "", {"timestamp": time, "event": event, **keys})
        if self._form == JSON:
            self._lines.append(orjson.dumps(entry) + b"\n")
        else:
            self._lines.append(self._form.format_map(_Fields(entry)).encode() + b"\n")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write the lines that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        try:
            if self._is_moved():
                os.close(self._file)
                self._file = self._open()
            # Several workers append to one file: a write of whole lines stays in one piece.
            os.write(self._file, b"".join(lines))
        except OSError as error:
            self._dropped += len(lines)
            log.error("access log not written", path=str(self._path), reason=str(error))  # noqa: TRY400
        if self._dropped:
            log.warning("lines of the access log are missing", count=self._dropped)
            self._dropped = 0

    def close(self) -> None:
        """Write the lines that wait, and close the file; idempotent."""
        if self._file < 0:
            return
        self.flush()
        os.close(self._file)
        self._file = -1

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def _is_moved(self) -> bool:
        """Return whether the path leads to another file, or to none."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return True
        opened = os.fstat(self._file)
        return (found.st_dev, found.st_ino) != (opened.st_dev, opened.st_ino)


class _Fields(dict[str, Any]):
    """The fields of a line; an absent one is "-"."""

    def __missing__(self, key: str) -> str:
        return "-"
