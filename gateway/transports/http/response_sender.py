"""ResponseSender: sends the response of an HTTP exchange, and holds its bytes until it is sent."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import structlog

from gateway.ir import errors
from gateway.telemetry.error_texts import error_text
from gateway.transports.authentication import challenge
from gateway.transports.contract import HttpFrontend
from gateway.transports.http.content_coding import ACCEPTED, compress
from gateway.transports.http.cut_through import OpenBodyStream
from gateway.transports.http.faults import HttpError, text_response
from gateway.transports.http.interfaces import HttpConnection, ListenerState, RequestReader
from gateway.transports.http.request_head import Head
from gateway.transports.http.response_writer import (
    write_end,
    write_part,
    write_response,
    write_stream_head,
)
from gateway.transports.net.write_drain import SlowReaderError, drain_writes
from gateway.transports.read_ahead import ReadAhead
from gateway.transports.reservation import (
    RESPONSE_PATIENCE_S,
    RESPONSE_UNCOUNTED_BYTES,
    Reservation,
    no_memory,
)
from gateway.transports.reserved_buffer import uncounted_bytes
from gateway.wire.errors import HTTP_STATUS
from gateway.wire.http import NO_HEADERS, ExtendedHeaders, Headers, HttpResponse, size_of
from gateway.wire.request_id import header_request_id

log = structlog.get_logger(__name__)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def write_continue(transport: asyncio.Transport) -> None:
    """Send "100 Continue" to a client that waits for it."""
    transport.write(CONTINUE)


def failure(error: BaseException | None) -> HttpResponse:
    """Log an unexpected error, and return the response to it."""
    if isinstance(error, errors.GatewayError):
        log.warning("stream aborted", code=error.code.value, error=error_text(error))
        return text_response(500, error.message)
    log.error("internal error", exc_info=error)
    return text_response(500, "internal error of the gateway")


async def _coded(response: HttpResponse, coding: str) -> HttpResponse:
    body = (await compress(coding, response.body),)
    headers = ExtendedHeaders(response.headers, (("Content-Encoding", coding),))
    return HttpResponse(response.status, headers, body, request_id=response.request_id)


class ResponseSender(ABC):
    """The output of an exchange, which has all attributes."""

    __slots__ = (
        "_arrival",
        "_body",
        "_connection",
        "_deadline",
        "_elements",
        "_fault",
        "_frontend",
        "_handle",
        "_has_slot",
        "_head",
        "_held",
        "_incoming",
        "_is_cancelled",
        "_listener",
        "_reservation",
        "_should_close",
        "_should_drop",
        "_task",
    )

    _listener: ListenerState
    _connection: HttpConnection
    _incoming: RequestReader
    _task: asyncio.Task[Any] | None
    _should_close: bool
    _head: Head | None
    _frontend: HttpFrontend | None
    _deadline: float | None
    _body: memoryview | None
    _held: int
    _has_slot: bool
    _reservation: Reservation | None
    _arrival: OpenBodyStream | None
    _should_drop: bool
    _fault: HttpError | None

    # The functions that write a response. HTTP/2 replaces them.
    write_response = staticmethod(write_response)
    write_stream_head = staticmethod(write_stream_head)
    write_part = staticmethod(write_part)
    write_end = staticmethod(write_end)
    write_continue = staticmethod(write_continue)

    def _on_disconnect(self, error: OSError) -> None:
        """Note that the client has left."""
        self._should_close = True
        if isinstance(error, SlowReaderError):
            self._report(errors.Cancelled(str(error), limit=error.limit))
        else:
            self._connection.abort()

    async def _send_error(self, fault: HttpError) -> None:
        request_id = self._report(fault.error, fault.status)
        self._should_close |= fault.should_close
        await self._send(text_response(fault.status, fault.message, request_id))

    def _report(self, error: errors.GatewayError, status: int | None = None) -> str:
        """Report a request that reached no frontend; return its request id.

        Args:
            error: Why.
            status: That of the response; None for no response.
        """
        self._identify(error)
        error.wire_status = status
        return self._listener.on_reject(error) or ""

    def _identify(self, error: errors.GatewayError) -> None:
        """Add the client, the headers and the request id to *error*, as far as they are known."""
        headers = NO_HEADERS if self._head is None else self._head.headers
        error.client = self._connection.client.caller.client(headers)
        error.metadata = headers.lowered
        error.request_id = header_request_id(headers)

    def _on_body_error(self, fault: HttpError) -> None:
        """End a request whose body arrives too slowly."""
        if self._fault is None and self._task is not None:
            self._fault = fault
            if self._connection.is_head_sent:
                self._report(fault.error)
            self._task.cancel()

    def _reserve(self) -> Reservation:
        """Return what holds the bytes of this request, and then of its response."""
        self._reservation = self._reservation_of_client()
        return self._reservation

    def _reservation_of_client(self) -> Reservation:
        listener, memory = self._listener, self._connection.client.memory
        return Reservation(listener.budget, listener.limits.queue_wait_s, memory, self._deadline)

    def _abort_stalled(self, error: errors.Overloaded) -> None:
        """End a request whose body does not arrive, or a response that the client does not read."""
        if self._connection.is_head_sent:
            self._report(error)
            self._connection.abort()
        else:
            self._on_body_error(HttpError(503, error.message, limit=error.limit, close=True))

    async def _relay(self, found: AsyncGenerator[HttpResponse, None]) -> None:
        """Send the frontend's responses: one of known length, or several in chunks.

        A unary response ends the generator without waiting.  If the generator waits for a second
        one, the first is sent as the beginning of a stream.
        """
        loop = asyncio.get_running_loop()
        ahead = ReadAhead(
            self._reservation_of_client(),
            self._is_blocked,
            self._flush,
            self._unsent_bytes,
            self._abort_stalled,
        )
        async with ahead:
            async with aclosing(found) as answers:
                first = part = await anext(answers, None)
                if first is not None:
                    begin = loop.call_soon(self._begin_stream, first)
                    try:
                        part = await anext(answers, None)
                    finally:
                        begin.cancel()
                if part is not None and first is not None and not self._connection.is_head_sent:
                    self._begin_stream(first)
                while part is not None:
                    await ahead.admit(size_of(part.body), part.body)
                    self._write_part(part)
                    ahead.written()
                    part = await anext(answers, None)
            # All is computed: only bytes wait for the client from here on.
            self._release_slot()
            if self._connection.is_head_sent:
                transport = self._connection.transport
                if transport is not None and self._incoming.method != "HEAD":
                    self.write_end(transport, self._incoming.version)
                return
        if first is None:
            await self._refuse(errors.InternalError("a stream began with nothing to send"))
        else:
            await self._send(first)

    def _begin_stream(self, first: HttpResponse) -> None:
        transport = self._connection.transport
        if transport is None:
            return
        self._should_close |= self._connection.must_close or self._incoming.version < (1, 1)
        self._connection.is_head_sent = True
        version = self._incoming.version
        self.write_stream_head(transport, first, keep=not self._should_close, version=version)
        self._write_part(first)

    def _write_part(self, part: HttpResponse) -> None:
        transport = self._connection.transport
        if transport is not None and self._incoming.method != "HEAD":
            self.write_part(transport, part.body, self._incoming.version)

    def _release_slot(self) -> None:
        """Release the slot of the request, whose response is computed."""
        if self._has_slot:
            self._has_slot = False
            self._listener.slots.release(1, self._connection.client.slots)

    def _is_blocked(self) -> bool:
        return self._connection.write_paused is not None

    def _unsent_bytes(self) -> int:
        transport = self._connection.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    async def _refuse(self, error: errors.GatewayError) -> None:
        """Send *error* in the protocol's form."""
        if self._frontend is None:
            status = HTTP_STATUS[errors.ErrorCode.UNAVAILABLE]
            await self._send(text_response(status, error.message, self._report(error, status)))
            return
        self._identify(error)
        response = self._frontend.reject(error)
        headers = response.headers
        hints = [hint for hint in self._hints(error) if headers.get(hint[0].lower()) is None]
        if hints:
            headers = Headers((*headers.pairs, *hints))
        request_id = response.request_id
        await self._send(
            HttpResponse(response.status, headers, response.body, request_id=request_id)
        )

    @staticmethod
    def _hints(error: errors.GatewayError) -> list[tuple[str, str]]:
        """Return the header that tells a client what to do about *error*; or none."""
        if error.code is errors.ErrorCode.OVERLOADED:
            return [("Retry-After", "1")]
        if error.code is errors.ErrorCode.UNSUPPORTED:
            return [("Accept-Encoding", ACCEPTED)]
        if isinstance(error, errors.Unauthenticated):
            return [("WWW-Authenticate", challenge(error))]
        return []

    async def _send(self, response: HttpResponse) -> None:
        body = response.body
        if (len(body[0]) if len(body) == 1 else size_of(body)) > RESPONSE_UNCOUNTED_BYTES:
            size = uncounted_bytes(body)
            if not self._hold_response(size):
                await self._refuse(no_memory(size))
                return
        head = self._head
        varies = response.is_compressible and head is not None and bool(response.body)
        if varies and head is not None and head.wants is not None:
            response = await _coded(response, head.wants)
        if not self._write(response, varies):
            await self._finish_write()

    @abstractmethod
    def _write(self, response: HttpResponse, varies: bool) -> bool:
        """Write a response as it is; return False if `_finish_write` must follow."""

    async def _finish_write(self) -> None:
        """Wait until a response is sent, and end the output if its request is still arriving."""
        connection = self._connection
        unread = not self._incoming.is_complete
        if connection.write_paused is not None:
            await self._flush(self._reservation if self._arrival is None else None)
        transport = connection.transport
        if unread and not self._should_drop and transport is not None and transport.can_write_eof():
            # The client is still sending.  It sees the response and its end; the connection reads
            # for a moment, so that no reset destroys the response.
            transport.write_eof()

    def _hold_response(self, size: int) -> bool:
        """Reserve memory for a response instead of its request; return whether there is enough."""
        held = self._reservation
        if held is None:
            held = self._reserve()
        if self._held:
            self._listener.budget.release(self._held, held.share)
            self._held = 0
        if self._arrival is None:
            held.release(held.size_bytes)
        self._body = None
        self._incoming.forget()
        return held.try_grow_response(size)

    async def _flush(self, held: Reservation | None = None) -> None:
        """Wait until the write buffer is empty; *held* is the reservation of its bytes."""
        connection = self._connection
        transport = connection.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        if held is not None and connection.write_paused is not None:
            held.watch_progress(
                transport.get_write_buffer_size, self._abort_stalled, RESPONSE_PATIENCE_S
            )
        while connection.write_paused is not None:
            await drain_writes(connection.transport, connection.write_paused, self._listener.limits)
