"""Running a gateway of several workers until it is told to stop; this process serves none of it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any

import structlog

from gateway import __version__
from gateway.app.admin import start_pages
from gateway.app.check import check
from gateway.app.starting import REASONS, StartError, reason_of
from gateway.app.workers.addresses import Addresses
from gateway.app.workers.child import launch
from gateway.app.workers.pace import Pace
from gateway.app.workers.supervisor import Supervisor
from gateway.config.load import ConfigError, Loaded
from gateway.telemetry import log as logs
from gateway.transports.base import Server

log = structlog.get_logger(__name__)


def supervise(loaded: Loaded, count: int, *, pace: Pace | None = None) -> int:
    """Run *count* workers until SIGTERM or SIGINT; return the exit status.

    The second signal ends all of them at once. The status is 1 when a worker keeps dying, or does
    not end in good order.

    Args:
        loaded: Their configuration.
        count: At least 2.
        pace: How patient to be with workers that die.

    Raises:
        ConfigError: The configuration is wrong.
        StartError: They cannot start.
    """
    problems = check(loaded)
    if problems:
        raise ConfigError(loaded.source, problems)
    settings = loaded.config.telemetry.log
    logs.configure(settings.level, settings.format)
    try:
        addresses = Addresses(loaded)
    except OSError as error:
        raise StartError(reason_of(error)) from error
    with contextlib.closing(addresses), asyncio.Runner() as runner:
        return runner.run(_run(addresses, count, pace))


async def _run(addresses: Addresses, count: int, pace: Pace | None) -> int:
    loaded = addresses.loaded
    supervisor = Supervisor(loaded, count, launch, sockets=addresses.sockets, pace=pace)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stopped() -> None:
        if stop.is_set():
            supervisor.kill()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped)
    try:
        pages = await start_pages(loaded.config.admin, supervisor.page, supervisor.ready)
    except REASONS as error:
        raise StartError(reason_of(error)) from error
    try:
        return await _serve(supervisor, addresses, stop, pages)
    finally:
        for page in pages.values():
            await page.stop()


async def _serve(
    supervisor: Supervisor, addresses: Addresses, stop: asyncio.Event, pages: dict[str, Server]
) -> int:
    starting = asyncio.create_task(supervisor.start())
    await _first(starting, stop.wait())
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return 0
    where = {**starting.result(), **{name: page.address for name, page in pages.items()}}
    log.info("started", version=__version__, workers=supervisor.count, **where)
    await _first(asyncio.create_task(supervisor.failed()), stop.wait())
    log.info("not ready", reason="stopping" if stop.is_set() else "a worker keeps dying")
    # When workers take no more connections, none is to wait for them.
    pre_stop_s = addresses.loaded.config.lifecycle.pre_stop
    asyncio.get_running_loop().call_later(pre_stop_s, addresses.close)
    status = await supervisor.stop()
    log.info("stopped")
    return status


async def _first(task: asyncio.Task[Any], other: Coroutine[Any, Any, Any]) -> None:
    """Wait until either is over; the second is ended then."""
    beside = asyncio.create_task(other)
    await asyncio.wait({task, beside}, return_when=asyncio.FIRST_COMPLETED)
    beside.cancel()
