"""Framed byte streams as values: what TCP and unix-socket transports and their codecs exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from gateway.ir.errors import GatewayError
from gateway.wire.http import Buffer


class Frame(Struct, frozen=True):
    """One message on a byte stream.

    Attributes:
        payload: Never joined by a codec.
        correlation: Matches answers to questions where the protocol has such a number.
        deadline: On the clock of `time.monotonic`; None for none.
        extra_bytes: What reading it takes besides the bytes of its payload, such as those that
            are compressed in it.
    """

    payload: Sequence[Buffer]
    correlation: int | None = None
    deadline: float | None = None
    extra_bytes: int = 0


class Framer(Protocol):
    """Cuts a byte stream into frames, and back; keeps the state of one connection.

    Attributes:
        wanted: Bytes that the frame which has begun has in all, as far as it has said; 0 between
            frames. Known before they are held.
        fault: Why nothing more can be read, once that is known.
    """

    @property
    def wanted(self) -> int: ...  # noqa: D102
    @property
    def fault(self) -> GatewayError | None: ...  # noqa: D102

    def receive(self, data: bytes, /) -> list[Frame]:
        """Return the frames that *data* completes; b"" is the end of the stream.

        Frames that come before a fault are returned: `fault` tells of it then, and so does the
        next call.

        Raises:
            MalformedMessage: The stream cannot be followed any further.
            TooLarge: A frame declares more than the limit, before anything is allocated.
        """
        ...

    def send(self, frame: Frame, /) -> list[Buffer]:
        """Return the buffers that carry *frame*; none where the protocol has no such message."""
        ...

    def begin(self) -> bytes:
        """Return the first bytes of the frame sent next, whatever it is; b"" where none are known.

        `send` leaves them out then. A server writes them to a client that has stopped sending, to
        learn whether it still reads: nothing else can be written before the answer.
        """
        ...
