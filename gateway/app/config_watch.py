"""Watches the configuration file for changes."""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import structlog

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

    Args:
        path: The file.
        sha256: The hash of its text so far.
        pause_s: The time without changes in the folder after which the file is read.
        on_change: Called when the text is another one.
    """
    from watchfiles import awatch  # noqa: PLC0415  # a native library that few configurations need

    step_ms = max(1, round(pause_s * 1000))
    changes = awatch(
        path.parent,
        watch_filter=None,
        rust_timeout=_LOOK_MS,
        yield_on_timeout=True,
        debounce=_MAX_PAUSES * step_ms,
        step=step_ms,
        recursive=False,
    )
    try:
        async with aclosing(changes):
            async for _ in changes:
                found = await asyncio.to_thread(_hash, path)
                if found is not None and found != sha256:
                    sha256 = found
                    on_change()
    except OSError as error:
        log.error("configuration is not watched", file=str(path), reason=str(error))  # noqa: TRY400


def _hash(path: Path) -> str | None:
    """Return the hash of a file; None while it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
