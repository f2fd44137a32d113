"""HTTP client on aiohttp's session: one upstream, its pool, and what can go wrong with it.

Bodies go out as the buffers they are, with their exact length; answers come in whole or piece by
piece, within the limits. No redirects, cookies, proxies or fields of aiohttp's own.
"""

from __future__ import annotations

import ipaddress
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from gateway.ir.errors import (
    MalformedMessage,
    NotSent,
    TooLarge,
    Unavailable,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.transports.admission import Slots
from gateway.transports.base import ClientLimits
from gateway.transports.coding import Inflater, coding_of, inflate
from gateway.transports.deadlines import format_grpc_timeout
from gateway.transports.headers import decode_field, end_to_end, writable
from gateway.transports.reference.pool import ATTEMPT, Attempt, Pool
from gateway.transports.sockets import reset_when_closed
from gateway.transports.waiting import until
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse, size_of

_LOOPBACK_CONNECT_S = 1.0
_JOIN_BYTES = 64 * 1024
_READ_BYTES = 256 * 1024
_HEADER_LINE_BYTES = 8190
_HEADER_FIELD_BYTES = 32 * 1024
_HEADER_COUNT = 100
_RATIO = 200
_RATIO_FLOOR_BYTES = 1 << 20
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS"})
_AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class HttpClient:
    """A pool of HTTP/1.1 connections to one upstream.

    Args:
        url: "http://host:port", or https; a path becomes a prefix of every request's.
        limits: Of the upstream.
        ssl_context: For https, instead of the system's trust.
    """

    def __init__(
        self, url: str, limits: ClientLimits, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        base = URL(url)
        if base.scheme not in ("http", "https") or not base.host:
            raise ValueError(f"upstream URL {url!r} is not http://host:port")
        self._name = f"{base.host}:{base.port}"
        self._prefix = f"{base.scheme}://{base.raw_authority}{base.raw_path.rstrip('/')}"
        self._host = base.host
        self._limits = limits
        self._ssl = ssl_context
        self._slots = Slots("pending", min(limits.connections, limits.in_flight), limits.pending)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def send(self, wire: HttpRequest, /, *, deadline: float | None) -> HttpResponse:
        """Send one request and return its whole answer; raises as `base.Client` says."""
        async with self._exchange(wire, deadline) as response:
            whole = response.content.is_eof()  # small answers come in one piece with their head
            async with until(None if whole else deadline, self._name):
                body = await self._read(response)
            headers, codings = _fields(response)
            return HttpResponse(response.status, headers, (await self._plain(body, codings),))

    async def stream(
        self, wire: HttpRequest, /, *, deadline: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """Send one request and yield its answer piece by piece, at least once."""
        async with self._exchange(wire, deadline) as response:
            headers, codings = _fields(response)
            if coding_of(codings) is not None:
                raise self._broken("a stream with a content coding nobody asked for")
            received, yielded = 0, False
            while True:
                async with until(deadline, self._name):
                    piece = await self._piece(response)
                received += len(piece)
                self._check_size(received)
                if piece or not yielded:
                    yield HttpResponse(response.status, headers, (piece,))
                    yielded = True
                if not piece:
                    return

    async def close(self) -> None:
        """Close every connection; harmless the second time."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def _exchange(
        self, wire: HttpRequest, deadline: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Hold a place in the pool, and the answer's head; not read to its end, it is cut off."""
        if not self._slots.take():
            async with until(deadline, self._name):
                await self._slots.acquire(None)
        try:
            async with until(deadline, self._name):
                response = await self._request(wire, deadline)
            try:
                yield response
            finally:
                if not response.content.is_eof():
                    _hurry(response)
                response.close()
        finally:
            self._slots.release()

    async def _request(self, wire: HttpRequest, deadline: float | None) -> aiohttp.ClientResponse:
        attempt = Attempt()
        try:
            return await self._attempt(wire, deadline, attempt)
        except Unavailable as error:
            # One replay, where a kept connection turned out dead before the request reached it.
            silent = attempt.connection is not None and not attempt.connection.answered
            idle = attempt.reused and silent and wire.method in _IDEMPOTENT
            if isinstance(error, NotSent) or not silent or not (attempt.never_received or idle):
                raise
        return await self._attempt(wire, deadline, Attempt())

    async def _attempt(
        self, wire: HttpRequest, deadline: float | None, attempt: Attempt
    ) -> aiohttp.ClientResponse:
        session = self._open()
        query = f"?{wire.query}" if wire.query else ""
        token = ATTEMPT.set(attempt)
        try:
            return await session.request(
                wire.method,
                URL(f"{self._prefix}{wire.path}{query}", encoded=True),
                headers=_sent_fields(wire, deadline),
                data=_Body(wire.body, attempt) if size_of(wire.body) else None,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._forget_addresses()
            raise NotSent(f"cannot connect to upstream {self._name}: {error}") from error
        except aiohttp.ClientResponseError as error:
            raise self._broken(f"a malformed answer: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._lost(error) from error
        finally:
            ATTEMPT.reset(token)

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise NotSent(f"the client of upstream {self._name} is closed")
        if self._session is None:
            connect_s = self._limits.connect_timeout_s
            if _is_loopback(self._host):
                connect_s = min(connect_s, _LOOPBACK_CONNECT_S)
            self._session = aiohttp.ClientSession(
                connector=Pool(self._limits, ssl=self._ssl if self._ssl is not None else True),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                skip_auto_headers=_AUTOMATIC,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
                read_bufsize=_READ_BYTES,
                max_line_size=_HEADER_LINE_BYTES,
                max_field_size=_HEADER_FIELD_BYTES,
                max_headers=_HEADER_COUNT,
            )
            # aiohttp would replay requests by its own lights.
            self._session._retry_connection = False  # noqa: SLF001
        return self._session

    def _forget_addresses(self) -> None:
        connector = None if self._session is None else self._session.connector
        if isinstance(connector, Pool):
            connector.clear_dns_cache()

    async def _read(self, response: aiohttp.ClientResponse) -> memoryview:
        self._check_size(response.content_length or 0)
        first = await self._piece(response)
        buffer: bytearray | None = None
        while piece := await self._piece(response):
            if buffer is None:
                buffer = bytearray(first)
            buffer += piece
            self._check_size(len(buffer))
        self._check_size(len(first))
        return memoryview(first if buffer is None else buffer).toreadonly()

    async def _piece(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.content.readany()
        except HttpProcessingError as error:
            raise self._broken(f"a malformed body: {error.message}") from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            if _framing_broke(error):
                raise self._broken("a body whose framing is broken") from error
            raise self._lost(error) from error

    async def _plain(self, body: memoryview, codings: Sequence[str]) -> memoryview:
        try:
            coding = coding_of(codings)
            if coding is None or not body:
                return body
            inflater = Inflater(
                coding, body, self._limits.message_bytes, _RATIO, _RATIO_FLOOR_BYTES
            )
            return await inflate(inflater, _uncounted)
        except (MalformedMessage, Unsupported) as error:
            raise self._broken(f"a body that cannot be decoded: {error.message}") from error

    def _check_size(self, size: int) -> None:
        limit = self._limits.message_bytes
        if size > limit:
            raise TooLarge(
                f"the answer of upstream {self._name} has {size} bytes or more, "
                f"at most {limit} are allowed",
                limit="message_bytes",
            )

    def _broken(self, what: str) -> UpstreamProtocolError:
        return UpstreamProtocolError(f"upstream {self._name} sent {what[:200]}")

    def _lost(self, error: BaseException) -> Unavailable:
        return Unavailable(f"upstream {self._name} broke the connection: {str(error)[:200]}")


def _hurry(response: aiohttp.ClientResponse) -> None:
    """Let the server learn at once, and not by a half-closed connection, that nobody reads on."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        reset_when_closed(connection.transport.get_extra_info("socket"))


class _Body(aiohttp.Payload):
    """A body in buffers, written one after the other without being joined when large."""

    def __init__(self, buffers: Sequence[Buffer], attempt: Attempt) -> None:
        super().__init__(buffers)
        self._buffers = buffers
        self._attempt = attempt
        self._size = self._length = size_of(buffers)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text; aiohttp asks for it only to show it."""
        return b"".join(self._buffers).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the body; note when the connection is gone before its last byte."""
        buffers = self._buffers
        if self._length <= _JOIN_BYTES:
            buffers = [b"".join(buffers)]
        try:
            for buffer in buffers:
                await writer.write(buffer)
        except OSError:
            self._attempt.cut = True
            raise


async def _uncounted(_size: int) -> None: ...


def _sent_fields(wire: HttpRequest, deadline: float | None) -> list[tuple[str, str]]:
    fields = [
        pair for pair in writable(wire.headers) if pair[0].lower() not in ("host", "grpc-timeout")
    ]
    if wire.headers.get("accept-encoding") is None:
        fields.append(("Accept-Encoding", "identity"))
    if deadline is not None:
        fields.append(("grpc-timeout", format_grpc_timeout(deadline - time.monotonic())))
    return fields


def _fields(response: aiohttp.ClientResponse) -> tuple[Headers, list[str]]:
    """Return the fields of an answer that cross a hop, and its content codings."""
    pairs, codings = [], []
    for raw_name, raw_value in response.raw_headers:
        name, value = decode_field(raw_name), decode_field(raw_value)
        if name.lower() == "content-encoding":
            codings.append(value)
        else:
            pairs.append((name, value))
    return Headers(end_to_end(pairs)), codings


def _framing_broke(error: BaseException) -> bool:
    """Return whether bytes that came were wrong, rather than missing."""
    cause = error.__cause__
    return isinstance(error, aiohttp.ClientPayloadError) and not isinstance(
        cause,
        aiohttp.http_exceptions.ContentLengthError | aiohttp.http_exceptions.TransferEncodingError,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
