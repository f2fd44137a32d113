"""Concurrency of a route: so many inferences at a time, and a short queue for the rest."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.concurrency.limiter import Limiter, LimiterFull
from gateway.ir.calls import Call
from gateway.ir.errors import Overloaded
from gateway.telemetry.call_path import record_queue_time


class ConcurrencyLimit(Limiter):
    """The inferences that a route may have in flight and queued: first come, first served.

    On the path of every call, so `Guard` counts in `used` itself where nobody waits.

    Args:
        name: Of the route, for errors.
        in_flight: Inferences at a time.
        queue: Inferences that may wait; 0 refuses at once.
        wait_s: How long one may wait.
    """

    def __init__(self, name: str, *, in_flight: int, queue: int = 256, wait_s: float = 0.1) -> None:
        if in_flight < 1:
            raise ValueError(f"route {name!r}: in_flight is {in_flight}, at least 1 is needed")
        super().__init__(in_flight, queue=queue)
        self._name = name
        self._wait_s = wait_s

    async def wait_for_slot(self, call: Call[Any]) -> None:
        """Wait for a slot among those in flight, and take it.

        Raises:
            Overloaded: The queue is full, or no slot came free in time.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            await self.acquire(timeout_s=self._wait_s)
        except LimiterFull:
            raise Overloaded(
                f"route {self._name!r} has {self.limit} inferences in flight and "
                f"{self.queued} waiting, which is all it may have",
                model=call.model,
                limit="queue",
            ) from None
        except TimeoutError:
            raise Overloaded(
                f"route {self._name!r} had no place for another inference within {self._wait_s} s",
                model=call.model,
                limit="queue_wait",
            ) from None
        record_queue_time(loop.time() - begun)

    def on_stream_end(self, _error: BaseException | None) -> None:
        """Take a stream's slot back at its end."""
        self.release()
