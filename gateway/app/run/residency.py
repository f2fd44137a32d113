"""The parts of residency in the processes of a gateway: what operators pin, unpin and evict.

Each serving process has its own plan of what servers hold, so each of them is told.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

import structlog

from gateway.api.extension import LeadingPart, Processes, ServingPart
from gateway.concurrency.background import start_background
from gateway.ir.errors import GatewayError
from gateway.settings.config_view import ConfigView
from gateway.telemetry.error_texts import error_text

log = structlog.get_logger(__name__)

RESIDENCY: Final = "residency"
"""The name of the parts."""

Document = Mapping[str, Any]


class HeldModels(Protocol):
    """The models of an upstream, or of the gateway."""

    def has(self, name: str, /) -> bool:
        """Return whether a server has the model."""

    def pin(self, name: str, /) -> None:
        """Load a model, and keep it."""

    def unpin(self, name: str, /) -> None:
        """Let a model be unloaded for others again."""

    async def evict(self, name: str, /) -> None:
        """Unload a model, when its running calls have ended."""

    async def document(self) -> list[dict[str, Any]]:
        """Return what each endpoint holds."""


class ServingResidency(ServingPart):
    """Does in one serving process what operators request.

    Attributes:
        held: What has residency in the configuration in force, by upstream.
    """

    def __init__(self) -> None:
        self.held: Mapping[str, HeldModels] = {}
        self._evictions: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Do nothing: the upstreams start by themselves."""

    def change(self, _config: ConfigView, /) -> None:
        """Do nothing: `held` follows a reload."""

    async def stop(self) -> None:
        """End evictions that wait for running calls."""
        for task in tuple(self._evictions):
            task.cancel()
        await asyncio.gather(*self._evictions, return_exceptions=True)

    def exchange(self, document: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Pin, unpin or evict a model, and return the upstreams that have it."""
        action, name = document["action"], document["name"]
        found = {upstream: held for upstream, held in self.held.items() if held.has(name)}
        for held in found.values():
            if action == "pin":
                held.pin(name)
            elif action == "unpin":
                held.unpin(name)
            else:
                task = start_background(_evict(held, name), f"eviction of {name}")
                self._evictions.add(task)
                task.add_done_callback(self._evictions.discard)
        return {"upstreams": sorted(found)}


async def _evict(held: HeldModels, name: str) -> None:
    held.unpin(name)
    try:
        await held.evict(name)
    except GatewayError as error:
        log.warning("model not evicted", model=name, reason=error_text(error))


class LeadingResidency(LeadingPart):
    """Passes on what operators request to all serving processes.

    Args:
        processes: All processes of the gateway.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def request(self, action: str, name: str) -> Document:
        """Pin, unpin or evict a model.

        Raises:
            LookupError: No server with `residency` has the model.
        """
        document = {"action": action, "name": name}
        reports = await self._processes.exchange(RESIDENCY, document)
        replies = [report for report in reports.values() if report is not None]
        found = sorted({each for reply in replies for each in reply.get("upstreams", ())})
        if not found:
            raise LookupError(f"no upstream with 'residency' has model {name!r}")
        changes = {"model": name, "action": action, "upstreams": found}
        return {"ok": True, "changes": changes}
