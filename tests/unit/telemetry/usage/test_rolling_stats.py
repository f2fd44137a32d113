"""RollingStats: values by second, minute, hour and day."""

from __future__ import annotations

from gateway.telemetry.usage.rolling_stats import (
    FAIL_RATE,
    LATENCY_AVG,
    LATENCY_CDF,
    LATENCY_MAX,
    QPS,
    RollingStats,
)
from tests.fakes import FakeClock

SECOND, MINUTE, HOUR, DAY = 173, 113, 53, 29


def values(trends: RollingStats, name: str) -> list[float]:
    """Return the points of a trend, which are numbered in their order."""
    points = trends.read()[name].points
    assert list(range(174)) == [place for place, _ in points]
    return [value for _, value in points]


def add(trends: RollingStats, seconds: float, at: float, *, failed: bool) -> None:
    """Count one inference that ended *at* this time, as `CallMetrics` does."""
    if at >= trends.until_s:
        trends.end_second(int(at))
    trends.latencies.append(seconds)
    trends.failed += failed


def test_values_are_zero_without_inferences() -> None:
    """Before the first inference every trend is flat."""
    trends = RollingStats(FakeClock())
    for name in (QPS, FAIL_RATE, LATENCY_AVG, LATENCY_MAX):
        assert [0.0] * 174 == values(trends, name)
    assert {0.0} == {value for _, value in trends.read()[LATENCY_CDF].points}


def test_second_is_reported_after_it_ends() -> None:
    """The values are rate, failures, mean and maximum latency of the last whole second."""
    clock = FakeClock(7200.0)
    trends = RollingStats(clock)
    for seconds, failed in ((0.010, False), (0.030, True)):
        add(trends, seconds, clock(), failed=failed)
    assert 0.0 == values(trends, QPS)[SECOND]
    clock.advance(1.0)
    assert (2.0, 50.0) == (values(trends, QPS)[SECOND], values(trends, FAIL_RATE)[SECOND])
    assert (20.0, 30.0) == (
        round(values(trends, LATENCY_AVG)[SECOND], 9),
        values(trends, LATENCY_MAX)[SECOND],
    )
    clock.advance(1.0)
    assert (0.0, 2.0) == (values(trends, QPS)[SECOND], values(trends, QPS)[SECOND - 1])


def test_seconds_become_minutes_hours_and_days() -> None:
    """Sixty inferences in a minute are a rate of 1/s, and less over longer periods."""
    clock = FakeClock(86400.0)
    trends = RollingStats(clock)
    for _ in range(60):
        add(trends, 0.001, clock(), failed=False)
        clock.advance(1.0)
    assert 1.0 == values(trends, QPS)[MINUTE]
    assert [1.0] * 60 == values(trends, QPS)[MINUTE + 1 :]
    clock.advance(3600.0)
    assert 60 / 3600 == values(trends, QPS)[HOUR]
    assert 0.0 == values(trends, QPS)[MINUTE]
    clock.advance(86400.0)
    assert 60 / 86400 == values(trends, QPS)[DAY]
    clock.advance(40 * 86400.0)
    assert [0.0] * 174 == values(trends, QPS)


def test_repeated_reads_lose_nothing() -> None:
    """Reading often returns the same values as reading once."""
    clock = FakeClock(3600.0)
    often, once = RollingStats(clock), RollingStats(clock)
    for step in range(200):
        for trends in (often, once):
            add(trends, step / 1000, clock(), failed=step % 7 == 0)
        often.read()
        clock.advance(0.9)
    assert once.read() == often.read()


def test_latency_distribution_has_percentiles() -> None:
    """Points up to 99 are percentiles; 100 and 101 stand for 99.9 and 99.99."""
    trends = RollingStats(FakeClock())
    for number in range(1000, 0, -1):
        add(trends, number / 1000, 1000.0, failed=False)
    found = trends.read()[LATENCY_CDF]
    assert found.is_distribution
    expected = {10: 100.0, 50: 500.0, 90: 900.0, 99: 990.0, 100: 999.0, 101: 1000.0}
    assert expected == {place: value for place, value in found.points if place in expected}
    assert [*range(10, 91, 10), *range(91, 102)] == [place for place, _ in found.points]
