"""One HTTP/1 connection of the native server: reads ahead, responds in order, closes.

Requests are read ahead of their responses, within limits, and handled one after the other by one
task.  A body is read when its request is handled and there is memory for it; until then it stays
with the client.  A malformed request gets its error after the responses to all requests before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.concurrency.timeouts import RestartableTimer
from gateway.ir.errors import Overloaded
from gateway.transports.authentication import peer_of
from gateway.transports.client_shares import NO_CLIENT_SHARES, client_shares
from gateway.transports.connection_count import (
    DESCRIPTORS,
    ConnectionCount,
    client_address,
    connection_refusal,
)
from gateway.transports.http.exchange import Exchange
from gateway.transports.http.faults import (
    HttpError,
    connection_refused_response,
    failure,
    text_response,
)
from gateway.transports.http.half_close import HalfCloseMonitor
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.request_head import Version, head_too_slow
from gateway.transports.http.response_writer import write_response
from gateway.transports.http.states import (
    ENDING,
    OPEN,
    TRANSITIONS,
    HttpConnectionEvent,
    HttpConnectionState,
)
from gateway.transports.http.write_pause import WritePause
from gateway.transports.http1 import states
from gateway.transports.http1.head_reader import (
    READ_BYTES,
    HeadReader,
    RequestHead,
    RequestHeadCache,
)
from gateway.transports.http1.head_template import END
from gateway.transports.http1.request import BufferedRequest, ReceivingRequest, known_request
from gateway.transports.http1.states import HTTP2, READING, UNDECIDED, InputState
from gateway.transports.http2.frames import PREFACE, may_be_http2
from gateway.transports.net.refused_connection import refuse_connection
from gateway.transports.net.sockets import (
    end_output,
    has_unread,
    pause_until_drained,
    peer_missing,
    peer_refused,
    tune,
)
from gateway.transports.net.tls import negotiated_http2
from gateway.wire.http import HttpResponse

_TURN_REQUESTS = 8
_HEAD_BYTES = 4096  # nearly every head is shorter
_SMALL_BYTES = 16 * 1024  # nearly every request that arrives in one read is smaller

_LINGER_S = 1.0
"""A client that has its last response may still send: what arrives is dropped until it pauses."""

_MAX_LINGER_S = 10.0

_BODY_S = 0.02
"""For so long a body whose memory is reserved may arrive before its exchange begins to watch it."""


class Http1ServerProtocol:
    """Makes the connections of a server, knows them, and has the state that they share.

    Args:
        listener: The state of the listener.
        count: Counts its connections.
        reserve: Whether they may use the descriptors in reserve.
        http2: Creates the protocol of an HTTP/2 connection; None to reject HTTP/2.

    Attributes:
        is_draining: Whether each response is the last of its connection.
    """

    def __init__(
        self,
        listener: ListenerState,
        count: ConnectionCount,
        *,
        reserve: bool,
        http2: Callable[[], asyncio.Protocol] | None = None,
    ) -> None:
        self.listener = listener
        self.count = count
        self.can_use_reserve = reserve
        self.http2 = http2
        self.is_draining = False
        self.head_cache = RequestHeadCache(listener.limits)
        # Read into and emptied within one call of the loop, so one will do for all.
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.connections: set[Http1ServerConnection] = set()

    def __call__(self) -> Http1ServerConnection:
        """Return the protocol of one more connection."""
        return Http1ServerConnection(self, asyncio.get_running_loop())

    @property
    def open_connections(self) -> list[Http1ServerConnection]:
        """Connections there are now."""
        return list(self.connections)

    def refusal(self, transport: Any, address: str) -> Overloaded | None:
        """Return the error for one more connection from *address*; None if there is room."""
        refusal = connection_refusal(self.count, transport, address, reserve=self.can_use_reserve)
        if refusal is not None:
            self.listener.on_reject(refusal)
        return refusal


class RequestQueue:
    """The requests of one connection that have arrived, in the order of their responses.

    Args:
        loop: The event loop.

    Attributes:
        waiting: Those whose exchanges have not begun, and the error that ends the connection.
        current: The one whose exchange is in progress.
    """

    __slots__ = ("_loop", "_timer", "_waiter", "current", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.waiting: list[BufferedRequest | HttpError] = []  # short, and smaller than a deque
        self.current: BufferedRequest | None = None

    @property
    def in_flight(self) -> int:
        """The number of requests without a complete response."""
        return len(self.waiting) + (self.current is not None)

    def add(self, request: BufferedRequest | HttpError) -> None:
        """Add a request whose exchange may begin, or the error that ends the connection."""
        self.waiting.append(request)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def hold(self, request: BufferedRequest) -> None:
        """Add a request whose exchange begins when its body has arrived, or has taken long."""
        self.waiting.append(request)
        self._timer = self._loop.call_later(_BODY_S, self.begin)

    def begin(self) -> None:
        """End the wait for the next request, if there is one."""
        self._stop_timer()
        waiter = self._waiter
        if self.waiting and waiter is not None and not waiter.done():
            waiter.set_result(None)

    def arrival(self) -> asyncio.Future[None]:
        """Return a future that is done when the next exchange may begin."""
        self._waiter = self._loop.create_future()
        return self._waiter

    def drop(self) -> None:
        """Drop the requests that will not be handled."""
        self._stop_timer()
        for request in self.waiting:
            if isinstance(request, BufferedRequest) and request.reservation is not None:
                request.reservation.close()
        self.waiting.clear()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Http1ServerConnection(WritePause, asyncio.BufferedProtocol):
    """A connection of a server: reads requests, and is the `HttpConnection` of their exchanges.

    Args:
        server: The protocol of the server.
        loop: The event loop.
    """

    def __init__(self, server: Http1ServerProtocol, loop: asyncio.AbstractEventLoop) -> None:
        limits = server.listener.limits
        self._server = server
        self._loop = loop
        self._limits = limits
        self._heads = HeadReader(limits, server.head_cache)
        self._requests = RequestQueue(loop)
        self._reading: ReceivingRequest | None = None
        self._unparsed = b""
        self._is_paused = self._is_direct = False
        self._input: InputState = READING if server.http2 is None else UNDECIDED
        self._successor: asyncio.Protocol | None = None
        self._task: asyncio.Task[None] | None = None
        self._head_timer = RestartableTimer(loop, limits.header_timeout_s, self._head_timed_out)
        self._idle_timer = RestartableTimer(loop, limits.keepalive_s, self._close_idle)
        self._half_close_monitor: HalfCloseMonitor | None = None
        self._address: str | None = None
        self.transport: Any = None
        self.write_paused: asyncio.Event | None = None
        self.responses_sent = 0
        self.is_head_sent = False
        self.state: HttpConnectionState = ENDING if server.is_draining else OPEN
        self.client = NO_CLIENT_SHARES
        self.cancel_exchange: Callable[[], None] | None = None

    @property
    def in_flight(self) -> int:
        """The number of requests without a complete response."""
        return self._requests.in_flight

    @property
    def request_version(self) -> Version | None:
        """The HTTP version of the request in progress; None without one."""
        current = self._requests.current
        return None if current is None else current.version

    @property
    def must_close(self) -> bool:
        """Whether the current response is the last."""
        return self.state is not OPEN and not self._requests.waiting

    def _move(self, event: HttpConnectionEvent) -> None:
        self.state = TRANSITIONS.get((self.state, event), self.state)

    def _move_input(self, event: states.InputEvent) -> None:
        self._input = states.TRANSITIONS.get((self._input, event), self._input)

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it at once above a limit."""
        if self._server.http2 is not None and negotiated_http2(transport):
            self._move_input(states.InputEvent.SWITCH)
            self._succeed(transport, self._server.http2())
            return
        address = client_address(transport)
        refusal = self._server.refusal(transport, address)
        if refusal is not None:
            response = connection_refused_response(refusal.message)
            refuse_connection(transport, response, linger=refusal.limit != DESCRIPTORS)
            return
        self.transport = transport
        self._address = address
        self._server.count.enter(address)
        listener = self._server.listener
        peer = None if listener.authentication is None else peer_of(transport)
        self.client = client_shares(address, listener.slots, listener.budget, peer)
        self._server.connections.add(self)
        tune(transport.get_extra_info("socket"))
        pause_until_drained(transport)
        self._head_timer.start()
        if self._input is READING:
            self._task = self._loop.create_task(self._serve())

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002  # asyncio's
        """Cancel the exchange in progress."""
        if self._address is None:
            return
        self._server.count.leave(self._address)
        self._server.connections.discard(self)
        self._address = None
        self.transport = None
        self._move(HttpConnectionEvent.LOSE)
        self._move_input(states.InputEvent.LOSE)
        self._requests.drop()
        self._idle_timer.close()
        self.resume_writing()
        if self._reading is not None:
            self._reading.fail(ConnectionResetError("the client has left"))
        # What holds this connection, a body under way too, would else stay until a collection.
        self._reading = None
        self._heads.forget()
        self._head_timer.close()
        if self._half_close_monitor is not None:
            self._half_close_monitor.close()
            self._half_close_monitor = None
        if self._task is not None:
            self._task.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's
        """Return the buffer for the next bytes: the body itself, if one is being received."""
        reading = self._reading
        if reading is None:
            return self._server.buffer
        room = reading.room()
        self._is_direct = room is not None
        return self._server.buffer if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes."""
        reading = self._reading
        if reading is not None and self._is_direct:
            reading.received(nbytes)
            if reading.is_complete:
                self._reading = None
            return
        if nbytes <= _SMALL_BYTES and self._takes_known(nbytes):
            return
        data = self._server.buffer[:nbytes]
        if nbytes == READ_BYTES:
            # Read more at once: most of it is a body, which has a buffer once its head is parsed.
            first = data[:_HEAD_BYTES].tobytes()
            size = (first.find(END) + len(END)) if END in first else _HEAD_BYTES
            self.data_received(first[:size])
            data = data[size:]
            if self._reading is not None and self._reading.put(data):
                return
        self.data_received(data.tobytes())

    def _takes_known(self, nbytes: int) -> bool:
        """Return whether a head that needs no parser has arrived: nearly always, with its body.

        Otherwise nothing is done.
        """
        if self._reading is not None or self._unparsed or self._input is not READING:
            return False
        if self._requests.waiting:
            return False
        found = known_request(self._server.buffer, nbytes, self._heads)
        if found is None:
            return False
        if self._head_timer.is_armed:
            self._head_timer.stop()
        if isinstance(found, BufferedRequest):
            self._requests.add(found)
        else:
            data = self._server.buffer[:nbytes].tobytes()
            self.data_received(data, self._take(found, data, data.find(END) + len(END)))
        return True

    def data_received(self, data: bytes, at: int = 0) -> None:
        """Parse requests in *data* from *at*, and keep the rest."""
        if self._input is not READING and not self._opens(data):
            return
        if self._unparsed:
            data, self._unparsed = self._unparsed + data, b""
        end, waiting = len(data), self._requests.waiting
        while at < end:
            reading = self._reading
            if reading is not None:
                at = reading.feed(data, at)
                if reading.is_complete:
                    self._reading = None
                elif at < end:
                    break
            elif waiting and len(waiting) >= self._limits.pipelined_requests:
                break
            else:
                at = self._read_head(data, at)
        if at < end:
            self._unparsed = data[at:]
            self.pause_reading()

    def _opens(self, data: bytes) -> bool:
        """Return whether *data* is read as HTTP/1, where that is not decided or not so."""
        if self._input is HTTP2 and self._successor is not None:
            self._successor.data_received(data)
        elif self._input is UNDECIDED and self._server.http2 is not None:
            first = self._unparsed + data
            if not may_be_http2(first):
                self._move_input(states.InputEvent.RECEIVE_HTTP1)
                self._task = self._loop.create_task(self._serve())
                return True
            self._unparsed = first
            if len(first) >= len(PREFACE):
                self._switch(self._server.http2())
        elif self._input is states.LINGERING:
            self._idle_timer.restart()
        return False

    def _switch(self, successor: asyncio.Protocol) -> None:
        """Pass the connection and all received data to HTTP/2."""
        transport, first = self.transport, self._unparsed
        self._move_input(states.InputEvent.SWITCH)
        self.connection_lost(None)
        # uvloop keeps a former protocol for as long as the connection lasts: it holds nothing more.
        vars(self).clear()
        self._reading, self._input, self._successor, self._address = None, HTTP2, None, None
        if not transport.is_closing():
            self._succeed(transport, successor)
            successor.data_received(first)

    def _succeed(self, transport: Any, successor: asyncio.Protocol) -> None:
        self._successor = successor
        transport.set_protocol(successor)
        successor.connection_made(transport)

    def eof_received(self) -> bool:
        """Keep a half-closed connection open while requests wait for their responses."""
        whole = self.in_flight > 0 and self._reading is None
        encrypted = self.transport is None or self.transport.get_extra_info("sslcontext")
        if not whole or encrypted:
            return False
        self._move(HttpConnectionEvent.HALF_CLOSE)
        self._head_timer.stop()
        self._half_close_monitor = HalfCloseMonitor(self._loop, self)
        self._half_close_monitor.watch()
        return True

    # -- reading

    def resume_reading(self) -> None:
        """Pass buffered data to the body that is read now, and read on after the last of it."""
        self.data_received(b"")  # no new data after the buffered data
        if not self._unparsed:
            self._read_on()

    def body_ended(self) -> None:
        """Read what follows the body, whose last byte was taken past this connection."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.is_complete = True
        self.resume_reading()

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`."""
        if not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def _read_on(self) -> None:
        if self._is_paused and self.transport is not None and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def _stop_reading(self) -> None:
        """Read nothing more after a request that failed; handle complete requests."""
        self._move(HttpConnectionEvent.BREAK)
        self._move_input(states.InputEvent.STOP)

    def check_peer(self, missing: int) -> None:
        """Close the connection if its client has left: no event shows it while paused."""
        if self.transport is None:
            return
        sock = self.transport.get_extra_info("socket")
        encrypted = self.transport.get_extra_info("sslcontext") is not None
        if peer_refused(sock) if encrypted else peer_missing(sock, missing):
            self.abort()

    def _read_head(self, data: bytes, at: int) -> int:
        try:
            head, at = self._heads.feed(data, at)
        except HttpError as fault:  # is sent after the responses before it
            self._stop_reading()
            self._head_timer.stop()
            self._requests.add(fault)
            return len(data)
        if head is None:
            if self._heads.is_started:
                self._head_timer.start()
            return at
        if self._head_timer.is_armed:
            self._head_timer.stop()
        return self._take(head, data, at)

    def _head_timed_out(self) -> None:
        error = head_too_slow(self._limits).error
        error.client = self.client.caller.client()
        self._server.listener.on_reject(error)
        if self.in_flight:
            self._stop_reading()
        elif self.transport is not None:
            self.transport.abort()

    def _take(self, head: RequestHead, data: bytes, at: int) -> int:
        """Begin a request, whose body begins at *at*; return the position after what is read."""
        stop = at + (head.length or 0)
        if head.is_chunked or stop > len(data):
            self._reading = coming = ReceivingRequest(self, head, self._server.head_cache)
            if not self.in_flight and coming.preallocate(self._server.listener, self.client):
                # The exchange begins when all is there, which nearly always is a moment later.
                self._requests.hold(coming)
            else:
                self._requests.add(coming)
            return coming.feed(data, at) if at < len(data) else at
        self._requests.add(
            BufferedRequest(head, self._server.head_cache, memoryview(data[at:stop]))
        )
        return stop

    # -- responses

    def begin_exchange(self) -> None:
        """Let the task handle the next request, if there is one and the task waits for it."""
        self._requests.begin()

    async def _serve(self) -> None:
        """Handle one request after another."""
        listener, requests = self._server.listener, self._requests
        CLIENT_MEMORY.set(self.client.memory)
        in_a_row = 0
        try:
            while True:
                if not requests.waiting:
                    if self._input is not READING or (
                        self.state is not OPEN and self.responses_sent
                    ):
                        break
                    self._idle_timer.restart()
                    await requests.arrival()
                    in_a_row = 0
                else:
                    in_a_row += 1
                    if in_a_row == _TURN_REQUESTS:  # others have their turn
                        in_a_row = 0
                        await asyncio.sleep(0)
                request = requests.waiting.pop(0)
                if isinstance(request, HttpError):
                    self._send_fault(request)
                    break
                requests.current = request
                if self._unparsed and self._reading is None:
                    self.resume_reading()
                if not await Exchange(listener, self, request, self._task).run():
                    break
                requests.current = None
                del request  # a connection that waits for the next holds no body
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception as error:  # noqa: BLE001  # it ends this connection only
            self._stop_reading()
            self._send_error(failure(error))
        finally:
            requests.current = None
            self._task = None  # which holds what ended it, and that this frame
            self._end()

    def _close_idle(self) -> None:
        """Close a connection that has been idle for long, or whose client has stopped sending."""
        is_busy = self.in_flight or self._heads.is_started
        if self.transport is not None and not (is_busy and self._input is not states.LINGERING):
            self.transport.close()

    def _send_fault(self, fault: HttpError) -> None:
        """Report a request that cannot be parsed, and send the error."""
        error = fault.error
        error.client = self.client.caller.client()
        error.wire_status = fault.status
        request_id = self._server.listener.on_reject(error) or ""
        self._send_error(text_response(fault.status, fault.message, request_id))

    def _send_error(self, response: HttpResponse) -> None:
        """Write an error as the last response."""
        if self.transport is None:
            return
        if self.is_head_sent and self._requests.current is not None:
            self.abort()  # a response that has started must not look complete
            return
        write_response(self.transport, response, keep=False, version=(1, 1))
        end_output(self.transport)

    # -- ending

    def _end(self) -> None:
        """Close, after the client had time to read the response."""
        self._move_input(states.InputEvent.STOP)
        self._requests.drop()
        if self.transport is None or self.transport.is_closing():
            return
        if self._reading is None and not self._unparsed and not self._heads.is_started:
            self.transport.close()
            return
        # The client may still send: a reset would destroy data that it has not read.
        self._reading = None
        self._unparsed = b""
        self._read_on()
        self._move_input(states.InputEvent.LINGER)
        self._idle_timer.end_after(_LINGER_S, _MAX_LINGER_S)

    def announce_close(self) -> None:
        """Send `Connection: close` with the last pending response."""
        self._move(HttpConnectionEvent.ANNOUNCE)

    def drain(self) -> None:
        """Close when idle, or after the last pending response.

        A request that the kernel has received is pending, too: closing would reset it.
        """
        self._move(HttpConnectionEvent.ANNOUNCE)
        transport = self.transport
        if self.in_flight or self._heads.is_started or transport is None:
            return
        if not has_unread(transport.get_extra_info("socket")):
            transport.close()

    def fail_in_flight(self) -> None:
        """End the requests in progress with an error."""
        (self.cancel_exchange or self.abort)()

    def abort(self) -> None:
        """Close at once, without the rest of the output."""
        if self.transport is not None:
            self.transport.abort()
