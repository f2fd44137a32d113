"""TimerWheel: many deadlines on one timer of the event loop.

Scheduling and cancelling a deadline cost one set operation each.  A timer of the loop for each call
costs ten times as much, and nearly all of them are cancelled.  A deadline expires up to `STEP_S`
late, never early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Final, Protocol

STEP_S: Final = 0.005
_NONE: Final = -1


class TimerTarget(Hashable, Protocol):
    """An object with a deadline on a wheel."""

    def on_timeout(self) -> None:
        """Handle the deadline; the object is no longer on the wheel."""


class TimerWheel:
    """Deadlines on one clock.

    A wheel serves the running loop.  Deadlines that belong to an earlier loop are dropped.

    Args:
        clock: Monotonic seconds.

    Attributes:
        loop: The loop of the last deadline; None before the first.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.loop: asyncio.AbstractEventLoop | None = None
        self._steps: dict[int, set[TimerTarget]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        # The step of the last deadline: the next deadline is likely to have the same.
        self._latest = _NONE
        self._items: set[TimerTarget] = set()

    def schedule(self, item: TimerTarget, when: float) -> int:
        """Call `item.on_timeout` at *when*; return the step, which `cancel` needs."""
        step = int(when / STEP_S) + 1
        if step != self._latest:
            self._select(step)
        self._items.add(item)
        return step

    def cancel(self, item: TimerTarget, step: int) -> None:
        """Remove *item*; harmless after its deadline."""
        if step == self._latest:  # an empty step is kept: the next item is likely there
            self._items.discard(item)
            return
        found = self._steps.get(step)
        if found is not None:
            found.discard(item)
            if not found:
                del self._steps[step]

    def close(self) -> None:
        """Drop all deadlines."""
        self._steps.clear()
        self._latest, self._items = _NONE, set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _select(self, step: int) -> None:
        """Make *step* the latest, and drop the former one if it is empty."""
        if not self._items:
            self._steps.pop(self._latest, None)
        found = self._steps.get(step)
        if found is None:
            found = self._begin(step)
        self._latest, self._items = step, found

    def _begin(self, step: int) -> set[TimerTarget]:
        loop = asyncio.get_running_loop()
        if loop is not self.loop:
            self.close()
            self.loop = loop
        found = self._steps[step] = set()
        if self._timer is None or step < self._next:
            self._arm(loop, step)
        return found

    def _arm(self, loop: asyncio.AbstractEventLoop, step: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = step
        self._timer = loop.call_later(max(0.0, step * STEP_S - self._clock()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = int(self._clock() / STEP_S)
        if self._latest <= now:
            self._latest, self._items = _NONE, set()
        for step in sorted(each for each in self._steps if each <= now):
            for item in self._steps.pop(step, ()):
                item.on_timeout()
        self._rearm()

    def _rearm(self) -> None:
        """Start the timer for the next step, unless an expired item has started it."""
        if self._steps and self._timer is None and self.loop is not None:
            self._arm(self.loop, min(self._steps))
