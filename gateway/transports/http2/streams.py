"""The streams of an HTTP/2 connection, and the writer that sends them within the peer's windows."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gateway.accelerator import accelerated
from gateway.transports.http2 import frames
from gateway.transports.http2.flood_control import (
    MESSAGE_REFUND,
    REFUND_FROM_BYTES,
    REFUND_SHIFT,
    RESPONSE_REFUND,
    FloodBudget,
)
from gateway.transports.http2.frames import (
    FRAME_BYTES,
    Http2ConnectionError,
    frame_head,
    join_stream,
)
from gateway.transports.http2.hpack import EMPTY_TABLE, TABLE_BYTES
from gateway.transports.http2.states import (
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    OPEN,
    PENDING_ENDS,
    REMOTE_ENDED,
    TRANSITIONS,
    Http2StreamEvent,
    Http2StreamState,
)
from gateway.wire.http import Buffer, size_of

JOINED_BYTES: Final = 8192
"""Up to this size, header fields, message and trailers are joined: one buffer costs less than six.

Each part fits the smallest frame limit that a peer may set.
"""
# How much one stream writes before other streams get their turn.
_TURN_BYTES: Final = 256 * 1024


class MessagePlace(Protocol):
    """Where the data of a large message are collected."""

    def room(self) -> memoryview | None:
        """Return where the next data belong; None where the owner gets them by `on_data`."""

    def copied(self, size: int) -> None:
        """Handle *size* bytes that were copied into `room`."""


class Http2Stream:
    """One stream.

    Attributes:
        number: Its number on the wire.
        owner: The call that the stream belongs to.
        place: Where it collects a message that arrives in pieces; None for nowhere.
        room: The window of the peer: how many bytes may be sent.
        window: The window of this side: how many bytes the peer may send.
        unread: Bytes that have arrived and that `owner` has not consumed.
        written: Bytes that were written after they had waited for a window.
        frame_bytes_left: Bytes already subtracted from `window` that have not arrived, or not
            been delivered.
        state: Which sides may still send.
        expected_bytes: The rest of the announced Content-Length; None without one.
        waiting: Data that waits for the windows of the peer; None if there is none.
        tail: The trailers that follow the data, if there is a pending end.
    """

    __slots__ = (
        "_seen",
        "_stalled_since",
        "_waits_since",
        "expected_bytes",
        "frame_bytes_left",
        "number",
        "owner",
        "place",
        "room",
        "state",
        "tail",
        "unread",
        "waiting",
        "window",
        "written",
    )

    # Most streams write no data that waits, so its attributes are set when some does.
    tail: bytes | None
    _seen: int
    _stalled_since: float
    _waits_since: float | None

    def __init__(self, number: int, room: int, window: int, owner: Any) -> None:
        self.number = number
        self.owner = owner
        self.place: MessagePlace | None = None
        self.room = room
        self.window = window
        self.frame_bytes_left = 0
        self.state: Http2StreamState = OPEN
        self.expected_bytes: int | None = None
        self.waiting: deque[memoryview] | None = None
        self.unread = 0
        self.written = 0

    def move(self, event: Http2StreamEvent) -> None:
        """Move as `states.TRANSITIONS` says."""
        self.state = TRANSITIONS.get((self.state, event), self.state)

    @property
    def is_remote_closed(self) -> bool:
        """Whether the peer may send nothing more."""
        return self.state in REMOTE_ENDED

    @property
    def has_pending_end(self) -> bool:
        """Whether the end of this side follows the data that waits."""
        return self.state in PENDING_ENDS

    def short_by(self, missing: int) -> int:
        """Return by how many bytes the window must grow so that *missing* bytes can arrive."""
        return missing - self.window - self.frame_bytes_left

    def wait(self) -> None:
        """Start to wait for the windows of the peer."""
        self.waiting = deque()
        self.written = self._seen = 0
        self._waits_since = None

    def stalled(self, now: float) -> tuple[float, float]:
        """Return for how many seconds nothing was written, and for how many data has waited.

        Both are measured from one call to the next.
        """
        if self.waiting is None:
            return 0.0, 0.0
        if self._waits_since is None:
            self._waits_since = self._stalled_since = now
        if self.written != self._seen:
            self._seen, self._stalled_since = self.written, now
        return now - self._stalled_since, now - self._waits_since


@accelerated
def new_stream(number: int, room: int, window: int, owner: Any) -> Http2Stream:
    """Return a stream that is open both ways, with the arguments of its class."""
    return Http2Stream(number, room, window, owner)


class Http2StreamWriter:
    """Writes streams within the windows of the peer, and while the transport is writable.

    Args:
        out: The output.
        credit: The flood budget of the peer, which messages refund.
        streams: The streams of the connection; one that is closed in both directions is removed.
        sent: Called when no data of a stream waits any more.

    Attributes:
        initial_window: The initial window of a new stream.
        frame_bytes: The frame size limit of the peer.
        is_paused: The transport is not writable.
        has_shrunk: The peer has reduced its HPACK table, which the next header block must
            acknowledge, although this side never uses the table.
        next_number: The number of the next stream of a client; there is none above `MAX_WINDOW`.
        peer_streams: How many streams the peer allows at once.
    """

    __slots__ = (
        "_flood_budget",
        "_out",
        "_peer_table",
        "_room",
        "_sent",
        "_streams",
        "_waiting",
        "frame_bytes",
        "has_shrunk",
        "initial_window",
        "is_paused",
        "next_number",
        "peer_streams",
    )

    def __init__(
        self,
        out: list[Buffer],
        credit: FloodBudget,
        streams: dict[int, Http2Stream],
        sent: Callable[[Http2Stream], None],
    ) -> None:
        self._out = out
        self._flood_budget = credit
        self._streams = streams
        self._sent = sent
        self._room = frames.DEFAULT_WINDOW
        self._waiting: dict[int, Http2Stream] = {}
        self.initial_window = frames.DEFAULT_WINDOW
        self.frame_bytes = frames.DEFAULT_FRAME
        self.is_paused = False
        self.has_shrunk = False
        self.next_number = 1
        self.peer_streams = 100
        self._peer_table = TABLE_BYTES

    def close(self) -> None:
        """Detach the callback: the connection is lost."""
        self._sent = _ignore

    @property
    def is_idle(self) -> bool:
        """Whether no data waits."""
        return not self._waiting

    def open(self, owner: Any) -> Http2Stream:
        """Return a new stream of a client."""
        number = self.next_number
        self.next_number = number + 2
        # The window of this side is `windows.STREAM_WINDOW`.
        stream = new_stream(number, self.initial_window, frames.DEFAULT_WINDOW, owner)
        self._streams[number] = stream
        return stream

    def send(
        self,
        stream: Http2Stream,
        block: bytes,
        buffers: Sequence[Buffer],
        tail: bytes | None,
        size: int | None = None,
    ) -> None:
        """Write a complete stream: header fields, message and trailers.

        Args:
            stream: A stream on which nothing was written.
            block: The header block.
            buffers: The message.
            tail: The block of the trailers; None to end the stream with the message.
            size: The size of the message, if the caller knows it.
        """
        if size is None:
            size = size_of(buffers)
        total = size + len(block) if tail is None else size + len(block) + len(tail)
        if total <= JOINED_BYTES and self.send_joined(
            stream, join_stream(stream.number, block, buffers, size, tail), size
        ):
            return
        self.head(stream, block)
        self.data(stream, buffers)
        self.end(stream, tail)

    @accelerated
    def send_joined(self, stream: Http2Stream, frames: bytes, size: int) -> bool:
        """Write the frames of a complete stream, which is up to `JOINED_BYTES` long.

        Args:
            stream: A stream on which nothing was written.
            frames: The frames of its header fields, of its message and of its trailers.
            size: The size of the message.

        Returns:
            False, and nothing is written, if the message must wait.
        """
        room, stream_room = self._room - size, stream.room - size
        if room < 0 or stream_room < 0 or self.is_paused or self.has_shrunk:
            return False
        self._out.append(frames)
        self._room, stream.room = room, stream_room
        self._flood_budget.remaining += RESPONSE_REFUND
        if stream.state is HALF_CLOSED_REMOTE:
            stream.state = CLOSED
            del self._streams[stream.number]
        else:
            stream.state = HALF_CLOSED_LOCAL
        return True

    def head(self, stream: Http2Stream, block: bytes, *, end: bool = False) -> None:
        """Write a header block; with *end*, it ends the stream."""
        flags = frames.END_STREAM if end else 0
        most = self.frame_bytes
        if self.has_shrunk:
            self.has_shrunk = False
            block = EMPTY_TABLE + block
        kind = frames.HEADERS
        for begin in range(0, len(block) or 1, most):
            piece = block[begin : begin + most]
            if begin + most >= len(block):
                flags |= frames.END_HEADERS
            self._out.append(frames.frame(kind, flags, stream.number, piece))
            kind, flags = frames.CONTINUATION, 0
        if end:
            self._ended(stream)

    def data(self, stream: Http2Stream, buffers: Sequence[Buffer]) -> None:
        """Write data of a stream, as far as the windows allow; the rest waits."""
        if stream.waiting is None:
            stream.wait()
        assert stream.waiting is not None  # noqa: S101  # it waits
        stream.waiting.extend(memoryview(buffer) for buffer in buffers if len(buffer))
        self._waiting[stream.number] = stream
        self._flood_budget.remaining += MESSAGE_REFUND
        self.pump()

    def end(self, stream: Http2Stream, tail: bytes | None) -> None:
        """End a stream after the data that waits, with trailers *tail* or without."""
        stream.tail = tail
        if stream.waiting is None:
            self._finish(stream)
        else:
            stream.move(Http2StreamEvent.PEND_END)

    def forget(self, stream: Http2Stream) -> None:
        """Close a stream both ways, and drop its data."""
        self._waiting.pop(stream.number, None)
        stream.waiting = None
        stream.move(Http2StreamEvent.RESET)

    def widen(self, stream: Http2Stream | None, size: int) -> bool:
        """Increase the window of a stream, or of the connection; return False on overflow."""
        if stream is None:
            self._room += size
            return self._room <= frames.MAX_WINDOW
        stream.room += size
        return stream.room <= frames.MAX_WINDOW

    def take_update(self, data: bytes, at: int) -> int:
        """Open the connection's window by the frame at *at*, where no data waits for that.

        gRPC's C core sends such a frame with each small call; it is not charged.

        Returns:
            The position after it; *at* for another frame.
        """
        room = self._room + frames.opened_by(data, at, 0)
        if room == self._room or room > frames.MAX_WINDOW or self._waiting:
            return at
        self._room = room
        return at + frames.UPDATE_BYTES

    def apply_setting(self, key: int, value: int) -> None:
        """Apply a setting of the peer. Raises Http2ConnectionError for a wrong value."""
        if key == frames.INITIAL_WINDOW_SIZE:
            difference, self.initial_window = value - self.initial_window, value
            for stream in self._streams.values():
                stream.room += difference
            most = max((stream.room for stream in self._streams.values()), default=value)
            if max(value, most) > frames.MAX_WINDOW:
                raise Http2ConnectionError(
                    frames.FLOW_CONTROL_ERROR, f"a window of {value} bytes is too large"
                )
        elif key == frames.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
                raise Http2ConnectionError(
                    frames.PROTOCOL_ERROR, f"a frame size of {value} bytes is not allowed"
                )
            self.frame_bytes = min(value, FRAME_BYTES)
        elif key == frames.MAX_CONCURRENT_STREAMS:
            self.peer_streams = value
        elif key == frames.HEADER_TABLE_SIZE:
            self.has_shrunk = self.has_shrunk or value < self._peer_table
            self._peer_table = value

    def pump(self) -> None:
        """Write the data that waits, one stream after another."""
        total = 0
        progress = True
        while progress and self._waiting and not self.is_paused:
            progress = False
            for stream in list(self._waiting.values()):
                written = self._write(stream)
                total += written
                if stream.waiting:
                    progress = progress or written > 0
                else:
                    self._waiting.pop(stream.number, None)
                    stream.waiting = None
                    if stream.has_pending_end:
                        self._finish(stream)
                    self._sent(stream)
        if total >= REFUND_FROM_BYTES:
            self._flood_budget.remaining += MESSAGE_REFUND + (total >> REFUND_SHIFT)

    def _write(self, stream: Http2Stream) -> int:
        """Write up to one turn of a stream; return the bytes written."""
        waiting = stream.waiting
        most = self.frame_bytes
        remaining = min(_TURN_BYTES, stream.room, self._room)
        total = 0
        while waiting and remaining > 0:
            whole = min(remaining, len(waiting[0])) // most * most
            if whole:
                self._out += _full_frames(waiting, whole, most, stream.number)
                remaining -= whole
                total += whole
                continue
            size = min(remaining, most)
            pieces = _pop_front(waiting, size)
            size = size_of(pieces)
            self._out.append(frame_head(size, frames.DATA, 0, stream.number))
            self._out += pieces
            remaining -= size
            total += size
        stream.room -= total
        self._room -= total
        stream.written += total
        return total

    def _ended(self, stream: Http2Stream) -> None:
        """Note that the end of a stream is written."""
        if stream.is_remote_closed:
            stream.state = CLOSED
            self._streams.pop(stream.number, None)
        else:
            stream.state = HALF_CLOSED_LOCAL

    def _finish(self, stream: Http2Stream) -> None:
        self._flood_budget.remaining += RESPONSE_REFUND
        if stream.tail is not None:
            self.head(stream, stream.tail, end=True)
        else:
            self._out.append(frame_head(0, frames.DATA, frames.END_STREAM, stream.number))
            self._ended(stream)


def _full_frames(
    waiting: deque[memoryview], size: int, most: int, number: int
) -> list[bytes | memoryview]:
    """Remove the first *size* bytes of the first buffer; return them as frames of *most* bytes."""
    first = waiting[0]
    head = frame_head(most, frames.DATA, 0, number)
    sent: list[bytes | memoryview] = [head] * (2 * size // most)
    sent[1::2] = [first[begin : begin + most] for begin in range(0, size, most)]
    if size < len(first):
        waiting[0] = first[size:]
    else:
        waiting.popleft()
    return sent


def _pop_front(waiting: deque[memoryview], size: int) -> list[memoryview]:
    """Remove and return the first *size* bytes, or all."""
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


def _ignore(_stream: Http2Stream) -> None:
    """Do nothing."""
