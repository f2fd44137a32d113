"""HttpClient of the native implementation: a pool of HTTP/1.1 connections to one upstream.

Bodies are sent as the buffers they are, with their exact length.  Responses are returned complete
or in pieces, within the limits.  There are no redirects, cookies or proxies.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from math import inf
from time import monotonic
from types import CoroutineType
from typing import Any
from urllib.parse import urlsplit

from gateway.accelerator import accelerated
from gateway.concurrency.timeouts import TimerStep, TimerWheel, patient_timeout
from gateway.ir.errors import Unavailable, UpstreamProtocolError
from gateway.transports.contract import ClientLimits, Decode, accepted
from gateway.transports.http.client_rules import (
    IDEMPOTENT,
    UpstreamErrors,
    header_lines,
    is_head_unread,
)
from gateway.transports.http.content_coding import coding_of
from gateway.transports.http1.client_connection import Http1ClientConnection, read_buffer
from gateway.transports.http1.response_reader import ResponseHeadCache, ResponseReader
from gateway.transports.memory_budget import UNLIMITED, MemoryBudget
from gateway.transports.net.resolver import UNIX, upstream_of
from gateway.transports.net.sockets import UNSEEN_S
from gateway.transports.net.tls import connect_failure_text
from gateway.transports.net.tls_files import Authorities, TlsContext
from gateway.transports.net.write_drain import deadline_scope
from gateway.transports.slots import CONNECTION_KEYS, upstream_slots
from gateway.wire.http import Buffer, HttpRequest, HttpResponse, size_of

_JOIN_BYTES = 64 * 1024
_PORTS = {"http": 80, "https": 443}
# A server may close an idle connection.  A streaming body cannot be sent twice, so it is sent only
# on a connection that has been idle for less than this.
_MAX_IDLE_FOR_STREAMING_S = 1.0
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

Response = asyncio.Future[HttpResponse | None]


class HttpClient:
    """A pool of HTTP/1.1 connections to one upstream.

    Args:
        url: "http://host:port", or https.  A path becomes the prefix of the path of each request.
            "unix:/path" is a unix socket.
        limits: The limits of the upstream.
        tls: The context of handshakes of https; None to trust what the system trusts.
        budget: The memory budget for responses.
        address: IP address of the host; "" to look it up.

    Raises:
        ValueError: *url* is not an http or https URL with a host.
    """

    # The compiled methods find these at their offsets.
    __slots__ = (
        "__weakref__",
        "_buffer",
        "_heads",
        "_idle",
        "_is_closed",
        "_limits",
        "_line_end",
        "_open",
        "_peer",
        "_prefix",
        "_pruning",
        "_slots",
        "_tls",
        "_upstream",
        "_wheel",
    )

    sends_rest = True

    def __init__(
        self,
        url: str,
        limits: ClientLimits,
        *,
        tls: TlsContext | None = None,
        budget: MemoryBudget = UNLIMITED,
        address: str = "",
    ) -> None:
        parts = urlsplit(url)
        is_unix = url.startswith(UNIX)
        if not is_unix and (parts.scheme not in _PORTS or not parts.hostname):
            raise ValueError(f"upstream URL {url!r} is not http://host:port")
        host = "localhost" if is_unix else str(parts.hostname)
        target = url if is_unix else f"{host}:{parts.port or _PORTS[parts.scheme]}"
        self._peer = UpstreamErrors(target, host, limits, budget)
        self._prefix = "" if is_unix else parts.path.rstrip("/")
        self._line_end = f" HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2] or host}\r\n"
        self._upstream = upstream_of(target, limits.resolve_floor_s, address)
        self._tls: TlsContext | None = None
        if parts.scheme == "https":
            self._tls = tls or TlsContext(ssl.create_default_context())
            self._tls.add_user(self)
        self._limits = limits
        most = min(limits.most_connections, limits.most_in_flight)
        self._slots = upstream_slots("pending", most, limits, self._peer.name, CONNECTION_KEYS)
        self._buffer = read_buffer()
        self._heads = ResponseHeadCache()
        self._wheel = TimerWheel()
        self._idle: list[Http1ClientConnection] = []
        self._open: set[Http1ClientConnection] = set()
        self._pruning: asyncio.TimerHandle | None = None
        self._is_closed = False

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
            connection.is_usable = False
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
            connection.is_usable = False
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

    # -- the pool

    async def close(self) -> None:
        """Close every connection. A second call does nothing."""
        self._is_closed = True
        self._wheel.close()
        self._idle.clear()
        for connection in [*self._open]:
            self._cut(connection)
        if self._pruning is not None:
            self._pruning.cancel()
            self._pruning = None

    def tls_renewed(self, _authorities: Authorities | None) -> None:
        """Close each connection after its last request."""
        for connection in self._open:
            connection.created_at = -inf  # too old for another request
        while self._idle:
            self._cut(self._idle.pop())

    async def _enter(self, deadline: float | None) -> None:
        """Acquire a slot of the pool."""
        if not self._slots.try_acquire():
            await self._slots.wait(None, deadline=deadline)

    async def _connection(self, idle_s: float) -> Http1ClientConnection:
        """Return a connection that has been idle for at most *idle_s*, or a new one."""
        if self._is_closed:
            raise self._peer.closed()
        return self._idle_connection(idle_s, monotonic()) or await self._connect()

    def _idle_connection(self, idle_s: float, now: float) -> Http1ClientConnection | None:
        """Return a connection that has been idle for at most *idle_s*; None if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if self._is_fresh(connection, now, idle_s):
                return connection
            self._cut(connection)
        return None

    def _is_fresh(self, connection: Http1ClientConnection, now: float, idle_s: float) -> bool:
        """Return whether a connection may be used: not too old, and idle for at most *idle_s*."""
        return (
            connection.is_usable
            and now - connection.last_used_at <= idle_s
            and now - connection.created_at <= self._limits.connection_age_s
            and (now - connection.last_used_at < UNSEEN_S or not connection.has_ended())
        )

    async def _connect(self) -> Http1ClientConnection:
        """Open a connection.

        Raises:
            NotSent: The upstream cannot be reached.
        """
        if self._is_closed:
            raise self._peer.closed()
        loop = asyncio.get_running_loop()
        make = partial(Http1ClientConnection, self._peer, loop, self._buffer, self._heads)
        timeout_s = self._peer.connect_timeout_s
        scope = patient_timeout(timeout_s)
        try:
            with scope:
                options = {} if self._tls is None else {"ssl": self._tls.current}
                connection = await self._upstream.connect(make, options)
        except TimeoutError as error:
            if not scope.has_expired:
                raise self._peer.unreached(error) from error
            raise self._peer.unreached(f"no connection within {timeout_s} s") from error
        except OSError as error:  # includes the errors of ssl
            raise self._peer.unreached(connect_failure_text(error)) from error
        finally:
            del scope  # it holds the task, whose error holds this frame if the task is cancelled
        self._peer.has_replied |= any(each.has_replied for each in self._open)
        self._open.add(connection)
        return connection

    def _put_back(self, connection: Http1ClientConnection) -> None:
        if not connection.release() or self._is_closed:
            self._cut(connection)
            return
        self._idle.append(connection)
        if self._pruning is None:
            self._prune_after(self._limits.keepalive_s)

    def _cut(self, connection: Http1ClientConnection) -> None:
        self._open.discard(connection)
        connection.abort()

    def _prune_after(self, delay_s: float) -> None:
        self._pruning = asyncio.get_running_loop().call_later(delay_s, self._prune)

    def _prune(self) -> None:
        """Close connections that were idle too long; the last of the list was used last."""
        self._pruning = None
        stale = monotonic() - self._limits.keepalive_s
        while self._idle and (self._idle[0].last_used_at <= stale or not self._idle[0].is_usable):
            self._cut(self._idle.pop(0))
        if self._idle:
            self._prune_after(self._idle[0].last_used_at - stale)


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
