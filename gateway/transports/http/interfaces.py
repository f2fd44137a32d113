"""What an exchange stands between: its connection, the request that comes on it, its listener."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.ir.errors import GatewayError
from gateway.transports.admission import (
    ClientShares,
    ConcurrencyLimiter,
    MemoryBudget,
    Reservation,
)
from gateway.transports.contract import HttpAsk, HttpFrontend, ServerLimits
from gateway.transports.http.cut_through import Broken, OpenBodyStream
from gateway.transports.http.request_head import Head, Version


class HttpConnection(Protocol):
    """What an exchange needs of the connection it is on.

    Attributes:
        transport: None once it is lost.
        behind: Set once the kernel has all that was written; None while it has.
        head_sent: The answer has begun.
        answered: Requests answered so far.
        client: What its client has of the slots and the memory of all.
        give_up: Ends the exchange with an error, at a drain's end; None between exchanges.
    """

    transport: asyncio.Transport | None
    write_paused: asyncio.Event | None
    head_sent: bool
    responses_sent: int
    client: ClientShares
    cancel_exchange: Callable[[], None] | None

    @property
    def ending(self) -> bool:
        """Whether an answer may be the last; which one is, `must_close` tells."""
        ...

    @property
    def must_close(self) -> bool:
        """Whether the answer being written is the last."""
        ...

    def abort(self) -> None:
        """Close at once, without the end of what was being written."""
        ...


class RequestReader(Protocol):
    """One request as its connection reads it.

    Attributes:
        closes: The connection ends with its answer, as the client wants it.
        lease: Holds its body already, which is received; None where that waits to be asked for.
    """

    method: str
    version: Version
    closes: bool
    lease: Reservation | None

    @property
    def is_complete(self) -> bool:
        """Whether all of it has come."""
        ...

    @property
    def buffered_body(self) -> memoryview | None:
        """Its body, if that has a length and has come without being asked for; else None."""
        ...

    def head(self, limits: ServerLimits, /) -> Head:
        """Return its head; raises HttpFault."""
        ...

    async def body(
        self, length: int | None, limits: ServerLimits, held: Reservation, /
    ) -> memoryview:
        """Return its body as one read-only view, its content coding still on.

        Args:
            length: Its Content-Length, within the limit; None when it comes in chunks.
            limits: Of the listener.
            held: Grows as it comes.

        Raises:
            TooLarge: More bytes or chunks than allowed.
            MalformedMessage: The framing broke.
            Overloaded: No room in the budget.
            HttpFault: It comes too slowly.
            ConnectionError: The client has left.
        """
        ...

    def received_bytes(self) -> int:
        """Return how many bytes of its body have come."""
        ...

    def forget(self) -> None:
        """Let go of its body, which was answered."""
        ...

    async def open_body_stream(
        self, length: int, start: int, limits: ServerLimits, held: Reservation, broken: Broken, /
    ) -> OpenBodyStream | None:
        """Return its body when *start* of its *length* bytes have come.

        None where all of it is here, or this make receives bodies whole. Raises as `body`, but
        for a body that comes too slowly, of which *broken* is told.
        """
        ...


@dataclass(frozen=True, slots=True)
class ListenerState:
    """What every exchange of a listener shares.

    Attributes:
        early: Slots of requests that were begun before their bodies had come.
    """

    limits: ServerLimits
    budget: MemoryBudget
    slots: ConcurrencyLimiter
    find: Callable[[str], tuple[HttpFrontend, HttpAsk]]
    """Frontend for a path, and what asks it; raises HttpFault."""
    refused: Callable[[GatewayError], None]
    early: ConcurrencyLimiter
