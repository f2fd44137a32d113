"""Connections to one upstream: aiohttp's pool, with stricter rules for reuse.

A connection is reused only if it is clean.  It is watched while idle, has an age limit, and knows
whether a lost request was received.
"""

import asyncio
import socket
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection

from gateway.transports.contract import ClientLimits
from gateway.transports.http.client_rules import UpstreamErrors
from gateway.transports.net.resolver import KnownAddresses
from gateway.transports.net.sockets import (
    peer_left,
    reset_when_closed,
    tune,
    unacknowledged,
    unread_input,
)
from gateway.transports.net.wrong_port import foreign_protocol


class Attempt:
    """What became of one attempt to send a request."""

    def __init__(self) -> None:
        self.connection: PooledHttpConnection | None = None
        self.is_reused = False
        self.is_cut = False  # the connection was closed before the last byte was written

    @property
    def never_received(self) -> bool:
        """Whether an idle connection was closed before the last byte of the request was written."""
        return self.is_reused and self.is_cut


ATTEMPT: ContextVar[Attempt] = ContextVar("attempt")
"""The attempt this task makes; aiohttp hands its pool nothing of ours."""


class PooledHttpConnection(ResponseHandler):
    """A connection to an upstream."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._socket: Any = None
        self.born = loop.time()
        self.uses = 0
        self.is_idle = False
        self.idle_since = self.born
        self.has_answered = False
        self.has_seen_end = False
        self.foreign = ""
        self.unread_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket's options."""
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket")
        tune(self._socket)

    def data_received(self, data: bytes) -> None:
        """Pass on a part of a response; data that no request expects ends the connection."""
        if self.is_idle and data:
            self.abort()
            return
        if not self.has_answered:
            self.has_answered = bool(data)
            self.foreign = foreign_protocol(data)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Read the rest of a response that arrived before a write has failed."""
        if self.transport is not None and not self.is_idle:
            for data in unread_input(self.transport, exc):
                self.data_received(data)
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Note what the peer cannot have read if it closes its end instead of a response."""
        self.has_seen_end = True
        if self.transport is not None and not (self.is_idle or self.has_answered):
            unsent = self.transport.get_write_buffer_size()
            self.unread_bytes = unacknowledged(self._socket) + unsent
        super().eof_received()

    def fail(self) -> None:
        """Close at once with a reset, without sending the data that is still buffered.

        A server may take a plain end of the stream for a half-close, and go on working.
        """
        if self.transport is not None:
            if not self.has_answered:
                reset_when_closed(self._socket)
            self.transport.abort()

    def has_ended(self) -> bool:
        """Return whether the peer has closed it, even if the loop has not read that yet."""
        return peer_left(self._socket)


class SharedResolver(AbstractResolver):
    """Looks up the names of one pool, without the threads of the event loop."""

    def __init__(self) -> None:
        self._known: dict[str, KnownAddresses] = {}

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002  # the pool wants all
    ) -> list[ResolveResult]:
        """Return the addresses of *host*. Raises OSError."""
        known = self._known.setdefault(host, KnownAddresses(host))
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await known.update()
        ]

    async def close(self) -> None:
        """Do nothing: a look-up ends by itself."""


class HttpConnectionPool(aiohttp.TCPConnector):
    """The connections to one upstream.

    Args:
        limits: The limits that the upstream has.
        peer: Knows how long its connections may be idle.
        options: For aiohttp's connector.
    """

    def __init__(self, limits: ClientLimits, peer: UpstreamErrors, **options: Any) -> None:
        super().__init__(
            limit=limits.most_connections,
            keepalive_timeout=limits.keepalive_s,
            use_dns_cache=True,
            resolver=SharedResolver(),
            ttl_dns_cache=max(1, int(limits.resolve_cap_s)),
            **options,
        )
        self._age_s = limits.connection_age_s
        self._peer = peer
        # aiohttp lets a connector choose its protocol only here.
        self._factory = cast(
            "partial[ResponseHandler]", partial(PooledHttpConnection, loop=self._loop)
        )

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> Connection:
        """Return a connection that is clean and not too old."""
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            assert isinstance(protocol, PooledHttpConnection)  # noqa: S101  # made by our factory
            fresh = not protocol.uses
            now = self._loop.time()
            is_old = now - protocol.born > self._age_s
            is_stale = now - protocol.idle_since > self._peer.idle_s(req.method)
            ended = protocol.should_close or protocol.has_ended()
            if not fresh and (ended or is_old or is_stale):
                connection.close()
                continue
            protocol.uses += 1
            protocol.is_idle = protocol.has_answered = False
            attempt = ATTEMPT.get()
            attempt.connection, attempt.is_reused = protocol, not fresh
            return connection

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        if isinstance(protocol, PooledHttpConnection):
            protocol.is_idle = True
            protocol.idle_since = self._loop.time()
            if should_close:
                protocol.fail()
        super()._release(key, protocol, should_close=should_close)
