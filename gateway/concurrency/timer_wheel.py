"""Many deadlines on one timer: entering one and taking it back cost a set's operation each.

A timer of the loop per call costs ten times as much, and nearly all of them are taken back.  The
price is coarseness: an item rings up to `STEP_S` late, never early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Final, Protocol

STEP_S: Final = 0.005
_NONE: Final = -1


class TimerTarget(Hashable, Protocol):
    """What a wheel can wake."""

    def on_timeout(self) -> None:
        """Its time has come; it is no longer on the wheel."""


class TimerWheel:
    """Deadlines on one clock.

    It belongs to the loop it is used on; what another loop left on it is forgotten.

    Args:
        clock: Monotonic seconds.

    Attributes:
        loop: The one it was used on last; None before.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.loop: asyncio.AbstractEventLoop | None = None
        self._steps: dict[int, set[TimerTarget]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        # Where the last item was entered, as others soon after it will be.
        self._latest = _NONE
        self._items: set[TimerTarget] = set()

    def schedule(self, item: TimerTarget, when: float) -> int:
        """Let *item* ring at *when*; return the step to leave it by."""
        step = int(when / STEP_S) + 1
        if step != self._latest:
            self._turn_to(step)
        self._items.add(item)
        return step

    def cancel(self, item: TimerTarget, step: int) -> None:
        """Take *item* back; harmless after it rang."""
        if step == self._latest:  # which stays, though it be empty: the next item is likely there
            self._items.discard(item)
            return
        found = self._steps.get(step)
        if found is not None:
            found.discard(item)
            if not found:
                del self._steps[step]

    def close(self) -> None:
        """Ring no more."""
        self._steps.clear()
        self._latest, self._items = _NONE, set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn_to(self, step: int) -> None:
        """Make *step* the latest, and drop the one that was when nothing is left in it."""
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
        self._go_on()

    def _go_on(self) -> None:
        """Wait for the next step, unless what rang has entered others and armed the timer."""
        if self._steps and self._timer is None and self.loop is not None:
            self._arm(self.loop, min(self._steps))
