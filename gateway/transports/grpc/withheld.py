"""Calls to an upstream that nobody waits for any more, and that are not cancelled.

Some servers end at cancelled calls. Before them a call whose client has left, or whose deadline has
passed, is left to end by itself: it keeps its place among the calls in flight, and its reply is
dropped. What a transport does to leave a call is not here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def _ignore() -> None: ...


class WithheldCalls:
    """Whether the cancellations of one client are withheld, and the calls that go on without them.

    Args:
        longest_s: Time after which a call is cancelled all the same.
        enabled: As below.
        report: Called for each cancellation that is withheld.

    Attributes:
        enabled: Cancellations of calls that have been sent are withheld, and deadlines with them.
        pending: Calls that nobody waits for, now.
    """

    def __init__(
        self,
        longest_s: float = 60.0,
        *,
        enabled: bool = False,
        report: Callable[[], None] = _ignore,
    ) -> None:
        self.longest_s = longest_s
        self.enabled = enabled
        self.pending = 0
        self._report = report
        self._drained: asyncio.Event | None = None

    def begin(self) -> None:
        """Count a call that is left."""
        self.pending += 1
        self._report()

    def end(self) -> None:
        """Count the end of one."""
        self.pending -= 1
        if not self.pending and self._drained is not None:
            self._drained.set()

    async def drained(self) -> None:
        """Wait until there are none."""
        while self.pending:
            self._drained = asyncio.Event()
            await self._drained.wait()
