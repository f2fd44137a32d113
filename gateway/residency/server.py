"""EndpointServer: an endpoint of an upstream as a `ModelServer`."""

import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from gateway.ir.calls import (
    LoadParameters,
    ModelLoadRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.residency.plan import ModelPhase
from gateway.routing.balancing.endpoint import Endpoint

_TIMEOUT_S: Final = 5.0
"""Longest time of a question for the index."""
_UNLOAD_S: Final = 30.0

_PHASES: Final[Mapping[ModelState, ModelPhase]] = MappingProxyType(
    {
        ModelState.READY: ModelPhase.LOADED,
        ModelState.LOADING: ModelPhase.LOADING,
        ModelState.UNLOADING: ModelPhase.UNLOADING,
    }
)
_ORDER: Final = (ModelPhase.LOADED, ModelPhase.LOADING, ModelPhase.UNLOADING)


def phases(entries: Iterable[RepositoryEntry]) -> dict[str, ModelPhase]:
    """Return what the models of an index are doing; of versions, what needs most."""
    found: dict[str, ModelPhase] = {}
    for entry in entries:
        phase = _PHASES.get(entry.state, ModelPhase.ABSENT)
        other = found.get(entry.name, ModelPhase.ABSENT)
        both = {phase, other}
        found[entry.name] = next((each for each in _ORDER if each in both), ModelPhase.ABSENT)
    return found


class EndpointServer:
    """Loads, unloads and lists the models of one endpoint.

    Args:
        endpoint: Gets the calls, past balancing and limits.
        load_timeout_s: Longest time of a load.
        clock: Monotonic seconds, that of deadlines.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        load_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._load_timeout_s = load_timeout_s
        self._clock = clock

    def _context(self, timeout_s: float) -> Context:
        return Context(deadline=self._clock() + timeout_s)

    async def index(self) -> Mapping[str, ModelPhase]:
        """Return the models of the repository, and what they are doing."""
        call = RepositoryIndexRequest(context=self._context(_TIMEOUT_S))
        entries = await self._endpoint.service(call)
        return phases(entries)

    async def load(self, name: str, parameters: LoadParameters, /) -> None:
        """Load a model; return when it is loaded."""
        context = self._context(self._load_timeout_s)
        call = ModelLoadRequest(model=ModelRef(name), parameters=parameters, context=context)
        await self._endpoint.service(call)

    async def unload(self, name: str, /) -> None:
        """Begin to unload a model."""
        call = ModelUnloadRequest(model=ModelRef(name), context=self._context(_UNLOAD_S))
        await self._endpoint.service(call)
