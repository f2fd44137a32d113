"""AdaptiveLimit: finds by measuring how many inferences an upstream handles at a time.

`overload.py` decides when it applies.  Sources: Envoy, "Adaptive Concurrency" (gradient); Netflix
concurrency-limits (a limit that is not used does not grow); Maurer, "Fail at Scale" (controlled
delay of queues).
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

# Calls that the minimum latency is measured with.
_MEASURED_CALLS: Final = 30
# A latency above the minimum by this factor is still good (Envoy's buffer of 25%).
_TOLERANCE: Final = 1.25
# A server that merges requests has a higher latency and a higher rate with more of them, so a limit
# that lowers the rate of replies is raised again: the weight of a sample, the part of the best rate
# that is enough, how much the limit is raised otherwise, what the rate must have gained after so
# many times, and how fast the raised limit is lowered.
_RATE_WEIGHT: Final = 0.5
_LEAST_RATE: Final = 0.88
_RAISE: Final = 1.25
_RAISES: Final = 3
_RATE_GAIN: Final = 1.1
_FLOOR_DECAY: Final = 0.99
# How long a call waits in a queue that does not get empty, and at most in any queue.
LATE_WAIT_S: Final = 0.003
MOST_WAIT_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRules:
    """How a concurrency limit follows the latency.

    Attributes:
        least: Minimum of the limit, and the limit while the minimum latency is measured.
        most: Maximum of the limit.
        percentile: Percentile of the latencies that are compared, in percent.
        sample_s: Shortest time between two changes of the limit.
        sample_calls: Fewest calls between them.
        min_rtt_interval_s: Time between two measurements of the minimum latency.
        jitter: Maximum random part of that time.
    """

    least: int = 4
    most: int = 256
    percentile: float = 90.0
    sample_s: float = 0.1
    sample_calls: int = 30
    min_rtt_interval_s: float = 60.0
    jitter: float = 0.15


class AdaptiveLimit:
    """The limit: it is told every latency, and changes.

    It measures the minimum latency first, and then from time to time, with a limit of
    `rules.least`: a server that is overloaded has no minimum.

    Args:
        rules: The rules.
        clock: Monotonic seconds.
        draw: Random numbers in [0, 1).

    Attributes:
        limit: Inferences at a time.
        min_latency_s: The minimum latency; 0 before it was measured.
    """

    def __init__(
        self,
        rules: AdaptiveRules,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.limit = rules.least
        self.min_latency_s = 0.0
        self._rules = rules
        self._clock = clock
        self._draw = draw
        self._latencies: list[float] = []
        self._most_used = 0
        self._is_measuring = True
        self._limit_afterwards = rules.least
        self._next_change = self._sample_start = 0.0
        self._next_measurement = math.inf
        self._rate = self._best_rate = self._rate_before = self._floor = 0.0
        self._raises = 0

    def start(self, limit: int, min_latency_s: float, rate: float) -> None:
        """Begin with what is known, without a measurement.

        Args:
            limit: The limit.
            min_latency_s: The minimum latency.
            rate: Replies in a second.
        """
        self._limit_afterwards = limit
        self._rate = self._best_rate = rate
        self._end_measurement(self._clock(), min_latency_s)

    def record(self, latency_s: float, used: int, *, timed_out: bool = False) -> None:
        """Add the latency of an inference, and change the limit when it is time.

        Args:
            latency_s: Latency.
            used: Inferences in flight, this one included.
            timed_out: Whether it had no reply, so that its latency is only a lower bound.
        """
        now = self._clock()
        if self._is_measuring:
            if not timed_out and used <= self._rules.least:  # others began with a higher limit
                self._latencies.append(latency_s)
            if len(self._latencies) >= _MEASURED_CALLS:
                self._end_measurement(now, self._percentile())
            return
        self._latencies.append(latency_s)
        self._most_used = max(self._most_used, used)
        if now < self._next_change or len(self._latencies) < self._enough():
            return
        if self._sample_start:  # before the first sample, replies to earlier calls count, too
            self._measure_rate(len(self._latencies) / (now - self._sample_start))
        self._sample_start = now
        sampled_s = self._percentile()
        self._next_change = now + self._rules.sample_s
        self.limit = self._changed(sampled_s)
        self._most_used = 0
        if now >= self._next_measurement:
            self._is_measuring = True
            self._limit_afterwards, self.limit = self.limit, self._rules.least

    def _end_measurement(self, now: float, min_latency_s: float) -> None:
        rules = self._rules
        self.min_latency_s = min_latency_s
        self._is_measuring = False
        self.limit = self._limit_afterwards
        self._next_change = now + rules.sample_s
        jittered = 1 + rules.jitter * self._draw()
        self._next_measurement = now + rules.min_rtt_interval_s * jittered

    def _enough(self) -> int:
        """Return the calls of a sample, which has several batches of a server that merges them."""
        return max(self._rules.sample_calls, 2 * self.limit)

    def _measure_rate(self, rate: float) -> None:
        """Note the rate of replies; if it has fallen, raise the limit as far as that helps."""
        self._rate += _RATE_WEIGHT * (rate - self._rate)
        self._best_rate = max(self._rate, self._best_rate)
        self._floor *= _FLOOR_DECAY
        if self._rate >= _LEAST_RATE * self._best_rate:
            self._raises = 0
        elif self._raises == _RAISES and self._rate < _RATE_GAIN * self._rate_before:
            # The limit is not the reason.
            self._best_rate, self._raises, self._floor = self._rate, 0, 0.0
        else:
            if self._raises in {0, _RAISES}:
                self._rate_before, self._raises = self._rate, 0
            self._raises += 1
            self._floor = max(self._floor, _RAISE * self.limit)

    def _percentile(self) -> float:
        """Return the percentile of the latencies since the last question."""
        latencies, self._latencies = self._latencies, []
        return percentile(latencies, self._rules.percentile)

    def _changed(self, sampled_s: float) -> int:
        rules, limit = self._rules, self.limit
        is_used = 2 * self._most_used >= limit
        gradient = self.min_latency_s * _TOLERANCE / max(sampled_s, 1e-9)
        wanted = int(limit * min(2.0, max(0.5, gradient)) + math.sqrt(limit))
        wanted = max(wanted, int(self._floor))
        if wanted > limit and not is_used:
            return limit
        return min(rules.most, max(rules.least, wanted))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of *values*, of which there is at least one."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]
