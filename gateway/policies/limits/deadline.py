"""The deadlines of streams, and the error of a deadline that has passed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from gateway.concurrency.timeouts import Timeout
from gateway.ir.calls import Call, InferResponse
from gateway.ir.errors import DeadlineExceeded
from gateway.ir.streams import close_stream


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
        timeout = Timeout(left_s)
        try:
            with timeout:
                item = await anext(self._items)
        except TimeoutError:
            if not timeout.expired:
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
