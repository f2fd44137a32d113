"""HttpClient of the native implementation: a pool of HTTP/1.1 connections to one upstream.

Bodies are sent as the buffers they are, with their exact length.  Responses are returned complete
or in pieces, within the limits.  There are no redirects, cookies or proxies.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from time import monotonic
from types import CoroutineType
from typing import Any

from gateway.accelerator import accelerated
from gateway.concurrency.timeouts import TimerStep
from gateway.ir.errors import Unavailable, UpstreamProtocolError
from gateway.transports.contract import Decode, accepted
from gateway.transports.http.client_rules import (
    IDEMPOTENT,
    header_lines,
    is_head_unread,
)
from gateway.transports.http.content_coding import coding_of
from gateway.transports.http1.client_connection import Http1ClientConnection
from gateway.transports.http1.client_pool import Http1ConnectionPool
from gateway.transports.http1.response_reader import ResponseReader
from gateway.transports.net.write_drain import deadline_scope
from gateway.wire.http import Buffer, HttpRequest, HttpResponse, size_of

_JOIN_BYTES = 64 * 1024
# A server may close an idle connection.  A streaming body cannot be sent twice, so it is sent only
# on a connection that has been idle for less than this.
_MAX_IDLE_FOR_STREAMING_S = 1.0
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

Response = asyncio.Future[HttpResponse | None]


class HttpClient(Http1ConnectionPool):
    """A pool of HTTP/1.1 connections to one upstream.

    Args:
        url: "http://host:port", or https.  A path becomes the prefix of the path of each request.
        limits: The limits of the upstream.
        tls: The context of handshakes of https; None to trust what the system trusts.
        budget: The memory budget for responses.
        address: IP address of the host; "" to look it up.

    Raises:
        ValueError: *url* is not an http or https URL with a host.
    """

    async def send(
        self,
        wire: HttpRequest,
        /,
        *,
        deadline: float | None,
        decode: Decode[HttpResponse] | None = None,
    ) -> Any:
        """Send one request and return its complete response; see `contract.Client`."""
        sent = self._send_at_once(wire, deadline)
        if sent is None:
            return await self._send_after_wait(wire, deadline, decode)
        # The usual case.  It needs no timeout for its task: the timer wheel notifies the connection
        # at the deadline.
        connection, waiter, step = sent
        try:
            try:
                found = await waiter or connection.response_reader()
            except Unavailable:
                if not self._is_unread(connection, wire):
                    raise
                return await self._send_again(wire, deadline, decode)
            response = (
                await self._plain(found, deadline) if isinstance(found, ResponseReader) else found
            )
            if decode is None:
                return response
            reply = decode(response)
            return await reply if type(reply) is CoroutineType else reply
        except UpstreamProtocolError:
            connection.mark_unusable()
            raise
        finally:
            self._end_exchange(connection, step)

    async def _plain(self, reader: ResponseReader, deadline: float | None) -> HttpResponse:
        """Return a complete response without its content coding."""
        head, body = reader.head, reader.body()
        if head.codings:
            async with deadline_scope(deadline, self._peer.name):
                body = await self._peer.decode_body(body, head.codings)
        return HttpResponse(head.status, head.headers, (body,))

    @accelerated
    def _send_at_once(
        self, wire: HttpRequest, deadline: float | None
    ) -> tuple[Http1ClientConnection, Response, TimerStep | None] | None:
        """Send *wire* on the connection used last; return None if that needs waiting.

        Pass the result to `_end_exchange`, except for the future of the response.

        Raises:
            DeadlineExceeded: The deadline has passed.
        """
        now = monotonic()
        if deadline is not None and deadline <= now:
            raise self._peer.late()
        idle = self._idle
        if wire.body_stream is not None or not (
            idle and self._is_fresh(idle[-1], now, self._peer.reuse_s)
        ):
            return None
        left_s = None if deadline is None else deadline - now
        buffers = request_buffers(wire, self._prefix, self._line_end, left_s)
        if not self._slots.try_acquire():
            return None
        connection = idle.pop()
        step = None if deadline is None else self._wheel.schedule(connection, deadline)
        try:
            return connection, connection.exchange(wire.method, buffers), step
        except BaseException:
            self._end_exchange(connection, step)
            raise

    @accelerated
    def _end_exchange(self, connection: Http1ClientConnection, step: TimerStep | None) -> None:
        """Return the connection of `_send_at_once` to the pool, and release its slot."""
        if step is not None:
            step.discard(connection)
        self._put_back(connection)
        self._slots.release()

    async def _send_after_wait(
        self, wire: HttpRequest, deadline: float | None, decode: Decode[HttpResponse] | None
    ) -> Any:
        """Send *wire* once there is a slot and a connection for it; return its response."""
        await self._enter(deadline)
        try:
            async with deadline_scope(deadline, self._peer.name):
                connection, reader = await self._exchange(wire, deadline, streamed=False)
            return await self._accepted(connection, reader, deadline, decode)
        finally:
            self._slots.release()

    async def _send_again(
        self, wire: HttpRequest, deadline: float | None, decode: Decode[HttpResponse] | None
    ) -> Any:
        """Send *wire* a second and last time; return its response."""
        async with deadline_scope(deadline, self._peer.name):
            connection, reader = await self._exchange_anew(wire, deadline, streamed=False)
        return await self._accepted(connection, reader, deadline, decode)

    async def _accepted(
        self,
        connection: Http1ClientConnection,
        reader: ResponseReader,
        deadline: float | None,
        decode: Decode[HttpResponse] | None,
    ) -> Any:
        """Return a complete response, or what *decode* makes of it; release the connection."""
        try:
            response = await self._plain(reader, deadline)
            return response if decode is None else await accepted(response, decode)
        except UpstreamProtocolError:
            connection.mark_unusable()
            raise
        finally:
            self._put_back(connection)

    async def stream(
        self, wire: HttpRequest, /, *, deadline: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """Send one request and yield its response in pieces, at least one."""
        await self._enter(deadline)
        try:
            async with deadline_scope(deadline, self._peer.name):
                connection, reader = await self._exchange(wire, deadline, streamed=True)
            try:
                status, headers = reader.head.status, reader.head.headers
                if coding_of(reader.head.codings) is not None:
                    raise self._peer.broken("a stream with a content coding, not requested")
                yielded = False
                while reader.pieces or not reader.is_done:
                    if not reader.pieces:
                        async with deadline_scope(deadline, self._peer.name):
                            await connection.more()
                        continue
                    yield HttpResponse(status, headers, (reader.pieces.popleft(),))
                    yielded = True
                if not yielded:
                    yield HttpResponse(status, headers, (b"",))
            finally:
                self._put_back(connection)
        finally:
            self._slots.release()

    async def _exchange(
        self, wire: HttpRequest, deadline: float | None, *, streamed: bool
    ) -> tuple[Http1ClientConnection, ResponseReader]:
        """Send *wire*, a second time where that is safe; return its response.

        The response is complete, or, if it is streamed, has its head.
        """
        idle_s = self._peer.idle_s(wire.method)
        if wire.body_stream is not None:
            idle_s = min(idle_s, _MAX_IDLE_FOR_STREAMING_S)
        connection = await self._connection(idle_s)
        reused = connection.uses > 0
        try:
            reader = self._write(connection, wire, deadline, streamed=streamed)
            while not (reader.is_done or (streamed and reader.has_head)):
                await connection.more()
        except Unavailable:
            unread = self._is_unread(connection, wire)
            self._put_back(connection)
            if not (reused and unread):
                raise
        except BaseException:
            self._put_back(connection)
            raise
        else:
            return connection, reader
        return await self._exchange_anew(wire, deadline, streamed=streamed)

    async def _exchange_anew(
        self, wire: HttpRequest, deadline: float | None, *, streamed: bool
    ) -> tuple[Http1ClientConnection, ResponseReader]:
        """Send *wire* a second and last time, on a new connection."""
        connection = await self._connect()
        try:
            reader = self._write(connection, wire, deadline, streamed=streamed)
            while not (reader.is_done or (streamed and reader.has_head)):
                await connection.more()
        except BaseException:
            self._put_back(connection)
            raise
        return connection, reader

    def _is_unread(self, connection: Http1ClientConnection, wire: HttpRequest) -> bool:
        """Return whether a request that went wrong may be sent again (RFC 9110, 9.2.2).

        A reset says nothing: a server that has read a request and then fails may reset as well.  A
        server that closed before the head arrived cannot have read it.
        """
        if wire.body_stream is not None and wire.body_stream.is_started:
            return False
        if connection.response is not None and connection.response.is_started:
            return False
        if not connection.is_awaiting or wire.method in IDEMPOTENT:
            return True
        is_encrypted = self._tls is not None
        return is_head_unread(connection.unread_bytes, size_of(wire.body), tls=is_encrypted)

    def _write(
        self,
        connection: Http1ClientConnection,
        wire: HttpRequest,
        deadline: float | None,
        *,
        streamed: bool,
    ) -> ResponseReader:
        if not connection.is_usable:
            raise self._peer.lost("it was closed before the request was sent")
        if wire.body_stream is not None and wire.body_stream.is_started:
            raise self._peer.lost("its body was streamed and cannot be sent again")
        left_s = None if deadline is None else deadline - monotonic()
        buffers = request_buffers(wire, self._prefix, self._line_end, left_s)
        return connection.begin(wire.method, buffers, wire.body_stream, streamed=streamed)


@accelerated
def request_buffers(
    wire: HttpRequest, prefix: str, line_end: str, left_s: float | None
) -> Sequence[Buffer]:
    """Return a request as the buffers to write: one, unless it is large.

    Args:
        wire: The request.
        prefix: Stands before its path.
        line_end: The end of the first line, and the lines that all requests have.
        left_s: The seconds until its deadline; None for none.
    """
    body = wire.body
    size = size_of(body)
    target = f"{prefix}{wire.path}?{wire.query}" if wire.query else prefix + wire.path
    length = size if wire.body_stream is None else size + wire.body_stream.remaining_bytes
    framing = f"Content-Length: {length}\r\n" if length or wire.method in _WITH_BODY else ""
    head = (f"{wire.method} {target}{line_end}{header_lines(wire, left_s)}{framing}\r\n").encode(
        "ascii"
    )
    return (head, *body) if size > _JOIN_BYTES else (b"".join((head, *body)),)
