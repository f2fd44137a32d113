"""Retry: one retry of a call that the upstream did not receive.

No other call is safe to retry, because an inference that may have started may have had effects.
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

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.025, 0.25


class RetryBudget:
    """Retries a call once if its first attempt was never sent.

    It does not retry inside a sequence, after the first reply of a stream, past the deadline, or
    if too many other retries are in progress.

    Args:
        ratio: Maximum concurrent retries, as a fraction of the calls in flight.
        least: Minimum number of concurrent retries, regardless of the calls in flight.
        draw: Random numbers in [0, 1), for the pause.
        sleep: Waits.
        clock: Monotonic seconds, that of deadlines.

    Attributes:
        active: Calls in flight, counted by the caller of this class.
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
        """Call *inner* again after a pause, or raise *error*."""
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
        """Decrement the calls in flight at the end of a stream."""
        self.active -= 1

    def _pause(self, call: Call[Any], error: NotSent) -> float | None:
        """Return the pause before the retry; None for no retry."""
        if sequence_of(call) is not None:
            return None
        body = streaming_body_of(call)
        if body is not None and body.is_started:
            return None  # the piped bytes are no longer available
        if self._retrying >= max(self._least, int(self._ratio * self.active)):
            return None
        pause_s = _MIN_PAUSE_S + (_MAX_PAUSE_S - _MIN_PAUSE_S) * self._draw()
        deadline = call.context.deadline
        if deadline is not None and self._clock() + pause_s >= deadline:
            return None
        log.debug("retry", model=str(call.model), pause_s=pause_s, error=error.message)
        return pause_s


class RetryUnsentStream:
    """A stream that is reopened once if it fails with `NotSent` before its first reply."""

    def __init__(
        self,
        items: AsyncIterator[InferResponse],
        reopen: Callable[[NotSent], Awaitable[Any]],  # Any: R, which here is a stream
    ) -> None:
        self._items = items
        self._reopen = reopen
        self._is_first = True

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        is_first, self._is_first = self._is_first, False
        try:
            return await anext(self._items)
        except NotSent as error:
            if not is_first:
                raise
            self._items = await self._reopen(error)
        return await anext(self._items)

    async def aclose(self) -> None:
        """Close the current stream."""
        await close_stream(self._items)
