"""The states of a connection that carries frames, and what moves it from one to another.

A connection reads frames until its client ends, is too slow or breaks the framing, or until the
listener drains; a drain lets it finish the frame that has begun.  Then the pending frames are
handled, or end with an error once their time is over.  After the last response the connection
closes, with a last frame where the client needs one.

OPEN is the first state.  LOST is the last one: the connection holds no slot, timer or memory, and
no task of it goes on.
"""

import enum
from types import MappingProxyType
from typing import Final


class FramedConnectionState(enum.Enum):
    """What a connection still reads and handles."""

    OPEN = "it reads frames"
    DRAINING = "it reads the rest of a frame that has begun"
    CLOSING = "it reads nothing, and handles the pending frames"
    GIVEN_UP = "its pending frames end with an error"
    LEAVING = "all responses are sent, and it closes"
    LOST = "there is no connection any more"


class FramedConnectionEvent(enum.Enum):
    """What moves a connection."""

    DRAIN = "the listener drains"
    STOP_READING = "the client has ended, is too slow, or has broken the framing"
    GIVE_UP = "the time of the pending frames is over"
    FINISH = "no frame is pending, and none is to come"
    LOSE = "the connection is lost"


# A lookup of an Enum member costs as much as a function call.
OPEN: Final = FramedConnectionState.OPEN
DRAINING: Final = FramedConnectionState.DRAINING
CLOSING: Final = FramedConnectionState.CLOSING
GIVEN_UP: Final = FramedConnectionState.GIVEN_UP
LEAVING: Final = FramedConnectionState.LEAVING
LOST: Final = FramedConnectionState.LOST

TRANSITIONS: Final = MappingProxyType(
    {
        (OPEN, FramedConnectionEvent.DRAIN): DRAINING,
        (OPEN, FramedConnectionEvent.STOP_READING): CLOSING,
        (OPEN, FramedConnectionEvent.GIVE_UP): GIVEN_UP,
        (OPEN, FramedConnectionEvent.LOSE): LOST,
        (DRAINING, FramedConnectionEvent.STOP_READING): CLOSING,
        (DRAINING, FramedConnectionEvent.GIVE_UP): GIVEN_UP,
        (DRAINING, FramedConnectionEvent.FINISH): LEAVING,
        (DRAINING, FramedConnectionEvent.LOSE): LOST,
        (CLOSING, FramedConnectionEvent.GIVE_UP): GIVEN_UP,
        (CLOSING, FramedConnectionEvent.FINISH): LEAVING,
        (CLOSING, FramedConnectionEvent.LOSE): LOST,
        (GIVEN_UP, FramedConnectionEvent.FINISH): LEAVING,
        (GIVEN_UP, FramedConnectionEvent.LOSE): LOST,
        (LEAVING, FramedConnectionEvent.LOSE): LOST,
    }
)
"""The state that follows a state and an event. Other events change nothing."""
