"""Runs a gateway for the commands `serve` and `demo`; errors of the start are one line."""

import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.app import Gateway, StartError, run
from gateway.app.workers.supervisor import supervise
from gateway.cli.configuration import load_checked_mapping
from gateway.cli.output import WRONG_USAGE, fail
from gateway.cli.serving.sidecar import OFF
from gateway.config.load import ConfigError, LoadedConfig
from gateway.processes.signals import ignore_log_signals
from gateway.processes.worker_slot import resolve_workers

Started = Callable[[Gateway], Awaitable[None]]


def run_loaded(
    load: Callable[[], LoadedConfig],
    *,
    started: Started | None = None,
    flags: Mapping[str, str] = {},
) -> int:
    """Run a gateway, in one process or with workers, and return the exit status.

    Args:
        load: Returns the configuration.
        started: Called when the gateway listens; not called with several workers.
        flags: Addresses by the flag that sets them, for errors about an address in use.

    Raises:
        typer.Exit: The configuration is invalid (2), or the gateway cannot start (1).
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the gateway can reload
    ignore_log_signals()
    try:
        loaded = load()
        workers = resolve_workers(loaded.config.workers)
        if workers > 1:
            return supervise(loaded, workers, load=load)
        return run(loaded, started=started, load=load)
    except ConfigError as error:
        fail(f"the configuration is invalid:\n{error}", WRONG_USAGE)
    except StartError as error:
        fail(f"cannot start: {error}{_advice(str(error), flags)}")


def run_mapping(
    build: Callable[[], dict[str, Any]],
    *,
    started: Started | None = None,
    workers: int | None = None,
) -> int:
    """Run a gateway whose configuration comes from flags; see `run_loaded`.

    Raises:
        typer.Exit: A flag is invalid (2), or the gateway cannot start (1).
    """
    try:
        config = build()
    except ValueError as error:
        fail(str(error), WRONG_USAGE)
    listener = config["listeners"][0]
    flags = {f"--{key}": listener[key] for key in ("http", "grpc") if key in listener}
    for stream in listener.get("streams", ()):
        if not stream["address"].startswith("unix:"):
            flags[f"--{stream['protocol']}-tcp"] = stream["address"]
    flags["--admin"] = config.get("admin", {}).get("address", "").removeprefix(OFF)
    return run_loaded(
        lambda: load_checked_mapping(config, workers=workers), started=started, flags=flags
    )


def _advice(message: str, flags: Mapping[str, str]) -> str:
    for flag, address in flags.items():
        port = address.rpartition(":")[2]
        if port.strip("0") and re.search(rf"\b{port}\b", message):
            return f" (choose another address with {flag} HOST:PORT)"
    return ""
