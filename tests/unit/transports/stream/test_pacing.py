"""The time limits of a byte stream's connection, on a loop whose clock the test moves."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.transports.contract import ServerLimits
from gateway.transports.stream.pacing import FrameTimeouts

LIMITS = ServerLimits(
    header_timeout_s=10,
    keepalive_s=75,
    body_idle_timeout_s=30,
    body_timeout_s=300,
    body_min_rate_bytes_s=1000,
    body_min_rate_grace_s=10,
)


class Timer:
    def __init__(self, when: float, callback: Any) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """As much of a loop as a pace needs."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any) -> Timer:
        timer = Timer(when, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [t for t in self.timers if not t.cancelled and t.when <= end]:
            timer = min(due, key=lambda each: each.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when)
            timer.callback()
        self.now = end


class Watched:
    def __init__(self) -> None:
        self.loop = Loop()
        self.expired: list[str] = []
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.pace = FrameTimeouts(LIMITS, loop, self.expired.append)
        self.pace.opened()

    def take(self, size: int, *, partial: bool = False, frames: int = 0) -> None:
        self.pace.received(size, partial=partial, frames=frames)
        self.pace.update(busy=frames > 0, reading=True)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_first_frame_has_a_time_limit(watched: Watched) -> None:
    """Who asks nothing is let go."""
    watched.loop.advance(9.9)
    assert [] == watched.expired
    watched.loop.advance(0.2)
    assert ["header_timeout_s"] == watched.expired


def test_between_frames_more_time_is_given(watched: Watched) -> None:
    """A connection is kept from its last answer on."""
    watched.take(100, frames=1)
    watched.loop.advance(1000)  # we are slow: not the client's fault
    watched.pace.update(busy=False, reading=True)
    watched.loop.advance(74.9)
    assert [] == watched.expired
    watched.loop.advance(0.2)
    assert ["keepalive_s"] == watched.expired


def test_a_frame_may_not_stand_still(watched: Watched) -> None:
    """Silence within a frame is shorter than between two."""
    watched.take(100_000, partial=True)
    watched.loop.advance(29.9)
    assert [] == watched.expired
    watched.loop.advance(0.2)
    assert ["body_idle_timeout_s"] == watched.expired


def test_a_frame_may_not_trickle(watched: Watched) -> None:
    """After the grace a frame needs its rate on average."""
    for _ in range(12):
        watched.take(100, partial=True)
        watched.loop.advance(1)
    assert ["body_min_rate_bytes_s"] == watched.expired


def test_a_frame_may_not_take_for_ever(watched: Watched) -> None:
    """However well it comes, a frame has an end."""
    for _ in range(300):
        watched.take(10_000, partial=True)
        watched.loop.advance(1)
    assert ["body_timeout_s"] == watched.expired


def test_each_frame_has_its_own_time(watched: Watched) -> None:
    """The clock begins anew where one read ends a frame and begins another."""
    for _ in range(100):
        watched.take(5000, partial=True, frames=1)
        watched.loop.advance(4)
    assert [] == watched.expired


def test_what_is_not_read_is_not_late(watched: Watched) -> None:
    """While we read nothing, a frame's clock stands still."""
    watched.take(100, partial=True)
    watched.pace.update(busy=True, reading=False)
    watched.loop.advance(1000)
    assert [] == watched.expired
    watched.pace.update(busy=True, reading=True)
    watched.loop.advance(9.9)
    assert [] == watched.expired
    watched.loop.advance(0.2)
    assert ["body_min_rate_bytes_s"] == watched.expired


def test_nothing_is_watched_after_the_end(watched: Watched) -> None:
    """A closed connection leaves no timer behind."""
    watched.pace.close()
    watched.loop.advance(1000)
    assert [] == watched.expired


def test_one_timer_is_enough_for_many_frames(watched: Watched) -> None:
    """Busy connections cost no timers."""
    for _ in range(1000):
        watched.take(100, frames=1)
        watched.pace.update(busy=False, reading=True)
        watched.loop.advance(0.001)
    assert len(watched.loop.timers) <= 1
