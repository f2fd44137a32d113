"""Retries of one route: which calls, how often, and how many at a time.

A call that was certainly not sent can always be repeated. Any other call may have run at the
upstream, so it is repeated only if the operator allows that.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import structlog

from gateway.concurrency.timeouts import TimerWheel, WheelTimeout
from gateway.ir import errors
from gateway.ir.attempts import ATTEMPT, CallAttempt
from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.bodies.streams import close_stream, map_stream
from gateway.ir.calls import (
    MODEL_CONTROL_CALLS,
    Call,
    InferRequest,
    InferResponse,
    StreamInferRequest,
    inference_of,
    sequence_of,
)
from gateway.policies.limits.deadline import StreamTimeouts, StreamWithTimeouts, deadline_error
from gateway.service import Service
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

R = TypeVar("R")

UNSENT: Final = frozenset({"unsent", "connect_failure"})
"""Reasons that prove that the upstream did not receive the call."""

_REASONS: Final = (
    (errors.ConnectFailure, "connect_failure"),
    (errors.NotSent, "unsent"),
    (errors.Unavailable, "unavailable"),
    (errors.NotReady, "unavailable"),
    (errors.Overloaded, "overloaded"),
    (errors.DeadlineExceeded, "timeout"),
)

# The budget counts retries and calls of about this time.
_WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """When a call is repeated.

    Attributes:
        reasons: Reasons of `retry_reason`; "unsent" includes "connect_failure".
        attempts: Maximum number of attempts, the first one included.
        base_s: Maximum pause before the first retry; it doubles with each further one.
        max_s: Maximum pause.
        elsewhere: Whether a retry goes to another endpoint or target, if there is one.
        ratio: Maximum concurrent retries, as a fraction of the calls in flight. Retries of calls
            that were sent are also at most this fraction of the calls of the last seconds.
        least: Minimum of both numbers.
    """

    reasons: frozenset[str] = frozenset({"unsent"})
    attempts: int = 2
    base_s: float = 0.025
    max_s: float = 0.25
    elsewhere: bool = True
    ratio: float = 0.2
    least: int = 3


def retry_reason(error: errors.GatewayError) -> str | None:
    """Return the reason, in words of the configuration, for which *error* may be retried."""
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), None)
    if reason == "unavailable" and isinstance(error, errors.Unavailable) and error.origin is None:
        return "reset_before_answer"
    return reason


class RetryBudget:
    """Repeats failed calls of one route, as far as its rules and its budget allow.

    It never repeats a call inside a sequence, after the first reply of a stream, after a part of
    its body was forwarded, or past its deadline.

    Args:
        rules: The rules of the route.
        route: Name of the route for the log.
        report: Called with the reason and the outcome ("ok", "failed" or "no_budget") of each
            retry.
        draw: Random numbers in [0, 1), for the pause.
        sleep: Waits.
        clock: Monotonic seconds, that of deadlines.

    Attributes:
        active: Calls in flight, counted by the caller of this class.
        calls: Calls so far, counted in the same place.
    """

    def __init__(
        self,
        rules: RetryRules | None = None,
        *,
        route: str = "",
        report: Callable[[str, str], None] = lambda _reason, _outcome: None,
        draw: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.active = self.calls = 0
        self.rules = RetryRules() if rules is None else rules
        self._route = route
        self._report = report
        self._draw = draw
        self._sleep = sleep
        self._clock = clock
        self._retrying = 0
        self._counted_calls = 0
        self._recent_calls = self._recent_retries = 0.0
        self._counted_at = -math.inf
        self._is_exhausted = False

    def pause_s(
        self, call: Call[Any], error: errors.GatewayError, attempts: int = 1
    ) -> float | None:
        """Return the pause before the next attempt of *call*; None for no further attempt.

        Args:
            call: The call; its *attempts* have failed.
            error: The error of the last attempt.
            attempts: Number of attempts so far.
        """
        rules, reason = self.rules, retry_reason(error)
        if reason is None or attempts >= rules.attempts or not self._is_repeatable(call, reason):
            return None
        # Full jitter: "Exponential Backoff And Jitter", AWS Architecture Blog, and gRPC A6.
        pause_s = self._draw() * min(rules.max_s, rules.base_s * 2.0 ** (attempts - 1))
        if not self._is_moved(error):
            if error.has_alternative is False and reason == "overloaded":
                return None  # all endpoints refuse calls
            pause_s = max(pause_s, error.retry_after_s or 0.0)
            if pause_s > rules.max_s:
                return None
        deadline = call.context.deadline
        if deadline is not None and self._clock() + pause_s >= deadline:
            return None
        if not self._has_budget(error, reason):
            self._set_exhausted(True)
            self._report(reason, "no_budget")
            return None
        self._set_exhausted(False)
        log.debug("retry", model=str(call.model), pause_s=pause_s, error=error_text(error))
        return pause_s

    def _is_repeatable(self, call: Call[Any], reason: str) -> bool:
        reasons = self.rules.reasons
        if reason not in reasons and not (reason == "connect_failure" and "unsent" in reasons):
            return False
        if sequence_of(call) is not None:
            return False
        if reason not in UNSENT and type(call) in MODEL_CONTROL_CALLS:
            return False
        body = streaming_body_of(call)
        return body is None or not body.is_started  # forwarded bytes are no longer available

    def _is_moved(self, error: errors.GatewayError) -> bool:
        """Return whether another endpoint serves a call that one has refused."""
        never = error.retry_after_s == math.inf
        return self.rules.elsewhere and error.has_alternative is True and not never

    def _has_budget(self, error: errors.GatewayError, reason: str) -> bool:
        if reason == "overloaded" and self._is_moved(error):
            return True  # the servers that refuse calls get no more of them
        rules = self.rules
        if self._retrying >= max(rules.least, int(rules.ratio * self.active)):
            return False
        if reason in UNSENT:
            return True
        now = self._clock()
        decay = math.exp((self._counted_at - now) / _WINDOW_S)
        self._recent_calls = self._recent_calls * decay + self.calls - self._counted_calls
        self._recent_retries *= decay
        self._counted_calls, self._counted_at = self.calls, now
        if self._recent_retries + 1 > max(rules.least, rules.ratio * self._recent_calls):
            return False
        self._recent_retries += 1
        return True

    def _set_exhausted(self, is_exhausted: bool) -> None:
        if is_exhausted and not self._is_exhausted:
            log.warning("retry budget exhausted", route=self._route, budget=self.rules.ratio)
        elif self._is_exhausted and not is_exhausted:
            log.info("retry budget available", route=self._route)
        self._is_exhausted = is_exhausted

    async def retry(
        self, inner: Service, call: Call[R], error: errors.GatewayError, pause_s: float
    ) -> R:
        """Call *inner* after a pause, again and again while `pause_s` allows it.

        Args:
            inner: The service.
            call: The call.
            error: The error of the first attempt.
            pause_s: The pause before the second attempt.
        """
        attempts, tried = 1, error.attempted
        reason = retry_reason(error) or ""
        del error  # its traceback holds this frame
        avoid: tuple[str, ...] = ()
        while True:
            if self.rules.elsewhere and tried:
                avoid = (*avoid, tried)
            attempts += 1
            further_s: float | None = None
            token = ATTEMPT.set(CallAttempt(avoid))
            self._retrying += 1
            try:
                await self._sleep(pause_s)
                reply = await inner(call)
            except errors.GatewayError as failure:
                self._report(reason, "failed")
                further_s = self.pause_s(call, failure, attempts)
                if further_s is None:
                    raise
                tried, reason = failure.attempted, retry_reason(failure) or ""
            else:
                self._report(reason, "ok")
                return reply
            finally:
                self._retrying -= 1
                ATTEMPT.reset(token)
            pause_s = further_s

    def on_stream_end(self, _error: BaseException | None) -> None:
        """Decrement the calls in flight at the end of a stream."""
        self.active -= 1


class RetryStream:
    """A stream that is opened again if it fails before its first reply.

    Args:
        retries: The retries of the route.
        inner: The service.
        call: The call.
        items: The stream of the first attempt.
    """

    def __init__(
        self,
        retries: RetryBudget,
        inner: Service,
        call: Call[Any],
        items: AsyncIterator[InferResponse],
    ) -> None:
        self._retries = retries
        self._inner = inner
        self._call = call
        self._items = items
        self._is_first = True

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        is_first, self._is_first = self._is_first, False
        try:
            return await anext(self._items)
        except errors.GatewayError as error:
            pause_s = self._retries.pause_s(self._call, error) if is_first else None
            if pause_s is None:
                raise
            # Each attempt lasts until its first reply, as if that were the reply to the call.
            again = cast("Service", self._open)
            first = await self._retries.retry(again, self._call, error, pause_s)
        if first is None:
            raise StopAsyncIteration
        return cast("InferResponse", first)

    async def _open(self, call: Call[Any]) -> InferResponse | None:
        """Open the stream again, and return its first reply; None for a stream without one."""
        self._items = await self._inner(call)
        return await anext(self._items, None)

    async def aclose(self) -> None:
        """Close the current stream."""
        await close_stream(self._items)


class AttemptTimeout:
    """Gives up an attempt of an inference after a time, so that another one can be made.

    For a stream the time ends with the first reply. A body that is still arriving has no such
    time, because it cannot be sent twice.

    Args:
        inner: The service of one attempt.
        timeout_s: The time.
        clock: Monotonic seconds, that of deadlines.
    """

    def __init__(
        self, inner: Service, timeout_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._clock = clock
        self._wheel = TimerWheel(clock)

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*.

        Raises:
            DeadlineExceeded: The attempt took too long.
        """
        end = self._clock() + self._timeout_s
        deadline = call.context.deadline
        request = call if type(call) is InferRequest else inference_of(call)
        is_last = deadline is not None and deadline <= end
        if is_last or request is None or streaming_body_of(call) is not None:
            return await self._inner(call)
        is_stream = type(call) is StreamInferRequest
        attempt = ATTEMPT.get() or CallAttempt()
        token = ATTEMPT.set(attempt)
        timeout = WheelTimeout(self._wheel, end)
        try:
            # An upstream would apply the deadline to the whole stream.
            reply = await self._inner(call if is_stream else call.with_deadline(end))
        except BaseException as error:
            if timeout.finish(error):
                late = deadline_error(call)
                late.attempted = attempt.tried
                raise late from None
            raise
        finally:
            ATTEMPT.reset(token)
        timeout.finish(None)
        times = StreamTimeouts(None, end, None, self._clock)
        return map_stream(call, reply, lambda items: StreamWithTimeouts(call, items, times))
