"""The states of a connection of a gRPC server, and of a call on it; and what moves each of them.

A connection accepts calls until the server drains, or until the connection is old or silent for too
long.  Then it sends a GOAWAY, and still accepts calls that were sent before that arrived.  Soon
it accepts none, and closes after the last one.  An idle connection is left alone until its client
sends, or until its limits are near.

A call receives its request, runs, and has ended once its trailers are sent, or its stream is reset.
A call that must end while it runs first waits for its task.

OPEN and RECEIVING are the first states.  A connection that is LOST has no calls and counts for no
limit.  A call that is OVER holds no slot, timer or memory, and no task of it goes on.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class ConnectionState(enum.Enum):
    """Which new calls a connection accepts."""

    OPEN = "all"
    IDLE = "all; nothing watches it until its client sends"
    LEAVING = "those that the client sent before the first GOAWAY arrived"
    FINAL = "none; it closes after the last call"
    LOST = "none; there is no connection any more"


class ConnectionEvent(enum.Enum):
    """What moves a connection."""

    SILENCE = "it has had no call for a while"
    WAKE = "the client sends, or a limit is near"
    ANNOUNCE = "the server drains, or the connection is too old, or was silent for too long"
    CLOSE = "it was announced long enough ago, or the client floods it, or its calls are cancelled"
    LOSE = "the connection is lost"


class CallState(enum.Enum):
    """How far a call is."""

    RECEIVING = "its request arrives, or its task has not begun"
    RUNNING = "its task runs, and has sent nothing"
    RESPONDING = "its task runs, and has sent header fields"
    OVER = "it has ended"


class CallEvent(enum.Enum):
    """What moves a call."""

    RUN = "its task begins"
    RESPOND = "its header fields are sent before its trailers"
    END = "its trailers are sent, or its stream is reset"


# A lookup of an Enum member costs as much as a function call.
OPEN: Final = ConnectionState.OPEN
IDLE: Final = ConnectionState.IDLE
LEAVING: Final = ConnectionState.LEAVING
FINAL: Final = ConnectionState.FINAL
LOST: Final = ConnectionState.LOST
RECEIVING: Final = CallState.RECEIVING
RUNNING: Final = CallState.RUNNING
RESPONDING: Final = CallState.RESPONDING
OVER: Final = CallState.OVER

TRANSITIONS: Final[Mapping[tuple[CallState, CallEvent], CallState]] = MappingProxyType(
    {
        (RECEIVING, CallEvent.RUN): RUNNING,
        (RECEIVING, CallEvent.END): OVER,
        (RUNNING, CallEvent.RESPOND): RESPONDING,
        (RUNNING, CallEvent.END): OVER,
        (RESPONDING, CallEvent.END): OVER,
    }
)
"""The state of a call that follows a state and an event. No other event happens in a state."""

CONNECTION_TRANSITIONS: Final[Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState]] = (
    MappingProxyType(
        {
            (OPEN, ConnectionEvent.SILENCE): IDLE,
            (OPEN, ConnectionEvent.ANNOUNCE): LEAVING,
            (OPEN, ConnectionEvent.CLOSE): FINAL,
            (OPEN, ConnectionEvent.LOSE): LOST,
            (IDLE, ConnectionEvent.WAKE): OPEN,
            (IDLE, ConnectionEvent.LOSE): LOST,
            (LEAVING, ConnectionEvent.CLOSE): FINAL,
            (LEAVING, ConnectionEvent.LOSE): LOST,
            (FINAL, ConnectionEvent.LOSE): LOST,
        }
    )
)
"""The state of a connection that follows a state and an event. Other events change nothing."""
