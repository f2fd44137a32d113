"""A timer that is armed as often as one likes and rings once."""

from __future__ import annotations

import asyncio

from gateway.concurrency.timeouts import RestartableTimer


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
