"""FrameReader: parses the bytes of an HTTP/2 connection into frames, incrementally.

The content of DATA frames is passed on as it arrives, without padding.  That of a large message,
whose place is known, is copied there together, for all frames of a read; the rest of a large frame
may be received there.  The fragments of a header block are joined.  Other frames are passed on when
they are complete.  `FrameEvents` handles them.

Source: RFC 9113 4 and 6.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from gateway.transports.http2 import frames
from gateway.transports.http2.flood_control import FloodBudget
from gateway.transports.http2.frames import (
    FRAME_BYTES,
    FRAME_HEAD,
    Http2ConnectionError,
)
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.http2.windows import ReceiveWindows
from gateway.wire.http import Buffer

TURN_S: Final = 0.002
"""How long one connection may parse before other connections get their turn."""

_TURN_FRAMES: Final = 16
_TURN_BLOCK_SHIFT: Final = 9

_BLOCK_FRAMES: Final = 32
_PRIORITY_BYTES: Final = 5
_LONG: Final = 1024
"""DATA frames of this size may be parts of a large message, and are copied to its place."""
_DIRECT: Final = 64 * 1024
"""The rest of a frame of this size is received where it belongs, without a copy."""
_NO_PART: Final = (0, 0, 0, False)
_unpack = FRAME_HEAD.unpack_from


class FrameEvents(Protocol):
    """What a connection does with frames. All methods are called from within `feed` or `copy`.

    Attributes:
        flood_budget: Limits frames that carry nothing.
        has_settings: The peer has sent its SETTINGS.
        streams: The streams that are not closed in both directions, by number.
        windows: The windows of this side.
    """

    flood_budget: FloodBudget
    has_settings: bool
    streams: dict[int, Http2Stream]
    windows: ReceiveWindows

    def on_payload(self, number: int, length: int) -> Http2Stream | None:
        """Count *length* against the windows; return the stream, None when it has ended."""

    def on_content(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        """Handle a part of a stream."""

    def room(self, stream: Http2Stream) -> memoryview | None:
        """Return where the next data of a large message belong, if there is a place."""

    def copy_content(
        self, stream: Http2Stream, data: Buffer, at: int, rest: int, *, end: bool
    ) -> tuple[int, int, bool]:
        """Copy DATA frames of a stream to where its message is collected, if it is.

        Args:
            stream: The stream.
            data: Frames.
            at: Position of the first.
            rest: How many bytes of an earlier frame come first.
            end: Whether that frame ends the stream.

        Returns:
            The position after them, how many bytes of the last one remain, and whether it ends
            the stream.
        """

    def on_copied(self, stream: Http2Stream, size: int, rest: int) -> None:
        """Handle *size* bytes that are in their place; *rest* bytes of their frame remain."""

    def on_block(self, number: int, block: bytes, *, end: bool) -> None:
        """Handle a complete header block."""

    def on_control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Handle any other frame."""

    def on_violation(self, fault: Http2ConnectionError) -> None:
        """Report a connection error of the peer, before the connection ends."""


class FrameReader:
    """Parses the frames of one connection.

    Args:
        events: Handles the frames.
        take_stream: Handles a stream that has arrived completely.  Gets the data and where it
            begins; returns the position after the last frame that it has handled, or 0 if it did
            nothing.
        preface: The bytes that the peer sends first.
        block_bytes: The size limit of a header block.

    Attributes:
        is_behind: `feed` has used up the turn of this connection before it parsed all data.
        is_copying: `feed` has copied a part of a large message to its place.
        turn_s: How long the connection may parse before other connections get their turn.
    """

    # Many connections are idle. With a dictionary each would take 1.4 KB more.
    __slots__ = (
        "_block",
        "_block_bytes",
        "_block_stream",
        "_events",
        "_held",
        "_held_at",
        "_is_block_end",
        "_max_block",
        "_part",
        "_preface",
        "_take_stream",
        "_turn_end",
        "_turn_frames",
        "is_behind",
        "is_copying",
        "turn_s",
    )

    def __init__(
        self,
        events: FrameEvents,
        take_stream: Callable[[bytes, int], int],
        preface: bytes,
        block_bytes: int,
    ) -> None:
        self._events = events
        self._take_stream = take_stream
        self._preface = preface
        self._max_block = block_bytes
        self._held = b""
        self._held_at = 0
        self.is_behind = self.is_copying = False
        self.turn_s = TURN_S
        self._turn_end = 0.0
        self._turn_frames = 0
        self._block: list[bytes] = []
        self._block_stream = 0
        self._block_bytes = 0
        self._is_block_end = False
        # The rest of an incomplete DATA frame: stream, bytes of content and of padding, end flag.
        self._part = _NO_PART

    def close(self) -> None:
        """Detach the connection, a reference cycle otherwise. Call it after the last `feed`."""
        del self._events, self._take_stream

    @property
    def is_reading_block(self) -> bool:
        """Whether the peer is in the middle of its preface, a header block or a small frame."""
        held = self._held and not self.is_behind
        return bool(self._block_stream or held or self._preface or not self._events.has_settings)

    def feed(self, data: bytes) -> None:
        """Parse data of the peer, as far as the turn of this connection allows.

        While `is_behind`, call it with b"" in the next turn of the loop.

        Raises:
            Http2ConnectionError: The peer violates the protocol.  The output ends with GOAWAY.
        """
        at = 0
        if self._held:
            if data:
                data = self._held[self._held_at :] + data
            else:
                data, at = self._held, self._held_at
            self._held, self._held_at = b"", 0
        self.is_behind = self.is_copying = False
        self._turn_end = 0.0  # the clock is read only after many frames
        self._turn_frames = _TURN_FRAMES
        try:
            if not (at or self._preface or self._block_stream or self._part[0]):
                # Most clients wait for a response, so one stream is all that has arrived.
                at = self._take_stream(data, 0)
                if at and at == len(data):
                    return
            if self._preface:
                at = self._read_preface(data)
            if self._part[0]:
                at = self._more_data(data, at)
            at = self._frames(data, at)
        except Http2ConnectionError as fault:
            self._events.on_violation(fault)
            raise
        if at == len(data):
            self.is_behind = False
        elif self.is_behind:
            self._held, self._held_at = data, at
        else:
            self._held = data[at:]

    def _frames(self, data: bytes, at: int) -> int:
        """Parse frames until the turn is over or no frame is complete; return the position."""
        size = len(data)
        before = -1
        while before < at < size and not self.is_behind:
            at = before = self._plain_frames(data, at)
            if at == size:
                break
            if size - at >= frames.HEAD_BYTES and not self.is_behind:
                at = self._frame(data, at)
                self._turn_frames -= 1
                if self._turn_frames <= 0:
                    self._check_turn()
        return at

    def _check_turn(self) -> None:
        """Check whether the turn of this connection is over. Called after some frames."""
        now = monotonic()
        if not self._turn_end:
            self._turn_end = now + self.turn_s
        self.is_behind = now >= self._turn_end
        self._turn_frames = _TURN_FRAMES

    def _plain_frames(self, data: bytes, at: int) -> int:  # noqa: C901  # calls would be felt
        """Parse consecutive complete frames of the two most common kinds; return the position.

        These are DATA and HEADERS without padding.  The conditions here replace `_check`, because
        five calls fewer for each frame save a tenth of the cost of a small message.
        """
        last = len(data) - frames.HEAD_BYTES
        view = memoryview(data)
        frames_left, max_block, take_stream = self._turn_frames, self._max_block, self._take_stream
        events = self._events
        while at <= last and not self._block_stream:
            if frames_left <= 0:
                self._check_turn()
                if self.is_behind:
                    return at
                frames_left = self._turn_frames
            frames_left -= 1
            end = take_stream(data, at)
            if end:
                frames_left -= (end - at) >> _TURN_BLOCK_SHIFT
                at = end
                continue
            high, low, kind, flags, number = _unpack(data, at)
            length = high << 16 | low
            begin = at + frames.HEAD_BYTES
            end = begin + length
            if length >= _LONG and kind == frames.DATA and flags <= frames.END_STREAM:
                stop = self._copy(number, data, at)
                if stop > at:
                    at = self._more_data(data, stop) if self._part[0] else stop
                    continue
            if end > len(data) or not 0 < number <= frames.MAX_WINDOW or not length:
                break
            if kind == frames.DATA and flags <= frames.END_STREAM and length <= FRAME_BYTES:
                receiving = events.on_payload(number, length)
                if receiving is not None:
                    events.on_content(receiving, view[begin:end], end=flags == frames.END_STREAM)
            elif (
                kind == frames.HEADERS
                and flags | frames.END_STREAM == frames.LAST_HEADERS
                and length <= max_block
            ):
                frames_left -= length >> _TURN_BLOCK_SHIFT
                events.on_block(number, data[begin:end], end=flags == frames.LAST_HEADERS)
            else:
                break
            at = end
        self._turn_frames = frames_left
        return at

    def _frame(self, data: bytes, at: int) -> int:
        """Parse a frame of any kind; return the position after it, or *at* if it is incomplete."""
        high, low, kind, flags, number = _unpack(data, at)
        length: int = high << 16 | low
        number &= frames.MAX_WINDOW
        self._check(kind, length, number)
        begin = at + frames.HEAD_BYTES
        end = begin + length
        if kind == frames.DATA:
            if flags & frames.PADDED and begin == len(data) and length:
                return at
            return self._data(data, begin, length, flags, number)
        if end > len(data):
            return at
        if kind == frames.HEADERS:
            self._headers(number, flags, data[begin:end])
        else:
            self._other(kind, flags, number, data[begin:end])
        return end

    def _other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == frames.CONTINUATION:
            self._continuation(number, flags, payload)
        else:
            self._events.on_control(kind, flags, number, payload)

    def _read_preface(self, data: bytes) -> int:
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise Http2ConnectionError(
                frames.PROTOCOL_ERROR, "the connection does not start with the HTTP/2 preface"
            )
        self._preface = self._preface[size:]
        return size

    def _check(self, kind: int, length: int, number: int) -> None:
        """Check a frame by its header alone."""
        if kind == frames.DATA or kind == frames.HEADERS:  # noqa: PLR1714  # twice as fast as a set
            if not number:
                raise Http2ConnectionError(
                    frames.PROTOCOL_ERROR, f"a frame of kind {kind} on stream 0"
                )
            if self._block_stream:
                raise Http2ConnectionError(
                    frames.PROTOCOL_ERROR, "a frame between HEADERS and CONTINUATION"
                )
            most = FRAME_BYTES if kind == frames.DATA else self._max_block
        else:
            if (kind == frames.CONTINUATION) != bool(self._block_stream):
                raise Http2ConnectionError(
                    frames.PROTOCOL_ERROR, f"a frame of kind {kind} is out of place"
                )
            if not self._events.has_settings and kind != frames.SETTINGS:
                raise Http2ConnectionError(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            most = self._max_block if kind == frames.CONTINUATION else frames.DEFAULT_FRAME
        if length > most:
            code = frames.FRAME_SIZE_ERROR if length > FRAME_BYTES else frames.ENHANCE_YOUR_CALM
            raise Http2ConnectionError(
                code, f"a frame of kind {kind} has {length} bytes, at most {most} are allowed"
            )

    def _data(self, data: bytes, begin: int, length: int, flags: int, number: int) -> int:
        """Parse a DATA frame, or its beginning; return the position in *data*."""
        padding = 0
        end = bool(flags & frames.END_STREAM)
        stream = self._events.on_payload(number, length)
        if flags & frames.PADDED:
            padding = data[begin] if length else 0
            if padding >= length:
                raise Http2ConnectionError(
                    frames.PROTOCOL_ERROR, "the padding of a frame is too long"
                )
            self._events.flood_budget.charge(1)
            if stream is not None:
                self._events.windows.grant(stream, padding + 1)
                self._events.windows.consume(stream, padding + 1)
            begin += 1
            length -= padding + 1
        if not length and not end:
            self._events.flood_budget.charge(1)
        stop = begin + length
        if stop + padding <= len(data):
            if stream is not None:
                self._events.on_content(stream, memoryview(data)[begin:stop], end=end)
            return stop + padding
        self._part = (number, length, padding, end)
        return self._more_data(data, begin)

    def _copy(self, number: int, data: Buffer, at: int) -> int:
        """Copy DATA frames of a stream to where its message is collected; return the position.

        The rest of an incomplete frame comes first.
        """
        stream = self._events.streams.get(number)
        _, rest, padding, end = self._part
        if stream is not None and not padding:
            stop, rest, end = self._events.copy_content(stream, data, at, rest, end=end)
            if stop > at:
                at = stop
                self._part = (number, rest, 0, end) if rest else _NO_PART
                self.is_copying = True
        return at

    def copy(self, data: memoryview) -> int:
        """Copy the beginning of received data, as far as it belongs to large messages.

        Returns:
            The position after what was copied. The rest is for `feed`.
        """
        if self._held or self._preface or self._block_stream:
            return 0
        at, before, size = 0, -1, len(data)
        while before < at < size:
            before, number = at, self._part[0]
            if not number:
                if size - at < frames.HEAD_BYTES:
                    break
                number = _unpack(data, at)[4]
            at = self._copy(number, data, at)
        return at

    @property
    def rest_room(self) -> memoryview | None:
        """Where the rest of a large frame belongs, if it has a place and nothing comes before it.

        At least `_DIRECT` bytes fit into it, because many small reads would cost more than a copy.
        """
        number, rest, padding, end = self._part
        stream = self._events.streams.get(number)
        if stream is None or self._held or padding or rest < _DIRECT:
            return None
        room = self._events.room(stream)
        if room is None or (end and rest <= len(room)) or len(room) < _DIRECT:
            return None
        return room[:rest]

    def rest_received(self, size: int) -> None:
        """Note that *size* bytes were received into `rest_room`."""
        number, rest, _, end = self._part
        rest -= size
        self._part = (number, rest, 0, end) if rest else _NO_PART
        self._events.on_copied(self._events.streams[number], size, rest)

    def _more_data(self, data: bytes, at: int) -> int:
        """Parse the continuation of a DATA frame; return the position in *data*."""
        at = self._copy(self._part[0], data, at)
        number, length, padding, end = self._part
        if not number:
            return at
        stop = min(len(data), at + length)
        stream = self._events.streams.get(number)
        available = stop - at
        whole = available == length
        if stream is not None and (available or (whole and end)):  # after them only padding is left
            stream.frame_bytes_left = length - available
            self._events.on_content(stream, memoryview(data)[at:stop], end=end and whole)
        skipped = min(len(data) - stop, padding) if whole else 0
        remaining = (number, length - available, padding - skipped, end and not whole)
        self._part = remaining if remaining[1] or remaining[2] else _NO_PART
        return stop + skipped

    def _headers(self, number: int, flags: int, block: bytes) -> None:
        if flags & frames.PADDED:
            padding = block[0] if block else 0
            if padding >= len(block):
                raise Http2ConnectionError(
                    frames.PROTOCOL_ERROR, "the padding of a frame is too long"
                )
            block = block[1 : len(block) - padding]
        if flags & frames.PRIORITY_FLAG:
            if len(block) < _PRIORITY_BYTES:
                raise Http2ConnectionError(
                    frames.FRAME_SIZE_ERROR, "HEADERS without the priority they announce"
                )
            block = block[_PRIORITY_BYTES:]
        end = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._events.on_block(number, block, end=end)
            return
        self._block = [block]
        self._block_stream, self._block_bytes, self._is_block_end = number, len(block), end

    def _continuation(self, number: int, flags: int, block: bytes) -> None:
        self._block.append(block)
        self._block_bytes += len(block)
        if number != self._block_stream:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "CONTINUATION of another stream")
        if self._block_bytes > self._max_block or len(self._block) > _BLOCK_FRAMES:
            raise Http2ConnectionError(
                frames.ENHANCE_YOUR_CALM, "a header block has too many fragments or bytes"
            )
        self._events.flood_budget.charge(1)
        if flags & frames.END_HEADERS:
            whole, self._block, self._block_stream = b"".join(self._block), [], 0
            self._events.on_block(number, whole, end=self._is_block_end)
