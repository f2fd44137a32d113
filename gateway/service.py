"""Service: the one type between a frontend and a wire.

The router, every policy, every backend and every upstream is a Service; policies wrap services.
Here is also the clock that every call runs against, `Alarm`.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

from gateway.concurrency.timer_wheel import TimerWheel
from gateway.ir.calls import Call
from gateway.ir.errors import Unsupported

R = TypeVar("R")


class Service(Protocol):
    """Answers calls."""

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*, or raise a `GatewayError`."""
        ...


ReplyCoroutine = Coroutine[Any, Any, R]
"""What calling a service returns; what goes wrong is raised when it is awaited, not before.

A layer without anything to do after a call returns that of the service within. One of its own
would only await it, at the cost of a frame on every step of the way.
"""


_NO_TASK: Final = "an alarm needs a task to wake"


class SelectiveLayer(abc.ABC):
    """A layer for calls of a few types; all others pass it by, and need not come to it at all.

    Args:
        inner: Answers.

    Attributes:
        takes: The types, exactly.
    """

    handles: ClassVar[frozenset[type]]

    def __init__(self, inner: Service) -> None:
        self._inner = inner

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call*."""
        return self.handle(call) if type(call) in self.handles else self._inner(call)

    @abc.abstractmethod
    def handle(self, call: Any, /) -> ReplyCoroutine[Any]:
        """Answer a call of a type that it takes."""

    def resolve_for(self, kind: type) -> Service:
        """Return the first service that has something to do with calls of *kind*."""
        return self if kind in self.handles else resolve_for(self._inner, kind)


def resolve_for(service: Service, kind: type) -> Service:
    """Return where calls of *kind* end up that are given to *service*: past all that let them by.

    For a layer through which every inference goes, to be asked once, when it is made.
    """
    return service.resolve_for(kind) if isinstance(service, SelectiveLayer) else service


class Timeout:
    """Ends the block it guards with TimeoutError after *delay_s*, as `asyncio.timeout` does.

    A plain context manager with one timer, at a third of that cost: every call needs several.

    Args:
        delay_s: When.
    """

    __slots__ = ("_before", "_delay_s", "_task", "_timer", "expired")

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self.expired = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError(_NO_TASK)
        self._task = task
        self._before = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._delay_s), self.expire)
        return self

    def expire(self) -> None:
        """Wake the task: the time is over."""
        self.expired = True
        self._task.cancel()

    def finish(self, error: BaseException | None) -> bool:
        """Ring no more; tell whether it was the alarm that ended the block with *error*."""
        self._timer.cancel()
        return self.expired and self._ended(error)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, *_details: object
    ) -> None:
        if self.finish(error):
            raise TimeoutError

    def _ended(self, error: BaseException | None) -> bool:
        # Somebody else may have cancelled the task as well: then it is not ours to turn.
        alone = self._task.uncancel() <= self._before
        return (alone and type(error) is asyncio.CancelledError) or isinstance(error, TimeoutError)


class WheelTimeout(Timeout):
    """An alarm set as it is made, for a time on a wheel: what nearly every call needs once.

    It rings some milliseconds late, at a fraction of a timer's cost. Whoever makes it says at the
    end, however that comes, that it is `over`.

    Args:
        wheel: Rings it.
        when: On the wheel's clock.
    """

    __slots__ = ("_step", "_wheel")

    on_timeout = Timeout.expire

    def __init__(self, wheel: TimerWheel, when: float) -> None:
        # To look for the loop is a system call, so the wheel's is tried first.
        task = asyncio.current_task(wheel.loop) or asyncio.current_task()
        if task is None:
            raise RuntimeError(_NO_TASK)
        self._task = task
        self._before = task.cancelling()
        self.expired = False
        self._wheel = wheel
        self._step = wheel.schedule(self, when)

    def finish(self, error: BaseException | None) -> bool:
        """Ring no more; tell whether it was the alarm that ended the block with *error*."""
        self._wheel.cancel(self, self._step)
        return self.expired and self._ended(error)


class NoTimeout:
    """Stands where no time is set: it never rings."""

    def finish(self, _error: BaseException | None) -> bool:
        """Return False: it was not the alarm that ended the block."""
        return False


NO_TIMEOUT: Final = NoTimeout()


class Dispatch:
    """A Service that picks a method by the exact type of the call.

    For leaves: in-process backends and the answers about the server itself.
    """

    def __init__(
        self, name: str, methods: Mapping[type, Callable[[Any], ReplyCoroutine[Any]]]
    ) -> None:
        self._name = name
        self._methods = dict(methods)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call* by its method.

        Raises:
            Unsupported: There is none for this type of call.
        """
        # The table pairs each call type with a method of its answer.
        method = self._methods.get(type(call))
        return self._unsupported(call) if method is None else method(call)

    async def _unsupported(self, call: Call[Any]) -> Any:
        raise Unsupported(f"{self._name} does not support {type(call).__name__}", model=call.model)
