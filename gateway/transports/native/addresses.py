"""Where an upstream is: its name is looked up again by age and after failures, not each time."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)

UNIX = "unix:"


class Upstream:
    """Connects to one upstream.

    Args:
        host: A name or an address; "" with *path*.
        port: Of TCP.
        path: Of a unix socket.
        floor_s: How long what a name stands for is remembered.
    """

    def __init__(self, host: str, port: int, path: str = "", *, floor_s: float = 5.0) -> None:
        self._host = host
        self._port = port
        self._path = path
        self._floor_s = floor_s
        self._found: list[str] = []
        self._looked_up = 0.0

    async def connect(self, make: Callable[[], P], options: dict[str, Any]) -> P:
        """Connect to the first address that answers. Raises OSError.

        Args:
            make: Of the protocol.
            options: `ssl` and what belongs to it, for the loop.
        """
        loop = asyncio.get_running_loop()
        if self._path:
            _, protocol = await loop.create_unix_connection(make, self._path, **options)
            return protocol
        if options.get("ssl") is not None:
            options = {**options, "server_hostname": self._host}
        last: OSError | None = None
        for address in await self._addresses():
            try:
                _, protocol = await loop.create_connection(make, address, self._port, **options)
            except OSError as error:
                last = error
            else:
                return protocol
        self._looked_up = 0.0  # it may have moved
        raise last or OSError(f"{self._host} has no address")

    async def _addresses(self) -> list[str]:
        """Return the addresses of the host; stale ones where it cannot be looked up."""
        if _is_address(self._host):
            return [self._host]
        if self._found and monotonic() - self._looked_up < self._floor_s:
            return self._found
        loop = asyncio.get_running_loop()
        try:
            rows = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError:
            if not self._found:
                raise
        else:
            self._found = list(dict.fromkeys(str(row[4][0]) for row in rows))
        self._looked_up = monotonic()
        return self._found


def upstream_of(target: str, floor_s: float) -> Upstream:
    """Return the upstream of "host:port" or "unix:/path". Raises ValueError."""
    if target.startswith(UNIX):
        return Upstream("", 0, target.removeprefix(UNIX))
    host, colon, port = target.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit()):
        raise ValueError(f"upstream {target!r} is not host:port")
    return Upstream(host.strip("[]"), int(port), floor_s=floor_s)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
