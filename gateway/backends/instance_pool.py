"""Places: which instance of a model runs what, and who waits for one."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from dataclasses import dataclass

from gateway.ir.context import ModelRef, Sequence
from gateway.ir.errors import Overloaded


@dataclass(slots=True, eq=False)
class _Waiter:
    """One who waits; *wanted* is the only instance that will do, None for any."""

    place: asyncio.Future[int]
    wanted: int | None


class InstancePool:
    """The instances of a model, each of which runs one inference at a time.

    First come, first served, but that the requests of a sequence wait for their own instance: it
    may hold what the earlier ones left.

    Args:
        model: For errors.
        instances: How many there are; they are numbered from 0.
        queue: Inferences that may wait; more are refused.
    """

    def __init__(self, model: ModelRef, instances: int, queue: int) -> None:
        self._model = model
        self._instances = instances
        self._queue = queue
        # The one given back last is taken first: what it used lies in the caches still.
        self._free = list(reversed(range(instances)))
        self._waiting: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for an instance."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no instance runs anything."""
        return len(self._free) == self._instances

    def try_acquire(self, sequence: Sequence | None = None) -> int | None:
        """Return the number of an instance that was free, which is the caller's.

        Returns:
            None when there is none, or *sequence* has its own: `take` one.
        """
        return self._free.pop() if self._free and sequence is None else None

    async def acquire(self, sequence: Sequence | None = None) -> int:
        """Return the number of an instance that is the caller's until it is given back.

        Raises:
            Overloaded: As many wait as may.
        """
        free = self.try_acquire(sequence)
        if free is not None:
            return free
        wanted = None if sequence is None else instance_of(sequence, self._instances)
        if wanted in self._free:
            self._free.remove(wanted)
            return wanted
        if len(self._waiting) >= self._queue:
            raise Overloaded(
                f"model {str(self._model)!r} runs {self._instances - len(self._free)} inferences "
                f"and {len(self._waiting)} wait, which is all it may have",
                model=self._model,
                limit="queue",
            )
        return await self._wait(wanted)

    def release(self, instance: int) -> None:
        """Give *instance* to the first who waits for it."""
        for waiter in self._waiting:
            if waiter.wanted in {None, instance} and not waiter.place.done():
                self._waiting.remove(waiter)
                waiter.place.set_result(instance)
                return
        self._free.append(instance)

    async def acquire_all(self) -> None:
        """Wait, behind those who wait already, until nothing runs; they are not given back."""
        for instance in range(self._instances):
            if instance in self._free:
                self._free.remove(instance)
            else:
                await self._wait(instance)

    async def _wait(self, wanted: int | None) -> int:
        place: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(place, wanted)
        self._waiting.append(waiter)
        try:
            return await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.release(place.result())  # it was given one and left in the same moment
            else:
                self._waiting.remove(waiter)
            raise


def instance_of(sequence: Sequence, instances: int) -> int:
    """Return the instance that runs a sequence, from its id alone."""
    return zlib.crc32(repr(sequence.id).encode()) % instances
