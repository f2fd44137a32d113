"""The messages of a gRPC stream: each has a flag and its length before it.

Source: gRPC over HTTP/2, "Length-Prefixed-Message".
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from gateway.ir.errors import MalformedMessage, TooLarge, Unsupported
from gateway.transports.admission import Reservation
from gateway.transports.reserved_buffer import message_memory
from gateway.wire.http import Buffer, size_of

PREFIX_BYTES: Final = 5
_PREFIX: Final = Struct(">BI")
_CODINGS: Final = frozenset({"gzip", "deflate"})


class GrpcMessage(msgspec.Struct, frozen=True):
    """A message that has come whole.

    Attributes:
        view: As it came.
        coding: What it is compressed with; None for nothing.
    """

    view: memoryview
    coding: str | None = None


class MessageReader:
    """Puts messages together.

    Args:
        limit_bytes: Of a message, as it comes.
        coding: What compressed messages are compressed with.

    Attributes:
        missing: Bytes of the message that is coming; 0 while its length is not known.
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
    def empty(self) -> bool:
        """Whether no message has begun."""
        return not self._head and self._buffer is None

    @property
    def size(self) -> int:
        """Bytes of the message that is coming, all of them."""
        return self._size

    @property
    def filled(self) -> int:
        """Bytes of it that have come."""
        return self._filled

    def feed(self, view: memoryview) -> list[GrpcMessage]:
        """Take a part of the stream; return the messages that are whole now.

        A message that came in one piece is a view of it; others are copied once.

        Raises:
            TooLarge: A message is declared larger than the limit.
            MalformedMessage: A flag is neither 0 nor 1, or nothing was agreed to compress with.
            Unsupported: A message is compressed in a way that is not known.
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
                taken = PREFIX_BYTES - len(self._head)
                self._head += view[:taken]
                view = view[taken:]
                if len(self._head) < PREFIX_BYTES:
                    break
                self._begin(self._head)
                self._head = b""
            else:
                self._begin(view)
                view = view[PREFIX_BYTES:]
            if len(view) >= self._size:
                messages.append(self._message(view[: self._size]))
                view = view[self._size :] if len(view) > len(messages[-1].view) else _NOTHING
            else:
                self._buffer = bytearray()
        return messages

    def fill(self, views: Sequence[memoryview]) -> bool:
        """Take parts from the middle of a message whose memory is ready; return whether it is."""
        buffer, size = self._buffer, size_of(views)
        if size >= self.missing or not isinstance(buffer, memoryview):
            return False
        at = self._filled
        for view in views:
            buffer[at : at + len(view)] = view
            at += len(view)
        self._filled = at
        self.missing -= size
        return True

    def reserve(self, held: Reservation | None = None) -> None:
        """Have the whole message's memory ready: as much may come as its bytes are allowed for.

        Args:
            held: Holds its bytes from now on, for as long as the message is used.
        """
        if isinstance(self._buffer, bytearray):
            whole = message_memory(self._size, held)
            whole[: self._filled] = self._buffer
            self._buffer = whole

    def _begin(self, prefix: bytes | memoryview) -> None:
        self._flag = prefix[0]
        size = int.from_bytes(prefix[1:PREFIX_BYTES], "big")
        if self._flag > 1:
            raise MalformedMessage(f"a message begins with {self._flag}, needed is 0 or 1")
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


_NOTHING: Final = memoryview(b"")


def whole_message(view: memoryview, limit_bytes: int) -> memoryview | None:
    """Return the message that *view*, the first of a stream, has and nothing else.

    None for all that is not as simple: it is for a `MessageReader` to say what it is.
    """
    size = len(view) - PREFIX_BYTES
    if not 0 <= size <= limit_bytes or _PREFIX.unpack_from(view) != (0, size):
        return None
    return view[PREFIX_BYTES:]


def frame_message(message: Sequence[Buffer], size: int | None = None) -> list[Buffer]:
    """Return a message with its prefix, not compressed.

    Args:
        message: Its bytes; more of them may follow.
        size: Of all of it, where that is known.
    """
    return [_PREFIX.pack(0, size_of(message) if size is None else size), *message]
