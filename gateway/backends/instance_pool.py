"""InstancePool: assigns the instances of a model to inferences, with a queue."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from dataclasses import dataclass

from gateway.ir.context import ModelRef, Sequence
from gateway.ir.errors import Overloaded


@dataclass(slots=True, eq=False)
class _Waiter:
    """An inference in the queue; *required* is the only instance it can use, None for any."""

    result: asyncio.Future[int]
    required: int | None


class InstancePool:
    """The instances of a model, each of which runs one inference at a time.

    The queue is FIFO, except that the requests of a sequence wait for the instance of the sequence,
    which may keep state.

    Args:
        model: Named in errors.
        instances: The number of instances, which are numbered from 0.
        queue: Inferences that may wait; more are rejected.
    """

    def __init__(self, model: ModelRef, instances: int, queue: int) -> None:
        self._model = model
        self._instances = instances
        self._queue = queue
        # A stack: the last instance released is the first acquired, because its memory is cached.
        self._free = list(reversed(range(instances)))
        self._waiting: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """The number of inferences in the queue."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no instance runs an inference."""
        return len(self._free) == self._instances

    def try_acquire(self, sequence: Sequence | None = None) -> int | None:
        """Acquire a free instance; return None if there is none, or for a *sequence*."""
        return self._free.pop() if self._free and sequence is None else None

    async def acquire(self, sequence: Sequence | None = None) -> int:
        """Acquire an instance, or wait for one; the caller must `release` it.

        Raises:
            Overloaded: The queue is full.
        """
        instance = self.try_acquire(sequence)
        if instance is not None:
            return instance
        required = None if sequence is None else instance_of(sequence, self._instances)
        if required in self._free:
            self._free.remove(required)
            return required
        if len(self._waiting) >= self._queue:
            raise Overloaded(
                f"model {str(self._model)!r} is overloaded: "
                f"{self._instances - len(self._free)} inferences running and "
                f"{len(self._waiting)} queued (options instances, queue)",
                model=self._model,
                limit="queue",
            )
        return await self._wait(required)

    def release(self, instance: int) -> None:
        """Pass *instance* to the first inference in the queue that can use it, or free it."""
        for waiter in self._waiting:
            if waiter.required in {None, instance} and not waiter.result.done():
                self._waiting.remove(waiter)
                waiter.result.set_result(instance)
                return
        self._free.append(instance)

    async def acquire_all(self) -> None:
        """Acquire every instance, after the inferences in the queue."""
        for instance in range(self._instances):
            if instance in self._free:
                self._free.remove(instance)
            else:
                await self._wait(instance)

    async def _wait(self, required: int | None) -> int:
        result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(result, required)
        self._waiting.append(waiter)
        try:
            return await result
        except BaseException:
            if result.done() and not result.cancelled():
                self.release(result.result())  # cancelled after it got the instance
            else:
                self._waiting.remove(waiter)
            raise


def instance_of(sequence: Sequence, instances: int) -> int:
    """Return the instance that runs a sequence, a hash of its id."""
    return zlib.crc32(repr(sequence.id).encode()) % instances
