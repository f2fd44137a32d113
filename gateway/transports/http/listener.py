"""HttpListener: listens for HTTP, drains and stops, for both server implementations.

`path_router` finds the frontend of a path, and `exchange` handles a request.  The connections
belong to the implementations.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Protocol

from gateway.ir.errors import GatewayError
from gateway.transports.authentication import Authentication
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import GrpcMount, HttpFrontend, HttpMount, ServerLimits
from gateway.transports.grpc.server import GrpcServer
from gateway.transports.http.cors import CorsRules
from gateway.transports.http.cut_through import cut_through_limiter
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.path_router import PathRouter
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.net.accept_backlog import drain_accept_queue
from gateway.transports.net.listening import BACKLOG, address_of, listen
from gateway.transports.net.tls_files import Authorities, TlsContext
from gateway.transports.net.tls_server import Listening, listening_server
from gateway.transports.slots import request_slots

_CLOSE_GRACE_S = 1.0
_POLL_S = 0.01


class OpenConnection(Protocol):
    """A connection, as its listener sees it.

    Attributes:
        transport: That of asyncio; None before and after.
    """

    transport: Any

    @property
    def in_flight(self) -> int:
        """The number of requests without a complete response."""
        ...

    def announce_close(self) -> None:
        """Send `Connection: close` with the last pending response."""
        ...

    def drain(self) -> None:
        """Close when idle, or after the last pending response."""
        ...

    def fail_in_flight(self) -> None:
        """End the requests in progress with an error."""
        ...

    def abort(self) -> None:
        """Close at once, without the rest of the output."""
        ...


class Connections(Protocol):
    """Makes connections and knows those there are.

    Attributes:
        is_draining: Each response is the last of its connection, also of those made later.
    """

    is_draining: bool

    @property
    def open_connections(self) -> Sequence[OpenConnection]:
        """Connections there are now."""
        ...

    def __call__(self) -> asyncio.BaseProtocol:
        """Return the protocol of one more connection."""
        ...


def _ignore(_error: GatewayError) -> None: ...


class HttpListener(ABC):
    """A listener for HTTP, with the connections of either implementation.

    Args:
        host: The host to bind, without *sock*.
        port: The port to bind; 0 for a free one.
        mounts: Frontends by path prefix; the longest prefix wins.
        limits: The limits of this listener.
        budget: The memory budget of the process.
        fallback: The frontend of all other paths; None to reply 404.
        sock: A bound socket, instead of *host* and *port*.
        tls: The context of handshakes; None for no TLS.
        on_reject: Called for requests and connections that are rejected before a frontend.
        reserve: Whether it may use the descriptors in reserve, as the admin port does.
        listens: False for a server that only gets accepted connections.
        count: The connection count, if listeners share one.
        reuse_port: Whether other processes listen on the same port too.
        grpc: gRPC methods, which connections of a native server may call over HTTP/2.
        extras: Methods whose calls need no slot and no memory: health, reflection.
        cors: Which web pages may read the responses; None for no such pages.
        inherited: Sockets that listen already, instead of binding *host* and *port*.
        grpc_on_reject: As *on_reject*, for calls and connections of HTTP/2; *on_reject* by default.
        authentication: Asks who sends each request and call; None if nobody asks.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        mounts: Sequence[HttpMount],
        limits: ServerLimits,
        budget: MemoryBudget,
        fallback: HttpFrontend | None = None,
        sock: socket.socket | None = None,
        tls: TlsContext | None = None,
        on_reject: Callable[[GatewayError], str | None] = _ignore,
        reserve: bool = False,
        listens: bool = True,
        count: ConnectionCount | None = None,
        reuse_port: bool = False,
        grpc: Sequence[GrpcMount] = (),
        extras: Sequence[GrpcMount] = (),
        grpc_on_reject: Callable[[GatewayError], str | None] | None = None,
        cors: CorsRules | None = None,
        authentication: Authentication | None = None,
        inherited: Sequence[socket.socket] = (),
    ) -> None:
        self._inherited = inherited
        self._can_use_reserve = reserve
        self._reuse_port = reuse_port
        self._count = count or ConnectionCount(limits.connections, limits.connections_per_address)
        self._should_listen = listens
        self._where = (host, port)
        self._sock = sock
        self._tls = tls
        self._limits = limits
        self._table = PathRouter(mounts, fallback)
        self._listener = ListenerState(
            limits=limits,
            budget=budget,
            slots=request_slots(limits, budget),
            handler_of=self._table.find,
            on_reject=on_reject,
            cut_through_limiter=cut_through_limiter(limits),
            cors=cors,
            authentication=authentication,
        )
        self._http2 = GrpcServer(
            "",
            grpc,
            limits,
            budget,
            extras=extras,
            on_reject=grpc_on_reject or on_reject,
            listens=False,
            count=self._count,
            http=self._listener,
            authentication=authentication,
        )
        self._connections: Connections | None = None
        self._servers: list[Listening] = []
        self._address: str | None = None

    @property
    def address(self) -> str:
        """Where it listens: "host:port", the real port included, or "unix:/path"."""
        if self._address is None:
            raise RuntimeError("the server has not been started")
        return self._address

    async def start(self) -> None:
        """Listen. Raises OSError if the address is in use or invalid."""
        self._connections = self._make(self._listener, self._count, reserve=self._can_use_reserve)
        await self._http2.start()
        if not self._should_listen:
            return
        sock = self.bind()
        if sock is None:
            self._servers = await listen(
                *self._where, self._serve, reuse_port=self._reuse_port, inherited=self._inherited
            )
        else:
            self._servers = [await self._serve(sock)]
        self._address = address_of(self._servers[0].sockets[0])

    def bind(self) -> socket.socket | None:
        """Return the bound socket to listen on; None to bind *host* and *port*. Raises OSError."""
        return self._sock

    async def _serve(self, sock: socket.socket) -> Listening:
        assert self._connections is not None  # noqa: S101  # `start` has made it
        loop = asyncio.get_running_loop()
        is_unix = sock.family == socket.AF_UNIX
        return await listening_server(
            loop.create_unix_server if is_unix else loop.create_server,
            self._connections,
            self._tls,
            self._limits.tls_handshake_s,
            self.drain_unverified,
            backlog=BACKLOG,
            sock=sock,
        )

    @property
    def open_connections(self) -> Sequence[OpenConnection]:
        """Connections there are now."""
        return [] if self._connections is None else self._connections.open_connections

    def connection(self) -> asyncio.BaseProtocol:
        """Return the protocol of a connection that was accepted elsewhere."""
        if self._connections is None:
            raise RuntimeError("the server has not been started")
        return self._connections()

    def http2_connection(self) -> asyncio.Protocol:
        """Return the protocol of an accepted connection that speaks HTTP/2."""
        return self._http2.connection()

    def drain_unverified(self, authorities: Authorities) -> None:
        """Close connections whose client *authorities* do not verify, each after its requests."""
        for connection in self.open_connections:
            if not authorities.verify(connection.transport):
                connection.drain()
        self._http2.drain_unverified(authorities)

    def authenticate(self, authentication: Authentication) -> None:
        """Ask *authentication* who sends each request from now on; drain earlier connections."""
        self._listener.authenticate(authentication)
        for connection in self.open_connections:
            connection.drain()
        self._http2.authenticate(authentication)

    def announce_close(self) -> None:
        """Make each response the last of its connection from now on; continue to serve."""
        if self._connections is None:
            return
        self._connections.is_draining = True
        for connection in self.open_connections:
            connection.announce_close()
        self._http2.announce_close()

    async def drain(self, timeout_s: float) -> None:
        """Accept no new connections, finish the requests in progress, then cancel and close."""
        if self._connections is None:
            return
        end = monotonic() + timeout_s
        self.announce_close()
        if self._servers:
            await drain_accept_queue(self._servers, self._connections)
        timeout_s = max(0.0, end - monotonic())
        await asyncio.gather(self._drain_connections(timeout_s), self._http2.drain(timeout_s))
        await self.stop()

    async def _drain_connections(self, timeout_s: float) -> None:
        for connection in self.open_connections:
            connection.drain()
        await self._emptied(timeout_s)
        for connection in self.open_connections:
            connection.fail_in_flight()
        await self._emptied(_CLOSE_GRACE_S)

    async def stop(self) -> None:
        """Close at once; harmless the second time."""
        if self._connections is None:
            return
        for server in self._servers:
            server.close()
        for connection in self.open_connections:
            connection.abort()
        await self._emptied(_CLOSE_GRACE_S)
        await self._http2.stop()
        self._servers, self._connections = [], None

    async def _emptied(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        # aiohttp has no event for the end of its last connection.
        while self.open_connections and loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    @abstractmethod
    def _make(
        self, listener: ListenerState, count: ConnectionCount, *, reserve: bool
    ) -> Connections:
        """Return the factory of the connections of this implementation."""
