"""Mirroring: the targets, the mirrors and the evidence of all migrations in the shadow process."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

import structlog

from gateway import __version__
from gateway.app.build.route_rules import ruled_routes
from gateway.app.build.service_graph import ServiceGraph
from gateway.app.run.gateway import default_budget
from gateway.app.run.process_parts import ProcessParts
from gateway.concurrency.background import end_tasks, start_background
from gateway.concurrency.slices import in_slices
from gateway.concurrency.timeouts import is_set_within
from gateway.config.load import LoadedConfig
from gateway.config.models import Config
from gateway.migration.evidence.counts import UnusableEvidence
from gateway.migration.mirror.mirror import Mirror
from gateway.migration.mirror.targets import (
    NEW,
    OLD,
    forwarding_codecs,
    shadow_config,
    shadow_route,
)
from gateway.migration.options import shown_elements
from gateway.migration.targets import LiveMigration, live_migrations
from gateway.policies.limits.shed_load import ProcessLoad
from gateway.policies.shared_memory.forwarded import ForwardedRegions
from gateway.policies.shared_memory.regions import Regions
from gateway.processes.worker_slot import WorkerSlot
from gateway.settings.patterns import is_pattern
from gateway.shadow.part import SendDocument
from gateway.shadow.records.transfer import Confirmation
from gateway.telemetry.log.call_log import CallLog
from gateway.telemetry.metrics import Metrics
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.net.certificates import Certificates

log = structlog.get_logger(__name__)

_EVIDENCE_S: Final = 1.0
_SOON_S: Final = 0.1
_CLOSE_S: Final = 2.0


class MirrorInbox(Protocol):
    """Passes the messages of serving processes to a mirror; `process.Inbox` is one."""

    def start(self, receiver: Mirror, /) -> None:
        """Begin to read."""
        ...

    def confirm(self, number: int, confirmation: Confirmation, /) -> None:
        """Send the results of calls to a serving process."""
        ...


class Mirroring:
    """All live migrations of a configuration.

    Args:
        loaded: The configuration.
        inboxes: By the names of the migrations; others may be among them.
        send: Sends a message to the parent.

    Raises:
        ConfigError, StartError, LookupError, OSError, ValueError: A target cannot be built.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        inboxes: Mapping[str, MirrorInbox],
        send: SendDocument,
    ) -> None:
        self._send = send
        self._loaded = loaded
        config = shadow_config(loaded.config)
        self._graph = ServiceGraph(loaded.changed(**dict(config)), _process_parts())
        self._certificates = Certificates(self._graph.tls_files, should_warn=False)
        self._inboxes = inboxes
        self._mirrors = {each.name: self._mirror(each) for each in live_migrations(loaded.config)}
        self._tasks: list[asyncio.Task[None]] = []
        self._soon = asyncio.Event()

    def _mirror(self, migration: LiveMigration) -> Mirror:
        services = {
            side: self._graph.route_service(shadow_route(migration.name, side))
            for side in (OLD, NEW)
        }
        inbox = self._inboxes[migration.name]
        return Mirror(
            migration,
            services,
            shown_elements(migration.config, self._loaded.config),
            inbox.confirm,
            self._send_soon,
            models=_named_models(migration.route, self._loaded.config),
            codecs=forwarding_codecs(migration, self._loaded.config),
        )

    async def start(self) -> None:
        """Load the models of the targets, and begin to read calls.

        Raises:
            LoadError: A model cannot be loaded.
        """
        await self._graph.start()
        self._certificates.start()
        for name, mirror in self._mirrors.items():
            self._inboxes[name].start(mirror)
        self._tasks = [start_background(self._send_evidence(), "evidence")]
        for name, mirror in self._mirrors.items():
            watch = mirror.watch_metadata()
            self._tasks.append(start_background(watch, f"metadata of migration {name}"))

    def resume(self, earlier: Mapping[str, Mapping[str, Any]]) -> None:
        """Let the guards of migrations continue with the counts of earlier evidence."""
        for name, resume in earlier.items():
            if name in self._mirrors:
                try:
                    self._mirrors[name].evidence.resume(resume)
                except UnusableEvidence as error:
                    log.warning("guards begin anew", migration=name, reason=str(error))
                self._soon.set()

    def reset(self, migration: str) -> None:
        """Start the evidence of a migration again."""
        if migration in self._mirrors:
            self._mirrors[migration].reset()
            self._soon.set()

    def sample(self, migration: str, sample_id: str) -> dict[str, Any] | None:
        """Return a kept call as JSON values; None if there is none."""
        mirror = self._mirrors.get(migration)
        return None if mirror is None else mirror.samples.document(sample_id)

    async def close(self) -> None:
        """End the calls in progress, send the last evidence, and close the targets."""
        await self._certificates.stop()
        await end_tasks(*self._tasks)
        await asyncio.gather(*(mirror.close(_CLOSE_S) for mirror in self._mirrors.values()))
        await self._send_documents()
        await self._graph.drain(0)
        await self._graph.close()

    def _send_soon(self) -> None:
        self._soon.set()

    async def _send_documents(self) -> None:
        mirrors = in_slices(self._mirrors.items())
        documents = {name: mirror.document() async for name, mirror in mirrors}
        await self._send(documents)

    async def _send_evidence(self) -> None:
        """Send the evidence every second, and sooner after replies that differ."""
        while True:
            await self._send_documents()
            await asyncio.sleep(_SOON_S)
            if not await is_set_within(self._soon, _EVIDENCE_S - _SOON_S):
                continue
            self._soon.clear()


def _named_models(name: str, config: Config) -> list[str]:
    """Return the models that the route *name* matches by their whole names."""
    (route,) = [each for each in ruled_routes(config) if each.name == name]
    patterns = [rule.model for rule in route.rules]
    return [pattern for pattern in patterns if not is_pattern(pattern)]


def _process_parts() -> ProcessParts:
    slot = WorkerSlot(0, 1, "shadow")
    metrics = Metrics(__version__)
    return ProcessParts(
        metrics=metrics,
        budget=MemoryBudget(default_budget(slot), None),
        slot=slot,
        record=metrics.call,
        call_log=CallLog(),
        regions=Regions(1),
        forwarded=ForwardedRegions(1, is_shared=False),
        load=ProcessLoad(),
    )
