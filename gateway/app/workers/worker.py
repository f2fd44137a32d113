"""The main module of a worker process: a gateway that gets its configuration from the supervisor.

`worker_process.launch` runs `python -m gateway.app.workers.worker NUMBER/COUNT DESCRIPTOR`. The
worker drains and exits at SIGTERM. If the supervisor exits, the worker drains too, but skips
`pre_stop`: without the supervisor there is no readiness probe for load balancers.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import structlog

from gateway.api.start_error import StartError
from gateway.app.run.gateway import Gateway, memory_budget
from gateway.app.run.run import loop_factory, prepare
from gateway.concurrency.background import start_background
from gateway.concurrency.process_end import end_within, run_to_end
from gateway.concurrency.slices import in_slices
from gateway.config.load import ConfigError
from gateway.processes.channel import (
    Message,
    WorkerChannel,
    WorkerSetup,
    decode_loaded,
    open_channel,
    read_setup,
)
from gateway.processes.process import freeze_startup_objects
from gateway.processes.signals import StopSignal, ignore_log_signals, on_reopen
from gateway.telemetry.aggregation import snapshot
from gateway.telemetry.faults import FAULTS
from gateway.telemetry.log import logs

log = structlog.get_logger(__name__)

_FAILED = 1
_PAGE_S: Final = 10.0


def main() -> int:
    """Serve until a signal or the exit of the supervisor; return the exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor reloads the configuration
    ignore_log_signals()
    sock = socket.socket(fileno=int(sys.argv[2]))
    try:
        setup = read_setup(sock)
    except EOFError:
        return _FAILED
    settings = setup.loaded.config.telemetry.log
    logs.configure(settings.level, settings.format, worker=setup.slot.number)
    logs.set_level(level_at_start(settings.level, logs_warnings=setup.should_log_warnings))
    prepare(memory_budget(setup.loaded.config, setup.slot))
    status = run_to_end(_run(setup, sock), loop_factory())
    end_within(status)
    return status


def level_at_start(level: str, *, logs_warnings: bool) -> str:
    """Return the log level of a worker until it listens, when the configured level applies.

    Warnings about the configuration are the same in all workers, so only one of them logs these.
    """
    if level in {"debug", "error"}:
        return level
    return "warning" if logs_warnings else "error"


async def _run(setup: WorkerSetup, sock: socket.socket) -> int:
    stop = StopSignal(is_final=False)
    channel = await open_channel(sock)
    pages = _Pages(channel)
    try:
        sockets = {
            address: socket.socket(fileno=number) for address, number in setup.sockets.items()
        }
        gateway = Gateway(
            setup.loaded,
            setup.slot,
            sockets,
            setup.drained,
            {name: part.open() for name, part in setup.parts.items()},
            lambda name: channel.send({"notice": name}),
            pages.page,
        )
    except (ConfigError, StartError) as error:
        return await _report_failure(channel, error)
    on_reopen(gateway.reopen_logs)
    serving = asyncio.Event()
    snapshots = _Snapshots(channel, gateway)
    handling = _handle_requests(channel, gateway, pages, snapshots, serving)
    requests = asyncio.create_task(handling)
    start = asyncio.create_task(gateway.start())
    await asyncio.wait({start, requests}, return_when=asyncio.FIRST_COMPLETED)
    if not start.done():  # the supervisor has exited
        return _FAILED
    try:
        start.result()
    except StartError as error:
        return await _report_failure(channel, error)
    freeze_startup_objects()
    logs.set_level(setup.loaded.config.telemetry.log.level)
    channel.send({"started": gateway.addresses})
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, requests}, return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        # Before the supervisor counts it as serving, no load balancer has sent it anything.
        skips = stop.is_interrupt or not serving.is_set()
        await gateway.stop(pre_stop_s=0 if skips else None)
    else:
        log.error("supervisor exited")
        await gateway.stop(pre_stop_s=0)
        requests.result()  # raises if handling a request failed
    await snapshots.send(asks=False)
    await channel.close()
    return 0


class _Snapshots:
    """Sends the supervisor the metrics of this process, in slices and in parts.

    Args:
        channel: The channel to the supervisor.
        gateway: Has the metrics.
    """

    def __init__(self, channel: WorkerChannel, gateway: Gateway) -> None:
        self._channel = channel
        self._gateway = gateway
        self._turn = asyncio.Lock()

    async def reply(self, message: Message) -> None:
        """Reply to a request for the metrics."""
        await self.send(asks=message["asks"], number=message["number"])

    async def send(self, *, asks: bool, **reply: object) -> None:
        """Send the metrics of this moment.

        Args:
            asks: Whether this process asks its servers what they count, if that is on.
            reply: Further members of the message.
        """
        async with self._turn:
            counts = await self._gateway.server_counts(asks=asks)
            metrics = snapshot(self._gateway.metrics.registry)
            await self._channel.send_large({**reply, "metrics": metrics, "counts": counts})


class _Pages:
    """Asks the supervisor for the metrics page, which has all workers.

    Args:
        channel: The channel to the supervisor.
    """

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._last_number = 0

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type.

        Raises:
            TimeoutError: The supervisor does not reply.
        """
        self._last_number += 1
        number = self._last_number
        found: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = found
        self._channel.send({"page": accept, "page_number": number})
        try:
            async with asyncio.timeout(_PAGE_S):
                message = await found
        finally:
            del self._waiting[number]
        parts = [part.encode("latin-1") async for part in in_slices(message["text"])]
        return await asyncio.to_thread(b"".join, parts), message["content_type"]

    def received(self, message: Message) -> None:
        """Return a page to whoever waits for it."""
        found = self._waiting.get(message["page_number"])
        if found is not None and not found.done():
            found.set_result(message)


async def _report_failure(channel: WorkerChannel, error: Exception) -> int:
    channel.send({"failed": str(error)})
    await channel.close()
    return _FAILED


async def _handle_requests(
    channel: WorkerChannel,
    gateway: Gateway,
    pages: _Pages,
    snapshots: _Snapshots,
    serving: asyncio.Event,
) -> None:
    """Reply to the supervisor's requests until it exits; set *serving* when it says so."""
    notices: dict[str, Callable[[Message], object]] = {
        "serving": lambda _message: serving.set(),
        "reopen_logs": lambda _message: gateway.reopen_logs(),
        "page": pages.received,
    }
    # They may take long, and the supervisor asks for readiness meanwhile.
    long_work: dict[str, Callable[[Message], Coroutine[Any, Any, None]]] = {
        "reload": partial(_reload, channel, gateway),
        "status": partial(_reply_status, channel, gateway),
        "exchange": partial(_reply_exchange, channel, gateway),
        "metrics": snapshots.reply,
    }
    tasks: set[asyncio.Task[None]] = set()
    while (message := await channel.receive()) is not None:
        name = message["request"]
        if name in notices:
            notices[name](message)
            continue
        if name in long_work:
            work = long_work[name](message)
            start_background(work, f"request {name!r} of the supervisor", tasks)
            continue
        reply: dict[str, object] = {}  # to a ping
        if name == "ready":
            reply = {"ready": await gateway.ready()}
        channel.send({**reply, "number": message["number"]})


async def _reload(channel: WorkerChannel, gateway: Gateway, message: Message) -> None:
    """Put the configuration in *message* in force, and reply what changed or what is wrong."""
    reply: dict[str, object]
    try:
        loaded, drained = decode_loaded(message["loaded"]), frozenset(message["drained"])
        reply = {"changes": await gateway.reload(loaded, drained)}
    except StartError as error:
        reply = {"error": str(error)}
    except FAULTS as error:  # a bug, or a backend of the user: the old configuration serves
        log.exception("internal error")
        reply = {"error": f"internal error: {type(error).__name__}"}
    channel.send({**reply, "number": message["number"]})


async def _reply_status(channel: WorkerChannel, gateway: Gateway, message: Message) -> None:
    await channel.send_large({"number": message["number"], "status": await gateway.status()})


async def _reply_exchange(channel: WorkerChannel, gateway: Gateway, message: Message) -> None:
    document = gateway.parts.exchange(message["part"], message["document"])
    await channel.send_large({"number": message["number"], "document": document})


if __name__ == "__main__":
    sys.exit(main())
