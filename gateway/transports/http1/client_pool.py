"""Http1ConnectionPool: the connections to one HTTP/1 upstream."""

import asyncio
import ssl
from functools import partial
from math import inf
from time import monotonic
from urllib.parse import urlsplit

from gateway.concurrency.timeouts import TimerWheel, patient_timeout
from gateway.transports.contract import ClientLimits
from gateway.transports.http.client_rules import (
    UpstreamErrors,
)
from gateway.transports.http1.client_connection import Http1ClientConnection, read_buffer
from gateway.transports.http1.response_reader import ResponseHeadCache
from gateway.transports.memory_budget import UNLIMITED, MemoryBudget
from gateway.transports.net.resolver import UpstreamConnector
from gateway.transports.net.sockets import UNSEEN_S
from gateway.transports.net.tls import connect_failure_text
from gateway.transports.net.tls_files import Authorities, TlsContext
from gateway.transports.slots import CONNECTION_KEYS, upstream_slots

_PORTS = {"http": 80, "https": 443}


class Http1ConnectionPool:
    """The connections of a client, with its arguments."""

    # The compiled methods find these at their offsets; a subclass has a dictionary for its own.
    __slots__ = (
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
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"upstream URL {url!r} is not http://host:port")
        port = parts.port or _PORTS[parts.scheme]
        self._peer = UpstreamErrors(f"{parts.hostname}:{port}", parts.hostname, limits, budget)
        self._prefix = parts.path.rstrip("/")
        self._line_end = f" HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
        self._upstream = UpstreamConnector(
            parts.hostname, port, floor_s=limits.resolve_floor_s, address=address
        )
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

    def tls_renewed(self, _authorities: Authorities | None) -> None:
        """Close each connection after its last request."""
        for connection in self._open:
            connection.created_at = -inf  # too old for another request
        while self._idle:
            self._cut(self._idle.pop())

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
