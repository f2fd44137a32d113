"""StreamServer: a server for framed byte streams over TCP and unix sockets.

It listens, applies limits and drains; `server_connection` handles connections.  It reads no
messages: a framer splits the stream, and a frontend handles frames.
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from gateway.ir.errors import GatewayError
from gateway.transports.authentication import Authentication
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import ServerLimits, StreamFrontend
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.net.accept_backlog import drain_accept_queue
from gateway.transports.net.listening import BACKLOG, address_of, listen
from gateway.transports.net.tls_files import Authorities, TlsContext
from gateway.transports.net.tls_server import Listening, listening_server
from gateway.transports.net.unix_socket import PREFIX, UnixSocket
from gateway.transports.slots import request_slots
from gateway.transports.stream.listener import (
    ReadCredentials,
    StreamListenerState,
    no_credentials,
    unchanged,
)
from gateway.transports.stream.protocol_sniffing import ProtocolSniffer, SharedPortProtocols
from gateway.transports.stream.server_connection import StreamConnection
from gateway.wire.stream import Frame, Framer

_CLOSE_GRACE_S = 1.0


def _ignore(_error: GatewayError) -> None: ...


class StreamServer:
    """A listener for one protocol on a byte stream.

    The limits mean what they mean for HTTP: a frame is a body, and `header_timeout_s` is the time
    until the first one starts.  Of one connection, `pipelined_requests` frames are read ahead where
    responses are in order, and `h2_streams` frames are handled at once where they are not.

    Args:
        address: "host:port", ":port" for every address, or "unix:/path"; port 0 takes a free one.
        framer: Creates the framer of a connection, which limits the size of a frame.
        frontend: Handles frames.  A response has the number (`Frame.correlation`) of its request.
        limits: The limits of this listener.
        budget: The memory budget of the process.
        ordered: Whether responses are sent in the order of the requests.
        tls: The context of handshakes; None for no TLS.
        mode: The permissions of a unix socket.
        on_reject: Called for connections and frames that are rejected before the frontend.
        beside: Other protocols on this port, recognised by the first bytes of a connection.
        reuse_port: Whether other processes listen on the same port too.
        sock: A unix socket that other processes share, instead of an own one.
        count: Counts the connections; None for a count of its own.
        replaces: Whether the unix socket replaces that of a server that listens there.
        authentication: Asks who sends each frame; None if nobody asks.
        credentials: Returns the credentials that a frame carries, and the method that it calls.
        without_credentials: Returns a frame without the credentials that it carries.
        closes_denied: A connection ends after a frame whose credentials are missing or wrong.
        inherited: TCP sockets that listen already, instead of binding *address*.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first three
        self,
        address: str,
        framer: Callable[[], Framer],
        frontend: StreamFrontend,
        *,
        limits: ServerLimits,
        budget: MemoryBudget,
        ordered: bool = True,
        tls: TlsContext | None = None,
        mode: int = 0o660,
        on_reject: Callable[[GatewayError], str | None] = _ignore,
        beside: SharedPortProtocols | None = None,
        reuse_port: bool = False,
        sock: socket.socket | None = None,
        count: ConnectionCount | None = None,
        replaces: bool = False,
        authentication: Authentication | None = None,
        credentials: ReadCredentials = no_credentials,
        without_credentials: Callable[[Frame], Frame] = unchanged,
        closes_denied: bool = False,
        inherited: Sequence[socket.socket] = (),
    ) -> None:
        self._inherited = inherited
        self._where = address
        self._reuse_port = reuse_port
        self._sock = sock
        self._should_replace = replaces
        self._beside = beside
        self._others = () if beside is None else beside.servers
        self._mode = mode
        self._tls = tls
        if count is None:
            count = ConnectionCount(limits.connections, limits.connections_per_address)
        self._listener = StreamListenerState(
            limits=limits,
            budget=budget,
            slots=request_slots(limits, budget),
            count=count if beside is None else beside.count,
            frontend=frontend,
            framer=framer,
            width=1 if ordered else limits.h2_streams,
            ahead=limits.pipelined_requests if ordered else limits.h2_streams,
            on_reject=on_reject,
            authentication=authentication,
            credentials=credentials,
            without_credentials=without_credentials,
            closes_denied=closes_denied,
        )
        self._file: UnixSocket | None = None
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
        for server in self._others:
            await server.start()
        try:
            await self._listen(asyncio.get_running_loop())
        except BaseException:
            for server in self._others:
                await server.stop()
            raise

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        connection = self._connections(loop)
        if self._where.startswith(PREFIX):
            sock = self._sock
            if sock is None:
                self._file = UnixSocket(self._where.removeprefix(PREFIX), self._mode)
                sock = self._file.bind(replaces=self._should_replace)
            options: dict[str, Any] = {"backlog": BACKLOG}
            if self._file is None and sys.version_info >= (3, 13):  # the file is not ours to remove
                options["cleanup_socket"] = False
            self._servers = [await loop.create_unix_server(connection, sock=sock, **options)]
            self._address = self._where
            return

        async def serve(sock: socket.socket) -> Listening:
            return await listening_server(
                loop.create_server,
                connection,
                self._tls,
                self._listener.limits.tls_handshake_s,
                self.drain_unverified,
                backlog=BACKLOG,
                sock=sock,
            )

        host, _, port = self._where.rpartition(":")
        self._servers = await listen(
            host.strip("[]"),
            int(port),
            serve,
            reuse_port=self._reuse_port,
            inherited=self._inherited,
        )
        self._address = address_of(self._servers[0].sockets[0])

    def _connections(self, loop: asyncio.AbstractEventLoop) -> Callable[[], asyncio.Protocol]:
        """Return what makes the protocol of a new connection."""
        stream = partial(StreamConnection, self._listener, loop)
        if self._beside is None:
            return stream
        return partial(ProtocolSniffer, self._listener, self._beside, stream, loop)

    def authenticate(self, authentication: Authentication) -> None:
        """Ask *authentication* who sends each frame from now on; drain earlier connections."""
        self._listener.authentication = authentication
        for connection in list(self._listener.connections):
            connection.drain()
        for server in self._others:
            server.authenticate(authentication)

    def drain_unverified(self, authorities: Authorities) -> None:
        """Close connections whose client *authorities* do not verify, each after its requests."""
        for connection in list(self._listener.connections):
            if not authorities.verify(connection.transport):
                connection.drain()
        for server in self._others:
            server.drain_unverified(authorities)

    def announce_close(self) -> None:
        """Ask clients of HTTP and gRPC to close; framed protocols have no message for it."""
        for server in self._others:
            server.announce_close()

    async def drain(self, timeout_s: float) -> None:
        """Accept no new connections, finish the requests in progress, then cancel and close."""
        if not self._servers:
            return
        end = monotonic() + timeout_s
        self.announce_close()
        connection = self._connections(asyncio.get_running_loop())
        await drain_accept_queue(self._servers, connection)
        self._close_sockets()
        for each in list(self._listener.connections):
            each.drain()
        timeout_s = max(0.0, end - monotonic())
        async with asyncio.TaskGroup() as draining:
            draining.create_task(self._drained(timeout_s))
            for server in self._others:
                draining.create_task(server.drain(timeout_s))
        await self.stop()

    async def _drained(self, timeout_s: float) -> None:
        await self._emptied(timeout_s)
        for connection in list(self._listener.connections):
            connection.fail_in_flight()
        await self._emptied(_CLOSE_GRACE_S)

    async def stop(self) -> None:
        """Close at once; harmless the second time."""
        if not self._servers:
            return
        self._close_sockets()
        for connection in list(self._listener.connections):
            connection.abort()
        await self._emptied(_CLOSE_GRACE_S)
        for server in self._others:
            await server.stop()
        self._servers = []

    def _close_sockets(self) -> None:
        self._listener.is_open = False
        for server in self._servers:
            server.close()
        if self._file is not None:
            self._file.remove()

    async def _emptied(self, timeout_s: float) -> None:
        if not self._listener.connections:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._listener.emptied.wait()
        except TimeoutError:
            return  # the caller aborts the connections next
