"""AccessLog: every line about calls in a file of its own, as JSON or in a format of the operator.

A thread writes the lines, so that no call waits for the disk (`line_writer.py`). A file that was
moved away, as logrotate does, is opened again.
"""

import string
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from gateway.telemetry.log.line_writer import FileOutput, LineWriter
from gateway.telemetry.log.logs import cut_values

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
    "client_name",
    "credential",
    "subject",
    "kid",
    "issuer",
    "agent",
)
"""The fields of a line, which a format names in braces."""

_GATHER_S: Final = 0.2


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
        self._writer = LineWriter(
            FileOutput(path), _GATHER_S, on_failure=self._on_failure, on_recovery=_on_recovery
        )

    @property
    def lost(self) -> Mapping[str, int]:
        """The number of lost lines, by reason."""
        return self._writer.lost

    def write(self, event: str, keys: Mapping[str, Any]) -> None:
        """Write a line with *keys* soon; never waits and never raises."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            entry = cut_values(None, "", {"timestamp": time, "event": event, **keys})
            if self._form == JSON:
                line = orjson.dumps(entry, default=repr)
            else:
                line = self._form.format_map(_Fields(entry)).encode()
        except (TypeError, ValueError):  # a value without a JSON form must not fail its call
            self._writer.lose()
            return
        self._writer.put(line + b"\n")

    def reopen(self) -> None:
        """Open the file again."""
        self._writer.reopen()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the lines are written or lost; return False after *timeout_s*."""
        return self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write the lines that wait, then close the file; does not wait for that. Idempotent."""
        self._writer.close()

    def _on_failure(self, reason: str) -> None:
        log.error("access log not written", path=str(self._path), reason=reason)


def _on_recovery(count: int) -> None:
    log.warning("lines of the access log are missing", count=count)


class _Fields(dict[str, Any]):
    """The fields of a line; an absent one is "-"."""

    def __missing__(self, key: str) -> str:
        return "-"
