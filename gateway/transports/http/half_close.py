"""Whether a client that has ended its side of an HTTP connection still waits for its answer.

A client that has gone and one that has only stopped sending look the same until something is
written: who has gone resets the connection. An interim answer is what HTTP lets us write, and
clients skip it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.transports.http.exchange import CONTINUE
from gateway.transports.http.request_head import Version
from gateway.transports.net.sockets import peer_refused

# Together well under the 100 ms in which work for nobody ends.
_PROBE_AFTER_S = 0.05
_CHECK_AFTER_S = 0.02
_CHECK_AT_MOST_S = 1.0


class HalfClosed(Protocol):
    """A connection whose client may have ended its side."""

    transport: asyncio.Transport | None
    head_sent: bool

    @property
    def in_flight(self) -> int:
        """Requests received and not yet answered."""
        ...

    @property
    def request_version(self) -> Version | None:
        """Version of the request that is being answered; None for no request."""
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
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _probe(self) -> None:
        self._timer = None
        connection = self._connection
        version, transport = connection.request_version, connection.transport
        if version is None or transport is None:
            return
        if connection.head_sent:
            transport.abort()  # a stream that nobody waits for
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
