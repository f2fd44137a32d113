"""A shadow process whose life the test decides."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, cast

from gateway.api.start_error import StartError
from gateway.processes.channel import Message, WorkerSetup
from gateway.processes.restart_policy import RestartPolicy
from gateway.processes.worker_process import WorkerProcess
from gateway.telemetry.aggregation import Snapshot

AT_ONCE = RestartPolicy(first_wait_s=0.0, max_wait_s=0.0, max_failures=None)


class FakeProcess:
    """A process whose life the test decides."""

    def __init__(self, setup: WorkerSetup, failure: str) -> None:
        self.pid = 1
        self.setup = setup
        self.over: asyncio.Future[int] = asyncio.Future()
        self.metrics: Snapshot = ()
        self.replies = True
        self.sent: list[Message] = []
        self.on_document: Callable[[Mapping[str, Any]], None] | None = None
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

    def send(self, message: Message) -> None:
        self.sent.append(deepcopy(message))

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
