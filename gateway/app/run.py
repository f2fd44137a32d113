"""Running a gateway until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from gateway.app.gateway import Gateway, default_budget
from gateway.app.process import freeze_startup_objects, keep_large_buffers, shorten_switch_interval
from gateway.app.worker_slot import SINGLE_PROCESS, WorkerSlot, workers_of
from gateway.app.workers.supervisor import supervise
from gateway.config.load import LoadedConfig
from gateway.schema.pool import require_fast_runtime
from gateway.telemetry import log as logs


def run(
    loaded: LoadedConfig, *, started: Callable[[Gateway], Awaitable[None]] | None = None
) -> int:
    """Run a gateway until SIGTERM or SIGINT; return the exit status.

    The second signal ends the process at once. With several workers, this process supervises them.

    Args:
        loaded: Its configuration.
        started: Called once it listens; with several workers nobody is.

    Raises:
        ConfigError: The configuration is wrong.
        StartError: It cannot start.
    """
    count = workers_of(loaded.config.workers)
    if count > 1:
        return supervise(loaded, count)
    settings = loaded.config.telemetry.log
    logs.configure(settings.level, settings.format)
    prepare(SINGLE_PROCESS)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(loaded, started))


def prepare(seat: WorkerSlot) -> None:
    """Make this process one that serves; to be called before its loop is made."""
    require_fast_runtime()
    keep_large_buffers(default_budget(seat) // 4)
    shorten_switch_interval()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the loop of a process that serves; None for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415  # not everywhere
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(loaded: LoadedConfig, started: Callable[[Gateway], Awaitable[None]] | None) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stopped() -> None:
        if stop.is_set():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped)
    gateway = Gateway(loaded)
    await gateway.start()
    freeze_startup_objects()
    if started is not None:
        await started(gateway)
    await stop.wait()
    await gateway.stop()
    return 0
