"""Runs a gateway in this process until a signal stops it."""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.app.activation import activated_sockets
from gateway.app.gateway import Gateway, memory_budget
from gateway.app.parts import LeadingParts, OwnProcess
from gateway.app.process import freeze_startup_objects, keep_large_buffers, shorten_switch_interval
from gateway.app.reload import Load, Reloader
from gateway.app.service_manager import ServiceManager
from gateway.app.signals import StopSignal, on_reopen, start_reaping
from gateway.app.worker_slot import SINGLE_PROCESS
from gateway.concurrency.background import start_background
from gateway.config.load import LoadedConfig
from gateway.schema.pool import require_fast_runtime
from gateway.telemetry import logs
from gateway.transports.net.sockets import raise_descriptor_limit


def run(
    loaded: LoadedConfig,
    *,
    started: Callable[[Gateway], Awaitable[None]] | None = None,
    load: Load | None = None,
) -> int:
    """Run a gateway in this process until SIGTERM or SIGINT; return the exit status.

    The second signal ends the process at once. `workers` of the configuration is ignored: see
    `workers.supervisor.supervise`.

    Args:
        loaded: The configuration.
        started: Called when the gateway listens.
        load: Reads the configuration again, for a reload; None for *loaded*.

    Raises:
        ConfigError: The configuration is invalid.
        StartError: The gateway cannot start.
    """
    settings = loaded.config.telemetry.log
    logs.configure(settings.level, settings.format)
    prepare(memory_budget(loaded.config))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(loaded, started, load or (lambda: loaded)))


def prepare(budget_bytes: int) -> None:
    """Configure this process for serving; call it before the event loop exists.

    Args:
        budget_bytes: The memory budget of this process.
    """
    require_fast_runtime()
    raise_descriptor_limit()
    keep_large_buffers(budget_bytes // 4)
    shorten_switch_interval()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop; None for the default of asyncio."""
    try:
        import uvloop  # noqa: PLC0415  # optional
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(
    loaded: LoadedConfig, started: Callable[[Gateway], Awaitable[None]] | None, load: Load
) -> int:
    stop = StopSignal(is_final=True)
    reaping = start_reaping()
    manager = ServiceManager()
    sockets = activated_sockets(loaded.config.listeners)
    processes = OwnProcess(loaded)
    leading = LeadingParts.of(processes)
    setups = leading.setups(SINGLE_PROCESS.number)
    gateway = Gateway(loaded, sockets=sockets, setups=setups, notify=leading.on_notice)
    processes.serving = gateway.parts
    reloader = Reloader(load, loaded, gateway.reload, leading=leading, manager=manager)
    reloader.handle_signal()
    on_reopen(gateway.reopen_logs)
    gateway.metrics.registry.register(reloader.metrics)
    gateway.metrics.registry.register(leading)
    await gateway.start(reloader, leading)
    leading.lead()
    freeze_startup_objects()
    if started is not None:
        await started(gateway)
    manager.started(gateway.addresses)
    announcing = start_background(gateway.announce(), "announcement of the models")
    async with reloader:
        await stop.wait()
        manager.stopping()
    announcing.cancel()
    await gateway.stop(pre_stop_s=0 if stop.is_interrupt else None)
    reaping.cancel()
    return 0
