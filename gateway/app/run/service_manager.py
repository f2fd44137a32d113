"""ServiceManager: tells the service manager that started the gateway about its state.

The leading process tells it, never a worker: the unit file has `NotifyAccess=main`.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import asyncio
import os
import socket
from collections.abc import Mapping, MutableMapping
from time import clock_gettime_ns
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = ("WATCHDOG_USEC", "WATCHDOG_PID")
_US: Final = 1_000_000


class ServiceManager:
    """The service manager of this process; without one, every method does nothing.

    Args:
        environ: The environment. Its variables are removed, so that no child process has them.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop(_SOCKET, "")
        # A name that begins with "@" is in the abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        interval, pid = (environ.pop(name, "") for name in _WATCHDOG)
        is_ours = pid in {"", str(os.getpid())}
        self._interval_s = int(interval) / _US if interval.isdecimal() and is_ours else 0.0
        self._watchdog: asyncio.Task[None] | None = None

    def started(self, addresses: Mapping[str, str]) -> None:
        """Say that the gateway listens, and from now on that the event loop runs."""
        where = ", ".join(f"{name} {address}" for name, address in addresses.items())
        self._send(f"READY=1\nSTATUS=Serving on {where}")
        if self._interval_s and self._address:
            self._watchdog = asyncio.get_running_loop().create_task(self._beat(), name="watchdog")

    def reloading(self) -> None:
        """Say that the configuration is read again."""
        now = clock_gettime_ns(1) // 1000  # CLOCK_MONOTONIC, which systemd compares with its own
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now}")

    def reloaded(self, outcome: str) -> None:
        """Say that a reload has ended, whether it was applied or not."""
        self._send(f"READY=1\nSTATUS=Serving; last reload: {outcome}")

    def stopping(self) -> None:
        """Say that the gateway ends its calls, and then itself."""
        self._send("STOPPING=1\nSTATUS=Ends the calls in progress")
        if self._watchdog is not None:
            self._watchdog.cancel()

    async def _beat(self) -> None:
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._interval_s / 2)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto(message.encode(), self._address)
        except OSError as error:
            log.warning("service manager not informed", message=message, reason=str(error))
