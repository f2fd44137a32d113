"""MigrationLeading: the migration kit in the leading process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog
from prometheus_client.core import Metric

from gateway.api.extension import PartSetup, Processes, Reports
from gateway.config.load import LoadedConfig
from gateway.migration.admin import MigrationPages
from gateway.migration.cutover.controller import CutoverController
from gateway.migration.cutover.shifts import ShiftWeights
from gateway.migration.events.settings import EVENTS
from gateway.migration.mirror.keeper import NAME, EvidenceDocuments, ShadowKeeper, shadow_channels
from gateway.migration.mirror.lost_samples import with_lost_samples
from gateway.migration.options import captures_of
from gateway.migration.settings import MIGRATIONS, STOCK
from gateway.settings.config_view import ConfigView

log = structlog.get_logger(__name__)


class MigrationLeading(MigrationPages):
    """Keeps the shadow process running, and decides about cut-overs.

    Args:
        loaded: The configuration.
        processes: All processes of the gateway.

    Attributes:
        keeper: Keeps the shadow process running; None if the configuration needs none.
        cutovers: Decides about the cut-overs.

    Raises:
        StartError: A directory of states cannot be used.
    """

    def __init__(self, loaded: LoadedConfig, processes: Processes) -> None:
        needs_shadow = bool(shadow_channels(loaded))
        self.cutovers = CutoverController(loaded)
        self.keeper = ShadowKeeper(loaded, processes.count) if needs_shadow else None
        self._processes = processes
        self._loaded = loaded
        evidence = None if self.keeper is None else EvidenceDocuments(self.keeper)
        has_events = bool(EVENTS.of(loaded.config))
        super().__init__(evidence, self.cutovers, has_events=has_events)

    def setup(self, number: int, /) -> PartSetup:
        """Return the weights in force, and the sockets to the shadow process."""
        sockets = {} if self.keeper is None else self.keeper.serving_ends(number)
        return PartSetup({"weights": self.cutovers.weights()}, sockets)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the cut-overs and of the shadow process."""
        yield from self.cutovers.collect()
        if self.keeper is not None:
            yield from self.keeper.collect()

    def check_reload(self, config: ConfigView, /) -> None:
        """Check that a configuration changes no cut-over that is under way.

        Raises:
            ConfigError: It does.
        """
        super().check_reload(config)
        self.cutovers.check(LoadedConfig.of(config))

    async def change(self, config: ConfigView, /) -> None:
        """Follow another configuration.

        Raises:
            StartError: A directory of states cannot be used.
        """
        loaded = LoadedConfig.of(config)
        if self.keeper is not None:
            self.keeper.change(loaded)
        await self.cutovers.change(loaded)

    def on_notice(self) -> None:
        """Decide soon: a guard has tripped in a serving process."""
        self.cutovers.wake()

    def on_process_ended(self, metrics: Any, /) -> Any:
        """Count the calls in flight of a process that died as dropped."""
        return with_lost_samples(metrics)

    async def start(self) -> None:
        """Start the shadow process.

        Raises:
            StartError: It cannot start.
        """
        _log_books(self._loaded)
        if self.keeper is not None:
            await self.keeper.start()

    def lead(self) -> None:
        """Begin to decide about the cut-overs."""
        self.cutovers.start(self, self.keeper)

    async def exchange_weights(self, weights: ShiftWeights) -> Reports:
        """Put weights in force in all serving processes, and return their reports."""
        return await self._processes.exchange(NAME, {"weights": weights})

    async def stop(self) -> None:
        """Write the states of the cut-overs, and end the shadow process; idempotent."""
        if self.keeper is not None:
            await self.keeper.stop()
        await self.cutovers.stop()


def _log_books(loaded: LoadedConfig) -> None:
    """Log what is counted and recorded, and what becomes of calls that nobody here reads."""
    if STOCK.of(loaded.config) is not None:
        log.info("callers counted", calls="inferences; forwarded and refused calls with their path")
    for options in captures_of(loaded).values():
        has_messages = options.privacy.payload == "full"
        log.info(
            "calls recorded",
            directory=str(options.directory),
            percent=options.percent,
            payload=options.privacy.payload,
            forwarded=f"{'with' if has_messages else 'without'} their messages",
        )
    for name, migration in MIGRATIONS.of(loaded.config).items():
        if migration.new is not None:
            log.info(
                "calls compared", migration=name, forwarded="only to a server of their own form"
            )
