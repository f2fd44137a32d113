"""Http2Receiver: handles what a peer sends on its streams, within the windows of `windows`.

Most messages are small and arrive in one piece: header fields, one DATA frame and the end of the
stream.  Such a stream is handled at once.  Any other is handled frame by frame, with the same
checks.

Source: RFC 9113 5 and 6.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gateway.accelerator import accelerated
from gateway.transports.http2 import frames
from gateway.transports.http2.flood_control import (
    FREE_FRAMES,
    FREE_FRAMES_KEPT,
    LATE_STREAM_COST,
    REFUSAL_COST,
)
from gateway.transports.http2.frame_reader import FRAME_BYTES
from gateway.transports.http2.frames import (
    FRAME_HEAD,
    Http2ConnectionError,
    Http2StreamError,
    MissingPseudoHeaders,
    complete_stream,
    content,
)
from gateway.transports.http2.hpack import NO_ENTRIES, Field, ReadBlock, decode_block
from gateway.transports.http2.states import (
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    OPEN,
    REMOTE_ENDED,
    Http2StreamEvent,
)
from gateway.transports.http2.streams import Http2Stream, Http2StreamWriter
from gateway.transports.http2.windows import STREAM_WINDOW, WIDEN_AT, ReceiveWindows
from gateway.wire.message_cache import ParseCache

Head = Any
"""A result of `read_head`."""

_MAX_CACHED: Final = 64
_MAX_CACHED_BYTES: Final = 1024
_EMPTY: Final = memoryview(b"")
_unpack = FRAME_HEAD.unpack_from


class StreamEvents(Protocol):
    """The events of the streams of a connection. All methods are called from within `feed`."""

    def on_settings(self) -> None:
        """Handle the peer's SETTINGS."""

    def on_headers(self, stream: Http2Stream, head: Head, *, end: bool) -> None:
        """Handle a header block: a new stream on a server, headers or trailers on a client."""

    def on_complete_stream(
        self, stream: Http2Stream, head: Head, view: memoryview, tail: Head | None
    ) -> None:
        """Handle a stream that arrived complete: a request, or with *tail* a response.

        It replaces `on_headers`, `on_data` and, for *tail*, `on_headers` again.
        """

    def on_data(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        """Handle data of a stream; *view* stays valid."""

    def on_data_batch(self, stream: Http2Stream, views: Sequence[memoryview]) -> None:
        """Handle consecutive parts of a stream that does not end with them.

        All are in `frame_bytes_left`: a handler that passes them on one by one subtracts each.
        """

    def on_reset(self, stream: Http2Stream, code: int) -> bool:
        """Handle a reset stream. REFUSED_STREAM means that the peer has not processed it.

        Returns:
            Whether this side has served the call; another reset is charged to the client.
        """

    def on_writable(self, stream: Http2Stream) -> None:
        """Continue writing: all data that waited for the peer's windows is written."""

    def on_goaway(self, code: int, message: str) -> None:
        """Handle GOAWAY: the peer accepts no new streams."""


class Http2Receiver(ReceiveWindows):
    """Handles the frames of streams.

    Args:
        receiver: Handles the events of streams.
        read_head: Returns the meaning of header fields, or an Http2StreamError.  It must be a pure
            function, because its results are cached.
        client: Whether this is the client side.
        streams: How many streams the peer may have open at once; 0 for a client.
        header_bytes: The size limit of the fields of one block.
        read_block: Reads the usual header blocks, and *read_head* the fields of others; None to
            read the fields of all.

    Attributes:
        last: The highest stream number that the peer has used.
        writer: Writes the streams of this side.
    """

    __slots__ = (
        "_free_frames",
        "_has_heads",
        "_heads",
        "_is_accepting",
        "_is_client",
        "_max_streams",
        "_read_block",
        "_read_head",
        "_receiver",
        "_table",
        "last",
        "writer",
    )

    def __init__(
        self,
        receiver: StreamEvents,
        read_head: Callable[[list[Field]], Head | Http2StreamError],
        *,
        client: bool,
        streams: int,
        header_bytes: int,
        read_block: ReadBlock | None = None,
    ) -> None:
        super().__init__(b"" if client else frames.PREFACE, header_bytes)
        self._receiver = receiver
        self._read_head = read_head
        self._read_block = read_block
        self._table = NO_ENTRIES
        self._is_client = client
        self._max_streams = streams
        self._heads: ParseCache[Head] = ParseCache(_MAX_CACHED, _MAX_CACHED_BYTES)
        self._has_heads = False
        self.last = 0
        self._free_frames = 0
        self._is_accepting = True
        self.writer = Http2StreamWriter(
            self.out, self.flood_budget, self.streams, receiver.on_writable
        )
        self._take_stream = self.take_response if client else self.take_request
        self._initialise(header_bytes)

    @abstractmethod
    def _initialise(self, header_bytes: int) -> None:
        """Initialise the subclass, and write the preface and SETTINGS."""

    def close(self) -> None:
        """Detach the receiver, a reference cycle otherwise. Call it once, after the last `feed`."""
        del self._receiver, self._take_stream
        self.flood_budget.on_low = None
        self.writer.close()

    @abstractmethod
    def reset(self, stream: Http2Stream, code: int) -> None:
        """Close a stream in both directions. A closed stream is ignored."""

    # -- reading

    def _require_known(self, number: int) -> None:
        """Check that a stream was opened before."""
        if number > self._highest() or not number % 2:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, f"stream {number} is idle")

    def _highest(self) -> int:
        return self.writer.next_number - 2 if self._is_client else self.last

    def _charge_of_call(self) -> None:
        """Charge a frame of which each call may have some, such as an update of a window.

        A client of gRPC sends one when it begins to wait, and a reset if its deadline passes in the
        same moment. So 1,000 calls at once have 3,000 such frames.
        """
        most = FREE_FRAMES * (self._highest() + 1) // 2
        free = max(self._free_frames, most - FREE_FRAMES_KEPT)
        if free < most:
            self._free_frames = free + 1
        else:
            self.flood_budget.charge(1)

    def _deliver(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        if stream.expected_bytes is not None:
            stream.expected_bytes -= len(view)
            if stream.expected_bytes < 0 or (end and stream.expected_bytes):
                self.refuse(stream, frames.PROTOCOL_ERROR)
                return
        if end:
            self._close_remote(stream)
        self._receiver.on_data(stream, view, end=end)

    def _fast_data(self, number: int, data: bytes, view: memoryview, at: int) -> int:
        stream = self.streams.get(number)
        if stream is None or stream.state in REMOTE_ENDED:
            return at
        most = min(stream.window, self._window - WIDEN_AT, FRAME_BYTES)
        if stream.expected_bytes is not None:
            most = min(most, stream.expected_bytes)
        remaining = most
        last = len(data) - frames.HEAD_BYTES
        views: list[memoryview] = []
        while at <= last:
            high, low, kind, flags, same = _unpack(data, at)
            length = high << 16 | low
            begin = at + frames.HEAD_BYTES
            end = begin + length
            if (
                kind != frames.DATA
                or flags
                or same != number
                or end > len(data)
                or not 0 < length <= remaining
            ):
                break
            remaining -= length
            views.append(view[begin:end])
            at = end
        if views:
            size = most - remaining
            self._window -= size
            self._unread += size
            stream.window -= size
            stream.unread += size
            if stream.expected_bytes is not None:
                stream.expected_bytes -= size
            stream.frame_bytes_left = size
            self._receiver.on_data_batch(stream, views)
            stream.frame_bytes_left = 0
        return at

    def _whole_block(self, number: int, block: bytes, *, end: bool) -> None:
        if not self._has_settings:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        head = self._heads.get(block)
        self._head(number, self._fresh_head(block) if head is None else head, end=end)

    def _head(self, number: int, head: Head | Http2StreamError, *, end: bool) -> None:
        """Handle the parsed fields of a header block."""
        stream = self.streams.get(number)
        if stream is None:
            stream = self._open_remote(number, head)
            if stream is None:
                return
        elif stream.is_remote_closed:
            raise Http2ConnectionError(
                frames.STREAM_CLOSED, f"header fields after the end of stream {number}"
            )
        elif not self._is_client:
            self._trailers(stream, head, end=end)
            return
        if isinstance(head, Http2StreamError):
            self.reset(stream, head.code)
            if self._is_client:
                self._receiver.on_reset(stream, head.code)
            self.flood_budget.charge(REFUSAL_COST)
            return
        if end:
            self._close_remote(stream)
        self._receiver.on_headers(stream, head, end=end)

    @accelerated
    def take_request(self, data: bytes, at: int) -> int:
        """Handle a complete request: header fields, and one DATA frame that ends it.

        Returns:
            The position after the last frame that was handled; 0 for anything else.
        """
        whole = complete_stream(data, at, self._max_block)
        if whole is None:
            return 0
        number, block, begin, end, last, _ = whole
        length = end - begin
        window = self._window - length
        if (
            last is not None
            or length > STREAM_WINDOW
            or window < WIDEN_AT
            or number <= self.last
            or not number % 2
            or not self._is_accepting
            or len(self.streams) >= self._max_streams
            or not self._has_settings
        ):
            return 0
        head = self._heads.get(block) if self._has_heads else None
        if head is None:
            head = self._fresh_head(block)
            if isinstance(head, Http2StreamError):
                self._head(number, head, end=False)
                return begin - frames.HEAD_BYTES
        self.last = number
        self._window = window
        stream = self.streams[number] = Http2Stream(
            number, self.writer.initial_window, STREAM_WINDOW - length, None
        )
        stream.state = HALF_CLOSED_REMOTE
        self._receiver.on_complete_stream(stream, head, content(data, begin, end), None)
        return end

    @accelerated
    def take_response(self, data: bytes, at: int) -> int:
        """Handle a complete response: header fields, one DATA frame and trailers.

        Returns:
            The position after the last frame that was handled; 0 for anything else.
        """
        whole = complete_stream(data, at, self._max_block)
        if whole is None:
            return 0
        number, block, begin, stop, last, end = whole
        length = stop - begin
        window = self._window - length
        stream = self.streams.get(number)
        if (
            last is None
            or stream is None
            or (stream.state is not HALF_CLOSED_LOCAL and stream.is_remote_closed)
            or length > stream.window
            or window < WIDEN_AT
            or stream.expected_bytes is not None
            or not self._has_settings
        ):
            return 0
        head, tail = self._heads.get(block), self._heads.get(last)
        if head is None:
            head = self._fresh_head(block)
            if isinstance(head, Http2StreamError):
                self._head(number, head, end=False)
                return begin - frames.HEAD_BYTES
            tail = self._heads.get(last)  # the table of fields may have changed
        if tail is None:
            tail = self._fresh_head(last)
            if isinstance(tail, Http2StreamError):
                self._head(number, tail, end=True)
                return end
        self._window = window
        if stream.state is HALF_CLOSED_LOCAL:  # its window does not matter any more
            stream.state = CLOSED
            del self.streams[number]
        else:
            stream.move(Http2StreamEvent.RECEIVE_END)
        self._receiver.on_complete_stream(stream, head, content(data, begin, stop), tail)
        return end

    def _trailers(self, stream: Http2Stream, head: Head | Http2StreamError, *, end: bool) -> None:
        """Handle the trailers of a request, which are ignored."""
        if end and isinstance(head, MissingPseudoHeaders):
            self._deliver(stream, _EMPTY, end=True)
        else:
            self.refuse(stream, frames.PROTOCOL_ERROR)

    def _fresh_head(self, block: bytes) -> Head | Http2StreamError:
        before = self._table
        head: Head | Http2StreamError | None = None
        if self._read_block is None:
            fields, self._table = decode_block(block, before, self._max_block)
        else:
            head, fields, self._table = self._read_block(block, before)
        if head is None:
            head = self._read_head(fields)
        if self._table is not before:  # until then, equal bytes mean equal fields
            if self._has_heads:
                self._has_heads = False
                self._heads.clear()
        elif not isinstance(head, Http2StreamError) and self._heads.should_admit(block):
            self._has_heads = True
            self._heads.put(block, head)
        return head

    def _open_remote(self, number: int, head: Head | Http2StreamError) -> Http2Stream | None:
        """Open the stream of a peer and return it; return None if it is refused."""
        if self._is_client or number <= self.last:
            self._require_known(number)
            if not self._is_client and not isinstance(head, Http2StreamError):
                raise Http2ConnectionError(
                    frames.PROTOCOL_ERROR, f"stream {number} was opened before"
                )
            self.flood_budget.charge(1)
            return None
        if not number % 2:
            raise Http2ConnectionError(
                frames.PROTOCOL_ERROR, f"a client may not open stream {number}"
            )
        self.last = number
        if not self._is_accepting or len(self.streams) >= self._max_streams:
            self.out.append(frames.reset(number, frames.REFUSED_STREAM))
            self.flood_budget.charge(REFUSAL_COST if self._is_accepting else LATE_STREAM_COST)
            return None
        stream = Http2Stream(number, self.writer.initial_window, STREAM_WINDOW, None)
        self.streams[number] = stream
        return stream

    def _close_remote(self, stream: Http2Stream) -> None:
        if stream.state is HALF_CLOSED_LOCAL:
            stream.state = CLOSED
            self.streams.pop(stream.number, None)
        elif stream.state is OPEN:
            stream.state = HALF_CLOSED_REMOTE
        else:
            stream.move(Http2StreamEvent.RECEIVE_END)

    def refuse(self, stream: Http2Stream, code: int) -> None:
        """Reset a stream after an error of the peer."""
        self.flood_budget.charge(REFUSAL_COST)
        self.reset(stream, code)
        self._receiver.on_reset(stream, code)
