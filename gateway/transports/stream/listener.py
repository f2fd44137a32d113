"""What the connections of one byte stream listener share, and what it asks of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.ir.errors import GatewayError
from gateway.transports.admission import (
    ConcurrencyLimiter,
    ConnectionCount,
    MemoryBudget,
    client_address,
    connection_refusal,
)
from gateway.transports.contract import ServerLimits, StreamFrontend
from gateway.transports.net.sockets import tune
from gateway.wire.stream import Framer


class FramedConnection(Protocol):
    """A connection, as its listener sees it."""

    def drain(self) -> None:
        """Close when idle, else after the last answer that is due."""
        ...

    def fail_in_flight(self) -> None:
        """Answer what is in flight with an error, and close."""
        ...

    def abort(self) -> None:
        """Close at once, without the end of what was being written."""
        ...


@dataclass(slots=True)
class StreamListenerState:
    """What every connection of a listener shares.

    Attributes:
        width: Frames of one connection that are answered at a time.
        ahead: Frames of one connection that are taken before they are answered.
        refused: Told of connections and frames refused before a frontend was asked.
        open: Whether connections are taken.
        connections: Those open now; `emptied` is set while there are none.
    """

    limits: ServerLimits
    budget: MemoryBudget
    slots: ConcurrencyLimiter
    count: ConnectionCount
    frontend: StreamFrontend
    framer: Callable[[], Framer]
    width: int
    ahead: int
    refused: Callable[[GatewayError], None]
    open: bool = True
    connections: set[FramedConnection] = field(default_factory=set)
    emptied: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, connection: FramedConnection, transport: Any) -> str | None:
        """Take a connection in and return the address it counts for; None, and it is cut.

        It is cut where nothing is taken any more, or there are too many.
        """
        if not self.open:
            transport.abort()
            return None
        sock = transport.get_extra_info("socket")
        # A unix socket's clients have no addresses: each counts for itself.
        address = client_address(transport, f"unix {id(connection)}")
        refusal = connection_refusal(self.count, transport, address)
        if refusal is not None:
            self.refused(refusal)
            transport.abort()
            return None
        self.count.enter(address)
        self.connections.add(connection)
        self.emptied.clear()
        tune(sock)
        return address

    def forget(self, connection: FramedConnection) -> None:
        """Note that a connection is over."""
        self.connections.discard(connection)
        if not self.connections:
            self.emptied.set()
