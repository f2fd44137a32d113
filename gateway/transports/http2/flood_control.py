"""FloodBudget: limits the frames of an HTTP/2 peer that do not carry calls.

Control frames, small frames, rejected calls and resets of calls that were not served are charged.
Time, calls that a service has answered, and messages sent to the peer are refunded.

Many callers may share a connection.  So at half of the budget it only takes no new streams, and
those that are open go on.  A peer that exhausts all of its budget is disconnected.
"""

from collections.abc import Callable
from typing import Final

from gateway.transports.http2.frames import ENHANCE_YOUR_CALM, Http2ConnectionError

RESET_COST: Final = 5
EARLY_RESET_S: Final = 0.005
"""A reset so soon after the header fields is charged, even if the call is in progress."""

REFUSAL_COST: Final = 5
UNSERVED_COST: Final = 1
LATE_STREAM_COST: Final = 2
"""The cost of a stream that the peer opens after GOAWAY."""

_FREE_FRAMES: Final = 2
"""So many updates of windows and late frames are free for each number up to that of the last
stream. Every other number is a stream."""
_FREE_FRAMES_KEPT: Final = 4096
"""So many of those that earlier streams did not use are kept."""

RESPONSE_REFUND: Final = 10
MESSAGE_REFUND: Final = 4
REFUND_FROM_BYTES: Final = 1024
"""So many bytes sent at once are refunded like a message."""

REFUND_SHIFT: Final = 11
"""More bytes sent are refunded by 1 for each 2 KiB: a peer may update its windows so often."""

FLOOD_TEXT: Final = "too many frames that carry nothing"
_MOST: Final = 2000
_LOW: Final = 1000
_PER_SECOND: Final = 400


class FloodBudget:
    """The budget of one peer.

    Attributes:
        remaining: What can be spent; refunds are added to it.
        on_low: Called once, when half of the budget is spent.
    """

    __slots__ = ("_free_frames", "on_low", "remaining")

    def __init__(self) -> None:
        self._free_frames = 0
        self.remaining = _MOST
        self.on_low: Callable[[], None] | None = None

    @property
    def was_low(self) -> bool:
        """Whether half of the budget was spent at some time."""
        return self.on_low is None

    def charge(self, cost: int) -> None:
        """Subtract *cost*. Raises Http2ConnectionError if the budget is exhausted."""
        self.remaining -= cost
        if self.remaining < _LOW:
            self._spent()

    def charge_of_call(self, last: int) -> None:
        """Charge a frame of which each call may have some; *last* is the highest stream number.

        A client of gRPC sends one when it begins to wait, and a reset if its deadline passes in the
        same moment. So 1,000 calls at once have 3,000 such frames.
        """
        most = _FREE_FRAMES * last
        used = self._free_frames + 1
        if used <= most:
            kept = most - used < _FREE_FRAMES_KEPT
            self._free_frames = used if kept else most - _FREE_FRAMES_KEPT
        else:
            self.charge(1)

    def _spent(self) -> None:
        if self.remaining < 0:
            raise Http2ConnectionError(ENHANCE_YOUR_CALM, FLOOD_TEXT)
        on_low, self.on_low = self.on_low, None
        if on_low is not None:
            on_low()

    def refill(self, seconds: int = 1) -> None:
        """Add the refund for so many seconds."""
        self.remaining = min(_MOST, self.remaining + seconds * _PER_SECOND)
