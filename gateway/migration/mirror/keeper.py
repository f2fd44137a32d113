"""ShadowKeeper: starts the shadow process, and starts it again whenever it dies.

The supervisor has one, or the only process of a gateway. The sockets between serving processes and
the shadow process belong to it, so they stay open whichever end dies.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.api.start_error import StartError, reason_of
from gateway.app.processes.channel import PartDescriptors, WorkerSetup
from gateway.app.processes.reply_watch import POLL_S, ReplyWatch
from gateway.app.processes.restart_policy import RestartBackoff, RestartPolicy
from gateway.app.processes.worker_process import WorkerProcess, describe_exit, launch
from gateway.app.run.worker_slot import WorkerSlot
from gateway.concurrency.background import start_background
from gateway.concurrency.timeouts import is_set_within
from gateway.config.load import LoadedConfig
from gateway.migration import names
from gateway.migration.captures.uploader import OUTCOMES
from gateway.migration.events.settings import EVENTS
from gateway.migration.mirror.targets import shadow_config
from gateway.migration.options import EVENT_CHANNEL, captures_of
from gateway.migration.targets import live_migrations
from gateway.shadow.packets import socket_pair
from gateway.telemetry.families import counter_family, gauge_family
from gateway.telemetry.names import LOG_LINES_LOST

log = structlog.get_logger(__name__)

Launch = Callable[[WorkerSetup, str], Awaitable[WorkerProcess]]

NAME: Final = "migration"
"""The name of the extension."""
MODULE: Final = "gateway.migration.mirror.process"
"""The main module of the shadow process."""

# A shadow process may write this long after the last call.
_STOP_S: Final = 10.0
_POLICY: Final = RestartPolicy(max_failures=None)
_QUANTILES: Final = {"p50": "0.5", "p90": "0.9", "p99": "0.99"}


@dataclass(frozen=True, slots=True)
class KeptEvidence:
    """The evidence of a migration.

    Attributes:
        document: What `MigrationEvidence.document` returned.
        at_s: When it arrived, on the clock of the event loop.
    """

    document: Mapping[str, Any]
    at_s: float


class EvidenceDocuments:
    """The evidence as the admin port shows it.

    Args:
        keeper: Has it.
    """

    def __init__(self, keeper: ShadowKeeper) -> None:
        self._keeper = keeper

    @property
    def evidence(self) -> Mapping[str, dict[str, Any]]:
        """The latest document of each live migration that has any, without what guards keep."""
        return {
            name: {key: value for key, value in kept.document.items() if key != "resume"}
            for name, kept in self._keeper.evidence.items()
        }

    async def sample(self, migration: str, sample: str) -> dict[str, Any] | None:
        """Return a kept sample of a migration as JSON values; None if there is none."""
        found = await self._keeper.sample(migration, sample)
        return None if found is None else dict(found)


def _latest_counts(process: WorkerProcess | None, name: str, label: str) -> Counter[str]:
    """Return what the process sent last of one metric, by the values of a label."""
    metrics = () if process is None else process.metrics
    return Counter(
        {
            labels.get(label, ""): int(value)
            for *_, samples in metrics
            for sample, labels, value in samples
            if sample == name
        }
    )


def _lost_lines(process: WorkerProcess | None) -> Counter[str]:
    return _latest_counts(process, LOG_LINES_LOST.name, "reason")


def _uploads(process: WorkerProcess | None) -> Counter[str]:
    return _latest_counts(process, names.CAPTURE_UPLOADS.name, "outcome")


def shadow_channels(loaded: LoadedConfig) -> tuple[str, ...]:
    """Return what a shadow process is needed for: captures, live migrations, and events."""
    events = (EVENT_CHANNEL,) if EVENTS.of(loaded.config) else ()
    migrations = (each.name for each in live_migrations(loaded.config))
    return (*captures_of(loaded), *migrations, *events)


class ShadowKeeper(Collector):
    """The shadow process of a gateway, from its parent's side.

    Args:
        loaded: The configuration; it has a capture or a live migration.
        count: The number of serving processes.
        launch: Starts the process.
        restart_policy: The backoff between restarts.

    Raises:
        OSError: There are no descriptors left.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        count: int,
        launch: Launch = launch,
        restart_policy: RestartPolicy = _POLICY,
    ) -> None:
        self._loaded = loaded
        self._launch = launch
        self._policy = restart_policy
        self._pairs = {
            name: {number: socket_pair() for number in range(1, count + 1)}
            for name in shadow_channels(loaded)
        }
        self._slot = WorkerSlot(0, count, "shadow")
        self._process: WorkerProcess | None = None
        self._watch: ReplyWatch | None = None  # while it is up
        self._lost_before: Counter[str] = Counter()  # lines of the log of earlier processes
        self._uploads_before: Counter[str] = Counter()
        self._is_replacing = False
        self._evidence: dict[str, KeptEvidence] = {}
        # What the guards of a process that starts continue with.
        self._earlier: dict[str, Mapping[str, Any]] = {}
        self._restarts = 0
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def evidence(self) -> Mapping[str, KeptEvidence]:
        """The latest evidence of each live migration that has any."""
        return MappingProxyType(self._evidence)

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def serving_ends(self, number: int) -> dict[str, socket.socket]:
        """Return the ends of the sockets that the serving process *number* uses, by channel."""
        return {name: pairs[number][0] for name, pairs in self._pairs.items()}

    def reset_evidence(self, migration: str) -> None:
        """Start the evidence of a migration again."""
        self._evidence.pop(migration, None)
        self._earlier.pop(migration, None)
        if self._process is not None:
            self._process.send({"evidence_reset": migration})

    def resume_evidence(self, migration: str, earlier: Mapping[str, Any]) -> None:
        """Let the guards of a migration continue: `resume` of an earlier document."""
        self._earlier[migration] = earlier
        if self._watch is not None and self._process is not None:
            self._process.send({"evidence_resume": {migration: earlier}})

    async def sample(self, migration: str, sample_id: str) -> Mapping[str, Any] | None:
        """Return a kept sample of a migration as JSON values; None if there is none."""
        if self._process is None:
            return None
        reply = await self._process.exchange(NAME, {"migration": migration, "id": sample_id})
        found: Mapping[str, Any] | None = None if reply is None else reply.get("sample")
        return found

    def change(self, loaded: LoadedConfig) -> None:
        """Follow another configuration with the same channels.

        The process is replaced if its targets have changed, and its evidence begins anew. Sinks of
        events follow by the serving processes.
        """
        old, self._loaded = self._loaded, loaded
        if not live_migrations(loaded.config) or shadow_config(old.config) == shadow_config(
            loaded.config
        ):
            return
        if self._process is not None and not self._stopping.is_set():
            self._is_replacing = True
            self._process.stop()

    async def start(self) -> None:
        """Start the process, and keep it running until `stop`.

        Raises:
            StartError: It cannot start.
        """
        await self._start_process()
        self._tasks = [
            start_background(self._run(), "shadow process"),
            start_background(self._poll(), "polls of the shadow process"),
        ]

    async def stop(self) -> None:
        """Let the process write what it has, and end it; idempotent."""
        self._stopping.set()
        tasks, self._tasks = self._tasks, []
        if tasks:
            if self._watch is not None and self._watch.is_silent and self._process is not None:
                self._process.kill()
            elif self._process is not None:
                self._process.stop()
            _, pending = await asyncio.wait(tasks, timeout=_STOP_S)
            if pending:
                log.warning("shadow process killed", reason=f"it did not stop in {_STOP_S:g} s")
                if self._process is not None:
                    self._process.kill()
            await asyncio.gather(*tasks)
        for pairs in self._pairs.values():
            for each in itertools.chain.from_iterable(pairs.values()):
                each.close()
        self._pairs = {}

    def collect(self) -> Iterable[Metric]:
        """Return metrics of the process itself."""
        is_up = gauge_family(names.SHADOW_UP)
        is_up.add_metric((), self._watch is not None and not self._watch.is_silent)
        yield is_up
        restarts = counter_family(names.SHADOW_RESTARTS)
        restarts.add_metric((), self._restarts)
        yield restarts
        lost = counter_family(names.SHADOW_LOG_LINES_LOST)
        for reason, count in (self._lost_before + _lost_lines(self._process)).items():
            lost.add_metric([reason], count)
        yield lost
        if any(each.upload for each in captures_of(self._loaded).values()):
            uploads = counter_family(names.CAPTURE_UPLOADS)
            counts = self._uploads_before + _uploads(self._process)
            for outcome in OUTCOMES:
                uploads.add_metric([outcome], counts[outcome])
            yield uploads
            pending = gauge_family(names.CAPTURE_UPLOADS_PENDING)
            waiting = _latest_counts(self._process, names.CAPTURE_UPLOADS_PENDING.name, "")
            pending.add_metric((), waiting.total())
            yield pending
        if live_migrations(self._loaded.config):
            documents = {name: kept.document for name, kept in self._evidence.items()}
            yield from _evidence_metrics(documents)

    async def _start_process(self) -> None:
        ends = {
            f"{number}/{name}": pair[1].fileno()
            for name, pairs in self._pairs.items()
            for number, pair in pairs.items()
        }
        parts = {NAME: PartDescriptors({}, ends)}
        setup = WorkerSetup(self._loaded, self._slot, should_log_warnings=False, parts=parts)
        try:
            self._process = await self._launch(setup, MODULE)
        except OSError as error:
            raise StartError(f"cannot start the shadow process: {reason_of(error)}") from error
        try:
            await self._process.wait_started()
        except StartError:
            await self._process.wait()
            self._process = None
            raise
        self._process.on_document = self._keep_evidence
        for name, kept in self._evidence.items():
            self._earlier[name] = kept.document["resume"]
        if self._earlier:
            self._process.send({"evidence_resume": self._earlier})
        self._watch = ReplyWatch(self._process, "shadow")
        log.info("shadow process started", pid=self._process.pid)

    async def _run(self) -> None:
        """Restart the process each time it exits, until `stop`."""
        backoff = RestartBackoff(self._policy)
        loop = asyncio.get_running_loop()
        started_at: float | None = loop.time()
        ended = ""
        while True:
            if self._process is not None:
                ended = describe_exit(await self._process.wait())
                self._lost_before += _lost_lines(self._process)
                self._uploads_before += _uploads(self._process)
                self._process = self._watch = None
            if self._stopping.is_set():
                return
            if self._is_replacing:
                self._is_replacing = False
                self._evidence.clear()
                self._earlier.clear()
                started_at, ended = await self._start_again()
                continue
            served_s = 0.0 if started_at is None else loop.time() - started_at
            wait_s = backoff.next_wait(served_s=served_s, is_clean=False)
            log.error("shadow process died", ended=ended, restart_in_s=wait_s)
            if await is_set_within(self._stopping, wait_s or 0.0):
                return
            self._restarts += 1
            started_at, ended = await self._start_again()

    async def _poll(self) -> None:
        """Ask the process for a reply regularly, and end it if it hangs; `_run` goes on."""
        while not await is_set_within(self._stopping, POLL_S):
            if self._watch is not None and self._process is not None:
                await self._process.update_metrics()
            if self._watch is not None:
                await self._watch.poll(self._loaded.config.lifecycle.worker_timeout)

    async def _start_again(self) -> tuple[float | None, str]:
        """Start the process; return the time of it, or None and the reason of a failure."""
        try:
            await self._start_process()
        except StartError as error:
            return None, str(error)
        return asyncio.get_running_loop().time(), ""

    def _keep_evidence(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        at_s = asyncio.get_running_loop().time()
        for name, document in documents.items():
            self._evidence[name] = KeptEvidence(document, at_s)


def _evidence_metrics(documents: Mapping[str, Mapping[str, Any]]) -> Iterable[Metric]:
    """Yield the metrics of the latest evidence of each migration.

    Args:
        documents: Of `MigrationEvidence.document`, by the name of the migration.
    """
    outputs = counter_family(names.MIGRATION_OUTPUT_MISMATCHES)
    noise = counter_family(names.MIGRATION_NOISE)
    seconds = gauge_family(names.MIGRATION_LATENCY)
    for name, document in documents.items():
        for output in document["outputs"]:
            outputs.add_metric((name, output["name"]), output["mismatched"])
        found = document["noise"]
        if found is not None:
            noise.add_metric((name, "mismatch"), found["mismatched"])
            noise.add_metric((name, "match"), found["compared"] - found["mismatched"])
        for side in ("old", "new"):
            for key, quantile in _QUANTILES.items():
                value = document["latency"][side][key]
                if value is not None:
                    seconds.add_metric((name, side, quantile), value)
    yield from (outputs, noise, seconds)
