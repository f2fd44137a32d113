"""Listening for HTTP/1, draining and stopping: what any make of an HTTP server does alike.

Which frontend answers is decided in `http_table`; how one request is answered, in `http_exchange`;
what happens on a connection is the make's own affair.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gateway.ir.errors import GatewayError
from gateway.transports.admission import ConnectionCount, MemoryBudget, request_slots
from gateway.transports.contract import HttpFrontend, HttpMount, ServerLimits
from gateway.transports.http.cut_through import cut_through_limiter
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.path_router import PathRouter
from gateway.transports.net.accept_backlog import drain_accept_queue

_BACKLOG = 1024
_LAST_WORDS_S = 1.0
_POLL_S = 0.01


class OpenConnection(Protocol):
    """A connection, as its listener sees it."""

    @property
    def in_flight(self) -> int:
        """Requests received and not yet answered."""
        ...

    def announce_close(self) -> None:
        """Let the last answer that is due say that it is."""
        ...

    def drain(self) -> None:
        """Close when idle, else after the last answer that is due."""
        ...

    def fail_in_flight(self) -> None:
        """Answer what is in flight with an error."""
        ...

    def abort(self) -> None:
        """Close at once, without the end of what was being written."""
        ...


class Connections(Protocol):
    """Makes connections and knows those there are."""

    @property
    def open_connections(self) -> Sequence[OpenConnection]:
        """Connections there are now."""
        ...

    def __call__(self) -> asyncio.BaseProtocol:
        """Return the protocol of one more connection."""
        ...


def _ignore(_error: GatewayError) -> None: ...


class HttpListener(ABC):
    """A listener for HTTP/1, whichever make its connections are of.

    Args:
        host: To bind, when no *sock* is given.
        port: To bind; 0 picks one.
        mounts: Frontends by path prefix; the longest prefix wins.
        limits: Of this listener.
        budget: Of the process.
        fallback: Answers the paths nobody claims; without it they are not found.
        sock: A bound socket, instead of *host* and *port*.
        ssl_context: For TLS.
        refused: Told of requests and connections refused before a frontend was asked.
        reserve: Answer also when descriptors are short: for operators, who must get through.
        listens: False for a server that is only handed connections, see `connection`.
        count: Of connections, where others count theirs in it too.
        reuse_port: Share the port with other processes that do so: the kernel spreads connections.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        mounts: Sequence[HttpMount],
        limits: ServerLimits,
        budget: MemoryBudget,
        fallback: HttpFrontend | None = None,
        sock: socket.socket | None = None,
        ssl_context: ssl.SSLContext | None = None,
        refused: Callable[[GatewayError], None] = _ignore,
        reserve: bool = False,
        listens: bool = True,
        count: ConnectionCount | None = None,
        reuse_port: bool = False,
    ) -> None:
        self._reserve = reserve
        self._reuse_port = reuse_port
        self._count = count or ConnectionCount(limits.connections, limits.connections_per_address)
        self._listens = listens
        self._where = (host, port)
        self._sock = sock
        self._ssl = ssl_context
        self._limits = limits
        self._table = PathRouter(mounts, fallback)
        self._listener = ListenerState(
            limits=limits,
            budget=budget,
            slots=request_slots(limits),
            find=self._table.find,
            refused=refused,
            early=cut_through_limiter(limits),
        )
        self._connections: Connections | None = None
        self._server: asyncio.Server | None = None
        self._address: str | None = None

    @property
    def address(self) -> str:
        """Where it listens, "host:port", the real port included."""
        if self._address is None:
            raise RuntimeError("the server has not been started")
        return self._address

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._connections = self._make(self._listener, self._count, reserve=self._reserve)
        if not self._listens:
            return
        tls = self._tls
        where: dict[str, Any] = {"sock": self._sock}
        if self._sock is None:
            host, port = self._where
            where = {"host": host, "port": port, "reuse_address": True}
            where["reuse_port"] = self._reuse_port or None
        self._server = await loop.create_server(self._connections, backlog=_BACKLOG, **where, **tls)
        host, port = self._server.sockets[0].getsockname()[:2]
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def open_connections(self) -> Sequence[OpenConnection]:
        """Connections there are now."""
        return [] if self._connections is None else self._connections.open_connections

    def connection(self) -> asyncio.BaseProtocol:
        """Return the protocol of a connection that was accepted elsewhere."""
        if self._connections is None:
            raise RuntimeError("the server has not been started")
        return self._connections()

    async def drain(self, timeout_s: float) -> None:
        """Take no new connections, finish what is in flight, then cancel the rest and close."""
        if self._connections is None:
            return
        if self._server is not None and self._reuse_port:
            for connection in self.open_connections:
                connection.announce_close()
            await drain_accept_queue(self._server, self._connections, self._tls)
        self._close_door()
        for connection in self.open_connections:
            connection.drain()
        await self._emptied(timeout_s)
        for connection in self.open_connections:
            connection.fail_in_flight()
        await self._emptied(_LAST_WORDS_S)
        await self.stop()

    async def stop(self) -> None:
        """Close at once; harmless the second time."""
        if self._connections is None:
            return
        self._close_door()
        for connection in self.open_connections:
            connection.abort()
        await self._emptied(_LAST_WORDS_S)
        self._server = self._connections = None

    @property
    def _tls(self) -> dict[str, Any]:
        if self._ssl is None:
            return {}
        return {"ssl": self._ssl, "ssl_handshake_timeout": self._limits.tls_handshake_s}

    def _close_door(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _emptied(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        # aiohttp tells nobody when the last of its connections has gone.
        while self.open_connections and loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    @abstractmethod
    def _make(
        self, listener: ListenerState, count: ConnectionCount, *, reserve: bool
    ) -> Connections:
        """Return what makes this make's connections."""
