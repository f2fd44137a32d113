"""ServerSilence: whether the server of a silent connection gets a PING, or is gone.

A NAT or a load balancer may forget a connection without a word, and then every call on it ends at
its deadline.  A server may also just be slow.  So a PING is sent only when a call ends without
a response, or once while calls wait: some have no deadline.  A slow server, which acknowledges it,
keeps its connection.

gRPC servers close a connection at the fourth PING without a response of theirs in between.

Source: gRFC A8, "Server-side", and the defaults of the C core (max_ping_strikes).
"""

from typing import Final

SILENT_S: Final = 5.0
"""A PING follows when nothing has been received for so long."""

ACKNOWLEDGED_WITHIN_S: Final = 5.0
"""The time in which a server acknowledges a PING."""

_PINGS: Final = 3


class ServerSilence:
    """The silence of one connection.

    Args:
        now: The time, on the clock of `time.monotonic`, as everywhere here.
    """

    __slots__ = ("_heard_at", "_pinged_at", "_pings")

    def __init__(self, now: float) -> None:
        self._heard_at = now
        self._pinged_at: float | None = None
        self._pings = _PINGS

    def heard(self, now: float, *, only_pong: bool) -> None:
        """Note that something has been received, perhaps only the acknowledgement of a PING."""
        self._heard_at = now
        self._pinged_at = None
        if not only_pong:
            self._pings = _PINGS

    def should_ping(self, now: float, *, is_waiting: bool = False) -> bool:
        """Return whether to send a PING now that a call has ended without a response.

        With *is_waiting* calls are in progress, and only the first PING since a response is sent.
        """
        least = _PINGS if is_waiting else 1
        is_due = (
            self._pinged_at is None and now - self._heard_at >= SILENT_S and self._pings >= least
        )
        if is_due:
            self._pinged_at = now
            self._pings -= 1
        return is_due

    def is_gone(self, now: float) -> bool:
        """Return whether a PING was not acknowledged in time."""
        return self._pinged_at is not None and now - self._pinged_at >= ACKNOWLEDGED_WITHIN_S
