"""MigrationLeading: the migration kit in the leading process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import structlog
from prometheus_client.core import Metric

from gateway.api.extension import PartSetup, Processes, Reports
from gateway.config.load import LoadedConfig
from gateway.migration import names
from gateway.migration.admin import MigrationPages
from gateway.migration.cutover.controller import CutoverController
from gateway.migration.cutover.shifts import ShiftWeights
from gateway.migration.mirror.shadow_evidence import (
    NAME,
    EvidenceDocuments,
    ShadowEvidence,
    shadow_channels,
)
from gateway.migration.options import captures_of
from gateway.migration.settings import MIGRATIONS, STOCK
from gateway.settings.config_view import ConfigView
from gateway.shadow.keeper import ShadowKeeper, keeper_of
from gateway.shadow.lost_samples import with_lost_samples

log = structlog.get_logger(__name__)

_RESULTS: Final = {
    names.MIGRATION_SAMPLED.family: (
        names.MIGRATION_SAMPLES.family,
        names.MIGRATION_SKIPPED.family,
        names.MIGRATION_DROPPED.family,
    ),
    names.CAPTURE_SAMPLED.family: (names.CAPTURE_CALLS.family, names.CAPTURE_DROPPED.family),
}


class MigrationLeading(MigrationPages):
    """Keeps what the shadow process finds, and decides about cut-overs.

    Args:
        loaded: The configuration.
        processes: All processes of the gateway.

    Attributes:
        evidence: What the shadow process finds; None if the configuration needs none.
        cutovers: Decides about the cut-overs.

    Raises:
        StartError: A directory of states cannot be used.
    """

    def __init__(self, loaded: LoadedConfig, processes: Processes) -> None:
        self.cutovers = CutoverController(loaded)
        self.evidence: ShadowEvidence | None = None
        self._keeper: ShadowKeeper | None = None
        if shadow_channels(loaded):
            self._keeper = keeper_of(processes)
            self.evidence = ShadowEvidence(loaded, self._keeper)
        self._processes = processes
        self._loaded = loaded
        documents = None if self.evidence is None else EvidenceDocuments(self.evidence)
        super().__init__(documents, self.cutovers)

    def setup(self, number: int, /) -> PartSetup:
        """Return the weights in force, and the sockets to the shadow process."""
        sockets = {} if self._keeper is None else self._keeper.setup(NAME, number).sockets
        return PartSetup({"weights": self.cutovers.weights()}, sockets)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the cut-overs and of what the shadow process finds."""
        yield from self.cutovers.collect()
        if self.evidence is not None:
            yield from self.evidence.collect()

    def check_reload(self, config: ConfigView, /) -> None:
        """Check that a configuration changes no cut-over that is under way.

        Raises:
            ConfigError: It does.
        """
        self.cutovers.check(LoadedConfig.of(config))

    async def change(self, config: ConfigView, /) -> None:
        """Follow another configuration.

        Raises:
            StartError: A directory of states cannot be used.
        """
        loaded = LoadedConfig.of(config)
        if self.evidence is not None:
            self.evidence.change(loaded)
        await self.cutovers.change(loaded)

    def on_notice(self) -> None:
        """Decide soon: a guard has tripped in a serving process."""
        self.cutovers.wake()

    def on_process_ended(self, metrics: Any, /) -> Any:
        """Count the calls in flight of a process that died as dropped."""
        return with_lost_samples(metrics, _RESULTS, "migration")

    async def start(self) -> None:
        """Log what becomes of calls."""
        _log_books(self._loaded)

    def lead(self) -> None:
        """Begin to decide about the cut-overs."""
        self.cutovers.start(self, self.evidence)

    async def exchange_weights(self, weights: ShiftWeights) -> Reports:
        """Put weights in force in all serving processes, and return their reports."""
        return await self._processes.exchange(NAME, {"weights": weights})

    async def stop(self) -> None:
        """Write the states of the cut-overs; idempotent."""
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
