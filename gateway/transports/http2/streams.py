"""Streams of an HTTP/2 connection, and what waits to be written for the peer's windows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from gateway.transports.http2 import frames as h2
from gateway.transports.http2.flood_control import MESSAGE_REFUND, RESPONSE_REFUND, FloodBudget
from gateway.transports.http2.frames import FRAME_HEAD, frame_head
from gateway.transports.http2.hpack import EMPTY_TABLE
from gateway.wire.http import Buffer, size_of

# Up to here head, message and trailers are joined: one buffer costs less than six. No peer's frames
# are so small that one of these would not fit.
_JOINED_BYTES: Final = 8192
# What one stream may write before it is another's turn.
_TURN_BYTES: Final = 256 * 1024
_pack = FRAME_HEAD.pack


class Http2Stream:
    """One stream.

    Attributes:
        number: On the wire.
        owner: Whatever the driver keeps for it.
        room: What the peer still takes.
        window: What the peer may still send.
        unread: Bytes that have come and that its owner has not taken over yet.
        written: Bytes of it that were written after they had to wait.
        coming: What it has announced, which the window no longer holds, and what has not come of
            it, or was not told yet.
        ended_here: We send nothing more.
        ended_there: The peer sends nothing more.
        owed: Bytes that the peer has announced and not sent; None where it announced none.
        waiting: What the peer's windows hold back.
        tail: The trailers after it.
        end_waits: The end of the stream waits behind it.
    """

    __slots__ = (
        "_seen",
        "_still_since",
        "_waits_since",
        "coming",
        "end_waits",
        "expected_bytes",
        "local_closed",
        "number",
        "owner",
        "remote_closed",
        "room",
        "tail",
        "unread",
        "waiting",
        "window",
        "written",
    )

    def __init__(self, number: int, room: int, window: int, owner: Any) -> None:
        self.number = number
        self.owner = owner
        self.room = room
        self.window = window
        self.coming = 0
        self.local_closed = False
        self.remote_closed = False
        self.expected_bytes: int | None = None
        self.waiting: deque[memoryview] | None = None
        self.tail: bytes | None = None
        self.end_waits = False
        self.unread = 0
        self.written = 0
        self._seen = 0
        self._still_since = 0.0
        self._waits_since: float | None = None

    def short_by(self, missing: int) -> int:
        """Return how much the window lacks for *missing* bytes to come, if it is too small."""
        return missing - self.window - self.coming

    def wait(self) -> None:
        """Begin to wait for the peer's windows."""
        self.waiting = deque()
        self.written = self._seen = 0
        self._waits_since = None

    def stalled(self, now: float) -> tuple[float, float]:
        """Return for how long nothing of what waits was written, and for how long it waits.

        As far as is known: looked at from time to time.
        """
        if self.waiting is None:
            return 0.0, 0.0
        if self._waits_since is None:
            self._waits_since = self._still_since = now
        if self.written != self._seen:
            self._seen, self._still_since = self.written, now
        return now - self._still_since, now - self._waits_since


class Http2StreamWriter:
    """Writes streams as far as the peer's windows and the driver let it.

    Args:
        out: Where frames go.
        credit: Of the peer, which earns by messages it is sent.
        streams: Of the connection: one that has ended both ways goes.
        sent: Told when nothing of a stream waits any more.

    Attributes:
        initial_window: Room of a new stream.
        frame_bytes: Largest frame of the peer.
        held: The driver can write nothing for now.
        shrunk: The peer has made its table of header fields smaller: the next block has to say
            that it is heeded, though we put nothing into that table.
    """

    def __init__(
        self,
        out: list[Buffer],
        credit: FloodBudget,
        streams: dict[int, Http2Stream],
        sent: Callable[[Http2Stream], None],
    ) -> None:
        self._out = out
        self._credit = credit
        self._streams = streams
        self._sent = sent
        self._room = h2.DEFAULT_WINDOW
        self._waiting: dict[int, Http2Stream] = {}
        self.initial_window = h2.DEFAULT_WINDOW
        self.frame_bytes = h2.DEFAULT_FRAME
        self.held = False
        self.shrunk = False

    def close(self) -> None:
        """Tell nobody any more: the connection is lost."""
        self._sent = _nobody

    @property
    def idle(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def send(
        self,
        stream: Http2Stream,
        block: bytes,
        buffers: Sequence[Buffer],
        tail: bytes | None,
        size: int | None = None,
    ) -> None:
        """Write all of a stream: head, message and trailers, or the end on the message itself.

        Args:
            stream: Nothing has been written of it.
            block: Header fields to go first.
            buffers: The message.
            tail: Trailers.
            size: Of the message, where that is known.
        """
        if size is None:
            size = size_of(buffers)
        end = b"" if tail is None else tail
        if (
            size + len(block) + len(end) <= _JOINED_BYTES
            and size <= self._room
            and size <= stream.room
            and not self.held
            and not self.shrunk
        ):
            number = stream.number
            parts: list[Buffer] = [_pack(0, len(block), h2.HEADERS, h2.END_HEADERS, number), block]
            parts += (
                _pack(0, size, h2.DATA, h2.END_STREAM if tail is None else 0, number),
                *buffers,
            )
            if tail is not None:
                parts += (_pack(0, len(tail), h2.HEADERS, _LAST, number), tail)
            self._out.append(b"".join(parts))
            self._room -= size
            stream.room -= size
            stream.local_closed = True
            self._credit.left += RESPONSE_REFUND
            if stream.remote_closed:
                del self._streams[number]
            return
        self.head(stream, block)
        self.data(stream, buffers)
        self.end(stream, tail)

    def head(self, stream: Http2Stream, block: bytes, *, end: bool = False) -> None:
        """Write header fields, with *end* as the stream's last."""
        flags = h2.END_STREAM if end else 0
        most = self.frame_bytes
        if self.shrunk:
            self.shrunk = False
            block = EMPTY_TABLE + block
        kind = h2.HEADERS
        for begin in range(0, len(block) or 1, most):
            piece = block[begin : begin + most]
            if begin + most >= len(block):
                flags |= h2.END_HEADERS
            self._out.append(h2.frame(kind, flags, stream.number, piece))
            kind, flags = h2.CONTINUATION, 0
        if end:
            self._ended(stream)

    def data(self, stream: Http2Stream, buffers: Sequence[Buffer]) -> None:
        """Write a part of a stream, or as much as there is room for; the rest waits."""
        if stream.waiting is None:
            stream.wait()
        assert stream.waiting is not None  # noqa: S101  # it waits
        stream.waiting.extend(memoryview(buffer) for buffer in buffers if len(buffer))
        self._waiting[stream.number] = stream
        self._credit.left += MESSAGE_REFUND
        self.pump()

    def end(self, stream: Http2Stream, tail: bytes | None) -> None:
        """End a stream after what waits: with trailers, or without."""
        stream.tail = tail
        stream.end_waits = True
        if stream.waiting is None:
            self._finish(stream)

    def forget(self, stream: Http2Stream) -> None:
        """Drop what waits of a stream that has gone."""
        self._waiting.pop(stream.number, None)
        stream.waiting = None
        stream.end_waits = False

    def widen(self, stream: Http2Stream | None, size: int) -> bool:
        """Add to the room of a stream, or of the connection; False when it grows too large."""
        if stream is None:
            self._room += size
            return self._room <= h2.MAX_WINDOW
        stream.room += size
        return stream.room <= h2.MAX_WINDOW

    def begin_at(self, window: int, streams: Iterable[Http2Stream]) -> bool:
        """Set the room that streams begin with, and correct that of *streams*."""
        difference, self.initial_window = window - self.initial_window, window
        fits = True
        for stream in streams:
            stream.room += difference
            fits = fits and stream.room <= h2.MAX_WINDOW
        return fits

    def pump(self) -> int:
        """Write what there is room for, stream by stream in turn; return how many bytes."""
        total = 0
        progress = True
        while progress and self._waiting and not self.held:
            progress = False
            for stream in list(self._waiting.values()):
                written = self._write(stream)
                total += written
                if stream.waiting:
                    progress = progress or written > 0
                else:
                    self._waiting.pop(stream.number, None)
                    stream.waiting = None
                    if stream.end_waits:
                        self._finish(stream)
                    self._sent(stream)
        return total

    def _write(self, stream: Http2Stream) -> int:
        """Write up to one turn of a stream; return how many bytes."""
        waiting = stream.waiting
        most = self.frame_bytes
        left = min(_TURN_BYTES, stream.room, self._room)
        total = 0
        while waiting and left > 0:
            whole = min(left, len(waiting[0])) // most * most
            if whole:
                self._out += _full_frames(waiting, whole, most, stream.number)
                left -= whole
                total += whole
                continue
            size = min(left, most)
            pieces = _take(waiting, size)
            size = size_of(pieces)
            self._out.append(frame_head(size, h2.DATA, 0, stream.number))
            self._out += pieces
            left -= size
            total += size
        stream.room -= total
        self._room -= total
        stream.written += total
        return total

    def _ended(self, stream: Http2Stream) -> None:
        """Note that the end of a stream is written."""
        stream.local_closed = True
        if stream.remote_closed:
            self._streams.pop(stream.number, None)

    def _finish(self, stream: Http2Stream) -> None:
        stream.end_waits = False
        self._credit.left += RESPONSE_REFUND
        if stream.tail is not None:
            self.head(stream, stream.tail, end=True)
        else:
            self._out.append(frame_head(0, h2.DATA, h2.END_STREAM, stream.number))
            self._ended(stream)


_LAST: Final = h2.END_HEADERS | h2.END_STREAM


def _full_frames(
    waiting: deque[memoryview], size: int, most: int, number: int
) -> list[bytes | memoryview]:
    """Take the first *size* bytes, as many frames of *most* bytes, out of the first buffer."""
    first = waiting[0]
    head = frame_head(most, h2.DATA, 0, number)
    frames: list[bytes | memoryview] = [head] * (2 * size // most)
    frames[1::2] = [first[begin : begin + most] for begin in range(0, size, most)]
    if size < len(first):
        waiting[0] = first[size:]
    else:
        waiting.popleft()
    return frames


def _take(waiting: deque[memoryview], size: int) -> list[memoryview]:
    """Take the first *size* bytes, or all there are."""
    pieces = []
    while waiting and size:
        first = waiting[0]
        if len(first) <= size:
            pieces.append(waiting.popleft())
            size -= len(first)
        else:
            pieces.append(first[:size])
            waiting[0] = first[size:]
            size = 0
    return pieces


def _nobody(_stream: Http2Stream) -> None:
    """Tell nobody."""
