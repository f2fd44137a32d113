"""HTTP server on aiohttp's low-level protocol."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.web_request import BaseRequest

from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.http.authenticated import http1_exchange
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.listener import HttpListener
from gateway.transports.reference.http_connection import ReferenceHttpConnection
from gateway.transports.reference.http_request import KeepAliveResult, ReferenceHttpRequest


class HttpServer(HttpListener):
    """A listener for HTTP/1 whose connections are aiohttp's, which has no HTTP/2."""

    def _make(self, listener: ListenerState, count: ConnectionCount, *, reserve: bool) -> _Manager:
        return _Manager(listener, count, reserve=reserve)


class _Manager(web.Server):
    """aiohttp's server, making our connections."""

    def __init__(self, listener: ListenerState, count: ConnectionCount, *, reserve: bool) -> None:
        super().__init__(self._serve, handler_cancellation=True)
        self._can_use_reserve = reserve
        self._listener = listener
        self._count = count
        self.is_draining = False

    @property
    def open_connections(self) -> list[ReferenceHttpConnection]:
        return [each for each in self.connections if isinstance(each, ReferenceHttpConnection)]

    def __call__(self) -> ReferenceHttpConnection:
        connection = ReferenceHttpConnection(
            self,
            loop=self._loop,
            listener=self._listener,
            count=self._count,
            reserve=self._can_use_reserve,
        )
        if self.is_draining:
            connection.announce_close()
        return connection

    async def _serve(self, request: BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, ReferenceHttpConnection)  # noqa: S101  # the manager makes no other
        task = asyncio.current_task()
        CLIENT_MEMORY.set(connection.client.memory)
        exchange = http1_exchange(self._listener, connection.client)
        keep = await exchange(self._listener, connection, ReferenceHttpRequest(request), task).run()
        sent: Any = KeepAliveResult(keep_alive=keep)
        return sent  # type: ignore[no-any-return]  # it has what aiohttp asks of a response
