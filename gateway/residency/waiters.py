"""Waiters: the calls that wait for models of one server."""

from __future__ import annotations

import asyncio

from gateway.ir.errors import LoadFailed
from gateway.residency.plan import Actions


class LoadWaiter:
    """A call that waits for a model.

    Attributes:
        future: Ends the wait.
        is_counted: Whether the plan counts it among the callers.
        has_reference: Whether the plan has given it a reference.
    """

    __slots__ = ("future", "has_reference", "is_counted")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.is_counted = True
        self.has_reference = False


class Waiters:
    """The calls that wait, by the name of their model."""

    def __init__(self) -> None:
        self._waiters: dict[str, list[LoadWaiter]] = {}

    def join(self, name: str) -> LoadWaiter:
        """Return a further call that waits for a model."""
        waiter = LoadWaiter(asyncio.get_running_loop().create_future())
        self._waiters.setdefault(name, []).append(waiter)
        return waiter

    def leave(self, name: str, waiter: LoadWaiter) -> None:
        """Let a call wait no longer."""
        self._waiters[name].remove(waiter)

    def grant(self, actions: Actions) -> None:
        """End the waits of the calls that have references now."""
        for model, _callers in actions.grants:
            for waiter in self._waiters.pop(model.name, ()):
                waiter.is_counted, waiter.has_reference = False, True
                if not waiter.future.done():
                    waiter.future.set_result(None)

    def fail(self, name: str, reason: str) -> None:
        """End the waits for a model that cannot be loaded."""
        for waiter in self._waiters.pop(name, ()):
            waiter.is_counted = False
            if not waiter.future.done():
                waiter.future.set_exception(LoadFailed(reason))
