"""Connections of a gRPC client: how many, how old, and closing them without loss.

Calls share a connection up to what its server allows; another is opened only when all are full.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from gateway.ir.errors import DeadlineExceeded, NotSent, Unavailable, UpstreamProtocolError
from gateway.ir.streaming_body import StreamingBody
from gateway.transports.admission import CLIENT_MEMORY, MemoryBudget, Reservation
from gateway.transports.contract import ClientLimits
from gateway.transports.grpc.client_call import ClientCall
from gateway.transports.grpc.headers import GrpcResponseHead, read_response_head
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.frames import NO_ERROR, Http2ConnectionError
from gateway.transports.http2.protocol import Http2Protocol
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.net.resolver import UpstreamConnector
from gateway.wire.http import Buffer

# What servers allow on one connection (RELIABILITY.md D1), unless they allow less.
_STREAMS: Final = 100
_HEADER_BYTES: Final = 64 * 1024
_SWEEP_S: Final = 1.0
_PATIENCE_S: Final = 30.0


class GrpcClientConnection(Http2Protocol):
    """A connection to an upstream.

    Args:
        pool: Told when it is lost.
        name: Of the upstream, in errors.
    """

    def __init__(self, pool: GrpcConnectionPool, name: str) -> None:
        super().__init__()
        self.name = name
        self.core = Http2Connection(
            self, read_response_head, client=True, streams=0, header_bytes=_HEADER_BYTES
        )
        self.born = self.idle_since = monotonic()
        self.ready: asyncio.Future[None] = self.loop.create_future()
        self.used = False
        self._pool = pool
        self._going: str | None = None

    def reservation(self) -> Reservation:
        """Return what may hold a response, in the share of the client that asked for it."""
        return self._pool.reservation()

    def is_open(self) -> bool:
        """Return whether it takes calls."""
        transport = self.transport
        return (
            self._going is None
            and self.fault is None
            and transport is not None
            and not transport.is_closing()
            and not self.core.exhausted
        )

    def call(
        self,
        block: bytes,
        message: Sequence[Buffer],
        size: int,
        limit_bytes: int,
        rest: StreamingBody | None,
    ) -> ClientCall:
        """Begin a call and write its one message; what is arriving of it, as it comes."""
        self.used = True
        core = self.core
        stream = core.open(None)
        exchange = stream.owner = ClientCall(self, stream, limit_bytes, self.turn)
        if rest is None:
            core.writer.send(stream, block, message, None, size)
        else:
            core.writer.head(stream, block)
            core.writer.data(stream, message)
            exchange.send_rest(rest)
        if not self.flushing:
            self.flush_soon()
        return exchange

    # -- asyncio's protocol

    def data_received(self, data: bytes) -> None:
        """Feed the core, unless the server speaks something else."""
        if not self.ready.done() and data.startswith(b"HTTP/1."):
            self._going = "the server speaks http1.x"
            self.abort()
            return
        super().data_received(data)

    def broken(self, fault: Http2ConnectionError) -> None:
        """End every call: what the server says cannot be read."""
        self._going = f"broken framing: {fault.message}"
        error = UpstreamProtocolError(f"{self.name} broke HTTP/2: {fault.message}")
        for exchange in self._exchanges():
            exchange.fail(error)

    def connection_lost(self, error: BaseException | None) -> None:
        """End every call: nobody answers any more."""
        self.transport = None
        why = self._going or (str(error) if error else "the server closed it")
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))
            self.ready.exception()  # it may be that nobody waits
        for exchange in self._exchanges():
            self.core.writer.forget(exchange.stream)
            self.core.streams.pop(exchange.stream.number, None)
            exchange.lost(why, written=exchange.turn != self.turn)
        self.core.close()
        self._pool.lost(self)

    # -- what the core tells

    def on_settings(self) -> None:
        """Take calls from now on."""
        if not self.ready.done():
            self.ready.set_result(None)

    def on_complete_stream(
        self,
        stream: Http2Stream,
        head: GrpcResponseHead,
        view: memoryview,
        tail: GrpcResponseHead | None,
    ) -> None:
        """Give a call all of its answer."""
        stream.owner.on_complete_stream(head, view, tail)
        if not self.core.streams or self._pool.waiting:
            self._pool.left(self)

    def on_headers(self, stream: Http2Stream, head: GrpcResponseHead, *, end: bool) -> None:
        """Give a call its header fields, or its trailers."""
        stream.owner.on_headers(head, end=end)
        if end:
            self._pool.left(self)

    def on_data(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        """Give a call what came of its answer."""
        stream.owner.on_data(view, end=end)

    def on_data_batch(self, stream: Http2Stream, views: Sequence[memoryview]) -> None:
        """Give a call what came of its answer in several frames."""
        stream.owner.on_data_batch(views)

    def on_reset(self, stream: Http2Stream, code: int) -> None:
        """End a call that the server has reset."""
        stream.owner.on_reset(code)
        self._pool.left(self)

    def on_writable(self, stream: Http2Stream) -> None:
        """Let a call send more, if it has more: it is the answer that is waited for."""
        if stream.owner is not None:
            stream.owner.on_writable()

    def on_goaway(self, code: int, message: str) -> None:
        """Take no more calls."""
        reason = f": {message}" if message else ""
        self._going = (
            f"the server went away{reason}" if code != NO_ERROR else "the server went away"
        )
        self._pool.lost(self)
        if not self.core.streams:
            self.loop.call_soon(self.close)

    # -- life

    def retire(self) -> None:
        """Take no more calls, and close after the last."""
        self._going = self._going or "the connection was replaced"
        if not self.core.streams:
            self.core.goaway(final=True)
            self.close()

    def end_calls(self, why: str) -> None:
        """End every call, and close."""
        for exchange in self._exchanges():
            exchange.fail(Unavailable(why))
        self.core.goaway(final=True)
        self.close()

    def sweep(self, now: float, keepalive_s: float) -> None:
        """See to it once a second."""
        self.core.flood_budget.refill()
        if self.core.streams:
            self.idle_since = now
        elif self._going is not None or now - self.idle_since > keepalive_s:
            self.retire()
        stuck = self.stuck_since
        if stuck is not None and now - stuck > _PATIENCE_S:
            self._going = f"the server took nothing for {_PATIENCE_S:g} s"
            self.abort()

    def _exchanges(self) -> list[ClientCall]:
        return [stream.owner for stream in self.core.streams.values()]


class GrpcConnectionPool:
    """Gives each call the first connection with room; opens another when all are full.

    Args:
        name: Of the upstream, in errors.
        upstream: Where it is.
        limits: Of the upstream.
        tls: For TLS.
        budget: Of the process, for responses.
    """

    def __init__(
        self,
        name: str,
        upstream: UpstreamConnector,
        limits: ClientLimits,
        tls: ssl.SSLContext | None,
        budget: MemoryBudget,
    ) -> None:
        self._budget = budget
        self._name = name
        self._upstream = upstream
        self._limits = limits
        self._age_s = limits.connection_age_s
        self._tls = tls
        self._connections: list[GrpcClientConnection] = []
        self._all: set[GrpcClientConnection] = set()
        self._connecting: asyncio.Task[None] | None = None
        self.waiting: set[asyncio.Future[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def reservation(self) -> Reservation:
        """Return what may hold a response, in the share of the client that asked for it."""
        return Reservation(self._budget, self._limits.memory_wait_s, CLIENT_MEMORY.get())

    def find(self, now: float) -> GrpcClientConnection | None:
        """Return a connection with room, if there is one."""
        oldest = now - self._age_s
        for connection in self._connections:
            if connection.born < oldest and connection.used:
                self._connections.remove(connection)
                connection.retire()
                return self.find(now)
            core = connection.core
            users = len(core.streams)
            if users < _STREAMS and users < core.peer_streams and connection.is_open():
                return connection
        return None

    async def acquire(self, deadline: float | None) -> GrpcClientConnection:
        """Return a connection with room, a new one if need be.

        Raises:
            NotSent: There is none to be had.
            DeadlineExceeded: Nor was there one in time.
        """
        try:
            async with asyncio.timeout(None if deadline is None else deadline - monotonic()):
                while not self._closed:
                    found = self.find(monotonic())
                    if found is not None:
                        return found
                    await self._more()
        except TimeoutError:
            raise DeadlineExceeded(f"no connection to {self._name} in time") from None
        raise self._gone()

    def lost(self, connection: GrpcClientConnection) -> None:
        """Give *connection* to no more calls."""
        if connection in self._connections:
            self._connections.remove(connection)
        if connection.transport is None:
            self._all.discard(connection)
        self.left(connection)

    def left(self, connection: GrpcClientConnection) -> None:
        """Note that a call has ended."""
        if not connection.core.streams:
            connection.idle_since = monotonic()
            if connection not in self._connections and connection.transport is not None:
                connection.retire()
        if self.waiting:
            self._wake()

    def _wake(self) -> None:
        """Let those who wait for room look again."""
        waiting, self.waiting = self.waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _gone(self) -> NotSent:
        return NotSent(f"the client of {self._name} is closed")

    async def close(self, why: str) -> None:
        """Close every connection, which ends the calls on them; who waits for one is not sent."""
        self._closed = True
        self._wake()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._connecting is not None:
            self._connecting.cancel()
        self._connections.clear()
        for connection in list(self._all):
            connection.end_calls(why)
        self._all.clear()

    async def _more(self) -> None:
        """Wait for a connection, or for room on one. Raises NotSent."""
        if len(self._connections) >= self._limits.connections:
            future = asyncio.get_running_loop().create_future()
            self.waiting.add(future)
            try:
                await future
            finally:
                self.waiting.discard(future)
            return
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._connected)
        connecting = self._connecting
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():  # by `close`, not the caller
                raise self._gone() from None
            raise
        finally:
            del connecting  # its error holds who waited, and with them their messages

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # whoever waited has it; it may be that nobody does any more

    async def _connect(self) -> None:
        options: dict[str, Any] = {}
        if self._tls is not None:
            self._tls.set_alpn_protocols(["h2"])
            options["ssl"] = self._tls
        connection: GrpcClientConnection | None = None
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                connection = await self._upstream.connect(self._make, options)
                await connection.ready
        except TimeoutError:
            self._drop(connection)
            raise NotSent(
                f"cannot connect to {self._name}: no answer within "
                f"{self._limits.connect_timeout_s:g} s"
            ) from None
        except OSError as error:
            self._drop(connection)
            raise NotSent(f"cannot connect to {self._name}: {error}") from error
        except BaseException:
            self._drop(connection)
            raise
        self._connections.append(connection)
        if self._sweeper is None:
            self._sweep()

    def _make(self) -> GrpcClientConnection:
        connection = GrpcClientConnection(self, self._name)
        self._all.add(connection)
        return connection

    def _drop(self, connection: GrpcClientConnection | None) -> None:
        if connection is not None:
            connection.abort()
        for each in list(self._all):
            if each.transport is None:
                each.core.close()
                self._all.discard(each)

    def _sweep(self) -> None:
        now = monotonic()
        for connection in list(self._all):
            connection.sweep(now, self._limits.keepalive_s)
            if not connection.is_open() and connection in self._connections:
                self._connections.remove(connection)
        self._sweeper = None
        if self._all:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(_SWEEP_S, self._sweep)
