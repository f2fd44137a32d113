"""The connections of a gRPC client, and the pool that opens, shares and closes them.

Calls share a connection up to the number of streams that its server allows.  The pool opens another
one only when all are full.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, Final

from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.concurrency.timeouts import patient_timeout
from gateway.ir import errors
from gateway.transports.contract import ClientLimits
from gateway.transports.grpc.client_call import ClientCall
from gateway.transports.grpc.headers import (
    GrpcResponseHead,
    read_response_head,
    request_block,
    with_metadata,
)
from gateway.transports.grpc.messages import PREFIX_BYTES, frame_message, join_call
from gateway.transports.grpc.silence import ACKNOWLEDGED_WITHIN_S, ServerSilence
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.flood_control import FLOOD_TEXT
from gateway.transports.http2.frames import MAX_WINDOW, NO_ERROR, Http2ConnectionError
from gateway.transports.http2.protocol import Http2Protocol
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.net.resolver import UNIX, UpstreamConnector
from gateway.transports.net.tls import NEEDS_TLS, TLS_ALERT, connect_failure_text
from gateway.transports.net.tls_files import Authorities, TlsContext
from gateway.transports.net.wrong_port import MAYBE_HTTP, SERVES_HTTP
from gateway.transports.reservation import Reservation, ResponseReservation
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import size_of

# Streams of one connection, if the server does not allow fewer.
_STREAMS: Final = 100
_HEADER_BYTES: Final = 64 * 1024
_SWEEP_S: Final = 1.0
_WRITE_TIMEOUT_S: Final = 30.0


class GrpcClientConnection(Http2Protocol):
    """A connection to an upstream.

    Args:
        pool: Notified when a call ends or the connection is lost.
        name: The name of the upstream, for errors.

    Attributes:
        ready: Done when the server's SETTINGS have arrived.
        created_at: When the connection was made, on the clock of `time.monotonic`.
        idle_since: When its last call ended.
        is_used: A call was sent on it.
    """

    def __init__(self, pool: GrpcConnectionPool, name: str) -> None:
        super().__init__()
        self.name = name
        self.core = Http2Connection(
            self, read_response_head, client=True, streams=0, header_bytes=_HEADER_BYTES
        )
        self.core.flood_budget.on_low = self._on_flood
        self.created_at = self.idle_since = monotonic()
        self.ready: asyncio.Future[None] = self.loop.create_future()
        self.is_new = True
        self.is_used = False
        self._pool = pool
        self._closing_reason: str | None = None
        self._silence = ServerSilence(self.created_at)
        self._pongs = 0

    def reservation(self) -> Reservation:
        """Return a reservation for a response, in the share of the client that called."""
        return self._pool.reservation()

    def is_open(self) -> bool:
        """Return whether new calls may be sent on the connection."""
        transport = self.transport
        return (
            self._closing_reason is None
            and self.fault is None
            and transport is not None
            and not transport.is_closing()
            and self.core.writer.next_number <= MAX_WINDOW
        )

    def call(
        self,
        wire: GrpcRequest,
        deadline: float | None,
        now: float,
        waiter: asyncio.Future[GrpcResponse | None] | None,
        withholds: bool = False,
    ) -> ClientCall:
        """Start a call and write its message; the rest of it is written as it arrives.

        Args:
            wire: The request.
            deadline: The deadline that is sent, unless the call withholds it; None for none.
            now: The time, on the clock of *deadline*.
            waiter: For a call with one response, as in `ClientCall`; None for any other.
            withholds: Whether cancellation is withheld from the server.
        """
        pool, rest, message = self._pool, wire.rest, wire.message
        left_s = None if deadline is None or withholds else deadline - now
        block = request_block(wire.method, pool.authority, pool.scheme, (), left_s)
        size = len(message[0]) if len(message) == 1 else size_of(message)
        self.is_used = True
        core = self.core
        stream = core.writer.open(None)
        call = ClientCall(
            self, stream, pool.message_bytes, self.turn, waiter is not None, waiter, withholds
        )
        stream.owner = call
        metadata = wire.metadata
        frames = None
        if rest is None:
            frames = join_call(stream.number, block, metadata, message, size, None, ())
        if frames is None or not core.writer.send_joined(stream, frames, size + PREFIX_BYTES):
            core.writer.head(stream, with_metadata(block, metadata))
            whole = size if rest is None else size + rest.remaining_bytes
            core.writer.data(stream, frame_message(message, whole))
            if rest is None:
                core.writer.end(stream, None)
            else:
                call.send_rest(rest)
        if not self.is_flushing:  # as `flush_soon`, without its frame
            self.is_flushing = True
            self.loop.call_soon(self.flush)
        return call

    def on_cancelled(self) -> None:
        """Let a call that waits for a stream have that of a cancelled call."""
        if self._pool.waiting:
            self._pool.on_call_ended(self)
        self.on_unanswered()

    def on_unanswered(self, *, is_waiting: bool = False) -> None:
        """Ask a silent server whether it is there: a call has ended without reply, or waits."""
        now = monotonic()
        self._note_received(now)
        if self.is_open() and self._silence.should_ping(now, is_waiting=is_waiting):
            self.core.ping()
            self.flush_soon()
            gone_at = now + ACKNOWLEDGED_WITHIN_S
            self.loop.call_later(ACKNOWLEDGED_WITHIN_S, self._retire_if_gone, gone_at)

    def _calls(self) -> list[ClientCall]:
        return [stream.owner for stream in self.core.streams.values()]

    # -- for the protocol

    def is_foreign(self, data: bytes) -> bool:
        """Return whether the server speaks HTTP/1 or TLS, and close the connection if so."""
        if data.startswith(b"HTTP/1."):
            self._closing_reason = SERVES_HTTP
        elif data.startswith(TLS_ALERT):
            self._closing_reason = NEEDS_TLS
        else:
            return False
        self.abort()
        return True

    def broken(self, fault: Http2ConnectionError) -> None:
        """Fail every call: the server has sent malformed HTTP/2."""
        self._closing_reason = f"broken framing: {fault.message}"
        error = errors.UpstreamProtocolError(f"{self.name} broke HTTP/2: {fault.message}")
        for call in self._calls():
            call.fail(error)

    def connection_lost(self, error: BaseException | None) -> None:
        """Fail every call whose response has not arrived: the connection is lost."""
        self.read_rest(error)
        self.transport = None
        why = self._closing_reason or (str(error) if error else "the server closed it")
        if not self.ready.done():
            hint = "" if self._pool.has_replied else f"; {MAYBE_HTTP}"
            reason = self._closing_reason or f"{why}{hint}"
            self.ready.set_exception(ConnectionError(reason))
            self.ready.exception()  # asyncio warns of an error that nobody retrieves
        for call in self._calls():
            self.core.writer.forget(call.stream)
            self.core.streams.pop(call.stream.number, None)
            call.lost(why, written=call.turn != self.turn)
        self.core.close()
        self._pool.remove(self)

    # -- events of the core

    def on_settings(self) -> None:
        """Allow calls: the server's SETTINGS have arrived."""
        self.is_new = False
        self._pool.has_replied = True
        if not self.ready.done():
            self.ready.set_result(None)

    def on_complete_stream(
        self,
        stream: Http2Stream,
        head: GrpcResponseHead,
        view: memoryview,
        tail: GrpcResponseHead | None,
    ) -> None:
        """Pass a complete response to its call."""
        stream.owner.on_complete_stream(head, view, tail)
        if not self.core.streams or self._pool.waiting:
            self._pool.on_call_ended(self)

    def on_headers(self, stream: Http2Stream, head: GrpcResponseHead, *, end: bool) -> None:
        """Pass header fields or trailers to their call."""
        stream.owner.on_headers(head, end=end)
        if end:
            self._pool.on_call_ended(self)

    def on_data(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        """Pass a part of a response to its call."""
        stream.owner.on_data(view, end=end)

    def on_writable(self, stream: Http2Stream) -> None:
        """Let a call send more of its request."""
        if stream.owner is not None:
            stream.owner.on_writable()

    def on_reset(self, stream: Http2Stream, code: int) -> bool:
        """Fail a call whose stream the server has reset."""
        stream.owner.on_reset(code)
        self._pool.on_call_ended(self)
        return True

    def on_goaway(self, code: int, message: str) -> None:
        """Start no more calls."""
        reason = f": {message}" if message else ""
        self._closing_reason = (
            f"the server went away{reason}" if code != NO_ERROR else "the server went away"
        )
        self._pool.remove(self)
        if not self.core.streams:
            self.loop.call_soon(self.close)

    def _on_flood(self) -> None:
        """Start no more calls: half of the flood budget is spent. Calls in progress go on."""
        self._closing_reason = f"the server sent {FLOOD_TEXT}"
        self._pool.remove(self)

    # -- life

    def retire(self) -> None:
        """Start no further calls, and close after the last one."""
        self._closing_reason = self._closing_reason or "the connection was replaced"
        if not self.core.streams:
            self.core.goaway(final=True)
            self.close()

    def end_calls(self, why: str) -> None:
        """Fail every call, and close."""
        for call in self._calls():
            call.fail(errors.Unavailable(why))
        self.core.goaway(final=True)
        self.close()

    def sweep(self, now: float, keepalive_s: float) -> None:
        """Close the connection if it is idle or stuck. The pool calls this once a second."""
        self.core.flood_budget.refill()
        if self.core.streams:
            self.idle_since = now
            self.on_unanswered(is_waiting=True)
        elif self._closing_reason is not None or now - self.idle_since > keepalive_s:
            self.retire()
        self._retire_if_gone(now)
        if self.stall is not None and self.stall.idle_s(now) > _WRITE_TIMEOUT_S:
            self._closing_reason = f"the server read nothing for {_WRITE_TIMEOUT_S:g} s"
            self.abort()

    def _retire_if_gone(self, now: float) -> None:
        """Start no more calls if a PING was not acknowledged."""
        self._note_received(now)
        if self._silence.is_gone(now) and self.is_open():
            self._closing_reason = f"the server acknowledged no PING in {ACKNOWLEDGED_WITHIN_S:g} s"
            self._pool.remove(self)

    def _note_received(self, now: float) -> None:
        if self.has_received:
            self.has_received = False
            pongs, self._pongs = self._pongs, self.core.pongs
            self._silence.heard(now, only_pong=pongs != self._pongs)


class GrpcConnectionPool:
    """Gives each call the first connection that can carry it; opens another when all are full.

    Args:
        name: The name of the upstream, for errors.
        upstream: Resolves and connects to its address.
        limits: The limits of the upstream.
        tls: The context of handshakes; None for plain text.
        budget: The memory budget for responses.

    Attributes:
        authority: `:authority` of the calls.
        scheme: Their `:scheme`.
        message_bytes: The size limit of a response message.
        has_replied: Whether the server is known to speak HTTP/2: its port is then the right one.
    """

    def __init__(
        self,
        name: str,
        upstream: UpstreamConnector,
        limits: ClientLimits,
        tls: TlsContext | None,
        budget: MemoryBudget,
    ) -> None:
        self.authority = "localhost" if name.startswith(UNIX) else name
        self.scheme = "http" if tls is None else "https"
        self.message_bytes = limits.message_bytes
        self._budget = budget
        self._name = name
        self._upstream = upstream
        self._limits = limits
        self._age_s = limits.connection_age_s
        self._tls = tls
        if tls is not None:
            tls.add_user(self)
        self._connections: list[GrpcClientConnection] = []
        self._all: set[GrpcClientConnection] = set()
        self._connecting: asyncio.Task[None] | None = None
        self.waiting: set[asyncio.Future[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.has_replied = False

    def reservation(self) -> Reservation:
        """Return a reservation for a response, in the share of the client that called."""
        return ResponseReservation(self._budget, None, CLIENT_MEMORY.get())

    def tls_renewed(self, _authorities: Authorities | None) -> None:
        """Close each connection after its last call."""
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.retire()

    def find(self, now: float) -> GrpcClientConnection | None:
        """Return a connection that can carry one more call, if there is one."""
        for connection in self._connections:
            if now - connection.created_at > self._age_s and connection.is_used:
                self._connections.remove(connection)
                connection.retire()
                return self.find(now)
            core = connection.core
            streams = len(core.streams)
            if streams < _STREAMS and streams < core.writer.peer_streams and connection.is_open():
                return connection
        return None

    async def acquire(self, deadline: float | None) -> GrpcClientConnection:
        """Return a connection that can carry one more call, a new one if necessary.

        Raises:
            NotSent: The upstream cannot be reached.
            DeadlineExceeded: The deadline passed while waiting.
        """
        try:
            async with asyncio.timeout(None if deadline is None else deadline - monotonic()):
                while not self._is_closed:
                    found = self.find(monotonic())
                    if found is not None:
                        return found
                    await self._wait_for_connection()
        except TimeoutError:
            raise errors.DeadlineExceeded(f"no connection to {self._name} in time") from None
        raise self._closed_error()

    def remove(self, connection: GrpcClientConnection) -> None:
        """Stop using *connection* for new calls."""
        if connection in self._connections:
            self._connections.remove(connection)
        if connection.transport is None:
            self._all.discard(connection)
        self.on_call_ended(connection)

    def on_call_ended(self, connection: GrpcClientConnection) -> None:
        """Wake waiting calls, and close *connection* if it was removed and has no more calls."""
        if not connection.core.streams:
            connection.idle_since = monotonic()
            if connection not in self._connections and connection.transport is not None:
                connection.retire()
        if self.waiting:
            self._wake()

    def _wake(self) -> None:
        """Wake every call that waits for a connection; each tries again."""
        waiting, self.waiting = self.waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _closed_error(self) -> errors.NotSent:
        return errors.NotSent(f"the client of {self._name} is closed")

    async def close(self, why: str) -> None:
        """Close every connection, and fail the calls on them. Waiting calls raise NotSent."""
        self._is_closed = True
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

    async def _wait_for_connection(self) -> None:
        """Wait for a new connection, or for the end of a call on another. Raises NotSent."""
        if len(self._connections) >= self._limits.most_connections:
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
            task = asyncio.current_task()
            # `close` cancels the attempt to connect, not its callers.
            if connecting.cancelled() and task is not None and not task.cancelling():
                raise self._closed_error() from None
            raise
        finally:
            del connecting  # the traceback of its error holds this frame, and so the message

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # asyncio warns of an error that nobody retrieves

    async def _connect(self) -> None:
        options: dict[str, Any] = {}
        if self._tls is not None:
            options["ssl"] = self._tls.current
        connection: GrpcClientConnection | None = None
        try:
            with patient_timeout(self._limits.connect_timeout_s):
                connection = await self._upstream.connect(self._make, options)
                await connection.ready
        except TimeoutError:
            self._drop(connection)
            limit = f"within {self._limits.connect_timeout_s:g} s"
            why = f"no response {limit}"
            if connection is not None:
                hint = "" if self.has_replied else f"; {MAYBE_HTTP}"
                why = f"it accepts connections, but sent no HTTP/2 {limit}{hint}"
            raise errors.ConnectFailure(f"cannot connect to {self._name}: {why}") from None
        except OSError as error:
            self._drop(connection)
            text = f"cannot connect to {self._name}: {connect_failure_text(error)}"
            raise errors.ConnectFailure(text) from error
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
