"""The messages of a gRPC stream: each has a flag and its length before it.

Source: gRPC over HTTP/2, "Length-Prefixed-Message".
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from gateway.accelerator import accelerated
from gateway.ir.errors import MalformedMessage, TooLarge, Unsupported
from gateway.transports.grpc.headers import with_metadata
from gateway.transports.http2.frames import join_stream
from gateway.transports.http2.streams import JOINED_BYTES
from gateway.transports.reservation import Reservation
from gateway.transports.reserved_buffer import message_memory
from gateway.wire.grpc import Metadata
from gateway.wire.http import Buffer, size_of

PREFIX_BYTES: Final = 5
_PREFIX: Final = Struct(">BI")
_CODINGS: Final = frozenset({"gzip", "deflate"})


class GrpcMessage(msgspec.Struct, frozen=True):
    """A complete message.

    Attributes:
        view: Its bytes as received.
        coding: Its compression; None for none.
    """

    view: memoryview
    coding: str | None = None


class MessageReader:
    """Joins the parts of messages.

    Args:
        limit_bytes: The size limit of a message as received.
        coding: The compression of messages with the compressed flag.

    Attributes:
        missing: How many bytes of the current message are missing; 0 while its length is unknown.
    """

    __slots__ = ("_buffer", "_coding", "_filled", "_flag", "_head", "_limit", "_size", "missing")

    def __init__(self, limit_bytes: int, coding: str) -> None:
        self._limit = limit_bytes
        self._coding = coding
        self._head = b""
        self._flag = 0
        self._size = 0
        self._filled = 0
        self._buffer: bytearray | memoryview | None = None
        self.missing = 0

    @property
    def is_empty(self) -> bool:
        """Whether no message has started."""
        return not self._head and self._buffer is None

    @property
    def size(self) -> int:
        """The length of the current message."""
        return self._size

    @property
    def filled(self) -> int:
        """How many bytes of it have arrived."""
        return self._filled

    def feed(self, view: memoryview) -> list[GrpcMessage]:
        """Parse a part of the stream; return the messages that are complete now.

        A message that arrived in one piece is a view of it; others are copied once.

        Raises:
            TooLarge: The length of a message exceeds the limit.
            MalformedMessage: A flag is neither 0 nor 1, or no compression was agreed on.
            Unsupported: The compression is unknown.
        """
        messages: list[GrpcMessage] = []
        while len(view):
            if self._buffer is not None:
                view = self._fill(view)
                if not self.missing:
                    whole = memoryview(self._buffer).toreadonly()
                    messages.append(self._message(whole))
                continue
            if self._head or len(view) < PREFIX_BYTES:
                length = PREFIX_BYTES - len(self._head)
                self._head += view[:length]
                view = view[length:]
                if len(self._head) < PREFIX_BYTES:
                    break
                self._begin(self._head)
                self._head = b""
            else:
                self._begin(view)
                view = view[PREFIX_BYTES:]
            if len(view) >= self._size:
                messages.append(self._message(view[: self._size]))
                view = view[self._size :] if len(view) > len(messages[-1].view) else EMPTY
            else:
                self._buffer = bytearray()
        return messages

    def room(self) -> memoryview | None:
        """Return where all but the last byte of the current message belong, if it has a place."""
        buffer = self._buffer
        return buffer[self._filled : -1] if isinstance(buffer, memoryview) else None

    def advance(self, size: int) -> None:
        """Note that *size* bytes were written into `room`."""
        self._filled += size
        self.missing -= size

    def reserve(self, held: Reservation, *, lasts: bool) -> None:
        """Allocate the buffer of the current message, which is filled as far as memory is reserved.

        Args:
            held: The reservation of the message.
            lasts: Whether the reservation lasts until the message is freed, which is a response.
        """
        if isinstance(self._buffer, bytearray):
            whole = message_memory(self._size, held, lasts=lasts)
            whole[: self._filled] = self._buffer
            self._buffer = whole

    def _begin(self, prefix: bytes | memoryview) -> None:
        self._flag = prefix[0]
        size = int.from_bytes(prefix[1:PREFIX_BYTES], "big")
        if self._flag > 1:
            raise MalformedMessage(f"a message begins with {self._flag}; expected the flag 0 or 1")
        if size > self._limit:
            raise TooLarge(
                f"the message has {size} bytes, at most {self._limit} are allowed",
                limit="message_bytes",
            )
        if self._flag and self._coding not in _CODINGS:
            if self._coding == "identity":
                raise MalformedMessage(
                    "a message is compressed, and grpc-encoding does not say how"
                )
            raise Unsupported(
                f"grpc-encoding {self._coding[:40]!r} is unknown, supported: gzip, deflate"
            )
        self._size = self.missing = size
        self._filled = 0

    def _fill(self, view: memoryview) -> memoryview:
        buffer = self._buffer
        assert buffer is not None  # noqa: S101  # the caller looked
        piece = view[: self.missing]
        if isinstance(buffer, bytearray):
            buffer += piece
        else:
            buffer[self._filled : self._filled + len(piece)] = piece
        self._filled += len(piece)
        self.missing -= len(piece)
        return view[len(piece) :]

    def _message(self, view: memoryview) -> GrpcMessage:
        self._buffer = None
        self.missing = 0
        return GrpcMessage(view, self._coding if self._flag else None)


EMPTY: Final = memoryview(b"")


@accelerated
def whole_message(view: memoryview, limit_bytes: int) -> memoryview | None:
    """Return the message in *view*, the first data of a stream, if it is exactly one.

    The result is None for anything else, which `MessageReader` reads.
    """
    size = len(view) - PREFIX_BYTES
    if not 0 <= size <= limit_bytes or _PREFIX.unpack_from(view) != (0, size):
        return None
    return view[PREFIX_BYTES:]


@accelerated
def join_call(
    number: int,
    block: bytes,
    head: Metadata,
    message: Sequence[Buffer],
    size: int,
    tail: bytes | None,
    trailers: Metadata,
) -> bytes | None:
    """Return the frames of a call or of its response; None where one buffer is not best.

    Args:
        number: The stream.
        block: The beginning of the header block.
        head: Further fields of it, as metadata.
        message: The bytes of the message.
        size: Their number.
        tail: The beginning of the block of the trailers; None to end the stream with the message.
        trailers: Further fields of it.
    """
    block = with_metadata(block, head)
    if tail is not None:
        tail = with_metadata(tail, trailers)
    framed = PREFIX_BYTES + size
    if len(block) + framed + len(tail or b"") > JOINED_BYTES:
        return None
    return join_stream(number, block, frame_message(message, size), framed, tail)


def frame_message(message: Sequence[Buffer], size: int | None = None) -> list[Buffer]:
    """Return a message with its prefix, not compressed.

    Args:
        message: Its bytes; more of them may follow.
        size: Of all of it, where that is known.
    """
    return [_PREFIX.pack(0, size_of(message) if size is None else size), *message]
