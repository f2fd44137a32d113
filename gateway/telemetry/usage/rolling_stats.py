"""Rolling statistics of inferences: rate, failures and latency, from seconds to days.

They are for status pages; `metrics` is for monitoring. A period that ends is merged into the next
longer period.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.ir.metadata import Trend

QPS, FAIL_RATE = "qps", "fail_rate(%)"
LATENCY_AVG, LATENCY_MAX, LATENCY_CDF = "latency_avg(ms)", "latency_max(ms)", "latency_cdf(ms)"

# Length and number of periods, the shortest first.
_PERIODS: Final = ((1, 60), (60, 60), (3600, 24), (86400, 30))
_PERCENTILES: Final = (*range(10, 91, 10), *range(91, 100), 100, 101)
# In hundredths of a percent: 100 and 101 stand for 99.9 and 99.99, as in brpc.
_BASIS_POINTS: Final = (*[100 * percent for percent in _PERCENTILES[:-2]], 9990, 9999)
_LATENCIES: Final = 4096


@dataclass(slots=True)
class _PeriodStats:
    """The statistics of a period."""

    calls: int = 0
    failed: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0

    def merge(self, other: _PeriodStats) -> None:
        self.calls += other.calls
        self.failed += other.failed
        self.seconds += other.seconds
        self.longest_s = max(self.longest_s, other.longest_s)


class _PeriodRing:
    """The last periods of one length; a period that ends is merged into the next longer ring."""

    def __init__(self, length_s: int, count: int, longer: _PeriodRing | None) -> None:
        self.length_s = length_s
        self.past = deque([_PeriodStats()] * count, maxlen=count)
        self._longer = longer
        self._number = 0
        self._now = _PeriodStats()

    def at(self, now_s: int) -> _PeriodStats:
        """Return the statistics of the period that contains *now_s*, and end earlier periods."""
        number = now_s // self.length_s
        elapsed = number - self._number
        if elapsed > 0:
            last, start_s = self._now, self._number * self.length_s
            self._now, self._number = _PeriodStats(), number
            self.past.append(last)
            self.past.extend(_PeriodStats() for _ in range(min(elapsed - 1, len(self.past))))
            if self._longer is not None and last.calls:
                self._longer.at(start_s).merge(last)
        return self._now


class RollingStats:
    """Statistics of inferences over the last 60 seconds, 60 minutes, 24 hours and 30 days.

    Args:
        clock: Monotonic seconds.

    Attributes:
        latencies: Seconds of the inferences of the current second. Whoever counts an inference
            adds to them, after `end_second` if it ended later.
        failed: How many of them failed.
        until_s: The end of the current second on the clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rings: list[_PeriodRing] = []
        for length_s, count in reversed(_PERIODS):
            longer = self._rings[0] if self._rings else None
            self._rings.insert(0, _PeriodRing(length_s, count, longer))
        self.until_s = 0.0
        self._second = _PeriodStats()
        # They are added up when the second ends, not for each inference.
        self.latencies: list[float] = []
        self.failed = 0
        self._past_latencies: deque[float] = deque(maxlen=_LATENCIES)

    def end_second(self, now_s: int) -> None:
        """Add the inferences of the current second to its statistics, and begin another one."""
        latencies = self.latencies
        if latencies:
            self._second.merge(
                _PeriodStats(len(latencies), self.failed, sum(latencies), max(latencies))
            )
            self._past_latencies.extend(latencies)
            latencies.clear()
            self.failed = 0
        self.until_s = now_s + 1.0
        self._second = self._rings[0].at(now_s)

    def read(self) -> dict[str, Trend]:
        """Return every trend by its name: the oldest day first, the latest second last."""
        now_s = int(self._clock())
        self.end_second(now_s)
        for ring in self._rings:
            ring.at(now_s)
        periods = [(ring.length_s, sums) for ring in reversed(self._rings) for sums in ring.past]
        found = {
            QPS: [sums.calls / length_s for length_s, sums in periods],
            FAIL_RATE: [100 * sums.failed / max(1, sums.calls) for _, sums in periods],
            LATENCY_AVG: [1e3 * sums.seconds / max(1, sums.calls) for _, sums in periods],
            LATENCY_MAX: [1e3 * sums.longest_s for _, sums in periods],
        }
        trends = {name: Trend(tuple(enumerate(values))) for name, values in found.items()}
        return {**trends, LATENCY_CDF: Trend(self._percentiles(), is_distribution=True)}

    def _percentiles(self) -> tuple[tuple[int, float], ...]:
        ordered = sorted(self._past_latencies)
        if not ordered:
            return tuple([(percent, 0.0) for percent in _PERCENTILES])
        ranks = [(points * len(ordered) - 1) // 10_000 for points in _BASIS_POINTS]
        return tuple(
            [(one, 1e3 * ordered[rank]) for one, rank in zip(_PERCENTILES, ranks, strict=True)]
        )
