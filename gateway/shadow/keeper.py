"""ShadowKeeper: starts the shadow process, and starts it again whenever it dies.

The supervisor has one, or the only process of a gateway. The sockets between serving processes and
the shadow process belong to it, so they stay open whichever end dies.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.api.extension import PartSetup, Processes, ServingProcess
from gateway.api.start_error import StartError, reason_of
from gateway.concurrency.background import start_background
from gateway.concurrency.timeouts import is_set_within
from gateway.config.load import LoadedConfig
from gateway.processes.channel import PartDescriptors, WorkerSetup
from gateway.processes.reply_watch import POLL_S, ReplyWatch
from gateway.processes.restart_policy import RestartBackoff, RestartPolicy
from gateway.processes.worker_process import WorkerProcess, describe_exit, launch
from gateway.processes.worker_slot import WorkerSlot
from gateway.shadow import names
from gateway.shadow.packets import socket_pair
from gateway.shadow.part import ShadowUser
from gateway.telemetry.families import counter_family, gauge_family
from gateway.telemetry.names import LOG_LINES_LOST

log = structlog.get_logger(__name__)

Launch = Callable[[WorkerSetup, str], Awaitable[WorkerProcess]]

NAME: Final = "shadow"
"""The name of the extension, and of the keeper among the objects that extensions share."""
MODULE: Final = "gateway.shadow.process"
"""The main module of the shadow process."""

# A shadow process may write this long after the last call.
_STOP_S: Final = 10.0
_POLICY: Final = RestartPolicy(max_failures=None)


def existing_keeper(process: ServingProcess | Processes) -> ShadowKeeper | None:
    """Return the keeper that extensions share in a process; None if none needs it."""
    found: ShadowKeeper | None = process.shared.get(NAME)
    return found


def keeper_of(process: ServingProcess | Processes) -> ShadowKeeper:
    """Return the keeper that extensions share in a process, and make it for the first of them."""
    found = existing_keeper(process)
    if found is None:
        found = ShadowKeeper(LoadedConfig.of(process.config), process.count)
        process.shared[NAME] = found
    return found


def latest_counts(process: WorkerProcess | None, name: str, label: str) -> Counter[str]:
    """Return what the process sent last of one metric, by the values of a label."""
    metrics = () if process is None else process.metrics
    return Counter(
        {
            labels.get(label, ""): int(value)
            for *_, samples in metrics
            for sample, labels, value in samples
            if sample == name
        }
    )


def _lost_lines(process: WorkerProcess | None) -> Counter[str]:
    return latest_counts(process, LOG_LINES_LOST.name, "reason")


class ShadowKeeper(Collector):
    """The shadow process of a gateway, from its parent's side.

    Args:
        loaded: The configuration.
        count: The number of serving processes.
        launch: Starts the process.
        restart_policy: The backoff between restarts.
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
        self._users: dict[str, ShadowUser] = {}
        # By the name of the extension and the channel, then by the number of the serving process.
        self._pairs: dict[tuple[str, str], dict[int, tuple[socket.socket, socket.socket]]] = {}
        self._slot = WorkerSlot(0, count, "shadow")
        self._process: WorkerProcess | None = None
        self._watch: ReplyWatch | None = None  # while it is up
        self._lost_before: Counter[str] = Counter()  # lines of the log of earlier processes
        self._is_replacing = False
        self._restarts = 0
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def process(self) -> WorkerProcess | None:
        """The process; None while there is none."""
        return self._process

    def join(self, user: ShadowUser) -> None:
        """Have an extension in the process; before `start`.

        Raises:
            OSError: There are no descriptors left.
        """
        self._users[user.name] = user
        for channel in user.channels:
            self._pairs[user.name, channel] = {
                number: socket_pair() for number in range(1, self._slot.count + 1)
            }

    def setup(self, name: str, number: int) -> PartSetup:
        """Return the sockets that an extension has in a serving process, by channel."""
        return PartSetup(
            sockets={
                channel: pairs[number][0]
                for (owner, channel), pairs in self._pairs.items()
                if owner == name
            }
        )

    def send(self, name: str, document: Mapping[str, Any]) -> None:
        """Send a document to the part of an extension, if the process runs."""
        if self._watch is not None and self._process is not None:
            self._process.send({"part": name, "document": document})

    def change(self, loaded: LoadedConfig) -> None:
        """Follow another configuration with the same channels, which a new process begins with."""
        self._loaded = loaded

    def replace(self) -> None:
        """End the process, and start another one that begins anew."""
        if self._process is not None and not self._stopping.is_set():
            self._is_replacing = True
            self._process.stop()

    async def start(self) -> None:
        """Start the process, and keep it running until `stop`.

        Raises:
            StartError: It cannot start.
        """
        await self._start_process()
        self._tasks = [
            start_background(self._run(), "shadow process"),
            start_background(self._poll(), "polls of the shadow process"),
        ]

    async def stop(self) -> None:
        """Let the process write what it has, and end it; idempotent."""
        self._stopping.set()
        tasks, self._tasks = self._tasks, []
        if tasks:
            if self._watch is not None and self._watch.is_silent and self._process is not None:
                self._process.kill()
            elif self._process is not None:
                self._process.stop()
            _, pending = await asyncio.wait(tasks, timeout=_STOP_S)
            if pending:
                log.warning("shadow process killed", reason=f"it did not stop in {_STOP_S:g} s")
                if self._process is not None:
                    self._process.kill()
            await asyncio.gather(*tasks)
        for pairs in self._pairs.values():
            for each in itertools.chain.from_iterable(pairs.values()):
                each.close()
        self._pairs = {}

    def collect(self) -> Iterable[Metric]:
        """Return metrics of the process itself."""
        is_up = gauge_family(names.SHADOW_UP)
        is_up.add_metric((), self._watch is not None and not self._watch.is_silent)
        yield is_up
        restarts = counter_family(names.SHADOW_RESTARTS)
        restarts.add_metric((), self._restarts)
        yield restarts
        lost = counter_family(names.SHADOW_LOG_LINES_LOST)
        for reason, count in (self._lost_before + _lost_lines(self._process)).items():
            lost.add_metric([reason], count)
        yield lost

    async def _start_process(self) -> None:
        parts = {
            name: PartDescriptors({"part": user.part}, self._descriptors(name))
            for name, user in self._users.items()
        }
        setup = WorkerSetup(self._loaded, self._slot, should_log_warnings=False, parts=parts)
        try:
            self._process = await self._launch(setup, MODULE)
        except OSError as error:
            raise StartError(f"cannot start the shadow process: {reason_of(error)}") from error
        try:
            await self._process.wait_started()
        except StartError:
            await self._process.wait()
            self._process = None
            raise
        self._process.on_document = self._receive
        self._watch = ReplyWatch(self._process, "shadow")
        for user in self._users.values():
            user.started()
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
                self._lost_before += _lost_lines(self._process)
                is_replaced = self._is_replacing and not self._stopping.is_set()
                for user in self._users.values():
                    user.ended(self._process, is_replaced=is_replaced)
                self._process = self._watch = None
            if self._stopping.is_set():
                return
            if self._is_replacing:
                self._is_replacing = False
                started_at, ended = await self._start_again()
                continue
            served_s = 0.0 if started_at is None else loop.time() - started_at
            wait_s = backoff.next_wait(served_s=served_s, is_clean=False)
            log.error("shadow process died", ended=ended, restart_in_s=wait_s)
            if await is_set_within(self._stopping, wait_s or 0.0):
                return
            self._restarts += 1
            started_at, ended = await self._start_again()

    async def _poll(self) -> None:
        """Ask the process for a reply regularly, and end it if it hangs; `_run` goes on."""
        while not await is_set_within(self._stopping, POLL_S):
            if self._watch is not None and self._process is not None:
                await self._process.update_metrics()
            if self._watch is not None:
                await self._watch.poll(self._loaded.config.lifecycle.worker_timeout)

    async def _start_again(self) -> tuple[float | None, str]:
        """Start the process; return the time of it, or None and the reason of a failure."""
        try:
            await self._start_process()
        except StartError as error:
            return None, str(error)
        return asyncio.get_running_loop().time(), ""

    def _descriptors(self, name: str) -> dict[str, int]:
        """Return the ends of an extension's sockets that the process uses."""
        return {
            f"{number}/{channel}": pair[1].fileno()
            for (owner, channel), pairs in self._pairs.items()
            if owner == name
            for number, pair in pairs.items()
        }

    def _receive(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Pass on what parts of extensions send, by name."""
        for name, document in documents.items():
            self._users[name].receive(document)
