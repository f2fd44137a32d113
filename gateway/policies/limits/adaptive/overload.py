"""OverloadLimit: limits the inferences of an upstream while, and only while, it is overloaded.

`latency.py` has the algorithm that finds the limit. Here is when it applies.
"""

import enum
import math
import random
import sys
import time
from collections.abc import Callable, Hashable
from typing import Annotated, Any, Final, Literal, TypeVar

import structlog
from pydantic import WithJsonSchema

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.concurrency.call_queue import CallQueue
from gateway.concurrency.limiter import CLIENT_MEMORY, Limiter
from gateway.concurrency.timeouts import is_timeout
from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.errors import Overloaded
from gateway.policies.limits.adaptive.latency import (
    LATE_WAIT_S,
    MOST_WAIT_S,
    AdaptiveLimit,
    AdaptiveRules,
    percentile,
)
from gateway.service import ReplyCoroutine, Service
from gateway.settings.fields import Off
from gateway.settings.model import Model
from gateway.settings.setting import Setting
from gateway.telemetry.call_path import queue_group, queue_priority, record_queue_time
from gateway.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

R = TypeVar("R")

# One call of eight is counted until so many of these are in flight, then all. Above
# so many in flight their growth is watched.
_WATCHED_FROM: Final = 2
_GROWS_FROM: Final = 4
# From so many calls in flight they may have to wait here instead of at the upstream.
_HOLD_FROM: Final = 48
# Replies that the rate is measured with, and the time between those of two batches.
_RATE_REPLIES: Final = 60
_MOST_REPLIES: Final = 240
_GAP_S: Final = 0.001
# The least that the upstream then gets at first.
_LEAST_HELD: Final = 8
# So many calls may wait here before any is refused.
_MAX_WAITING: Final = 100
# A queue has a delay above this multiple of the baseline, and above it by this time.
_LATE_FACTOR: Final = 3.0
_LATE_S: Final = 0.01
# It grows if so many more calls arrive than end, and these are no more than in the window before,
# in so many windows in a row.
_GROWTH: Final = 0.25
_SAME_RATE: Final = 1.3
_WINDOWS: Final = 2
_LEAST_WINDOW_S: Final = 0.02
_WINDOW_CALLS: Final = 4
# Latencies of one baseline, of the first one, and for how long the lowest one holds.
_BASELINE_CALLS: Final = 30
_FIRST_CALLS: Final = 10
_BASELINE_S: Final = 60.0
# How long calls are held, and how long after the last refusal others may be refused.
_HOLD_S: Final = 5.0
_REFUSE_S: Final = 1.0
# For so long after a refusal calls wait for a moment only.
_LATE_REFUSAL_S: Final = 0.2
_MAX_GROUPS: Final = 512

_RULES: Final = AdaptiveRules()


class _State(enum.Enum):
    OPEN = "open"
    HOLDING = "holding"
    REFUSING = "refusing"


class _Baseline:
    """The lowest percentile of the latencies of the last minute or two.

    Attributes:
        latency_s: In seconds; 0 before the first calls.
    """

    __slots__ = ("_at", "_before_s", "_current_s", "_latencies", "latency_s")

    def __init__(self) -> None:
        self.latency_s = 0.0
        self._latencies: list[float] = []
        self._current_s = self._before_s = math.inf
        self._at = -math.inf

    def record(self, latency_s: float, now: float) -> None:
        """Add the latency of a call."""
        latencies = self._latencies
        latencies.append(latency_s)
        if len(latencies) < (_BASELINE_CALLS if self.latency_s else _FIRST_CALLS):
            return
        found_s = percentile(latencies, _RULES.percentile)
        latencies.clear()
        if now >= self._at + _BASELINE_S:
            self._before_s, self._current_s, self._at = self._current_s, math.inf, now
        self._current_s = min(self._current_s, found_s)
        self.latency_s = min(self._current_s, self._before_s)


class _Group:
    """The inferences of one route and model.

    Args:
        draw: Random numbers in [0, 1).

    Attributes:
        limiter: Counts those in flight, and holds others.
        state: Whether it holds or refuses any.
        baseline: The baseline of their latencies without load.
        turn: Counts calls, of which some are measured.
        is_quiet: Whether one call of eight is enough to count.
        empty_at: When nobody waited last.
        refused_at: When a call was refused last.
    """

    __slots__ = (
        "_clock",
        "_completed",
        "_draw",
        "_last",
        "_latencies",
        "_limit",
        "_rate",
        "_since",
        "_used",
        "_waited",
        "_window_start",
        "_windows",
        "baseline",
        "empty_at",
        "is_quiet",
        "limiter",
        "refused_at",
        "state",
        "turn",
    )

    def __init__(self, clock: Callable[[], float], draw: Callable[[], float]) -> None:
        self.limiter = Limiter(sys.maxsize, group=CLIENT_MEMORY.get, priority=queue_priority)
        self.state = _State.OPEN
        self.baseline = _Baseline()
        self.turn, self.is_quiet = 0, False
        self.refused_at = self.empty_at = -math.inf
        self._clock = clock
        self._draw = draw
        self._limit: AdaptiveLimit | None = None
        self._since = -math.inf
        self._latencies: list[float] = []
        self._window_start = -math.inf
        self._used = self._completed = self._windows = self._waited = 0
        self._rate, self._last = 0.0, -math.inf

    def record_end(self, started: float, *, timed_out: bool = False) -> None:
        """Note that a call that began at *started* has ended, before it is released."""
        now = self._clock()
        latency_s = now - started
        limit = self._limit
        if self.state is not _State.OPEN and limit is None:
            self._measure_rate(now)
            self.lower_state(now)
            return
        if limit is None:
            if not timed_out:
                self.baseline.record(latency_s, now)
            used = self.limiter.used
            if used > _GROWS_FROM:
                self._watch(latency_s, now)
            elif used < _WATCHED_FROM:
                self.is_quiet = self.baseline.latency_s > 0
            return
        if started >= self._since:  # others have waited at the upstream
            limit.record(latency_s, self.limiter.used, timed_out=timed_out)
            if limit.limit != self.limiter.limit:
                self.limiter.resize(limit.limit)
        self.lower_state(now)

    def _watch(self, latency_s: float, now: float) -> None:
        """Hold calls if those in flight have become more in some windows of time in a row."""
        base_s = self.baseline.latency_s
        window_s = max(_LEAST_WINDOW_S, base_s)
        elapsed_s = now - self._window_start
        if elapsed_s > 4 * window_s:  # nothing was watched meanwhile
            self._windows = 0
            self._start_window(now)
        self._completed += 1
        self._latencies.append(latency_s)
        if elapsed_s < window_s or self._completed < _WINDOW_CALLS:
            return
        used, rate = self.limiter.used, self._completed / elapsed_s
        delay_s = used / rate  # of a call that arrives now, by Little's law
        is_late = (
            delay_s > max(_LATE_FACTOR * base_s, base_s + _LATE_S)
            and percentile(self._latencies, 50) > base_s
            and used - self._used >= _GROWTH * self._completed
            and rate <= _SAME_RATE * self._rate
        )
        self._rate = rate
        self._windows = self._windows + 1 if is_late else 0
        if self._windows >= _WINDOWS and used >= _HOLD_FROM:
            self._hold(used, now)
        self._start_window(now)

    def _start_window(self, now: float) -> None:
        self._window_start, self._used, self._completed = now, self.limiter.used, 0
        self._latencies.clear()

    def _hold(self, used: int, now: float) -> None:
        """Let further calls wait here, and measure the rate of replies first."""
        self.state, self._since, self._windows = _State.HOLDING, now, 0
        self.empty_at, self._waited, self.is_quiet = now, 0, False
        self._completed, self._window_start, self._rate = 0, -math.inf, 0.0
        self.limiter.resize(used)

    def _measure_rate(self, now: float) -> None:
        """Count replies; limit those in flight when their rate is known.

        Servers that merge requests send many replies at a time, so that these are counted whole.
        """
        if self._window_start == -math.inf:
            self._window_start = self._last = now
        elif now > self._last + _GAP_S or self._completed >= _MOST_REPLIES:
            elapsed_s = self._last - self._window_start
            if self._completed >= _RATE_REPLIES and elapsed_s > 0:
                self._set_limit(self._completed / elapsed_s, now)
                return
            if not elapsed_s:
                self._completed, self._window_start = 0, self._last
        self._last = now
        self._completed += 1

    def _set_limit(self, rate: float, now: float) -> None:
        """Let the upstream have twice as many calls as it has at work."""
        base_s = self.baseline.latency_s
        limit = self._limit = AdaptiveLimit(_RULES, self._clock, self._draw)
        limit.start(max(_LEAST_HELD, 2 * int(rate * base_s)), base_s, rate)
        self._since = now
        self.limiter.resize(limit.limit)

    def note_full(self) -> None:
        """Hold calls, because a limit of the upstream refused one: its queue is full."""
        if self.state is _State.OPEN and self.limiter.used >= _HOLD_FROM:
            self._hold(_HOLD_FROM, self._clock())

    def refuse(self, now: float) -> bool:
        """Refuse all that wait; return whether that is new."""
        is_new = self.state is not _State.REFUSING
        self.state, self.refused_at = _State.REFUSING, now
        self.limiter.drop_waiting()
        return is_new

    def longest_wait_s(self, now: float) -> float:
        """Return how long a call may wait while others are refused."""
        wait_s = min(MOST_WAIT_S, max(LATE_WAIT_S, self.baseline.latency_s))
        is_late = now - self.empty_at > wait_s or now - self.refused_at < _LATE_REFUSAL_S
        return LATE_WAIT_S if is_late else wait_s

    def lower_state(self, now: float) -> None:
        """Stop refusing and holding calls when it is time."""
        if not self.limiter.queued:
            self.empty_at = now
        if self.state is _State.REFUSING:
            if now > self.refused_at + _REFUSE_S:
                self.state, self._since = _State.HOLDING, now
        elif self.state is _State.HOLDING and now > self._since + _HOLD_S:
            is_growing, self._waited = self.limiter.queued > self._waited, self.limiter.queued
            self._since = now
            if not is_growing:
                self.state, self._limit = _State.OPEN, None
                self.limiter.resize(sys.maxsize)


class OverloadLimit:
    """Limits the inferences of an upstream that gets more than it can do.

    A route and model whose calls in flight grow, while calls end no faster, has a queue at the
    upstream. Calls then wait here for a while, as they would there. If more than 100 wait, the
    upstream is overloaded: they are refused, and only as many are sent as its latency allows. A
    client that sends a fixed number of calls at a time causes no such growth.

    Streams, sequences and bodies that still arrive pass: their duration is not that of work, and
    others of theirs may have to end first.

    Args:
        inner: The upstream.
        name: Name of the upstream.
        clock: Monotonic seconds.
        draw: Random numbers in [0, 1).
    """

    def __init__(
        self,
        inner: Service,
        *,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._inner = inner
        self._name = name
        self._clock = clock
        self._draw = draw
        self._groups: dict[Hashable, _Group] = {}

    @property
    def limit(self) -> int:
        """The lowest limit in force; 0 for none."""
        limits = (each.limiter.limit for each in self._groups.values())
        found = min(limits, default=sys.maxsize)
        return 0 if found == sys.maxsize else found

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[Any]:
        """Call the upstream, at once unless it is overloaded.

        Raises:
            Overloaded: It is overloaded, or a limit of the upstream is reached.
        """
        if type(call) is not InferRequest:
            return self._inner(call)
        if call.sequence is not None or streaming_body_of(call) is not None:
            return self._inner(call)
        key = queue_group()
        group = self._groups.get(key)
        if group is None:
            group = self._add_group(key)
        group.turn = turn = group.turn + 1 & 7
        if turn and group.is_quiet:
            return self._inner(call)
        return self._measure(group, call)

    def _add_group(self, key: Hashable) -> _Group:
        """Return a new group; one that is idle makes room for it."""
        groups = self._groups
        if len(groups) >= _MAX_GROUPS:  # clients choose the names of models
            idle = (name for name, each in groups.items() if not each.limiter.used)
            del groups[next(idle, next(iter(groups)))]
        group = groups[key] = _Group(self._clock, self._draw)
        return group

    async def _measure(self, group: _Group, call: InferRequest) -> InferResponse:
        limiter = group.limiter
        if not limiter.try_acquire():
            await self._wait(group, call)
        if limiter.used >= _WATCHED_FROM:
            group.is_quiet = False
        started = self._clock()
        try:
            reply = await self._inner(call)
        except BaseException as error:
            if is_timeout(error, call, self._clock()):
                group.record_end(started, timed_out=True)
            elif isinstance(error, Overloaded) and error.origin is None:
                group.note_full()
            limiter.release()
            raise
        group.record_end(started)
        limiter.release()
        return reply

    async def _wait(self, group: _Group, call: InferRequest) -> None:
        """Wait for the upstream to have room for another call."""
        limiter, began = group.limiter, self._clock()
        group.lower_state(began)
        is_refusing = group.state is _State.REFUSING
        if limiter.queued >= (limiter.limit if is_refusing else _MAX_WAITING):
            self._refuse(group, began)
            raise self._overloaded(group, call)
        queue = CallQueue(
            f"the overloaded upstream {self._name!r}",
            call.model,
            timeout_us=call.timeout_us,
            longest_s=group.longest_wait_s(began) if is_refusing else None,
        )

        def too_long() -> Overloaded:
            self._refuse(group, self._clock())
            return self._overloaded(group, call)

        await queue.acquire(limiter, full=lambda: self._overloaded(group, call), too_long=too_long)
        record_queue_time(self._clock() - began)

    def _refuse(self, group: _Group, now: float) -> None:
        if group.state is _State.REFUSING:
            group.refused_at = now
        elif group.refuse(now):
            route, model = queue_group()
            log.warning(
                "upstream overloaded",
                upstream=self._name,
                route=route,
                model=model,
                limit=group.limiter.limit,
            )

    def _overloaded(self, group: _Group, call: InferRequest) -> Overloaded:
        limiter = group.limiter
        return Overloaded(
            f"upstream {self._name!r} is overloaded: {limiter.used} inferences of this route and "
            f"model are in flight, and its latency allows {limiter.limit} (adaptive_concurrency)",
            model=call.model,
            limit="adaptive_concurrency",
        )


class AdaptiveConcurrencyConfig(Model):
    """The long form of `on_overload`, which has no keys of its own any more."""

    # Retired keys, which have no effect; see `gateway.config.retired`.
    algorithm: Any = None
    min: Any = None
    max: Any = None
    latency_percentile: Any = None
    sample: Any = None
    min_rtt_interval: Any = None
    jitter: Any = None


ADAPTIVE_CONCURRENCY: Final = Setting[AdaptiveConcurrencyConfig | Literal["on_overload", False]](
    key="adaptive_concurrency",
    type=Annotated[
        AdaptiveConcurrencyConfig | Literal["on_overload"] | Off,
        WithJsonSchema({"enum": ["on_overload", False]}),
    ],
    default=False,
    help=(
        "A limit on inferences in flight that follows the latency, in each worker. The page on "
        "resilience has its rules. Default: `false`."
    ),
    places=("upstream",),
)


def _build(inner: Entries, at: LayerContext) -> Service | None:
    if at.setting(ADAPTIVE_CONCURRENCY) is False:
        return None
    layer = OverloadLimit(inner.questions, name=at.name)
    at.part(Metrics).concurrency_limit(at.name, lambda: layer.limit)
    return layer


ADAPTIVE_LAYER: Final = Layer(
    "AdaptiveConcurrency",
    "limits inferences by the latency of the upstream",
    "upstream",
    _build,
    settings=(ADAPTIVE_CONCURRENCY,),
)
