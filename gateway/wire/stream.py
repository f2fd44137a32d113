"""Framed byte streams as values: what TCP and unix-socket transports and their codecs exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.wire.http import Buffer


@dataclass(frozen=True, slots=True)
class Frame:
    """One message on a byte stream.

    Attributes:
        payload: Never joined by a codec.
        correlation: Matches answers to questions where the protocol has such a number.
        deadline: On the clock of `time.monotonic`; None for none.
    """

    payload: Sequence[Buffer]
    correlation: int | None = None
    deadline: float | None = None


class Framer(Protocol):
    """Cuts a byte stream into frames, and back; keeps the state of one connection."""

    def receive(self, data: bytes, /) -> list[Frame]:
        """Return the frames that *data* completes; b"" is the end of the stream.

        Raises:
            MalformedMessage: The stream cannot be followed any further.
            TooLarge: A frame declares more than the limit, before anything is allocated.
        """
        ...

    def send(self, frame: Frame, /) -> list[Buffer]:
        """Return the buffers that carry *frame*."""
        ...
