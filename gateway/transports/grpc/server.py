"""GrpcServer of the native implementation: raw messages on the event loop.

It has the contract and the limits of the reference implementation.  In addition it counts
connections, requires a minimum rate of senders, and disconnects clients that do not read.
"""

import asyncio
import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from gateway.concurrency.timeouts import TimerWheel
from gateway.ir.errors import GatewayError
from gateway.transports.authentication import Authentication
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import GrpcMount, MemoryBudget, ServerLimits
from gateway.transports.grpc.address import bound_address, host_and_port, require_free
from gateway.transports.grpc.admission import CallAdmission
from gateway.transports.grpc.connection_lifecycle import OpenConnections
from gateway.transports.grpc.identification import CallIdentification
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_connection import GrpcServerConnection
from gateway.transports.grpc.states import IDLE
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.net.accept_backlog import drain_accept_queue
from gateway.transports.net.listening import BACKLOG, listen
from gateway.transports.net.tls_files import Authorities, TlsContext
from gateway.transports.net.tls_server import Listening, listening_server
from gateway.transports.net.unix_socket import PREFIX, UnixSocket

_UNBOUNDED: Final = 1 << 62
_EXTRA_MESSAGE_BYTES: Final = 64 * 1024
_CLOSE_GRACE_S: Final = 0.5
_QUIET_S: Final = 0.25
_SWEEP_S: Final = 1.0
_IDLE_SWEEP_S: Final = 10.0
_SWEEPS_PER_LIMIT: Final = 5
_SOONEST_S: Final = 0.02
_JITTER: Final = 0.1


def _ignore(_error: GatewayError) -> None: ...


class GrpcServer:
    """Serves mounts on one address.

    Args:
        address: "host:port", "[v6]:port" or "unix:/path"; port 0 takes a free one.
        mounts: The frontends and their methods; the first mount with a method gets its calls.
        limits: The limits of this listener.
        budget: The memory budget of the process.
        tls: The context of handshakes; None for no TLS.
        extras: Mounts whose calls need no slot and no memory: health, reflection.
        on_reject: Called for connections and calls that are rejected before they reach a frontend.
        listens: False for a server that only gets accepted connections, see `connection`.
        count: The connection count, if listeners share one.
        reuse_port: Whether other processes listen on the same port too.
        http: Handles requests that are not gRPC calls; None to reject them.
        authentication: Asks who sends each call; None if nobody asks.
        inherited: Sockets that listen already, instead of binding *address*.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first four
        self,
        address: str,
        mounts: Sequence[GrpcMount],
        limits: ServerLimits,
        budget: MemoryBudget,
        *,
        tls: TlsContext | None = None,
        extras: Sequence[GrpcMount] = (),
        on_reject: Callable[[GatewayError], str | None] = _ignore,
        listens: bool = True,
        count: ConnectionCount | None = None,
        reuse_port: bool = False,
        http: ListenerState | None = None,
        authentication: Authentication | None = None,
        inherited: Sequence[socket.socket] = (),
    ) -> None:
        self._address = address
        self._inherited = inherited
        self._http = http
        self._reuse_port = reuse_port
        self._should_listen = listens
        self._limits = limits
        self._tls = tls
        self._on_reject = on_reject
        self._admission = CallAdmission(budget, limits)
        self._wheel = TimerWheel()
        self._methods: dict[str, Method] = {}
        free = CallAdmission(MemoryBudget(_UNBOUNDED), limits, slots=_UNBOUNDED)
        # They are counted nowhere, so they are short.
        short = replace(limits, message_bytes=min(limits.message_bytes, _EXTRA_MESSAGE_BYTES))
        self._mount(extras, free, short)
        self._mount(mounts, self._admission, limits)
        self._identify: CallIdentification | None = None
        if authentication is not None:
            self._identify = CallIdentification(self._methods, authentication)
        self._open = OpenConnections(
            count or ConnectionCount(limits.connections, limits.connections_per_address)
        )
        self._servers: list[Listening] = []
        self._is_running = False
        self._is_leaving = False
        self._socket: UnixSocket | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._idle_due = self._heads_due = 0.0

    @property
    def address(self) -> str:
        """Where it listens, the real port included."""
        return self._address

    async def start(self) -> None:
        """Listen. Raises OSError with the address if it is in use or invalid."""
        if self._should_listen:
            await self._listen()
        self._is_running = True
        self._open.is_closed = False
        self._sweep()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        if self._address.startswith(PREFIX):
            await require_free(self._address)
            self._socket = UnixSocket(self._address.removeprefix(PREFIX))
            sock = self._socket.bind()
            self._servers = [await self._serve(sock, loop.create_unix_server)]
            return
        host, port = host_and_port(self._address)
        every = "" if host == "::" else host  # both families, as grpcio has it
        self._servers = await listen(
            every, port, self._serve, reuse_port=self._reuse_port, inherited=self._inherited
        )
        self._address = bound_address(self._address, self._servers[0].sockets[0].getsockname()[1])

    async def _serve(
        self, sock: socket.socket, create: Callable[..., Any] | None = None
    ) -> Listening:
        return await listening_server(
            create or asyncio.get_running_loop().create_server,
            self.connection,
            self._tls,
            self._limits.tls_handshake_s,
            self.drain_unverified,
            backlog=BACKLOG,
            sock=sock,
        )

    def connection(self) -> GrpcServerConnection:
        """Return the protocol of an accepted connection, before `connection_made`."""
        age_s = self._limits.connection_age_s * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
        return GrpcServerConnection(
            self._methods,
            self._limits,
            self._open,
            self._admission,
            self._on_reject,
            age_s,
            http=self._http,
            identify=self._identify,
        )

    def authenticate(self, authentication: Authentication) -> None:
        """Ask *authentication* who sends each call from now on; drain earlier connections."""
        self._identify = CallIdentification(self._methods, authentication)
        for connection in list(self._open.members):
            connection.announce_close()

    def drain_unverified(self, authorities: Authorities) -> None:
        """Send GOAWAY to clients that *authorities* do not verify; their calls finish."""
        for connection in list(self._open.members):
            if not authorities.verify(connection.socket.transport):
                connection.announce_close()

    def announce_close(self) -> None:
        """Send GOAWAY on each connection that has had a call; new ones are still accepted."""
        self._is_leaving = True
        for connection in list(self._open.members):
            if connection.socket.core.last:
                connection.announce_close()

    async def drain(self, timeout_s: float) -> None:
        """Send GOAWAY, wait for the calls in progress, then cancel the rest and close."""
        if not self._is_running:
            return
        end = monotonic() + timeout_s
        self.announce_close()
        if self._servers:
            await drain_accept_queue(self._servers, self.connection)
        for connection in list(self._open.members):
            connection.announce_close()
        try:
            async with asyncio.timeout(max(0.0, end - monotonic())):
                await self._admission.quiet(_QUIET_S)
        except TimeoutError:
            pass
        for connection in list(self._open.members):
            connection.cancel_calls()
        tasks = self._tasks()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_GRACE_S)
        await asyncio.sleep(0)  # to write the last frames
        await self.stop()

    async def stop(self) -> None:
        """Close at once; harmless the second time."""
        if not self._is_running:
            return
        self._is_running = False
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._wheel.close()
        self._open.is_closed = True
        tasks = self._tasks()
        for connection in list(self._open.members):
            connection.end()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_GRACE_S)
        for connection in list(self._open.members):
            connection.socket.abort()
        if self._socket is not None:
            self._socket.remove()

    def _mount(
        self,
        mounts: Sequence[GrpcMount],
        admission: CallAdmission,
        limits: ServerLimits,
    ) -> None:
        for mount in reversed(mounts):
            for path, kind in mount.methods.items():
                self._methods[path] = Method(
                    path, kind, mount.frontend, admission, limits, self._wheel
                )

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for connection in self._open.members for task in connection.tasks]

    def _sweep(self) -> None:
        now = monotonic()
        # Most turns look for streams alone, some for slow heads, and few for everything.
        is_full, looks_for_heads = now >= self._idle_due, now >= self._heads_due
        if is_full:
            pause_s = min(_IDLE_SWEEP_S, self._limits.keepalive_s / _SWEEPS_PER_LIMIT)
            self._idle_due = now + pause_s
        if looks_for_heads:
            self._heads_due = now + self._limits.header_timeout_s / _SWEEPS_PER_LIMIT
        if self._is_leaving:
            self.announce_close()  # of connections that were made meanwhile
        if is_full:
            for connection in self._open.members:
                if connection.state is IDLE and connection.idle_until <= now:
                    connection.become_active()
        for connection in list(self._open.active):
            has_calls = bool(connection.socket.core.streams)
            if is_full or has_calls or (looks_for_heads and not connection.is_idle()):
                connection.sweep(now)
            if is_full:
                connection.become_idle(now)
        self._sweeper = asyncio.get_running_loop().call_later(self._interval_s, self._sweep)

    @property
    def _interval_s(self) -> float:
        limits = self._limits
        shortest = min(
            limits.header_timeout_s,
            limits.body_idle_timeout_s,
            limits.body_timeout_s,
            limits.body_min_rate_grace_s,
            limits.write_idle_timeout_s,
            limits.write_min_rate_grace_s,
            limits.keepalive_s,
        )
        return max(_SOONEST_S, min(_SWEEP_S, shortest / _SWEEPS_PER_LIMIT))
