"""The counts of calendar windows in the state directory, so that they survive a restart.

A lock keeps out another gateway: of two that count in one directory, each would admit the whole
budget. Gateways that hand over share the lock, and count in one file (`directory.py`).
"""

import asyncio
import fcntl
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import structlog

from gateway.api.start_error import StartError, reason_of
from gateway.concurrency.background import end_tasks, start_background
from gateway.config.load import LoadedConfig
from gateway.quotas.budgets import Budgets
from gateway.settings.private_files import make_directory, private_opener, replace_private

log = structlog.get_logger(__name__)

HANDED_OVER: Final = "quotas.db"
"""The file of gateways that hand over; see `quota_directory`."""

_FILE: Final = "quotas.json"
_LOCK: Final = "quotas.lock"
_EVERY_S: Final = 1.0


class QuotaCounts:
    """Reads the counts at the start, and writes them once a second if they changed.

    Args:
        budgets: The budgets of all quotas.
        loaded: The configuration; without `state` nothing is read or written.
    """

    def __init__(self, budgets: Budgets, loaded: LoadedConfig) -> None:
        config = loaded.config
        state = config.state
        self._budgets = budgets
        self._path = None if state is None else loaded.directory / state.directory / _FILE
        self._hands_over = config.lifecycle.hand_over
        self._counts_here = bool(config.quotas) and config.quota_store is None
        self._has_lock = False
        self._lock = ExitStack()
        self._written: list[Any] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Continue with the counts of an earlier process, and begin to write.

        Raises:
            StartError: Another gateway counts in the directory.
        """
        if self._path is None:
            return
        if self._counts_here:
            try:
                self._acquire_lock(self._path)
            except BlockingIOError as error:
                raise StartError(f"cannot count quotas: {error}") from error
        for path, read in ((self._path, _saved), (self._path.with_name(HANDED_OVER), _handed_over)):
            try:
                self._budgets.restore(read(path))
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError, IndexError) as error:
                log.warning("counts of quotas not read", file=str(path), reason=str(error))
        self._task = start_background(self._write_often(self._path), "counts of quotas")

    async def stop(self) -> None:
        """Write for the last time; idempotent."""
        task, self._task = self._task, None
        if task is not None and self._path is not None:
            await end_tasks(task)
            self._write(self._path)
        self._lock.close()

    async def _write_often(self, path: Path) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            self._write(path)

    def _write(self, path: Path) -> None:
        """Replace the file, if a count has changed since."""
        saved = self._budgets.saved()
        if saved == self._written:
            return
        try:
            self._acquire_lock(path)
            replace_private(path, json.dumps(saved).encode())
        except OSError as error:
            log.warning("counts of quotas not written", reason=reason_of(error))
        else:
            self._written = saved

    def _acquire_lock(self, path: Path) -> None:
        """Keep out gateways that do not hand over to this one; idempotent.

        Raises:
            BlockingIOError: Another gateway counts in the directory.
        """
        if self._has_lock:
            return
        mode = fcntl.LOCK_SH if self._hands_over else fcntl.LOCK_EX
        with ExitStack() as stack:
            try:
                make_directory(path.parent)
                file = stack.enter_context(open(path.with_name(_LOCK), "ab", opener=private_opener))
                fcntl.flock(file, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(
                    f"another gateway counts in {path.parent}; expected a directory of its own "
                    "('state.directory'), or 'lifecycle: {hand_over: true}' in both"
                ) from None
            except OSError as error:  # a file system without locks, or one that is read-only
                log.warning("counts of quotas not locked", reason=reason_of(error))
            self._lock = stack.pop_all()
        self._has_lock = True


def _saved(path: Path) -> Any:
    return json.loads(path.read_text())


def _handed_over(path: Path) -> Any:
    """Return what gateways have spent that handed over, as this one may have done before."""
    if not path.exists():
        return ()
    from gateway.quotas.directory import spent_in  # noqa: PLC0415  # SQLite: 5 ms

    return spent_in(path)
