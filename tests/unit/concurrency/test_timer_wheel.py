"""Deadlines on a wheel: late by a step at most, never early, and gone when taken back."""

from __future__ import annotations

import asyncio
from time import monotonic

from gateway.concurrency.timer_wheel import STEP_S, TimerWheel


class Bell:
    """Notes when it rang."""

    def __init__(self) -> None:
        self.rang = asyncio.Event()
        self.at = 0.0

    def on_timeout(self) -> None:
        self.at = monotonic()
        self.rang.set()


async def test_items_ring_in_their_time() -> None:
    """Each item rings once its time has come, whatever the order they were entered in."""
    wheel, now = TimerWheel(), monotonic()
    bells = {delay: Bell() for delay in (0.06, 0.02, 0.04)}
    for delay, bell in bells.items():
        wheel.schedule(bell, now + delay)
    async with asyncio.timeout(5):
        for bell in bells.values():
            await bell.rang.wait()
    assert [0.02, 0.04, 0.06] == sorted(bells, key=lambda delay: bells[delay].at)
    assert all(bell.at >= now + delay for delay, bell in bells.items())


async def test_late_items_ring_in_order() -> None:
    """A loop that was busy rings what is overdue in the order it was due."""
    wheel, order = TimerWheel(), list[str]()

    class Named(Bell):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def on_timeout(self) -> None:
            order.append(self._name)
            super().on_timeout()

    last, first = Named("last"), Named("first")
    wheel.schedule(last, monotonic() - STEP_S)
    wheel.schedule(first, monotonic() - 3 * STEP_S)
    async with asyncio.timeout(5):
        await last.rang.wait()
    assert ["first", "last"] == order


async def test_past_time_rings_soon() -> None:
    """What is late already rings in the next step."""
    wheel, bell = TimerWheel(), Bell()
    wheel.schedule(bell, monotonic() - 1)
    async with asyncio.timeout(5):
        await bell.rang.wait()


async def test_items_taken_back_do_not_ring() -> None:
    """One of two is taken back; taking back what rang is harmless."""
    wheel, kept, gone = TimerWheel(), Bell(), Bell()
    when = monotonic() + STEP_S
    step = wheel.schedule(kept, when)
    wheel.cancel(gone, wheel.schedule(gone, when))
    async with asyncio.timeout(5):
        await kept.rang.wait()
    wheel.cancel(kept, step)
    assert not gone.rang.is_set()


async def test_closed_wheel_is_silent() -> None:
    """After closing nothing rings."""
    wheel, bell, other = TimerWheel(), Bell(), Bell()
    wheel.schedule(bell, monotonic())
    wheel.close()
    second = TimerWheel()
    second.schedule(other, monotonic() + 2 * STEP_S)
    async with asyncio.timeout(5):
        await other.rang.wait()
    assert not bell.rang.is_set()


def test_wheel_moves_to_another_loop() -> None:
    """On a new loop it rings, whatever the former left behind."""
    wheel, bell = TimerWheel(), Bell()

    async def left_behind() -> None:
        wheel.schedule(Bell(), monotonic() + 60)

    async def rings() -> None:
        wheel.schedule(bell, monotonic() + STEP_S)
        async with asyncio.timeout(5):
            await bell.rang.wait()

    asyncio.run(left_behind())
    asyncio.run(rings())
    assert bell.rang.is_set()


async def test_steps_that_nothing_is_left_in_are_not_kept() -> None:
    """However many times are entered and taken back, at most the last one's step stays."""
    wheel, bell, kept = TimerWheel(), Bell(), Bell()
    when = monotonic() + 60
    step = wheel.schedule(kept, when)
    for number in range(100):
        wheel.cancel(bell, wheel.schedule(bell, when + number * STEP_S))
    assert 2 == len(wheel._steps)  # what it holds shows nowhere else
    wheel.cancel(kept, step)
    wheel.cancel(kept, step)
    assert 1 == len(wheel._steps)


async def test_what_rings_may_enter_what_is_due() -> None:
    """While it rings, items are entered and taken back at times that have come, and all ring."""
    wheel, last = TimerWheel(), Bell()
    now = monotonic()

    class Busy(Bell):
        def on_timeout(self) -> None:
            wheel.cancel(self, wheel.schedule(self, now - STEP_S))
            wheel.cancel(self, wheel.schedule(self, now + 60))
            super().on_timeout()

    first = Busy()
    wheel.schedule(first, now - 2 * STEP_S)
    wheel.schedule(last, now - STEP_S)
    async with asyncio.timeout(5):
        await last.rang.wait()
    assert first.rang.is_set()
