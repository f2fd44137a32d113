"""Http2Connection: one HTTP/2 connection without sockets, for client and server.

This file has the operations of the caller and the frames of the connection.  `frame_reader` parses
frames, `windows` limits what the peer sends, `receiver` handles its streams, and `streams` writes
those of this side.  The caller has the socket, and calls `flood_budget.refill` once a second.
Priorities are ignored, and pushes are refused.

Source: RFC 9113.
"""

from typing import Final

from gateway.transports.http2 import frames
from gateway.transports.http2.flood_control import RESET_COST, RESPONSE_REFUND
from gateway.transports.http2.frame_reader import FRAME_BYTES
from gateway.transports.http2.frames import Http2ConnectionError
from gateway.transports.http2.hpack import TABLE_BYTES
from gateway.transports.http2.receiver import Http2Receiver
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.http2.windows import CONNECTION_WINDOW

_PING_DATA: Final = bytes(8)


class Http2Connection(Http2Receiver):
    """One end of a connection, with the arguments of `Http2Receiver`.

    Attributes:
        out: The output, which the caller writes and empties.
        last: The highest stream number that a client has used.
        peer_streams: How many streams the peer allows at once.
        pongs: How many acknowledgements of PING have arrived.
    """

    __slots__ = (
        "_last_accepted",
        "_peer_table",
        "peer_streams",
        "pongs",
    )

    def _initialise(self, header_bytes: int) -> None:
        self._last_accepted: int | None = None
        self._peer_table = TABLE_BYTES
        self.peer_streams = 100
        self.pongs = 0
        if self._is_client:
            self.out.append(frames.PREFACE)
        own = (
            (frames.ENABLE_PUSH, 0)
            if self._is_client
            else (frames.MAX_CONCURRENT_STREAMS, self._max_streams)
        )
        values = (
            own,
            (frames.MAX_FRAME_SIZE, FRAME_BYTES),
            (frames.MAX_HEADER_LIST_SIZE, header_bytes),
        )
        self.out.append(frames.settings(values))
        self.out.append(frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW))

    # -- operations of the caller

    def _refused(self, fault: Http2ConnectionError) -> None:
        last = self.last if self._last_accepted is None else self._last_accepted
        self.out.append(frames.goaway(last, fault.code, fault.message))

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

    # -- frames about the connection

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
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
            self._apply(key, value)
        self.out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        if not self._has_settings:
            self._has_settings = True
            self._receiver.on_settings()
        self.writer.pump()

    def _apply(self, key: int, value: int) -> None:
        if key == frames.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW or not self.writer.begin_at(value, self.streams.values()):
                raise Http2ConnectionError(
                    frames.FLOW_CONTROL_ERROR, f"a window of {value} bytes is too large"
                )
        elif key == frames.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
                raise Http2ConnectionError(
                    frames.PROTOCOL_ERROR, f"a frame size of {value} bytes is not allowed"
                )
            self.writer.frame_bytes = min(value, FRAME_BYTES)
        elif key == frames.MAX_CONCURRENT_STREAMS:
            self.peer_streams = value
        elif key == frames.HEADER_TABLE_SIZE:
            self.writer.has_shrunk = self.writer.has_shrunk or value < self._peer_table
            self._peer_table = value
        elif key == frames.ENABLE_PUSH and value > (0 if self._is_client else 1):
            raise Http2ConnectionError(
                frames.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}, which is not allowed"
            )

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
