"""FloodBudget: limits the frames of an HTTP/2 peer that do not carry calls.

Control frames, small frames, resets and rejected calls are charged.  Time, calls that a service has
answered, and messages sent to the peer are refunded.  A peer that exhausts its budget is
disconnected.
"""

from typing import Final

from gateway.transports.http2.frames import ENHANCE_YOUR_CALM, Http2ConnectionError

RESET_COST: Final = 10
REFUSAL_COST: Final = 5
UNSERVED_COST: Final = 1
SMALL_FRAME_BYTES: Final = 256
"""A smaller DATA frame that ends no message is charged like an empty one."""

RESPONSE_REFUND: Final = 10
MESSAGE_REFUND: Final = 4
REFUND_FROM_BYTES: Final = 1024
"""A WINDOW_UPDATE is refunded if it lets through so many bytes."""

_MOST: Final = 2000
_PER_SECOND: Final = 400


class FloodBudget:
    """The budget of one peer.

    Attributes:
        remaining: What can be spent; refunds are added to it.
    """

    __slots__ = ("remaining",)

    def __init__(self) -> None:
        self.remaining = _MOST

    def charge(self, cost: int) -> None:
        """Subtract *cost*. Raises Http2ConnectionError if the budget is exhausted."""
        self.remaining -= cost
        if self.remaining < 0:
            raise Http2ConnectionError(ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def refill(self, seconds: int = 1) -> None:
        """Add the refund for so many seconds."""
        self.remaining = min(_MOST, self.remaining + seconds * _PER_SECOND)
