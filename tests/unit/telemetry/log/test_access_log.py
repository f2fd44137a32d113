"""The access log: a file with every line, in the operator's format."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from gateway.telemetry.log.access_log import AccessLog, check_format

WAIT_S = 20.0


async def test_lines_are_json_with_truncated_values(tmp_path: Path) -> None:
    """Each line has a timestamp and its fields, and unprintable characters are escaped."""
    access = AccessLog(tmp_path / "a.log")
    access.write("call", {"code": "ok", "error": "x" * 300, "agent": "a\nb"})
    assert access.flush(WAIT_S)
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
    assert access.flush(WAIT_S)
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
    assert access.flush(WAIT_S)
    path.rename(moved)
    access.write("call", {"code": "two"})
    assert access.flush(WAIT_S)
    access.close()
    assert ("one\n", "two\n") == (moved.read_text(), path.read_text())


async def test_file_is_opened_again_on_request(tmp_path: Path) -> None:
    """The new file exists before the next call, as tools that rotate logs expect."""
    path = tmp_path / "a.log"
    access = AccessLog(path, "{code}")
    path.rename(tmp_path / "a.log.1")
    access.reopen()
    assert access.flush(WAIT_S)
    assert path.exists()
    access.close()


async def test_lines_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    """A failing disk loses lines, but fails no calls; the log says so, and how many were lost."""
    folder = tmp_path / "logs"
    folder.mkdir()
    access = AccessLog(folder / "a.log", "{code}")
    (folder / "a.log").unlink()
    folder.rmdir()
    with capture_logs() as logs:
        for _ in range(2):
            access.write("call", {"code": "lost"})
            assert access.flush(WAIT_S)
        folder.mkdir()
        access.write("call", {"code": "written"})
        assert access.flush(WAIT_S)
    assert [("access log not written", None), ("lines of the access log are missing", 2)] == [
        (entry["event"], entry.get("count")) for entry in logs
    ]
    assert 2 == access.lost["write_failed"]
    assert "written\n" == (folder / "a.log").read_text()
    access.close()


async def test_value_without_a_form_is_a_lost_line(tmp_path: Path) -> None:
    """A value that JSON cannot hold loses its line, and raises nothing."""
    access = AccessLog(tmp_path / "a.log")
    access.write("call", {"request_bytes": 1 << 70})
    assert 1 == access.lost["write_failed"]
    access.close()


async def test_fifo_without_a_reader_delays_nothing(tmp_path: Path) -> None:
    """Lines are lost until somebody reads; neither the start nor a call waits for that."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    access = AccessLog(path, "{code}")
    access.write("call", {"code": "lost"})
    assert access.flush(WAIT_S)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    access.write("call", {"code": "read"})
    assert access.flush(WAIT_S)
    assert (b"read\n", 1) == (os.read(reader, 100), access.lost["write_failed"])
    os.close(reader)
    access.close()
