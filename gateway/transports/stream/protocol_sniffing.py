"""HTTP and gRPC on the port of a byte stream: a connection's first bytes say what it speaks.

A connection is handed over once, with what has come of it, to the stream's own protocol or to a
server that listens nowhere itself; whatever is none of them goes to the stream, whose framer says
so in its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.ir.errors import InvalidRequest
from gateway.transports.admission import ConnectionCount
from gateway.transports.stream.listener import StreamListenerState

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
# RFC 9113, section 3.4.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class ConnectionServer(Protocol):
    """A server that is handed connections, and listens nowhere itself."""

    async def start(self) -> None:
        """Be ready to be handed connections."""
        ...

    def connection(self) -> asyncio.BaseProtocol:
        """Return the protocol of one more connection; it has not been told of a transport."""
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
    """What is spoken on a stream's port besides its frames.

    Attributes:
        is_frame: Tells the stream's own protocol.
        servers: Each with what tells its protocol.
        count: Of the port's connections, which the servers count theirs in too.
    """

    is_frame: MatchesPrefix
    servers: tuple[tuple[MatchesPrefix, ConnectionServer], ...]
    count: ConnectionCount


def may_be_http(first: bytes) -> bool:
    """Tell whether a connection that begins with *first* speaks HTTP/1, or may still do so."""
    return any(first.startswith(method) or method.startswith(first) for method in _METHODS)


def may_be_http2(first: bytes) -> bool:
    """Tell whether a connection that begins with *first* speaks HTTP/2, or may still do so."""
    return first[: len(_PREFACE)] == _PREFACE[: len(first)]


class ProtocolSniffer(asyncio.Protocol):
    """A connection of *listener* that has not said yet what it speaks.

    Args:
        listener: Counts it, until it is handed over.
        beside: What it may speak.
        stream: Makes the stream's own protocol.
        loop: Its timer.
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

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, and wait for its first bytes."""
        self._transport = transport
        self._address = self._listener.enter(self, transport)
        if self._address is not None:
            limits = self._listener.limits
            self._timer = self._loop.call_later(limits.header_timeout_s, self._silent)

    def data_received(self, data: bytes) -> None:
        """Hand the connection over once it is known to whom."""
        self._first += data
        servers = [server for may_be, server in self._beside.servers if may_be(self._first)]
        may_be_frame = self._beside.is_frame(self._first)
        if len(servers) + may_be_frame > 1:
            return
        self._hand_over(servers[0].connection() if servers else self._stream())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Forget the connection."""
        self._leave()

    # -- ending

    def drain(self) -> None:
        """Close: nothing has been asked."""
        self._transport.close()

    def fail_in_flight(self) -> None:
        """Close: nothing has been asked."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _silent(self) -> None:
        self._listener.refused(
            InvalidRequest("a connection asked nothing", limit="header_timeout_s")
        )
        self._transport.close()

    def _hand_over(self, protocol: Any) -> None:
        if self._transport.is_closing():
            return
        self._leave()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._first)

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._address is not None:
            self._listener.count.leave(self._address)
            self._address = None
        self._listener.forget(self)
