"""Service: the one type between a frontend and a wire.

The router, every policy, every backend and every upstream is a Service; policies wrap services.
Here is also the clock that every call runs against, `Alarm`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from time import monotonic
from typing import Any, Protocol, Self, TypeVar, cast

from gateway.ir.calls import Call
from gateway.ir.errors import Unsupported
from gateway.wheel import Wheel

R = TypeVar("R")


class Service(Protocol):
    """Answers calls."""

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*, or raise a `GatewayError`."""
        ...


Layer = Callable[[Service], Service]

Answering = Coroutine[Any, Any, R]
"""What calling a service returns; what goes wrong is raised when it is awaited, not before.

A layer without anything to do after a call returns that of the service within. One of its own
would only await it, at the cost of a frame on every step of the way.
"""


def stack(layers: Iterable[Layer], service: Service) -> Service:
    """Wrap *service* in *layers*; the first layer sees the call first."""
    for layer in reversed(list(layers)):
        service = layer(service)
    return service


class Alarm:
    """Ends the block it guards with TimeoutError after *delay_s*, as `asyncio.timeout` does.

    A plain context manager with one timer, at a third of that cost: every call needs several.

    Args:
        delay_s: When.
        wheel: Rings it, some milliseconds late, at a fraction of a timer's cost.
    """

    __slots__ = ("_before", "_delay_s", "_step", "_task", "_timer", "_wheel", "rang")

    def __init__(self, delay_s: float, wheel: Wheel | None = None) -> None:
        self._delay_s = delay_s
        self._wheel = wheel
        self.rang = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an alarm needs a task to wake")
        self._task = task
        self._before = task.cancelling()
        if self._wheel is not None:
            self._step = self._wheel.enter(self, monotonic() + self._delay_s)
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._delay_s), self.ring)
        return self

    def ring(self) -> None:
        """Wake the task: the time is over."""
        self.rang = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        if self._wheel is not None:
            self._wheel.leave(self, self._step)
        else:
            self._timer.cancel()
        # Somebody else may have cancelled the task as well: then it is not ours to turn.
        if self.rang and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError


class Dispatch:
    """A Service that picks a method by the exact type of the call.

    For leaves: in-process backends and the answers about the server itself.
    """

    def __init__(self, name: str, methods: Mapping[type, Callable[[Any], Answering[Any]]]) -> None:
        self._name = name
        self._methods = dict(methods)

    def __call__(self, call: Call[R], /) -> Answering[R]:
        """Answer *call* by its method.

        Raises:
            Unsupported: There is none for this type of call.
        """
        method = self._methods.get(type(call))
        # The table pairs each call type with a method of its answer: the one cast there is.
        return cast("Answering[R]", self._unsupported(call) if method is None else method(call))

    async def _unsupported(self, call: Call[Any]) -> Any:
        raise Unsupported(f"{self._name} does not support {type(call).__name__}", model=call.model)
