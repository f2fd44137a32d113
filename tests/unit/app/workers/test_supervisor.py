"""A supervisor's decisions, with workers that are no processes."""

from __future__ import annotations

import asyncio
import errno
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

import pytest
import structlog

from gateway.api.start_error import RELOAD_LATE, StartError
from gateway.app.workers.supervisor import Launch, Supervisor
from gateway.concurrency import slices
from gateway.config.load import LoadedConfig, load_text
from gateway.processes.channel import WorkerSetup
from gateway.processes.restart_policy import RestartPolicy
from gateway.telemetry.aggregation import Snapshot
from tests.fakes import FakeClock, settle

LOADED = load_text("version: 1\nlisteners: [{http: 0}]\nlifecycle: {pre_stop: 0s, drain: 0s}\n")
AT_ONCE = RestartPolicy(first_wait_s=0.0, max_wait_s=0.0, max_failures=3)
ADDRESSES = {"main.http": "127.0.0.1:8000"}
KILLED = -signal.SIGKILL


class FakeWorker:
    """A worker whose life the test decides."""

    def __init__(self, pid: int, setup: WorkerSetup, *, listens: bool) -> None:
        self.pid = pid
        self.setup = setup
        self.metrics: Snapshot = ()
        self.is_ready = True
        self.replies = True
        self.counts: dict[str, Any] | None = None
        self.asks: list[bool] = []
        self.commands: list[str] = []
        self.sent: list[str] = []
        self.startup: asyncio.Future[Mapping[str, str] | str] = asyncio.Future()
        self.over: asyncio.Future[int] = asyncio.Future()
        self.stops_on_request = True
        self.loaded, self.drained = setup.loaded, setup.drained
        self.may_reload = asyncio.Event()
        self.may_reload.set()
        self.is_late: asyncio.Event | None = None
        self.refuses: Callable[[LoadedConfig], bool] = lambda _loaded: False
        if listens:
            self.startup.set_result(ADDRESSES)

    def count_calls(self, calls: int) -> None:
        """Count calls with a reply."""
        samples = [["gateway_requests_total", {"model": "m"}, calls]]
        self.metrics = [["gateway_requests", "Calls.", "counter", samples]]

    def end(self, status: int) -> None:
        """Let it end."""
        if not self.over.done():
            self.over.set_result(status)
        if not self.startup.done():
            self.startup.set_result("it ended before it was ready")

    async def wait_started(self) -> Mapping[str, str]:
        result = await self.startup
        if isinstance(result, str):
            raise StartError(result)
        return result

    async def ready(self) -> bool:
        return self.is_ready

    async def ping(self) -> bool:
        self.commands.append("ping")
        return self.replies

    async def update_metrics(self, *, asks: bool = False) -> bool:
        self.commands.append("count")
        self.asks.append(asks)
        return self.replies

    async def status(self) -> dict[str, Any]:
        return {"routes": [self.pid]}

    async def reload(self, loaded: LoadedConfig, drained: frozenset[str]) -> dict[str, list[str]]:
        if self.is_late is not None:
            await self.is_late.wait()
            raise StartError(RELOAD_LATE)
        waiting: set[asyncio.Future[Any]] = {
            asyncio.ensure_future(self.may_reload.wait()),
            self.over,
        }
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self.over.done():
            raise StartError("it exited meanwhile")
        if self.refuses(loaded):
            raise StartError("it cannot")
        self.loaded, self.drained = loaded, drained
        return {"replaced": ["route a"]}

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message["request"])

    def stop(self, *, interrupts: bool = False) -> None:
        self.commands.append("interrupt" if interrupts else "stop")
        if self.stops_on_request:
            self.end(0)

    def kill(self) -> None:
        self.commands.append("kill")
        self.end(KILLED)

    async def wait(self) -> int:
        return await self.over


class FakeLauncher:
    """Starts fake workers and keeps them, in the order of their start."""

    def __init__(self) -> None:
        self.started: list[FakeWorker] = []
        self.listen = True
        self.failures = 0
        self._more = asyncio.Condition()

    async def launch(self, setup: WorkerSetup) -> FakeWorker:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        child = FakeWorker(100 + len(self.started), setup, listens=self.listen)
        self.started.append(child)
        async with self._more:
            self._more.notify_all()
        return child

    async def wait_launched(self, count: int) -> FakeWorker:
        """Wait for the worker with this number, and return it."""
        async with asyncio.timeout(20), self._more:
            await self._more.wait_for(lambda: len(self.started) >= count)
        await settle()
        return self.started[count - 1]


@pytest.fixture
def launcher() -> FakeLauncher:
    return FakeLauncher()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def supervisor(launcher: FakeLauncher, clock: FakeClock) -> AsyncIterator[Supervisor]:
    """A supervisor of two workers, which have not been started."""
    made = Supervisor(
        LOADED, 2, cast("Launch", launcher.launch), restart_policy=AT_ONCE, clock=clock
    )
    yield made
    await made.stop()


async def test_each_worker_starts_with_its_slot(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """The start returns the addresses once all listen; one worker logs the warnings."""
    launcher.listen = False
    starting = asyncio.ensure_future(supervisor.start())
    await launcher.wait_launched(2)
    launcher.started[0].startup.set_result(ADDRESSES)
    await settle()
    assert not starting.done()
    launcher.started[1].startup.set_result(ADDRESSES)
    assert ADDRESSES == await starting
    setup = [child.setup for child in launcher.started]
    assert [(1, 2), (2, 2)] == [(each.slot.number, each.slot.count) for each in setup]
    assert [True, False] == [each.should_log_warnings for each in setup]


async def test_a_failed_start_kills_all_workers(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """The reason is reported once, and no worker keeps running."""
    launcher.listen = False
    starting = asyncio.ensure_future(supervisor.start())
    await launcher.wait_launched(2)
    launcher.started[1].startup.set_result("model 'm': no such file")
    with pytest.raises(StartError, match="model 'm': no such file"):
        await starting
    assert [["kill"], ["kill"]] == [child.commands for child in launcher.started]


async def test_a_dead_worker_is_restarted(supervisor: Supervisor, launcher: FakeLauncher) -> None:
    """The other workers are unaffected; the log has the worker and the cause."""
    await supervisor.start()
    with structlog.testing.capture_logs() as lines:
        launcher.started[0].end(KILLED)
        again = await launcher.wait_launched(3)
    assert (1, False) == (again.setup.slot.number, again.setup.should_log_warnings)
    assert [] == launcher.started[1].commands
    died = next(line for line in lines if line["event"] == "worker died")
    assert (1, "was killed by SIGKILL") == (died["worker"], died["ended"])
    assert 'gateway_worker_restarts_total{worker="1"} 1.0' in await page(supervisor)


async def test_repeated_failures_stop_the_gateway(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """After `max_failures` the gateway stops; the other workers finish their calls."""
    await supervisor.start()
    failed = asyncio.ensure_future(supervisor.wait_failed())
    for started in (1, 3, 4):
        child = launcher.started[0] if started == 1 else await launcher.wait_launched(started)
        assert not failed.done()
        child.end(1)
    async with asyncio.timeout(20):
        await failed
    assert 1 == await supervisor.stop()
    assert ["stop"] == launcher.started[1].commands


async def test_a_failed_restart_is_logged(supervisor: Supervisor, launcher: FakeLauncher) -> None:
    """It is logged with its reason and counts as a failure."""
    await supervisor.start()
    launcher.listen = False
    with structlog.testing.capture_logs() as lines:
        launcher.started[0].end(KILLED)
        child = await launcher.wait_launched(3)
        child.startup.set_result("the model has gone")
        await settle()
        child.end(1)
        await launcher.wait_launched(4)
    assert ["the model has gone"] == [
        line["reason"] for line in lines if line["event"] == "worker cannot start"
    ]


async def test_a_failed_process_creation_is_logged(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """It counts as a failure, and the next attempt succeeds."""
    await supervisor.start()
    launcher.failures = 1
    with structlog.testing.capture_logs() as lines:
        launcher.started[0].end(KILLED)
        await launcher.wait_launched(3)
    reasons = [line["reason"] for line in lines if line["event"] == "worker cannot start"]
    assert ["cannot start a worker process: Resource temporarily unavailable"] == reasons
    assert 'gateway_worker_up{worker="1"} 1.0' in await page(supervisor)


async def test_rare_failures_never_stop_the_gateway(
    supervisor: Supervisor, launcher: FakeLauncher, clock: FakeClock
) -> None:
    """Failures after a stable run do not add up."""
    await supervisor.start()
    child = launcher.started[0]
    for started in range(3, 10):
        clock.advance(60)
        child.end(KILLED)
        child = await launcher.wait_launched(started)
    assert [] == launcher.started[1].commands


async def test_stop_waits_for_all_workers(supervisor: Supervisor, launcher: FakeLauncher) -> None:
    """Each worker gets a stop signal, none is restarted, and the status is 0."""
    await supervisor.start()
    assert 0 == await supervisor.stop()
    assert [["stop"], ["stop"]] == [child.commands for child in launcher.started]
    assert not await supervisor.ready()


async def test_an_interrupt_skips_pre_stop_in_all_workers(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """Workers get SIGINT, but one that starts gets SIGTERM: it may have no handler yet."""
    await supervisor.start()
    launcher.listen = False
    launcher.started[0].end(KILLED)
    await launcher.wait_launched(3)
    await supervisor.stop(interrupts=True)
    assert [[], ["interrupt"], ["stop"]] == [child.commands for child in launcher.started]


async def test_stop_during_the_start_lets_calls_complete(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """A worker that already serves is stopped, not killed, while another one starts."""
    launcher.listen = False
    starting = asyncio.ensure_future(supervisor.start())
    await launcher.wait_launched(2)
    launcher.started[0].startup.set_result(ADDRESSES)
    await settle()
    assert not await supervisor.ready()
    starting.cancel()
    await asyncio.wait({starting})
    assert 0 == await supervisor.stop()
    assert [["stop"], ["stop"]] == [child.commands for child in launcher.started]
    assert [["serving"], []] == [child.sent for child in launcher.started]


async def test_a_crash_during_stop_changes_the_exit_status(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """A worker that crashes while it drains loses its calls."""
    await supervisor.start()
    launcher.started[0].stops_on_request = False
    stopping = asyncio.ensure_future(supervisor.stop())
    await settle()
    launcher.started[0].end(-signal.SIGSEGV)
    assert 1 == await stopping


async def test_a_worker_that_starts_during_stop_is_stopped(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """Its end by the signal, before it has a handler, is no failure."""
    await supervisor.start()
    launcher.listen = False
    launcher.started[0].end(KILLED)
    child = await launcher.wait_launched(3)
    child.stops_on_request = False
    stopping = asyncio.ensure_future(supervisor.stop())
    await settle()
    assert ["stop"] == child.commands
    child.end(-signal.SIGTERM)
    assert 0 == await stopping


async def test_a_worker_that_exceeds_the_drain_time_is_killed(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit status is 1."""
    monkeypatch.setattr("gateway.app.workers.supervisor._GRACE_S", 0.01)
    supervisor = Supervisor(LOADED, 2, cast("Launch", launcher.launch))
    await supervisor.start()
    launcher.started[0].stops_on_request = False
    assert 1 == await supervisor.stop()
    assert [["stop", "kill"], ["stop"]] == [child.commands for child in launcher.started]


async def test_the_gateway_is_ready_while_any_worker_is(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """One ready worker is enough."""
    await supervisor.start()
    launcher.started[0].is_ready = False
    assert await supervisor.ready()
    launcher.started[1].is_ready = False
    assert not await supervisor.ready()


async def test_metrics_continue_when_a_worker_is_replaced(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """Totals include the counts of dead workers."""
    await supervisor.start()
    launcher.started[0].count_calls(5)
    launcher.started[1].count_calls(2)
    await page(supervisor)
    launcher.started[0].end(KILLED)
    again = await launcher.wait_launched(3)
    again.count_calls(1)
    found = await page(supervisor)
    assert 'gateway_requests_total{model="m"} 8.0' in found
    assert 'gateway_worker_requests_total{worker="1"} 6.0' in found
    assert 'gateway_worker_requests_total{worker="2"} 2.0' in found
    assert 'gateway_worker_up{worker="1"} 1.0' in found


async def test_one_worker_requests_statistics_of_servers(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """Workers have the same servers; what a dead one counted itself is kept."""
    await supervisor.start()
    own = [["nv_inference_count", "m", "1", "", 5]]
    document: dict[str, Any] = {
        "own": own,
        "pending": [],
        "arrived": {},
        "sent": {},
        "servers": None,
    }
    for worker in launcher.started:
        worker.counts = document
    assert 'nv_inference_count{model="m",version="1"} 10.0' in await page(supervisor)
    assert [True, False] == [worker.asks[-1] for worker in launcher.started[:2]]
    launcher.started[0].end(KILLED)
    await launcher.wait_launched(3)
    assert 'nv_inference_count{model="m",version="1"} 10.0' in await page(supervisor)


async def test_a_worker_that_ends_during_a_page_counts_once(
    supervisor: Supervisor,
    launcher: FakeLauncher,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever it ends between two slices of the page, of this page and of the next one."""
    monkeypatch.setattr(slices, "SLICE_S", -1.0)  # each step is a slice
    await supervisor.start()
    found, expected = [], []
    for steps in range(40):
        clock.advance(60)
        worker = await launcher.wait_launched(steps + 2)
        worker.count_calls(5)
        worker.counts = {"own": [["nv_inference_count", "m", "1", "", 5]], "pending": [],
                         "arrived": {}, "sent": {}, "servers": None}  # fmt: skip
        pages = [asyncio.create_task(page(supervisor))]
        for _ in range(steps):
            await asyncio.sleep(0)
        worker.end(KILLED)
        pages.append(asyncio.create_task(page(supervisor)))
        await launcher.wait_launched(steps + 3)
        pages.append(asyncio.create_task(page(supervisor)))
        for text in await asyncio.gather(*pages):
            found.append(
                re.findall(r"^(?:gateway_requests_total|nv_inf\w+){.*} (.*)$", text, re.MULTILINE)
            )
            expected.append([f"{5.0 * (steps + 1)}"] * 2)
    assert expected == found


OTHER = LOADED.changed(in_flight_bytes=5, listeners=())


async def test_reload_reaches_all_workers(supervisor: Supervisor, launcher: FakeLauncher) -> None:
    """Each worker, also a restarted one, gets the new configuration with reserved addresses."""
    await supervisor.start()
    drained = frozenset({"a/b:1"})
    assert await supervisor.reload(OTHER, drained) == {"replaced": ["route a"]}
    launcher.started[0].end(KILLED)
    await launcher.wait_launched(3)
    for worker in launcher.started[1:]:
        assert worker.loaded.config.in_flight_bytes == 5
        assert worker.loaded.config.listeners == LOADED.config.listeners
        assert worker.drained == drained


async def test_a_reload_that_one_worker_rejects_is_reverted(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """Earlier workers get the old configuration again; one that cannot is restarted."""
    await supervisor.start()
    first, second = launcher.started
    first.refuses = lambda loaded: loaded is LOADED
    second.refuses = lambda _loaded: True
    with pytest.raises(StartError, match="worker 2: it cannot"):
        await supervisor.reload(OTHER)
    assert "stop" in first.commands
    third = await launcher.wait_launched(3)
    assert third.loaded is LOADED


async def test_a_worker_that_starts_during_a_reload_is_updated(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """It started with the old configuration, and serves only with the new one."""
    await supervisor.start()
    launcher.listen = False
    launcher.started[0].end(KILLED)
    third = await launcher.wait_launched(3)
    await supervisor.reload(OTHER)
    assert third.loaded is LOADED
    third.startup.set_result(ADDRESSES)
    await settle()
    assert third.loaded.config.in_flight_bytes == 5


async def test_a_second_reload_missed_a_starting_worker(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """A starting worker serves only with the last of several new configurations."""
    await supervisor.start()
    launcher.listen = False
    launcher.started[0].end(KILLED)
    third = await launcher.wait_launched(3)
    await supervisor.reload(OTHER)
    third.may_reload.clear()
    third.startup.set_result(ADDRESSES)
    await settle()
    await supervisor.reload(LOADED.changed(in_flight_bytes=6))
    third.may_reload.set()
    await settle()
    assert third.loaded.config.in_flight_bytes == 6


async def test_a_restarted_worker_kept_a_reverted_configuration(
    supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    """It restarted with the configuration that another worker then rejected."""
    await supervisor.start()
    first, second = launcher.started
    second.may_reload.clear()
    second.refuses = lambda _loaded: True
    reload = asyncio.ensure_future(supervisor.reload(OTHER))
    await settle()
    first.end(KILLED)
    third = await launcher.wait_launched(3)
    assert third.loaded.config.in_flight_bytes == 5
    second.may_reload.set()
    with pytest.raises(StartError, match="worker 2: it cannot"):
        await reload
    assert third.loaded is LOADED


async def silenced(supervisor: Supervisor, *workers: FakeWorker) -> None:
    """Let workers miss polls until the supervisor notices."""
    for each in workers:
        each.replies = False
    async with asyncio.timeout(45):
        while len([row for row in (await rows(supervisor)).values() if not row]) < len(workers):
            await settle()


async def rows(supervisor: Supervisor) -> dict[int, bool]:
    """Return which workers serve, by the status."""
    return {row["worker"]: row["serving"] for row in (await supervisor.status())["workers"]}


@pytest.fixture
async def lenient(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Supervisor]:
    """A supervisor that polls without a pause, and kills no worker that hangs."""
    monkeypatch.setattr("gateway.app.workers.supervisor.POLL_S", 0.0)
    lifecycle = LOADED.config.lifecycle.model_copy(update={"worker_timeout": 0.0})
    made = Supervisor(LOADED.changed(lifecycle=lifecycle), 2, cast("Launch", launcher.launch))
    await made.start()
    yield made
    await made.stop()


async def test_a_worker_that_hangs_is_down(lenient: Supervisor, launcher: FakeLauncher) -> None:
    """The gateway is not ready and says why, until the worker replies again."""
    with structlog.testing.capture_logs() as lines:
        await silenced(lenient, launcher.started[0])
        assert not await lenient.ready()
        status = await lenient.status()
        assert ("worker 1 does not reply", [101]) == (status["reason"], status["routes"])
        found = await page(lenient)
        assert 'gateway_worker_up{worker="1"} 0.0' in found
        assert 'gateway_worker_up{worker="2"} 1.0' in found
        launcher.started[0].replies = True
        async with asyncio.timeout(45):
            while not await lenient.ready():
                await settle()
    assert [("process does not reply", 1), ("process replies again", 1)] == [
        (line["event"], line["worker"]) for line in lines
    ]


async def test_a_worker_that_hangs_is_killed_and_restarted(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `worker_timeout` it is replaced."""
    monkeypatch.setattr("gateway.app.workers.supervisor.POLL_S", 0.0)
    supervisor = Supervisor(LOADED, 2, cast("Launch", launcher.launch), restart_policy=AT_ONCE)
    await supervisor.start()
    launcher.started[1].replies = False
    again = await launcher.wait_launched(3)
    assert 2 == again.setup.slot.number
    assert await supervisor.ready()
    await supervisor.stop()


async def test_a_reload_does_not_wait_for_a_worker_that_hangs(
    lenient: Supervisor, launcher: FakeLauncher
) -> None:
    """It restarts with the new configuration, which the other one has already."""
    first, second = launcher.started
    first.may_reload.clear()
    await silenced(lenient, first)
    assert {"replaced": ["route a"]} == await lenient.reload(OTHER)
    again = await launcher.wait_launched(3)
    assert "stop" in first.commands
    assert (5, 5) == (again.loaded.config.in_flight_bytes, second.loaded.config.in_flight_bytes)


async def test_a_reload_without_any_reply_changes_nothing(
    lenient: Supervisor, launcher: FakeLauncher
) -> None:
    """A configuration that no worker can try is not put in force."""
    await silenced(lenient, *launcher.started)
    with pytest.raises(StartError, match="no worker replies"):
        await lenient.reload(OTHER)
    assert ["stop" in each.commands for each in launcher.started] == [False, False]


async def test_a_worker_that_hangs_during_a_reload_does_not_fail_it(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed after `worker_timeout`, and restarts with the new configuration."""
    monkeypatch.setattr("gateway.app.workers.supervisor.POLL_S", 0.0)
    supervisor = Supervisor(LOADED, 2, cast("Launch", launcher.launch), restart_policy=AT_ONCE)
    await supervisor.start()
    first, second = launcher.started
    first.may_reload.clear()
    reload = asyncio.ensure_future(supervisor.reload(OTHER))
    await settle()
    first.replies = False
    again = await launcher.wait_launched(3)
    assert {"replaced": ["route a"]} == await reload
    assert (5, 5) == (again.loaded.config.in_flight_bytes, second.loaded.config.in_flight_bytes)
    await supervisor.stop()


async def test_a_worker_that_hangs_and_is_never_killed_does_not_fail_a_reload(
    lenient: Supervisor, launcher: FakeLauncher
) -> None:
    """The end of the reload's time restarts it, as if it had hung before."""
    first, second = launcher.started
    first.is_late = asyncio.Event()
    reload = asyncio.ensure_future(lenient.reload(OTHER))
    await silenced(lenient, first)
    first.is_late.set()
    assert {"replaced": ["route a"]} == await reload
    assert ("stop" in first.commands, OTHER.config.in_flight_bytes) == (
        True,
        second.loaded.config.in_flight_bytes,
    )


async def test_a_worker_that_hangs_delays_no_stop(
    lenient: Supervisor, launcher: FakeLauncher
) -> None:
    """It is killed at once, because it would not see the signal."""
    await silenced(lenient, launcher.started[0])
    await lenient.stop()
    found = [
        [each for each in worker.commands if each not in {"count", "ping"}]
        for worker in launcher.started
    ]
    assert [["kill"], ["stop"]] == found


async def page(supervisor: Supervisor) -> str:
    return (await supervisor.page(""))[0].decode()


def test_a_changed_configuration_is_a_copy() -> None:
    """The loaded configuration stays unchanged."""
    changed: LoadedConfig = LOADED.changed(workers=5)
    assert (5, 1) == (changed.config.workers, LOADED.config.workers)
