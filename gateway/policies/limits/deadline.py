"""The deadlines of streams, and the error of an expired deadline.

`policy.py` sets the deadline of a call; transports read the one that a client sends.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from gateway.concurrency.timeouts import Timeout
from gateway.ir.calls import Call, InferResponse
from gateway.ir.errors import DeadlineExceeded
from gateway.ir.streams import close_stream


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    """The deadlines of a stream.

    Attributes:
        total: The caller's deadline, for the complete stream.
        first: The deadline of the first reply.
        idle_s: Maximum time between replies.
    """

    total: float | None
    first: float | None
    idle_s: float | None
    clock: Callable[[], float]

    def remaining_s(self, *, first: bool) -> float | None:
        """Return the timeout for the next reply; None for no timeout."""
        now = self.clock()
        until = self.first
        if not first:
            until = None if self.idle_s is None else now + self.idle_s
        if self.total is not None:
            until = self.total if until is None else min(until, self.total)
        return None if until is None else until - now


class StreamWithTimeouts:
    """A stream that raises DeadlineExceeded when one of its deadlines expires."""

    def __init__(
        self, call: Call[Any], items: AsyncIterator[InferResponse], times: StreamTimeouts
    ) -> None:
        self._call = call
        self._items = items
        self._times = times
        self._is_first = True

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        remaining_s = self._times.remaining_s(first=self._is_first)
        if remaining_s is None:
            item = await anext(self._items)
            self._is_first = False
            return item
        timeout = Timeout(remaining_s)
        try:
            with timeout:
                item = await anext(self._items)
        except TimeoutError:
            if not timeout.has_expired:
                raise
            await close_stream(self._items)
            raise deadline_error(self._call, further=not self._is_first) from None
        self._is_first = False
        return item

    async def aclose(self) -> None:
        """Close the underlying stream."""
        await close_stream(self._items)


def deadline_error(call: Call[Any], *, further: bool = False) -> DeadlineExceeded:
    """Return the error of an expired deadline of *call*, or of a *further* reply to it."""
    source = "the gateway" if call.model is None else f"model {str(call.model)!r}"
    response = "further response" if further else "response"
    return DeadlineExceeded(f"no {response} from {source} before the deadline", model=call.model)
