"""Keeps workers there: starts them, starts again those that die, passes on what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import structlog
from prometheus_client.core import Metric

from gateway import __version__
from gateway.app.admin import start_pages
from gateway.app.check import check
from gateway.app.errors import REASONS, StartError, reason_of
from gateway.app.worker_slot import WorkerSlot
from gateway.app.workers.channel import Orders
from gateway.app.workers.restart_policy import RestartPolicy, Restarts
from gateway.app.workers.shared_sockets import Addresses
from gateway.app.workers.worker_process import WorkerProcess, ending, launch
from gateway.config.load import ConfigError, LoadedConfig
from gateway.telemetry import log as logs
from gateway.telemetry.aggregation import MetricsAggregator, counter, gauge, total_of, write_page
from gateway.transports.contract import Server

log = structlog.get_logger(__name__)

Launch = Callable[[Orders], Awaitable[WorkerProcess]]

# Beyond what the configuration gives a worker to end in good order.
_GRACE_S: Final = 10.0
# So much of what a worker has counted may be lost when it is killed.
_COUNT_S: Final = 2.0
_CALLS: Final = "gateway_requests_total"


class Supervisor:
    """A row of workers.

    Args:
        loaded: Their configuration, every address settled.
        count: How many there are to be.
        launch: Starts one.
        sockets: Descriptors of the unix sockets they share, by address.
        pace: How patient to be with those that die.
        clock: Monotonic seconds; the loop's by default.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        count: int,
        launch: Launch,
        *,
        sockets: Mapping[str, int] = MappingProxyType({}),
        pace: RestartPolicy | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._loaded = loaded
        self._launch = launch
        self._sockets = dict(sockets)
        self._pace = pace or RestartPolicy()
        self._clock = clock or asyncio.get_running_loop().time
        self._seats = [WorkerSlot(number, count) for number in range(1, count + 1)]
        self._children: dict[int, WorkerProcess] = {}
        self._serving: set[int] = set()
        self._restarts: dict[int, int] = dict.fromkeys(range(1, count + 1), 0)
        self._calls: dict[int, float] = dict.fromkeys(range(1, count + 1), 0.0)
        self._totals = MetricsAggregator()
        self._stopping = asyncio.Event()
        self._failed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._status = 0

    @property
    def count(self) -> int:
        """How many workers there are to be."""
        return len(self._seats)

    async def start(self) -> Mapping[str, str]:
        """Start all workers, and return where they listen once each of them does.

        Raises:
            StartError: One of them cannot start; the others have been ended.
        """
        began = [asyncio.ensure_future(self._begin(seat, first=True)) for seat in self._seats]
        try:
            addresses = [await each for each in asyncio.as_completed(began)]
        except BaseException:
            for each in began:
                each.cancel()
            await asyncio.gather(*began, return_exceptions=True)
            await self._end_all()
            raise
        self._tasks = [asyncio.create_task(self._keep(seat)) for seat in self._seats]
        self._tasks.append(asyncio.create_task(self._count_now_and_then()))
        for task in self._tasks:
            task.add_done_callback(self._note_failure)
        return addresses[0]

    async def failed(self) -> None:
        """Wait until a worker is given up, or cannot be kept; the others are left to `stop`."""
        await self._failed.wait()

    async def stop(self) -> int:
        """Let every worker finish what is in flight and end; return the exit status.

        It is 0 unless a worker was given up, did not end in time, or died on the way.
        """
        self._stopping.set()
        for child in self._children.values():
            child.stop()
        lifecycle = self._loaded.config.lifecycle
        await self._ended(lifecycle.pre_stop + lifecycle.drain + _GRACE_S)
        return self._status

    def kill(self) -> None:
        """End every worker at once."""
        self._stopping.set()
        for child in self._children.values():
            child.kill()

    async def ready(self) -> bool:
        """Return whether any worker takes requests: those that come go to it, or wait for it."""
        if self._stopping.is_set():
            return False
        asked = [self._children[number].ready() for number in self._serving]
        return any(await asyncio.gather(*asked))

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of all, and its content type."""
        await self._count()
        return write_page([*self._totals.collect(), *self._own()], accept)

    def _own(self) -> Iterable[Metric]:
        served = {str(seat.number): float(seat.number in self._serving) for seat in self._seats}
        yield gauge("gateway_worker_up", "1 where the worker serves.", served, "worker")
        restarts = {str(number): float(count) for number, count in self._restarts.items()}
        yield counter(
            "gateway_worker_restarts", "Times a worker was started again.", restarts, "worker"
        )
        calls = {str(number): self._called(number) for number in self._calls}
        yield counter("gateway_worker_requests", "Calls that a worker answered.", calls, "worker")

    def _called(self, number: int) -> float:
        child = self._children.get(number)
        now = 0.0 if child is None else total_of(child.figures, _CALLS)
        return self._calls[number] + now

    async def _begin(self, seat: WorkerSlot, *, first: bool) -> Mapping[str, str]:
        """Start a worker and wait until it listens.

        Raises:
            StartError: It cannot, or died.
        """
        # One tells of what is wrong with the configuration: the same is so in all.
        orders = Orders(self._loaded, seat, first and seat.number == 1, self._sockets)
        try:
            child = await self._launch(orders)
        except OSError as error:  # no memory, no descriptors, no more processes
            raise StartError(f"no process can be started: {reason_of(error)}") from error
        self._children[seat.number] = child
        if self._stopping.is_set():
            child.stop()
        said = await child.started()
        if isinstance(said, str):
            raise StartError(said)
        self._serving.add(seat.number)
        log.info("worker started", worker=seat.number, pid=child.pid)
        return said

    async def _keep(self, seat: WorkerSlot) -> None:
        """Wait for the end of a worker and start it again, over and over."""
        restarts = Restarts(self._pace)
        since: float | None = self._clock()
        while True:
            status = await self._over(seat)
            if self._stopping.is_set():
                return
            served_s = 0.0 if since is None else self._clock() - since
            wait_s = restarts.ended(served_s=served_s, in_order=status == 0)
            if wait_s is None:
                log.error("worker given up", worker=seat.number, ended=ending(status))
                self._status = 1
                self._failed.set()
                return
            if status == 0:
                log.info("worker left", worker=seat.number)
            else:
                log.error(
                    "worker died", worker=seat.number, ended=ending(status), restart_in_s=wait_s
                )
            if await self._stopped_within(wait_s):
                return
            self._restarts[seat.number] += 1
            since = await self._again(seat)

    async def _again(self, seat: WorkerSlot) -> float | None:
        """Start a worker again and return since when it listens; None for one that cannot."""
        reason = ""
        try:
            await self._begin(seat, first=False)
        except StartError as error:
            reason = str(error)
        if reason:
            log.error("worker cannot start", worker=seat.number, reason=reason)
            return None
        return self._clock()

    async def _over(self, seat: WorkerSlot) -> int:
        """Wait for a worker's end, and keep what it has counted; 1 for one that never was."""
        child = self._children.get(seat.number)
        if child is None:
            return 1
        status = await child.wait()
        # One that is told to end before it hears the signal has nothing in flight.
        unheard = status == -signal.SIGTERM and seat.number not in self._serving
        self._serving.discard(seat.number)
        self._calls[seat.number] = self._called(seat.number)
        self._totals.update(child, child.figures)
        self._totals.process_ended(child)
        del self._children[seat.number]
        if self._stopping.is_set() and status != 0 and not unheard:
            log.error("worker did not end in good order", worker=seat.number, ended=ending(status))
            self._status = 1
        return status

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        """End all, if what keeps one of them there has failed; `stop` raises what it was."""
        if not task.cancelled() and task.exception() is not None:
            self._failed.set()

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _count_now_and_then(self) -> None:
        while not await self._stopped_within(_COUNT_S):
            await self._count()

    async def _count(self) -> None:
        children = list(self._children.values())
        await asyncio.gather(*(child.count() for child in children))
        for child in self._children.values():
            self._totals.update(child, child.figures)

    async def _ended(self, patience_s: float) -> None:
        """Wait for the end of all, and end those that take too long."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=patience_s)
        if late:
            for number, child in self._children.items():
                log.error("worker takes too long to end", worker=number, pid=child.pid)
                child.kill()
            await asyncio.wait(late)
        for task in self._tasks:
            task.result()

    async def _end_all(self) -> None:
        """End what was started, where not all of it could be."""
        self._stopping.set()
        for child in self._children.values():
            child.kill()
        await asyncio.gather(*(child.wait() for child in self._children.values()))
        self._children.clear()


log = structlog.get_logger(__name__)


def supervise(loaded: LoadedConfig, count: int, *, pace: RestartPolicy | None = None) -> int:
    """Run *count* workers until SIGTERM or SIGINT; return the exit status.

    The second signal ends all of them at once. The status is 1 when a worker keeps dying, or does
    not end in good order.

    Args:
        loaded: Their configuration.
        count: At least 2.
        pace: How patient to be with workers that die.

    Raises:
        ConfigError: The configuration is wrong.
        StartError: They cannot start.
    """
    problems = check(loaded)
    if problems:
        raise ConfigError(loaded.source, problems)
    settings = loaded.config.telemetry.log
    logs.configure(settings.level, settings.format)
    try:
        addresses = Addresses(loaded)
    except OSError as error:
        raise StartError(reason_of(error)) from error
    with contextlib.closing(addresses), asyncio.Runner() as runner:
        return runner.run(_run(addresses, count, pace))


async def _run(addresses: Addresses, count: int, pace: RestartPolicy | None) -> int:
    loaded = addresses.loaded
    supervisor = Supervisor(loaded, count, launch, sockets=addresses.sockets, pace=pace)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stopped() -> None:
        if stop.is_set():
            supervisor.kill()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped)
    try:
        pages = await start_pages(loaded.config.admin, supervisor.page, supervisor.ready)
    except REASONS as error:
        raise StartError(reason_of(error)) from error
    try:
        return await _serve(supervisor, addresses, stop, pages)
    finally:
        for page in pages.values():
            await page.stop()


async def _serve(
    supervisor: Supervisor, addresses: Addresses, stop: asyncio.Event, pages: dict[str, Server]
) -> int:
    starting = asyncio.create_task(supervisor.start())
    await _first(starting, stop.wait())
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return 0
    where = {**starting.result(), **{name: page.address for name, page in pages.items()}}
    log.info("started", version=__version__, workers=supervisor.count, **where)
    await _first(asyncio.create_task(supervisor.failed()), stop.wait())
    log.info("not ready", reason="stopping" if stop.is_set() else "a worker keeps dying")
    # When workers take no more connections, none is to wait for them.
    pre_stop_s = addresses.loaded.config.lifecycle.pre_stop
    asyncio.get_running_loop().call_later(pre_stop_s, addresses.close)
    status = await supervisor.stop()
    log.info("stopped")
    return status


async def _first(task: asyncio.Task[Any], other: Coroutine[Any, Any, Any]) -> None:
    """Wait until either is over; the second is ended then."""
    beside = asyncio.create_task(other)
    await asyncio.wait({task, beside}, return_when=asyncio.FIRST_COMPLETED)
    beside.cancel()
