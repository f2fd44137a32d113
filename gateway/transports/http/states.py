"""The states of a connection of an HTTP listener, and what moves it from one to another.

Both implementations have them.  They decide which response is the last: while a connection is open,
the client decides; else it is the last one that is pending.  Each implementation reads in its own
way.

OPEN is the first state.  LOST is the last one: the connection holds no slot, timer or memory, and
no task of it goes on.
"""

import enum
from types import MappingProxyType
from typing import Final


class HttpConnectionState(enum.Enum):
    """Whether a connection carries further requests."""

    OPEN = "as the client requests"
    ENDING = "those that are pending when the listener closes"
    HALF_CLOSED = "those that are pending: the client sends no more"
    BROKEN = "those before what cannot be read"
    LOST = "none: there is no connection any more"


class HttpConnectionEvent(enum.Enum):
    """What moves a connection."""

    ANNOUNCE = "the listener closes, or does not verify the client any more"
    HALF_CLOSE = "the client has ended its side while requests are pending"
    BREAK = "a request cannot be read, its head came too slowly, or it met a bug"
    LOSE = "the connection is lost"


# A lookup of an Enum member costs as much as a function call.
OPEN: Final = HttpConnectionState.OPEN
ENDING: Final = HttpConnectionState.ENDING
HALF_CLOSED: Final = HttpConnectionState.HALF_CLOSED
BROKEN: Final = HttpConnectionState.BROKEN
LOST: Final = HttpConnectionState.LOST

TRANSITIONS: Final = MappingProxyType(
    {
        (OPEN, HttpConnectionEvent.ANNOUNCE): ENDING,
        (OPEN, HttpConnectionEvent.HALF_CLOSE): HALF_CLOSED,
        (OPEN, HttpConnectionEvent.BREAK): BROKEN,
        (OPEN, HttpConnectionEvent.LOSE): LOST,
        (ENDING, HttpConnectionEvent.BREAK): BROKEN,
        (ENDING, HttpConnectionEvent.LOSE): LOST,
        (HALF_CLOSED, HttpConnectionEvent.ANNOUNCE): ENDING,
        (HALF_CLOSED, HttpConnectionEvent.BREAK): BROKEN,
        (HALF_CLOSED, HttpConnectionEvent.LOSE): LOST,
        (BROKEN, HttpConnectionEvent.LOSE): LOST,
    }
)
"""The state that follows a state and an event. Other events change nothing."""
