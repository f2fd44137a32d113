"""RunningGateway: what the routes of the admin port show and change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Protocol, cast

from prometheus_client.core import Metric

from gateway.admin.event_hub import EventHub
from gateway.api.admin import AdminRequest, AdminRoute, Json
from gateway.api.start_error import StartError
from gateway.app.build.parts import LeadingParts
from gateway.app.build.route_rules import ruled_routes, target_name
from gateway.app.run.reload import Reloader
from gateway.app.run.runtime_changes import RuntimeChanges, differences, runtime_document
from gateway.config.load import LoadedConfig
from gateway.config.models import Config
from gateway.telemetry.rates import TrafficWindow

Document = dict[str, Any]
Change = Callable[[RuntimeChanges, Config], RuntimeChanges]


class AdminProcess(Protocol):
    """The process that has the admin port: the only one, or the supervisor of workers."""

    async def status(self) -> Document:
        """Return the status."""

    async def ready(self) -> bool:
        """Return whether the gateway accepts inference requests."""

    async def page(self, accept: str, /) -> tuple[bytes, str]:
        """Return the metrics page and its content type, by the `accept` of the request."""

    async def families(self) -> Iterable[Metric]:
        """Return the metrics."""


class RunningGateway:
    """The gateway of an admin port, as its routes see it; see `api.admin.AdminGateway`.

    Args:
        process: Has the status and the metrics.
        reloader: Knows the configuration in force; None for probes, metrics and status alone.
        leading: The parts of extensions in this process.
        clock: Monotonic seconds.

    Attributes:
        process: Has the status and the metrics.
        events: Tells listeners what changes.
    """

    def __init__(
        self,
        process: AdminProcess,
        reloader: Reloader | None = None,
        leading: LeadingParts | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.process = process
        self.events = EventHub(self._documents)
        self._reloader = reloader
        self._leading = leading
        self._window = TrafficWindow(clock)
        self._reading = asyncio.Lock()

    @property
    def is_complete(self) -> bool:
        """Whether all routes are served, not only probes, metrics and status."""
        return self._reloader is not None

    @property
    def reloader(self) -> Reloader:
        """What knows the configuration in force."""
        assert self._reloader is not None  # noqa: S101  # else the router has no route that asks
        return self._reloader

    @property
    def routes(self) -> tuple[AdminRoute, ...]:
        """The routes of extensions."""
        return () if self._leading is None else self._leading.routes

    def config(self) -> LoadedConfig:
        """Return the configuration in force, with the changes that were made at run time."""
        return self.reloader.runtime_changes.apply(self.reloader.loaded)

    def runtime(self) -> Document:
        """Return the changes that were made at run time, and hold against the file."""
        reloader = self.reloader
        return runtime_document(differences(reloader.runtime_changes, reloader.loaded.config))

    async def plain_status(self) -> Document:
        """Return the status of `/status`, which commands and probes read."""
        document = await self.process.status()
        if not self.is_complete:
            return document
        weights = self._weights()
        routes = [
            {**each, "weights": weights.get(each["name"], each["weights"])}
            for each in document["routes"]
        ]
        return {**document, "routes": routes, "runtime": self.runtime()}

    async def status(self) -> Document:
        """Return the status with the traffic of the last minute and the weights of targets."""
        status = await self.process.status()
        async with self._reading:
            await self._window.update(await self.process.families())
        return {
            **status,
            "traffic": await self._window.document(),
            "weights": self._weights(),
            "runtime": self.runtime(),
        }

    def _weights(self) -> dict[str, dict[str, float]]:
        """Return the weights in force, with what extensions move, by route and target."""
        config = self.config()
        moved = {} if self._leading is None else self._leading.moved(config)
        return weights_in_force(config.config, moved)

    async def change(self, key: str, values: Mapping[str, Any], /) -> Json:
        """Change an extension at run time; return the response."""
        return await self.apply(lambda changes, _config: changes.with_part(key, values))

    async def apply(self, change: Change) -> Json:
        """Put other changes in force; return the response."""
        try:
            await self.reloader.change(change)
        except LookupError as error:
            return Json({"error": str(error.args[0])}, 404)
        except StartError as error:
            return Json({"error": str(error)}, 422)
        except ValueError as error:
            return Json({"error": str(error)}, 400)
        return Json({"ok": True, "changes": self.reloader.runtime_changes.document()})

    async def _documents(self) -> Mapping[str, Any]:
        """Return what listeners are told, by the name of the event."""
        status = await self.status()
        events = {} if self._leading is None else self._leading.events(self.config())
        shown = {key: status[key] for key in ("ready", "reason", "traffic", "weights")}
        return {"status": shown, **events}


def running(request: AdminRequest) -> RunningGateway:
    """Return the gateway of a request, which routes of the gateway itself know as what it is."""
    return cast("RunningGateway", request.gateway)


def weights_in_force(
    config: Config, moved: Mapping[str, tuple[str, float]]
) -> dict[str, dict[str, float]]:
    """Return the weight of each target by route; percentages while calls of it are moved.

    Args:
        config: The configuration in force.
        moved: The target that replaces the others, and its percentage, by route.
    """
    found: dict[str, dict[str, float]] = {
        ruled.name: {target_name(target): target.weight for target in ruled.config.targets}
        for ruled in ruled_routes(config)
        if ruled.config is not None
    }
    for route, (target, percent) in moved.items():
        if percent:
            weights = found[route]
            share = (100 - percent) / sum(weights.values())  # the target has the weight 0
            found[route] = {
                name: percent if name == target else weight * share
                for name, weight in weights.items()
            }
    return found
