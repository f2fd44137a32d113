"""A timer of a connection: armed as often as one likes, it rings once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class RestartableTimer:
    """Rings once, *delay_s* after it was first armed, unless it is stopped before.

    Args:
        loop: Its clock.
        delay_s: Seconds.
        ring: Called then; it may be armed again from there.

    Attributes:
        armed: It will ring.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, delay_s: float, ring: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self.armed = False

    def start(self) -> None:
        """Arm it; one that is armed goes on as it was."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._delay_s, self._rings)
            self.armed = True

    def stop(self) -> None:
        """Let it not ring; harmless when it is not armed."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self.armed = False

    def close(self) -> None:
        """Stop for good, and let go of whom it would have told."""
        self.stop()
        self._ring = _nobody

    def _rings(self) -> None:
        self._handle = None
        self.armed = False
        self._ring()


def _nobody() -> None:
    """Tell nobody."""
