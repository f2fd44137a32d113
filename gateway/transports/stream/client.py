"""Client for framed byte streams: one upstream, its connections, and what can go wrong with them.

Where answers come in order, a connection carries one question at a time, so that a late answer is
never taken for another's; where frames are numbered, it carries many once there are some
connections. What happens on a connection is in `stream_exchange`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from typing import Any

from gateway.ir.errors import NotSent, Unavailable, UpstreamProtocolError
from gateway.transports.admission import UNLIMITED, ConcurrencyLimiter, MemoryBudget, Reservation
from gateway.transports.contract import ClientLimits, Decode, accepted
from gateway.transports.net.unix_socket import PREFIX
from gateway.transports.net.write_drain import deadline_scope
from gateway.transports.stream.client_connection import FramedClientConnection
from gateway.wire.stream import Frame, Framer

# As many as servers of numbered frames answer at once by default (`h2_streams`).
_QUESTIONS = 100
# So many questions have a connection each before they share any: one that is given up can then be
# told to the server, by closing its connection, and none waits behind another's large frame.
_SPREAD = 16


class StreamClient:
    """A pool of connections to one upstream.

    Args:
        address: "host:port" or "unix:/path".
        framer: Makes the framer of one connection; its own limits bound an answer.
        limits: Of the upstream.
        ordered: Whether answers come in the order of the questions, or carry their numbers.
        ssl_context: For TLS.
        budget: Of the process, for answers as they come.
    """

    def __init__(
        self,
        address: str,
        framer: Callable[[], Framer],
        limits: ClientLimits,
        *,
        ordered: bool = True,
        ssl_context: ssl.SSLContext | None = None,
        budget: MemoryBudget = UNLIMITED,
    ) -> None:
        self._budget = budget
        self._name = address
        self._framer = framer
        self._limits = limits
        self._ordered = ordered
        self._ssl = ssl_context
        self._room = 1 if ordered else _QUESTIONS
        most = min(limits.connections * self._room, limits.in_flight)
        self._slots = ConcurrencyLimiter("pending", most, limits.pending)
        self._open: set[FramedClientConnection] = set()
        self._free: list[FramedClientConnection] = []  # with room for a question; the newest last
        self._spread = min(_SPREAD, limits.connections)
        self._dialled = 0  # connections that are being opened, to be shared
        self._opened = asyncio.Event()  # one of those is, or is not to be had
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def send(
        self, wire: Frame, /, *, deadline: float | None, decode: Decode[Frame] | None = None
    ) -> Any:
        """Send one frame and return its answer; see `contract.Client`."""
        if not self._slots.try_acquire():
            async with deadline_scope(deadline, self._name):
                await self._slots.wait(None)
        try:
            async with deadline_scope(deadline, self._name):
                return await self._ask(Frame(wire.payload, wire.correlation, deadline), decode)
        finally:
            self._slots.release()

    async def stream(
        self, wire: Frame, /, *, deadline: float | None
    ) -> AsyncGenerator[Frame, None]:
        """Send one frame and yield its answer: on these streams, each question has one."""
        yield await self.send(wire, deadline=deadline)

    async def close(self) -> None:
        """Close every connection; harmless the second time."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._open):
            connection.abort()
        self._free.clear()

    async def _ask(self, frame: Frame, decode: Decode[Frame] | None) -> Any:
        connection, reused = await self._take()
        try:
            return await self._ask_over(connection, frame, decode)
        except Unavailable:
            # One replay, where a kept connection turned out dead before the frame reached it.
            if not (reused and connection.never_received):
                raise
        return await self._ask_over(await self._connect(), frame, decode)

    async def _ask_over(
        self, connection: FramedClientConnection, frame: Frame, decode: Decode[Frame] | None
    ) -> Any:
        connection.users += 1
        try:
            answer = await connection.exchange(frame)
            return answer if decode is None else await accepted(answer, decode)
        except UpstreamProtocolError:
            connection.spoilt = True
            raise
        finally:
            connection.users -= 1
            self._give_back(connection)

    # -- the pool

    async def _take(self) -> tuple[FramedClientConnection, bool]:
        """Return a connection with room, and whether it was used before."""
        while True:
            found = self._idle()
            if found is not None:
                return found, True
            if self._ordered:
                return await self._connect(), False
            if len(self._free) + self._dialled < self._spread:
                try:
                    return await self._another(), False
                except NotSent:
                    if not self._free:
                        raise
            found = self._shared()
            if found is not None:
                return found, found.asked
            await self._opened.wait()

    async def _another(self) -> FramedClientConnection:
        """Open a connection that others may share."""
        self._dialled += 1
        try:
            connection = await self._connect()
            self._free.append(connection)
        finally:
            self._dialled -= 1
            opened, self._opened = self._opened, asyncio.Event()
            opened.set()  # whoever waits looks again
        return connection

    def _idle(self) -> FramedClientConnection | None:
        """Return the newest connection that nobody uses; those that may not be used are closed."""
        for connection in reversed(self._free):
            if not self._usable(connection):
                self._free.remove(connection)
                if not connection.users:
                    connection.abort()
            elif not connection.users:
                return self._taken(connection)
        return None

    def _shared(self) -> FramedClientConnection | None:
        """Return the connection that the fewest use, among those with room."""
        if not self._free:
            return None
        return self._taken(min(self._free, key=lambda connection: connection.users))

    def _taken(self, connection: FramedClientConnection) -> FramedClientConnection:
        if connection.users + 1 >= self._room:
            self._free.remove(connection)
        return connection

    def _usable(self, connection: FramedClientConnection) -> bool:
        if connection.spoilt:
            return False
        now = asyncio.get_running_loop().time()
        if now - connection.born > self._limits.connection_age_s:
            return False
        return bool(connection.users) or now - connection.idle_since <= self._limits.keepalive_s

    def _give_back(self, connection: FramedClientConnection) -> None:
        if self._closed or not self._usable(connection):
            if connection in self._free:
                self._free.remove(connection)
            if not connection.users:
                connection.abort()
        elif connection not in self._free:
            self._free.append(connection)
        self._sweep_later()

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._free:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(self._limits.keepalive_s, self._sweep)

    def _sweep(self) -> None:
        """Close connections that have been idle for too long, or were closed at the far end."""
        self._sweeper = None
        for connection in [each for each in self._free if not self._usable(each)]:
            self._free.remove(connection)
            if not connection.users:
                connection.abort()
        self._sweep_later()

    async def _connect(self) -> FramedClientConnection:
        if self._closed:
            raise NotSent(f"the client of upstream {self._name} is closed")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                connection = await self._dial(loop)
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {self._limits.connect_timeout_s} s"
            raise NotSent(f"cannot connect to upstream {self._name}: {reason[:200]}") from error
        return connection

    async def _dial(self, loop: asyncio.AbstractEventLoop) -> FramedClientConnection:
        def made() -> FramedClientConnection:
            return FramedClientConnection(
                self._name,
                self._framer(),
                ordered=self._ordered,
                loop=loop,
                open_ones=self._open,
                held=Reservation(self._budget, self._limits.memory_wait_s),
            )

        if self._name.startswith(PREFIX):
            path = self._name.removeprefix(PREFIX)
            return (await loop.create_unix_connection(made, path))[1]
        host, _, port = self._name.rpartition(":")
        host = host.strip("[]")
        tls: dict[str, Any] = {}
        if self._ssl is not None:
            tls = {"ssl": self._ssl, "server_hostname": host}
        return (await loop.create_connection(made, host, int(port), **tls))[1]
