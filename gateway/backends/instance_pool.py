"""InstancePool: assigns the instances of a model to inferences, with a queue."""

import asyncio
import zlib
from itertools import chain

from gateway.concurrency.call_queue import CallQueue
from gateway.concurrency.limiter import Limiter
from gateway.concurrency.waiters import Waiter
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import Overloaded
from gateway.telemetry.call_path import queue_turn


class InstancePool:
    """The instances of a model, each of which runs one inference at a time.

    Clients take turns in the queue. The requests of a sequence wait for the instance of the
    sequence, which may keep state.

    Args:
        model: Named in errors.
        instances: The number of instances, which are numbered from 0.
        queue: Inferences that may wait; more are rejected, those of the busiest client first.

    Attributes:
        has_sequences: Whether an inference belonged to a sequence.
    """

    def __init__(self, model: ModelRef, instances: int, queue: int) -> None:
        self._model = model
        self._queue = queue
        self._instances = _Instances(instances)
        self.has_sequences = False

    @property
    def waiting(self) -> int:
        """The number of inferences in the queue."""
        return self._instances.queued

    @property
    def running(self) -> int:
        """The number of inferences that run."""
        return self._instances.used

    @property
    def is_idle(self) -> bool:
        """Whether no instance runs an inference."""
        return not self._instances.used

    def try_acquire(self, sequence: CallSequence | None = None) -> int | None:
        """Return the number of a free instance, which is now the caller's.

        Returns:
            None if no instance is free, or *sequence* requires its own: use `acquire`.
        """
        return self._instances.pop() if sequence is None else None

    async def acquire(
        self, sequence: CallSequence | None = None, timeout_us: int | None = None
    ) -> int:
        """Return the number of an instance, which is the caller's until `release`.

        Args:
            sequence: Its requests wait for the instance of the sequence.
            timeout_us: Longest wait, microseconds; None for no limit.

        Raises:
            Overloaded: The queue is full, or the wait was too long.
        """
        instances = self._instances
        required = None
        if sequence is not None:
            self.has_sequences = True
            required = instance_of(sequence, instances.limit)
        instance = instances.pop(required)
        if instance is not None:
            return instance
        if instances.queued >= self._queue and not instances.make_room():
            raise self._overloaded()
        what = f"an instance of model {str(self._model)!r}"
        queue = CallQueue(what, self._model, timeout_us=timeout_us)
        granted: int = await queue.acquire(
            instances,
            full=self._overloaded,
            too_long=self._overloaded,
            want=_ANY if required is None else required,
        )
        return granted

    def _overloaded(self) -> Overloaded:
        instances = self._instances
        return Overloaded(
            f"model {str(self._model)!r} is overloaded: {instances.used} inferences running "
            f"and {instances.queued} queued (options instances, queue)",
            model=self._model,
            limit="queue",
        )

    def release(self, instance: int) -> None:
        """Pass *instance* to the first inference in the queue that can use it, or free it."""
        self._instances.push(instance)

    async def acquire_all(self) -> None:
        """Acquire every instance, after the inferences in the queue."""
        instances = self._instances
        for instance in range(instances.limit):
            if instances.pop(instance) is None:
                await instances.acquire(want=instance)


class _Instances(Limiter):
    """A limiter whose units have numbers."""

    def __init__(self, instances: int) -> None:
        super().__init__(instances, group=queue_turn)
        # A stack: the last instance released is the first acquired, because its memory is cached.
        self._free = list(reversed(range(instances)))

    def pop(self, required: int | None = None) -> int | None:
        """Return a free instance, *required* if given, or None."""
        if required is None:
            if not self._free:
                return None
            instance = self._free.pop()
        elif required in self._free:
            self._free.remove(required)
            instance = required
        else:
            return None
        self.used += 1
        return instance

    def push(self, instance: int) -> None:
        """Free *instance*."""
        self._free.append(instance)
        self.release()

    def make_room(self) -> bool:
        """Drop the newest caller of the busiest client for one of another client, if it may."""
        waiter = Waiter(asyncio.get_running_loop().create_future(), 1, None, 0, None)
        waiter.group = queue_turn()
        return self._displace(waiter)

    def _grant(self) -> None:
        while self._free and self.waiting:
            # The next caller needs its own instance if it belongs to a sequence.
            callers = chain((self.waiting[0],), self.waiting)
            waiter = next((each for each in callers if self._is_free(each.want)), None)
            if waiter is None:
                return
            instance = self._free[-1] if waiter.want == _ANY else waiter.want
            if isinstance(instance, int):
                self._free.remove(instance)
                self._serve(waiter, instance)

    def _is_free(self, required: object) -> bool:
        return required == _ANY or required in self._free

    def _serve(self, waiter: Waiter, found: object = None) -> None:
        if waiter.future.done() and isinstance(found, int):  # its caller has left
            self._free.append(found)
        super()._serve(waiter, found)

    def _return(self, waiter: Waiter) -> None:
        self.push(waiter.future.result())


_ANY = -1


def instance_of(sequence: CallSequence, instances: int) -> int:
    """Return the instance that runs a sequence, a hash of its id."""
    return zlib.crc32(repr(sequence.id).encode()) % instances
