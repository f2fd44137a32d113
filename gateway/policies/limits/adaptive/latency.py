"""AdaptiveConcurrency: finds by measuring how many inferences an upstream handles at a time.

Sources: Envoy, "Adaptive Concurrency" (gradient); Netflix concurrency-limits (AIMD, and that a
limit that is not used does not grow); Maurer, "Fail at Scale" (controlled delay of queues).
"""

import math
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import structlog

from gateway.concurrency.limiter import Limiter, LimiterFull
from gateway.concurrency.timeouts import is_timeout
from gateway.ir.calls import Call, InferRequest, InferResponse, StreamInferRequest, inference_of
from gateway.ir.errors import Overloaded, QueueTimeout
from gateway.ir.streams import MappedStream, NotifyingStream, map_stream
from gateway.service import Service
from gateway.telemetry.call_path import queue_priority, queue_turn, record_queue_time

log = structlog.get_logger(__name__)

R = TypeVar("R")

# Calls that the minimum latency is measured with.
_MEASURED_CALLS: Final = 30
# A latency above the minimum by this factor is still good (Envoy's buffer of 25%).
_TOLERANCE: Final = 1.25
# AIMD: a latency above this multiple of the minimum is overload.
_AIMD_OVERLOAD: Final = 2.0
_AIMD_DECREASE: Final = 0.9
# `keeps_rate`: the weight of a sample, the part of the best rate that is enough, how much the
# limit is raised otherwise, what the rate must have gained after so many times, and how fast the
# raised limit is lowered.
_RATE_WEIGHT: Final = 0.5
_LEAST_RATE: Final = 0.88
_RAISE: Final = 1.25
_RAISES: Final = 3
_RATE_GAIN: Final = 1.1
_FLOOR_DECAY: Final = 0.99
_CALM_S: Final = 10.0
# How long a call waits in a queue that does not get empty, and at most in any queue.
LATE_WAIT_S: Final = 0.003
MOST_WAIT_S: Final = 0.1
# For so long after a refusal every queue is late.
_LATE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRules:
    """How a concurrency limit follows the latency.

    Attributes:
        algorithm: "gradient" multiplies the limit by minimum / sampled latency; "aimd" adds 1, or
            takes a tenth away.
        least: Minimum of the limit, and the limit while the minimum latency is measured.
        most: Maximum of the limit.
        percentile: Percentile of the latencies that are compared, in percent.
        sample_s: Shortest time between two changes of the limit.
        sample_calls: Fewest calls between them.
        min_rtt_interval_s: Time between two measurements of the minimum latency.
        jitter: Maximum random part of that time.
        queue: Maximum inferences that wait.
        keeps_rate: Whether a limit that lowers the rate of replies is raised again: a server that
            merges requests has a higher latency and a higher rate with more of them.
    """

    algorithm: Literal["gradient", "aimd"] = "gradient"
    least: int = 3
    most: int = 256
    percentile: float = 90.0
    sample_s: float = 0.1
    sample_calls: int = 5
    min_rtt_interval_s: float = 60.0
    jitter: float = 0.15
    queue: int = 64
    keeps_rate: bool = False


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
        if self._rules.keeps_rate:
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
        calls = self._rules.sample_calls
        return max(calls, 2 * self.limit) if self._rules.keeps_rate else calls

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
        if rules.algorithm == "aimd":
            if sampled_s > _AIMD_OVERLOAD * self.min_latency_s:
                return max(rules.least, int(limit * _AIMD_DECREASE))
            return min(rules.most, limit + is_used)
        gradient = self.min_latency_s * _TOLERANCE / max(sampled_s, 1e-9)
        wanted = int(limit * min(2.0, max(0.5, gradient)) + math.sqrt(limit))
        wanted = max(wanted, int(self._floor))
        if wanted > limit and not is_used:
            return limit
        return min(rules.most, max(rules.least, wanted))


class AdaptiveConcurrency:
    """Lets as many inferences at a time pass to an upstream as its limit allows.

    Others wait in a short queue, in which routes take turns. While the queue does not get empty
    they wait only for some milliseconds: whoever waited long has no use for its reply any more.

    Args:
        inner: The upstream.
        rules: The rules.
        name: Name of the upstream.
        clock: Monotonic seconds.
        draw: Random numbers in [0, 1).
    """

    def __init__(
        self,
        inner: Service,
        rules: AdaptiveRules,
        *,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._inner = inner
        self._name = name
        self._clock = clock
        self._adaptive = AdaptiveLimit(rules, clock, draw)
        self._limiter = Limiter(
            self._adaptive.limit, queue=rules.queue, group=queue_turn, priority=queue_priority
        )
        self._queue_empty_at = clock()
        self._refused_at = -math.inf
        self._is_refusing = False

    @property
    def limit(self) -> int:
        """The current limit."""
        return self._limiter.limit

    async def __call__(self, call: Call[R], /) -> R:
        """Call the upstream when the limit allows it.

        Raises:
            Overloaded: The limit is reached, and no inference ended in time.
        """
        request = call if type(call) is InferRequest else inference_of(call)
        if request is None:
            return await self._inner(call)
        is_stream = type(call) is StreamInferRequest
        limiter = self._limiter
        if not limiter.try_acquire():
            await self._wait(call, request)
        started = self._clock()
        try:
            reply = await self._inner(call)
        except BaseException as error:
            self._release(started if is_timeout(error, call, self._clock()) else None, late=True)
            raise
        if is_stream:
            return map_stream(call, reply, lambda items: self._measured(call, items, started))
        self._release(started)
        return reply

    def _measured(
        self, call: Call[Any], items: AsyncIterator[InferResponse], started: float
    ) -> AsyncIterator[InferResponse]:
        """Return a stream that keeps its slot until its end.

        Its latency is that of its first reply: how long it lasts shows nothing about load.
        """
        is_first = True

        async def measure(item: InferResponse) -> InferResponse:
            nonlocal is_first
            if is_first and item.error is None:
                self._record(started)
            is_first = False
            return item

        def release(error: BaseException | None) -> None:
            late = is_first and error is not None and is_timeout(error, call, self._clock())
            self._release(started if late else None, late=True)

        return NotifyingStream(MappedStream(items, measure), release)

    def _release(self, started: float | None, *, late: bool = False) -> None:
        limiter = self._limiter
        if started is not None:
            self._record(started, late=late)
        limiter.release()
        if not limiter.queued:
            self._queue_empty_at = self._clock()
            if self._is_refusing and self._queue_empty_at > self._refused_at + _CALM_S:
                self._is_refusing = False
                log.info("upstream no longer overloaded", upstream=self._name, limit=self.limit)

    def _record(self, started: float, *, late: bool = False) -> None:
        latency_s = self._clock() - started
        self._adaptive.record(latency_s, self._limiter.used, timed_out=late)
        self._limiter.resize(self._adaptive.limit)

    async def _wait(self, call: Call[Any], request: InferRequest) -> None:
        limiter, began = self._limiter, self._clock()
        if not limiter.queued:
            self._queue_empty_at = began
        # While nothing is overloaded, a call may wait for as long as another one takes.
        wait_s = min(MOST_WAIT_S, max(LATE_WAIT_S, self._adaptive.min_latency_s))
        if began - self._queue_empty_at > wait_s or began - self._refused_at < _LATE_S:
            wait_s = LATE_WAIT_S
        timeout_us = request.timeout_us
        expires = timeout_us is not None and timeout_us / 1e6 < wait_s
        try:
            await limiter.acquire(timeout_s=timeout_us / 1e6 if timeout_us and expires else wait_s)
        except (LimiterFull, TimeoutError) as error:
            if timeout_us is not None and expires and type(error) is TimeoutError:
                queue = f"the overloaded upstream {self._name!r}"
                raise QueueTimeout.after(timeout_us, queue, call.model) from None
            raise self._overloaded(call) from None
        record_queue_time(self._clock() - began)

    def _overloaded(self, call: Call[Any]) -> Overloaded:
        self._refused_at = self._clock()
        limiter = self._limiter
        if not self._is_refusing:
            self._is_refusing = True
            log.warning("upstream overloaded", upstream=self._name, limit=limiter.limit)
        return Overloaded(
            f"upstream {self._name!r} is overloaded: {limiter.used} inferences are in flight, and "
            f"its latency allows {limiter.limit} (adaptive_concurrency)",
            model=call.model,
            limit="adaptive_concurrency",
        )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of *values*, of which there is at least one."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]
