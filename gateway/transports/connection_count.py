"""The connections of a listener: how many there are, and which are refused."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from gateway.ir.errors import Overloaded
from gateway.transports.net.sockets import descriptors_short, max_descriptors, normal_address

_RESERVE: Final = 8
"""The divisor of the connections that one client leaves to others."""

DESCRIPTORS: Final = "descriptors"
"""The name of the limit of file descriptors of the process."""


class ConnectionCount:
    """Counts the connections of one listener, in total and by client address.

    Args:
        limit: The limit in total; 0 for half of the descriptors that upstreams leave.
        limit_per_address: The limit for one address; 0 for *limit*, or for seven eighths of the
            total where *limit* is 0 too.
        upstream_connections: Largest number of connections to upstreams.
    """

    def __init__(self, limit: int, limit_per_address: int, upstream_connections: int = 0) -> None:
        descriptors = max_descriptors()
        remaining = max(descriptors - upstream_connections, descriptors // 2)
        self._limit = limit or remaining // 2
        reserve = self._limit // _RESERVE
        self._limit_per_address = limit_per_address or limit or max(1, self._limit - reserve)
        self._of: Counter[str] = Counter()
        self.total = 0

    def exceeded(self, address: str) -> str | None:
        """Return the YAML name of the limit that one more from *address* would exceed, or None."""
        if self.total >= self._limit:
            return "connections"
        if self._of[address] >= self._limit_per_address:
            return "connections_per_address"
        return None

    def enter(self, address: str) -> None:
        """Count a connection."""
        self.total += 1
        self._of[address] += 1

    def leave(self, address: str) -> None:
        """Remove a connection from the count."""
        self.total -= 1
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]


def client_address(transport: Any, unnamed: str = "") -> str:
    """Return the address that a connection counts for; *unnamed* if its client has none."""
    peer = transport.get_extra_info("peername")
    return normal_address(str(peer[0])) if isinstance(peer, tuple) else unnamed


def connection_refusal(
    count: ConnectionCount, transport: Any, address: str, *, reserve: bool = False
) -> Overloaded | None:
    """Return the error for a connection above a limit; None if there is room.

    Args:
        count: The connections of the listener.
        transport: The transport of the connection.
        address: The address that it counts for.
        reserve: Whether it may use the descriptors in reserve.
    """
    # First, because connections above the other limits stay open until they have their response.
    if not reserve and descriptors_short(transport.get_extra_info("socket")):
        limit: str | None = DESCRIPTORS
    else:
        limit = count.exceeded(address)
    if limit is None:
        return None
    return TooManyConnections(
        f"too many connections from {address or 'clients'} (limit {limit})", address, limit
    )


class TooManyConnections(Overloaded):
    """A connection exceeds a limit.

    Args:
        message: What is wrong, for the client.
        address: The address of the client.
        limit: The name of the limit.
    """

    def __init__(self, message: str, address: str, limit: str) -> None:
        super().__init__(message, limit=limit)
        self.address = address
