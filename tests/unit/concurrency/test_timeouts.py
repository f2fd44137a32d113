"""Timeouts of tasks, restartable timers, and deadlines on a wheel."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from gateway.concurrency.timeouts import (
    STEP_S,
    RestartableTimer,
    Timeout,
    TimerWheel,
    is_set_within,
    patient_timeout,
)
from tests.simulation.virtual_time import elapse, hold_up, in_virtual_time, now


async def test_is_set_within_reports_the_event() -> None:
    """Waiting ends when the event is set, or when the time has passed."""
    event = asyncio.Event()
    assert not await is_set_within(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await is_set_within(event, 60)


async def test_a_timer_expires_once_per_start() -> None:
    """A second start neither doubles nor delays it; an expired timer can be started again."""
    expirations = asyncio.Queue[int]()
    timer = RestartableTimer(asyncio.get_running_loop(), 0.0, lambda: expirations.put_nowait(1))
    timer.start()
    timer.start()
    assert 1 == await asyncio.wait_for(expirations.get(), 20)
    timer.start()
    assert 1 == await asyncio.wait_for(expirations.get(), 20)
    assert expirations.empty()
    assert not timer.is_armed


async def test_a_stopped_timer_does_not_expire() -> None:
    """Stopping twice is harmless."""
    loop = asyncio.get_running_loop()
    expirations: list[str] = []
    timer = RestartableTimer(loop, 0.0, lambda: expirations.append("stopped"))
    other = asyncio.Event()
    timer.start()
    armed = timer.is_armed
    timer.stop()
    timer.stop()
    assert (True, False) == (armed, timer.is_armed)
    loop.call_later(0.01, other.set)
    await asyncio.wait_for(other.wait(), 20)
    assert [] == expirations


@in_virtual_time
async def test_a_restart_delays_a_timer() -> None:
    """The timer expires a whole delay after the last restart, once."""
    expirations: list[float] = []
    timer = RestartableTimer(asyncio.get_running_loop(), 10.0, lambda: expirations.append(now()))
    begun = now()
    for pause_s in (4.0, 9.0, 11.0, 20.0):
        timer.restart()
        await elapse(pause_s)
    assert [23.0, 34.0] == [round(when - begun, 3) for when in expirations]
    assert not timer.is_armed


@in_virtual_time
async def test_a_timer_that_ends_is_delayed_for_a_limited_time() -> None:
    """Restarts prolong the new delay up to the limit; a closed timer never expires."""
    loop = asyncio.get_running_loop()
    expirations: list[float] = []
    timers = [RestartableTimer(loop, 60.0, lambda: expirations.append(now())) for _ in range(2)]
    begun = now()
    for timer in timers:
        timer.restart()
        timer.end_after(1.0, 3.0)
    timers[1].close()
    for _ in range(5):
        timers[0].restart()
        await elapse(0.75)
    assert [3.0] == [round(when - begun, 3) for when in expirations]


async def test_a_timeout_ends_a_block_that_takes_too_long() -> None:
    """A block that still waits when the timeout expires raises TimeoutError."""
    timeout = Timeout(0.01)
    with pytest.raises(TimeoutError), timeout:
        await asyncio.Event().wait()
    assert timeout.has_expired
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@in_virtual_time
async def test_a_timeout_does_not_expire_after_its_block() -> None:
    """A block that ends in time ends as it would without the timeout."""
    timeout = Timeout(0.5)
    with timeout:
        await asyncio.sleep(0)
    await elapse(0.6)
    assert not timeout.has_expired


@in_virtual_time
async def test_a_patient_timeout_does_not_blame_a_peer_for_a_loop_that_was_held_up() -> None:
    """What takes some turns of the loop ends; what waits for more is late."""
    with patient_timeout(0.01):
        hold_up(0.05)
        for _ in range(5):
            await asyncio.sleep(0)
    with pytest.raises(TimeoutError), patient_timeout(0.01):
        await asyncio.Event().wait()


async def test_a_cancelled_task_stays_cancelled_despite_a_timeout() -> None:
    """A task that others cancel is cancelled, even when the timeout expires as well."""

    async def guarded() -> None:
        with Timeout(0.0):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(guarded())
    await asyncio.sleep(0)
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_passes_errors_of_its_block() -> None:
    """The error is raised unchanged."""
    timeout = Timeout(60.0)
    with pytest.raises(LookupError), timeout:
        raise LookupError
    assert not timeout.has_expired


class Target:
    """Records when its deadline expired."""

    def __init__(self) -> None:
        self.expired = asyncio.Event()
        self.at = 0.0

    def on_timeout(self) -> None:
        self.at = monotonic()
        self.expired.set()


async def test_deadlines_expire_in_time() -> None:
    """No deadline expires early, whatever the order of scheduling."""
    wheel, now = TimerWheel(), monotonic()
    targets = {delay: Target() for delay in (0.06, 0.02, 0.04)}
    for delay, target in targets.items():
        wheel.schedule(target, now + delay)
    async with asyncio.timeout(20):
        for target in targets.values():
            await target.expired.wait()
    assert [0.02, 0.04, 0.06] == sorted(targets, key=lambda delay: targets[delay].at)
    assert all(target.at >= now + delay for delay, target in targets.items())


async def test_late_deadlines_expire_in_order() -> None:
    """A busy loop expires overdue deadlines in their order."""
    wheel, order = TimerWheel(), list[str]()

    class Named(Target):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def on_timeout(self) -> None:
            order.append(self._name)
            super().on_timeout()

    last, first = Named("last"), Named("first")
    wheel.schedule(last, monotonic() - STEP_S)
    wheel.schedule(first, monotonic() - 3 * STEP_S)
    async with asyncio.timeout(20):
        await last.expired.wait()
    assert ["first", "last"] == order


async def test_a_past_deadline_expires_soon() -> None:
    """A deadline in the past expires in the next step."""
    wheel, target = TimerWheel(), Target()
    wheel.schedule(target, monotonic() - 1)
    async with asyncio.timeout(20):
        await target.expired.wait()


async def test_cancelled_deadlines_do_not_expire() -> None:
    """A cancelled deadline does not expire; an expired one may be cancelled."""
    wheel, target, other = TimerWheel(), Target(), Target()
    when = monotonic() + STEP_S
    step = wheel.schedule(target, when)
    wheel.cancel(other, wheel.schedule(other, when))
    async with asyncio.timeout(20):
        await target.expired.wait()
    wheel.cancel(target, step)
    assert not other.expired.is_set()


async def test_a_closed_wheel_expires_nothing() -> None:
    """Scheduled deadlines are dropped when the wheel closes."""
    wheel, target, other = TimerWheel(), Target(), Target()
    wheel.schedule(target, monotonic())
    wheel.close()
    second = TimerWheel()
    second.schedule(other, monotonic() + 2 * STEP_S)
    async with asyncio.timeout(20):
        await other.expired.wait()
    assert not target.expired.is_set()


def test_wheel_moves_to_another_loop() -> None:
    """On a new loop, a wheel drops the deadlines of the former one."""
    wheel, target = TimerWheel(), Target()

    async def schedule_only() -> None:
        wheel.schedule(Target(), monotonic() + 60)

    async def await_expiry() -> None:
        wheel.schedule(target, monotonic() + STEP_S)
        async with asyncio.timeout(20):
            await target.expired.wait()

    asyncio.run(schedule_only())
    asyncio.run(await_expiry())
    assert target.expired.is_set()


async def test_empty_steps_are_dropped() -> None:
    """After many cancelled deadlines, at most the step of the last one stays."""
    wheel, target, last = TimerWheel(), Target(), Target()
    when = monotonic() + 60
    step = wheel.schedule(last, when)
    for number in range(100):
        wheel.cancel(target, wheel.schedule(target, when + number * STEP_S))
    assert 2 == len(wheel._steps)  # what it holds shows nowhere else
    wheel.cancel(last, step)
    wheel.cancel(last, step)
    assert 1 == len(wheel._steps)


async def test_discarded_deadlines_do_not_expire() -> None:
    """A target that is discarded from its step does not expire, and empty steps are few."""
    wheel, target, last = TimerWheel(), Target(), Target()
    when, former = monotonic() + 60, None
    for number in range(1000):
        step = wheel.schedule(target, when + number * STEP_S)
        if former is not None:
            former.discard(target)
        former = step
    assert len(wheel._steps) <= 64  # what it holds shows nowhere else
    wheel.schedule(target, monotonic() + STEP_S).discard(target)
    wheel.schedule(last, monotonic() + 2 * STEP_S)
    async with asyncio.timeout(20):
        await last.expired.wait()
    assert not target.expired.is_set()


async def test_an_expired_target_may_schedule_a_past_deadline() -> None:
    """Targets that are scheduled and cancelled during expiry still expire in time."""
    wheel, last = TimerWheel(), Target()
    now = monotonic()

    class Busy(Target):
        def on_timeout(self) -> None:
            wheel.cancel(self, wheel.schedule(self, now - STEP_S))
            wheel.cancel(self, wheel.schedule(self, now + 60))
            super().on_timeout()

    first = Busy()
    wheel.schedule(first, now - 2 * STEP_S)
    wheel.schedule(last, now - STEP_S)
    async with asyncio.timeout(20):
        await last.expired.wait()
    assert first.expired.is_set()
