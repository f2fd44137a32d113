"""Homes: the endpoints of an upstream, and which models live where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gateway.ir.calls import ServerLiveRequest
from gateway.ir.errors import Unavailable
from gateway.residency.controller import ResidencyController
from gateway.residency.plan import ModelPhase, Resident
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.sequence_affinity import rendezvous_order

_MAX_NAMES: Final = 4096


@dataclass(slots=True, eq=False)
class Home:
    """An endpoint with what keeps its models."""

    endpoint: Endpoint
    controller: ResidencyController


@dataclass(slots=True, eq=False)
class HeldModel:
    """A reference to a model at one endpoint.

    Attributes:
        home: The endpoint.
        model: The model.
        used_at: When a call of its sequence began last.
    """

    home: Home
    model: Resident
    used_at: float = 0.0

    def release(self) -> None:
        """Give it back."""
        self.home.controller.release(self.model)


class Homes:
    """The endpoints with their controllers. A model lives at those that its hash comes first at.

    Args:
        endpoints: The endpoints.
        make: Returns the controller of an endpoint, which keeps some models loaded.
        copies: Returns how many endpoints hold a model.
        pinned: Models that are loaded from the start.
        clock: Monotonic seconds.

    Attributes:
        first: The homes of models that live at one of several endpoints, while `ranked_of` holds.
        ranked_of: The endpoints that models were assigned to last.
        only: The home of all models, if there is never another endpoint.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        make: Callable[[Endpoint, tuple[str, ...]], ResidencyController],
        copies: Callable[[str], int],
        *,
        pinned: Iterable[str],
        clock: Callable[[], float],
    ) -> None:
        self._endpoints = endpoints
        self._make = make
        self._copies = copies
        self._pinned = tuple(pinned)
        self._clock = clock
        self._homes: dict[Endpoint, Home] = {}
        self._is_started = False
        self._ranked: dict[str, tuple[Endpoint, ...]] = {}
        self.ranked_of: tuple[Endpoint, ...] = ()
        self.first: dict[str, Home] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.only: Home | None = None
        if endpoints.is_fixed and len(endpoints.endpoints) == 1:
            self.only = self.at(endpoints.endpoints[0])

    def start(self) -> None:
        """Begin to read the indexes, and load the pinned models."""
        for home in self.all():
            home.controller.start()
        self._is_started = True
        for endpoint in self._endpoints.endpoints:
            self.at(endpoint)

    async def close(self) -> None:
        """Stop; loads that run go on at their servers."""
        await asyncio.gather(*(home.controller.close() for home in self.all()))

    @property
    def callers(self) -> int:
        """How many calls wait for models."""
        return sum(home.controller.plan.callers for home in self._homes.values())

    def all(self) -> tuple[Home, ...]:
        """Return the endpoints with their controllers."""
        return tuple(self._homes.values())

    def at(self, endpoint: Endpoint) -> Home:
        """Return an endpoint with its controller, which is made when it is first needed."""
        home = self._homes.get(endpoint)
        if home is None:
            endpoint.probe_call = ServerLiveRequest
            pinned = tuple(each for each in self._pinned if self._lives_at(each, endpoint))
            home = self._homes[endpoint] = Home(endpoint, self._make(endpoint, pinned))
            if self._is_started:
                home.controller.start()
        return home

    def _lives_at(self, name: str, endpoint: Endpoint) -> bool:
        return endpoint in self._order(name)[: self._copies(name)]

    def of(self, name: str, tried: Iterable[Endpoint] = ()) -> list[Home]:
        """Return the endpoints where a model lives; of those available, the first by its hash.

        Raises:
            Unavailable: All endpoints are drained, or there is none.
        """
        endpoints = self._endpoints.endpoints
        if len(endpoints) == 1:
            return [self.at(endpoints[0])]
        ranked = self._order(name)
        available = set(self.available(name, tried))
        chosen = [each for each in ranked if each in available][: self._copies(name)]
        if not chosen:
            raise Unavailable(f"upstream {self._endpoints.name!r} has no endpoint for calls")
        homes = [self.at(each) for each in chosen]
        if self._copies(name) == 1 and chosen[0] is ranked[0] and name in self._ranked:
            self.first[name] = homes[0]
        return homes

    def _order(self, name: str) -> tuple[Endpoint, ...]:
        """Return the endpoints in the order of their hashes with a name."""
        endpoints = self._endpoints.endpoints
        if endpoints is not self.ranked_of:
            self._forget_removed(endpoints)
        ranked = self._ranked.get(name)
        if ranked is None:
            order = rendezvous_order(name, [each.name for each in endpoints])
            by_name = {each.name: each for each in endpoints}
            ranked = tuple(by_name[each] for each in order)
            if len(self._ranked) < _MAX_NAMES:
                self._ranked[name] = ranked
        return ranked

    def available(self, name: str, tried: Iterable[Endpoint]) -> list[Endpoint]:
        """Return the endpoints that a call of a model may be sent to, but those *tried*."""
        candidates = self._endpoints.candidates(self._clock(), name)
        return [each for each in candidates if each not in tried]

    def _forget_removed(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._ranked, self.ranked_of = {}, endpoints
        self.first.clear()
        for endpoint in self._homes.keys() - set(endpoints):
            home = self._homes.pop(endpoint)
            task = asyncio.ensure_future(home.controller.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def phase_at(home: Home, name: str) -> ModelPhase:
    """Return what a model is doing at an endpoint."""
    found = home.controller.plan.models.get(name)
    return ModelPhase.ABSENT if found is None else found.phase
