"""What a peer may make an HTTP/2 connection do beyond carrying calls.

Control frames, small frames, resets and refused calls cost; time, calls that a service has answered
and messages sent to the peer pay.  A peer that overdraws is sent away, so that no flood of them
costs more than its credit.
"""

from __future__ import annotations

from typing import Final

from gateway.transports.http2.frames import ENHANCE_YOUR_CALM, Http2ConnectionError

RESET_COST: Final = 10
REFUSAL_COST: Final = 5
UNSERVED_COST: Final = 1
SMALL_FRAME_BYTES: Final = 256
"""A frame of data below this that ends no message costs as much as an empty one."""

RESPONSE_REFUND: Final = 10
MESSAGE_REFUND: Final = 4
REFUND_FROM_BYTES: Final = 1024
"""What a widened window must let through to count as a message: windows of a byte earn nothing."""

_MOST: Final = 2000
_PER_TICK: Final = 400


class FloodBudget:
    """The credit of one peer.

    Attributes:
        left: What it has; whoever earns adds to it.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _MOST

    def charge(self, cost: int) -> None:
        """Draw on it. Raises H2Fault when there is not so much."""
        self.left -= cost
        if self.left < 0:
            raise Http2ConnectionError(ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def refill(self) -> None:
        """Fill it up by what a second earns."""
        self.left = min(_MOST, self.left + _PER_TICK)
