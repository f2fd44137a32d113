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
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final

import structlog

from gateway.app.errors import StartError
from gateway.app.gateway import Gateway, memory_budget
from gateway.app.process import freeze_startup_objects
from gateway.app.processes.channel import (
    Message,
    WorkerChannel,
    WorkerSetup,
    decode_loaded,
    open_channel,
    read_setup,
)
from gateway.app.run import loop_factory, prepare
from gateway.app.signals import StopSignal, ignore_log_signals, on_reopen
from gateway.config.load import ConfigError
from gateway.telemetry import logs
from gateway.telemetry.aggregation import snapshot

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
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(setup, sock))


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
    requests = asyncio.create_task(_handle_requests(channel, gateway, pages, serving))
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
    channel.send(await _metrics(gateway, asks=False))
    await channel.close()
    return 0


class _Pages:
    """Asks the supervisor for the metrics page, which has all workers.

    Args:
        channel: The channel to the supervisor.
    """

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._waiting: dict[int, asyncio.Future[tuple[bytes, str]]] = {}
        self._last_number = 0

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type.

        Raises:
            TimeoutError: The supervisor does not reply.
        """
        self._last_number += 1
        number = self._last_number
        found: asyncio.Future[tuple[bytes, str]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = found
        self._channel.send({"page": accept, "page_number": number})
        try:
            async with asyncio.timeout(_PAGE_S):
                return await found
        finally:
            del self._waiting[number]

    def received(self, message: Message) -> None:
        """Return a page to whoever waits for it."""
        found = self._waiting.get(message["page_number"])
        if found is not None and not found.done():
            found.set_result((message["text"].encode(), message["content_type"]))


async def _report_failure(channel: WorkerChannel, error: Exception) -> int:
    channel.send({"failed": str(error)})
    await channel.close()
    return _FAILED


async def _handle_requests(
    channel: WorkerChannel, gateway: Gateway, pages: _Pages, serving: asyncio.Event
) -> None:
    """Reply to the supervisor's requests until it exits; set *serving* when it says so."""
    tasks: set[asyncio.Task[None]] = set()
    while (message := await channel.receive()) is not None:
        # They may take long, and the supervisor asks for readiness meanwhile.
        if message["request"] in _LONG:
            task = asyncio.create_task(_LONG[message["request"]](channel, gateway, message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            continue
        if message["request"] == "serving":
            serving.set()
            continue
        if message["request"] == "reopen_logs":
            gateway.reopen_logs()
            continue
        if message["request"] == "page":
            pages.received(message)
            continue
        if message["request"] == "ready":
            reply: dict[str, object] = {"ready": await gateway.ready()}
        elif message["request"] == "exchange":
            reply = {"document": gateway.parts.exchange(message["part"], message["document"])}
        else:
            reply = {"status": await gateway.status()}
        channel.send({**reply, "number": message["number"]})


async def _reload(channel: WorkerChannel, gateway: Gateway, message: Message) -> None:
    """Put the configuration in *message* in force, and reply what changed or what is wrong."""
    reply: dict[str, object]
    try:
        loaded, drained = decode_loaded(message["loaded"]), frozenset(message["drained"])
        reply = {"changes": await gateway.reload(loaded, drained)}
    except StartError as error:
        reply = {"error": str(error)}
    except Exception as error:  # a bug, or a backend of the user: the old configuration serves
        log.exception("internal error")
        reply = {"error": f"internal error: {type(error).__name__}"}
    channel.send({**reply, "number": message["number"]})


async def _reply_metrics(channel: WorkerChannel, gateway: Gateway, message: Message) -> None:
    found = await _metrics(gateway, asks=bool(message.get("asks")))
    channel.send({**found, "number": message["number"]})


async def _metrics(gateway: Gateway, *, asks: bool) -> dict[str, object]:
    """Return the metrics; with *asks* also what its servers count, if that is on."""
    counts = await gateway.server_counts(asks=asks)
    found = snapshot(gateway.metrics.registry)
    return {"metrics": found} if counts is None else {"metrics": found, "counts": counts}


_LONG: Final[Mapping[str, Callable[..., Coroutine[Any, Any, None]]]] = MappingProxyType(
    {"reload": _reload, "metrics": _reply_metrics}
)


if __name__ == "__main__":
    sys.exit(main())
