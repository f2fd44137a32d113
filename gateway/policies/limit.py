"""Limit: so many inferences at a time, and a short queue for the rest."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

from gateway.ir.calls import Call, InferRequest, StreamInferRequest
from gateway.ir.errors import Overloaded
from gateway.ir.streams import watch
from gateway.service import Service
from gateway.telemetry.taken import note_queued

R = TypeVar("R")


class Limit:
    """Refuse inferences beyond what a route may have in flight and waiting.

    First come, first served. A stream holds its place until it ends. Questions about health and
    metadata pass: they are cheap, and who asks them must not be told lies by a busy route.

    Args:
        inner: Answers.
        name: Of the route, for errors.
        in_flight: Inferences at a time.
        queue: Inferences that may wait; 0 refuses at once.
        wait_s: How long one may wait.
    """

    def __init__(
        self, inner: Service, name: str, *, in_flight: int, queue: int = 256, wait_s: float = 0.1
    ) -> None:
        if in_flight < 1:
            raise ValueError(f"route {name!r}: in_flight is {in_flight}, at least 1 is needed")
        self._inner = inner
        self._name = name
        self._free = in_flight
        self._in_flight = in_flight
        self._queue = queue
        self._wait_s = wait_s
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, call: Call[R], /) -> R:
        """Answer once there is a place.

        Raises:
            Overloaded: The queue is full, or no place came free in time.
        """
        is_stream = type(call) is StreamInferRequest
        if not is_stream and type(call) is not InferRequest:
            return await self._inner(call)
        if self._free:
            self._free -= 1
        else:
            await self._wait(call)
        try:
            reply = await self._inner(call)
        except BaseException:
            self._leave()
            raise
        if is_stream:
            return watch(call, reply, self._ended)
        if self._waiting:
            self._leave()
        else:
            self._free += 1
        return reply

    async def _wait(self, call: Call[Any]) -> None:
        """Wait for a place among those in flight."""
        if len(self._waiting) >= self._queue:
            raise Overloaded(
                f"route {self._name!r} has {self._in_flight} inferences in flight and "
                f"{len(self._waiting)} waiting, which is all it may have",
                model=call.model,
                limit="queue",
            )
        loop = asyncio.get_running_loop()
        begun = loop.time()
        place = loop.create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self._wait_s):
                await place
            note_queued(loop.time() - begun)
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._leave()  # it was given a place and left in the same moment
            elif place in self._waiting:  # else `_leave` has met it and passed over it
                self._waiting.remove(place)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"route {self._name!r} had no place for another inference within "
                    f"{self._wait_s} s",
                    model=call.model,
                    limit="queue_wait",
                ) from None
            raise

    def _ended(self, _error: BaseException | None) -> None:
        self._leave()

    def _leave(self) -> None:
        """Give the place to the first who still waits."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
