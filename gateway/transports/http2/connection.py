"""Http2Connection: one HTTP/2 connection without sockets, for client and server.

`frame_reader` parses frames; this file handles them, and has the operations of the caller.
`hpack` decodes header blocks, `windows` limits the peer, and `streams` writes the streams of this
side.  The caller has the socket, and calls `flood_budget.refill` once a second.  Priorities are
ignored, and pushes are refused.

Most messages are small and arrive in one piece: header fields, one DATA frame and the end of the
stream.  Such a stream is handled at once.  Any other is handled frame by frame, with the same
checks.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

from gateway.accelerator import accelerated
from gateway.transports.http2 import frames
from gateway.transports.http2.flood_control import (
    LATE_STREAM_COST,
    REFUSAL_COST,
    RESET_COST,
    RESPONSE_REFUND,
    FloodBudget,
)
from gateway.transports.http2.frame_reader import FrameReader
from gateway.transports.http2.frames import (
    FRAME_BYTES,
    SMALL_FRAME_BYTES,
    Http2ConnectionError,
    Http2StreamError,
    MissingPseudoHeaders,
    complete_stream,
    content,
    copy_data,
)
from gateway.transports.http2.hpack import Field, Head, HeaderBlockReader, ReadBlock
from gateway.transports.http2.states import (
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    OPEN,
    REMOTE_ENDED,
    Http2StreamEvent,
)
from gateway.transports.http2.streams import Http2Stream, Http2StreamWriter
from gateway.transports.http2.windows import (
    CONNECTION_WINDOW,
    STREAM_WINDOW,
    WIDEN_AT,
    ReceiveWindows,
)
from gateway.wire.http import Buffer

_EMPTY: Final = memoryview(b"")
_PING_DATA: Final = bytes(8)
_SETTINGS_ACK: Final = frames.frame(frames.SETTINGS, frames.ACK, 0)


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

    def on_reset(self, stream: Http2Stream, code: int) -> bool:
        """Handle a reset stream. REFUSED_STREAM means that the peer has not processed it.

        Returns:
            Whether this side has served the call; another reset is charged to the client.
        """

    def on_writable(self, stream: Http2Stream) -> None:
        """Continue writing: all data that waited for the peer's windows is written."""

    def on_goaway(self, code: int, message: str) -> None:
        """Handle GOAWAY: the peer accepts no new streams."""


@lru_cache(16)  # the connections of a listener, or to upstreams, begin alike
def _greeting(client: bool, streams: int, header_bytes: int) -> bytes:
    """Return what one end sends first."""
    own = (frames.ENABLE_PUSH, 0) if client else (frames.MAX_CONCURRENT_STREAMS, streams)
    sizes = (frames.MAX_FRAME_SIZE, FRAME_BYTES), (frames.MAX_HEADER_LIST_SIZE, header_bytes)
    window = frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
    return (frames.PREFACE if client else b"") + frames.settings((own, *sizes)) + window


class Http2Connection:
    """One end of a connection.

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
        flood_budget: Limits frames that carry nothing.
        has_settings: The peer has sent its SETTINGS.
        last: The highest stream number that a client has used.
        out: The output, which the caller writes and empties.
        pongs: How many acknowledgements of PING have arrived.
        reader: Parses what the peer sends.
        streams: The streams that are not closed in both directions, by number.
        windows: The windows of this side.
        writer: Writes the streams of this side.
    """

    __slots__ = (
        "_blocks",
        "_is_accepting",
        "_is_client",
        "_last_accepted",
        "_max_streams",
        "_receiver",
        "flood_budget",
        "has_settings",
        "last",
        "out",
        "pongs",
        "reader",
        "streams",
        "windows",
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
        self._receiver = receiver
        self._is_client = client
        self._max_streams = streams
        self._is_accepting = True
        self._last_accepted: int | None = None
        self.has_settings = False
        self.last = 0
        self.pongs = 0
        self.flood_budget = FloodBudget()
        self.streams: dict[int, Http2Stream] = {}
        self.out: list[Buffer] = [_greeting(client, streams, header_bytes)]
        self.windows = ReceiveWindows(self.out)
        self.writer = Http2StreamWriter(
            self.out, self.flood_budget, self.streams, receiver.on_writable
        )
        self._blocks = HeaderBlockReader(read_head, read_block, header_bytes)
        self.reader = FrameReader(
            self,
            self.take_response if client else self.take_request,
            b"" if client else frames.PREFACE,
            header_bytes,
        )

    def close(self) -> None:
        """Detach the receiver, a reference cycle otherwise. Call it once, after the last `feed`."""
        del self._receiver
        self.flood_budget.on_low = None
        self.reader.close()
        self.writer.close()

    # -- operations of the caller

    def reset(self, stream: Http2Stream, code: int) -> None:
        """End a stream both ways, now; harmless when it has ended."""
        if self.streams.pop(stream.number, None) is not None:
            self.writer.forget(stream)
            self.out.append(frames.reset(stream.number, code))

    def cancel(self, stream: Http2Stream) -> None:
        """Reset a stream, and refund its frames that are on their way."""
        self.flood_budget.remaining += RESPONSE_REFUND
        self.reset(stream, frames.CANCEL)

    def goaway(self, *, final: bool, code: int = frames.NO_ERROR, message: str = "") -> None:
        """Tell the peer not to open further streams; if *final*, refuse new ones.

        While streams are open, *code* is NO_ERROR: some clients end all streams at any other code.
        """
        last = frames.MAX_WINDOW
        if final:
            if self._last_accepted is None:
                self._last_accepted = self.last
            self._is_accepting = False
            last = self._last_accepted
        self.out.append(frames.goaway(last, code, message))

    def ping(self) -> None:
        """Ask the peer whether it is there; the acknowledgement increases `pongs`."""
        self.out.append(frames.frame(frames.PING, 0, 0, _PING_DATA))

    # -- frames of streams

    def on_payload(self, number: int, length: int) -> Http2Stream | None:
        """Subtract *length* from the windows; return the stream, or None if it has ended."""
        stream = self.streams.get(number)
        if stream is None:
            self._require_known(number)
            if length < SMALL_FRAME_BYTES:
                self._charge_of_call()
        self.windows.receive(stream, length)
        return stream

    @accelerated
    def take_request(self, data: bytes, at: int) -> int:
        """Handle a complete request: header fields, and one DATA frame that ends it.

        Returns:
            The position after the last frame that was handled; 0 for anything else.
        """
        whole = complete_stream(data, at, self._blocks.max_block)
        if whole is None:
            return 0
        number, block, begin, end, last, _, opened = whole
        length = end - begin
        window = self.windows.left - length
        room = self.writer.initial_window + opened
        if (
            last is not None
            or length > STREAM_WINDOW
            or room > frames.MAX_WINDOW
            or window < WIDEN_AT
            or number <= self.last
            or not number % 2
            or not self._is_accepting
            or len(self.streams) >= self._max_streams
            or not self.has_settings
        ):
            return 0
        head = self._blocks.read(block)
        if isinstance(head, Http2StreamError):
            self._head(number, head, end=False)
            return at + frames.HEAD_BYTES + len(block)
        self.last = number
        self.windows.left = window
        stream = self.streams[number] = Http2Stream(number, room, STREAM_WINDOW - length, None)
        stream.state = HALF_CLOSED_REMOTE
        self._receiver.on_complete_stream(stream, head, content(data, begin, end), None)
        return self.writer.take_update(data, end)

    @accelerated
    def take_response(self, data: bytes, at: int) -> int:
        """Handle a complete response: header fields, one DATA frame and trailers.

        Returns:
            The position after the last frame that was handled; 0 for anything else.
        """
        whole = complete_stream(data, at, self._blocks.max_block)
        if whole is None:
            return 0
        number, block, begin, stop, last, end, opened = whole
        length = stop - begin
        window = self.windows.left - length
        stream = self.streams.get(number)
        if (
            last is None
            or opened
            or stream is None
            or (stream.state is not HALF_CLOSED_LOCAL and stream.is_remote_closed)
            or length > stream.window
            or window < WIDEN_AT
            or stream.expected_bytes is not None
            or not self.has_settings
        ):
            return 0
        head = self._blocks.read(block)
        if isinstance(head, Http2StreamError):
            self._head(number, head, end=False)
            return begin - frames.HEAD_BYTES
        tail = self._blocks.read(last)
        if isinstance(tail, Http2StreamError):
            self._head(number, tail, end=True)
            return end
        self.windows.left = window
        if stream.state is HALF_CLOSED_LOCAL:  # its window does not matter any more
            stream.state = CLOSED
            del self.streams[number]
        else:
            stream.move(Http2StreamEvent.RECEIVE_END)
        self._receiver.on_complete_stream(stream, head, content(data, begin, stop), tail)
        return self.writer.take_update(data, end)

    def on_block(self, number: int, block: bytes, *, end: bool) -> None:
        """Decode a complete header block, and handle its fields."""
        if not self.has_settings:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._head(number, self._blocks.read(block), end=end)

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

    def _trailers(self, stream: Http2Stream, head: Head | Http2StreamError, *, end: bool) -> None:
        """Handle the trailers of a request, which are ignored."""
        if end and isinstance(head, MissingPseudoHeaders):
            self.on_content(stream, _EMPTY, end=True)
        else:
            self.refuse(stream, frames.PROTOCOL_ERROR)

    def room(self, stream: Http2Stream) -> memoryview | None:
        """Return where the next data of a large message belong, if there is a place."""
        place = stream.place
        if place is None or stream.state in REMOTE_ENDED:
            return None
        room = place.room()
        expected = stream.expected_bytes
        return room if room is None or expected is None else room[:expected]

    def copy_content(
        self, stream: Http2Stream, data: Buffer, at: int, rest: int, *, end: bool
    ) -> tuple[int, int, bool]:
        """Copy DATA frames of a stream to where its message is collected, if it is."""
        room = self.room(stream)
        if room is None or (end and rest <= len(room)):
            return at, rest, end
        window = min(stream.window, self.windows.left)
        at, copied, begun, rest, is_last = copy_data(data, at, stream.number, rest, window, room)
        if begun:
            self.windows.receive_copied(stream, begun)
            end = is_last
        if copied:
            self.on_copied(stream, copied, rest)
        return at, rest, end

    def on_copied(self, stream: Http2Stream, size: int, rest: int) -> None:
        """Handle *size* bytes that are in their place; *rest* bytes of their frame remain."""
        stream.frame_bytes_left = rest
        if stream.expected_bytes is not None:
            stream.expected_bytes -= size
        assert stream.place is not None  # noqa: S101  # it has the room
        stream.place.copied(size)

    def on_content(self, stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        """Handle a part of a stream."""
        if stream.expected_bytes is not None:
            stream.expected_bytes -= len(view)
            if stream.expected_bytes < 0 or (end and stream.expected_bytes):
                self.refuse(stream, frames.PROTOCOL_ERROR)
                return
        if end:
            self._close_remote(stream)
        self._receiver.on_data(stream, view, end=end)

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

    def _require_known(self, number: int) -> None:
        """Check that a stream was opened before."""
        highest = self.writer.next_number - 2 if self._is_client else self.last
        if number > highest or not number % 2:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, f"stream {number} is idle")

    def _charge_of_call(self) -> None:
        """Charge a frame of which each call may have some, such as an update of a window."""
        self.flood_budget.charge_of_call(self.last or self.writer.next_number)

    # -- frames about the connection

    def on_control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Handle a frame that is neither DATA nor a part of a header block."""
        if kind == frames.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == frames.RST_STREAM:
            self._reset_by_peer(number, payload)
        elif kind == frames.SETTINGS:
            self._settings(flags, number, payload)
        elif kind == frames.PING:
            self._ping(flags, number, payload)
        elif kind == frames.GOAWAY:
            self._goaway(number, payload)
        elif kind == frames.PUSH_PROMISE:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "server push is not allowed")
        else:  # priorities, and kinds that are not known
            self.flood_budget.charge(1)
            if kind == frames.PRIORITY:
                self._priority(number, payload)

    def _priority(self, number: int, payload: bytes) -> None:
        """Check the form of a PRIORITY frame, which is otherwise ignored."""
        if not number:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:  # noqa: PLR2004  # Source: RFC 9113 6.3
            stream = self.streams.get(number)
            if stream is None:
                raise Http2ConnectionError(
                    frames.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes"
                )
            self.refuse(stream, frames.FRAME_SIZE_ERROR)

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:  # noqa: PLR2004  # one number
            raise Http2ConnectionError(
                frames.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes"
            )
        self._charge_of_call()
        size = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        stream = self.streams.get(number)
        if number and stream is None:
            self._require_known(number)
            return
        if not size:
            if stream is None:
                raise Http2ConnectionError(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
            self.refuse(stream, frames.PROTOCOL_ERROR)
            return
        if not self.writer.widen(stream, size):
            if stream is None:
                raise Http2ConnectionError(
                    frames.FLOW_CONTROL_ERROR, "WINDOW_UPDATE beyond the largest window"
                )
            self.refuse(stream, frames.FLOW_CONTROL_ERROR)
            return
        self.writer.pump()

    def _reset_by_peer(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:  # noqa: PLR2004  # one number
            raise Http2ConnectionError(
                frames.FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes"
            )
        stream = self.streams.pop(number, None)
        if stream is None:
            self._require_known(number)
            self._charge_of_call()
            return
        self.writer.forget(stream)
        was_served = self._receiver.on_reset(stream, int.from_bytes(payload, "big"))
        if not was_served and not self._is_client:
            self.flood_budget.charge(RESET_COST)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, f"SETTINGS on stream {number}")
        if flags & frames.ACK:
            if payload:
                raise Http2ConnectionError(frames.FRAME_SIZE_ERROR, "SETTINGS with ACK and values")
            self.flood_budget.charge(1)
            return
        values = frames.read_settings(payload)
        self.flood_budget.charge(1 + len(values))
        for key, value in values:
            if key == frames.ENABLE_PUSH and value > (0 if self._is_client else 1):
                raise Http2ConnectionError(
                    frames.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}, which is not allowed"
                )
            self.writer.apply_setting(key, value)
        self.out.append(_SETTINGS_ACK)
        if not self.has_settings:
            self.has_settings = True
            self._receiver.on_settings()
        self.writer.pump()

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, f"PING on stream {number}")
        if len(payload) != 8:  # noqa: PLR2004  # Source: RFC 9113 6.7
            raise Http2ConnectionError(frames.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        self.flood_budget.charge(1)
        if flags & frames.ACK:
            self.pongs += 1
        else:
            self.out.append(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _goaway(self, number: int, payload: bytes) -> None:
        if number:
            raise Http2ConnectionError(frames.PROTOCOL_ERROR, f"GOAWAY on stream {number}")
        if len(payload) < 8:  # noqa: PLR2004  # two numbers
            raise Http2ConnectionError(frames.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        self.flood_budget.charge(1)
        last, code = frames.read_two(payload)
        self._receiver.on_goaway(code, payload[8:208].decode("latin-1"))
        if self._is_client:
            for stream in [each for each in self.streams.values() if each.number > last]:
                del self.streams[stream.number]
                self.writer.forget(stream)
                self._receiver.on_reset(stream, frames.REFUSED_STREAM)

    def on_violation(self, fault: Http2ConnectionError) -> None:
        """Tell the peer which rule it broke."""
        last = self.last if self._last_accepted is None else self._last_accepted
        self.out.append(frames.goaway(last, fault.code, fault.message))
