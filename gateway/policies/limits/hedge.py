"""Hedge: a second attempt of an inference that takes unusually long; the first reply counts.

Source: Dean, Barroso, "The Tail at Scale"; gRPC A6, "Hedging policy".
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, TypeVar, cast

import structlog
from pydantic import Field

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.ir.attempts import ATTEMPT, CallAttempt
from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.calls import Call, InferRequest
from gateway.policies.limits.adaptive.latency import percentile
from gateway.policies.limits.retry_keys import ROUTE_RETRY
from gateway.service import Service
from gateway.settings.config_view import ConfigView, Finding
from gateway.settings.fields import HEDGE_AFTER, Text
from gateway.settings.model import Model
from gateway.settings.setting import Setting
from gateway.settings.units import parse_duration
from gateway.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

R = TypeVar("R")

# A percentile is that of so many last calls, and is computed again after a part of them.
_SAMPLES: Final = 1000
_REFRESH: Final = 50
_ENOUGH: Final = 20


class HedgeConfig(Model):
    """A second attempt of a call that takes long. The first reply counts, the other attempt ends.

    Streams and sequences have one attempt.
    """

    after: Annotated[Text, Field(pattern=HEDGE_AFTER)] = "p95"
    """When the second attempt begins: `pNN` for a percentile of the last latencies, or a
    duration. Default: `p95`."""
    at_most: float = Field(0.05, gt=0, le=1)
    """Largest share of calls with a second attempt. Default: `0.05`."""


HEDGE: Final = Setting[HedgeConfig | None](
    key="hedge",
    type=HedgeConfig | None,
    default=None,
    help="Second attempts of slow calls, with `retry: {idempotent: true}`. Default: none.",
    places=("route",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeRules:
    """When a second attempt is made.

    Attributes:
        after_s: Time after which an attempt is slow; None for *percentile*.
        percentile: Percentile of the last latencies of the route, in percent.
        at_most: Maximum share of the calls that get a second attempt.
        elsewhere: Whether the second attempt goes to another endpoint, if there is one.
    """

    after_s: float | None = None
    percentile: float = 95.0
    at_most: float = 0.05
    elsewhere: bool = True


class Hedge:
    """Makes a second attempt of an inference whose first one is slow.

    The first reply is returned, and the other attempt is cancelled. If the first attempt to end
    fails, the other one decides. Streams, sequences and bodies that still arrive are never hedged.

    Args:
        inner: The service of one attempt.
        rules: The rules of the route.
        route: Name of the route for the log.
        report: Called for each second attempt, with "first", "second" or "none": the attempt whose
            reply was returned.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        inner: Service,
        rules: HedgeRules,
        *,
        route: str = "",
        report: Callable[[str], None] = lambda _won: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._rules = rules
        self._route = route
        self._report = report
        self._clock = clock
        self._latencies: deque[float] = deque(maxlen=_SAMPLES)
        self._after_s = rules.after_s
        self._until_refresh = _ENOUGH
        # Grows with each call by `at_most`, and falls by 1 with each second attempt.
        self._credit = 0.0
        self._has_credit = True

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*, twice if the first attempt is slow."""
        if type(call) is not InferRequest or call.sequence is not None:
            return await self._inner(call)
        self._credit = min(self._credit + self._rules.at_most, _most_credit(self._rules.at_most))
        started = self._clock()
        after_s = self._after_s
        if after_s is None or streaming_body_of(call) is not None:
            reply = await self._inner(call)
        else:
            reply = await self._hedged(call, after_s)
        if self._rules.after_s is None:
            self._measure(self._clock() - started)
        return cast("R", reply)

    def _measure(self, latency_s: float) -> None:
        """Add a latency, and from time to time compute the percentile."""
        self._latencies.append(latency_s)
        self._until_refresh -= 1
        if self._until_refresh <= 0:
            self._until_refresh = _REFRESH
            self._after_s = percentile(self._latencies, self._rules.percentile)

    async def _hedged(self, call: Call[R], after_s: float) -> R:
        """Return the first good reply of up to two attempts."""
        first = CallAttempt(() if (before := ATTEMPT.get()) is None else before.avoid)
        tasks = [_start(self._inner, call, first)]
        try:
            is_fast = bool((await asyncio.wait(tasks, timeout=after_s))[0])
            if is_fast or not self._may_hedge():
                return await tasks[0]
            avoid = first.avoid
            if self._rules.elsewhere and first.tried:
                avoid = (*avoid, first.tried)
            tasks.append(_start(self._inner, call, CallAttempt(avoid)))
            winner = await _first_success(tasks)
            self._report("none" if winner is None else ("first", "second")[winner])
            return await tasks[winner or 0]
        finally:
            while tasks:  # the error of a task holds this frame, which must not hold the task
                _drop(tasks.pop())

    def _may_hedge(self) -> bool:
        """Take credit for a second attempt; return whether there was any."""
        has_credit = self._credit >= 1
        if has_credit != self._has_credit:
            self._has_credit = has_credit
            log.info(
                "hedging resumed" if has_credit else "hedging paused",
                route=self._route,
                at_most=self._rules.at_most,
            )
        self._credit -= has_credit
        return has_credit


def _most_credit(at_most: float) -> float:
    """Return the largest number of second attempts in a burst: that of 200 calls."""
    return max(1.0, 200 * at_most)


def _start(inner: Service, call: Call[R], attempt: CallAttempt) -> asyncio.Task[R]:
    async def run() -> R:
        ATTEMPT.set(attempt)  # of this task alone
        return await inner(call)

    return asyncio.create_task(run())


async def _first_success(tasks: Sequence[asyncio.Task[R]]) -> int | None:
    """Return the index of the first task that succeeds; None if all of them fail."""
    while any(not task.done() for task in tasks):
        pending = [task for task in tasks if not task.done()]
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for index, task in enumerate(tasks):
            if task.done() and not task.cancelled() and task.exception() is None:
                return index
    return None


def _drop(task: asyncio.Task[R]) -> None:
    task.add_done_callback(_retrieve)
    task.cancel()


def _retrieve(task: asyncio.Task[R]) -> None:
    """Retrieve the error of an attempt that nobody awaits, or asyncio would log it."""
    if not task.cancelled():
        task.exception()


def _build(inner: Entries, at: LayerContext) -> Service | None:
    config, retry = at.setting(HEDGE), at.setting(ROUTE_RETRY)
    if config is None:
        return None
    after, is_percentile = config.after, config.after.startswith("p")
    rules = HedgeRules(
        after_s=None if is_percentile else parse_duration(after),
        percentile=float(after[1:]) if is_percentile else 0.0,
        at_most=config.at_most,
        elsewhere=retry is None or retry.elsewhere,
    )
    report = partial(at.part(Metrics).hedge, at.name)
    return Hedge(inner.questions, rules=rules, route=at.name, report=report)


def _check(config: ConfigView) -> Iterator[Finding]:
    """Yield each route with `hedge` whose calls may not run twice."""
    retries = {path[:-1]: retry for path, retry in config.values(ROUTE_RETRY)}
    for path, hedge in config.values(HEDGE):
        retry = retries.get(path[:-1])
        if hedge is not None and (retry is None or not retry.idempotent):
            yield (
                path[:-1],
                (
                    "'hedge' runs calls twice; it needs 'retry: {idempotent: true}', your word "
                    "that a repeated call has no further effect"
                ),
            )


LAYER: Final = Layer(
    "Hedge",
    "makes a second attempt of slow calls, if `hedge` is set",
    "route",
    _build,
    settings=(HEDGE,),
    check=_check,
)
