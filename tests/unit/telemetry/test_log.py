from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gateway.telemetry import log as logs
from gateway.telemetry.log import configure


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Give structlog and the root logger back as they were."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_lines_for_machines() -> None:
    """Where there is no terminal, each event is one JSON object."""
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
    """A warning of the standard library's logging is an event like ours; info is left out."""
    out = io.StringIO()
    configure("info", "json", out)
    logging.getLogger("aiohttp").info("chatter")
    logging.getLogger("aiohttp").warning("odd %s", "thing")
    assert ["odd thing"] == [line["event"] for line in lines(out)]


def test_the_level_holds() -> None:
    """What is below the level is not written."""
    out = io.StringIO()
    configure("warning", "json", out)
    structlog.get_logger("x").info("quiet")
    structlog.get_logger("x").warning("loud")
    assert ["loud"] == [line["event"] for line in lines(out)]


def test_console_lines_for_people() -> None:
    """The console form is plain text when there is no terminal."""
    out = io.StringIO()
    configure("info", "console", out)
    structlog.get_logger("x").info("started", port=8000)
    assert "started" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_traceback_is_whole() -> None:
    """The one value that is ours to read is not cut."""
    out = io.StringIO()
    configure("info", "json", out)
    structlog.get_logger("x").error("bug", exc_info=ValueError("z" * 400))
    assert "z" * 400 in lines(out)[0]["exception"]


def test_lines_of_a_worker_say_which() -> None:
    """Where several processes write to one place, each line has its writer's number."""
    out = io.StringIO()
    configure("info", "json", out, worker=2)
    structlog.get_logger("x").info("call")
    logging.getLogger("y").warning("theirs")
    assert [2, 2] == [line["worker"] for line in lines(out)]


def test_a_line_is_one_write() -> None:
    """Lines of several processes do not run into one another."""

    class Writes(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    written: list[str] = []
    configure("info", "json", Writes())
    structlog.get_logger("x").info("call")
    assert 1 == len(written)
    assert written[0].endswith("}\n")
