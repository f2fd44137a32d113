"""A worker process from the supervisor's side: the process, and the channel to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from gateway.api.start_error import RELOAD_LATE, StartError
from gateway.concurrency.background import start_background
from gateway.config.load import LoadedConfig
from gateway.processes.channel import (
    Message,
    WorkerChannel,
    WorkerSetup,
    encode_loaded,
    open_channel,
)
from gateway.processes.reply_watch import REPLY_S
from gateway.telemetry.aggregation import Snapshot

WORKER: Final = "gateway.app.workers.worker"
"""The main module of a serving process."""

# The metrics of a worker arrive in parts, each of them within this time.
_PART_S: Final = 3.0
# The size of a part of a page.
_PART_BYTES: Final = 1 << 16
# A worker replies so long after the limit of a reload, if it replies at all.
_LATE_REPLY_S: Final = 10.0


async def launch(setup: WorkerSetup, module: str = WORKER) -> WorkerProcess:
    """Start a process with the main module *module*, without a fork of this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # do not import modules from the working directory
            "-m",
            module,
            f"{setup.slot.number}/{setup.slot.count}",
            str(theirs.fileno()),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), *setup.descriptors),
            # A terminal signals the whole process group; the parent forwards the signal once.
            # uvloop knows no `process_group`.
            start_new_session=True,
            # The worker imports models from the same paths as this process.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
    channel = await open_channel(ours)
    channel.send_setup(setup)
    return WorkerProcess(process, channel)


class WorkerProcess:
    """The supervisor's interface to a worker process.

    Attributes:
        pid: The process id.
        metrics: The last metrics that the worker sent.
        counts: What it told last for the names of other servers; see `app.server_counts`.
        on_document: Called with each document that the process of an extension sends by itself.
        on_notice: Called with the name of an extension whose leading part is to decide soon.
        on_page: Returns the metrics page of all processes, for one that serves it.
    """

    def __init__(self, process: asyncio.subprocess.Process, channel: WorkerChannel) -> None:
        self.pid = process.pid
        self.metrics: Snapshot = ()
        self.counts: Mapping[str, Any] | None = None
        self.on_document: Callable[[Mapping[str, Any]], None] | None = None
        self.on_notice: Callable[[str], None] | None = None
        self.on_page: Callable[[str], Awaitable[tuple[bytes, str]]] | None = None
        self._process = process
        self._channel = channel
        channel.on_part = self._extend_limit
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._limits: dict[int, tuple[asyncio.Timeout, float]] = {}
        self._last_number = 0
        self._sending: set[asyncio.Task[None]] = set()
        self._has_exited = False
        self._late: set[str] = set()
        # The addresses, or the reason why the worker cannot start.
        self._startup: asyncio.Future[Mapping[str, str] | str] = (
            asyncio.get_running_loop().create_future()
        )
        self._receiver = start_background(self._receive(), f"messages of process {self.pid}")

    async def wait_started(self) -> Mapping[str, str]:
        """Wait until the worker listens, and return its addresses.

        Raises:
            StartError: The worker cannot start.
        """
        result = await asyncio.shield(self._startup)
        if isinstance(result, str):
            raise StartError(result)
        return result

    async def ready(self) -> bool:
        """Request the readiness of the worker; return False on timeout."""
        return bool((await self._request("ready")).get("ready"))

    async def status(self) -> dict[str, Any]:
        """Request the status of the worker; return an empty one on timeout."""
        found: dict[str, Any] = (await self._request("status")).get("status", {})
        return found

    def send(self, message: Message) -> None:
        """Send a message without a reply; do nothing if the process has exited."""
        self._channel.send(message)

    async def ping(self) -> bool:
        """Ask the worker for a reply that carries nothing; return whether it replied."""
        return bool(await self._request("ping"))

    async def update_metrics(self, *, asks: bool = False) -> bool:
        """Request the metrics of the worker; return False and keep the last ones on timeout.

        Args:
            asks: Whether the worker asks its servers for theirs.
        """
        return "metrics" in await self._request("metrics", timeout_s=_PART_S, asks=asks)

    async def exchange(
        self, part: str, document: Mapping[str, Any], timeout_s: float = REPLY_S
    ) -> Mapping[str, Any] | None:
        """Send a document to the part of an extension; return its reply, or None on timeout.

        A part that was late gets nothing until its process sends something: nobody waits for it
        twice.
        """
        if part in self._late:
            return None
        reply = await self._request(
            "exchange", timeout_s=timeout_s, part=part, document=dict(document)
        )
        if not reply:
            self._late.add(part)
        found: Mapping[str, Any] | None = reply.get("document")
        return found

    async def reload(self, loaded: LoadedConfig, drained: AbstractSet[str]) -> dict[str, list[str]]:
        """Let the worker put another configuration in force; return what changed.

        Args:
            loaded: The configuration.
            drained: Endpoints that get no new calls, as "UPSTREAM/ENDPOINT".

        Raises:
            StartError: The worker cannot, and uses the old one; it has exited, or it hangs.
        """
        content = {"loaded": encode_loaded(loaded), "drained": sorted(drained)}
        # The worker has the same limit, but for what a hanging one does no more.
        timeout_s = loaded.config.lifecycle.reload.timeout + _LATE_REPLY_S
        reply = await self._request("reload", timeout_s=timeout_s, **content)
        if "changes" not in reply:
            exited = f"worker process {self.pid} exited meanwhile"
            raise StartError(reply.get("error", exited if self._has_exited else RELOAD_LATE))
        changes: dict[str, list[str]] = reply["changes"]
        return changes

    def stop(self, *, interrupts: bool = False) -> None:
        """Send SIGTERM: the worker drains and exits; or SIGINT, which skips `pre_stop`."""
        self._signal(signal.SIGINT if interrupts else signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait until the process exits; return its status, negative for a signal."""
        status = await self._process.wait()
        await self._receiver
        await self._channel.close()
        return status

    async def _request(self, name: str, *, timeout_s: float = REPLY_S, **content: Any) -> Message:
        """Send a request and return the reply; an empty one on timeout or exit."""
        if self._has_exited:
            return {}
        self._last_number += 1
        number = self._last_number
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[number] = reply
        request = {"request": name, "number": number, **content}
        if name == "exchange":  # sent to its end, however late the reply is: it may grant quotas
            sending = self._channel.send_large(request)
            start_background(sending, f"exchange with {self.pid}", self._sending)
        else:
            self._channel.send(request)
        try:
            async with asyncio.timeout(timeout_s) as limit:
                self._limits[number] = limit, timeout_s
                return await reply
        except TimeoutError:
            return {}
        finally:
            del self._pending[number]
            self._limits.pop(number, None)

    async def _receive(self) -> None:
        while (message := await self._channel.receive()) is not None:
            self._late.clear()
            self._note(message)
            if "started" in message:
                self._set_startup(message["started"])
            elif "failed" in message:
                self._set_startup(str(message["failed"]))
            reply = self._pending.get(message.get("number", 0))
            if reply is not None and not reply.done():
                reply.set_result(message)
        self._has_exited = True
        for reply in self._pending.values():
            if not reply.done():
                reply.set_result({})
        status = await self._process.wait()
        self._set_startup(f"worker process {self.pid} {describe_exit(status)} before it was ready")

    def _note(self, message: Message) -> None:
        """Take what the process sends by itself, or with a reply."""
        if "metrics" in message:
            self.metrics = message["metrics"]
            self.counts = message.get("counts")
        if "notice" in message and self.on_notice is not None:
            self.on_notice(message["notice"])
        if "page" in message:
            sending = self._send_page(message)
            start_background(sending, f"metrics page for {self.pid}", self._sending)
        if "number" not in message and "document" in message and self.on_document is not None:
            self.on_document(message["document"])

    def _extend_limit(self, message: Message) -> None:
        """Let a reply whose parts arrive take more time."""
        limit, timeout_s = self._limits.get(message.get("number", 0), (None, 0.0))
        if limit is not None and not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + timeout_s)

    async def _send_page(self, message: Message) -> None:
        if self.on_page is not None:
            text, content_type = await self.on_page(message["page"])
            # Any bytes are text of latin-1, wherever they are cut.
            parts = (
                text[first : first + _PART_BYTES].decode("latin-1")
                for first in range(0, len(text), _PART_BYTES)
            )
            found = {"text": parts, "content_type": content_type}
            number = message["page_number"]
            await self._channel.send_large({"request": "page", "page_number": number, **found})

    def _set_startup(self, result: Mapping[str, str] | str) -> None:
        if not self._startup.done():
            self._startup.set_result(result)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def describe_exit(status: int) -> str:
    """Return a text such as "exited with status 1" or "was killed by SIGKILL"."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-status}"
