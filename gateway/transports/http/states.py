"""The states of a connection of an HTTP listener, and what moves it from one to another.

Both implementations have them.  They decide which response is the last: while a connection is open,
the client decides; else it is the last one that is pending.  Each implementation reads in its own
way.

OPEN is the first state.  LOST is the last one: the connection holds no slot, timer or memory, and
no task of it goes on.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class ConnectionState(enum.Enum):
    """Whether a connection carries further requests."""

    OPEN = "as the client requests"
    ENDING = "those that are pending when the listener closes"
    HALF_CLOSED = "those that are pending: the client sends no more"
    BROKEN = "those before what cannot be read"
    LOST = "none: there is no connection any more"


class Event(enum.Enum):
    """What moves a connection."""

    ANNOUNCE = "the listener closes, or does not verify the client any more"
    HALF_CLOSE = "the client has ended its side while requests are pending"
    BREAK = "a request cannot be read, its head came too slowly, or it met a bug"
    LOSE = "the connection is lost"


# A lookup of an Enum member costs as much as a function call.
OPEN: Final = ConnectionState.OPEN
ENDING: Final = ConnectionState.ENDING
HALF_CLOSED: Final = ConnectionState.HALF_CLOSED
BROKEN: Final = ConnectionState.BROKEN
LOST: Final = ConnectionState.LOST

TRANSITIONS: Final[Mapping[tuple[ConnectionState, Event], ConnectionState]] = MappingProxyType(
    {
        (OPEN, Event.ANNOUNCE): ENDING,
        (OPEN, Event.HALF_CLOSE): HALF_CLOSED,
        (OPEN, Event.BREAK): BROKEN,
        (OPEN, Event.LOSE): LOST,
        (ENDING, Event.BREAK): BROKEN,
        (ENDING, Event.LOSE): LOST,
        (HALF_CLOSED, Event.ANNOUNCE): ENDING,
        (HALF_CLOSED, Event.BREAK): BROKEN,
        (HALF_CLOSED, Event.LOSE): LOST,
        (BROKEN, Event.LOSE): LOST,
    }
)
"""The state that follows a state and an event. Other events change nothing."""
