"""LocalModels: the models that run in the gateway, as one server with little room."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from gateway.api.layer import Entries, LayerContext
from gateway.ir.calls import Call, LoadParameters, ModelLoadRequest, ModelUnloadRequest
from gateway.ir.context import ModelRef
from gateway.ir.metadata import RepositoryEntry
from gateway.policies.limits.sequences import SEQUENCE_IDLE
from gateway.residency.controller import ResidencyController
from gateway.residency.layer import Residency
from gateway.residency.meters import EndpointMeters
from gateway.residency.plan import ModelPhase, UnloadReason
from gateway.residency.server import phases
from gateway.residency.settings import LOCAL_NAME, LOCAL_RESIDENCY, ResidencyConfig
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")


class LocalModel(Protocol):
    """A model that loads and unloads itself."""

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Handle a load or unload."""

    def entries(self) -> tuple[RepositoryEntry, ...]:
        """Return its versions as entries of an index."""


class LocalServer:
    """The models of the gateway as a `ModelServer`.

    Attributes:
        models: The models, by name.
    """

    def __init__(self) -> None:
        self.models: Mapping[str, LocalModel] = {}

    async def index(self) -> Mapping[str, ModelPhase]:
        """Return the models, and what they are doing."""
        found = dict.fromkeys(self.models, ModelPhase.ABSENT)
        for model in self.models.values():
            found |= phases(model.entries())
        return found

    async def load(self, name: str, parameters: LoadParameters, /) -> None:
        """Load a model; return when it is loaded."""
        call = ModelLoadRequest(model=ModelRef(name), parameters=parameters)
        await self.models[name](call)

    async def unload(self, name: str, /) -> None:
        """Unload a model."""
        await self.models[name](ModelUnloadRequest(model=ModelRef(name)))


def local_models(at: LayerContext) -> "LocalModels":
    """Return the models of the gateway, those of before a reload if their keys are the same.

    Args:
        at: Has the keys, and publishes the metrics.

    Raises:
        LookupError: The file has no `residency`.
    """
    config, idle_s = at.setting(LOCAL_RESIDENCY), at.setting(SEQUENCE_IDLE)
    if config is None:
        raise LookupError("the models of the gateway have no 'residency'")
    return at.kept((config, idle_s), lambda: LocalModels(config, at, idle_s))


class LocalModels:
    """What keeps the models of the gateway within their room.

    Args:
        config: How much room there is.
        at: Publishes the metrics.
        sequence_idle_s: Time without a request after which a sequence holds no model.
        clock: Monotonic seconds.

    Attributes:
        name: What the gateway is called among the upstreams.
        server: Has the models of the configuration in force.
        controller: Loads and unloads them.
    """

    name = LOCAL_NAME

    def __init__(
        self,
        config: ResidencyConfig,
        at: LayerContext,
        sequence_idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server = LocalServer()
        meters = EndpointMeters(at, LOCAL_NAME, LOCAL_NAME)
        self.controller = ResidencyController(
            LOCAL_NAME,
            self.server,
            config.rules(),
            meters,
            pinned=tuple(config.pinned),
            clock=clock,
        )
        meters.watch(self.controller)
        meters.watch_waiting(at, LOCAL_NAME, self.controller.plan)
        self._sequence_idle_s = sequence_idle_s
        self._clock = clock
        self._is_started = False

    def layer(self, inner: Entries) -> Service:
        """Return the layer before one of the models."""
        endpoint = Endpoint(LOCAL_NAME, inner.questions)
        endpoints = Endpoints(
            LOCAL_NAME, [endpoint], sequence_idle_s=self._sequence_idle_s, clock=self._clock
        )

        def shared(_endpoint: Endpoint, _pinned: tuple[str, ...]) -> ResidencyController:
            return self.controller

        return Residency(inner, endpoints, shared, lambda _name: 1, clock=self._clock)

    def follow(self, models: Mapping[str, LocalModel]) -> None:
        """Have these models from now on, and begin to load those that are pinned."""
        self.server.models = models
        if self._is_started:
            self.controller.advance()
        else:
            self._is_started = True
            self.controller.start()

    def is_loadable(self, name: str) -> bool:
        """Return whether calls of a model are possible, as far as is known."""
        return self.controller.is_loadable(name)

    async def close(self) -> None:
        """Stop."""
        await self.controller.close()

    async def evict(self, name: str) -> None:
        """Unload a model, when its running calls have ended."""
        await self.controller.unload(name, UnloadReason.EVICTION)

    def pin(self, name: str) -> None:
        """Load a model, and keep it."""
        self.controller.pin(name)

    def unpin(self, name: str) -> None:
        """Let a model be unloaded for others again."""
        self.controller.unpin(name)

    def has(self, name: str) -> bool:
        """Return whether it is a model of the gateway."""
        return name in self.server.models

    async def document(self) -> list[dict[str, Any]]:
        """Return what the gateway holds, for the status."""
        return [await self.controller.document()]
