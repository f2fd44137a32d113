"""Timeout: one absolute deadline for a call, the earliest that anybody asked for."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from gateway.ir.calls import Call, InferRequest, InferResponse, StreamInferRequest
from gateway.ir.errors import DeadlineExceeded
from gateway.ir.streams import close_stream, map_stream
from gateway.service import Alarm, Service

R = TypeVar("R")


class Timeout:
    """Give up on a call at its deadline, and cancel what was doing it.

    The deadline is the earliest of the caller's, the route's, and the queue timeout that the
    request itself carries. It holds for a whole stream. It is passed on, so that upstreams know.

    Args:
        inner: Answers.
        timeout_s: The route's own; None sets none.
        clock: Monotonic seconds; that of `Context.deadline`.
    """

    def __init__(
        self,
        inner: Service,
        timeout_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._clock = clock

    async def __call__(self, call: Call[R], /) -> R:
        """Answer within the deadline.

        Raises:
            DeadlineExceeded: It passed; or it had passed before, and nothing was asked.
        """
        now = self._clock()
        deadline = self._deadline(call, now)
        if deadline is None:
            return await self._inner(call)
        left_s = deadline - now
        if left_s <= 0:
            raise DeadlineExceeded("the deadline had passed when the call came", model=call.model)
        if deadline != call.context.deadline:
            call = call.within(deadline=deadline)
        alarm = Alarm(left_s)
        try:
            with alarm:
                reply = await self._inner(call)
        except TimeoutError:
            if not alarm.rang:
                raise
            raise _exceeded(call) from None
        return map_stream(call, reply, lambda items: _Timed(call, items, deadline, self._clock))

    def _deadline(self, call: Call[Any], now: float) -> float | None:
        deadline = call.context.deadline
        if self._timeout_s is not None:
            own = now + self._timeout_s
            deadline = own if deadline is None or own < deadline else deadline
        request = call.request if isinstance(call, StreamInferRequest) else call
        if isinstance(request, InferRequest) and request.timeout_us is not None:
            asked = now + request.timeout_us / 1e6
            deadline = asked if deadline is None or asked < deadline else deadline
        return deadline


class _Timed:
    """Passes a stream on until the deadline."""

    def __init__(
        self,
        call: Call[Any],
        items: AsyncIterator[InferResponse],
        deadline: float,
        clock: Callable[[], float],
    ) -> None:
        self._call = call
        self._items = items
        self._deadline = deadline
        self._clock = clock

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        alarm = Alarm(self._deadline - self._clock())
        try:
            with alarm:
                return await anext(self._items)
        except TimeoutError:
            if not alarm.rang:
                raise
            await close_stream(self._items)
            raise _exceeded(self._call) from None

    async def aclose(self) -> None:
        await close_stream(self._items)


def _exceeded(call: Call[Any]) -> DeadlineExceeded:
    about = "the gateway" if call.model is None else f"model {str(call.model)!r}"
    return DeadlineExceeded(f"no answer from {about} before the deadline", model=call.model)
