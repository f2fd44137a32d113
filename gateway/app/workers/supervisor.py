"""Supervises the workers: starts, restarts and stops them, and collects their metrics."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.api.extension import Reports
from gateway.api.start_error import REASONS, StartError, reason_of
from gateway.app.admin.running import RunningGateway
from gateway.app.admin.server import PAGE_DRAIN_S, PagesServer, start_pages
from gateway.app.admin.status.document import Document
from gateway.app.build.parts import LeadingParts
from gateway.app.check.check import check
from gateway.app.check.here import require_files
from gateway.app.check.unused_addresses import log_unused_addresses
from gateway.app.listen.activation import activated_sockets
from gateway.app.run.announce import log_started
from gateway.app.run.export import open_export
from gateway.app.run.reload import Changes, Load, Reloader
from gateway.app.run.service_manager import ServiceManager
from gateway.app.workers.shared_sockets import SharedSockets
from gateway.concurrency.background import end_tasks, start_background
from gateway.concurrency.slices import in_slices
from gateway.concurrency.timeouts import is_set_within
from gateway.config.admin import admin_tls
from gateway.config.load import ConfigError, LoadedConfig
from gateway.config.models import LifecycleConfig
from gateway.processes.channel import PartDescriptors, WorkerSetup
from gateway.processes.reply_watch import POLL_S, REPLY_S, ReplyWatch
from gateway.processes.restart_policy import RestartBackoff, RestartPolicy
from gateway.processes.signals import StopSignal, on_reopen, start_reaping
from gateway.processes.worker_process import WorkerProcess, describe_exit, launch
from gateway.processes.worker_slot import WorkerSlot
from gateway.telemetry import names
from gateway.telemetry.aggregation import (
    MetricsAggregator,
    Snapshot,
    family_of,
    snapshot,
    total_of,
)
from gateway.telemetry.exposition import write_page
from gateway.telemetry.log import logs
from gateway.telemetry.log.lost_lines import LostLines
from gateway.transports.net.certificates import CERTIFICATES, Certificates

log = structlog.get_logger(__name__)

Launch = Callable[[WorkerSetup], Awaitable[WorkerProcess]]

# Of the time that metrics take, so many times goes by before they are asked for again.
_PAUSE: Final = 20.0
# A worker may take this time longer to stop than `pre_stop` and `drain` of the configuration.
_GRACE_S: Final = 10.0


class Supervisor:
    """Runs a fixed number of workers.

    Args:
        loaded: Their configuration, without any port 0.
        count: The number of workers.
        launch: Starts a worker process.
        sockets: Descriptors of the unix sockets that the workers share, by address.
        restart_policy: The backoff between restarts.
        clock: Monotonic seconds; the event loop's clock by default.

    Attributes:
        leading: The parts of extensions in this process; None for none.
        shared: What several extensions use in this process.
        metrics: The metrics of all workers and of this process.
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
    ) -> None:
        self.leading: LeadingParts | None = None
        self.shared: dict[str, Any] = {}
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
        self.metrics = WorkerMetrics(self._workers, self._restarts, self._replying)
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

    @property
    def lifecycle(self) -> LifecycleConfig:
        """The times of a stop in the configuration in force."""
        return self._loaded.config.lifecycle

    async def start(self) -> Mapping[str, str]:
        """Start all workers, and return their addresses when each of them listens.

        Workers that run when it is cancelled go on until `stop`, so that their calls complete.

        Raises:
            StartError: A worker cannot start; the others are killed.
        """
        if self.leading is not None:
            await self.leading.start()
        tasks = [
            asyncio.ensure_future(self._start_worker(slot, is_first=True)) for slot in self._slots
        ]
        try:
            addresses = [await task for task in asyncio.as_completed(tasks)]
        except BaseException as error:
            await end_tasks(*tasks)
            if isinstance(error, asyncio.CancelledError):
                self._stopping.set()
                self._supervise(*(self._run_worker(slot) for slot in self._slots))
            else:
                await self._kill_all()
                if self.leading is not None:
                    await self.leading.stop()
            raise
        self._is_started = True
        runs = [self._run_worker(slot) for slot in self._slots]
        self._supervise(*runs, self._poll_workers(), self._keep_metrics())
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

        If one of them cannot, those that have the new configuration get the old one again. One that
        does not reply is restarted, with the new configuration.

        Args:
            loaded: A configuration without errors. Its listeners are the same, port 0 included.
            drained: Endpoints that get no new calls, as "UPSTREAM/ENDPOINT".

        Raises:
            StartError: A worker cannot use the configuration.
        """
        if self._serving and not self._replying():
            raise StartError("no worker replies")
        old, old_drained = self._loaded, self._drained
        # A worker that restarts meanwhile begins with the new configuration.
        self._loaded = new = loaded.changed(listeners=old.config.listeners)
        self._drained = frozenset(drained)
        changes: Changes = {}
        certificates: set[str] = set()
        before = list(self._workers.values())
        reloaded: list[WorkerProcess] = []
        for number in sorted(self._serving):
            worker, watch = self._workers.get(number), self._serving.get(number)
            if worker is None or watch is None:  # it exited meanwhile
                continue
            if watch.is_silent:
                self._restart(worker, "it does not reply")
                continue
            try:
                changes = await worker.reload(new, drained)
            except StartError as error:
                if watch.is_killed:  # it hung, and restarts with the new configuration
                    continue
                if number in self._silent():  # by now
                    self._restart(worker, "it does not reply")
                    continue
                self._loaded, self._drained = old, old_drained
                serving = [self._workers[each] for each in self._serving]
                reloaded += [each for each in serving if each not in {*before, *reloaded}]
                await asyncio.gather(*(self._restore(each) for each in reloaded))
                raise StartError(f"worker {number}: {error}") from error
            reloaded.append(worker)
            certificates.update(changes.get(CERTIFICATES, ()))
        return {**changes, CERTIFICATES: sorted(certificates)} if certificates else changes

    async def _restore(self, worker: WorkerProcess) -> None:
        """Give a worker the configuration in force again, or restart the worker."""
        try:
            await worker.reload(self._loaded, self._drained)
        except StartError as error:
            self._restart(worker, str(error))

    def _restart(self, worker: WorkerProcess, reason: str) -> None:
        log.warning("worker restarts after a failed reload", pid=worker.pid, reason=reason)
        worker.stop()

    async def wait_failed(self) -> None:
        """Wait until a worker fails for good; `stop` then stops the others."""
        await self._failed.wait()

    def reopen_logs(self) -> None:
        """Let every worker open its files of logs again."""
        for worker in self._workers.values():
            worker.send({"request": "reopen_logs"})
        log.info("log files reopened")

    async def stop(self, *, interrupts: bool = False) -> int:
        """Drain and stop every worker; return the exit status.

        Args:
            interrupts: Skip `pre_stop`.

        The status is 0 unless a worker failed for good, did not stop in time, or failed to stop.
        """
        self._stopping.set()
        silent = self._silent()
        for number, worker in self._workers.items():
            if number in silent:
                worker.kill()
            else:
                worker.stop(interrupts=interrupts and number in self._serving)
        lifecycle = self.lifecycle
        await self._wait_all(lifecycle.pre_stop + lifecycle.drain + _GRACE_S)
        if self.leading is not None:
            await self.leading.stop()
        return self._status

    def kill(self) -> None:
        """Kill every worker at once."""
        self._stopping.set()
        for worker in self._workers.values():
            worker.kill()

    async def _start_worker(self, slot: WorkerSlot, *, is_first: bool) -> Mapping[str, str]:
        """Start a worker, wait until it listens, and return its addresses.

        Raises:
            StartError: The worker cannot start.
        """
        # Every worker would log the same warnings about the configuration: one of them does.
        setups = {} if self.leading is None else self.leading.setups(slot.number)
        is_first = is_first and slot.number == 1
        setup = WorkerSetup(
            self._loaded,
            slot,
            is_first,
            self._sockets,
            self._drained,
            parts={name: PartDescriptors.of(each) for name, each in setups.items()},
        )
        try:
            worker = await self._launch(setup)
        except OSError as error:  # no memory, no descriptors, no more processes
            raise StartError(f"cannot start a worker process: {reason_of(error)}") from error
        self._workers[slot.number] = worker
        worker.on_page = self.page
        if self.leading is not None:
            worker.on_notice = self.leading.on_notice
        if self._stopping.is_set():
            worker.stop()
        addresses = await worker.wait_started()
        loaded = setup.loaded
        while loaded is not self._loaded:  # a reload happened meanwhile
            loaded = self._loaded
            await worker.reload(loaded, self._drained)
        self._serving[slot.number] = ReplyWatch(worker, "worker", worker=slot.number)
        worker.send({"request": "serving"})  # so its stop waits for load balancers from now on
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
        self._serving.pop(slot.number, None)
        metrics = worker.metrics
        if self.leading is not None:
            metrics = self.leading.on_process_ended(metrics)
        del self._workers[slot.number]  # so that no page adds it again meanwhile
        await self.metrics.process_ended(slot.number, worker, metrics)
        if self._stopping.is_set() and status != 0 and not killed_early:
            log.error("worker failed to stop", worker=slot.number, ended=describe_exit(status))
            self._status = 1
        return status

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Stop the gateway if a supervising task failed; `stop` raises its exception."""
        if not task.cancelled() and task.exception() is not None:
            self._failed.set()

    async def _poll_workers(self) -> None:
        """Ask all workers for a reply regularly, and end those that hang; `_run_worker` goes on."""
        while not await is_set_within(self._stopping, POLL_S):
            timeout_s = self.lifecycle.worker_timeout
            await asyncio.gather(*(watch.poll(timeout_s) for watch in self._serving.values()))

    async def _keep_metrics(self) -> None:
        """Ask all workers for their metrics regularly: one that dies loses what it counts since."""
        wait_s = POLL_S
        while not await is_set_within(self._stopping, wait_s):
            began = self._clock()
            await self.metrics.update(asks=False)
            wait_s = max(POLL_S, (self._clock() - began) * _PAUSE)

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

    async def exchange(
        self, part: str, document: Mapping[str, Any], /, timeout_s: float = REPLY_S
    ) -> Reports:
        """Send a document to the part of an extension in all workers; return their replies."""
        workers = list(self._workers.values())
        found = await asyncio.gather(
            *(worker.exchange(part, document, timeout_s) for worker in workers)
        )
        return {str(worker.pid): report for worker, report in zip(workers, found, strict=True)}

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
        return await self.metrics.families()


class WorkerMetrics(Collector):
    """The metrics of all workers, those that have exited included, and of this process.

    Args:
        workers: The worker processes, by number.
        restarts: How often each worker was restarted, by number.
        replying: Returns the numbers of the workers that serve and reply.
    """

    def __init__(
        self,
        workers: Mapping[int, WorkerProcess],
        restarts: Mapping[int, int],
        replying: Callable[[], list[int]],
    ) -> None:
        self._workers = workers
        self._restarts = restarts
        self._replying = replying
        # Requests of the earlier processes of each worker.
        self._past_requests = dict.fromkeys(restarts, 0.0)
        self._totals = MetricsAggregator()
        self._own: list[Collector] = [self, LostLines({"stderr": logs.lost_lines})]
        self._updates: dict[bool, asyncio.Task[None]] = {}
        self._updating = asyncio.Lock()

    def publish(self, metrics: Collector) -> None:
        """Add metrics of this process."""
        self._own.append(metrics)

    async def families(self) -> Iterable[Metric]:
        """Return the metrics of all workers and of this process, in pieces."""
        await self.update(asks=True)
        for worker in self._workers.values():
            self._totals.update(worker, worker.metrics, worker.counts)
        # Workers may have a family of this process, too, such as that of the certificates.
        self._totals.update(self, [each async for each in in_slices(snapshot(*self._own))])
        return await self._totals.collect()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of the workers as processes."""
        serving = self._replying()
        up = {str(number): float(number in serving) for number in self._restarts}
        yield family_of(names.WORKER_UP, up)
        restarts = {str(number): float(count) for number, count in self._restarts.items()}
        yield family_of(names.WORKER_RESTARTS, restarts)
        requests = {str(number): self._request_count(number) for number in self._past_requests}
        yield family_of(names.WORKER_REQUESTS, requests)

    def _request_count(self, number: int) -> float:
        worker = self._workers.get(number)
        current = 0.0 if worker is None else total_of(worker.metrics, names.REQUESTS)
        return self._past_requests[number] + current

    async def process_ended(self, number: int, worker: WorkerProcess, metrics: Snapshot) -> None:
        """Keep the counts of a process that is no worker any more and has left *metrics*."""
        self._past_requests[number] += total_of(worker.metrics, names.REQUESTS)
        self._totals.update(worker, metrics, worker.counts)
        await self._totals.process_ended(worker)

    async def update(self, *, asks: bool) -> None:
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
    require_files(loaded)
    settings = loaded.config.telemetry.log
    logs.configure(settings.level, settings.format)
    try:
        sockets = SharedSockets(loaded, activated_sockets(loaded.config.listeners))
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
    supervisor = Supervisor(
        sockets.loaded,
        count,
        launch,
        sockets=sockets.sockets,
        restart_policy=restart_policy,
    )
    supervisor.leading = leading = LeadingParts.of(supervisor)
    supervisor.metrics.publish(leading)
    manager = ServiceManager()
    stop = StopSignal(is_final=True, kill=supervisor.kill)
    reaping = start_reaping()
    try:
        tls = admin_tls(loaded.config.admin, loaded.directory)
    except REASONS as error:
        raise StartError(f"admin: {reason_of(error)}") from error
    certificates = Certificates(lambda: () if tls is None else (tls,))
    supervisor.metrics.publish(certificates)

    async def apply(loaded: LoadedConfig, drained: AbstractSet[str]) -> Changes:
        return await certificates.renewed(await supervisor.reload(loaded, drained))

    reloader = Reloader(load, loaded, apply, leading=leading, manager=manager)
    reloader.handle_signal()
    pages: dict[str, PagesServer] = {}
    on_reopen(partial(_reopen_logs, supervisor, pages))
    supervisor.metrics.publish(reloader.metrics)
    try:
        export = open_export(loaded.config.telemetry.otlp, traces=False)
        if export is not None:
            export.start_metrics(supervisor.families)
        pages |= await start_pages(
            loaded.config.admin,
            RunningGateway(supervisor, reloader, leading),
            directory=loaded.directory,
            tls=tls,
            reuse_port=loaded.config.lifecycle.hand_over,
        )
    except REASONS as error:
        raise StartError(reason_of(error)) from error
    leading.lead()
    certificates.start()
    try:
        async with reloader:
            return await _serve(supervisor, sockets, stop, pages, manager)
    finally:
        await certificates.stop()
        await leading.stop()
        if export is not None:
            await export.close()
        for page in pages.values():
            await page.stop()
        reaping.cancel()


def _reopen_logs(supervisor: Supervisor, pages: Mapping[str, PagesServer]) -> None:
    """Open the files of logs of all processes again."""
    supervisor.reopen_logs()
    for page in pages.values():
        page.reopen_logs()


async def _serve(
    supervisor: Supervisor,
    sockets: SharedSockets,
    stop: StopSignal,
    pages: dict[str, PagesServer],
    manager: ServiceManager,
) -> int:
    start = asyncio.create_task(supervisor.start())
    await _wait_first(start, stop.wait())
    if not start.done():
        log.info("not ready", reason="stopping")
        start.cancel()
        await asyncio.wait({start})
        return await supervisor.stop(interrupts=stop.is_interrupt)
    addresses = {**start.result(), **{name: page.address for name, page in pages.items()}}
    log_started(sockets.loaded.config, addresses, workers=supervisor.count)
    manager.started(addresses)
    name_check = start_background(log_unused_addresses(sockets.loaded.config), "names")
    await _wait_first(asyncio.create_task(supervisor.wait_failed()), stop.wait())
    name_check.cancel()
    manager.stopping()
    log.info("not ready", reason="stopping" if stop.is_set() else "a worker keeps dying")
    # Workers stop accepting after `pre_stop`; an open reservation would still queue connections.
    pre_stop_s = 0.0 if stop.is_interrupt else supervisor.lifecycle.pre_stop
    asyncio.get_running_loop().call_later(pre_stop_s, sockets.close)
    leaving = pages.values() if sockets.loaded.config.lifecycle.hand_over else ()
    async with asyncio.TaskGroup() as draining:
        for page in leaving:
            draining.create_task(page.drain(PAGE_DRAIN_S))
        status = await supervisor.stop(interrupts=stop.is_interrupt)
    log.info("stopped")
    return status


async def _wait_first(task: asyncio.Task[Any], other: Coroutine[Any, Any, Any]) -> None:
    """Wait until either completes, then cancel *other*."""
    other_task = asyncio.create_task(other)
    await asyncio.wait({task, other_task}, return_when=asyncio.FIRST_COMPLETED)
    other_task.cancel()
