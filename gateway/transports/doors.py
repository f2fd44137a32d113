"""Whether one connection more may be taken in, and whom it counts for."""

from __future__ import annotations

from typing import Any

from gateway.ir.errors import Overloaded
from gateway.transports.admission import ConnectionCount
from gateway.transports.sockets import descriptors_short


def address_of(transport: Any, unnamed: str = "") -> str:
    """Return the address a connection counts for; *unnamed* where its client has none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else unnamed


def too_many(
    count: ConnectionCount, transport: Any, address: str, *, reserve: bool = False
) -> Overloaded | None:
    """Return why the connection of *transport* is one too many; None where there is room.

    Args:
        count: Of the listener.
        transport: Of the connection.
        address: That it counts for.
        reserve: It may use the descriptors that are kept in reserve.
    """
    limit = count.exceeded(address)
    if limit is None and not reserve and descriptors_short(transport.get_extra_info("socket")):
        limit = "descriptors"
    if limit is None:
        return None
    return Overloaded(f"too many connections, limit {limit}", limit=limit)
