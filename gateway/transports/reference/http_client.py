"""HttpClient of the reference implementation: aiohttp's session for one upstream.

Responses are returned complete or in pieces, within the limits.  There are no redirects, cookies,
proxies or fields of aiohttp.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import aiohttp
from yarl import URL

from gateway.ir.errors import GatewayError
from gateway.transports.contract import ClientLimits, Decode, accepted
from gateway.transports.http import client_rules
from gateway.transports.http.content_coding import coding_of
from gateway.transports.memory_budget import UNLIMITED, MemoryBudget
from gateway.transports.net.tls_files import TlsContext
from gateway.transports.net.write_drain import deadline_scope
from gateway.transports.slots import CONNECTION_KEYS, upstream_slots
from gateway.wire.http import HttpRequest, HttpResponse, size_of


class HttpClient:
    """Sends each request to one upstream on a connection of its own.

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
        name = f"{base.host}:{base.port}"
        self._peer = client_rules.UpstreamErrors(name, base.host, limits, budget)
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
        held, buffer = self._peer.reservation(), bytearray()
        async with self._exchange(wire, deadline) as response:
            headers, codings = client_rules.response_fields(response.raw_headers)
            self._peer.check_size(response.content_length or 0)
            try:
                async for piece in self._pieces(response, deadline):
                    buffer += piece
                    more = held.step(len(buffer), None)
                    if more > 0 and not held.try_grow(more):
                        await held.grow(more)
            finally:
                held.close()
            body = await self._peer.decode_body(memoryview(buffer).toreadonly(), codings)
            found = HttpResponse(response.status, headers, (body,))
            return found if decode is None else await accepted(found, decode)

    async def stream(
        self, wire: HttpRequest, /, *, deadline: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """Send one request and yield its response in pieces, at least one."""
        async with self._exchange(wire, deadline) as response:
            headers, codings = client_rules.response_fields(response.raw_headers)
            if coding_of(codings) is not None:
                raise self._peer.broken("a stream with a content coding, not requested")
            async for piece in self._pieces(response, deadline):
                yield HttpResponse(response.status, headers, (piece,))

    async def close(self) -> None:
        """Close every connection. A second call does nothing."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _exchange(
        self, wire: HttpRequest, deadline: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response with its head; close its connection unless the body was read."""
        if not self._slots.try_acquire():
            await self._slots.wait(None, deadline=deadline)
        try:
            async with deadline_scope(deadline, self._peer.name):
                response = await self._request(wire, deadline)
            with closing(response):
                yield response
        finally:
            self._slots.release()

    async def _request(self, wire: HttpRequest, deadline: float | None) -> aiohttp.ClientResponse:
        session = self._open()
        try:
            return await session.request(
                wire.method,
                URL(f"{self._prefix}{wire.path}{wire.query and '?'}{wire.query}", encoded=True),
                headers=client_rules.header_fields(wire, deadline),
                data=io.BytesIO(b"".join(wire.body)) if size_of(wire.body) else None,
                allow_redirects=False,
                # aiohttp uses a connection only for requests with the context that it has.
                ssl=True if self._tls is None else self._tls.current,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if isinstance(session.connector, aiohttp.TCPConnector):
                session.connector.clear_dns_cache()
            why = error.os_error if isinstance(error, aiohttp.ClientConnectorDNSError) else error
            raise self._peer.unreached(why) from error
        except aiohttp.ClientResponseError as error:
            raise self._peer.broken(f"a malformed response: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._peer.lost(error) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise self._peer.closed()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._limits.most_connections,
                    # An idle connection would keep what a server sends late for the next request.
                    force_close=True,
                    ttl_dns_cache=max(1, int(self._limits.resolve_cap_s)),
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
                timeout=aiohttp.ClientTimeout(None, sock_connect=self._peer.connect_timeout_s),
                read_bufsize=256 * 1024,
                max_line_size=client_rules.HEADER_LINE_BYTES,
                max_field_size=client_rules.HEADER_FIELD_BYTES,
                max_headers=client_rules.HEADER_COUNT,
            )
        return self._session

    async def _pieces(
        self, response: aiohttp.ClientResponse, deadline: float | None
    ) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; b"" if it is empty.

        Raises:
            Unavailable: The connection is lost, or the framing is broken: aiohttp does not tell.
        """
        received = 0
        while True:
            try:
                async with deadline_scope(deadline, self._peer.name):
                    piece = await response.content.readany()
            except GatewayError:
                raise
            except Exception as error:  # of aiohttp's parser, which exports no names of them
                raise self._peer.lost(error) from error
            received += len(piece)
            self._peer.check_size(received)
            if piece or not received:
                yield piece
            if not piece:
                return
