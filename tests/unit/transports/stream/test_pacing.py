"""The timeouts of a byte stream's connection, on a loop whose clock the test moves."""

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
    """The part of an event loop that frame timeouts need."""

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


class WatchedConnection:
    def __init__(self) -> None:
        self.loop = Loop()
        self.expired: list[str] = []
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.timeouts = FrameTimeouts(LIMITS, loop, self.expired.append)
        self.timeouts.opened()

    def receive(self, size: int, *, partial: bool = False, frames: int = 0) -> None:
        self.timeouts.received(size, partial=partial, frames=frames)
        self.timeouts.update(busy=frames > 0, reading=True)


@pytest.fixture
def watched() -> WatchedConnection:
    return WatchedConnection()


def test_the_first_frame_has_a_timeout(watched: WatchedConnection) -> None:
    """A client that sends nothing is disconnected."""
    watched.loop.advance(9.9)
    assert [] == watched.expired
    watched.loop.advance(0.2)
    assert ["header_timeout_s"] == watched.expired


def test_keepalive_starts_after_the_last_response(watched: WatchedConnection) -> None:
    """Time in which the gateway is busy does not count."""
    watched.receive(100, frames=1)
    watched.loop.advance(1000)  # we are slow: not the client's fault
    watched.timeouts.update(busy=False, reading=True)
    watched.loop.advance(74.9)
    assert [] == watched.expired
    watched.loop.advance(0.2)
    assert ["keepalive_s"] == watched.expired


def test_an_idle_frame_times_out(watched: WatchedConnection) -> None:
    """The timeout within a frame is shorter than between two."""
    watched.receive(100_000, partial=True)
    watched.loop.advance(29.9)
    assert [] == watched.expired
    watched.loop.advance(0.2)
    assert ["body_idle_timeout_s"] == watched.expired


def test_a_slow_frame_times_out(watched: WatchedConnection) -> None:
    """After the grace period a frame needs its minimum rate on average."""
    for _ in range(12):
        watched.receive(100, partial=True)
        watched.loop.advance(1)
    assert ["body_min_rate_bytes_s"] == watched.expired


def test_a_long_frame_times_out(watched: WatchedConnection) -> None:
    """A frame has a total timeout, whatever its rate."""
    for _ in range(300):
        watched.receive(10_000, partial=True)
        watched.loop.advance(1)
    assert ["body_timeout_s"] == watched.expired


def test_each_frame_has_timeouts_of_its_own(watched: WatchedConnection) -> None:
    """They start again when one read ends a frame and begins another."""
    for _ in range(100):
        watched.receive(5000, partial=True, frames=1)
        watched.loop.advance(4)
    assert [] == watched.expired


def test_paused_reading_stops_the_clock_of_a_frame(watched: WatchedConnection) -> None:
    """The time in which the gateway does not read does not count."""
    watched.receive(100, partial=True)
    watched.timeouts.update(busy=True, reading=False)
    watched.loop.advance(1000)
    assert [] == watched.expired
    watched.timeouts.update(busy=True, reading=True)
    watched.loop.advance(9.9)
    assert [] == watched.expired
    watched.loop.advance(0.2)
    assert ["body_min_rate_bytes_s"] == watched.expired


def test_a_closed_connection_never_times_out(watched: WatchedConnection) -> None:
    """No timer stays behind."""
    watched.timeouts.close()
    watched.loop.advance(1000)
    assert [] == watched.expired


def test_many_frames_share_one_timer(watched: WatchedConnection) -> None:
    """A busy connection creates no timer per frame."""
    for _ in range(1000):
        watched.receive(100, frames=1)
        watched.timeouts.update(busy=False, reading=True)
        watched.loop.advance(0.001)
    assert len(watched.loop.timers) <= 1
