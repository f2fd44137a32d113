"""HttpServer of the reference implementation: aiohttp reads requests, and exchanges answer them.

aiohttp's low-level server has a handler for each connection.  A protocol before it counts the
connection, limits the time of a head, and knows what a drain has to wait for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web

from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.concurrency.timeouts import RestartableTimer
from gateway.ir.errors import MalformedMessage
from gateway.transports import authentication, client_shares, connection_count
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import ServerLimits
from gateway.transports.http import faults, request_body, request_head, states
from gateway.transports.http.exchange import Exchange
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.listener import HttpListener
from gateway.transports.http.response_writer import write_response
from gateway.transports.http.write_pause import WritePause
from gateway.transports.net import refused_connection, sockets
from gateway.transports.reservation import Reservation

# Of requests that it cannot read aiohttp would log a traceback each.
_QUIET = logging.getLogger(f"{__name__}.aiohttp")
_QUIET.disabled = True


class HttpServer(HttpListener):
    """A listener for HTTP/1 whose requests aiohttp reads, which has no HTTP/2."""

    def _make(self, listener: ListenerState, count: ConnectionCount, *, reserve: bool) -> _Manager:
        return _Manager(listener, count, reserve=reserve)


class _Manager:
    """Makes the connections of a listener, and knows those there are."""

    def __init__(self, listener: ListenerState, count: ConnectionCount, *, reserve: bool) -> None:
        self.can_use_reserve = reserve
        self.listener = listener
        self.count = count
        self.is_draining = False
        self.connections: dict[web.RequestHandler, _Connection] = {}
        limits = listener.limits
        self._aiohttp = web.Server(
            self._serve,
            handler_cancellation=True,
            keepalive_timeout=limits.keepalive_s,
            tcp_keepalive=False,
            logger=_QUIET,
            access_log=None,
            lingering_time=1.0,
            max_line_size=limits.header_line_bytes,
            max_field_size=limits.header_field_bytes,
            max_headers=limits.header_count,
            read_bufsize=32 * 1024,
            auto_decompress=False,
        )

    @property
    def open_connections(self) -> list[_Connection]:
        return list(self.connections.values())

    def __call__(self) -> _Connection:
        return _Connection(self, self._aiohttp())

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self.connections[request.protocol].serve(request)


class _Written(web.StreamResponse):
    """A response that an exchange has written already."""

    def __init__(self, *, keep: bool) -> None:
        super().__init__()
        self._keep = keep

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may carry another request."""
        return self._keep

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing: the head is out."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: the body is out."""


class _Connection(WritePause, asyncio.Protocol):
    """A connection, as exchanges and the listener see it."""

    def __init__(self, manager: _Manager, handler: web.RequestHandler) -> None:
        self._manager = manager
        self._handler = handler
        self._address: str | None = None
        self._request: web.BaseRequest | None = None
        self._has_more = False  # of a request that no exchange has begun
        timeout_s = manager.listener.limits.header_timeout_s
        loop = asyncio.get_running_loop()
        self._head_timer = RestartableTimer(loop, timeout_s, self._head_timed_out)
        self.transport: asyncio.Transport | None = None
        self.write_paused: asyncio.Event | None = None
        self.responses_sent = 0
        self.is_head_sent = False
        self.state: states.HttpConnectionState = states.OPEN
        self.client = client_shares.NO_CLIENT_SHARES
        self.cancel_exchange: Callable[[], None] | None = None
        if manager.is_draining:
            self.announce_close()

    @property
    def in_flight(self) -> int:
        """The number of requests without a complete response."""
        return int(self._request is not None)

    @property
    def must_close(self) -> bool:
        """Whether the current response is the last."""
        return self.state is not states.OPEN

    def _move(self, event: states.HttpConnectionEvent) -> None:
        self.state = states.TRANSITIONS.get((self.state, event), self.state)

    # -- asyncio's protocol

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, or close it at once above a limit."""
        manager, address = self._manager, connection_count.client_address(transport)
        refusal = connection_count.connection_refusal(
            manager.count, transport, address, reserve=manager.can_use_reserve
        )
        if refusal is not None:
            manager.listener.on_reject(refusal)
            response = faults.connection_refused_response(refusal.message)
            refused_connection.refuse_connection(
                transport, response, linger=refusal.limit != connection_count.DESCRIPTORS
            )
            return
        self._address = address
        manager.count.enter(address)
        listener = manager.listener
        peer = None if listener.authentication is None else authentication.peer_of(transport)
        self.client = client_shares.client_shares(address, listener.slots, listener.budget, peer)
        sockets.tune(transport.get_extra_info("socket"))
        self.transport = transport
        manager.connections[self._handler] = self
        self._handler.connection_made(transport)
        sockets.pause_until_drained(transport)
        self._head_timer.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection; aiohttp cancels its tasks."""
        self._move(states.HttpConnectionEvent.LOSE)
        self._head_timer.close()
        if self._address is None:
            return
        self._manager.count.leave(self._address)
        self._address = self.transport = None
        self._manager.connections.pop(self._handler, None)
        self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass data to aiohttp, and watch how long the head of a request takes."""
        if self._request is None:
            self._head_timer.start()
        if self._request is None or self._request.content.is_eof():
            self._has_more = True
        self._handler.data_received(data)

    # -- requests

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle a request, and return what aiohttp expects of it."""
        self._head_timer.stop()
        self._has_more, self._request = False, request
        CLIENT_MEMORY.set(self.client.memory)
        listener, task = self._manager.listener, asyncio.current_task()
        try:
            return _Written(keep=await Exchange(listener, self, _Request(request), task).run())
        except Exception as error:  # noqa: BLE001  # a bug: aiohttp would respond in its own form
            response = faults.failure(error)
            if not self.is_head_sent and self.transport is not None:
                write_response(self.transport, response, keep=False, version=(1, 1))
            return _Written(keep=False)
        finally:
            self._request = None
            if self._has_more and self.transport is not None:
                self._head_timer.start()

    def _head_timed_out(self) -> None:
        if self._request is None:
            listener = self._manager.listener
            listener.on_reject(request_head.head_too_slow(listener.limits).error)
            self.abort()

    # -- the end

    def announce_close(self) -> None:
        """Send `Connection: close` with the pending response."""
        self._move(states.HttpConnectionEvent.ANNOUNCE)

    def drain(self) -> None:
        """Close when idle, or after the pending response.

        A request that the kernel has received is pending, too: closing would reset it.
        """
        self.announce_close()
        transport = self.transport
        if self._request is not None or self._has_more or transport is None:
            return
        if not sockets.has_unread(transport.get_extra_info("socket")):
            transport.close()

    def fail_in_flight(self) -> None:
        """End the request in progress with an error."""
        (self.cancel_exchange or self.abort)()

    def abort(self) -> None:
        """Close at once, without the rest of the output."""
        if self.transport is not None:
            self.transport.abort()


class _Request:
    """One request of a connection; see `http.interfaces.RequestReader`."""

    buffered_body: memoryview | None = None
    reservation: Reservation | None = None

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._received = 0
        self.method = request.method
        self.version: request_head.Version = (request.version.major, request.version.minor)
        # An upgrade is declined; what may follow it on the connection is not ours to guess.
        self.should_close = not request.keep_alive or "upgrade" in request.headers

    @property
    def is_complete(self) -> bool:
        """Whether the whole body has arrived."""
        return self._request.content.is_eof()

    def head(self, limits: ServerLimits) -> request_head.Head:
        """Return its head. Raises HttpError."""
        request = self._request
        return request_head.read_head(
            self.method, request.raw_path, self.version, request.raw_headers, limits
        )

    async def body(self, length: int | None, limits: ServerLimits, held: Reservation) -> memoryview:
        """Return its body."""
        pace = request_body.TransferRateLimit(limits, asyncio.get_running_loop())
        buffer, chunks = bytearray(), 0
        held.allocated(0)  # the buffer grows as the reservation does
        while True:
            more = held.step(len(buffer), length)
            if more > 0 and not held.try_grow(more):
                with pace.paused():
                    await held.grow(more)
            piece, ends_chunk = await self._next(pace)
            if not piece and (not ends_chunk or self._request.content.at_eof()):
                return memoryview(buffer).toreadonly()
            buffer += piece
            self._received = len(buffer)
            pace.received(len(piece))
            if len(buffer) > limits.message_bytes:
                raise request_body.too_many_bytes(limits)
            chunks += ends_chunk and length is None
            if chunks > limits.body_chunks:
                raise request_body.too_many_chunks(limits)

    async def _next(self, pace: request_body.TransferRateLimit) -> tuple[bytes, bool]:
        """Return a piece, and whether a chunk ends with it; an empty one is the end."""
        wait_s, limit = pace.time_left()
        try:
            async with asyncio.timeout(None if self.is_complete else wait_s):
                return await self._request.content.readchunk()
        except TimeoutError:
            raise pace.fault(limit) from None
        except web.RequestPayloadError as error:
            raise MalformedMessage(f"malformed framing of the request body: {error}") from error
        except RuntimeError as error:  # aiohttp's reader raises this when the connection is lost
            raise ConnectionResetError("the client has left") from error

    def received_bytes(self) -> int:
        """Return how many bytes of the body were read."""
        return self._received

    def forget(self) -> None:
        """Do nothing: aiohttp's reader does not keep the bytes."""

    async def open_body_stream(self, *_arguments: object) -> None:
        """Return None: aiohttp's bodies are received completely."""
