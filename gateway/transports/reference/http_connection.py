"""ReferenceHttpConnection: one HTTP/1 connection of aiohttp, with what its protocol lacks.

It adds a timeout and a size limit for the head, one error for broken framing in a body, the
detection of clients that have left, errors in the gateway's form, and a drain.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from gateway.concurrency.timeouts import RestartableTimer
from gateway.transports.authentication import peer_of
from gateway.transports.client_shares import NO_CLIENT_SHARES, client_shares
from gateway.transports.connection_count import (
    DESCRIPTORS,
    ConnectionCount,
    client_address,
    connection_refusal,
)
from gateway.transports.contract import ServerLimits
from gateway.transports.http.faults import (
    HttpError,
    connection_refused_response,
    text_response,
)
from gateway.transports.http.half_close import HalfCloseMonitor
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.request_head import (
    Version,
    first_line,
    head_too_large,
    head_too_slow,
    malformed,
    too_many_fields,
)
from gateway.transports.http.response_sender import failure
from gateway.transports.http.response_writer import write_response
from gateway.transports.http.states import (
    BROKEN,
    HALF_CLOSED,
    OPEN,
    TRANSITIONS,
    HttpConnectionEvent,
    HttpConnectionState,
)
from gateway.transports.http.write_pause import WritePause
from gateway.transports.net.refused_connection import refuse_connection
from gateway.transports.net.sockets import has_unread, pause_until_drained, tune
from gateway.transports.reference.http_request import KeepAliveResult

_READ_BYTES = 32 * 1024


class ReferenceHttpConnection(WritePause, RequestHandler):
    """A connection of a listener.

    Args:
        manager: aiohttp's server.
        loop: The event loop.
        listener: The state of the listener.
        count: Counts its connections.
        reserve: Whether it may use the descriptors in reserve.
    """

    def __init__(
        self,
        manager: Any,
        *,
        loop: asyncio.AbstractEventLoop,
        listener: ListenerState,
        count: ConnectionCount,
        reserve: bool = False,
    ) -> None:
        limits = listener.limits
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=limits.keepalive_s,
            tcp_keepalive=False,
            access_log=None,  # type: ignore[arg-type]  # how aiohttp itself turns it off
            lingering_time=1.0,
        )
        # aiohttp's queue of pipelined requests has a fixed length: build its parser again.
        self._max_msg_queue_size = limits.pipelined_requests
        self._msg_queue_resume_size = limits.pipelined_requests // 2
        self._parser = HttpRequestParser(
            self,
            loop,
            _READ_BYTES,
            max_line_size=limits.header_line_bytes,
            max_field_size=limits.header_field_bytes,
            max_headers=limits.header_count,
            payload_exception=RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=limits.pipelined_requests,
        )
        self._limits = limits
        self._count = count
        self._listener = listener
        self._on_reject = listener.on_reject
        self._can_use_reserve = reserve
        self._address: str | None = None
        self._head_timer = RestartableTimer(loop, limits.header_timeout_s, self._head_timed_out)
        self._head_bytes = 0
        self._last_payload: Any = EMPTY_PAYLOAD
        self._half_close_monitor = HalfCloseMonitor(loop, self)
        self.write_paused: asyncio.Event | None = None
        self.responses_sent = 0
        self.is_head_sent = False
        self.state: HttpConnectionState = OPEN
        self.client = NO_CLIENT_SHARES
        self.cancel_exchange: Callable[[], None] | None = None

    @property
    def in_flight(self) -> int:
        """The number of requests without a complete response."""
        return self._request_count - self.responses_sent

    @property
    def request_version(self) -> Version | None:
        """The HTTP version of the request in progress; None without one."""
        request = self._current_request
        return None if request is None else (request.version.major, request.version.minor)

    @property
    def must_close(self) -> bool:
        """Whether the current response is the last."""
        state = self.state
        return self.in_flight <= 1 if state is HALF_CLOSED else state is not OPEN

    def _move(self, event: HttpConnectionEvent) -> None:
        self.state = TRANSITIONS.get((self.state, event), self.state)

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it at once above a limit."""
        sock = transport.get_extra_info("socket")
        address = client_address(transport)
        refusal = connection_refusal(self._count, transport, address, reserve=self._can_use_reserve)
        if refusal is not None:
            self._on_reject(refusal)
            response = connection_refused_response(refusal.message)
            refuse_connection(transport, response, linger=refusal.limit != DESCRIPTORS)
            return
        self._address = address
        self._count.enter(address)
        listener = self._listener
        peer = None if listener.authentication is None else peer_of(transport)
        self.client = client_shares(address, listener.slots, listener.budget, peer)
        tune(sock)
        super().connection_made(transport)
        pause_until_drained(transport)
        self._head_timer.start()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection; aiohttp cancels its tasks."""
        self._move(HttpConnectionEvent.LOSE)
        if self._address is not None:
            self._count.leave(self._address)
            self._address = None
        self._head_timer.stop()
        self._half_close_monitor.close()
        if self._manager is None:
            BaseProtocol.connection_lost(self, exc)
            return
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, watching how long and how big the head of a request grows."""
        if self.state is BROKEN:
            return
        count_before = self._request_count
        in_body = not self._last_payload.is_eof()
        super().data_received(data)
        if self._request_count != count_before:
            self._head_timer.stop()
            self._head_bytes = 0
            self._note_messages(in_body)
        elif data and not in_body and self._parser is not None:
            self._head_timer.start()
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.header_total_bytes:
                self._fail_head()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # aiohttp's says None
        """Keep a half-closed connection open while requests wait for their responses."""
        whole = self.in_flight > 0 and self._last_payload.is_eof()
        if not whole or self.transport is None or self.ssl_context is not None:
            return None
        self._move(HttpConnectionEvent.HALF_CLOSE)
        self._head_timer.stop()
        self._half_close_monitor.watch()
        return True

    # -- heads

    def _note_messages(self, in_body: bool) -> None:
        message, payload = self._messages[-1]
        if not isinstance(message, _ErrInfo):
            self._last_payload = payload
            return
        self._move(HttpConnectionEvent.BREAK)
        if in_body:
            # The framing of a body is broken: its reader gets the error and responds.
            self._messages.pop()
            self._request_count -= 1
            self._last_payload.set_exception(RequestPayloadError(first_line(message.message)))

    def _fail_head(self) -> None:
        self._move(HttpConnectionEvent.BREAK)
        fault = LineTooLong(b"", self._limits.header_total_bytes)
        info = _ErrInfo(status=400, exc=fault, message=fault.message)
        self._request_count += 1
        self._messages.append((info, EMPTY_PAYLOAD))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _head_timed_out(self) -> None:
        self._report(head_too_slow(self._limits))
        if self.in_flight:
            self._move(HttpConnectionEvent.BREAK)  # handle complete requests, then close
        elif self.transport is not None:
            self.transport.abort()

    # -- responses of the gateway

    def _report(self, fault: HttpError, status: int | None = None) -> str:
        """Report a request that reached no frontend; return its request id.

        Args:
            fault: Why.
            status: That of the response; None for no response.
        """
        error = fault.error
        error.wire_status = status
        error.client = self.client.caller.client()
        return self._on_reject(error) or ""

    def handle_error(
        self,
        request: BaseRequest,  # noqa: ARG002
        status: int = 500,  # noqa: ARG002
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> StreamResponse:
        """Respond to a request that cannot be parsed, or to a bug; then close."""
        if isinstance(exc, HttpProcessingError):
            self.responses_sent += 1
            self.is_head_sent = False
            fault = _head_fault(exc, self._limits)
            request_id = self._report(fault, fault.status)
            response = text_response(fault.status, fault.message, request_id)
        else:
            response = failure(exc)
        if self.is_head_sent or self.transport is None:
            self.abort()  # a response that has started must not look complete
            raise ConnectionError("a response has begun already")
        self._move(HttpConnectionEvent.BREAK)
        write_response(self.transport, response, keep=False, version=(1, 1))
        sent: Any = KeepAliveResult(keep_alive=False)
        return sent  # type: ignore[no-any-return]  # has what aiohttp asks of a response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a bug, but not broken framing after the response."""
        if not isinstance(kw.get("exc_info"), RequestPayloadError):
            super().log_exception(*args, **kw)

    def announce_close(self) -> None:
        """Send `Connection: close` with the last pending response."""
        self._move(HttpConnectionEvent.ANNOUNCE)

    def drain(self) -> None:
        """Close when idle, or after the last pending response.

        A request that the kernel has received is pending, too: closing would reset it.
        """
        self.announce_close()
        transport = self.transport
        if self.in_flight or self._head_bytes or transport is None:
            return
        if not has_unread(transport.get_extra_info("socket")):
            self.force_close()

    def fail_in_flight(self) -> None:
        """End the requests in progress with an error."""
        if self.cancel_exchange is not None:
            self.cancel_exchange()
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once, without the rest of the output."""
        if self.transport is not None:
            self.transport.abort()


def _head_fault(error: HttpProcessingError, limits: ServerLimits) -> HttpError:
    if isinstance(error, LineTooLong):
        return head_too_large(limits)
    if "Too many headers" in error.message:
        return too_many_fields(limits)
    return malformed(error.message)
