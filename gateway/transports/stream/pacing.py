"""FrameTimeouts: time limits of a client that sends frames."""

import asyncio
from collections.abc import Callable

from gateway.transports.contract import ServerLimits


class FrameTimeouts:
    """The time limits of one connection, with one timer.

    The clock of a frame stops while the gateway does not read.

    Args:
        limits: The limits of the listener.
        loop: The event loop.
        expired: Called with the YAML name of the limit that was exceeded.
    """

    def __init__(
        self,
        limits: ServerLimits,
        loop: asyncio.AbstractEventLoop,
        expired: Callable[[str], None],
    ) -> None:
        self._limits = limits
        self._loop = loop
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._since = loop.time()  # of the frame's beginning, or of silence
        self._last = self._since
        self._is_partial = False
        self._is_asked = False
        self._is_busy = False
        self._is_reading = True
        self.received_bytes = 0

    @property
    def elapsed_s(self) -> float:
        """How many seconds the current frame has taken."""
        return self._loop.time() - self._since

    def opened(self) -> None:
        """Begin to wait for the first frame."""
        self._watch()

    def received(self, size: int, *, partial: bool, frames: int) -> None:
        """Note *size* bytes, which completed *frames* frames and may have started another."""
        self._is_asked = True
        now = self._last = self._loop.time()
        if partial and (frames or not self._is_partial):
            self._since, self.received_bytes = now, 0
        self._is_partial = partial
        self.received_bytes += size

    def update(self, *, busy: bool, reading: bool) -> None:
        """Note whether frames wait for their responses, and whether the gateway reads."""
        if (self._is_busy and not busy and not self._is_partial) or (
            reading and not self._is_reading
        ):
            self._since = self._last = self._loop.time()
            self.received_bytes = 0
        self._is_busy, self._is_reading = busy, reading
        self._watch()

    def close(self) -> None:
        """Stop watching, and drop the reference to *expired*."""
        self._is_reading = False
        self._expired = _ignore
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> tuple[float, str] | None:
        limits = self._limits
        if not self._is_reading:
            return None
        if self._is_partial:
            by_rate = limits.body_min_rate_grace_s + (
                self.received_bytes / limits.body_min_rate_bytes_s
            )
            return min(
                (self._last + limits.body_idle_timeout_s, "body_idle_timeout_s"),
                (self._since + limits.body_timeout_s, "body_timeout_s"),
                (self._since + by_rate, "body_min_rate_bytes_s"),
            )
        if self._is_busy:
            return None
        if self._is_asked:
            return self._since + limits.keepalive_s, "keepalive_s"
        return self._since + limits.header_timeout_s, "header_timeout_s"

    def _watch(self) -> None:
        due = self._due()
        if due is None or (self._timer is not None and self._timer_at <= due[0]):
            return  # the timer expired early
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due[0]
        self._timer = self._loop.call_at(due[0], self._check)

    def _check(self) -> None:
        self._timer = None
        due = self._due()
        if due is not None and self._loop.time() >= due[0]:
            self._expired(due[1])
        else:
            self._watch()


def _ignore(_limit: str) -> None: ...
