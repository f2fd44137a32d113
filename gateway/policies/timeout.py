"""Timeout: one absolute deadline for a call, the earliest that anybody asked for."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gateway.ir.arriving import Arriving
from gateway.ir.calls import Call, InferRequest, InferResponse, StreamInferRequest, inference_of
from gateway.ir.errors import DeadlineExceeded
from gateway.ir.landing import arriving_in
from gateway.ir.streams import close_stream, map_stream
from gateway.service import Alarm, DueAlarm, Service
from gateway.wheel import Wheel

R = TypeVar("R")


class Timeout:
    """Give up on a call at its deadline, and cancel what was doing it.

    The deadline is the earliest of the caller's, the route's, and the queue timeout that the
    request itself carries. It is passed on, so that upstreams know. Of a stream the route's time is
    that until the first answer, and a time of its own holds for each wait after that: how many
    answers there are nobody can know. What the caller set holds for all of it. While the bytes of a
    call are still arriving, the route's time begins anew with each that moves: how long a client
    sends is not the target's doing.

    Args:
        inner: Answers.
        timeout_s: The route's own; None sets none.
        stream_idle_s: Longest wait for a further answer of a stream; None sets none.
        clock: Monotonic seconds; that of `Context.deadline`.
    """

    def __init__(
        self,
        inner: Service,
        timeout_s: float | None,
        *,
        stream_idle_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._stream_idle_s = stream_idle_s
        self._clock = clock
        self._wheel = Wheel(clock)

    async def __call__(self, call: Call[R], /) -> R:
        """Answer within the deadline.

        Raises:
            DeadlineExceeded: It passed; or it had passed before, and nothing was asked.
        """
        now = self._clock()
        asked = call.context.deadline
        request = call if type(call) is InferRequest else inference_of(call)
        if request is not None and request.timeout_us is not None:
            queued = now + request.timeout_us / 1e6
            asked = queued if asked is None or queued < asked else asked
        deadline = asked
        if self._timeout_s is not None:
            own = now + self._timeout_s
            deadline = own if asked is None or own < asked else asked
        is_stream = type(call) is StreamInferRequest
        if deadline is None:
            reply = await self._inner(call)
            return self._watched(call, reply, None, None) if is_stream else reply
        if deadline <= now:
            raise DeadlineExceeded("the deadline had passed when the call came", model=call.model)
        arriving = arriving_in(call)
        # What an upstream is told of a stream ends all of it.
        told = asked if is_stream or arriving is not None else deadline
        if told != call.context.deadline:
            call = call.until(told)
        alarm: Alarm
        if arriving is None:
            alarm = DueAlarm(self._wheel, deadline)
        else:
            alarm = _Patient(deadline - now, partial(self._left, arriving, now, asked)).__enter__()
        try:
            reply = await self._inner(call)
        except BaseException as error:
            if alarm.over(error) or (alarm.rang and isinstance(error, TimeoutError)):
                raise _exceeded(call) from None
            raise
        alarm.over(None)
        return self._watched(call, reply, asked, deadline) if is_stream else reply

    def _left(self, arriving: Arriving, began: float, asked: float | None) -> float:
        """Return how long to wait for a call whose bytes are arriving."""
        until = math.inf if asked is None else asked
        if self._timeout_s is not None:
            until = min(until, max(began, arriving.moved) + self._timeout_s)
        return until - self._clock()

    def _watched(self, call: Call[R], reply: R, whole: float | None, first: float | None) -> R:
        """Return *reply*, which is a stream, with its waits watched."""
        idle_s = self._stream_idle_s
        if first is None and idle_s is None:
            return reply
        times = _Times(whole, first, idle_s, self._clock)
        return map_stream(call, reply, lambda items: _Timed(call, items, times))


class _Patient(Alarm):
    """An alarm that asks, when it would ring, whether it is time.

    Args:
        delay_s: When it would ring first.
        left: Returns how long to wait from then on.
    """

    __slots__ = ("_left",)

    def __init__(self, delay_s: float, left: Callable[[], float]) -> None:
        super().__init__(delay_s)
        self._left = left

    def ring(self) -> None:
        """Wake the task, or wait on."""
        left_s = self._left()
        if left_s > 0:
            self._timer = asyncio.get_running_loop().call_later(left_s, self.ring)
        else:
            super().ring()


@dataclass(frozen=True, slots=True)
class _Times:
    """When a stream is given up.

    Attributes:
        whole: The caller's deadline.
        first: That of the first answer.
        idle_s: Longest wait for a further one.
    """

    whole: float | None
    first: float | None
    idle_s: float | None
    clock: Callable[[], float]

    def left_s(self, *, first: bool) -> float | None:
        """Return how long to wait for the next answer; None for as long as it takes."""
        now = self.clock()
        until = self.first
        if not first:
            until = None if self.idle_s is None else now + self.idle_s
        if self.whole is not None:
            until = self.whole if until is None else min(until, self.whole)
        return None if until is None else until - now


class _Timed:
    """Passes a stream on until one of its times is over."""

    def __init__(self, call: Call[Any], items: AsyncIterator[InferResponse], times: _Times) -> None:
        self._call = call
        self._items = items
        self._times = times
        self._first = True

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        left_s = self._times.left_s(first=self._first)
        if left_s is None:
            item = await anext(self._items)
            self._first = False
            return item
        alarm = Alarm(left_s)
        try:
            with alarm:
                item = await anext(self._items)
        except TimeoutError:
            if not alarm.rang:
                raise
            await close_stream(self._items)
            raise _exceeded(self._call, further=not self._first) from None
        self._first = False
        return item

    async def aclose(self) -> None:
        await close_stream(self._items)


def _exceeded(call: Call[Any], *, further: bool = False) -> DeadlineExceeded:
    about = "the gateway" if call.model is None else f"model {str(call.model)!r}"
    answer = "further answer" if further else "answer"
    return DeadlineExceeded(f"no {answer} from {about} before the deadline", model=call.model)
