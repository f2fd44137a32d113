"""LoopLag: measures how late the event loop runs its timers."""

import asyncio
from collections.abc import Callable
from typing import Final

_INTERVAL_S: Final = 0.5


class LoopLag:
    """Measures the delay of a timer, twice a second.

    Args:
        report: Called with each delay, in seconds.
    """

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to measure."""
        loop = asyncio.get_running_loop()
        due = loop.time() + _INTERVAL_S
        self._timer = loop.call_at(due, self._on_timer, loop, due)

    def stop(self) -> None:
        """Stop measuring; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._report(max(0.0, loop.time() - due))
        self.start()
