"""Adaptive concurrency: how the limit follows the latency."""

from __future__ import annotations

import pytest

from gateway.policies.limits.adaptive.latency import AdaptiveLimit, AdaptiveRules
from tests.fakes import FakeClock


def measured(clock: FakeClock, **rules: object) -> AdaptiveLimit:
    """Return a limit that has measured a minimum latency of 10 ms."""
    limit = AdaptiveLimit(AdaptiveRules(**rules), clock, lambda: 0.0)  # type: ignore[arg-type]
    sample(limit, clock, 0.01, times=30)
    return limit


def sample(limit: AdaptiveLimit, clock: FakeClock, latency_s: float, times: int = 0) -> None:
    """Record calls that use the whole limit, in the time that they take."""
    times = times or max(30, 2 * limit.limit)
    clock.advance(max(0.1, times * latency_s / limit.limit))
    for _ in range(times):
        limit.record(latency_s, limit.limit)


def test_minimum_latency_is_measured_first() -> None:
    """The smallest limit applies meanwhile, and timeouts do not count."""
    clock = FakeClock()
    limit = AdaptiveLimit(AdaptiveRules(), clock, lambda: 0.0)
    sample(limit, clock, 0.01, times=29)
    limit.record(5.0, 4, timed_out=True)
    assert (4, 0.0) == (limit.limit, limit.min_latency_s)
    limit.record(0.01, 4)
    assert (4, 0.01) == (limit.limit, limit.min_latency_s)


@pytest.mark.parametrize(("latency_s", "limits"), [(0.01, [7, 11, 17]), (0.1, [4, 4, 4])])
def test_the_limit_grows_while_the_latency_is_low(latency_s: float, limits: list[int]) -> None:
    """It grows by a quarter and its root; a high latency does not lower it below its minimum."""
    clock = FakeClock()
    limit = measured(clock)
    found = []
    for _ in limits:
        sample(limit, clock, latency_s)
        found.append(limit.limit)
    assert limits == found


def test_the_limit_falls_when_the_latency_rises() -> None:
    """A server that replies to 800 calls in a second gets a few more than it has at work."""
    clock = FakeClock()
    limit = AdaptiveLimit(AdaptiveRules(), clock, lambda: 0.0)
    limit.start(40, 0.01, 800.0)
    for _ in range(3000):
        clock.advance(1 / 800)
        limit.record(limit.limit / 800, limit.limit)
    assert 8 <= limit.limit <= 16


def test_the_limit_has_a_maximum_and_does_not_grow_unused() -> None:
    """The limit grows only while it is used, up to its maximum."""
    clock = FakeClock()
    limit = measured(clock, most=20)
    for _ in range(10):
        clock.advance(0.1)
        for _ in range(30):
            limit.record(0.01, 1)
    assert 4 == limit.limit
    for _ in range(20):
        sample(limit, clock, 0.01)
    assert 20 == limit.limit


def test_minimum_latency_is_measured_again() -> None:
    """A slower model gets a new minimum latency, and the limit recovers."""
    clock = FakeClock()
    limit = measured(clock)
    for _ in range(5):
        sample(limit, clock, 0.01)
    before = limit.limit
    clock.advance(60)
    sample(limit, clock, 0.02)
    assert 4 == limit.limit
    sample(limit, clock, 0.02, times=30)
    assert 0.02 == limit.min_latency_s
    assert before / 2 < limit.limit <= 1.25 * before


def test_earlier_calls_do_not_count_for_the_minimum_latency() -> None:
    """Calls that waited at the upstream before the measurement would hide an overload."""
    clock = FakeClock()
    limit = measured(clock)
    clock.advance(60)
    sample(limit, clock, 0.01)
    for used in range(50, 4, -1):
        limit.record(0.5, used)
    sample(limit, clock, 0.01, times=30)
    assert 0.01 == limit.min_latency_s
