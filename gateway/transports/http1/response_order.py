"""OrderedResponses: what an HTTP/1 server connection sends, waits for and closes after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.concurrency.timeouts import RestartableTimer
from gateway.ir.errors import Overloaded
from gateway.transports.client_shares import NO_CLIENT_SHARES
from gateway.transports.connection_count import (
    ConnectionCount,
    connection_refusal,
)
from gateway.transports.http.faults import (
    HttpError,
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
from gateway.transports.http1.head_reader import READ_BYTES, HeadReader, RequestHeadCache
from gateway.transports.http1.request import BufferedRequest, ReceivingRequest
from gateway.transports.http1.states import READING, UNDECIDED, InputState
from gateway.transports.net.sockets import (
    end_output,
)
from gateway.wire.http import HttpResponse

_LINGER_S = 1.0
"""A client that has its last response may still send: what arrives is dropped until it pauses."""

_MAX_LINGER_S = 10.0


class Http1ServerState:
    """The state that the connections of a server share.

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

    def refusal(self, transport: Any, address: str) -> Overloaded | None:
        """Return the error for one more connection from *address*; None if there is room."""
        refusal = connection_refusal(self.count, transport, address, reserve=self.can_use_reserve)
        if refusal is not None:
            self.listener.on_reject(refusal)
        return refusal


class OrderedResponses(WritePause, asyncio.BufferedProtocol):
    """The output and the times of a connection, with its arguments."""

    def __init__(self, server: Http1ServerState, loop: asyncio.AbstractEventLoop) -> None:
        limits = server.listener.limits
        self._server = server
        self._loop = loop
        self._limits = limits
        self._heads = HeadReader(limits, server.head_cache)
        self._queue: list[BufferedRequest | HttpError] = []  # short, and smaller than a deque
        self._current: BufferedRequest | None = None
        self._reading: ReceivingRequest | None = None
        self._unparsed = b""
        self._is_paused = False
        self._input: InputState = READING if server.http2 is None else UNDECIDED
        self._successor: asyncio.Protocol | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._head_timer = RestartableTimer(loop, limits.header_timeout_s, self._head_timed_out)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
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
        return len(self._queue) + (self._current is not None)

    @property
    def request_version(self) -> Version | None:
        """The HTTP version of the request in progress; None without one."""
        return None if self._current is None else self._current.version

    @property
    def must_close(self) -> bool:
        """Whether the current response is the last."""
        return self.state is not OPEN and not self._queue

    def _move(self, event: HttpConnectionEvent) -> None:
        self.state = TRANSITIONS.get((self.state, event), self.state)

    def _move_input(self, event: states.InputEvent) -> None:
        self._input = states.TRANSITIONS.get((self._input, event), self._input)

    def _stop_reading(self) -> None:
        """Read nothing more after a request that failed; handle complete requests."""
        self._move(HttpConnectionEvent.BREAK)
        self._move_input(states.InputEvent.STOP)

    def _read_on(self) -> None:
        if self._is_paused and self.transport is not None and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def _head_timed_out(self) -> None:
        error = head_too_slow(self._limits).error
        error.client = self.client.caller.client()
        self._server.listener.on_reject(error)
        if self.in_flight:
            self._stop_reading()
        elif self.transport is not None:
            self.transport.abort()

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _look_at_idle(self) -> None:
        self._idle_timer = None
        if self.transport is None or self.in_flight or self._heads.is_started:
            return  # it is armed again when the connection idles again
        left_s = self._idle_since + self._limits.keepalive_s - self._loop.time()
        if left_s <= 0:
            self.transport.close()
        else:
            self._idle_timer = self._loop.call_later(left_s, self._look_at_idle)

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
        if self.is_head_sent and self._current is not None:
            self.abort()  # a response that has started must not look complete
            return
        write_response(self.transport, response, keep=False, version=(1, 1))
        end_output(self.transport)

    def _end(self) -> None:
        """Close, after the client had time to read the response."""
        self._move_input(states.InputEvent.STOP)
        self._forget()
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
        self._idle_since = self._loop.time()
        self._stop_idle_timer()
        self._close_after_pause(self._idle_since + _MAX_LINGER_S)

    def _close_after_pause(self, latest: float) -> None:
        """Close once the client has stopped sending, at *latest* on the clock of the loop."""
        self._idle_timer = None
        if self.transport is None:
            return
        left_s = min(self._idle_since + _LINGER_S, latest) - self._loop.time()
        if left_s <= 0:
            self.transport.close()
        else:
            self._idle_timer = self._loop.call_later(left_s, self._close_after_pause, latest)

    def _forget(self) -> None:
        """Drop requests that will not be handled."""
        for request in self._queue:
            if isinstance(request, BufferedRequest) and request.reservation is not None:
                request.reservation.close()
        self._queue.clear()

    def announce_close(self) -> None:
        """Send `Connection: close` with the last pending response."""
        self._move(HttpConnectionEvent.ANNOUNCE)

    def abort(self) -> None:
        """Close at once, without the rest of the output."""
        if self.transport is not None:
            self.transport.abort()
