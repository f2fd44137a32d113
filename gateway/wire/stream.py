"""Frames of byte streams as values, which TCP and unix-socket transports and codecs exchange."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from gateway.ir.context import NO_CLIENT, Client
from gateway.ir.errors import GatewayError
from gateway.wire.http import Buffer, size_of, view_of


class Frame(Struct, frozen=True):
    """One message on a byte stream.

    Attributes:
        payload: Codecs do not join its buffers.
        correlation: The number that matches a response to its request, where the protocol has one.
        deadline: On the clock of `time.monotonic`; None for none.
        extra_bytes: Memory to read it besides its payload, such as for decompression.
        client: The sender, on a server.
    """

    payload: Sequence[Buffer]
    correlation: int | None = None
    deadline: float | None = None
    extra_bytes: int = 0
    client: Client = NO_CLIENT

    @property
    def view(self) -> memoryview:
        """The payload in one piece; joins its buffers if there are several."""
        return view_of(self.payload)

    @property
    def size_bytes(self) -> int:
        """Bytes of the payload."""
        parts = self.payload
        return len(parts[0]) if len(parts) == 1 else size_of(parts)


class Framer(Protocol):
    """Cuts a byte stream into frames, and writes frames; has the state of one connection.

    Attributes:
        wanted: Size of the incomplete frame, as far as it is known, before memory is allocated
            for it; 0 between frames.
        held: Bytes of the incomplete frame that have come.
        fault: The error after which nothing more can be read; None for none.
    """

    @property
    def wanted(self) -> int: ...  # noqa: D102
    @property
    def held(self) -> int: ...  # noqa: D102
    @property
    def fault(self) -> GatewayError | None: ...  # noqa: D102

    def receive(self, data: bytes, /) -> list[Frame]:
        """Return the frames that *data* completes; b"" is the end of the stream.

        Frames before an error are returned; `fault` has the error then, and the next call raises
        it.

        Raises:
            MalformedMessage: The stream cannot be parsed any further.
            TooLarge: A frame declares more than the limit, before anything is allocated.
        """
        ...

    def send(self, frame: Frame, /) -> list[Buffer]:
        """Return the buffers of *frame*; none where the protocol has no such message."""
        ...

    def incomplete(self) -> Frame | None:
        """Return the beginning of the incomplete frame, once it has all but its message."""
        ...

    def begin(self) -> bytes:
        """Return bytes with which every next frame begins; b"" where there are none.

        `send` leaves them out then.  A server writes them to a half-closed client to detect
        whether it still reads: nothing else can be written before the response.
        """
        ...
