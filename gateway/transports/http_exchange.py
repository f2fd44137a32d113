"""One request and its answer: check the head, read the body, ask the frontend, write.

The body's bytes are held against the budget from before they are read until the answer is in the
kernel; the place among the requests in flight is taken only once the body is whole, so that slow
senders hold none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

import structlog

from gateway.ir.errors import Cancelled, ErrorCode, GatewayError, InternalError, Unavailable
from gateway.transports.admission import Lease
from gateway.transports.base import HttpFrontend, ask_early
from gateway.transports.coding import ACCEPTED, coding_of, compress
from gateway.transports.faults import HttpFault, plain
from gateway.transports.http_answers import (
    write_end,
    write_part,
    write_response,
    write_stream_head,
)
from gateway.transports.http_body import EMPTY, check_declared, undo_coding
from gateway.transports.http_early import Arrival, begins_with, whole_of
from gateway.transports.http_head import Head
from gateway.transports.http_sides import Connection, Incoming, Listener
from gateway.transports.waiting import NotTaken, flushed
from gateway.wire.http import Headers, HttpRequest, HttpResponse

log = structlog.get_logger(__name__)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def failure(error: BaseException | None) -> HttpResponse:
    """Return the answer for what went wrong in an exchange past all that it foresees; log it."""
    if isinstance(error, GatewayError):
        log.warning("stream cut", code=error.code.value, error=error.message)
        return plain(500, error.message)
    log.error("internal error", exc_info=error)
    return plain(500, "internal error of the gateway")


class Exchange:
    """A request of a connection, until its answer is written.

    Args:
        listener: Of the server.
        connection: Where it came from.
        incoming: The request.
        task: What will run it.
    """

    def __init__(
        self,
        listener: Listener,
        connection: Connection,
        incoming: Incoming,
        task: asyncio.Task[Any] | None,
    ) -> None:
        self._listener = listener
        self._connection = connection
        self._incoming = incoming
        self._version = incoming.version
        self._head: Head | None = None
        self._task = task
        self._given_up = False
        self._frontend: HttpFrontend | None = None
        self._close = incoming.closes
        self._arrival: Arrival | None = None
        self._drops = False
        self._fault: HttpFault | None = None

    async def run(self) -> bool:
        """Answer the request, whatever it is; return whether the connection goes on."""
        lease = Lease(self._listener.budget, self._listener.limits.queue_wait_s)
        self._connection.head_sent = False
        self._connection.give_up = self._give_up
        try:
            try:
                await self._answer(lease)
                if self._arrival is not None and self._drops:
                    await self._arrival.drop()
            except HttpFault as fault:
                await self._say(fault)
            except asyncio.CancelledError:
                if not self._ends_in_words():
                    raise
                await self._last_words()
        except NotTaken as error:
            self._listener.refused(Cancelled(str(error), limit="write_idle_timeout_s"))
            self._close = True
        except OSError:  # the client has left: there is nobody to tell
            self._connection.cut()
            self._close = True
        finally:
            self._connection.give_up = None
            # Its own cancellation would keep it, and the body, till the next collection.
            self._task = None
            self._connection.answered += 1
            if self._arrival is not None:
                self._arrival.close()
                self._listener.early.release()
            lease.close()
        return not self._close

    def _ends_in_words(self) -> bool:
        """Return whether a request that was cancelled is still answered; if not, it is cut."""
        wanted = self._given_up or self._fault is not None
        if not wanted or self._connection.head_sent or self._task is None:
            self._connection.cut()
            return False
        self._task.uncancel()
        return True

    async def _last_words(self) -> None:
        if self._fault is not None:
            await self._say(self._fault)
        else:
            await self._refuse(Unavailable("the gateway is shutting down"))

    async def _say(self, fault: HttpFault) -> None:
        self._listener.refused(fault.error)
        self._close |= fault.close
        await self._send(fault.response)

    def _broken(self, fault: HttpFault) -> None:
        """End a request, begun already, whose body comes too slowly."""
        if self._fault is None and self._task is not None:
            self._fault = fault
            if self._connection.head_sent:
                self._listener.refused(fault.error)
            self._task.cancel()

    def _give_up(self) -> None:
        self._given_up = True
        if self._task is not None:
            self._task.cancel()

    async def _answer(self, lease: Lease) -> None:
        limits = self._listener.limits
        head = self._head = self._incoming.head(limits)
        frontend = self._frontend = self._listener.find(head.path)
        now = time.monotonic()
        try:
            body = self._body_here(head, lease)
            if body is None:
                body = await self._begin(head, lease)
            if body is None:
                body = await self._body(head, lease)
            if not self._listener.slots.take():
                await self._listener.slots.acquire(limits.queue_wait_s)
        except GatewayError as error:
            await self._refuse(error)
            return
        deadline = None if head.timeout_s is None else now + head.timeout_s
        wire = HttpRequest(
            head.method, head.path, head.query, head.headers, (body,), deadline, self._arrival
        )
        try:
            single: Any = getattr(frontend, "ask", None)
            if wire.rest is not None:
                found = await ask_early(frontend, wire, partial(whole_of, wire))
            else:
                found = frontend(wire) if single is None else await single(wire)
            if isinstance(found, HttpResponse):
                await self._send(found)
            else:
                await self._relay(found)
        finally:
            self._listener.slots.release()

    def _body_here(self, head: Head, lease: Lease) -> memoryview | None:
        """Return a body that is here as it is to be, and has room; None for any other."""
        length = head.length
        if length is None:
            return None if head.chunked else EMPTY
        if head.coded or length > self._listener.limits.message_bytes:
            return None
        body = self._incoming.here
        return body if body is not None and lease.take_in_turn(length) else None

    async def _begin(self, head: Head, lease: Lease) -> memoryview | None:
        """Return the beginning of a body that will be passed on as it comes; None to read it."""
        limits, incoming = self._listener.limits, self._incoming
        if self._frontend is None or incoming.whole:
            return None
        start = begins_with(self._frontend, head, limits)
        if start is None or head.length is None or not self._listener.early.take():
            return None
        self._continue(head)
        try:
            self._arrival = await incoming.arrive(head.length, start, limits, lease, self._broken)
        finally:
            if self._arrival is None:
                self._listener.early.release()
        return None if self._arrival is None else self._arrival.head

    def _continue(self, head: Head) -> None:
        if head.expects and not self._incoming.whole and self._connection.transport is not None:
            self._connection.transport.write(CONTINUE)

    async def _body(self, head: Head, lease: Lease) -> memoryview:
        limits = self._listener.limits
        incoming = self._incoming
        codings = head.all("content-encoding") if head.coded else []
        coding_of(codings)  # an unknown one is refused before its bytes are read
        check_declared(head.length, limits)
        self._continue(head)
        if head.length is not None:
            await lease.grow(head.length)
        body = await incoming.body(head.length, limits, lease)
        return await undo_coding(body, codings, limits, lease) if head.coded else body

    async def _relay(self, found: AsyncGenerator[HttpResponse, None]) -> None:
        """Relay the frontend's answers: one of known length, or many in chunks.

        Which it is shows when the frontend is asked for the second: a unary one ends without
        waiting. If it waits, the first goes out as the beginning of a stream.
        """
        loop = asyncio.get_running_loop()
        async with aclosing(found) as answers:
            first = await anext(answers, None)
            if first is None:
                await self._refuse(InternalError("a stream began with nothing to send"))
                return
            begin = loop.call_soon(self._begin_stream, first)
            try:
                part = await anext(answers, None)
            finally:
                begin.cancel()
            if part is None and not self._connection.head_sent:
                await self._send(first)
                return
            if not self._connection.head_sent:
                self._begin_stream(first)
            while part is not None:
                self._write_part(part)
                await self._flush()
                part = await anext(answers, None)
        transport = self._connection.transport
        if transport is not None and self._incoming.method != "HEAD":
            write_end(transport, self._version)
        await self._flush()

    def _begin_stream(self, first: HttpResponse) -> None:
        transport = self._connection.transport
        if transport is None:
            return
        self._close |= self._connection.must_close or self._version < (1, 1)
        self._connection.head_sent = True
        write_stream_head(transport, first, keep=not self._close, version=self._version)
        self._write_part(first)

    def _write_part(self, part: HttpResponse) -> None:
        transport = self._connection.transport
        if transport is not None and self._incoming.method != "HEAD":
            write_part(transport, part.body, self._version)

    async def _refuse(self, error: GatewayError) -> None:
        """Answer with *error*, of our own making, in the protocol's form."""
        if self._frontend is None:
            fault = HttpFault(503, error.message)
            self._listener.refused(error)
            await self._send(fault.response)
            return
        response = self._frontend.refuse(error)
        extra: tuple[tuple[str, str], ...] = ()
        if error.code is ErrorCode.OVERLOADED:
            extra = (("Retry-After", "1"),)
        elif error.code is ErrorCode.UNSUPPORTED:
            extra = (("Accept-Encoding", ACCEPTED),)
        headers = Headers((*response.headers.pairs, *extra))
        await self._send(HttpResponse(response.status, headers, response.body))

    async def _send(self, response: HttpResponse) -> None:
        head = self._head
        varies = head is not None and response.compressible and bool(response.body)
        if varies and head is not None and head.wants is not None:
            response = await _coded(response, head.wants)
        transport = self._connection.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        unread = not self._incoming.whole
        self._close |= self._connection.must_close
        self._drops = unread and self._arrival is not None and not self._close
        self._close |= unread and not self._drops
        self._connection.head_sent = True
        write_response(
            transport,
            response,
            keep=not self._close,
            version=self._version,
            varies=varies,
            head_only=self._incoming.method == "HEAD",
        )
        if not self._connection.taken.is_set():
            await self._flush()
        if unread and not self._drops and transport.can_write_eof():
            # The client, which is still sending, sees the answer and its end; the connection reads
            # on for a moment, so that no reset destroys what is on its way.
            transport.write_eof()

    async def _flush(self) -> None:
        connection = self._connection
        if connection.transport is None or not connection.taken.is_set():
            idle_s = self._listener.limits.write_idle_timeout_s
            await flushed(connection.transport, connection.taken, idle_s)


async def _coded(response: HttpResponse, coding: str) -> HttpResponse:
    body = (await compress(coding, response.body),)
    headers = Headers((*response.headers.pairs, ("Content-Encoding", coding)))
    return HttpResponse(response.status, headers, body)
