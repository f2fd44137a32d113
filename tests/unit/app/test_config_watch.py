"""The configuration file, watched by the system or read again and again."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
import watchfiles
from structlog.testing import capture_logs

from gateway.app.run import config_watch
from gateway.app.run.config_watch import watch_config

WAIT_S = 20.0


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the text "old"."""
    found = tmp_path / "gateway.yaml"
    found.write_text("old")
    return found


async def test_changed_text_is_reported(path: Path) -> None:
    """Another text is reported once, the same text never."""
    changed = asyncio.Event()
    task = asyncio.ensure_future(watch_config(path, digest("old"), 0.01, changed.set))
    path.write_text("new")  # noqa: ASYNC240
    async with asyncio.timeout(WAIT_S):
        await changed.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Error creating recommended watcher: Too many open files"),
        OSError("No space left on device"),
        ImportError("no watchfiles"),
    ],
)
async def test_file_is_polled_where_nothing_is_watched(
    path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without inotify the file is read again and again, and the log says so."""

    def awatch(*_paths: Path, **_options: object) -> None:
        raise error

    monkeypatch.setattr(watchfiles, "awatch", awatch)
    monkeypatch.setattr(config_watch, "_LOOK_MS", 1)
    reports: list[str] = []
    changed = asyncio.Event()

    def on_change() -> None:
        reports.append(path.read_text())
        changed.set()

    with capture_logs() as logs:
        task = asyncio.ensure_future(watch_config(path, digest("old"), 0.001, on_change))
        for text in ("new", "newer"):
            path.write_text(text)  # noqa: ASYNC240
            async with asyncio.timeout(WAIT_S):
                while text not in reports:
                    await changed.wait()
                    changed.clear()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [("configuration is polled", "warning", str(error))] == [
        (each["event"], each["log_level"], each["reason"]) for each in logs
    ]
    assert "newer" == reports[-1]


async def test_polled_file_is_read_when_it_rests(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is being written is read after a pause without changes."""
    texts = iter(["old", "a", "ab", "abc", "abc"])
    monkeypatch.setattr(config_watch, "_hash", lambda _path: digest(next(texts)))
    reports: list[str] = []
    known = config_watch._KnownText(path, digest("old"), lambda: reports.append("changed"))
    await known.look(0.001)
    assert [] == reports
    await known.look(0.001)
    assert (["changed"], []) == (reports, list(texts))
