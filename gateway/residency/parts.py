"""The parts of residency in the processes of a gateway: what operators pin, unpin and evict.

Each serving process has its own plan of what servers hold, so each of them is told. One that
starts later, and an upstream that a reload builds anew, get the pins that are in force.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from gateway.api.admin import AdminRoute
from gateway.api.extension import LeadingPart, ModelPlacement, PartSetup, Processes, ServingPart
from gateway.concurrency.background import end_tasks, start_background
from gateway.ir.errors import GatewayError
from gateway.residency.admin import routes_of
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

RESIDENCY: Final = "residency"
"""The name of the parts."""

_RETRY_S: Final = 0.5

Document = Mapping[str, Any]
Pin = tuple[str, str]
"""The names of an upstream and of a model that an operator has pinned."""


class ServingResidency(ServingPart):
    """Does in one serving process what operators request.

    Args:
        setup: Has the pins in force when the process starts; None for no pins.
    """

    def __init__(self, setup: PartSetup | None = None) -> None:
        self._held: Mapping[str, ModelPlacement] = {}
        pins = () if setup is None else setup.document["pins"]
        self._pins: set[Pin] = {(upstream, name) for upstream, name in pins}
        self._missing: set[Pin] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pinning: asyncio.Task[None] | None = None

    def place(self, placements: Mapping[str, ModelPlacement], /) -> None:
        """Have these from now on, by upstream; those that are new get the pins again."""
        old, self._held = self._held, placements
        new = {name for name, each in placements.items() if each is not old.get(name)}
        self._missing |= {pin for pin in self._pins if pin[0] in new}
        if self._missing and self._pinning is None:
            self._pinning = start_background(self._pin_missing(), "pins of models", self._tasks)

    async def _pin_missing(self) -> None:
        """Pin what new upstreams do not have pinned yet; they may not know their models before."""
        while missing := [pin for pin in self._missing if pin[0] in self._held]:
            await asyncio.sleep(_RETRY_S)
            for upstream, name in missing:
                held = self._held.get(upstream)
                try:
                    if held is not None and held.has(name):
                        held.pin(name)
                        self._missing.discard((upstream, name))
                except GatewayError as error:  # no endpoint is available
                    log.debug("model not pinned yet", model=name, reason=error_text(error))
        self._pinning = None

    async def status(self) -> Mapping[str, Any]:
        """Return which models each endpoint holds, by upstream."""
        held = {name: await each.document() for name, each in self._held.items()}
        return {RESIDENCY: held}

    async def stop(self) -> None:
        """End pins that wait for an upstream, and evictions that wait for running calls."""
        await end_tasks(*self._tasks)

    def exchange(self, document: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Pin, unpin or evict a model, and return the upstreams that have it."""
        action, name = document["action"], document["name"]
        found = {upstream: held for upstream, held in self._held.items() if held.has(name)}
        pins = {(upstream, name) for upstream in found}
        self._missing -= pins
        self._pins = self._pins | pins if action == "pin" else self._pins - pins
        for held in found.values():
            if action == "pin":
                held.pin(name)
            elif action == "unpin":
                held.unpin(name)
            else:
                start_background(_evict(held, name), f"eviction of {name}", self._tasks)
        return {"upstreams": sorted(found)}


async def _evict(held: ModelPlacement, name: str) -> None:
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
        self._pins: set[Pin] = set()

    @property
    def routes(self) -> Sequence[AdminRoute]:
        """What is loaded, and its changes."""
        return routes_of(self.request)

    def setup(self, _number: int, /) -> PartSetup:
        """Return the pins in force, for a process that starts."""
        return PartSetup({"pins": sorted(self._pins)})

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
        pins = {(upstream, name) for upstream in found}
        self._pins = self._pins | pins if action == "pin" else self._pins - pins
        changes = {"model": name, "action": action, "upstreams": found}
        return {"ok": True, "changes": changes}
