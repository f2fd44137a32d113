"""Connections to one upstream: aiohttp's pool, with stricter rules for reuse.

A connection is reused only if it is clean.  It is watched while idle, has an age limit, and knows
whether a lost request was received.
"""

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection

from gateway.transports.contract import ClientLimits
from gateway.transports.net.sockets import peer_left, reset_when_closed, tune


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
        self.has_answered = False

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
        self.has_answered = self.has_answered or bool(data)
        super().data_received(data)

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


class HttpConnectionPool(aiohttp.TCPConnector):
    """The connections to one upstream.

    Args:
        limits: Of the upstream.
        options: For aiohttp's connector.
    """

    def __init__(self, limits: ClientLimits, **options: Any) -> None:
        super().__init__(
            limit=limits.most_connections,
            keepalive_timeout=limits.keepalive_s,
            use_dns_cache=True,
            ttl_dns_cache=max(1, int(limits.resolve_cap_s)),
            **options,
        )
        self._age_s = limits.connection_age_s
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
            age = self._loop.time() - protocol.born
            ended = protocol.should_close or protocol.has_ended()
            if not fresh and (ended or age > self._age_s):
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
            if should_close:
                protocol.fail()
        super()._release(key, protocol, should_close=should_close)
