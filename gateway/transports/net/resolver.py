"""Where an upstream is: its name is looked up again by age and after failures, not each time."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, TypeVar

from gateway.transports.net.look_up import is_address, look_up

P = TypeVar("P", bound=asyncio.BaseProtocol)

UNIX = "unix:"

# How long a new look-up may delay who knows earlier addresses of the name.
_STALE_WAIT_S: Final = 0.25


class KnownAddresses:
    """The addresses of a name, with earlier ones for when it cannot be looked up.

    Args:
        host: The name.
        resolve: Looks it up.
    """

    def __init__(self, host: str, resolve: Callable[[str], Awaitable[list[str]]] = look_up) -> None:
        self._host = host
        self._resolve = resolve
        self._found: list[str] = []

    async def update(self) -> list[str]:
        """Look the name up, and return its addresses. Raises OSError if none were ever found."""
        try:
            async with asyncio.timeout(_STALE_WAIT_S if self._found else None):
                self._found = await self._resolve(self._host)
        except OSError:  # a TimeoutError is one
            if not self._found:
                raise
        return self._found


class UpstreamConnector:
    """Connects to one upstream.

    Args:
        host: A name or an address; "" with *path*.
        port: The port of a TCP server.
        path: The path of a unix socket.
        address: IP address of the host; "" to look it up.
        floor_s: How long what a name stands for is remembered.
        resolve: Looks names up.
        clock: Monotonic seconds.
    """

    def __init__(  # the last two for tests alone
        self,
        host: str,
        port: int,
        path: str = "",
        *,
        address: str = "",
        floor_s: float = 5.0,
        resolve: Callable[[str], Awaitable[list[str]]] = look_up,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._host = host
        self._port = port
        self._path = path
        self._address = address or (host if is_address(host) else "")
        self._floor_s = floor_s
        self._known = KnownAddresses(host, resolve)
        self._clock = clock
        self._found: list[str] = []
        self._failed: set[str] = set()
        self._fresh_until: float | None = None

    async def connect(self, make: Callable[[], P], options: dict[str, Any]) -> P:
        """Connect to the first address that answers; those that failed last time are tried last.

        Args:
            make: Makes the protocol of the connection.
            options: `ssl` and what belongs to it, for the loop.

        Raises:
            OSError: The name is unknown, or no address accepted a connection.
        """
        loop = asyncio.get_running_loop()
        if self._path:
            _, protocol = await loop.create_unix_connection(make, self._path, **options)
            return protocol
        if options.get("ssl") is not None:
            options = {**options, "server_hostname": self._host}
        last: OSError | None = None
        for address in await self._addresses():
            self._failed.add(address)  # until it answers: the caller may not wait for it
            try:
                _, protocol = await loop.create_connection(make, address, self._port, **options)
            except OSError as error:
                last = error.with_traceback(None)  # the loop's frames hold it, and it them
            else:
                self._failed.discard(address)
                return protocol
        self._fresh_until = None  # it may have moved
        try:
            raise last or OSError(f"{self._host} has no address")
        finally:
            del last  # it holds this frame now

    async def _addresses(self) -> list[str]:
        """Return the addresses of the host; stale ones where it cannot be looked up."""
        if self._address:
            return [self._address]
        now = self._clock()
        if self._fresh_until is None or now >= self._fresh_until:
            self._found = await self._known.update()
            self._failed.intersection_update(self._found)
            self._fresh_until = now + self._floor_s
        return sorted(self._found, key=self._failed.__contains__)


def upstream_of(target: str, floor_s: float, address: str = "") -> UpstreamConnector:
    """Return the upstream of "host:port" or "unix:/path". Raises ValueError.

    Args:
        target: Where it is.
        floor_s: How long an address of a name is remembered.
        address: IP address of the host; "" to look it up.
    """
    if target.startswith(UNIX):
        return UpstreamConnector("", 0, target.removeprefix(UNIX))
    host, colon, port = target.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit()):
        raise ValueError(f"upstream {target!r} is not host:port")
    return UpstreamConnector(host.strip("[]"), int(port), floor_s=floor_s, address=address)
