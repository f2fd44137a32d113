"""The interfaces of an exchange: its connection, its request and its listener."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gateway.ir.errors import GatewayError
from gateway.transports.authentication import Authentication
from gateway.transports.client_shares import ClientShares
from gateway.transports.contract import HttpAsk, HttpFrontend, ServerLimits
from gateway.transports.http.cors import CorsRules
from gateway.transports.http.cut_through import OnBodyError, OpenBodyStream
from gateway.transports.http.request_head import Head, Version
from gateway.transports.http.states import HttpConnectionState
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import Reservation
from gateway.transports.slots import ConcurrencyLimiter


class HttpConnection(Protocol):
    """What an exchange needs of its connection.

    Attributes:
        transport: None once it is lost.
        state: A response may be the last unless it is OPEN; then `must_close` decides.
        is_head_sent: The response has started.
        responses_sent: How many requests have had a response.
        client: The shares of the client.
        cancel_exchange: Ends the exchange with an error, at the end of a drain; None without one.
    """

    transport: asyncio.Transport | None
    state: HttpConnectionState
    is_head_sent: bool
    responses_sent: int
    client: ClientShares
    cancel_exchange: Callable[[], None] | None

    @property
    def write_paused(self) -> asyncio.Event | None:
        """Set when the write buffer is empty again; None while it is empty."""
        ...

    @property
    def must_close(self) -> bool:
        """Whether the current response is the last."""
        ...

    def abort(self) -> None:
        """Close at once, without the rest of the output."""
        ...


class RequestReader(Protocol):
    """One request, as its connection reads it.

    Attributes:
        should_close: The connection ends after the response, as the client requests.
        reservation: The reservation of a body that is being received already; None otherwise.
    """

    method: str
    version: Version
    should_close: bool
    reservation: Reservation | None

    @property
    def is_complete(self) -> bool:
        """Whether the whole body has arrived."""
        ...

    @property
    def buffered_body(self) -> memoryview | None:
        """The body, if it has a known length and has arrived completely; else None."""
        ...

    def head(self, limits: ServerLimits, /) -> Head:
        """Return its head. Raises HttpError."""
        ...

    async def body(
        self, length: int | None, limits: ServerLimits, held: Reservation, /
    ) -> memoryview:
        """Return the body as one read-only view, with its content coding.

        Args:
            length: Its Content-Length, within the limit; None for a chunked body.
            limits: The limits of the listener.
            held: The memory reservation, which grows as the body arrives.

        Raises:
            TooLarge: It has too many bytes or chunks.
            MalformedMessage: Its framing is broken.
            Overloaded: There is no memory for it.
            HttpError: It arrives too slowly.
            ConnectionError: The client has left.
        """
        ...

    def received_bytes(self) -> int:
        """Return how many bytes of the body have arrived."""
        ...

    def forget(self) -> None:
        """Drop the body, which is not needed any more."""
        ...

    async def open_body_stream(
        self,
        length: int,
        start: int,
        limits: ServerLimits,
        held: Reservation,
        on_error: OnBodyError,
        /,
    ) -> OpenBodyStream | None:
        """Return the body as a stream when *start* of its *length* bytes have arrived.

        The result is None if the body is complete, or if the implementation does not stream.
        Raises what `body` raises; a body that arrives too slowly calls *on_error*.
        """
        ...


@dataclass(slots=True)
class ListenerState:
    """The state that all exchanges of a listener share.

    Attributes:
        authentication: Asks who sends each request; None if nobody asks.
        is_plain: Exchanges need nothing beside the codecs: no `cors`, no `authentication`.
        cut_through_limiter: The slots of requests that start before their bodies have arrived.
    """

    limits: ServerLimits
    budget: MemoryBudget
    slots: ConcurrencyLimiter
    handler_of: Callable[[str], tuple[HttpFrontend, HttpAsk]]
    """Returns the frontend of a path, and its method for requests. Raises HttpError."""
    on_reject: Callable[[GatewayError], str | None]
    """Called for a request that reached no frontend; returns its request id."""
    cut_through_limiter: ConcurrencyLimiter
    cors: CorsRules | None = None
    """Which web pages may read the responses; None for no such pages."""
    authentication: Authentication | None = None
    is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        self.authenticate(self.authentication)

    def authenticate(self, authentication: Authentication | None) -> None:
        """Ask *authentication* who sends each request of the connections that begin now."""
        self.authentication = authentication
        self.is_plain = self.cors is None and authentication is None
