"""A shadow process that is killed, stopped or slow: no call fails or waits, and counts balance."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from gateway.app import Gateway
from gateway.migration.captures.capture import Capture
from tests.integration import http_kit, workers_kit
from tests.integration.asking_kit import ask, running, urls
from tests.integration.cli_kit import Running
from tests.integration.migration.test_capture import PIXELS, configuration, gateway_command
from tests.integration.workers_kit import (
    connect,
    end,
    events,
    eventually,
    of_workers,
    pids,
    two_workers,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]


@pytest.fixture(autouse=True, scope="module")
def forked_processes() -> None:
    """The shadow processes of these tests start from nothing, as those of a user do."""


async def metrics(gateway: Gateway) -> dict[str, float]:
    """Return the values of all metrics of a capture and of the shadow process."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{gateway.addresses['admin']}/metrics") as response,
    ):
        text = await response.text()
    lines = re.findall(r"^(gateway_(?:capture|shadow)_\S+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


async def until(gateway: Gateway, condition: Callable[[dict[str, float]], bool]) -> None:
    async def holds() -> bool:
        return condition(await metrics(gateway))

    await http_kit.eventually(holds)


def shadow_pid(gateway: Gateway) -> int:
    """Return the id of the shadow process: the only child that is one."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (found,) = [
        int(pid)
        for pid in children
        if b"gateway.shadow.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return found


def is_balanced(found: dict[str, float]) -> bool:
    dropped = sum(
        value for name, value in found.items() if name.startswith("gateway_capture_dropped_total{")
    )
    recorded = found["gateway_capture_calls_total"]
    return found["gateway_capture_sampled_total"] == recorded + dropped


async def test_killed_shadow_process_fails_no_call(tmp_path: Path) -> None:
    """Calls succeed while it is down, it is restarted, and each call is counted once."""
    async with running(configuration(tmp_path, payload="full", min_free=0)) as gateway:
        url = urls(gateway, "digits")["oip.http"]
        expected = await ask(url, "digits", {"X": PIXELS})
        for _ in range(3):
            restarts = (await metrics(gateway))["gateway_shadow_restarts_total"]
            os.kill(shadow_pid(gateway), signal.SIGKILL)
            for _ in range(5):
                found = await ask(url, "digits", {"X": PIXELS})
                assert np.array_equal(found["probabilities"], expected["probabilities"])
            await until(
                gateway,
                lambda found, restarts=restarts: (  # type: ignore[misc]
                    found["gateway_shadow_restarts_total"] > restarts
                    and found["gateway_shadow_up"] == 1
                ),
            )
        await until(gateway, is_balanced)
        counts = await metrics(gateway)
    assert counts["gateway_capture_sampled_total"] == 16
    calls, problems = Capture(tmp_path).verify()
    assert problems == []
    assert calls >= counts["gateway_capture_calls_total"] >= 1


async def test_shadow_process_has_a_lower_priority(tmp_path: Path) -> None:
    """Its batch policy never preempts another process."""
    async with running(configuration(tmp_path)) as gateway:
        pid = shadow_pid(gateway)
        assert os.SCHED_BATCH == os.sched_getscheduler(pid)
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5


async def test_stopped_shadow_process_fails_no_call(tmp_path: Path) -> None:
    """Calls succeed while it is stopped; later they are written, or dropped and counted."""
    text = configuration(tmp_path, payload="full", min_free=0, outbox_bytes=20_000)
    async with running(text) as gateway:
        url = urls(gateway, "digits")["oip.http"]
        pid = shadow_pid(gateway)
        os.kill(pid, signal.SIGSTOP)
        batch = np.repeat(PIXELS, 2000, 0)  # 512 KB
        for _ in range(4):
            assert (await ask(url, "digits", {"X": batch}))["label"].shape == (2000,)
        stopped = await metrics(gateway)
        assert stopped["gateway_capture_calls_total"] == 0
        assert stopped["gateway_capture_outbox_bytes"] <= 20_000
        os.kill(pid, signal.SIGCONT)
        await ask(url, "digits", {"X": PIXELS})
        await until(gateway, is_balanced)
        counts = await metrics(gateway)
    assert counts['gateway_capture_dropped_total{reason="queue"}'] == 4
    assert counts["gateway_capture_calls_total"] == 1
    assert Capture(tmp_path).verify() == (1, [])


def test_workers_record_into_one_capture(tmp_path: Path) -> None:
    """Both workers send to one process; neither a killed worker nor a stop loses a call."""
    more = f"capture: {{directory: {tmp_path / 'capture'}, min_free: 0}}"
    with two_workers(tmp_path, more=more) as gateway:
        _ask_times(gateway, 20)
        eventually(lambda: "gateway_capture_calls_total 20.0" in workers_kit.metrics(gateway))
        end(pids(gateway)[1], signal.SIGKILL)
        eventually(lambda: of_workers(gateway, "worker_restarts_total")[1] == 1)
        eventually(lambda: of_workers(gateway, "worker_up") == {1: 1, 2: 1})
        _ask_times(gateway, 20)
        assert len(events(gateway, "shadow process started")) == 1
        assert gateway.stop() == 0
    assert Capture(tmp_path / "capture").verify() == (40, [])


def test_capture_commands_start_and_stop_recording(tmp_path: Path) -> None:
    """`start` sets models and payload in all workers, `stop` ends it, `status` has the counts."""
    directory = tmp_path / "capture"
    more = f"capture: {{directory: {directory}, min_free: 0, enabled: false}}"
    with two_workers(tmp_path, more=more) as gateway:
        admin = ("--admin", gateway.addresses["admin"])

        def status() -> dict[str, object]:
            found: dict[str, object] = json.loads(
                gateway_command("status", *admin, "--output", "json").stdout
            )
            return found

        _ask_times(gateway, 5)
        assert (status()["enabled"], status()["sampled"]) == (False, 0)
        assert gateway_command("start", "other", *admin).exit_code == 0
        _ask_times(gateway, 5)
        assert (status()["models"], status()["sampled"]) == (["other"], 0)
        started = gateway_command("start", "--payload", "hash", *admin)
        assert json.loads(started.stdout)["capture"] == {"enabled": True, "payload": "hash"}
        _ask_times(gateway, 5)
        eventually(lambda: status()["recorded"] == 5)
        text = gateway_command("status", *admin).stdout
        assert f"on: 100% of all models, payload hash, in {directory}" in text
        assert "5 sampled, 5 recorded, 0 forwarded, 0 refused by the gateway, 0 in flight" in text
        assert gateway_command("start", "--percent", "0", *admin).exit_code == 1
        assert gateway_command("stop", *admin).exit_code == 0
        _ask_times(gateway, 5)
        assert (status()["enabled"], status()["sampled"]) == (False, 5)
        assert gateway.stop() == 0
    calls = list(Capture(directory).calls())
    assert len(calls) == 5
    assert {(row.data, len(row.digest or b"")) for call in calls for row in call.tensors} == {
        (None, 32)
    }


def _ask_times(gateway: Running, times: int) -> None:
    for _ in range(times):
        with closing(connect(gateway)) as connection:
            assert workers_kit.ask(connection) == 200


async def test_no_shadow_process_without_a_capture() -> None:
    """The process is started only when it is needed."""
    text = 'version: 1\nlisteners: [{http: "127.0.0.1:0"}]\nadmin: {address: "127.0.0.1:0"}\n'
    async with running(text) as gateway:
        assert not [name for name in await metrics(gateway) if "shadow" in name]
        with pytest.raises(ValueError, match="unpack"):
            shadow_pid(gateway)
