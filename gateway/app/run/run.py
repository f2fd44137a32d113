"""Runs a gateway in this process until a signal stops it."""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.app.build.parts import LeadingParts, OwnProcess
from gateway.app.check.here import require_files
from gateway.app.listen.activation import activated_sockets
from gateway.app.run.gateway import Gateway, memory_budget
from gateway.app.run.reload import Load, Reloader
from gateway.app.run.service_manager import ServiceManager
from gateway.concurrency.background import start_background
from gateway.concurrency.process_end import run_to_end
from gateway.config.load import LoadedConfig
from gateway.processes.process import (
    freeze_startup_objects,
    keep_large_buffers,
    shorten_switch_interval,
)
from gateway.processes.signals import StopSignal, on_reopen, start_reaping
from gateway.processes.worker_slot import SINGLE_PROCESS
from gateway.schema.pool import require_fast_runtime
from gateway.telemetry.log import logs
from gateway.transports.net.sockets import raise_descriptor_limit


def run(
    loaded: LoadedConfig,
    *,
    started: Callable[[Gateway], Awaitable[None]] | None = None,
    load: Load | None = None,
) -> int:
    """Run a gateway in this process until SIGTERM or SIGINT; return the exit status.

    The second signal ends the process at once, and so does a stop that takes much longer than the
    configuration allows, because code of a package hangs. `workers` of the configuration is
    ignored: see `workers.supervisor.supervise`.

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
    return run_to_end(_run(loaded, started, load or (lambda: loaded)), loop_factory())


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
    require_files(loaded)
    reaping = start_reaping()
    manager = ServiceManager()
    sockets = activated_sockets(loaded.config.listeners)
    processes = OwnProcess(loaded)
    leading = LeadingParts.of(processes)
    setups = leading.setups(SINGLE_PROCESS.number)
    gateway = Gateway(loaded, sockets=sockets, setups=setups, notify=leading.on_notice)
    processes.serving = gateway.parts
    stop = StopSignal(is_final=True, longest_s=lambda: gateway.longest_stop_s)
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
    stop.ended()
    return 0
