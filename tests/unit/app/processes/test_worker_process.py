"""A worker process from the supervisor's side."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from gateway.app.errors import StartError
from gateway.app.processes.channel import open_channel
from gateway.app.processes.worker_process import WorkerProcess
from gateway.config.load import load_text
from tests.simulation.virtual_time import simulate

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
