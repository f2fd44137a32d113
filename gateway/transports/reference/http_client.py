"""HttpClient of the reference implementation: aiohttp's session for one upstream.

Bodies are sent as the buffers they are, with their exact length.  Responses are returned complete
or in pieces, within the limits.  There are no redirects, cookies, proxies or fields of aiohttp.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from gateway.ir.errors import NotSent, Unavailable, UpstreamProtocolError
from gateway.transports.contract import ClientLimits, Decode, accepted
from gateway.transports.http.client_rules import (
    HEADER_COUNT,
    HEADER_FIELD_BYTES,
    HEADER_LINE_BYTES,
    IDEMPOTENT,
    SERVER_FAILED,
    UpstreamErrors,
    header_fields,
    is_head_unread,
    response_fields,
)
from gateway.transports.http.content_coding import coding_of
from gateway.transports.memory_budget import UNLIMITED, MemoryBudget
from gateway.transports.net.sockets import reset_when_closed
from gateway.transports.net.tls_files import TlsContext
from gateway.transports.net.write_drain import deadline_scope
from gateway.transports.net.wrong_port import MAYBE_GRPC
from gateway.transports.reference.http_pool import ATTEMPT, Attempt, HttpConnectionPool
from gateway.transports.reservation import Reservation
from gateway.transports.slots import CONNECTION_KEYS, upstream_slots
from gateway.wire.http import Buffer, HttpRequest, HttpResponse, size_of

_JOIN_BYTES = 64 * 1024
_READ_BYTES = 256 * 1024
_AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class HttpClient:
    """A pool of HTTP/1.1 connections to one upstream.

    Args:
        url: "http://host:port", or https.  A path becomes the prefix of the path of each request.
        limits: The limits of the upstream.
        tls: The context of handshakes of https; None to trust what the system trusts.
        budget: The memory budget for responses.

    Raises:
        ValueError: *url* is not an http or https URL with a host.
    """

    def __init__(
        self,
        url: str,
        limits: ClientLimits,
        *,
        tls: TlsContext | None = None,
        budget: MemoryBudget = UNLIMITED,
    ) -> None:
        base = URL(url)
        if base.scheme not in ("http", "https") or not base.host:
            raise ValueError(f"upstream URL {url!r} is not http://host:port")
        self._peer = UpstreamErrors(f"{base.host}:{base.port}", base.host, limits, budget)
        self._prefix = f"{base.scheme}://{base.raw_authority}{base.raw_path.rstrip('/')}"
        self._limits = limits
        self._tls = tls
        most = min(limits.most_connections, limits.most_in_flight)
        self._slots = upstream_slots("pending", most, limits, self._peer.name, CONNECTION_KEYS)
        self._session: aiohttp.ClientSession | None = None
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
        async with self._exchange(wire, deadline) as response:
            # A small response arrives in one piece with its head.
            complete = response.content.is_eof()
            async with deadline_scope(None if complete else deadline, self._peer.name):
                held = self._peer.reservation()
                try:
                    body = await self._read(_ResponseBody(response, self._peer), held)
                finally:
                    held.close()
            headers, codings = response_fields(response.raw_headers)
            body = await self._peer.decode_body(body, codings)
            found = HttpResponse(response.status, headers, (body,))
            return found if decode is None else await accepted(found, decode)

    async def stream(
        self, wire: HttpRequest, /, *, deadline: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """Send one request and yield its response in pieces, at least one."""
        async with self._exchange(wire, deadline) as response:
            headers, codings = response_fields(response.raw_headers)
            if coding_of(codings) is not None:
                raise self._peer.broken("a stream with a content coding, not requested")
            body, yielded = _ResponseBody(response, self._peer), False
            while True:
                async with deadline_scope(deadline, self._peer.name):
                    piece = await body.next()
                self._peer.check_size(body.received)
                if piece or not yielded:
                    yield HttpResponse(response.status, headers, (piece,))
                    yielded = True
                if not piece:
                    return

    async def close(self) -> None:
        """Close every connection. A second call does nothing."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def _exchange(
        self, wire: HttpRequest, deadline: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response with its head; close its connection unless the body was read."""
        if not self._slots.try_acquire():
            await self._slots.wait(None, deadline=deadline)
        try:
            async with deadline_scope(deadline, self._peer.name):
                response, attempt = await self._request(wire, deadline)
            try:
                yield response
            except UpstreamProtocolError:
                if attempt.connection is not None:  # it may be in the pool already
                    attempt.connection.abort()
                raise
            finally:
                if not response.content.is_eof():
                    _reset_connection(response)
                elif response.status == SERVER_FAILED and attempt.connection is not None:
                    attempt.connection.abort()
                response.close()
        finally:
            self._slots.release()

    async def _request(
        self, wire: HttpRequest, deadline: float | None
    ) -> tuple[aiohttp.ClientResponse, Attempt]:
        attempt = Attempt()
        try:
            return await self._attempt(wire, deadline, attempt), attempt
        except Unavailable as error:
            # One more attempt if an idle connection was closed before the request reached it.
            silent = attempt.connection is not None and not attempt.connection.has_answered
            may_repeat = attempt.never_received or (
                attempt.is_reused and silent and self._may_repeat(attempt, wire)
            )
            if isinstance(error, NotSent) or not silent or not may_repeat:
                raise
        attempt = Attempt()
        return await self._attempt(wire, deadline, attempt), attempt

    def _may_repeat(self, attempt: Attempt, wire: HttpRequest) -> bool:
        if wire.method in IDEMPOTENT:
            return True
        unread = 0 if attempt.connection is None else attempt.connection.unread_bytes
        tls = self._prefix.startswith("https:")
        return is_head_unread(unread, size_of(wire.body), tls=tls)

    async def _attempt(
        self, wire: HttpRequest, deadline: float | None, attempt: Attempt
    ) -> aiohttp.ClientResponse:
        session = self._open()
        query = f"?{wire.query}" if wire.query else ""
        token = ATTEMPT.set(attempt)
        try:
            response = await session.request(
                wire.method,
                URL(f"{self._prefix}{wire.path}{query}", encoded=True),
                headers=header_fields(wire, deadline),
                data=_Body(wire.body, attempt) if size_of(wire.body) else None,
                allow_redirects=False,
                # aiohttp uses a connection only for requests with the context that it has.
                ssl=True if self._tls is None else self._tls.current,
            )
            self._peer.note_keep_alive(response.headers.get("Keep-Alive", ""))
            return response  # noqa: TRY300  # the usual end
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._forget_addresses()
            if isinstance(error, aiohttp.ClientConnectorDNSError):
                raise self._peer.unreached(error.os_error) from error
            raise self._peer.unreached(error) from error
        except aiohttp.ClientResponseError as error:
            foreign = "" if attempt.connection is None else attempt.connection.foreign
            raise self._peer.broken(foreign or f"a malformed response: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            connection = attempt.connection
            is_silent = connection is not None and not (
                attempt.is_reused or connection.has_answered
            )
            raise self._peer.lost(error, MAYBE_GRPC if is_silent else "") from error
        finally:
            ATTEMPT.reset(token)

    def _open(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise self._peer.closed()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=HttpConnectionPool(self._limits, self._peer),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                skip_auto_headers=_AUTOMATIC,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._peer.connect_timeout_s
                ),
                read_bufsize=_READ_BYTES,
                max_line_size=HEADER_LINE_BYTES,
                max_field_size=HEADER_FIELD_BYTES,
                max_headers=HEADER_COUNT,
            )
            # aiohttp would send requests again by its own rules.
            self._session._retry_connection = False  # noqa: SLF001
        return self._session

    def _forget_addresses(self) -> None:
        connector = None if self._session is None else self._session.connector
        if isinstance(connector, HttpConnectionPool):
            connector.clear_dns_cache()

    async def _read(self, body: _ResponseBody, held: Reservation) -> memoryview:
        self._peer.check_size(body.length or 0)
        first = await body.next()
        buffer: bytearray | None = None
        while piece := await body.next():
            if buffer is None:
                buffer = bytearray(first)
            buffer += piece
            self._peer.check_size(len(buffer))
            more = held.step(len(buffer), None)
            if more > 0 and not held.try_grow(more):
                await held.grow(more)
        self._peer.check_size(len(first))
        return memoryview(first if buffer is None else buffer).toreadonly()


class _ResponseBody:
    """The body of a response as it arrives, with its chunks counted.

    Attributes:
        length: Its size, as announced; None for chunks, or where its end is that of the connection.
        received: Bytes that `next` returned.
    """

    def __init__(self, response: aiohttp.ClientResponse, peer: UpstreamErrors) -> None:
        self._content = response.content
        self._peer = peer
        self._chunks = 0
        self.length = response.content_length
        self.received = 0

    async def next(self) -> bytes:
        """Return the next piece; b"" is the end.

        Raises:
            UpstreamProtocolError: The framing is broken, or there are too many chunks.
            GatewayError: The connection is lost.
        """
        try:
            if self.length is None:
                piece = await self._next_of_chunks()
            else:
                piece = await self._content.readany()
        except HttpProcessingError as error:
            raise self._peer.broken(f"a malformed body: {error.message}") from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            if _framing_broke(error):
                raise self._peer.broken("a body whose framing is broken") from error
            raise self._peer.lost(error) from error
        self.received += len(piece)
        return piece

    async def _next_of_chunks(self) -> bytes:
        while True:
            piece, ends_chunk = await self._content.readchunk()
            self._chunks += ends_chunk
            self._peer.check_chunks(self._chunks, self.received + len(piece))
            if piece or not ends_chunk:
                return piece


def _reset_connection(response: aiohttp.ClientResponse) -> None:
    """Close the connection with a reset: a server may take a plain end for a half-close."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        reset_when_closed(connection.transport.get_extra_info("socket"))


class _Body(aiohttp.Payload):
    """A body of buffers; a large one is written without joining them."""

    def __init__(self, buffers: Sequence[Buffer], attempt: Attempt) -> None:
        super().__init__(buffers)
        self._buffers = buffers
        self._attempt = attempt
        self._size = self._length = size_of(buffers)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text, which aiohttp uses in messages only."""
        return b"".join(self._buffers).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the body; note if the connection breaks before its last byte."""
        buffers = self._buffers
        if self._length <= _JOIN_BYTES:
            buffers = [b"".join(buffers)]
        connection = self._attempt.connection
        try:
            if connection is not None and connection.has_seen_end:
                raise ConnectionResetError("it was closed before the request was sent")
            for buffer in buffers:
                await writer.write(buffer)
        except OSError:
            self._attempt.is_cut = True
            raise


def _framing_broke(error: BaseException) -> bool:
    """Return whether received bytes are malformed, rather than missing."""
    cause = error.__cause__
    return isinstance(error, aiohttp.ClientPayloadError) and not isinstance(
        cause,
        aiohttp.http_exceptions.ContentLengthError | aiohttp.http_exceptions.TransferEncodingError,
    )
