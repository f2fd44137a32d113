"""ReplyWatch: whether a process still replies, and the end of one that does not.

A process that hangs keeps its sockets: the kernel goes on to give it connections, and each of them
gets nothing. So its exit is not the only sign that it no longer serves.
"""

from typing import Any, Final, Protocol

import structlog

log = structlog.get_logger(__name__)

POLL_S: Final = 2.0
"""The time between two polls."""
REPLY_S: Final = 1.0
"""How long a poll waits for its reply."""
_SILENT_POLLS: Final = 3


class PolledProcess(Protocol):
    """A process that can be asked for a reply."""

    @property
    def pid(self) -> int: ...  # noqa: D102

    async def ping(self) -> bool:
        """Ask the process for a reply that carries nothing; return whether it replied."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


class ReplyWatch:
    """Counts the polls without a reply. One process has it, from its first reply to its end.

    Time is counted in polls. A parent that was suspended itself then finds no process silent.

    Args:
        process: The process.
        role: What it is, for the log.
        keys: Further keys of the lines in the log.

    Attributes:
        is_killed: Whether it was killed because it did not reply.
    """

    def __init__(self, process: PolledProcess, role: str, **keys: Any) -> None:
        self._process = process
        self._keys = {"role": role, **keys, "pid": process.pid}
        self._missed = 0
        self.is_killed = False

    @property
    def is_silent(self) -> bool:
        """Whether it has missed some polls."""
        return self._missed >= _SILENT_POLLS

    async def poll(self, timeout_s: float) -> None:
        """Ask for a reply, and kill the process when it is silent for too long.

        Args:
            timeout_s: How long it may be silent; 0 for any time.
        """
        if await self._process.ping():
            if self.is_silent:
                log.info("process replies again", **self._keys)
            self._missed = 0
            return
        self._missed += 1
        silent_s = self._missed * (POLL_S + REPLY_S) - POLL_S  # at least
        if self._missed == _SILENT_POLLS:
            log.warning("process does not reply", silent_s=silent_s, **self._keys)
        if timeout_s and silent_s >= timeout_s and self.is_silent and not self.is_killed:
            log.error("process killed", reason=f"no reply for {timeout_s:g} s", **self._keys)
            self.is_killed = True
            self._process.kill()
