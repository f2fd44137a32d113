"""Service: the one type between a frontend and a wire.

The router, every policy, every backend and every upstream is a Service; policies wrap services.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast

from gateway.ir.calls import Call
from gateway.ir.errors import Unsupported

R = TypeVar("R")


class Service(Protocol):
    """Answers calls."""

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call*, or raise a `GatewayError`."""
        ...


Layer = Callable[[Service], Service]


def stack(layers: Iterable[Layer], service: Service) -> Service:
    """Wrap *service* in *layers*; the first layer sees the call first."""
    for layer in reversed(list(layers)):
        service = layer(service)
    return service


class Dispatch:
    """A Service that picks a method by the exact type of the call.

    For leaves: in-process backends and the answers about the server itself.
    """

    def __init__(self, name: str, methods: Mapping[type, Callable[[Any], Awaitable[Any]]]) -> None:
        self._name = name
        self._methods = dict(methods)

    async def __call__(self, call: Call[R], /) -> R:
        """Answer *call* by its method.

        Raises:
            Unsupported: There is none for this type of call.
        """
        method = self._methods.get(type(call))
        if method is None:
            raise Unsupported(
                f"{self._name} does not support {type(call).__name__}", model=call.model
            )
        # The table pairs each call type with a method of its answer: the one cast there is.
        return cast("R", await method(call))
