"""Limit: so many inferences at a time, and a short queue for the rest."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from gateway.ir.calls import Call
from gateway.ir.errors import Overloaded
from gateway.telemetry.call_path import record_queue_time


class ConcurrencyLimit:
    """The inferences that a route may have in flight and waiting: first come, first served.

    On the path of every call, so a free place is taken off `free`, and put back where nobody waits,
    without a call.

    Args:
        name: Of the route, for errors.
        in_flight: Inferences at a time.
        queue: Inferences that may wait; 0 refuses at once.
        wait_s: How long one may wait.

    Attributes:
        free: Places that can be had at once.
        waiting: Who waits for one; each is told by `leave`.
    """

    def __init__(self, name: str, *, in_flight: int, queue: int = 256, wait_s: float = 0.1) -> None:
        if in_flight < 1:
            raise ValueError(f"route {name!r}: in_flight is {in_flight}, at least 1 is needed")
        self._name = name
        self.free = in_flight
        self._in_flight = in_flight
        self._queue = queue
        self._wait_s = wait_s
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self, call: Call[Any]) -> None:
        """Wait for a place among those in flight, and take it.

        Raises:
            Overloaded: The queue is full, or no place came free in time.
        """
        if len(self.waiting) >= self._queue:
            raise Overloaded(
                f"route {self._name!r} has {self._in_flight} inferences in flight and "
                f"{len(self.waiting)} waiting, which is all it may have",
                model=call.model,
                limit="queue",
            )
        loop = asyncio.get_running_loop()
        begun = loop.time()
        place = loop.create_future()
        self.waiting.append(place)
        try:
            async with asyncio.timeout(self._wait_s):
                await place
            record_queue_time(loop.time() - begun)
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.release()  # it was given a place and left in the same moment
            elif place in self.waiting:  # else `leave` has met it and passed over it
                self.waiting.remove(place)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"route {self._name!r} had no place for another inference within "
                    f"{self._wait_s} s",
                    model=call.model,
                    limit="queue_wait",
                ) from None
            raise

    def on_stream_end(self, _error: BaseException | None) -> None:
        """Take a stream's place back at its end."""
        self.release()

    def release(self) -> None:
        """Give the place to the first who still waits."""
        while self.waiting:
            place = self.waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.free += 1
