"""ProtocolSniffer: recognises HTTP and gRPC on the port of a byte stream by the first bytes.

A connection is passed once, with the bytes received so far, to the stream's own protocol or to a
server that does not listen itself.  Anything unknown goes to the stream, whose framer reports the
error in its own form.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.ir.errors import InvalidRequest, Overloaded
from gateway.transports.authentication import Authentication
from gateway.transports.connection_count import DESCRIPTORS, ConnectionCount
from gateway.transports.net.tls_files import Authorities
from gateway.transports.stream.listener import StreamListenerState
from gateway.transports.stream.refused import FIRST_FRAME_S

# RFC 9110, section 9, and PATCH of RFC 5789.
_METHODS = (
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"CONNECT ",
    b"OPTIONS ",
    b"TRACE ",
    b"PATCH ",
)


class ConnectionServer(Protocol):
    """A server that is handed connections, and listens nowhere itself."""

    async def start(self) -> None:
        """Be ready to be handed connections."""
        ...

    def drain_unverified(self, authorities: Authorities) -> None:
        """Close connections whose client *authorities* do not verify, each after its requests."""
        ...

    def authenticate(self, authentication: Authentication) -> None:
        """Ask who sends each request from now on; drain earlier connections."""
        ...

    def announce_close(self) -> None:
        """Ask clients to leave, and serve them as before."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Finish what is in flight, then cancel the rest and close."""
        ...

    async def stop(self) -> None:
        """Close at once; harmless the second time."""
        ...


MatchesPrefix = Callable[[bytes], bool]
"""Whether a connection that begins with these bytes is of a protocol, or may still be."""


@dataclass(frozen=True, slots=True)
class SharedPortProtocols:
    """The other protocols on the port of a stream.

    Attributes:
        is_frame: Returns whether the first bytes belong to the stream's own protocol.
        connections: For each protocol, a test of the first bytes and a factory of connections.
        servers: The servers of those connections.
        count: The connection count of the port, which the servers share.
    """

    is_frame: MatchesPrefix
    connections: tuple[tuple[MatchesPrefix, Callable[[], asyncio.BaseProtocol]], ...]
    servers: tuple[ConnectionServer, ...]
    count: ConnectionCount


def may_be_http(first: bytes) -> bool:
    """Return whether a connection that starts with *first* speaks HTTP/1, or may do so."""
    return any(first.startswith(method) or method.startswith(first) for method in _METHODS)


class ProtocolSniffer(asyncio.Protocol):
    """A connection of *listener* whose protocol is not known yet.

    Args:
        listener: Counts the connection until it is passed on.
        beside: The other protocols.
        stream: Creates the stream's own protocol.
        loop: The event loop.
    """

    def __init__(
        self,
        listener: StreamListenerState,
        beside: SharedPortProtocols,
        stream: Callable[[], asyncio.Protocol],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._listener = listener
        self._beside = beside
        self._stream = stream
        self._loop = loop
        self._transport: Any = None
        self._address: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first = b""

    @property
    def transport(self) -> Any:
        """That of asyncio; None before and after."""
        return self._transport

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, and wait for its first bytes.

        One above a limit is refused by the protocol that it speaks, in that protocol's form.
        """
        self._transport = transport
        refusal = self._listener.refusal(self, transport)
        if refusal is not None and refusal.limit != DESCRIPTORS:
            self._timer = self._loop.call_later(FIRST_FRAME_S, self._refuse, refusal)
            return
        self._address = self._listener.enter(self, transport)
        if self._address is not None:
            limits = self._listener.limits
            self._timer = self._loop.call_later(limits.header_timeout_s, self._silent)

    def data_received(self, data: bytes) -> None:
        """Pass the connection on once its protocol is known."""
        self._first += data
        others = [make for may_be, make in self._beside.connections if may_be(self._first)]
        may_be_frame = self._beside.is_frame(self._first)
        if len(others) + may_be_frame > 1:
            return
        self._hand_over(others[0]() if others else self._stream())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Remove the connection from the count."""
        self._leave()

    # -- ending

    def drain(self) -> None:
        """Close: there is no request."""
        self._transport.close()

    def fail_in_flight(self) -> None:
        """Close: there is no request."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _silent(self) -> None:
        self._listener.on_reject(
            InvalidRequest("a connection sent no request", limit="header_timeout_s")
        )
        self._transport.close()

    def _refuse(self, refusal: Overloaded) -> None:
        self._listener.on_reject(refusal)
        self._transport.abort()

    def _hand_over(self, protocol: Any) -> None:
        if self._transport.is_closing():
            return
        self._leave()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if not self._transport.is_closing():  # one that is refused has another protocol now
            self._transport.get_protocol().data_received(self._first)

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._address is not None:
            self._listener.count.leave(self._address)
            self._address = None
        self._listener.forget(self)
