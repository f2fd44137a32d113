"""ReceiveWindows: how many bytes the peer of an HTTP/2 connection may send.

The window of the connection opens for bytes that are consumed.  The window of a stream,
`Http2Stream.window`, opens when its reader has room for more: by `grant` for a large message, else
by `replenish`.  The windows of the peer, which limit this side, are `Http2Stream.room` and that of
`Http2StreamWriter`, which spends them.

Source: RFC 9113, 5.2 and 6.9.
"""

from typing import Final

from gateway.transports.http2 import frames
from gateway.transports.http2.frames import Http2ConnectionError
from gateway.transports.http2.states import REMOTE_ENDED
from gateway.transports.http2.streams import Http2Stream
from gateway.wire.http import Buffer

STREAM_WINDOW: Final = frames.DEFAULT_WINDOW
"""The initial window of a stream, in bytes."""

CONNECTION_WINDOW: Final = 1 << 20
"""The window of a connection, in bytes; the first bytes of this side open it so far."""

WIDEN_AT: Final = CONNECTION_WINDOW // 2
"""The window of a connection opens when less than this is left."""

_MIN_UPDATE_BYTES: Final = 16 * 1024


class ReceiveWindows:
    """The window of a connection, and those of its streams.

    Args:
        out: The output of the connection.

    Attributes:
        left: How many bytes the peer may send on the connection.
    """

    __slots__ = ("_out", "_unread", "left")

    def __init__(self, out: list[Buffer]) -> None:
        self._out = out
        self._unread = 0
        self.left = CONNECTION_WINDOW

    def receive(self, stream: Http2Stream | None, size: int) -> None:
        """Subtract a frame of *size* bytes; None is a stream that has ended, whose data is dropped.

        Raises:
            Http2ConnectionError: The peer may not send so much, or has ended the stream.
        """
        self.left -= size
        if self.left < 0:
            raise Http2ConnectionError(
                frames.FLOW_CONTROL_ERROR, "the peer sent more than the connection's window"
            )
        if stream is None:
            self._widen()
            return
        stream.unread += size
        self._unread += size
        self._widen()
        stream.window -= size
        if stream.window < 0:
            raise Http2ConnectionError(
                frames.FLOW_CONTROL_ERROR, "the peer sent more than the stream's window"
            )
        if stream.state in REMOTE_ENDED:
            raise Http2ConnectionError(
                frames.STREAM_CLOSED, f"data after the end of stream {stream.number}"
            )

    def receive_copied(self, stream: Http2Stream, size: int) -> None:
        """Subtract frames of *size* bytes, for which both windows have room."""
        self.left -= size
        self._unread += size
        stream.window -= size
        stream.unread += size

    def consume(self, stream: Http2Stream, size: int) -> bool:
        """Note that *size* bytes of a stream were consumed; return whether a frame was written.

        Until then, the bytes stay in the connection's window, which limits unread data without a
        reservation.
        """
        size = min(size, stream.unread)
        stream.unread -= size
        self._unread -= size
        return self.left < WIDEN_AT and self._widen()

    def _widen(self) -> bool:
        """Open the connection's window for the consumed bytes, if they justify a frame."""
        size = CONNECTION_WINDOW - self.left - self._unread
        if self.left >= WIDEN_AT or size < _MIN_UPDATE_BYTES:
            return False
        self._out.append(frames.window_update(0, size))
        self.left += size
        return True

    def grant(self, stream: Http2Stream, size: int) -> None:
        """Open the window of a stream by *size* bytes."""
        if size > 0 and not stream.is_remote_closed:
            stream.window += size
            self._out.append(frames.window_update(stream.number, size))

    def replenish(self, stream: Http2Stream) -> bool:
        """Open the window of a stream again if less than half is left; return whether it was so."""
        if stream.window >= STREAM_WINDOW // 2:
            return False
        self.grant(stream, STREAM_WINDOW - stream.window)
        return True
