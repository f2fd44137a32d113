"""Timeout: one absolute deadline for a call, the earliest that anybody asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from gateway.ir.calls import Call, InferResponse
from gateway.ir.errors import DeadlineExceeded
from gateway.ir.streams import close_stream
from gateway.service import Timeout


class RenewableTimeout(Timeout):
    """An alarm that asks, when it would ring, whether it is time.

    Args:
        delay_s: When it would ring first.
        left: Returns how long to wait from then on.
    """

    __slots__ = ("_left",)

    def __init__(self, delay_s: float, left: Callable[[], float]) -> None:
        super().__init__(delay_s)
        self._left = left

    def expire(self) -> None:
        """Wake the task, or wait on."""
        left_s = self._left()
        if left_s > 0:
            self._timer = asyncio.get_running_loop().call_later(left_s, self.expire)
        else:
            super().expire()


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
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


class StreamWithTimeouts:
    """Passes a stream on until one of its times is over."""

    def __init__(
        self, call: Call[Any], items: AsyncIterator[InferResponse], times: StreamTimeouts
    ) -> None:
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
        alarm = Timeout(left_s)
        try:
            with alarm:
                item = await anext(self._items)
        except TimeoutError:
            if not alarm.expired:
                raise
            await close_stream(self._items)
            raise deadline_error(self._call, further=not self._first) from None
        self._first = False
        return item

    async def aclose(self) -> None:
        """Close the stream beneath."""
        await close_stream(self._items)


def deadline_error(call: Call[Any], *, further: bool = False) -> DeadlineExceeded:
    """Return what is raised when the time of *call* is over, or of a *further* answer to it."""
    about = "the gateway" if call.model is None else f"model {str(call.model)!r}"
    answer = "further answer" if further else "answer"
    return DeadlineExceeded(f"no {answer} from {about} before the deadline", model=call.model)
