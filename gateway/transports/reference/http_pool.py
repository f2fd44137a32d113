"""Connections to one upstream: aiohttp's pool, made safe to reuse.

A connection goes back only clean, is watched while it idles, has an age, and tells whether a
request it lost was ever received.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection

from gateway.transports.contract import ClientLimits
from gateway.transports.net.sockets import peer_refused, reset_when_closed, tune


class Attempt:
    """What became of one attempt to send a request."""

    def __init__(self) -> None:
        self.connection: PooledHttpConnection | None = None
        self.reused = False
        self.cut = False  # the connection was gone before the last byte could be given to it

    @property
    def never_received(self) -> bool:
        """Whether the upstream had closed a kept connection before the request reached it whole."""
        connection = self.connection
        return self.reused and connection is not None and (self.cut or connection.refused)


ATTEMPT: ContextVar[Attempt] = ContextVar("attempt")
"""The attempt this task makes; aiohttp hands its pool nothing of ours."""


class PooledHttpConnection(ResponseHandler):
    """A connection to an upstream."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._socket: Any = None
        self.born = loop.time()
        self.uses = 0
        self.idle = False
        self.answered = False
        self.refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket's options."""
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket")
        tune(self._socket)

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer; what comes unasked ends the connection."""
        if self.idle and data:
            self.abort()
            return
        self.answered = self.answered or bool(data)
        super().data_received(data)

    def fail(self) -> None:
        """Close at once; closing in good order would first send what is still unsent.

        A server that has not answered yet is told by a reset: it may take the mere end of what is
        sent for half a close, and work on.
        """
        if self.transport is not None:
            if not self.answered:
                reset_when_closed(self._socket)
            self.transport.abort()

    def eof_received(self) -> None:
        """Learn, while the socket is still open, how the upstream closed it."""
        self._note_end()
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note a reset: what was sent was not read."""
        if isinstance(exc, ConnectionResetError | BrokenPipeError):
            self.refused = True
        super().connection_lost(exc)

    def _note_end(self) -> None:
        # A peer that closed an idle connection resets it when the request arrives; one that took
        # the request and then failed merely ends it.
        self.refused = peer_refused(self._socket)


class HttpConnectionPool(aiohttp.TCPConnector):
    """The connections to one upstream.

    Args:
        limits: Of the upstream.
        options: For aiohttp's connector.
    """

    def __init__(self, limits: ClientLimits, **options: Any) -> None:
        super().__init__(
            limit=limits.connections,
            keepalive_timeout=limits.keepalive_s,
            use_dns_cache=True,
            ttl_dns_cache=max(1, int(limits.resolve_cap_s)),
            **options,
        )
        self._age_s = limits.connection_age_s
        # The only place where aiohttp lets a connector choose its protocol.
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
            age = self._loop.time() - protocol.born
            if not fresh and (protocol.should_close or age > self._age_s):
                connection.close()
                continue
            protocol.uses += 1
            protocol.idle = protocol.answered = protocol.refused = False
            attempt = ATTEMPT.get()
            attempt.connection, attempt.reused = protocol, not fresh
            return connection

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        if isinstance(protocol, PooledHttpConnection):
            protocol.idle = True
            if should_close:
                protocol.fail()
        super()._release(key, protocol, should_close=should_close)
