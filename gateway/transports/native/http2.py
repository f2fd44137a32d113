"""HTTP/2 without sockets: bytes in, calls of a receiver and bytes out; client and server alike.

Here live streams, both windows and settings; frames are read in `http2_reader`.  Not here: sockets,
time (the driver calls `credit.tick` once a second), what fields mean (`read_head`), messages
(`grpc`).
Priorities are ignored, pushes refused, floods bounded (`http2_credit`).

Source: RFC 9113.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gateway.transports.native import http2_frames as h2
from gateway.transports.native.header_blocks import TABLE_BYTES, Field, HeaderDecoder
from gateway.transports.native.http2_credit import (
    ANSWER_EARNS,
    EARNS_FROM_BYTES,
    MESSAGE_EARNS,
    REFUSAL_COST,
    RESET_COST,
)
from gateway.transports.native.http2_frames import H2Fault, NoHead, StreamFault
from gateway.transports.native.http2_reader import FRAME_BYTES, FrameReader
from gateway.transports.native.http2_streams import Outlet, Stream
from gateway.wire.http import Buffer
from gateway.wire.remembered import Remembered

Head = Any
"""What the driver's `read_head` makes of header fields."""

STREAM_WINDOW: Final = h2.DEFAULT_WINDOW
"""What a peer may send on one stream before it is granted more."""

CONNECTION_WINDOW: Final = 1 << 20
_KNOWN_BLOCKS: Final = 64
_KNOWN_BYTES: Final = 1024
_EMPTY: Final = memoryview(b"")


class Receiver(Protocol):
    """Told of what a peer sends; its methods are called from within `feed`."""

    def settled(self) -> None:
        """The peer's settings have come."""

    def head(self, stream: Stream, head: Head, *, end: bool) -> None:
        """A stream began (on a server), or its header fields or trailers came (on a client)."""

    def data(self, stream: Stream, view: memoryview, *, end: bool) -> None:
        """A part of a stream came; *view* lives on."""

    def reset(self, stream: Stream, code: int) -> None:
        """A stream is gone; REFUSED_STREAM where the peer has not looked at it."""

    def sent(self, stream: Stream) -> None:
        """All that waited for the peer's windows has been written."""

    def went_away(self, code: int, message: str) -> None:
        """The peer takes no new streams."""


class Http2(FrameReader):
    """One end of a connection.

    Args:
        receiver: Told of what comes.
        read_head: Makes of header fields what the receiver is given, or a StreamFault; must
            depend on nothing else, since its results are remembered.
        client: Which end this is.
        streams: How many the peer may have open at once; of a client, 0.
        header_bytes: Most that the fields of one block may come to.

    Attributes:
        out: What is to be written; the driver empties it.
        peer_streams: How many streams the peer allows at once.
    """

    def __init__(
        self,
        receiver: Receiver,
        read_head: Callable[[Sequence[Field]], Head | StreamFault],
        *,
        client: bool,
        streams: int,
        header_bytes: int,
    ) -> None:
        super().__init__(b"" if client else h2.PREFACE, header_bytes)
        self._receiver = receiver
        self._read_head = read_head
        self._client = client
        self._max_streams = streams
        self._decoder = HeaderDecoder(header_bytes)
        self._known: Remembered[Head] = Remembered(_KNOWN_BLOCKS, _KNOWN_BYTES)
        self._window = CONNECTION_WINDOW
        self._last = 0
        self._next = 1
        self._accepting = True
        self._peer_table = TABLE_BYTES
        self.peer_streams = 100
        self.out: list[Buffer] = []
        self.outlet = Outlet(self.out, self.credit, self._ended_here, receiver.sent)
        self._greet(header_bytes)

    def _greet(self, header_bytes: int) -> None:
        if self._client:
            self.out.append(h2.PREFACE)
        own = (
            (h2.ENABLE_PUSH, 0) if self._client else (h2.MAX_CONCURRENT_STREAMS, self._max_streams)
        )
        values = (own, (h2.MAX_FRAME_SIZE, FRAME_BYTES), (h2.MAX_HEADER_LIST_SIZE, header_bytes))
        self.out.append(h2.settings(values))
        self.out.append(h2.window_update(0, CONNECTION_WINDOW - h2.DEFAULT_WINDOW))

    # -- what the driver asks

    @property
    def exhausted(self) -> bool:
        """Whether a client has used all its stream numbers."""
        return self._next > h2.MAX_WINDOW

    def feed(self, data: bytes) -> None:
        """Take what came from the peer.

        Raises:
            H2Fault: It breaks the protocol. GOAWAY is in `out`; feed it no more.
        """
        try:
            self._feed(data)
        except H2Fault as fault:
            self.out.append(h2.goaway(self._last, fault.code, fault.message))
            raise

    def open(self, owner: Any) -> Stream:
        """Return a new stream of a client."""
        stream = Stream(self._next, self.outlet.initial_window, STREAM_WINDOW, owner)
        self._next += 2
        self.streams[stream.number] = stream
        return stream

    def reset(self, stream: Stream, code: int) -> None:
        """End a stream both ways, now; harmless when it has ended."""
        if self.streams.pop(stream.number, None) is not None:
            self.outlet.forget(stream)
            self.out.append(h2.reset(stream.number, code))

    def grant(self, stream: Stream, size: int) -> None:
        """Let the peer send *size* bytes more on a stream."""
        if not stream.ended_there and size > 0 and stream.number in self.streams:
            stream.window += size
            self.out.append(h2.window_update(stream.number, size))

    def goaway(self, *, final: bool) -> None:
        """Tell the peer to open no more streams; after the *final* time they are not taken."""
        self._accepting = not final
        self.out.append(h2.goaway(self._last if final else h2.MAX_WINDOW, h2.NO_ERROR))

    # -- reading

    def _received_on(self, number: int, length: int) -> Stream | None:
        """Count *length* against the windows; return the stream, None when it has ended."""
        self._window -= length
        if self._window < 0:
            raise H2Fault(h2.FLOW_CONTROL_ERROR, "more was sent than the connection's window")
        if self._window < CONNECTION_WINDOW // 2:
            self.out.append(h2.window_update(0, CONNECTION_WINDOW - self._window))
            self._window = CONNECTION_WINDOW
        stream = self.streams.get(number)
        if stream is None:
            self._require_known(number)
            self.credit.spend(1)
            return None
        stream.window -= length
        if stream.window < 0:
            raise H2Fault(h2.FLOW_CONTROL_ERROR, "more was sent than the stream's window")
        if stream.ended_there:
            raise H2Fault(h2.STREAM_CLOSED, f"data after the end of stream {number}")
        return stream

    def _require_known(self, number: int) -> None:
        """Refuse what is said of a stream that never was."""
        highest = self._next - 2 if self._client else self._last
        if number > highest or not number % 2:
            raise H2Fault(h2.PROTOCOL_ERROR, f"stream {number} is idle")

    def _deliver(self, stream: Stream, view: memoryview, *, end: bool) -> None:
        if stream.owed is not None:
            stream.owed -= len(view)
            if stream.owed < 0 or (end and stream.owed):
                self._refuse(stream, h2.PROTOCOL_ERROR)
                return
        if end:
            self._ended_there(stream)
        self._receiver.data(stream, view, end=end)

    def _whole_block(self, number: int, block: bytes, *, end: bool) -> None:
        if not self._settled:
            raise H2Fault(h2.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        head = self._known.get(block)
        if head is None:
            head = self._fresh_head(block)
        stream = self.streams.get(number)
        if stream is None:
            stream = self._opened(number, head)
            if stream is None:
                return
        elif stream.ended_there:
            raise H2Fault(h2.STREAM_CLOSED, f"header fields after the end of stream {number}")
        elif not self._client:
            self._trailers(stream, head, end=end)
            return
        if isinstance(head, StreamFault):
            self.reset(stream, head.code)
            if self._client:
                self._receiver.reset(stream, head.code)
            self.credit.spend(REFUSAL_COST)
            return
        if end:
            self._ended_there(stream)
        self._receiver.head(stream, head, end=end)

    def _trailers(self, stream: Stream, head: Head | StreamFault, *, end: bool) -> None:
        """Take the end of a request; what its trailers say is read by nobody."""
        if end and isinstance(head, NoHead):
            self._deliver(stream, _EMPTY, end=True)
        else:
            self._refuse(stream, h2.PROTOCOL_ERROR)

    def _fresh_head(self, block: bytes) -> Head | StreamFault:
        version = self._decoder.version
        head = self._read_head(self._decoder.decode(block))
        if version != self._decoder.version:
            self._known.clear()  # equal bytes mean something else now
        elif self._known.wants(block):
            self._known.keep(block, head)
        return head

    def _opened(self, number: int, head: Head | StreamFault) -> Stream | None:
        """Return the stream that a peer begins; None when it is not taken."""
        if self._client or number <= self._last:
            self._require_known(number)
            if not self._client and not isinstance(head, StreamFault):
                raise H2Fault(h2.PROTOCOL_ERROR, f"stream {number} was opened before")
            self.credit.spend(1)
            return None
        if not number % 2:
            raise H2Fault(h2.PROTOCOL_ERROR, f"a client may not open stream {number}")
        if not self._accepting:
            self.credit.spend(1)
            return None
        self._last = number
        if len(self.streams) >= self._max_streams:
            self.credit.spend(REFUSAL_COST)
            self.out.append(h2.reset(number, h2.REFUSED_STREAM))
            return None
        stream = Stream(number, self.outlet.initial_window, STREAM_WINDOW, None)
        self.streams[number] = stream
        return stream

    def _ended_there(self, stream: Stream) -> None:
        stream.ended_there = True
        if stream.ended_here:
            self.streams.pop(stream.number, None)

    def _ended_here(self, stream: Stream) -> None:
        stream.ended_here = True
        self.credit.left += ANSWER_EARNS
        if stream.ended_there:
            self.streams.pop(stream.number, None)

    # -- frames about the connection

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == h2.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == h2.RST_STREAM:
            self._reset_by_peer(number, payload)
        elif kind == h2.SETTINGS:
            self._settings(flags, number, payload)
        elif kind == h2.PING:
            self._ping(flags, number, payload)
        elif kind == h2.GOAWAY:
            self._goaway(number, payload)
        elif kind == h2.PUSH_PROMISE:
            raise H2Fault(h2.PROTOCOL_ERROR, "nobody may push")
        else:  # priorities, and kinds that are not known
            self.credit.spend(1)
            if kind == h2.PRIORITY:
                self._priority(number, payload)

    def _priority(self, number: int, payload: bytes) -> None:
        """Look at the form of what is not heeded."""
        if not number:
            raise H2Fault(h2.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:  # noqa: PLR2004  # Source: RFC 9113 6.3
            stream = self.streams.get(number)
            if stream is None:
                raise H2Fault(h2.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
            self._refuse(stream, h2.FRAME_SIZE_ERROR)

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:  # noqa: PLR2004  # one number
            raise H2Fault(h2.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes")
        self.credit.spend(1)
        size = int.from_bytes(payload, "big") & h2.MAX_WINDOW
        stream = self.streams.get(number)
        if number and stream is None:
            self._require_known(number)
            return
        if not size:
            if stream is None:
                raise H2Fault(h2.PROTOCOL_ERROR, "a window enlarged by nothing")
            self._refuse(stream, h2.PROTOCOL_ERROR)
            return
        if not self.outlet.widen(stream, size):
            if stream is None:
                raise H2Fault(h2.FLOW_CONTROL_ERROR, "a window enlarged too far")
            self._refuse(stream, h2.FLOW_CONTROL_ERROR)
            return
        if self.outlet.pump() >= EARNS_FROM_BYTES:
            self.credit.left += MESSAGE_EARNS

    def _refuse(self, stream: Stream, code: int) -> None:
        self.credit.spend(REFUSAL_COST)
        self.reset(stream, code)
        self._receiver.reset(stream, code)

    def _reset_by_peer(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:  # noqa: PLR2004  # one number
            raise H2Fault(h2.FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes")
        stream = self.streams.pop(number, None)
        if stream is None:
            self._require_known(number)
            self.credit.spend(1)
            return
        self.outlet.forget(stream)
        self._receiver.reset(stream, int.from_bytes(payload, "big"))
        if not self._client:
            self.credit.spend(RESET_COST)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise H2Fault(h2.PROTOCOL_ERROR, f"SETTINGS on stream {number}")
        if flags & h2.ACK:
            if payload:
                raise H2Fault(h2.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            self.credit.spend(1)
            return
        values = h2.read_settings(payload)
        self.credit.spend(1 + len(values))
        for key, value in values:
            self._apply(key, value)
        self.out.append(h2.frame(h2.SETTINGS, h2.ACK, 0))
        if not self._settled:
            self._settled = True
            self._receiver.settled()
        self.outlet.pump()

    def _apply(self, key: int, value: int) -> None:
        if key == h2.INITIAL_WINDOW_SIZE:
            if value > h2.MAX_WINDOW or not self.outlet.begin_at(value, self.streams.values()):
                raise H2Fault(h2.FLOW_CONTROL_ERROR, f"a window of {value} bytes is too large")
        elif key == h2.MAX_FRAME_SIZE:
            if not h2.DEFAULT_FRAME <= value <= h2.LARGEST_FRAME:
                raise H2Fault(h2.PROTOCOL_ERROR, f"a frame size of {value} bytes is not allowed")
            self.outlet.frame_bytes = min(value, FRAME_BYTES)
        elif key == h2.MAX_CONCURRENT_STREAMS:
            self.peer_streams = value
        elif key == h2.HEADER_TABLE_SIZE:
            self.outlet.shrunk = self.outlet.shrunk or value < self._peer_table
            self._peer_table = value
        elif key == h2.ENABLE_PUSH and value > (0 if self._client else 1):
            raise H2Fault(h2.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}, which it may not be")

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise H2Fault(h2.PROTOCOL_ERROR, f"PING on stream {number}")
        if len(payload) != 8:  # noqa: PLR2004  # Source: RFC 9113 6.7
            raise H2Fault(h2.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        self.credit.spend(1)
        if not flags & h2.ACK:
            self.out.append(h2.frame(h2.PING, h2.ACK, 0, payload))

    def _goaway(self, number: int, payload: bytes) -> None:
        if number:
            raise H2Fault(h2.PROTOCOL_ERROR, f"GOAWAY on stream {number}")
        if len(payload) < 8:  # noqa: PLR2004  # two numbers
            raise H2Fault(h2.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        self.credit.spend(1)
        last, code = h2.read_two(payload)
        self._receiver.went_away(code, payload[8:208].decode("latin-1"))
        if self._client:
            for stream in [each for each in self.streams.values() if each.number > last]:
                del self.streams[stream.number]
                self.outlet.forget(stream)
                self._receiver.reset(stream, h2.REFUSED_STREAM)
