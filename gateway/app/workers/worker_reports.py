"""WorkerReports: what the supervisor knows of its workers: their states, metrics and answers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.api.extension import Reports
from gateway.app.admin.status.document import Document
from gateway.app.build.parts import LeadingParts
from gateway.app.processes.channel import WorkerSetup
from gateway.app.processes.reply_watch import REPLY_S, ReplyWatch
from gateway.app.processes.restart_policy import RestartPolicy
from gateway.app.processes.worker_process import WorkerProcess
from gateway.app.run.worker_slot import WorkerSlot
from gateway.concurrency.background import start_background
from gateway.concurrency.slices import in_slices
from gateway.config.load import LoadedConfig
from gateway.config.models import LifecycleConfig
from gateway.telemetry import logs, names
from gateway.telemetry.aggregation import MetricsAggregator, family_of, snapshot, total_of
from gateway.telemetry.exposition import write_page
from gateway.telemetry.lost_lines import LostLines

Launch = Callable[[WorkerSetup], Awaitable[WorkerProcess]]


class WorkerReports(Collector):
    """The workers as the supervisor sees them, with its arguments."""

    def __init__(
        self,
        loaded: LoadedConfig,
        count: int,
        launch: Launch,
        *,
        sockets: Mapping[str, int] = MappingProxyType({}),
        restart_policy: RestartPolicy | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.leading: LeadingParts | None = None
        self._loaded = loaded
        self._launch = launch
        self._sockets = dict(sockets)
        self._drained: frozenset[str] = frozenset()
        self._restart_policy = restart_policy or RestartPolicy()
        self._clock = clock or asyncio.get_running_loop().time
        self._slots = [WorkerSlot(number, count) for number in range(1, count + 1)]
        self._workers: dict[int, WorkerProcess] = {}
        self._serving: dict[int, ReplyWatch] = {}
        self._restarts: dict[int, int] = dict.fromkeys(range(1, count + 1), 0)
        # Requests of the earlier processes of each worker.
        self._past_requests: dict[int, float] = dict.fromkeys(range(1, count + 1), 0.0)
        self._totals = MetricsAggregator()
        self._own: list[Collector] = [self, LostLines({"stderr": logs.lost_lines})]
        self._updates: dict[bool, asyncio.Task[None]] = {}
        self._updating = asyncio.Lock()
        self._is_started = False
        self._stopping = asyncio.Event()
        self._failed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._status = 0

    @property
    def count(self) -> int:
        """The number of workers."""
        return len(self._slots)

    @property
    def config(self) -> LoadedConfig:
        """The configuration in force."""
        return self._loaded

    async def exchange(
        self, part: str, document: Mapping[str, Any], /, timeout_s: float = REPLY_S
    ) -> Reports:
        """Send a document to the part of an extension in all workers; return their replies."""
        workers = list(self._workers.values())
        found = await asyncio.gather(
            *(worker.exchange(part, document, timeout_s) for worker in workers)
        )
        return {str(worker.pid): report for worker, report in zip(workers, found, strict=True)}

    def publish(self, metrics: Collector) -> None:
        """Add metrics of this process to the metrics page."""
        self._own.append(metrics)

    @property
    def lifecycle(self) -> LifecycleConfig:
        """The times of a stop in the configuration in force."""
        return self._loaded.config.lifecycle

    async def ready(self) -> bool:
        """Return whether any worker is ready, once all of them have started.

        The kernel gives connections to a worker that hangs, too, so the gateway is then not ready.
        """
        if self._stopping.is_set() or not self._is_started or self._silent():
            return False
        replies = [self._workers[number].ready() for number in self._serving]
        return any(await asyncio.gather(*replies))

    def _silent(self) -> list[int]:
        """Return the numbers of the workers that do not reply."""
        return sorted(number for number, watch in self._serving.items() if watch.is_silent)

    def _replying(self) -> list[int]:
        """Return the numbers of the workers that serve and reply."""
        return sorted(number for number, watch in self._serving.items() if not watch.is_silent)

    async def status(self) -> Document:
        """Return the status of the first worker that serves, with a line for each worker.

        The workers share the configuration. Each has its own connections to upstreams.
        """
        serving = self._replying()
        replies = await asyncio.gather(*(self._workers[number].status() for number in serving))
        found = replies[0] if replies else {}
        files = [each for reply in replies for each in reply.get("credentials", ())]
        ready = await self.ready()
        return {
            "version": __version__,
            "started": "",
            "listeners": {},
            "config": {"file": self._loaded.source, "sha256": self._loaded.sha256},
            "routes": [],
            "upstreams": [],
            "models": [],
            "limits": {},
            **found,
            "ready": ready,
            "reason": "" if ready else self._reason(found),
            # One that only some workers have in force has several entries.
            "credentials": [each for n, each in enumerate(files) if each not in files[:n]],
            "shown_worker": serving[0] if serving else None,
            "workers": [
                {
                    "worker": slot.number,
                    "serving": slot.number in serving,
                    "restarts": self._restarts[slot.number],
                }
                for slot in self._slots
            ],
            "warnings": [*found.get("warnings", ()), *logs.recent_warnings()],
        }

    def _reason(self, found: Document) -> str:
        """Return why the gateway is not ready, given the status of a worker."""
        if self._silent():
            return f"worker {', '.join(map(str, self._silent()))} does not reply"
        return found.get("reason") or "no worker is ready"

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page of all workers, and its content type."""
        return await write_page(await self.families(), accept)

    async def families(self) -> Iterable[Metric]:
        """Return the metrics of all workers and of this process, in pieces."""
        await self._update_metrics(asks=True)
        for worker in self._workers.values():
            self._totals.update(worker, worker.metrics, worker.counts)
        # Workers may have a family of this process, too, such as that of the certificates.
        self._totals.update(self, [each async for each in in_slices(snapshot(*self._own))])
        return await self._totals.collect()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of the workers as processes."""
        serving = self._replying()
        up = {str(slot.number): float(slot.number in serving) for slot in self._slots}
        yield family_of(names.WORKER_UP, up)
        restarts = {str(number): float(count) for number, count in self._restarts.items()}
        yield family_of(names.WORKER_RESTARTS, restarts)
        requests = {str(number): self._request_count(number) for number in self._past_requests}
        yield family_of(names.WORKER_REQUESTS, requests)

    def _request_count(self, number: int) -> float:
        worker = self._workers.get(number)
        current = 0.0 if worker is None else total_of(worker.metrics, names.REQUESTS)
        return self._past_requests[number] + current

    async def _update_metrics(self, *, asks: bool) -> None:
        """Ask all workers for their metrics; those who come before it begins share a turn.

        Args:
            asks: Whether one of the workers asks the servers, which all share.
        """
        update = self._updates.get(asks)
        if update is None:
            update = self._updates[asks] = start_background(self._update(asks), "metrics")
        await asyncio.shield(update)

    async def _update(self, asks: bool) -> None:
        async with self._updating:
            del self._updates[asks]
            workers = [self._workers[number] for number in self._replying()]
            await asyncio.gather(
                *(each.update_metrics(asks=asks and each is workers[0]) for each in workers)
            )
