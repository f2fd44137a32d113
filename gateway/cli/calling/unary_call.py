"""One gRPC call over a blocking socket, for commands that start faster than an event loop.

Messages have 16 KiB at most.

Source: RFC 9113; gRPC documentation, "gRPC over HTTP2".
"""

import socket
import struct
from time import monotonic
from typing import Final

from gateway.transports.grpc.headers import GrpcResponseHead, read_response_head, request_block
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.frames import Http2ConnectionError
from gateway.transports.http2.streams import Http2Stream
from gateway.wire.grpc import GrpcStatus, Metadata

_MESSAGE_BYTES: Final = 16_384
_READ_BYTES: Final = 65_536
_PREFIX: Final = struct.Struct(">BI")  # whether the message is compressed, and its size


def call_unary(
    sock: socket.socket,
    authority: str,
    path: str,
    message: bytes,
    metadata: Metadata,
    end: float,
) -> bytes | None:
    """Send a message and return the response; None for anything but one message and status OK.

    Args:
        sock: Connected; nothing was sent on it.
        authority: HOST:PORT of the server.
        path: /SERVICE/METHOD.
        message: The request.
        metadata: Header fields of the request.
        end: When to give up, on the monotonic clock.

    Raises:
        TimeoutError: The server does not respond before *end*.
        OSError: The connection is lost.
    """
    events = _Events()
    core = Http2Connection(
        events, read_response_head, client=True, streams=0, header_bytes=_MESSAGE_BYTES
    )
    stream = core.writer.open(events)
    scheme = "http" if type(sock) is socket.socket else "https"
    block = request_block(path, authority, scheme, metadata, end - monotonic())
    framed = _PREFIX.pack(0, len(message)) + message
    core.writer.send(stream, block, [framed], None, len(framed))
    try:
        while not events.has_ended:
            sock.settimeout(max(0.001, end - monotonic()))
            sock.sendall(b"".join(core.out))
            core.out.clear()
            data = sock.recv(_READ_BYTES)
            if not data:
                return None
            core.reader.feed(data)
    except Http2ConnectionError:
        return None
    finally:
        core.close()
    return events.message if events.status is GrpcStatus.OK else None


class _Events:
    """What the server has sent on the only stream."""

    def __init__(self) -> None:
        self.has_ended = False
        self.status: GrpcStatus | None = None
        self.message: bytes | None = None
        self._data = bytearray()

    def on_settings(self) -> None:
        """Do nothing: the request is sent at once."""

    def on_headers(self, _stream: Http2Stream, head: GrpcResponseHead, *, end: bool) -> None:
        self.status = head.status
        if end:
            self._end()

    def on_complete_stream(
        self,
        _stream: Http2Stream,
        _head: GrpcResponseHead,
        view: memoryview,
        tail: GrpcResponseHead | None,
    ) -> None:
        self._data += view
        self.status = None if tail is None else tail.status
        self._end()

    def on_data(self, _stream: Http2Stream, view: memoryview, *, end: bool) -> None:
        self._data += view
        if end:
            self._end()

    def on_reset(self, _stream: Http2Stream, _code: int) -> bool:
        self.has_ended = True
        return True

    def on_writable(self, _stream: Http2Stream) -> None:
        """Do nothing: the request is one small message."""

    def on_goaway(self, _code: int, _message: str) -> None:
        """Do nothing: the stream ends, or is reset."""

    def _end(self) -> None:
        self.has_ended = True
        size = len(self._data) - _PREFIX.size
        if size >= 0 and _PREFIX.unpack_from(self._data) == (0, size):
            self.message = bytes(self._data[_PREFIX.size :])
