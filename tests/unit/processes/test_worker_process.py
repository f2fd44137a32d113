"""A worker process from the supervisor's side."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from gateway.api.start_error import StartError
from gateway.config.load import load_text
from gateway.processes.channel import open_channel
from gateway.processes.worker_process import WorkerProcess
from tests.simulation.virtual_time import elapse, simulate

LOADED = load_text(
    "version: 1\nlisteners: [{http: 8000}]\nworkers: 2\nlifecycle: {reload: {timeout: 30s}}\n"
)


class FakeProcess:
    """Runs until it is ended."""

    pid = 7

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def wait(self) -> int:
        """Wait for the end."""
        await self.over.wait()
        return 0


def test_a_reload_of_a_process_that_hangs_ends() -> None:
    """It gets 10 s more than the time of a reload, which the process itself may use up."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        process = FakeProcess()
        worker = WorkerProcess(cast("Any", process), await open_channel(ours))
        began = loop.time()
        with pytest.raises(StartError, match=r"lifecycle\.reload\.timeout"):
            await worker.reload(LOADED, frozenset())
        seconds = loop.time() - began
        theirs.close()
        process.over.set()
        await worker.wait()
        return seconds

    assert 40.0 == pytest.approx(simulate(run), abs=1.0)


def test_a_ping_gets_its_response_while_metrics_arrive_in_parts() -> None:
    """Each part may take its time; what has arrived counts when the last part is here."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        process = FakeProcess()
        worker = WorkerProcess(cast("Any", process), await open_channel(ours))
        channel = await open_channel(theirs)
        metrics = asyncio.create_task(worker.update_metrics(asks=True))
        question = await channel.receive()
        assert ("metrics", True) == (question["request"], question["asks"]) if question else False
        number = question["number"] if question else 0
        channel.send({"part_of": 1, "path": [], "added": {"number": number, "metrics": []}})
        for part in range(5):
            added = [[f"m{part}", "", "gauge", []]]
            channel.send({"part_of": 1, "path": ["metrics"], "added": added})
            await elapse(2.0)
            ping = asyncio.create_task(worker.ping())
            question = await channel.receive()
            assert question == {"request": "ping", "number": number + part + 1}
            channel.send({"number": number + part + 1})
            assert await ping
            assert () == worker.metrics
        channel.send({"part_of": 1, "is_whole": True})
        assert await metrics
        assert [f"m{part}" for part in range(5)] == [each[0] for each in worker.metrics]
        # One that dies between two parts leaves the last complete ones.
        channel.send({"part_of": 2, "path": [], "added": {"metrics": []}})
        await channel.close()
        process.over.set()
        await worker.wait()
        assert 5 == len(worker.metrics)

    simulate(run)


def test_metrics_that_stop_arriving_are_abandoned() -> None:
    """Those of before stay in force."""

    async def run() -> bool:
        ours, theirs = socket.socketpair()
        process = FakeProcess()
        worker = WorkerProcess(cast("Any", process), await open_channel(ours))
        channel = await open_channel(theirs)
        metrics = asyncio.create_task(worker.update_metrics())
        question = await channel.receive()
        number = question["number"] if question else 0
        added = {"number": number, "metrics": [["m", "", "gauge", []]]}
        channel.send({"part_of": 1, "path": [], "added": added})
        found = await metrics
        assert () == worker.metrics
        await channel.close()
        process.over.set()
        await worker.wait()
        return found

    assert simulate(run) is False
