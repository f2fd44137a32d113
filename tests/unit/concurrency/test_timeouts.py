"""Timeouts of tasks, and restartable timers."""

from __future__ import annotations

import asyncio

import pytest

from gateway.concurrency.timeouts import RestartableTimer, Timeout


async def test_rings_once_however_often_it_is_armed() -> None:
    """Arming it again neither doubles nor delays it; having rung it can be armed anew."""
    rung = asyncio.Queue[int]()
    timer = RestartableTimer(asyncio.get_running_loop(), 0.0, lambda: rung.put_nowait(1))
    timer.start()
    timer.start()
    assert 1 == await asyncio.wait_for(rung.get(), 5)
    timer.start()
    assert 1 == await asyncio.wait_for(rung.get(), 5)
    assert rung.empty()
    assert not timer.armed


async def test_does_not_ring_when_stopped() -> None:
    """Stopped in time it is silent, and stopping twice is harmless."""
    loop = asyncio.get_running_loop()
    rung: list[str] = []
    timer = RestartableTimer(loop, 0.0, lambda: rung.append("stopped"))
    other = asyncio.Event()
    timer.start()
    armed = timer.armed
    timer.stop()
    timer.stop()
    assert (True, False) == (armed, timer.armed)
    loop.call_later(0.01, other.set)
    await asyncio.wait_for(other.wait(), 5)
    assert [] == rung


async def test_timeout_ends_what_takes_too_long() -> None:
    """A block that is still waiting when the timeout rings ends with TimeoutError."""
    timeout = Timeout(0.01)
    with pytest.raises(TimeoutError), timeout:
        await asyncio.Event().wait()
    assert timeout.expired
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_timeout_in_time_is_silent() -> None:
    """A block that ends in time ends as it would without the timeout, and nothing rings later."""
    timeout = Timeout(0.01)
    with timeout:
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    assert not timeout.expired


async def test_timeout_lets_another_cancellation_through() -> None:
    """A task that somebody else cancels is cancelled, even when the timeout rings as well."""

    async def guarded() -> None:
        with Timeout(0.0):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(guarded())
    await asyncio.sleep(0)
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_timeout_passes_errors_of_the_block() -> None:
    """What the block raises is raised, TimeoutErrors of its own included."""
    timeout = Timeout(60.0)
    with pytest.raises(LookupError), timeout:
        raise LookupError
    assert not timeout.expired
