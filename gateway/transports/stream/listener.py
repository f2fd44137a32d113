"""StreamListenerState: the state that the connections of one stream listener share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.ir.errors import GatewayError, Overloaded
from gateway.transports.authentication import Authentication
from gateway.transports.client_shares import ClientShares
from gateway.transports.connection_count import (
    DESCRIPTORS,
    ConnectionCount,
    client_address,
    connection_refusal,
)
from gateway.transports.contract import ServerLimits, StreamFrontend
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.net.refused_connection import refuse_connection
from gateway.transports.net.sockets import tune
from gateway.transports.reservation import Reservation
from gateway.transports.slots import ConcurrencyLimiter
from gateway.transports.stream.refused import RefusedConnection
from gateway.wire.stream import Frame, Framer


class FramedConnection(Protocol):
    """A connection, as its listener sees it."""

    @property
    def transport(self) -> Any:
        """That of asyncio; None before and after."""
        ...

    def drain(self) -> None:
        """Close when idle, or after the last pending response."""
        ...

    def fail_in_flight(self) -> None:
        """End the requests in progress with an error, and close."""
        ...

    def abort(self) -> None:
        """Close at once, without the rest of the output."""
        ...


ReadCredentials = Callable[[Frame], tuple[str, str]]


def no_credentials(_frame: Frame) -> tuple[str, str]:
    """Return nothing, for protocols whose frames carry no credentials."""
    return "", ""


def unchanged(frame: Frame) -> Frame:
    """Return *frame*, for protocols whose frames carry no credentials."""
    return frame


@dataclass(slots=True)
class StreamListenerState:
    """What every connection of a listener shares.

    Attributes:
        width: How many frames of one connection are handled at a time.
        ahead: How many frames of one connection are read before their responses.
        on_reject: Called for connections and frames that are rejected before the frontend.
        authentication: Asks who sends each frame; None if nobody asks.
        credentials: Returns the credentials that a frame carries, and the method that it calls.
        without_credentials: Returns a frame without the credentials that it carries.
        closes_denied: A connection ends after a frame whose credentials are missing or wrong.
        is_open: Whether connections are accepted.
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
    on_reject: Callable[[GatewayError], str | None]
    authentication: Authentication | None = None
    credentials: ReadCredentials = no_credentials
    without_credentials: Callable[[Frame], Frame] = unchanged
    closes_denied: bool = False
    is_open: bool = True
    connections: set[FramedConnection] = field(default_factory=set)
    emptied: asyncio.Event = field(default_factory=asyncio.Event)

    def reservation(self, client: ClientShares) -> Reservation:
        """Return a reservation in the share of a client."""
        return Reservation(self.budget, self.limits.queue_wait_s, client.memory)

    def enter(self, connection: FramedConnection, transport: Any) -> str | None:
        """Accept a connection and return its client address; return None if it is rejected.

        A connection is rejected while the listener is closing, or above a limit.
        """
        if not self.is_open:
            transport.abort()
            return None
        refusal = self.refusal(connection, transport)
        if refusal is not None:
            self._refuse(transport, refusal)
            return None
        address = _address_of(connection, transport)
        self.count.enter(address)
        self.connections.add(connection)
        self.emptied.clear()
        tune(transport.get_extra_info("socket"))
        return address

    def refusal(self, connection: FramedConnection, transport: Any) -> Overloaded | None:
        """Return the error for a connection above a limit; None if there is room."""
        return connection_refusal(self.count, transport, _address_of(connection, transport))

    def _refuse(self, transport: Any, refusal: Overloaded) -> None:
        """Reply to a connection above a limit in the form of the protocol, and close it."""
        if refusal.limit == DESCRIPTORS:
            self.on_reject(refusal)
            transport.abort()
            return
        answer, framer = self.frontend.reject(refusal), self.framer()
        buffers = framer.send(answer)
        if buffers:
            refuse_connection(transport, b"".join(buffers), linger=True)
        else:
            transport.set_protocol(RefusedConnection(transport, framer, answer))

    def forget(self, connection: FramedConnection) -> None:
        """Note that a connection has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self.emptied.set()


def _address_of(connection: FramedConnection, transport: Any) -> str:
    """Return the address that a connection counts for. A client of a unix socket has its own."""
    return client_address(transport, f"unix {id(connection)}")
