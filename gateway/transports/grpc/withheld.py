"""WithheldCalls: calls to an upstream that end by themselves instead of being cancelled.

Some servers crash when calls are cancelled.  A call to them whose client has left, or whose
deadline has passed, keeps its slot until it ends, and its reply is dropped.  The transports
implement that.
"""

import asyncio
from collections.abc import Callable


def _ignore() -> None: ...


class WithheldCalls:
    """Decides whether cancellations of calls are withheld, and counts the calls that continue.

    Args:
        longest_s: A call is cancelled nevertheless after this time.
        enabled: Whether cancellations are withheld from the start.
        report: Called for each cancellation that is withheld.

    Attributes:
        is_enabled: Whether cancellations of sent calls, and their deadlines, are withheld.
        pending: How many calls continue without a client now.
    """

    def __init__(
        self,
        longest_s: float = 60.0,
        *,
        enabled: bool = False,
        report: Callable[[], None] = _ignore,
    ) -> None:
        self.longest_s = longest_s
        self.is_enabled = enabled
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
