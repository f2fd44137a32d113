"""Log settings of the gateway in terms of Triton's logging extension."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import structlog

from gateway.ir.errors import GatewayError, InvalidRequest, Unsupported
from gateway.telemetry.log import logs as log
from gateway.telemetry.log.log_settings import LogSettings, Settings


def settings(level: str = "info") -> tuple[LogSettings, list[str]]:
    """Return settings that begin at *level*, and the levels that are set."""
    levels: list[str] = []
    return LogSettings(level, "json", levels.append), levels


def test_empty_update_returns_the_settings() -> None:
    """Every setting of the extension is returned, and none changes."""
    log_settings, levels = settings()
    expected = {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "json",
    }
    assert (expected, []) == (log_settings({}), levels)


@pytest.mark.parametrize(
    ("level", "changes", "after"),
    [
        ("info", {"log_verbose_level": 1}, "debug"),
        ("info", {"log_verbose_level": 9}, "debug"),
        ("debug", {"log_verbose_level": 0}, "info"),
        ("info", {"log_info": False}, "warning"),
        ("debug", {"log_info": False}, "warning"),
        ("info", {"log_info": False, "log_warning": False}, "error"),
        ("error", {"log_info": True, "log_warning": True}, "info"),
    ],
)
def test_update_changes_the_level(level: str, changes: Settings, after: str) -> None:
    """The lowest enabled level applies and is returned."""
    log_settings, levels = settings(level)
    found = log_settings(changes)
    assert [after] == levels
    assert (found, [after]) == (log_settings(found), levels)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"log_verbosity": 1}, InvalidRequest, "unknown log setting 'log_verbosity'"),
        ({"log_info": 1}, InvalidRequest, "expected type bool"),
        ({"log_verbose_level": True}, InvalidRequest, "expected type int"),
        ({"log_error": False}, Unsupported, "'log_error' is True and cannot change"),
        ({"log_file": "here.log"}, Unsupported, "'log_file' is '' and cannot change"),
        ({"log_format": "ISO8601"}, Unsupported, "'log_format' is 'json' and cannot change"),
        (
            {"log_warning": False},
            InvalidRequest,
            "log_warning cannot be false while log_info is true",
        ),
        (
            {"log_info": False, "log_verbose_level": 1},
            InvalidRequest,
            "log_info cannot be false while log_verbose_level is above 0",
        ),
    ],
)
def test_invalid_settings_are_rejected(
    changes: Settings, error: type[GatewayError], text: str
) -> None:
    """Contradictory, unknown and fixed settings change nothing."""
    log_settings, levels = settings()
    with pytest.raises(error, match=text):
        log_settings(changes)
    assert [] == levels


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Log to memory, and restore the level afterwards."""
    out = io.StringIO()
    log.configure("warning", "json", out)
    yield out
    log.set_level("info")


def test_level_changes_for_existing_loggers(lines: io.StringIO) -> None:
    """A logger that was used before has the new level at once."""
    logger = structlog.get_logger("x")
    logger.info("left out")
    log.set_level("debug")
    logger.debug("there")
    assert ("debug", "json") == log.current()
    log.set_level("error")
    logger.warning("left out again")
    assert ["there"] == [
        line.split('"event":"')[1].split('"')[0] for line in lines.getvalue().splitlines()
    ]
