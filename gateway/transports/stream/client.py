"""StreamClient: a pool of connections to one upstream that exchanges frames.

If responses arrive in order, a connection carries one request at a time, so a late response is
never matched to another request.  If frames are numbered, a connection carries many, once there are
some connections.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from gateway.concurrency.timeouts import patient_timeout
from gateway.ir.errors import ConnectFailure, NotSent, UpstreamProtocolError
from gateway.transports.contract import ClientLimits, Decode, accepted
from gateway.transports.memory_budget import UNLIMITED, MemoryBudget
from gateway.transports.net.resolver import upstream_of
from gateway.transports.net.sockets import UNSEEN_S
from gateway.transports.net.tls import connect_failure_text
from gateway.transports.net.tls_files import Authorities, TlsContext
from gateway.transports.net.write_drain import deadline_scope
from gateway.transports.reservation import ResponseReservation
from gateway.transports.slots import CONNECTION_KEYS, upstream_slots
from gateway.transports.stream.client_connection import FramedClientConnection
from gateway.wire.stream import Frame, Framer

# Servers of numbered frames handle so many requests of a connection at once (`h2_streams`).
_EXCHANGES = 100
# So many requests get a connection each before requests share connections: closing a connection of
# its own cancels a request at the server, and a request does not wait behind another's large frame.
_UNSHARED = 16


class StreamClient:
    """A pool of connections to one upstream.

    Args:
        target: "host:port" or "unix:/path".
        framer: Creates the framer of a connection, which limits the size of a response.
        limits: The limits of the upstream.
        ordered: Whether responses arrive in the order of the requests, or have their numbers.
        tls: The context of handshakes; None for plain TCP.
        budget: The memory budget for responses.
        address: IP address of the host; "" to look it up.

    Raises:
        ValueError: *target* has neither form.
    """

    def __init__(
        self,
        target: str,
        framer: Callable[[], Framer],
        limits: ClientLimits,
        *,
        ordered: bool = True,
        tls: TlsContext | None = None,
        budget: MemoryBudget = UNLIMITED,
        address: str = "",
    ) -> None:
        self._budget = budget
        self._name = target
        self._upstream = upstream_of(target, limits.resolve_floor_s, address)
        self._framer = framer
        self._limits = limits
        self._is_ordered = ordered
        self._tls = tls
        if tls is not None:
            tls.add_user(self)
        self._max_exchanges = 1 if ordered else _EXCHANGES
        most = min(limits.most_connections * self._max_exchanges, limits.most_in_flight)
        self._slots = upstream_slots("pending", most, limits, target, CONNECTION_KEYS)
        self._open: set[FramedClientConnection] = set()
        # Connections that can carry a further exchange; the newest is the last.
        self._free: list[FramedClientConnection] = []
        self._unshared = min(_UNSHARED, limits.most_connections)
        self._connecting = 0  # connections being opened that requests will share
        self._connected = asyncio.Event()  # set when one of them is open or has failed
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def send(
        self, wire: Frame, /, *, deadline: float | None, decode: Decode[Frame] | None = None
    ) -> Any:
        """Send one frame and return its response; see `contract.Client`."""
        if not self._slots.try_acquire():
            await self._slots.wait(None, deadline=deadline)
        try:
            async with deadline_scope(deadline, self._name):
                return await self._send(Frame(wire.payload, wire.correlation, deadline), decode)
        finally:
            self._slots.release()

    async def stream(
        self, wire: Frame, /, *, deadline: float | None
    ) -> AsyncGenerator[Frame, None]:
        """Send one frame and yield its only response."""
        yield await self.send(wire, deadline=deadline)

    async def close(self) -> None:
        """Close every connection. A second call does nothing."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._open):
            connection.abort()
        self._free.clear()

    def tls_renewed(self, _authorities: Authorities | None) -> None:
        """Close each connection after its last exchange."""
        for connection in list(self._open):
            connection.is_unusable = True
        for connection in [each for each in self._free if not each.exchanges]:
            self._free.remove(connection)
            connection.abort()

    async def _send(self, frame: Frame, decode: Decode[Frame] | None) -> Any:
        connection, reused = await self._acquire()
        try:
            return await self._exchange(connection, frame, decode)
        except NotSent:
            # One more attempt if an idle connection was closed before the frame was written.
            if not reused:
                raise
        return await self._exchange(await self._connect(), frame, decode)

    async def _exchange(
        self, connection: FramedClientConnection, frame: Frame, decode: Decode[Frame] | None
    ) -> Any:
        connection.exchanges += 1
        try:
            response = await connection.exchange(frame)
            return response if decode is None else await accepted(response, decode)
        except UpstreamProtocolError:
            connection.is_unusable = True
            raise
        finally:
            connection.exchanges -= 1
            self._release(connection)

    # -- the pool

    async def _acquire(self) -> tuple[FramedClientConnection, bool]:
        """Return a connection for one more exchange, and whether it was used before."""
        while True:
            found = self._idle()
            if found is not None:
                return found, True
            if self._is_ordered:
                return await self._connect(), False
            if len(self._free) + self._connecting < self._unshared:
                try:
                    return await self._connect_shared(), False
                except NotSent:
                    if not self._free:
                        raise
            found = self._shared()
            if found is not None:
                return found, found.is_used
            await self._connected.wait()

    async def _connect_shared(self) -> FramedClientConnection:
        """Open a connection that requests may share."""
        self._connecting += 1
        try:
            connection = await self._connect()
            self._free.append(connection)
        finally:
            self._connecting -= 1
            connected, self._connected = self._connected, asyncio.Event()
            connected.set()  # each waiter tries again
        return connection

    def _idle(self) -> FramedClientConnection | None:
        """Return the newest idle connection; close those that may not be used any more."""
        for connection in reversed(self._free):
            if not self._is_usable(connection):
                self._free.remove(connection)
                if not connection.exchanges:
                    connection.abort()
            elif not connection.exchanges:
                return self._reserve(connection)
        return None

    def _shared(self) -> FramedClientConnection | None:
        """Return the free connection with the fewest exchanges."""
        if not self._free:
            return None
        return self._reserve(min(self._free, key=lambda connection: connection.exchanges))

    def _reserve(self, connection: FramedClientConnection) -> FramedClientConnection:
        if connection.exchanges + 1 >= self._max_exchanges:
            self._free.remove(connection)
        return connection

    def _is_usable(self, connection: FramedClientConnection) -> bool:
        if connection.is_unusable:
            return False
        now = asyncio.get_running_loop().time()
        if now - connection.created_at > self._limits.connection_age_s:
            return False
        if connection.exchanges:
            return True
        idle_s = now - connection.idle_since
        if idle_s > self._limits.keepalive_s:
            return False
        return idle_s < UNSEEN_S or not connection.has_ended()

    def _release(self, connection: FramedClientConnection) -> None:
        if self._is_closed or not self._is_usable(connection):
            if connection in self._free:
                self._free.remove(connection)
            if not connection.exchanges:
                connection.abort()
        elif connection not in self._free:
            self._free.append(connection)
        self._sweep_later()

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._free:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(self._limits.keepalive_s, self._sweep)

    def _sweep(self) -> None:
        """Close connections that were idle too long, or that the server has closed."""
        self._sweeper = None
        for connection in [each for each in self._free if not self._is_usable(each)]:
            self._free.remove(connection)
            if not connection.exchanges:
                connection.abort()
        self._sweep_later()

    async def _connect(self) -> FramedClientConnection:
        if self._is_closed:
            raise NotSent(f"the client of upstream {self._name} is closed")
        loop = asyncio.get_running_loop()
        try:
            with patient_timeout(self._limits.connect_timeout_s):
                connection = await self._open_connection(loop)
        except (OSError, TimeoutError) as error:
            is_late = isinstance(error, TimeoutError) and not str(error)
            limit = f"no response within {self._limits.connect_timeout_s} s"
            reason = limit if is_late else connect_failure_text(error)
            raise ConnectFailure(
                f"cannot connect to upstream {self._name}: {reason[:200]}"
            ) from error
        return connection

    async def _open_connection(self, loop: asyncio.AbstractEventLoop) -> FramedClientConnection:
        def make() -> FramedClientConnection:
            return FramedClientConnection(
                self._name,
                self._framer(),
                ordered=self._is_ordered,
                loop=loop,
                open_connections=self._open,
                held=ResponseReservation(self._budget, None),
            )

        options = {} if self._tls is None else {"ssl": self._tls.current}
        return await self._upstream.connect(make, options)
