"""The states of an HTTP/2 stream, and what moves it from one to another.

A stream is open both ways, until each side has sent its end.  The end of this side may have to
follow data that waits for the windows of the peer: then it is pending.  A reset, by either side, or
the loss of the connection closes a stream both ways at once.

OPEN is the first state: an idle stream, or one reserved for a push, has no object.  CLOSED is
the last one.  A closed stream is not in the streams of its connection, and no data of it waits.

Source: RFC 9113 5.1.
"""

import enum
from types import MappingProxyType
from typing import Final


class Http2StreamState(enum.Enum):
    """Which sides of a stream may still send."""

    OPEN = "both"
    ENDING = "both; the end of this side follows the data that waits"
    HALF_CLOSED_LOCAL = "the peer"
    HALF_CLOSED_REMOTE = "this side"
    ENDING_REMOTE = "this side, which ends after the data that waits"
    CLOSED = "none"


class Http2StreamEvent(enum.Enum):
    """What moves a stream."""

    PEND_END = "the end of this side must follow data that waits"
    SEND_END = "the end of this side is written"
    RECEIVE_END = "the end of the peer has arrived"
    RESET = "a side resets the stream, or the connection is lost"


# A lookup of an Enum member costs as much as a function call.
OPEN: Final = Http2StreamState.OPEN
ENDING: Final = Http2StreamState.ENDING
HALF_CLOSED_LOCAL: Final = Http2StreamState.HALF_CLOSED_LOCAL
HALF_CLOSED_REMOTE: Final = Http2StreamState.HALF_CLOSED_REMOTE
ENDING_REMOTE: Final = Http2StreamState.ENDING_REMOTE
CLOSED: Final = Http2StreamState.CLOSED

PENDING_ENDS: Final = (ENDING, ENDING_REMOTE)
"""States in which the end of this side follows the data that waits."""

REMOTE_ENDED: Final = (HALF_CLOSED_REMOTE, ENDING_REMOTE, CLOSED)
"""States in which the peer may send nothing more. A set would hash each member in Python."""

TRANSITIONS: Final = MappingProxyType(
    {
        (OPEN, Http2StreamEvent.PEND_END): ENDING,
        (OPEN, Http2StreamEvent.SEND_END): HALF_CLOSED_LOCAL,
        (OPEN, Http2StreamEvent.RECEIVE_END): HALF_CLOSED_REMOTE,
        (OPEN, Http2StreamEvent.RESET): CLOSED,
        (ENDING, Http2StreamEvent.SEND_END): HALF_CLOSED_LOCAL,
        (ENDING, Http2StreamEvent.RECEIVE_END): ENDING_REMOTE,
        (ENDING, Http2StreamEvent.RESET): CLOSED,
        (HALF_CLOSED_LOCAL, Http2StreamEvent.RECEIVE_END): CLOSED,
        (HALF_CLOSED_LOCAL, Http2StreamEvent.RESET): CLOSED,
        (HALF_CLOSED_REMOTE, Http2StreamEvent.PEND_END): ENDING_REMOTE,
        (HALF_CLOSED_REMOTE, Http2StreamEvent.SEND_END): CLOSED,
        (HALF_CLOSED_REMOTE, Http2StreamEvent.RESET): CLOSED,
        (ENDING_REMOTE, Http2StreamEvent.SEND_END): CLOSED,
        (ENDING_REMOTE, Http2StreamEvent.RESET): CLOSED,
    }
)
"""The state that follows a state and an event. Other events change nothing."""
