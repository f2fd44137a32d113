"""Checks whether a client that has closed its half of an HTTP connection waits for its response.

A client that has left and one that has only closed its half look the same until data is sent: a
client that has left resets the connection.  An interim response is the data that HTTP allows, and
clients ignore it.
"""

import asyncio
from typing import Protocol

from gateway.transports.http.request_head import Version
from gateway.transports.http.response_writer import CONTINUE
from gateway.transports.net.sockets import peer_refused

# Together below 100 ms, the goal for ending the call of a client that has left.
_PROBE_AFTER_S = 0.05
_CHECK_AFTER_S = 0.02
_CHECK_AT_MOST_S = 1.0


class HalfClosed(Protocol):
    """A connection whose client may have ended its side."""

    transport: asyncio.Transport | None
    is_head_sent: bool

    @property
    def in_flight(self) -> int:
        """The number of requests without a complete response."""
        ...

    @property
    def request_version(self) -> Version | None:
        """The HTTP version of the request in progress; None without one."""
        ...


class HalfCloseMonitor:
    """Watches the client of one half-closed connection.

    Args:
        loop: Its timer.
        connection: Aborted once the client has gone.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: HalfClosed) -> None:
        self._loop = loop
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin to watch."""
        self._timer = self._loop.call_later(_PROBE_AFTER_S, self._probe)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _probe(self) -> None:
        self._timer = None
        connection = self._connection
        version, transport = connection.request_version, connection.transport
        if version is None or transport is None:
            return
        if connection.is_head_sent:
            transport.abort()  # a stream without a waiting client
        elif version >= (1, 1):
            transport.write(CONTINUE)
            self._check(_CHECK_AFTER_S)

    def _check(self, after_s: float) -> None:
        connection = self._connection
        if connection.transport is None or not connection.in_flight:
            return
        if peer_refused(connection.transport.get_extra_info("socket")):
            connection.transport.abort()
            return
        self._timer = self._loop.call_later(
            after_s, self._check, min(2 * after_s, _CHECK_AT_MOST_S)
        )
