"""Retry: once more for a call that the upstream cannot have seen.

Nothing else is safe to repeat without the caller's word: an inference that may have begun may have
had effects. Source: RELIABILITY, B3.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import structlog

from gateway.ir.calls import Call, InferResponse, sequence_of
from gateway.ir.errors import NotSent
from gateway.ir.streaming_body import streaming_body_of
from gateway.ir.streams import close_stream
from gateway.service import Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

_SHORTEST_S, _LONGEST_S = 0.025, 0.25


class RetryBudget:
    """When a call is made a second time: when the first attempt was never sent.

    Not inside a sequence, not after the first answer of a stream, not past the deadline, and not
    when so many retries are under way that they would feed an outage.

    Args:
        ratio: Most retries at a time, as a share of the calls in flight.
        least: So many are allowed however few calls are in flight.
        draw: Random numbers from 0 up to 1, for the pause.
        sleep: Waits.
        clock: Monotonic seconds, that of deadlines.

    Attributes:
        active: Calls in flight; who makes them counts them here.
    """

    def __init__(
        self,
        *,
        ratio: float = 0.2,
        least: int = 3,
        draw: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.active = 0
        self._ratio = ratio
        self._least = least
        self._draw = draw
        self._sleep = sleep
        self._clock = clock
        self._retrying = 0

    async def retry(self, inner: Service, call: Call[R], error: NotSent) -> R:
        """Ask *inner* a second time after a pause, or raise *error*."""
        pause_s = self._pause(call, error)
        if pause_s is None:
            raise error
        self._retrying += 1
        try:
            await self._sleep(pause_s)
            return await inner(call)
        finally:
            self._retrying -= 1

    def on_stream_end(self, _error: BaseException | None) -> None:
        """Count a stream that ended."""
        self.active -= 1

    def _pause(self, call: Call[Any], error: NotSent) -> float | None:
        """Return how long to wait before a second attempt, None for no second attempt."""
        if sequence_of(call) is not None:
            return None
        arriving = streaming_body_of(call)
        if arriving is not None and arriving.is_started:
            return None  # what was passed on while it came is gone
        if self._retrying >= max(self._least, int(self._ratio * self.active)):
            return None
        pause_s = _SHORTEST_S + (_LONGEST_S - _SHORTEST_S) * self._draw()
        deadline = call.context.deadline
        if deadline is not None and self._clock() + pause_s >= deadline:
            return None
        log.debug("retry", model=str(call.model), pause_s=pause_s, error=error.message)
        return pause_s


class RetryUnsentStream:
    """A stream that is opened again, once, when it fails unsent before its first answer."""

    def __init__(
        self,
        items: AsyncIterator[InferResponse],
        again: Callable[[NotSent], Awaitable[Any]],  # Any: R, which here is a stream
    ) -> None:
        self._items = items
        self._again = again
        self._fresh = True

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        fresh, self._fresh = self._fresh, False
        try:
            return await anext(self._items)
        except NotSent as error:
            if not fresh:
                raise
            self._items = await self._again(error)
        return await anext(self._items)

    async def aclose(self) -> None:
        """Close the stream, whichever it is now."""
        await close_stream(self._items)
