"""The keeper of the shadow process: it starts it, restarts it and ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import cast

import pytest
from structlog.testing import capture_logs

from gateway.api.start_error import StartError
from gateway.config.load import load_text
from gateway.processes.channel import WorkerSetup
from gateway.shadow.keeper import Launch, ShadowKeeper
from gateway.shadow.part import ShadowUser
from tests.fakes import settle
from tests.unit.shadow.process_kit import AT_ONCE, Launcher

LOADED = load_text("version: 1\nlisteners: [{http: 0}]\n")


def sockets_of(setup: WorkerSetup) -> Mapping[str, int]:
    return setup.parts["calls"].sockets


def keeper(launcher: Launcher, count: int = 2) -> ShadowKeeper:
    found = ShadowKeeper(LOADED, count, cast("Launch", launcher.launch), AT_ONCE)
    found.join(ShadowUser("calls", "package.module:part", ("",)))
    return found


def metrics(shadow_keeper: ShadowKeeper) -> dict[str, float]:
    return {each.name: each.value for metric in shadow_keeper.collect() for each in metric.samples}


async def test_the_process_gets_a_socket_to_each_worker() -> None:
    """It has the role `shadow`, and a restart keeps the sockets."""
    launcher = Launcher()
    shadow_keeper = keeper(launcher)
    ends = [shadow_keeper.setup("calls", number).sockets[""].fileno() for number in (1, 2)]
    await shadow_keeper.start()
    setup = launcher.started[0].setup
    assert (setup.slot.role, sorted(sockets_of(setup))) == ("shadow", ["1/", "2/"])
    launcher.started[0].over.set_result(-signal.SIGKILL)
    await settle()
    assert sockets_of(launcher.started[1].setup) == sockets_of(setup)
    assert [shadow_keeper.setup("calls", number).sockets[""].fileno() for number in (1, 2)] == ends
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
    monkeypatch.setattr("gateway.shadow.keeper.POLL_S", 0.0)
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
