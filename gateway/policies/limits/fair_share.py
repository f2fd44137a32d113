"""FairShare: the part of a route's concurrency that callers with the same key may have."""

import math
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import structlog
from pydantic import Field, model_validator

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.concurrency.limiter import ControlledDelay, Limiter
from gateway.concurrency.waiters import Share
from gateway.ir.bodies.streams import on_stream_end
from gateway.ir.call_keys import key_of
from gateway.ir.calls import Call, InferRequest, StreamInferRequest, inference_of
from gateway.ir.errors import DeadlineExceeded, Overloaded, RateExceeded
from gateway.policies.limits.concurrency import (
    IN_FLIGHT,
    INTERVAL_S,
    LATE,
    QUEUE_TARGET,
    QUEUE_WAIT,
    QUEUED,
    ROUTE_IN_FLIGHT,
    QueueBound,
    late_queue,
)
from gateway.policies.limits.deadline import RouteTimeout, timeout_at
from gateway.service import Service
from gateway.settings.fields import PART, RATE, CallKey, Text
from gateway.settings.model import Model
from gateway.settings.setting import Setting
from gateway.telemetry.call_path import queue_priority, record_queue_time

log = structlog.get_logger(__name__)

R = TypeVar("R")

_CALM_S: Final = 10.0
_MAX_NAMES: Final = 1000
# What the share of a caller is a part of where a route has no limit.
_SHARED: Final = 256


class ShareConfig(Model):
    """The part of a route's inferences in flight that callers with the same key may have."""

    by: CallKey
    """Key of a caller: `client` for the name of its credential, `header:NAME`, `address`, or
    `model`. Callers without the header share one part."""
    in_flight: Annotated[Text, Field(pattern=PART)] = "25%"
    """Most inferences of a key at the same time, or a percentage of `in_flight` of the route,
    else of 256. Others wait as `policies.queue_wait` allows. Default: `25%`."""
    rate: Annotated[Text, Field(pattern=RATE)] | None = None
    """Most inferences of a key, such as `200/s`, in each worker. Those of a second may come at
    once. At most 1000 keys at a time have rates of their own; the others share one. Default: no
    limit."""
    # A retired key, see retired.py.
    burst: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_burst(self) -> "ShareConfig":
        if self.burst is not None and self.rate is None:
            raise ValueError("'burst' needs 'rate', such as 'rate: 200/s'")
        return self

    @property
    def calls_per_second(self) -> float | None:
        """The rate; None for no limit."""
        if self.rate is None:
            return None
        calls, unit = self.rate.split("/")
        return int(calls) / (60 if unit == "min" else 1)


SHARE: Final = Setting[ShareConfig | None](
    key="share",
    type=ShareConfig | None,
    default=None,
    help="Fair shares of its callers. Default: none.",
    places=("route",),
)


class CallRate:
    """Limits the calls in a second of each name.

    Of at most 1,000 names at a time each has its own rate; further ones share one.

    Args:
        rate: Calls in a second.
        burst: Calls that may come at once.
        clock: Monotonic seconds.

    Source: ITU-T I.371, generic cell rate algorithm.
    """

    def __init__(
        self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate = rate
        self._interval_s = 1 / rate
        self._ahead_s = (burst - 1) / rate
        self._clock = clock
        self._next: dict[str | None, float] = {}  # when the next call of a name is due
        self._cleared_at = -math.inf

    def admit(self, name: str) -> bool:
        """Count a call of *name* unless it comes too early; return whether it was counted."""
        now = self._clock()
        key: str | None = name
        if name not in self._next and len(self._next) >= _MAX_NAMES:
            self._clear(now)
            if len(self._next) >= _MAX_NAMES:
                key = None
        due = max(now, self._next.get(key, now))
        if due - now > self._ahead_s + 1e-9:
            return False
        self._next[key] = due + self._interval_s
        return True

    def wait_s(self, name: str) -> float:
        """Return the seconds until a call of *name* is admitted."""
        key = name if name in self._next else None
        due = self._next.get(key, -math.inf)
        return max(0.0, due - self._ahead_s - self._clock())

    def _clear(self, now: float) -> None:
        """Forget the names whose calls are long over, once a second at most."""
        if now >= self._cleared_at + 1.0:
            self._cleared_at = now
            self._next = {name: due for name, due in self._next.items() if due > now}


class FairShare:
    """Limits the inferences in flight of each key, and lets keys take turns in the queue.

    Callers without a key share one part. A call above the part of its key waits for calls of that
    key alone: it holds up nobody else.

    Args:
        inner: The service to call.
        key: Returns the key of a call; None if it has none.
        in_flight: Inferences at a time of all keys.
        share: Inferences at a time of one key.
        queue: Maximum inferences that wait.
        wait_s: Maximum time that one waits; None for as long as its deadline allows.
        target_s: How long one may wait while the queue has not been empty for *wait_s*; None for no
            such rule.
        rate: Limits the calls in a second of each key; None for no such limit.
        timeout: The timeout of the route.
        route: Name of the route.
        clock: Monotonic seconds.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first two
        self,
        inner: Service,
        key: Callable[[Call[Any]], str | None],
        *,
        in_flight: int,
        share: int,
        queue: int = 1024,
        wait_s: float | None = None,
        target_s: float | None = None,
        rate: CallRate | None = None,
        timeout: RouteTimeout | None = None,
        route: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._key = key
        self._wait_s = wait_s
        self._rate = rate
        self._timeout = RouteTimeout() if timeout is None else timeout
        self._route = route
        self._clock = clock
        self._current = ""
        self._limiter = Limiter(
            in_flight,
            queue=queue,
            share=share,
            is_strict=True,
            group=lambda: self._current,
            priority=queue_priority,
            delay=None if target_s is None else ControlledDelay(target_s, wait_s or INTERVAL_S),
        )
        self._calm_at = float("-inf")

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner* within the part of the caller.

        Raises:
            Overloaded: The part is used up, and no inference of it ended in time; or the rate is.
        """
        request = call if type(call) is InferRequest else inference_of(call)
        if request is None:
            return await self._inner(call)
        is_stream = type(call) is StreamInferRequest
        name = self._key(call) or ""
        if self._rate is not None and not self._rate.admit(name):
            raise self._too_many(call, self._rate, name)
        limiter = self._limiter
        share = limiter.share(name)
        if not limiter.try_acquire(1, share):
            await self._wait(call, request, name, share)
        try:
            reply = await self._inner(call)
        except BaseException:
            limiter.release(1, share)
            raise
        if is_stream:
            return on_stream_end(call, reply, lambda _error: limiter.release(1, share))
        limiter.release(1, share)
        return reply

    async def _wait(self, call: Call[Any], request: InferRequest, name: str, share: Share) -> None:
        began = self._clock()
        what = f"a slot of the share of its caller in route {self._route!r}"
        bound = QueueBound(what, "share", call, request, self._timeout, self._wait_s, began)
        self._current = name  # `acquire` reads it before it waits

        def full() -> Overloaded:
            return Overloaded(
                f"route {self._route!r} is overloaded: {self._situation(share)}, and "
                f"{share.queued} wait (share, policies.queued)",
                model=call.model,
                limit="share",
            )

        try:
            await bound.acquire_in_route(
                self._limiter,
                share,
                full=full,
                late=lambda: late_queue(self._route, call),
                why=lambda: self._situation(share),
            )
        except (Overloaded, DeadlineExceeded) as error:
            if error.limit != LATE:
                self._warn()
                error.limit = "share"
            raise
        seconds = self._clock() - began
        record_queue_time(seconds)
        self._timeout.note_wait(seconds)

    def _too_many(self, call: Call[Any], limit: CallRate, name: str) -> RateExceeded:
        self._warn()
        error = RateExceeded(
            f"route {self._route!r} allows {limit.rate:g} inferences of this caller in a second "
            "(share.rate)",
            model=call.model,
            limit="share",
        )
        error.retry_after_s = limit.wait_s(name)
        return error

    def _situation(self, share: Share) -> str:
        limiter = self._limiter
        whole = "" if limiter.limit == sys.maxsize else f" of {limiter.limit}"
        most = f"at most {limiter.share_limit}{whole} are allowed"
        return f"{share.used} inferences of this caller are in flight, {most}"

    def _warn(self) -> None:
        now = self._clock()
        if now >= self._calm_at:
            # Keys are header values, which are not logged.
            log.warning("share of a route used up", route=self._route)
        self._calm_at = now + _CALM_S


def call_rate(config: ShareConfig) -> CallRate | None:
    """Return the limit of the calls of each key; None for no limit."""
    rate = config.calls_per_second
    return None if rate is None else CallRate(rate, config.burst or max(1, int(rate)))


def _build(inner: Entries, at: LayerContext) -> Service | None:
    config = at.setting(SHARE)
    if config is None:
        return None
    limit, text = at.setting(ROUTE_IN_FLIGHT) or at.setting(IN_FLIGHT), config.in_flight
    whole = _SHARED if limit is None else limit
    share = whole * int(text[:-1]) // 100 if text.endswith("%") else int(text)
    return FairShare(
        inner.questions,
        key=key_of(config.by),
        in_flight=sys.maxsize if limit is None else limit,
        share=max(1, share),
        rate=call_rate(config),
        queue=at.setting(QUEUED),
        wait_s=at.setting(QUEUE_WAIT),
        target_s=at.setting(QUEUE_TARGET),
        timeout=timeout_at(at),
        route=at.name,
    )


LAYER: Final = Layer(
    "FairShare",
    "limits the inferences in flight of each caller, if `share` is set",
    "route",
    _build,
    settings=(SHARE,),
)
