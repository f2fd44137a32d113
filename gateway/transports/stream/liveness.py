"""LivenessMonitor: notices that a client has left while its response is pending.

On TCP, a client that has left and one that has only closed its half look the same until data is
sent.  The first bytes of every response are the same, so sending them early causes a reset if the
client has left.  Unix sockets report it at once.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.transports.net.sockets import peer_ended, peer_gone

# Together below 100 ms, the goal for ending the call of a client that has left.
_PROBE_AFTER_S = 0.05
_CHECK_EACH_S = 0.02


class LivenessMonitor:
    """Watches the client of one connection.

    Args:
        loop: The event loop.
        unseen: Whether the client could leave unnoticed now.
        probe: Writes the beginning of the response. Called once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        unseen: Callable[[], bool],
        probe: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._unseen = unseen
        self._probe = probe
        self._is_watching = False
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._probe_at: float | None = None

    def watch(self, transport: Any, *, ended: bool) -> None:
        """Watch the client of *transport*, unless that is done already.

        Args:
            transport: Aborted once the client has gone.
            ended: The client sends nothing more.
        """
        self._has_ended = ended
        if not self._is_watching:
            self._check(transport)

    def close(self) -> None:
        """Stop watching, and drop the references to *unseen* and *probe*."""
        self._unseen = _is_over
        self._probe = _do_nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, transport: Any) -> None:
        self._is_watching = self._unseen()
        if not self._is_watching:
            self._probe_at = None
            return
        sock = transport.get_extra_info("socket")
        if peer_gone(sock):
            transport.abort()
            return
        now = self._loop.time()
        if self._probe_at is None and (self._has_ended or peer_ended(sock)):
            self._probe_at = now + _PROBE_AFTER_S
        if self._probe_at is not None and self._probe_at <= now:
            self._probe()
        self._timer = self._loop.call_later(_CHECK_EACH_S, self._check, transport)


def _is_over() -> bool:
    return False


def _do_nothing() -> None: ...
