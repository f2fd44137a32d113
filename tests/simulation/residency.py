"""A model server in virtual time that loads and unloads, and callers of its models."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.ir.calls import LoadParameters
from gateway.ir.errors import GatewayError, NotFound, UpstreamError
from gateway.residency.controller import ResidencyController, Turn
from gateway.residency.plan import ModelPhase, ResidencyRules
from tests.simulation.virtual_time import elapse, now


@dataclass
class LoadingServer:
    """A server with a repository, which checks what its users do.

    Attributes:
        names: The models of its repository.
        load_s: How long a load takes.
        broken: Models that cannot be loaded.
        loads: The loads, in order.
        most: The largest room of models that it held.
        faults: What a user did that it must not do.
    """

    names: Sequence[str]
    load_s: float = 0.5
    broken: frozenset[str] = frozenset()
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    most: int = 0
    phases: dict[str, ModelPhase] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    costs: Mapping[str, int] = field(default_factory=dict)

    async def index(self) -> Mapping[str, ModelPhase]:
        await elapse(0.001)
        return {name: self.phases.get(name, ModelPhase.ABSENT) for name in self.names}

    async def load(self, name: str, _parameters: LoadParameters, /) -> None:
        self.loads.append(name)
        if self.phases.get(name, ModelPhase.ABSENT) is not ModelPhase.ABSENT:
            self.faults.append(f"load of {name}, which is {self.phases[name].value}")
        self.phases[name] = ModelPhase.LOADING
        self.most = max(self.most, self.held())
        await elapse(self.load_s)
        if name in self.broken:
            self.phases[name] = ModelPhase.ABSENT
            raise UpstreamError(f"model {name} is broken")
        self.phases[name] = ModelPhase.LOADED

    async def unload(self, name: str, /) -> None:
        self.unloads.append(name)
        if self.running.get(name):
            self.faults.append(f"unload of {name}, which is in use")
        await elapse(0.001)
        self.phases[name] = ModelPhase.UNLOADING
        asyncio.get_running_loop().call_later(0.05, self._end_unload, name)

    def _end_unload(self, name: str) -> None:
        self.phases[name] = ModelPhase.ABSENT

    async def infer(self, name: str, seconds: float) -> None:
        """Run one inference.

        Raises:
            NotFound: The model is not loaded.
        """
        if self.phases.get(name) is not ModelPhase.LOADED:
            raise NotFound(f"model {name} is not loaded")
        self.running[name] = self.running.get(name, 0) + 1
        try:
            await elapse(seconds)
        finally:
            self.running[name] -= 1

    def held(self) -> int:
        """Return the room of the models that it holds."""
        return sum(
            self.costs.get(name, 1)
            for name, phase in self.phases.items()
            if phase is not ModelPhase.ABSENT
        )


class Uncounted:
    """Counts nothing."""

    def loaded(self, _model: str, _outcome: str, _seconds: float, /) -> None: ...

    def unloaded(self, _model: str, _reason: str, /) -> None: ...

    def waited(self, _seconds: float, /) -> None: ...


def rules(room: int, *, costs: Mapping[str, int] | None = None, **changes: Any) -> ResidencyRules:
    """Return what a plan decides by; for the *changes* see `ResidencyRules`."""
    return ResidencyRules(room=room, cost=lambda name: (costs or {}).get(name, 1), **changes)


def controller(
    server: LoadingServer,
    room: int = 4,
    *,
    pinned: tuple[str, ...] = (),
    turn: Turn | None = None,
    **changes: Any,
) -> ResidencyController:
    """Return a controller of the server in virtual time; for the *changes* see `rules`."""
    own = rules(room, **{"wait_s": 300.0, **changes})
    return ResidencyController(
        "server", server, own, Uncounted(), pinned=pinned, turn=turn, clock=now
    )


@dataclass
class Callers:
    """Callers that use the models of a server through a controller.

    Attributes:
        calls: The names of the models called, in order.
        errors: The errors of calls.
        longest_s: The longest wait of a call.
    """

    server: LoadingServer
    controller: ResidencyController
    calls: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    longest_s: float = 0.0

    async def call(self, name: str, seconds: float = 0.01) -> None:
        """Make one call, as the layer does."""
        self.calls.append(name)
        began = now()
        try:
            for _attempt in range(3):
                model = await self.controller.hold(name)
                self.longest_s = max(self.longest_s, now() - began)
                try:
                    await self.server.infer(name, seconds)
                except NotFound:
                    if not await self.controller.is_gone(model):
                        raise
                else:
                    return
                finally:
                    self.controller.release(model)
            self.errors.append(f"{name}: gone three times")
        except GatewayError as error:
            self.errors.append(f"{name}: {error.message}")


def zipf(names: Sequence[str], draw: random.Random, exponent: float = 1.0) -> str:
    """Return one of the names; the first are the most popular."""
    weights = [1 / (rank + 1) ** exponent for rank in range(len(names))]
    return draw.choices(names, weights)[0]


def lru_loads(calls: Sequence[str], room: int) -> int:
    """Return how many loads a cache of models needs that always evicts the least recently used."""
    held: OrderedDict[str, None] = OrderedDict()
    loads = 0
    for name in calls:
        if name not in held:
            loads += 1
            if len(held) >= room:
                held.popitem(last=False)
        held[name] = None
        held.move_to_end(name)
    return loads
