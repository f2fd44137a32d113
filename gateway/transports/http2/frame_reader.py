"""Frames of HTTP/2 out of bytes, however they are cut; each is bounded by its head.

DATA is handed on as it comes, padding taken off; header blocks are put together; all other frames
come whole.  What they mean is the business of `http2`.

Source: RFC 9113 4 and 6.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic
from typing import Final

from gateway.transports.http2 import frames as h2
from gateway.transports.http2.flood_control import FloodBudget
from gateway.transports.http2.frames import FRAME_HEAD, Http2ConnectionError
from gateway.transports.http2.streams import Http2Stream

FRAME_BYTES: Final = 1 << 20
"""Largest frame a peer may send."""

TURN_S: Final = 0.002
"""How long one connection is read before it is the turn of others."""

_TURN_FRAMES: Final = 16
_TURN_BLOCK_SHIFT: Final = 9

_BLOCK_FRAMES: Final = 32
_PRIORITY_BYTES: Final = 5
_LONG: Final = 4096
"""A frame of so much data is looked at together with those behind it."""
_NO_PART: Final = (0, 0, 0, False)
PLAIN: Final = h2.END_HEADERS | h2.END_STREAM
_unpack = FRAME_HEAD.unpack_from


class FrameReader(ABC):
    """Reads frames; what is to be done with them is in the methods that a subclass adds.

    Args:
        preface: What the peer begins with.
        block_bytes: Largest header block.

    Attributes:
        _whole: Takes a header block together with what follows it, if that is all of its stream;
            returns how far, 0 where nothing was done. Given number, block, data, view and place.
        credit: Of the peer.
        is_behind: More has been fed than was read: it is the turn of other connections.
        streams: Those that have not ended both ways.
        turn_s: How long it is read before it is the turn of other connections.
    """

    _whole: Callable[[int, bytes, bytes, memoryview, int], int]

    def __init__(self, preface: bytes, block_bytes: int) -> None:
        self.flood_budget = FloodBudget()
        self.streams: dict[int, Http2Stream] = {}
        self._preface = preface
        self._max_block = block_bytes
        self._held = b""
        self._held_at = 0
        self.is_behind = False
        self.turn_s = TURN_S
        self._turn_end = 0.0
        self._turn_frames = 0
        self._settled = False
        self._block: list[bytes] = []
        self._block_stream = 0
        self._block_bytes = 0
        self._block_end = False
        # Of a DATA frame that has not come whole: stream, bytes of content and of padding, flag.
        self._part = _NO_PART

    @property
    def reading_block(self) -> bool:
        """Whether the peer is in the middle of its preface, a header block or a small frame."""
        held = self._held and not self.is_behind
        return bool(self._block_stream or held or self._preface or not self._settled)

    # -- what a subclass does

    @abstractmethod
    def _received_on(self, number: int, length: int) -> Http2Stream | None:
        """Count *length* against the windows; return the stream, None when it has ended."""

    @abstractmethod
    def _deliver(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        """Take a part of a stream."""

    @abstractmethod
    def _fast_data(self, number: int, data: bytes, view: memoryview, at: int) -> int:
        """Take as many frames of data as stand at *at*, one behind the other; return how far."""

    @abstractmethod
    def _whole_block(self, number: int, block: bytes, *, end: bool) -> None:
        """Take a header block."""

    @abstractmethod
    def _refused(self, fault: Http2ConnectionError) -> None:
        """Say what the peer did wrong, before the connection ends."""

    @abstractmethod
    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Take any other frame."""

    @abstractmethod
    def grant(self, stream: Http2Stream, size: int) -> None:
        """Let the peer send *size* bytes more on a stream."""

    @abstractmethod
    def consume(self, stream: Http2Stream, size: int) -> bool:
        """Note that *size* bytes of a stream were taken over; return whether that was written."""

    # -- reading

    def feed(self, data: bytes) -> None:
        """Take what came from the peer, as much as its turn allows.

        While `is_behind`, feed b"" when it is its turn again.

        Raises:
            H2Fault: It breaks the protocol. GOAWAY has been written; feed it no more.
        """
        at = 0
        if self._held:
            if data:
                data = self._held[self._held_at :] + data
            else:
                data, at = self._held, self._held_at
            self._held, self._held_at = b"", 0
        self.is_behind = False
        self._turn_end = 0.0  # the clock is read only for who sends many frames
        self._turn_frames = _TURN_FRAMES
        try:
            if self._preface:
                at = self._read_preface(data)
            if self._part[0]:
                at = self._more_data(data, at)
            at = self._frames(data, at)
        except Http2ConnectionError as fault:
            self._refused(fault)
            raise
        if at == len(data):
            self.is_behind = False
        elif self.is_behind:
            self._held, self._held_at = data, at
        else:
            self._held = data[at:]

    def _frames(self, data: bytes, at: int) -> int:
        """Read frames until the turn is over, or none is complete; return how far."""
        size = len(data)
        before = -1
        while before < at < size and not self.is_behind:
            at = before = self._plain_frames(data, at)
            if size - at >= h2.HEAD_BYTES and not self.is_behind:
                at = self._frame(data, at)
                self._turn_frames -= 1
                if self._turn_frames <= 0:
                    self._look_at_turn()
        return at

    def _look_at_turn(self) -> None:
        """Note whether the turn of this connection is over; called after some frames."""
        now = monotonic()
        if not self._turn_end:
            self._turn_end = now + self.turn_s
        self.is_behind = now >= self._turn_end
        self._turn_frames = _TURN_FRAMES

    def _plain_frames(self, data: bytes, at: int) -> int:  # noqa: C901  # calls would be felt
        """Read as many frames as are of the two kinds that nearly all are; return how far.

        They are whole, have no padding, and pass `_check` by what is asked of them here. Five calls
        fewer for each are a tenth of what a small message costs.
        """
        last = len(data) - h2.HEAD_BYTES
        view = memoryview(data)
        frames = self._turn_frames
        while at <= last and not self._block_stream:
            if frames <= 0:
                self._look_at_turn()
                if self.is_behind:
                    return at
                frames = self._turn_frames
            frames -= 1
            high, low, kind, flags, number = _unpack(data, at)
            length = high << 16 | low
            begin = at + h2.HEAD_BYTES
            end = begin + length
            if end > len(data) or not 0 < number <= h2.MAX_WINDOW or not length:
                break
            if kind == h2.DATA and flags <= h2.END_STREAM and length <= FRAME_BYTES:
                if length >= _LONG and not flags:
                    end = self._fast_data(number, data, view, at)
                    if end > at:
                        at = end
                        continue
                    end = begin + length
                stream = self._received_on(number, length)
                if stream is not None:
                    self._deliver(stream, view[begin:end], end=flags == h2.END_STREAM)
            elif (
                kind == h2.HEADERS and flags | h2.END_STREAM == PLAIN and length <= self._max_block
            ):
                frames -= length >> _TURN_BLOCK_SHIFT
                block = data[begin:end]
                after = self._whole(number, block, data, view, end) if flags != PLAIN else 0
                if after:
                    end = after
                else:
                    self._whole_block(number, block, end=flags == PLAIN)
            else:
                break
            at = end
        self._turn_frames = frames
        return at

    def _frame(self, data: bytes, at: int) -> int:
        """Read a frame of any kind; return the place after it, or *at* when it goes on later."""
        high, low, kind, flags, number = _unpack(data, at)
        length: int = high << 16 | low
        number &= h2.MAX_WINDOW
        self._check(kind, length, number)
        begin = at + h2.HEAD_BYTES
        end = begin + length
        if kind == h2.DATA:
            if flags & h2.PADDED and begin == len(data) and length:
                return at
            return self._data(data, begin, length, flags, number)
        if end > len(data):
            return at
        if kind == h2.HEADERS:
            self._headers(number, flags, data[begin:end])
        else:
            self._other(kind, flags, number, data[begin:end])
        return end

    def _other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == h2.CONTINUATION:
            self._continuation(number, flags, payload)
        else:
            self._control(kind, flags, number, payload)

    def _read_preface(self, data: bytes) -> int:
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise Http2ConnectionError(
                h2.PROTOCOL_ERROR, "the connection does not begin as HTTP/2 does"
            )
        self._preface = self._preface[size:]
        return size

    def _check(self, kind: int, length: int, number: int) -> None:
        """Refuse a frame by its head alone."""
        if kind == h2.DATA or kind == h2.HEADERS:  # noqa: PLR1714  # twice as fast as a set
            if not number:
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, f"a frame of kind {kind} on stream 0")
            if self._block_stream:
                raise Http2ConnectionError(
                    h2.PROTOCOL_ERROR, "a frame between HEADERS and CONTINUATION"
                )
            most = FRAME_BYTES if kind == h2.DATA else self._max_block
        else:
            if (kind == h2.CONTINUATION) != bool(self._block_stream):
                raise Http2ConnectionError(
                    h2.PROTOCOL_ERROR, f"a frame of kind {kind} is out of place"
                )
            if not self._settled and kind != h2.SETTINGS:
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            most = self._max_block if kind == h2.CONTINUATION else h2.DEFAULT_FRAME
        if length > most:
            code = h2.FRAME_SIZE_ERROR if length > FRAME_BYTES else h2.ENHANCE_YOUR_CALM
            raise Http2ConnectionError(
                code, f"a frame of kind {kind} has {length} bytes, at most {most} may be"
            )

    def _data(self, data: bytes, begin: int, length: int, flags: int, number: int) -> int:
        """Take a DATA frame, or its beginning; return how far *data* was read."""
        padding = 0
        end = bool(flags & h2.END_STREAM)
        stream = self._received_on(number, length)
        if flags & h2.PADDED:
            padding = data[begin] if length else 0
            if padding >= length:
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "a frame is nothing but padding")
            self.flood_budget.charge(1)
            if stream is not None:
                self.grant(stream, padding + 1)
                self.consume(stream, padding + 1)
            begin += 1
            length -= padding + 1
        if not length and not end:
            self.flood_budget.charge(1)
        stop = begin + length
        if stop + padding <= len(data):
            if stream is not None:
                self._deliver(stream, memoryview(data)[begin:stop], end=end)
            return stop + padding
        self._part = (number, length, padding, end)
        return self._more_data(data, begin)

    def _more_data(self, data: bytes, at: int) -> int:
        """Take more of a DATA frame that had not come whole."""
        number, length, padding, end = self._part
        stop = min(len(data), at + length)
        stream = self.streams.get(number)
        taken = stop - at
        whole = taken == length
        if stream is not None and (taken or whole):
            stream.coming = length - taken
            self._deliver(stream, memoryview(data)[at:stop], end=end and whole)
        skipped = min(len(data) - stop, padding) if whole else 0
        left = (number, length - taken, padding - skipped, end and not whole)
        self._part = left if left[1] or left[2] else _NO_PART
        return stop + skipped

    def _headers(self, number: int, flags: int, block: bytes) -> None:
        if flags & h2.PADDED:
            padding = block[0] if block else 0
            if padding >= len(block):
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "a frame is nothing but padding")
            block = block[1 : len(block) - padding]
        if flags & h2.PRIORITY_FLAG:
            if len(block) < _PRIORITY_BYTES:
                raise Http2ConnectionError(
                    h2.FRAME_SIZE_ERROR, "HEADERS without the priority they announce"
                )
            block = block[_PRIORITY_BYTES:]
        end = bool(flags & h2.END_STREAM)
        if flags & h2.END_HEADERS:
            self._whole_block(number, block, end=end)
            return
        self._block = [block]
        self._block_stream, self._block_bytes, self._block_end = number, len(block), end

    def _continuation(self, number: int, flags: int, block: bytes) -> None:
        self._block.append(block)
        self._block_bytes += len(block)
        if number != self._block_stream:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "CONTINUATION of another stream")
        if self._block_bytes > self._max_block or len(self._block) > _BLOCK_FRAMES:
            raise Http2ConnectionError(h2.ENHANCE_YOUR_CALM, "a header block goes on and on")
        self.flood_budget.charge(1)
        if flags & h2.END_HEADERS:
            whole, self._block, self._block_stream = b"".join(self._block), [], 0
            self._whole_block(number, whole, end=self._block_end)
