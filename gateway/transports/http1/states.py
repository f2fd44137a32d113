"""What a native connection of an HTTP listener does with received bytes, and what changes that.

The first bytes decide between HTTP/1 and HTTP/2, unless the listener serves HTTP/1 only or the TLS
handshake chose HTTP/2.  HTTP/1 is read until a request cannot be read, or until the last response
is written.  A client that still sends then may lose that response by a reset, so what arrives is
dropped until it pauses.

UNDECIDED and READING are the first states.  LOST and HTTP2 are the last ones: the connection holds
no slot, timer or memory, and no task of it goes on.  HTTP/2 has states of its own.
"""

import enum
from types import MappingProxyType
from typing import Final


class InputState(enum.Enum):
    """What a connection does with received bytes."""

    UNDECIDED = "it keeps them until they tell HTTP/1 from HTTP/2"
    READING = "it reads requests"
    STOPPED = "it reads nothing more; complete requests are handled"
    LINGERING = "it drops them until the client pauses, and then closes"
    HTTP2 = "it passes them to HTTP/2"
    LOST = "there is no connection any more"


class InputEvent(enum.Enum):
    """What moves a connection."""

    RECEIVE_HTTP1 = "the first bytes are no beginning of HTTP/2"
    SWITCH = "the first bytes are the preface of HTTP/2, or the TLS handshake chose it"
    STOP = "a request cannot be read, or the last response is written"
    LINGER = "the last response is written, and the client still sends"
    LOSE = "the connection is lost"


# A lookup of an Enum member costs as much as a function call.
UNDECIDED: Final = InputState.UNDECIDED
READING: Final = InputState.READING
STOPPED: Final = InputState.STOPPED
LINGERING: Final = InputState.LINGERING
HTTP2: Final = InputState.HTTP2
LOST: Final = InputState.LOST

TRANSITIONS: Final = MappingProxyType(
    {
        (UNDECIDED, InputEvent.RECEIVE_HTTP1): READING,
        (UNDECIDED, InputEvent.SWITCH): HTTP2,
        (UNDECIDED, InputEvent.LOSE): LOST,
        (READING, InputEvent.STOP): STOPPED,
        (READING, InputEvent.LOSE): LOST,
        (STOPPED, InputEvent.LINGER): LINGERING,
        (STOPPED, InputEvent.LOSE): LOST,
        (LINGERING, InputEvent.LOSE): LOST,
    }
)
"""The state that follows a state and an event. Other events change nothing."""
