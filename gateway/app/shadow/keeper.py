"""ShadowKeeper: starts the shadow process, and starts it again whenever it dies.

The supervisor has one, or the only process of a gateway. The sockets between serving processes and
the shadow process belong to it, so they stay open whichever end dies.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.app.errors import StartError, reason_of
from gateway.app.processes.channel import WorkerSetup
from gateway.app.processes.restart_policy import RestartBackoff, RestartPolicy
from gateway.app.processes.worker_process import WorkerProcess, describe_exit, launch
from gateway.app.shadow.packets import socket_pair
from gateway.app.worker_slot import WorkerSlot
from gateway.concurrency.timeouts import is_set_within
from gateway.config.load import LoadedConfig

log = structlog.get_logger(__name__)

Launch = Callable[[WorkerSetup], Awaitable[WorkerProcess]]

# A shadow process may write this long after the last call.
_STOP_S: Final = 10.0
_POLICY: Final = RestartPolicy(max_failures=None)


class ShadowKeeper(Collector):
    """The shadow process of a gateway, from its parent's side.

    Args:
        loaded: The configuration; it has a capture.
        count: The number of serving processes.
        launch: Starts the process.
        restart_policy: The backoff between restarts.

    Raises:
        OSError: There are no descriptors left.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        count: int,
        launch: Launch = launch,
        restart_policy: RestartPolicy = _POLICY,
    ) -> None:
        self._loaded = loaded
        self._launch = launch
        self._policy = restart_policy
        self._pairs = {number: socket_pair() for number in range(1, count + 1)}
        self._slot = WorkerSlot(0, count, "shadow")
        self._process: WorkerProcess | None = None
        self._is_up = False
        self._restarts = 0
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def serving_end(self, number: int) -> socket.socket:
        """Return the end of the socket that the serving process *number* uses."""
        return self._pairs[number][0]

    async def start(self) -> None:
        """Start the process, and keep it running until `stop`.

        Raises:
            StartError: It cannot start.
        """
        await self._start_process()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Let the process write what it has, and end it; idempotent."""
        self._stopping.set()
        task, self._task = self._task, None
        if task is not None:
            if self._process is not None:
                self._process.stop()
            try:
                async with asyncio.timeout(_STOP_S):
                    await asyncio.shield(task)
            except TimeoutError:
                log.warning("shadow process killed", reason=f"it did not stop in {_STOP_S:g} s")
                if self._process is not None:
                    self._process.kill()
                await task
        for pair in self._pairs.values():
            for each in pair:
                each.close()
        self._pairs = {}

    def collect(self) -> Iterable[Metric]:
        """Return metrics of the process itself."""
        text = "Whether the shadow process runs (1) or not (0)."
        yield GaugeMetricFamily("gateway_shadow_up", text, value=self._is_up)
        text = "Restarts of the shadow process."
        yield CounterMetricFamily("gateway_shadow_restarts", text, value=self._restarts)

    async def _start_process(self) -> None:
        ends = {number: pair[1].fileno() for number, pair in self._pairs.items()}
        setup = WorkerSetup(self._loaded, self._slot, logs_warnings=False, serving=ends)
        try:
            self._process = await self._launch(setup)
        except OSError as error:
            raise StartError(f"cannot start the shadow process: {reason_of(error)}") from error
        try:
            await self._process.wait_started()
        except StartError:
            await self._process.wait()
            self._process = None
            raise
        self._is_up = True
        log.info("shadow process started", pid=self._process.pid)

    async def _run(self) -> None:
        """Restart the process each time it exits, until `stop`."""
        backoff = RestartBackoff(self._policy)
        loop = asyncio.get_running_loop()
        started_at: float | None = loop.time()
        ended = ""
        while True:
            if self._process is not None:
                ended = describe_exit(await self._process.wait())
                self._process, self._is_up = None, False
            if self._stopping.is_set():
                return
            served_s = 0.0 if started_at is None else loop.time() - started_at
            wait_s = backoff.next_wait(served_s=served_s, is_clean=False)
            log.error("shadow process died", ended=ended, restart_in_s=wait_s)
            if await is_set_within(self._stopping, wait_s or 0.0):
                return
            self._restarts += 1
            started_at = None
            try:
                await self._start_process()
                started_at = loop.time()
            except StartError as error:
                ended = str(error)
