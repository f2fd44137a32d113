from __future__ import annotations

import io
import json
import logging
import sys
from typing import Any

import pytest
import structlog

from gateway.telemetry.log import logs
from gateway.telemetry.log.line_writer import LineStream
from gateway.telemetry.log.logs import configure


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_lines_are_json_without_a_terminal() -> None:
    """If the output is no terminal, each event is one JSON object."""
    out = io.StringIO()
    configure("info", "auto", out)
    structlog.get_logger("x").info("call", model="m", us=3)
    (line,) = lines(out)
    assert ("call", "info", "m", 3) == (line["event"], line["level"], line["model"], line["us"])


def test_values_cannot_break_a_line_or_fill_a_disk() -> None:
    """Control characters are escaped and long text is cut."""
    out = io.StringIO()
    configure("info", "json", out)
    structlog.get_logger("x").info("call", model="a\nb\x1b[0m", error="y" * 1000)
    (line,) = lines(out)
    assert r"a\nb\x1b[0m" == line["model"]
    assert logs.VALUE_LIMIT + 3 == len(line["error"])


def test_libraries_log_in_the_same_form() -> None:
    """A warning of the standard library's logging is an event; info is left out."""
    out = io.StringIO()
    configure("info", "json", out)
    logging.getLogger("aiohttp").info("chatter")
    logging.getLogger("aiohttp").warning("odd %s", "thing")
    assert ["odd thing"] == [line["event"] for line in lines(out)]


def test_events_below_the_level_are_dropped() -> None:
    """Only events at or above the configured level are written."""
    out = io.StringIO()
    configure("warning", "json", out)
    structlog.get_logger("x").info("quiet")
    structlog.get_logger("x").warning("loud")
    assert ["loud"] == [line["event"] for line in lines(out)]


def test_console_lines_are_plain_text_without_a_terminal() -> None:
    """If the output is no terminal, console lines have no escape sequences."""
    out = io.StringIO()
    configure("info", "console", out)
    structlog.get_logger("x").info("started", port=8000)
    assert "started" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_traceback_is_not_truncated() -> None:
    """The limit on the length of values does not apply to tracebacks."""
    out = io.StringIO()
    configure("info", "json", out)
    structlog.get_logger("x").error("bug", exc_info=ValueError("z" * 400))
    assert "z" * 400 in lines(out)[0]["exception"]


def test_lines_contain_the_worker_number() -> None:
    """Lines of libraries have the number as well."""
    out = io.StringIO()
    configure("info", "json", out, worker=2)
    structlog.get_logger("x").info("call")
    logging.getLogger("y").warning("theirs")
    assert [2, 2] == [line["worker"] for line in lines(out)]


def test_line_is_one_write() -> None:
    """Lines of several processes are not interleaved."""

    class Writes(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    written: list[str] = []
    configure("info", "json", Writes())
    structlog.get_logger("x").info("call")
    assert 1 == len(written)
    assert written[0].endswith("}\n")


def test_line_that_cannot_be_made_fails_no_caller() -> None:
    """A value that JSON cannot hold loses its line, and raises nothing."""
    out = io.StringIO()
    configure("info", "json", out)
    structlog.get_logger("x").info("call", size=1 << 70)
    structlog.get_logger("x").info("next")
    assert ["next"] == [line["event"] for line in lines(out)]


def test_lost_lines_are_a_warning_of_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that cannot be written cannot say so: its losses are among the latest warnings."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", full)
        configure("info", "json")
        structlog.get_logger("x").warning("lost")
        print("lost, too", file=sys.stderr)
        assert isinstance(sys.stderr, LineStream)
        assert sys.stderr.writer.flush(20.0)
        assert {"buffer_full": 0, "write_failed": 2} == logs.lost_lines()
        assert ["lost", logs.LINES_MISSING] == [each["event"] for each in logs.recent_warnings()]
        sys.stderr.writer.close()
        assert sys.stderr.writer.flush(20.0)


def test_closed_standard_error_is_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without standard error logs nothing, and runs."""
    monkeypatch.setattr(sys, "stderr", None)
    configure("info", "auto")
    structlog.get_logger("x").warning("nowhere")
    assert ["nowhere"] == [each["event"] for each in logs.recent_warnings()]


def test_refusals_of_one_client_leave_the_other_warnings_of_the_status() -> None:
    """The last line of each code stays, with their number."""
    configure("info", "json", io.StringIO())
    log = structlog.get_logger("x")
    log.warning("endpoint not ready", endpoint="a:1")
    for number in range(100):
        log.warning("call", code="quota_exceeded", request_id=str(number))
        log.warning("rejected", code="unauthenticated")
        log.warning("connections refused", count=7)
    log.warning("call", code="unavailable")
    found = [(each["event"], each.get("count")) for each in logs.recent_warnings()]
    assert [
        ("endpoint not ready", None),
        ("call", 100),
        ("rejected", 100),
        ("connections refused", 700),
        ("call", None),
    ] == found
    assert "99" == logs.recent_warnings()[1]["request_id"]
