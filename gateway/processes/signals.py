"""Signals of a process, and what a process with the id 1 owes to the others of its container.

The kernel ignores a signal to process 1 that has no handler, so such a process ends itself.
Processes whose parent has exited become its children, and are zombies until it reaps them.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import structlog

from gateway.concurrency.background import start_background
from gateway.concurrency.process_end import end_within

log = structlog.get_logger(__name__)

INIT: Final = 1
"""The id of the first process of a container."""
_LOOK_S: Final = 1.0


class StopSignal:
    """SIGTERM or SIGINT to this process.

    Args:
        is_final: Whether the second signal ends the process at once.
        kill: Called before the second signal ends the process.
        longest_s: Returns the seconds after which the first signal ends the process, if nothing
            else has; None for no limit.

    Attributes:
        is_interrupt: Whether it was SIGINT: Ctrl-C, which waits for no load balancer.
    """

    def __init__(
        self,
        *,
        is_final: bool,
        kill: Callable[[], None] = lambda: None,
        longest_s: Callable[[], float] | None = None,
    ) -> None:
        self.is_interrupt = False
        self._is_final = is_final
        self._kill = kill
        self._longest_s = longest_s
        self._has_arrived = False
        self._end_timer: threading.Timer | None = None
        self._event = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
            # The event loop may hang, and Python's own handler runs all the same.
            signal.signal(number, self._on_arrival)

    def is_set(self) -> bool:
        """Return whether a signal has arrived."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._event.wait()

    def ended(self) -> None:
        """Note that nothing is left to stop: the process ends by itself."""
        if self._end_timer is not None:
            self._end_timer.cancel()

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._event.is_set():
            self.is_interrupt = number == signal.SIGINT
            self._event.set()

    def _on_arrival(self, _number: int, _frame: FrameType | None) -> None:
        if self._has_arrived and self._is_final:
            self._kill()
            _end(signal.SIGTERM)
        if not self._has_arrived and self._longest_s is not None:
            seconds = self._longest_s()
            self._end_timer = end_within(
                1, seconds, lambda: log.error("stop timed out", seconds=seconds)
            )
        self._has_arrived = True


def _end(number: signal.Signals) -> None:
    """End this process by a signal, at once."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # process 1 survives its own signals


def ignore_log_signals() -> None:
    """Ignore SIGUSR1 and SIGUSR2, which would end the process; `on_reopen` handles SIGUSR1."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def on_reopen(reopen: Callable[[], None]) -> None:
    """Call *reopen* at SIGUSR1, after which files of logs are opened again."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, reopen)


class OrphanReaper:
    """Reaps the zombies that this process did not start.

    The event loop reaps its own child processes at once. What is still a zombie at the second look
    has no other parent.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()

    async def run(self) -> None:
        """Look every second, until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Reap the zombies that the last look has found, too."""
        found = _zombies()
        for pid in found & self._seen:
            os.waitpid(pid, os.WNOHANG)
        self._seen = found - self._seen


def start_reaping() -> asyncio.Task[None]:
    """Reap orphans from now on, if this is process 1; return the task."""
    is_init = os.getpid() == INIT
    return start_background(OrphanReaper().run() if is_init else asyncio.sleep(0), "orphans")


def _zombies() -> set[int]:
    """Return the ids of the children that have exited and that nobody has reaped."""
    try:
        first = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there is no child
        return set()
    if first is None:
        return set()
    own = str(os.getpid())
    found = {first.si_pid}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name before it may contain anything.
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:  # it has exited meanwhile
            continue
        if (state, parent) == ("Z", own):
            found.add(int(path.parent.name))
    return found
