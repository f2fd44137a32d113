"""The access log: a file with every line, in the operator's format."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from gateway.telemetry.access_log import AccessLog, check_format


async def test_lines_are_json_with_truncated_values(tmp_path: Path) -> None:
    """Each line has a timestamp and its fields, and unprintable characters are escaped."""
    access = AccessLog(tmp_path / "a.log")
    access.write("call", {"code": "ok", "error": "x" * 300, "agent": "a\nb"})
    access.close()
    access.close()
    (line,) = (tmp_path / "a.log").read_bytes().splitlines()
    entry = orjson.loads(line)
    assert entry.pop("timestamp").endswith("+00:00")
    assert {"event": "call", "code": "ok", "error": "x" * 256 + "...", "agent": "a\\nb"} == entry


async def test_lines_have_the_configured_format(tmp_path: Path) -> None:
    """A missing field is written as a dash."""
    access = AccessLog(tmp_path / "a.log", "{code} {model} {ms}")
    access.write("call", {"code": "ok", "ms": 1.25})
    access.flush()
    assert "ok - 1.25\n" == (tmp_path / "a.log").read_text()
    access.close()


@pytest.mark.parametrize(
    "form", ["", "plain", "{secret}", "{code.__class__}", "{", "{code!r}", "{ms:.1f}"]
)
def test_formats_allow_only_known_fields(form: str) -> None:
    """Attributes, unknown names and formats without a field are rejected."""
    with pytest.raises(ValueError, match=r"."):
        check_format(form)


async def test_moved_file_is_opened_again(tmp_path: Path) -> None:
    """After logrotate moves the file, later lines are written to a new one."""
    path, moved = tmp_path / "a.log", tmp_path / "a.log.1"
    access = AccessLog(path, "{code}")
    access.write("call", {"code": "one"})
    access.flush()
    path.rename(moved)
    access.write("call", {"code": "two"})
    access.close()
    assert ("one\n", "two\n") == (moved.read_text(), path.read_text())


async def test_lines_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    """A failing disk loses lines, but fails no calls."""
    folder = tmp_path / "logs"
    folder.mkdir()
    access = AccessLog(folder / "a.log", "{code}")
    (folder / "a.log").unlink()
    folder.rmdir()
    access.write("call", {"code": "lost"})
    with capture_logs() as logs:
        access.flush()
    assert ["access log not written", "lines of the access log are missing"] == [
        entry["event"] for entry in logs
    ]
    assert 1 == logs[1]["count"]
