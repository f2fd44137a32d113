"""Guard: a place, a deadline and a second attempt for each call of a route.

Three policies in one layer: each has something to do after a call, and layers of their own would be
three frames on every step of the way, there and back.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from gateway.concurrency.timeouts import Timeout, WheelTimeout
from gateway.concurrency.timer_wheel import TimerWheel
from gateway.ir.calls import Call, InferRequest, StreamInferRequest, inference_of
from gateway.ir.errors import DeadlineExceeded, NotSent
from gateway.ir.streaming_body import StreamingBody, streaming_body_of
from gateway.ir.streams import map_stream, on_stream_end
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.policies.limits.deadline import (
    StreamTimeouts,
    StreamWithTimeouts,
    deadline_error,
)
from gateway.policies.limits.retry import RetryBudget, RetryUnsentStream
from gateway.service import Service

R = TypeVar("R")


class CallLimits:
    """Answers within limits: of calls at a time, of time, and of attempts.

    An inference has a place first (`Places`), and a stream keeps its until it ends. Questions about
    health and metadata need none: they are cheap, and who asks them must not be told lies by a busy
    route.

    The deadline is the earliest of the caller's, the route's, and the queue timeout that the
    request itself carries. It is passed on, so that upstreams know; at it the call is given up, and
    what was doing it cancelled. Of a stream the route's time is that until the first answer, and a
    time of its own holds for each wait after that: how many answers there are nobody can know. What
    the caller set holds for all of it. While the bytes of a call are still arriving, the route's
    time begins anew with each that moves: how long a client sends is not the target's doing.

    Within that time there is a second attempt when the first was never sent (`Retries`).

    Args:
        inner: Answers; may choose another endpoint for the second attempt.
        timeout_s: The route's own; None sets none.
        stream_idle_s: Longest wait for a further answer of a stream; None sets none.
        places: For inferences; None for any number.
        retries: When there is a second attempt; None for never.
        clock: Monotonic seconds; that of `Context.deadline`.
    """

    def __init__(
        self,
        inner: Service,
        timeout_s: float | None = None,
        *,
        stream_idle_s: float | None = None,
        places: ConcurrencyLimit | None = None,
        retries: RetryBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._stream_idle_s = stream_idle_s
        # What sets no limit still counts: to ask whether it does would cost as much.
        self._without = ConcurrencyLimit("", in_flight=sys.maxsize)
        self._places = self._without if places is None else places
        self._retries = RetryBudget(ratio=0.0, least=0) if retries is None else retries
        self._clock = clock
        self._wheel = TimerWheel(clock)

    async def __call__(self, call: Call[R], /) -> R:
        """Answer within the limits.

        Raises:
            Overloaded: The queue is full, or no place came free in time.
            DeadlineExceeded: It passed; or it had passed before, and nothing was asked.
        """
        request = call if type(call) is InferRequest else inference_of(call)
        places, retries = self._without if request is None else self._places, self._retries
        is_stream = type(call) is StreamInferRequest
        if places.free:
            places.free -= 1
        else:
            await places.acquire(call)
        retries.active += 1
        timeout: Timeout | None = None
        fresh = True
        try:
            call, timeout, asked, deadline = self._begun(call, request)
            try:
                reply = await self._inner(call)
            except NotSent as error:
                fresh = False
                reply = await retries.retry(self._inner, call, error)
        except BaseException as error:
            retries.active -= 1
            places.release()
            if timeout is not None and timeout.finish(error):
                raise deadline_error(call) from None
            raise
        if timeout is not None:
            timeout.finish(None)
        if is_stream:
            times = StreamTimeouts(asked, deadline, self._stream_idle_s, self._clock)
            return self._watched(call, reply, places, times, fresh=fresh)
        retries.active -= 1
        if places.waiting:
            places.release()
        else:
            places.free += 1
        return reply

    def _begun(
        self, call: Call[R], request: InferRequest | None
    ) -> tuple[Call[R], Timeout | None, float | None, float | None]:
        """Return the call to send, its started timeout, the caller's deadline and the earliest."""
        now = self._clock()
        deadline = asked = call.context.deadline
        if request is not None and request.timeout_us is not None:
            queued = now + request.timeout_us / 1e6
            deadline = asked = queued if asked is None or queued < asked else asked
        if self._timeout_s is not None:
            own = now + self._timeout_s
            deadline = own if asked is None or own < asked else asked
        if deadline is None:
            return call, None, None, None
        if deadline <= now:
            raise DeadlineExceeded("the deadline had passed when the call came", model=call.model)
        arriving = streaming_body_of(call)
        # What an upstream is told of a stream, or of what still arrives, ends all of it.
        whole = arriving is not None or type(call) is StreamInferRequest
        told = asked if whole else deadline
        if told != call.context.deadline:
            call = call.with_deadline(told)
        if arriving is None:
            return call, WheelTimeout(self._wheel, deadline), asked, deadline
        left = partial(self._left, arriving, now, asked)
        return call, Timeout(deadline - now, left).__enter__(), asked, deadline

    def _left(self, arriving: StreamingBody, began: float, asked: float | None) -> float:
        """Return how long to wait for a call whose bytes are arriving."""
        until = math.inf if asked is None else asked
        if self._timeout_s is not None:
            until = min(until, max(began, arriving.last_progress) + self._timeout_s)
        return until - self._clock()

    def _watched(
        self,
        call: Call[R],
        reply: R,
        places: ConcurrencyLimit,
        times: StreamTimeouts,
        *,
        fresh: bool,
    ) -> R:
        """Return *reply*, a stream, with its limits; *fresh* while the call was made but once."""
        if fresh:
            # It may be open without having been sent: its first answer tells.
            again = partial(self._retries.retry, self._inner, call)
            reply = map_stream(call, reply, lambda items: RetryUnsentStream(items, again))
        reply = on_stream_end(call, reply, self._retries.on_stream_end)
        if times.first is not None or times.idle_s is not None:
            reply = map_stream(call, reply, lambda items: StreamWithTimeouts(call, items, times))
        return on_stream_end(call, reply, places.on_stream_end)
