"""Supervises the workers: starts, restarts and stops them, and collects their metrics."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, Final

import structlog
from prometheus_client.core import Metric

from gateway import __version__
from gateway.app.admin import PAGE_DRAIN_S, start_pages
from gateway.app.admin_api.api import AdminApi, AdminSources
from gateway.app.announce import log_addresses, log_default_timeout
from gateway.app.check import check
from gateway.app.control import control_of
from gateway.app.errors import REASONS, StartError, reason_of
from gateway.app.export import open_export
from gateway.app.listeners import log_extensions
from gateway.app.migration.controller import CutoverController
from gateway.app.migration.leader import Reports
from gateway.app.migration.shifts import ShiftWeights
from gateway.app.processes.channel import WorkerSetup
from gateway.app.processes.restart_policy import RestartBackoff, RestartPolicy
from gateway.app.processes.worker_process import WorkerProcess, describe_exit, launch
from gateway.app.reload import Changes, Load, Reloader
from gateway.app.run import stop_event
from gateway.app.shadow.keeper import EvidenceDocuments, ShadowKeeper, shadow_channels
from gateway.app.shadow.lost_samples import with_lost_samples
from gateway.app.status import Document
from gateway.app.worker_slot import WorkerSlot
from gateway.app.workers.shared_sockets import SharedSockets
from gateway.concurrency.timeouts import is_set_within
from gateway.config.load import ConfigError, LoadedConfig
from gateway.config.models import LifecycleConfig
from gateway.telemetry import log as logs
from gateway.telemetry.aggregation import MetricsAggregator, counter, gauge, total_of, write_page
from gateway.transports.contract import Server

log = structlog.get_logger(__name__)

Launch = Callable[[WorkerSetup], Awaitable[WorkerProcess]]

# A worker may take this time longer to stop than `pre_stop` and `drain` of the configuration.
_GRACE_S: Final = 10.0
# A worker that is killed loses the counts since the last poll.
_POLL_S: Final = 2.0
_REQUESTS: Final = "gateway_requests_total"


class Supervisor:
    """Runs a fixed number of workers.

    Args:
        loaded: Their configuration, without any port 0.
        count: The number of workers.
        launch: Starts a worker process.
        sockets: Descriptors of the unix sockets that the workers share, by address.
        restart_policy: The backoff between restarts.
        clock: Monotonic seconds; the event loop's clock by default.
        shadow: Keeps the shadow process running; None if the configuration needs none.

    Attributes:
        cutovers: Decides about the cut-overs; None for none.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        count: int,
        launch: Launch,
        *,
        sockets: Mapping[str, int] = MappingProxyType({}),
        restart_policy: RestartPolicy | None = None,
        clock: Callable[[], float] | None = None,
        shadow: ShadowKeeper | None = None,
    ) -> None:
        self.cutovers: CutoverController | None = None
        self._shadow = shadow
        self._loaded = loaded
        self._launch = launch
        self._sockets = dict(sockets)
        self._drained: frozenset[str] = frozenset()
        self._restart_policy = restart_policy or RestartPolicy()
        self._clock = clock or asyncio.get_running_loop().time
        self._slots = [WorkerSlot(number, count) for number in range(1, count + 1)]
        self._workers: dict[int, WorkerProcess] = {}
        self._serving: set[int] = set()
        self._restarts: dict[int, int] = dict.fromkeys(range(1, count + 1), 0)
        # Requests of the earlier processes of each worker.
        self._past_requests: dict[int, float] = dict.fromkeys(range(1, count + 1), 0.0)
        self._totals = MetricsAggregator()
        self._collect: list[Callable[[], Iterable[Metric]]] = [self._own_metrics]
        self._is_started = False
        self._stopping = asyncio.Event()
        self._failed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._status = 0

    @property
    def count(self) -> int:
        """The number of workers."""
        return len(self._slots)

    async def start(self) -> Mapping[str, str]:
        """Start all workers, and return their addresses when each of them listens.

        Workers that run when it is cancelled go on until `stop`, so that their calls complete.

        Raises:
            StartError: A worker cannot start; the others are killed.
        """
        if self._shadow is not None:
            await self._shadow.start()
        tasks = [
            asyncio.ensure_future(self._start_worker(slot, is_first=True)) for slot in self._slots
        ]
        try:
            addresses = [await task for task in asyncio.as_completed(tasks)]
        except BaseException as error:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(error, asyncio.CancelledError):
                self._stopping.set()
                self._supervise(*(self._run_worker(slot) for slot in self._slots))
            else:
                await self._kill_all()
                if self._shadow is not None:
                    await self._shadow.stop()
            raise
        self._is_started = True
        self._supervise(*(self._run_worker(slot) for slot in self._slots), self._poll_metrics())
        return addresses[0]

    def _supervise(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        for coroutine in coroutines:
            task = asyncio.create_task(coroutine)
            task.add_done_callback(self._on_task_done)
            self._tasks.append(task)

    async def reload(
        self, loaded: LoadedConfig, drained: AbstractSet[str] = frozenset()
    ) -> Changes:
        """Put another configuration in force in one worker after the other.

        If one of them cannot, those that have the new configuration get the old one again.

        Args:
            loaded: A configuration without errors. Its listeners are the same, port 0 included.
            drained: Endpoints that get no new calls, as "UPSTREAM/ENDPOINT".

        Raises:
            StartError: A worker cannot use the configuration.
        """
        old, old_drained = self._loaded, self._drained
        # A worker that restarts meanwhile begins with the new configuration.
        self._loaded = new = loaded.changed(listeners=old.config.listeners)
        self._drained = frozenset(drained)
        changes: Changes = {}
        before = list(self._workers.values())
        reloaded: list[WorkerProcess] = []
        for number in sorted(self._serving):
            worker = self._workers.get(number)
            if worker is None:  # it exited meanwhile
                continue
            try:
                changes = await worker.reload(new, drained)
            except StartError as error:
                self._loaded, self._drained = old, old_drained
                serving = [self._workers[each] for each in self._serving]
                reloaded += [each for each in serving if each not in {*before, *reloaded}]
                await asyncio.gather(*(self._restore(each) for each in reloaded))
                raise StartError(f"worker {number}: {error}") from error
            reloaded.append(worker)
        if self._shadow is not None:
            self._shadow.change(new)
        return changes

    async def _restore(self, worker: WorkerProcess) -> None:
        """Give a worker the configuration in force again, or restart the worker."""
        try:
            await worker.reload(self._loaded, self._drained)
        except StartError as error:
            log.warning("worker restarts after a failed reload", pid=worker.pid, reason=str(error))
            worker.stop()

    async def exchange_weights(self, weights: ShiftWeights) -> Reports:
        """Put weights of cut-overs in force in all workers; return their reports by process."""
        workers = list(self._workers.values())
        found = await asyncio.gather(*(worker.exchange_weights(weights) for worker in workers))
        return {str(worker.pid): report for worker, report in zip(workers, found, strict=True)}

    def publish(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Add metrics of this process to the metrics page."""
        self._collect.append(collect)

    @property
    def lifecycle(self) -> LifecycleConfig:
        """The times of a stop in the configuration in force."""
        return self._loaded.config.lifecycle

    async def wait_failed(self) -> None:
        """Wait until a worker fails for good; `stop` then stops the others."""
        await self._failed.wait()

    async def stop(self) -> int:
        """Drain and stop every worker; return the exit status.

        The status is 0 unless a worker failed for good, did not stop in time, or failed to stop.
        """
        self._stopping.set()
        for worker in self._workers.values():
            worker.stop()
        lifecycle = self.lifecycle
        await self._wait_all(lifecycle.pre_stop + lifecycle.drain + _GRACE_S)
        if self._shadow is not None:
            await self._shadow.stop()
        return self._status

    def kill(self) -> None:
        """Kill every worker at once."""
        self._stopping.set()
        for worker in self._workers.values():
            worker.kill()

    async def ready(self) -> bool:
        """Return whether any worker is ready, once all of them have started."""
        if self._stopping.is_set() or not self._is_started:
            return False
        replies = [self._workers[number].ready() for number in self._serving]
        return any(await asyncio.gather(*replies))

    async def status(self) -> Document:
        """Return the status of the first worker that serves, and a line for each worker.

        The workers share the configuration. Each has its own connections to upstreams.
        """
        serving = sorted(self._serving)
        found = await self._workers[serving[0]].status() if serving else {}
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
            "reason": "" if ready else found.get("reason") or "no worker is ready",
            "shown_worker": serving[0] if serving else None,
            "workers": [
                {
                    "worker": slot.number,
                    "serving": slot.number in self._serving,
                    "restarts": self._restarts[slot.number],
                }
                for slot in self._slots
            ],
            "warnings": [*found.get("warnings", ()), *logs.recent_warnings()],
        }

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page of all workers, and its content type."""
        return write_page(await self.metrics(), accept)

    async def metrics(self) -> list[Metric]:
        """Return the metrics of all workers and of this process."""
        await self._update_metrics()
        own = [metric for collect in self._collect for metric in collect()]
        return [*self._totals.collect(), *own]

    def _own_metrics(self) -> Iterable[Metric]:
        up = {str(slot.number): float(slot.number in self._serving) for slot in self._slots}
        yield gauge(
            "gateway_worker_up", "Whether the worker is serving (1) or not (0).", up, "worker"
        )
        restarts = {str(number): float(count) for number, count in self._restarts.items()}
        yield counter("gateway_worker_restarts", "Restarts of the worker.", restarts, "worker")
        requests = {str(number): self._request_count(number) for number in self._past_requests}
        yield counter(
            "gateway_worker_requests", "Calls that the worker completed.", requests, "worker"
        )

    def _request_count(self, number: int) -> float:
        worker = self._workers.get(number)
        current = 0.0 if worker is None else total_of(worker.metrics, _REQUESTS)
        return self._past_requests[number] + current

    async def _start_worker(self, slot: WorkerSlot, *, is_first: bool) -> Mapping[str, str]:
        """Start a worker, wait until it listens, and return its addresses.

        Raises:
            StartError: The worker cannot start.
        """
        # Every worker would log the same warnings about the configuration: one of them does.
        ends = {} if self._shadow is None else self._shadow.serving_ends(slot.number)
        shadow = {name: end.fileno() for name, end in ends.items()}
        is_first = is_first and slot.number == 1
        setup = WorkerSetup(
            self._loaded,
            slot,
            is_first,
            self._sockets,
            self._drained,
            shadow=shadow,
            weights={} if self.cutovers is None else self.cutovers.weights(),
        )
        try:
            worker = await self._launch(setup)
        except OSError as error:  # no memory, no descriptors, no more processes
            raise StartError(f"cannot start a worker process: {reason_of(error)}") from error
        self._workers[slot.number] = worker
        if self.cutovers is not None:
            worker.on_trip = self.cutovers.wake
        if self._stopping.is_set():
            worker.stop()
        addresses = await worker.wait_started()
        loaded = setup.loaded
        while loaded is not self._loaded:  # a reload happened meanwhile
            loaded = self._loaded
            await worker.reload(loaded, self._drained)
        self._serving.add(slot.number)
        log.info("worker started", worker=slot.number, pid=worker.pid)
        return addresses

    async def _run_worker(self, slot: WorkerSlot) -> None:
        """Restart a worker each time it exits, until `stop` or the last failure."""
        backoff = RestartBackoff(self._restart_policy)
        started_at: float | None = self._clock()
        while True:
            status = await self._wait_exit(slot)
            if self._stopping.is_set():
                return
            served_s = 0.0 if started_at is None else self._clock() - started_at
            wait_s = backoff.next_wait(served_s=served_s, is_clean=status == 0)
            if wait_s is None:
                log.error("worker not restarted", worker=slot.number, ended=describe_exit(status))
                self._status = 1
                self._failed.set()
                return
            if status == 0:
                log.info("worker exited", worker=slot.number)
            else:
                ended = describe_exit(status)
                log.error("worker died", worker=slot.number, ended=ended, restart_in_s=wait_s)
            if await is_set_within(self._stopping, wait_s):
                return
            self._restarts[slot.number] += 1
            started_at = None
            try:
                await self._start_worker(slot, is_first=False)
                started_at = self._clock()
            except StartError as error:
                log.error("worker cannot start", worker=slot.number, reason=str(error))  # noqa: TRY400

    async def _wait_exit(self, slot: WorkerSlot) -> int:
        """Wait until a worker exits, and save its metrics; return 1 if it never started."""
        worker = self._workers.get(slot.number)
        if worker is None:
            return 1
        status = await worker.wait()
        # SIGTERM may kill a worker before it handles signals; then no call is in flight.
        killed_early = status == -signal.SIGTERM and slot.number not in self._serving
        self._serving.discard(slot.number)
        self._past_requests[slot.number] = self._request_count(slot.number)
        self._totals.update(worker, with_lost_samples(worker.metrics))
        self._totals.process_ended(worker)
        del self._workers[slot.number]
        if self._stopping.is_set() and status != 0 and not killed_early:
            log.error("worker failed to stop", worker=slot.number, ended=describe_exit(status))
            self._status = 1
        return status

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Stop the gateway if a supervising task failed; `stop` raises its exception."""
        if not task.cancelled() and task.exception() is not None:
            self._failed.set()

    async def _poll_metrics(self) -> None:
        while not await is_set_within(self._stopping, _POLL_S):
            await self._update_metrics()

    async def _update_metrics(self) -> None:
        workers = list(self._workers.values())
        await asyncio.gather(*(worker.update_metrics() for worker in workers))
        for worker in self._workers.values():
            self._totals.update(worker, worker.metrics)

    async def _wait_all(self, timeout_s: float) -> None:
        """Wait until all workers exit, and kill those that take longer."""
        if not self._tasks:
            return
        _, pending = await asyncio.wait(self._tasks, timeout=timeout_s)
        if pending:
            for number, worker in self._workers.items():
                log.error("worker stop timed out", worker=number, pid=worker.pid)
                worker.kill()
            await asyncio.wait(pending)
        for task in self._tasks:
            task.result()

    async def _kill_all(self) -> None:
        """Kill the workers that started, because another one could not."""
        self.kill()
        await asyncio.gather(*(worker.wait() for worker in self._workers.values()))
        self._workers.clear()


def supervise(
    loaded: LoadedConfig,
    count: int,
    *,
    restart_policy: RestartPolicy | None = None,
    load: Load | None = None,
) -> int:
    """Run *count* workers until SIGTERM or SIGINT; return the exit status.

    The second signal kills all of them. The status is 1 if a worker fails for good, or does not
    stop in time.

    Args:
        loaded: The configuration.
        count: The number of workers, at least 2.
        restart_policy: The backoff between restarts.
        load: Reads the configuration again, for a reload; None for *loaded*.

    Raises:
        ConfigError: The configuration is invalid.
        StartError: The workers cannot start.
    """
    problems = check(loaded)
    if problems:
        raise ConfigError(loaded.source, problems)
    settings = loaded.config.telemetry.log
    logs.configure(settings.level, settings.format)
    try:
        sockets = SharedSockets(loaded)
    except OSError as error:
        raise StartError(reason_of(error)) from error
    with contextlib.closing(sockets), asyncio.Runner() as runner:
        return runner.run(_run(loaded, sockets, count, restart_policy, load or (lambda: loaded)))


async def _run(
    loaded: LoadedConfig,
    sockets: SharedSockets,
    count: int,
    restart_policy: RestartPolicy | None,
    load: Load,
) -> int:
    shadow = ShadowKeeper(loaded, count) if shadow_channels(loaded) else None
    cutovers = CutoverController(loaded)
    supervisor = Supervisor(
        sockets.loaded,
        count,
        launch,
        sockets=sockets.sockets,
        restart_policy=restart_policy,
        shadow=shadow,
    )
    supervisor.cutovers = cutovers
    supervisor.publish(cutovers.collect)
    if shadow is not None:
        supervisor.publish(shadow.collect)
    stop = stop_event(supervisor.kill)
    reloader = Reloader(load, loaded, supervisor.reload, cutovers=cutovers)
    reloader.handle_signal()
    supervisor.publish(reloader.metrics.collect)
    try:
        export = open_export(loaded.config.telemetry.otlp, traces=False)
        if export is not None:
            export.start_metrics(supervisor.metrics)
        control = control_of(loaded.config, reloader)
        evidence = None if shadow is None else EvidenceDocuments(shadow)
        sources = AdminSources(supervisor.status, supervisor.metrics, control, evidence, cutovers)
        pages = await start_pages(
            loaded.config.admin,
            supervisor.page,
            supervisor.ready,
            control,
            supervisor.status,
            AdminApi(sources, control.access),
            reuse_port=loaded.config.lifecycle.hand_over,
        )
    except REASONS as error:
        raise StartError(reason_of(error)) from error
    cutovers.start(supervisor, shadow)
    try:
        async with reloader:
            return await _serve(supervisor, sockets, stop, pages)
    finally:
        await cutovers.stop()
        if export is not None:
            await export.close()
        for page in pages.values():
            await page.stop()


async def _serve(
    supervisor: Supervisor, sockets: SharedSockets, stop: asyncio.Event, pages: dict[str, Server]
) -> int:
    start = asyncio.create_task(supervisor.start())
    await _wait_first(start, stop.wait())
    if not start.done():
        log.info("not ready", reason="stopping")
        start.cancel()
        await asyncio.wait({start})
        return await supervisor.stop()
    addresses = {**start.result(), **{name: page.address for name, page in pages.items()}}
    log_extensions(sockets.loaded.config.listeners)
    log_default_timeout(sockets.loaded.config.policies)
    log_addresses(addresses)
    log.info("started", version=__version__, workers=supervisor.count, **addresses)
    await _wait_first(asyncio.create_task(supervisor.wait_failed()), stop.wait())
    log.info("not ready", reason="stopping" if stop.is_set() else "a worker keeps dying")
    # Workers stop accepting after `pre_stop`; an open reservation would still queue connections.
    pre_stop_s = supervisor.lifecycle.pre_stop
    asyncio.get_running_loop().call_later(pre_stop_s, sockets.close)
    leaving = pages.values() if sockets.loaded.config.lifecycle.hand_over else ()
    async with asyncio.TaskGroup() as draining:
        for page in leaving:
            draining.create_task(page.drain(PAGE_DRAIN_S))
        status = await supervisor.stop()
    log.info("stopped")
    return status


async def _wait_first(task: asyncio.Task[Any], other: Coroutine[Any, Any, Any]) -> None:
    """Wait until either completes, then cancel *other*."""
    other_task = asyncio.create_task(other)
    await asyncio.wait({task, other_task}, return_when=asyncio.FIRST_COMPLETED)
    other_task.cancel()
