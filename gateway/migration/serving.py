"""MigrationServing: the migration kit in one serving process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.extension import ServingPart, ServingProcess, TrafficShift
from gateway.api.tap import CountCall, RouteTap, Tap
from gateway.config.load import LoadedConfig
from gateway.migration.callers.inventory import InventoryKeeper
from gateway.migration.cutover.shifts import ServingShifts
from gateway.migration.mirror.client import ShadowClient
from gateway.migration.mirror.shadow_evidence import NAME, ShadowEvidence, shadow_channels
from gateway.settings.config_view import ConfigView
from gateway.shadow.keeper import keeper_of


class MigrationServing(ServingPart):
    """Records and mirrors calls, moves them by cut-overs, and counts who calls what.

    Args:
        loaded: The configuration.
        process: The serving process.

    Attributes:
        evidence: What the shadow process finds, if no leading process keeps it; else None.
        shifts_here: The cut-overs in this process.
    """

    def __init__(self, loaded: LoadedConfig, process: ServingProcess) -> None:
        setup = process.setup
        weights = {} if setup is None else setup.document.get("weights", {})
        self.shifts_here = ServingShifts(weights, process.notify)
        self._inventory = InventoryKeeper.of(loaded, process.number)
        self.evidence: ShadowEvidence | None = None
        self._shadow: ShadowClient | None = None
        if not shadow_channels(loaded):
            return
        sockets = {} if setup is None else setup.sockets
        if not sockets:
            keeper = keeper_of(process)
            self.evidence = ShadowEvidence(loaded, keeper)
            process.metrics.registry.register(self.evidence)
            sockets = keeper.setup(NAME, process.number).sockets
        self._shadow = ShadowClient(loaded, sockets, process.metrics, process.new_path)

    @property
    def taps(self) -> Sequence[Tap]:
        """What records calls."""
        tap = None if self._shadow is None else self._shadow.tap
        return () if tap is None else (tap,)

    @property
    def on_call(self) -> CountCall | None:
        """What counts who calls what; None if `stock` is off."""
        return None if self._inventory is None else self._inventory.stock.count

    def route_taps(self) -> Mapping[str, RouteTap]:
        """Return the mirrors of the migrations, by route."""
        return {} if self._shadow is None else self._shadow.mirrors

    def shifts(self, config: ConfigView, /) -> Mapping[str, TrafficShift]:
        """Return the cut-over of each route that has one."""
        return self.shifts_here.of_routes(LoadedConfig.of(config).config)

    async def start(self) -> None:
        """Begin to send and to count."""
        if self._shadow is not None:
            self._shadow.start()
        if self._inventory is not None:
            self._inventory.start()

    def change(self, config: ConfigView, /) -> None:
        """Follow another configuration with the same channels."""
        if self._shadow is not None:
            self._shadow.change(LoadedConfig.of(config))
        if self.evidence is not None:
            self.evidence.change(LoadedConfig.of(config))

    def exchange(self, document: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Put weights of cut-overs in force, and return the report of each."""
        return self.shifts_here.exchange(document["weights"])

    async def stop(self) -> None:
        """Wait until all calls are written or compared; idempotent."""
        if self._shadow is not None:
            await self._shadow.close()
        if self._inventory is not None:
            await self._inventory.close()
