"""The keeper of the shadow process: it starts it, restarts it and ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import cast

import pytest
from structlog.testing import capture_logs

from gateway.api.start_error import StartError
from gateway.app.processes.channel import WorkerSetup
from gateway.app.processes.restart_policy import RestartPolicy
from gateway.app.processes.worker_process import WorkerProcess
from gateway.config.load import load_text
from gateway.migration.mirror.keeper import Launch, ShadowKeeper
from gateway.telemetry.aggregation import Snapshot
from tests.fakes import settle

LOADED = load_text("version: 1\nlisteners: [{http: 0}]\ncapture: {directory: d}\n")
AT_ONCE = RestartPolicy(first_wait_s=0.0, max_wait_s=0.0, max_failures=None)


class FakeProcess:
    """A process whose life the test decides."""

    def __init__(self, setup: WorkerSetup, failure: str) -> None:
        self.pid = 1
        self.setup = setup
        self.over: asyncio.Future[int] = asyncio.Future()
        self.metrics: Snapshot = ()
        self.replies = True
        self._failure = failure
        if failure:
            self.over.set_result(1)

    async def wait_started(self) -> dict[str, str]:
        if self._failure:
            raise StartError(self._failure)
        return {}

    async def wait(self) -> int:
        return await self.over

    async def ping(self) -> bool:
        return self.replies

    async def update_metrics(self) -> bool:
        return self.replies

    def stop(self) -> None:
        self.over.set_result(0)

    def kill(self) -> None:
        self.over.set_result(-signal.SIGKILL)


class Launcher:
    def __init__(self) -> None:
        self.started: list[FakeProcess] = []
        self.failures: list[str] = []

    async def launch(self, setup: WorkerSetup, _module: str) -> WorkerProcess:
        failure = self.failures.pop(0) if self.failures else ""
        self.started.append(FakeProcess(setup, failure))
        return cast("WorkerProcess", self.started[-1])


def sockets_of(setup: WorkerSetup) -> Mapping[str, int]:
    return setup.parts["migration"].sockets


def keeper(launcher: Launcher, count: int = 2) -> ShadowKeeper:
    return ShadowKeeper(LOADED, count, cast("Launch", launcher.launch), AT_ONCE)


def metrics(shadow_keeper: ShadowKeeper) -> dict[str, float]:
    return {each.name: each.value for metric in shadow_keeper.collect() for each in metric.samples}


async def test_the_process_gets_a_socket_to_each_worker() -> None:
    """It has the role `shadow`, and a restart keeps the sockets."""
    launcher = Launcher()
    shadow_keeper = keeper(launcher)
    ends = [shadow_keeper.serving_ends(number)[""].fileno() for number in (1, 2)]
    await shadow_keeper.start()
    setup = launcher.started[0].setup
    assert (setup.slot.role, sorted(sockets_of(setup))) == ("shadow", ["1/", "2/"])
    launcher.started[0].over.set_result(-signal.SIGKILL)
    await settle()
    assert sockets_of(launcher.started[1].setup) == sockets_of(setup)
    assert [shadow_keeper.serving_ends(number)[""].fileno() for number in (1, 2)] == ends
    assert metrics(shadow_keeper)["gateway_shadow_restarts_total"] == 1
    await shadow_keeper.stop()


async def test_a_dead_process_is_restarted() -> None:
    """Each death is one event, also while it cannot start; serving continues."""
    launcher = Launcher()
    shadow_keeper = keeper(launcher)
    await shadow_keeper.start()
    launcher.failures = ["d: Permission denied"] * 10
    with capture_logs() as logs:
        launcher.started[0].over.set_result(-signal.SIGKILL)
        for _ in range(10):
            await settle()
    died = [each["ended"] for each in logs if each["event"] == "shadow process died"]
    assert died == ["was killed by SIGKILL", *["d: Permission denied"] * 10]
    assert metrics(shadow_keeper)["gateway_shadow_up"] == 1
    await shadow_keeper.stop()
    assert metrics(shadow_keeper)["gateway_shadow_up"] == 0


async def test_a_process_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that misses its polls is down, and is killed and started again after the timeout."""
    monkeypatch.setattr("gateway.migration.mirror.keeper.POLL_S", 0.0)
    launcher = Launcher()
    shadow_keeper = keeper(launcher)
    await shadow_keeper.start()
    lost = [["gateway_log_lines_lost_total", {"output": "stderr", "reason": "buffer_full"}, 2]]
    launcher.started[0].metrics = [["gateway_log_lines_lost", "Lost.", "counter", lost]]
    launcher.started[0].replies = False
    with capture_logs() as logs:
        async with asyncio.timeout(45):
            while len(launcher.started) < 2:
                await settle()
    assert [
        "process does not reply",
        "process killed",
        "shadow process died",
        "shadow process started",
    ] == [each["event"] for each in logs]
    assert metrics(shadow_keeper)["gateway_shadow_up"] == 1
    assert metrics(shadow_keeper)["gateway_shadow_log_lines_lost_total"] == 2
    await shadow_keeper.stop()


async def test_a_failed_first_start_is_raised() -> None:
    """A gateway that cannot record from the beginning does not start."""
    launcher = Launcher()
    launcher.failures = ["d: Permission denied"]
    shadow_keeper = keeper(launcher)
    with pytest.raises(StartError, match="Permission denied"):
        await shadow_keeper.start()
    await shadow_keeper.stop()


async def test_stopping_twice_is_harmless() -> None:
    """A second stop has no effect and starts no process."""
    launcher = Launcher()
    shadow_keeper = keeper(launcher)
    await shadow_keeper.start()
    await shadow_keeper.stop()
    await shadow_keeper.stop()
    assert len(launcher.started) == 1


MIGRATION = """version: 1
listeners: [{{http: 0}}]
upstreams: {{a: {{url: "http://h:1"}}, b: {{url: "http://h:{port}"}}}}
routes: [{{name: r, targets: [{{upstream: a, weight: {weight}}}, {{upstream: b, weight: 0}}]}}]
migrations: {{m: {{route: r, old: a, new: b}}}}
"""


async def test_changed_targets_replace_the_process_of_a_migration() -> None:
    """A changed upstream replaces it without an event; a changed weight does not."""
    launcher = Launcher()
    loaded = load_text(MIGRATION.format(port=2, weight=1))
    shadow_keeper = ShadowKeeper(loaded, 1, cast("Launch", launcher.launch), AT_ONCE)
    assert sorted(shadow_keeper.serving_ends(1)) == ["m"]
    await shadow_keeper.start()
    with capture_logs() as logs:
        shadow_keeper.change(load_text(MIGRATION.format(port=2, weight=5)))
        await settle()
        assert len(launcher.started) == 1
        shadow_keeper.change(load_text(MIGRATION.format(port=3, weight=5)))
        for _ in range(10):
            await settle()
    assert len(launcher.started) == 2
    assert sockets_of(launcher.started[1].setup) == sockets_of(launcher.started[0].setup)
    assert [each["event"] for each in logs] == ["shadow process started"]
    assert metrics(shadow_keeper)["gateway_shadow_restarts_total"] == 0
    await shadow_keeper.stop()
