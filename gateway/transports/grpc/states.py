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
from types import MappingProxyType
from typing import Final


class GrpcConnectionState(enum.Enum):
    """Which new calls a connection accepts."""

    OPEN = "all"
    IDLE = "all; nothing watches it until its client sends"
    LEAVING = "those that the client sent before the first GOAWAY arrived"
    FINAL = "none; it closes after the last call"
    LOST = "none; there is no connection any more"


class GrpcConnectionEvent(enum.Enum):
    """What moves a connection."""

    SILENCE = "it has had no call for a while"
    WAKE = "the client sends, or a limit is near"
    ANNOUNCE = "the server drains, or the connection is too old, or was silent for too long"
    CLOSE = "it was announced long enough ago, or the client floods it, or its calls are cancelled"
    LOSE = "the connection is lost"


class GrpcCallState(enum.Enum):
    """How far a call is."""

    RECEIVING = "its request arrives, or its task has not begun"
    RUNNING = "its task runs, and has sent nothing"
    RESPONDING = "its task runs, and has sent header fields"
    OVER = "it has ended"


class GrpcCallEvent(enum.Enum):
    """What moves a call."""

    RUN = "its task begins"
    RESPOND = "its header fields are sent before its trailers"
    END = "its trailers are sent, or its stream is reset"


# A lookup of an Enum member costs as much as a function call.
OPEN: Final = GrpcConnectionState.OPEN
IDLE: Final = GrpcConnectionState.IDLE
LEAVING: Final = GrpcConnectionState.LEAVING
FINAL: Final = GrpcConnectionState.FINAL
LOST: Final = GrpcConnectionState.LOST
RECEIVING: Final = GrpcCallState.RECEIVING
RUNNING: Final = GrpcCallState.RUNNING
RESPONDING: Final = GrpcCallState.RESPONDING
OVER: Final = GrpcCallState.OVER

TRANSITIONS: Final = MappingProxyType(
    {
        (RECEIVING, GrpcCallEvent.RUN): RUNNING,
        (RECEIVING, GrpcCallEvent.END): OVER,
        (RUNNING, GrpcCallEvent.RESPOND): RESPONDING,
        (RUNNING, GrpcCallEvent.END): OVER,
        (RESPONDING, GrpcCallEvent.END): OVER,
    }
)
"""The state of a call that follows a state and an event. No other event happens in a state."""

CONNECTION_TRANSITIONS: Final = MappingProxyType(
    {
        (OPEN, GrpcConnectionEvent.SILENCE): IDLE,
        (OPEN, GrpcConnectionEvent.ANNOUNCE): LEAVING,
        (OPEN, GrpcConnectionEvent.CLOSE): FINAL,
        (OPEN, GrpcConnectionEvent.LOSE): LOST,
        (IDLE, GrpcConnectionEvent.WAKE): OPEN,
        (IDLE, GrpcConnectionEvent.LOSE): LOST,
        (LEAVING, GrpcConnectionEvent.CLOSE): FINAL,
        (LEAVING, GrpcConnectionEvent.LOSE): LOST,
        (FINAL, GrpcConnectionEvent.LOSE): LOST,
    }
)
"""The state of a connection that follows a state and an event. Other events change nothing."""
