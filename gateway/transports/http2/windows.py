"""The windows of flow control: how many bytes each side of a connection may send.

`ReceiveWindows` has those of this side, which limit the peer. The window of the connection opens
for bytes that are consumed. The window of a stream, `Http2Stream.window`, opens when its reader has
room for more: by `grant` for a large message, else by `replenish`. The windows of the peer, which
limit this side, are `Http2Stream.room` and that of `Http2StreamWriter`, which spends them.

Source: RFC 9113 5.2 and 6.9.
"""

from abc import abstractmethod
from typing import Final

from gateway.transports.http2 import frames
from gateway.transports.http2.flood_control import SMALL_FRAME_BYTES
from gateway.transports.http2.frame_reader import FrameReader
from gateway.transports.http2.frames import Http2ConnectionError
from gateway.transports.http2.states import REMOTE_ENDED
from gateway.transports.http2.streams import Http2Stream
from gateway.wire.http import Buffer

STREAM_WINDOW: Final = frames.DEFAULT_WINDOW
"""The initial window of a stream, in bytes."""

CONNECTION_WINDOW: Final = 1 << 20
"""The window of a connection, in bytes."""

WIDEN_AT: Final = CONNECTION_WINDOW // 2
"""The window of a connection opens when less than this is left."""

_MIN_UPDATE_BYTES: Final = 16 * 1024


class ReceiveWindows(FrameReader):
    """Counts received bytes against the windows of this side, and opens the windows.

    Attributes:
        out: The output, which the caller writes and empties.
    """

    __slots__ = ("_unread", "_window", "out")

    def __init__(self, preface: bytes, block_bytes: int) -> None:
        super().__init__(preface, block_bytes)
        self._window = CONNECTION_WINDOW
        self._unread = 0
        self.out: list[Buffer] = []

    @abstractmethod
    def _require_known(self, number: int) -> None:
        """Check that a stream was opened before."""

    @abstractmethod
    def _charge_of_call(self) -> None:
        """Charge a frame of which each call may have some."""

    def _received_on(self, number: int, length: int) -> Http2Stream | None:
        """Subtract *length* from the windows; return the stream, or None if it has ended."""
        self._window -= length
        if self._window < 0:
            raise Http2ConnectionError(
                frames.FLOW_CONTROL_ERROR, "the peer sent more than the connection's window"
            )
        stream = self.streams.get(number)
        if stream is None:
            self._require_known(number)
            if length < SMALL_FRAME_BYTES:
                self._charge_of_call()
            self._widen()
            return None
        stream.unread += length
        self._unread += length
        self._widen()
        stream.window -= length
        if stream.window < 0:
            raise Http2ConnectionError(
                frames.FLOW_CONTROL_ERROR, "the peer sent more than the stream's window"
            )
        if stream.state in REMOTE_ENDED:
            raise Http2ConnectionError(
                frames.STREAM_CLOSED, f"data after the end of stream {number}"
            )
        return stream

    def consume(self, stream: Http2Stream, size: int) -> bool:
        """Note that *size* bytes of a stream were consumed; return whether a frame was written.

        Until then, the bytes stay in the connection's window, which limits unread data without a
        reservation.
        """
        size = min(size, stream.unread)
        stream.unread -= size
        self._unread -= size
        return self._window < WIDEN_AT and self._widen()

    def _widen(self) -> bool:
        """Open the connection's window for the consumed bytes, if they justify a frame."""
        size = CONNECTION_WINDOW - self._window - self._unread
        if self._window >= WIDEN_AT or size < _MIN_UPDATE_BYTES:
            return False
        self.out.append(frames.window_update(0, size))
        self._window += size
        return True

    def grant(self, stream: Http2Stream, size: int) -> None:
        """Open the window of a stream by *size* bytes."""
        if size > 0 and not stream.is_remote_closed:
            stream.window += size
            self.out.append(frames.window_update(stream.number, size))

    def replenish(self, stream: Http2Stream) -> bool:
        """Open the window of a stream again if less than half is left; return whether it was so."""
        if stream.window >= STREAM_WINDOW // 2:
            return False
        self.grant(stream, STREAM_WINDOW - stream.window)
        return True
