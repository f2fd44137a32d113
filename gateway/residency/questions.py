"""ModelQuestions: questions about the models of an upstream, and loads and unloads of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar, cast

from gateway.ir.calls import (
    Call,
    ModelLoadRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import ModelNotFound
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.residency.homes import Homes, phase_at
from gateway.residency.plan import ModelPhase, UnloadReason
from gateway.routing.endpoint import Endpoint
from gateway.routing.endpoints import Endpoints
from gateway.routing.placement import PLACEMENT
from gateway.service import Service

R = TypeVar("R")

_MAX_DESCRIPTIONS: Final = 4096


class Send(Protocol):
    """Sends a call to an endpoint that holds its model."""

    async def __call__(self, call: Call[R], /) -> R:
        """Send *call*."""


class ModelQuestions:
    """Replies from what the gateway knows; what it does not know needs the model loaded.

    Args:
        inner: The upstream.
        endpoints: Its endpoints.
        homes: Where models live.
        send: Sends a call to an endpoint that holds its model.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        inner: Service,
        endpoints: Endpoints,
        homes: Homes,
        send: Send,
        clock: Callable[[], float],
    ) -> None:
        self._inner = inner
        self._endpoints = endpoints
        self._homes = homes
        self._send = send
        self._clock = clock
        self._descriptions: dict[tuple[Any, ...], Any] = {}

    async def __call__(self, call: Call[R], /) -> R:
        """Handle a question about models, a load or an unload."""
        # Each branch has its R; the type system cannot follow an isinstance that far.
        if isinstance(call, RepositoryIndexRequest):
            return cast("R", await self._index(call))
        if call.model is None:
            return await self._inner(call)
        if isinstance(call, ModelReadyRequest):
            return cast("R", await self._ready(call, call.model))
        if isinstance(call, ModelLoadRequest):
            return cast("R", await self._load(call, call.model))
        if isinstance(call, ModelUnloadRequest):
            return cast("R", await self._unload(call.model))
        return await self._describe(call)

    async def _describe(self, call: Call[R]) -> R:
        """Return metadata or the configuration of a model from memory, else by a load."""
        model = call.model
        key = (type(call), model, call.context.needs)
        found = self._descriptions.get(key)
        if found is None:
            found = cast("Any", await self._send(call))
            if len(self._descriptions) >= _MAX_DESCRIPTIONS:
                del self._descriptions[next(iter(self._descriptions))]
            self._descriptions[key] = found
        return cast("R", found)

    def forget(self, name: str) -> None:
        """Forget the descriptions of a model, which may have changed."""
        for key in [key for key in self._descriptions if key[1].name == name]:
            del self._descriptions[key]

    async def _ready(self, call: ModelReadyRequest, model: ModelRef) -> bool:
        """Return whether an inference of the model would be served."""
        home = self._homes.of(model.name)[0]
        if phase_at(home, model.name) is ModelPhase.LOADED:
            token = PLACEMENT.set(home.endpoint)
            try:
                return await self._inner(call)
            finally:
                PLACEMENT.reset(token)
        try:
            await home.controller.check_model(model.name, model)
        except ModelNotFound:
            return False
        return home.controller.is_loadable(model.name)

    async def _load(self, call: ModelLoadRequest, model: ModelRef) -> None:
        """Load a model where it lives, or load it again."""
        self.forget(model.name)
        homes = self._homes.of(model.name)
        loads = (home.controller.load(model.name, call.parameters, model) for home in homes)
        await asyncio.gather(*loads)
        self.forget(model.name)

    async def load_at(self, endpoint: Endpoint, call: ModelLoadRequest, /) -> None:
        """Load a model at one endpoint, or load it again."""
        model = call.model
        if model is not None:
            controller = self._homes.at(endpoint).controller
            await controller.load(model.name, call.parameters, model)
            self.forget(model.name)

    async def _unload(self, model: ModelRef) -> None:
        """Unload a model everywhere, when its running calls have ended."""
        self.forget(model.name)
        for home in self._homes.all():
            home.controller.unpin(model.name)
        await self.evict(model.name, UnloadReason.REQUEST)

    async def evict(self, name: str, reason: UnloadReason) -> None:
        """Unload a model at every endpoint, when its running calls have ended."""
        homes = self._homes.all()
        await asyncio.gather(*(home.controller.unload(name, reason) for home in homes))

    async def _index(self, call: RepositoryIndexRequest) -> tuple[RepositoryEntry, ...]:
        """Return the models of all endpoints; of equal ones, the entry of the readiest."""
        endpoints = self._endpoints.candidates(self._clock())
        if len(endpoints) <= 1:
            return await self._inner(call)
        results = await asyncio.gather(
            *(self._inner_at(endpoint, call) for endpoint in endpoints), return_exceptions=True
        )
        replies = [each for each in results if not isinstance(each, BaseException)]
        if not replies:
            raise next(each for each in results if isinstance(each, BaseException))
        found: dict[str, list[RepositoryEntry]] = {}
        for reply in replies:
            for name, entries in _by_model(reply):
                if name not in found or _is_ready(entries) > _is_ready(found[name]):
                    found[name] = entries
        return tuple(entry for entries in found.values() for entry in entries)

    async def _inner_at(self, endpoint: Endpoint, call: Call[R]) -> R:
        PLACEMENT.set(endpoint)  # of this task alone
        return await self._inner(call)


def _by_model(
    entries: Iterable[RepositoryEntry],
) -> Iterator[tuple[str, list[RepositoryEntry]]]:
    found: dict[str, list[RepositoryEntry]] = {}
    for entry in entries:
        found.setdefault(entry.name, []).append(entry)
    yield from found.items()


def _is_ready(entries: Iterable[RepositoryEntry]) -> bool:
    return any(entry.state is ModelState.READY for entry in entries)
