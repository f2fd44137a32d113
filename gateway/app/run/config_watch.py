"""Watches the configuration file for changes."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import structlog

from gateway.concurrency.own_thread import on_own_thread

log = structlog.get_logger(__name__)

# A file that changes without a pause is read after so many times the pause.
_MAX_PAUSES: Final = 10
# A change before the watch begins, or on a network file system, is noticed after this time.
_LOOK_MS: Final = 1_000


async def watch_config(
    path: Path, sha256: str, pause_s: float, on_change: Callable[[], None]
) -> None:
    """Call *on_change* each time the text of the file has changed, until it is cancelled.

    The folder is watched, not the file: editors and Kubernetes replace the file by another one.
    Where the system watches nothing, as without inotify, the file is read every second.

    Args:
        path: The file.
        sha256: The hash of its text so far.
        pause_s: The time without changes in the folder after which the file is read.
        on_change: Called when the text is another one.
    """
    known = _KnownText(path, sha256, on_change)
    try:
        async with aclosing(_changes(path, pause_s)) as changes:
            async for _ in changes:
                await known.look()
    # The library raises a RuntimeError for most of what the system refuses.
    except (OSError, RuntimeError, ImportError) as error:
        log.warning("configuration is polled", file=str(path), reason=str(error))
    while True:
        await asyncio.sleep(_LOOK_MS / 1000)
        await known.look(pause_s)


def _changes(path: Path, pause_s: float) -> AsyncGenerator[object, None]:
    """Return an iterator over the changes of a folder, which also yields every second."""
    from watchfiles import awatch  # noqa: PLC0415  # a native library that few configurations need

    step_ms = max(1, round(pause_s * 1000))
    return awatch(
        path.parent,
        watch_filter=None,
        rust_timeout=_LOOK_MS,
        yield_on_timeout=True,
        debounce=_MAX_PAUSES * step_ms,
        step=step_ms,
        recursive=False,
    )


class _KnownText:
    """The text of a file that was read last."""

    def __init__(self, path: Path, sha256: str, on_change: Callable[[], None]) -> None:
        self._path = path
        self._sha256 = sha256
        self._on_change = on_change

    async def look(self, pause_s: float = 0.0) -> None:
        """Read the file, and again until it rests for *pause_s*; report another text."""
        found = await on_own_thread(_hash, self._path)
        for _ in range(_MAX_PAUSES if pause_s else 0):
            if found in {None, self._sha256}:
                break
            before = found
            await asyncio.sleep(pause_s)
            found = await on_own_thread(_hash, self._path)
            if found == before:
                break
        if found is not None and found != self._sha256:
            self._sha256 = found
            self._on_change()


def _hash(path: Path) -> str | None:
    """Return the hash of a file; None while it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
