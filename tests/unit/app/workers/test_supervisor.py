"""A supervisor's decisions, with workers that are no processes."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast

import pytest
import structlog

from gateway.app.errors import StartError
from gateway.app.processes.channel import WorkerSetup
from gateway.app.processes.restart_policy import RestartPolicy
from gateway.app.workers.supervisor import Launch, Supervisor
from gateway.config.load import LoadedConfig, load_text
from gateway.telemetry.aggregation import Snapshot
from tests.fakes import FakeClock, settle

LOADED = load_text("version: 1\nlisteners: [{http: 0}]\nlifecycle: {pre_stop: 0s, drain: 0s}\n")
AT_ONCE = RestartPolicy(first_wait_s=0.0, max_wait_s=0.0, max_failures=3)
ADDRESSES = {"main.http": "127.0.0.1:8000"}
KILLED = -signal.SIGKILL


class FakeChild:
    """A worker whose life the test decides."""

    def __init__(self, pid: int, setup: WorkerSetup, *, listens: bool) -> None:
        self.pid = pid
        self.setup = setup
        self.metrics: Snapshot = ()
        self.is_ready = True
        self.commands: list[str] = []
        self.startup: asyncio.Future[Mapping[str, str] | str] = asyncio.Future()
        self.over: asyncio.Future[int] = asyncio.Future()
        self.ends_when_told = True
        self.loaded, self.drained = setup.loaded, setup.drained
        self.may_reload = asyncio.Event()
        self.may_reload.set()
        self.refuses: Callable[[LoadedConfig], bool] = lambda _loaded: False
        if listens:
            self.startup.set_result(ADDRESSES)

    def answered(self, calls: int) -> None:
        """Let it have answered so many calls."""
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

    async def update_metrics(self) -> None:
        self.commands.append("count")

    async def reload(self, loaded: LoadedConfig, drained: frozenset[str]) -> dict[str, list[str]]:
        await self.may_reload.wait()
        if self.refuses(loaded):
            raise StartError("it cannot")
        self.loaded, self.drained = loaded, drained
        return {"replaced": ["route a"]}

    def stop(self) -> None:
        self.commands.append("stop")
        if self.ends_when_told:
            self.end(0)

    def kill(self) -> None:
        self.commands.append("kill")
        self.end(KILLED)

    async def wait(self) -> int:
        return await self.over


class Nursery:
    """Starts fake workers and keeps them, in the order of their birth."""

    def __init__(self) -> None:
        self.born: list[FakeChild] = []
        self.listen = True
        self.failures = 0
        self._more = asyncio.Condition()

    async def launch(self, setup: WorkerSetup) -> FakeChild:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        child = FakeChild(100 + len(self.born), setup, listens=self.listen)
        self.born.append(child)
        async with self._more:
            self._more.notify_all()
        return child

    async def reached(self, count: int) -> FakeChild:
        """Wait until so many have been born, and return the last of them."""
        async with asyncio.timeout(5), self._more:
            await self._more.wait_for(lambda: len(self.born) >= count)
        await settle()
        return self.born[count - 1]


@pytest.fixture
def nursery() -> Nursery:
    return Nursery()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def supervisor(nursery: Nursery, clock: FakeClock) -> AsyncIterator[Supervisor]:
    """A supervisor of two workers, which have not been started."""
    made = Supervisor(
        LOADED, 2, cast("Launch", nursery.launch), restart_policy=AT_ONCE, clock=clock
    )
    yield made
    await made.stop()


async def test_starts_each_with_its_seat(supervisor: Supervisor, nursery: Nursery) -> None:
    """It says where they listen once all do; one of them is to tell of the configuration."""
    nursery.listen = False
    starting = asyncio.ensure_future(supervisor.start())
    await nursery.reached(2)
    nursery.born[0].startup.set_result(ADDRESSES)
    await settle()
    assert not starting.done()
    nursery.born[1].startup.set_result(ADDRESSES)
    assert ADDRESSES == await starting
    setup = [child.setup for child in nursery.born]
    assert [(1, 2), (2, 2)] == [(each.slot.number, each.slot.count) for each in setup]
    assert [True, False] == [each.should_log_warnings for each in setup]


async def test_one_that_cannot_start_ends_the_others(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """The reason why one cannot start is reported once, and nobody is left running."""
    nursery.listen = False
    starting = asyncio.ensure_future(supervisor.start())
    await nursery.reached(2)
    nursery.born[1].startup.set_result("model 'm': no such file")
    with pytest.raises(StartError, match="model 'm': no such file"):
        await starting
    assert [["kill"], ["kill"]] == [child.commands for child in nursery.born]


async def test_one_that_died_is_started_again(supervisor: Supervisor, nursery: Nursery) -> None:
    """The others are left alone; the log says who died, and of what."""
    await supervisor.start()
    with structlog.testing.capture_logs() as lines:
        nursery.born[0].end(KILLED)
        again = await nursery.reached(3)
    assert (1, False) == (again.setup.slot.number, again.setup.should_log_warnings)
    assert [] == nursery.born[1].commands
    died = next(line for line in lines if line["event"] == "worker died")
    assert (1, "was killed by SIGKILL") == (died["worker"], died["ended"])
    assert 'gateway_worker_restarts_total{worker="1"} 1.0' in await page(supervisor)


async def test_one_that_keeps_dying_is_given_up(supervisor: Supervisor, nursery: Nursery) -> None:
    """After so many deaths in a row the gateway ends; the others may finish what they have."""
    await supervisor.start()
    failed = asyncio.ensure_future(supervisor.wait_failed())
    for born in (1, 3, 4):
        child = nursery.born[0] if born == 1 else await nursery.reached(born)
        assert not failed.done()
        child.end(1)
    async with asyncio.timeout(5):
        await failed
    assert 1 == await supervisor.stop()
    assert ["stop"] == nursery.born[1].commands


async def test_one_that_cannot_start_again_is_told_of(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """A later start that fails is logged with its reason and counts as a death."""
    await supervisor.start()
    nursery.listen = False
    with structlog.testing.capture_logs() as lines:
        nursery.born[0].end(KILLED)
        child = await nursery.reached(3)
        child.startup.set_result("the model has gone")
        await settle()
        child.end(1)
        await nursery.reached(4)
    assert ["the model has gone"] == [
        line["reason"] for line in lines if line["event"] == "worker cannot start"
    ]


async def test_a_machine_without_room_for_processes_is_told_of(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """What keeps a process from being made counts as a death; afterwards there is one again."""
    await supervisor.start()
    nursery.failures = 1
    with structlog.testing.capture_logs() as lines:
        nursery.born[0].end(KILLED)
        await nursery.reached(3)
    reasons = [line["reason"] for line in lines if line["event"] == "worker cannot start"]
    assert ["cannot start a worker process: Resource temporarily unavailable"] == reasons
    assert 'gateway_worker_up{worker="1"} 1.0' in await page(supervisor)


async def test_one_that_served_well_may_die_again(
    supervisor: Supervisor, nursery: Nursery, clock: FakeClock
) -> None:
    """Deaths far apart are never too many."""
    await supervisor.start()
    child = nursery.born[0]
    for born in range(3, 10):
        clock.advance(60)
        child.end(KILLED)
        child = await nursery.reached(born)
    assert [] == nursery.born[1].commands


async def test_stop_lets_all_finish(supervisor: Supervisor, nursery: Nursery) -> None:
    """Each is told to stop, none is started again, and the status is 0."""
    await supervisor.start()
    assert 0 == await supervisor.stop()
    assert [["stop"], ["stop"]] == [child.commands for child in nursery.born]
    assert not await supervisor.ready()


async def test_stop_during_the_start_lets_calls_complete(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """A worker that serves already is stopped, not killed, while another one starts."""
    nursery.listen = False
    starting = asyncio.ensure_future(supervisor.start())
    await nursery.reached(2)
    nursery.born[0].startup.set_result(ADDRESSES)
    await settle()
    assert not await supervisor.ready()
    starting.cancel()
    await asyncio.wait({starting})
    assert 0 == await supervisor.stop()
    assert [["stop"], ["stop"]] == [child.commands for child in nursery.born]


async def test_a_death_on_the_way_out_shows_in_the_status(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """A worker that crashes while it drains has lost what it had."""
    await supervisor.start()
    nursery.born[0].ends_when_told = False
    stopping = asyncio.ensure_future(supervisor.stop())
    await settle()
    nursery.born[0].end(-signal.SIGSEGV)
    assert 1 == await stopping


async def test_one_that_is_born_while_all_stop_is_stopped(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """A worker that has not heard the signal's handler yet has nothing to lose."""
    await supervisor.start()
    nursery.listen = False
    nursery.born[0].end(KILLED)
    child = await nursery.reached(3)
    child.ends_when_told = False
    stopping = asyncio.ensure_future(supervisor.stop())
    await settle()
    assert ["stop"] == child.commands
    child.end(-signal.SIGTERM)
    assert 0 == await stopping


async def test_one_that_takes_too_long_is_killed(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the time the configuration gives there is an end."""
    monkeypatch.setattr("gateway.app.workers.supervisor._GRACE_S", 0.01)
    supervisor = Supervisor(LOADED, 2, cast("Launch", nursery.launch))
    await supervisor.start()
    nursery.born[0].ends_when_told = False
    assert 1 == await supervisor.stop()
    assert [["stop", "kill"], ["stop"]] == [child.commands for child in nursery.born]


async def test_ready_while_any_worker_is(supervisor: Supervisor, nursery: Nursery) -> None:
    """One that takes requests is enough."""
    await supervisor.start()
    nursery.born[0].is_ready = False
    assert await supervisor.ready()
    nursery.born[1].is_ready = False
    assert not await supervisor.ready()


async def test_counts_go_on_when_a_worker_is_replaced(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """Totals of all, and of each worker, hold what the dead have counted."""
    await supervisor.start()
    nursery.born[0].answered(5)
    nursery.born[1].answered(2)
    await page(supervisor)
    nursery.born[0].end(KILLED)
    again = await nursery.reached(3)
    again.answered(1)
    found = await page(supervisor)
    assert 'gateway_requests_total{model="m"} 8.0' in found
    assert 'gateway_worker_requests_total{worker="1"} 6.0' in found
    assert 'gateway_worker_requests_total{worker="2"} 2.0' in found
    assert 'gateway_worker_up{worker="1"} 1.0' in found


OTHER = LOADED.changed(in_flight_bytes=5, listeners=())


async def test_reload_reaches_all_workers(supervisor: Supervisor, nursery: Nursery) -> None:
    """Each gets the new configuration with the reserved addresses, and so does one that restarts."""
    await supervisor.start()
    drained = frozenset({"a/b:1"})
    assert await supervisor.reload(OTHER, drained) == {"replaced": ["route a"]}
    nursery.born[0].end(KILLED)
    await nursery.reached(3)
    for worker in nursery.born[1:]:
        assert worker.loaded.config.in_flight_bytes == 5
        assert worker.loaded.config.listeners == LOADED.config.listeners
        assert worker.drained == drained


async def test_reload_that_one_worker_refuses_is_undone(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """The workers before it get the old configuration again; one that cannot is restarted."""
    await supervisor.start()
    first, second = nursery.born
    first.refuses = lambda loaded: loaded is LOADED
    second.refuses = lambda _loaded: True
    with pytest.raises(StartError, match="worker 2: it cannot"):
        await supervisor.reload(OTHER)
    assert "stop" in first.commands
    third = await nursery.reached(3)
    assert third.loaded is LOADED


async def test_worker_that_starts_during_a_reload_gets_the_new_configuration(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """It began with the old one, and serves only with the new one."""
    await supervisor.start()
    nursery.listen = False
    nursery.born[0].end(KILLED)
    third = await nursery.reached(3)
    await supervisor.reload(OTHER)
    assert third.loaded is LOADED
    third.startup.set_result(ADDRESSES)
    await settle()
    assert third.loaded.config.in_flight_bytes == 5


async def test_second_reload_missed_a_worker_that_followed_the_first(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """A worker that starts serves only with the last of several new configurations."""
    await supervisor.start()
    nursery.listen = False
    nursery.born[0].end(KILLED)
    third = await nursery.reached(3)
    await supervisor.reload(OTHER)
    third.may_reload.clear()
    third.startup.set_result(ADDRESSES)
    await settle()
    await supervisor.reload(LOADED.changed(in_flight_bytes=6))
    third.may_reload.set()
    await settle()
    assert third.loaded.config.in_flight_bytes == 6


async def test_worker_that_restarted_during_a_failed_reload_kept_the_new_configuration(
    supervisor: Supervisor, nursery: Nursery
) -> None:
    """It began with the configuration that another worker then refused."""
    await supervisor.start()
    first, second = nursery.born
    second.may_reload.clear()
    second.refuses = lambda _loaded: True
    reload = asyncio.ensure_future(supervisor.reload(OTHER))
    await settle()
    first.end(KILLED)
    third = await nursery.reached(3)
    assert third.loaded.config.in_flight_bytes == 5
    second.may_reload.set()
    with pytest.raises(StartError, match="worker 2: it cannot"):
        await reload
    assert third.loaded is LOADED


async def page(supervisor: Supervisor) -> str:
    return (await supervisor.page(""))[0].decode()


def test_workers_have_the_configuration_of_the_file() -> None:
    """Changing a configuration for workers leaves the one that was read as it is."""
    changed: LoadedConfig = LOADED.changed(workers=5)
    assert (5, 1) == (changed.config.workers, LOADED.config.workers)
