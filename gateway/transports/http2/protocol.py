"""Http2Protocol: an HTTP/2 connection on a socket, for client and server.

All frames of one turn of the loop are written in one call.  While the socket's buffers are full,
the core writes nothing, and data waits where it was created.
"""

import asyncio
import threading
from typing import Any, Final

from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.frames import Http2ConnectionError
from gateway.transports.net.sockets import tune, unread_input
from gateway.transports.net.write_drain import WriteStall
from gateway.wire.http import Buffer

READ_BYTES: Final = 256 * 1024
"""How much one read of a large message receives."""

_OTHER_READS: Final = 16

WRITE_BUFFER_BYTES: Final = 256 * 1024
"""The size of the transport's write buffer; more data waits where it was created."""


class Http2Protocol(asyncio.Protocol):
    """Connects a transport and an `Http2Connection`, which a subclass creates.

    Attributes:
        loop: The event loop.
        core: The connection without its socket.
        is_new: Whether received data are shown to `is_foreign` first.
        transport: None before the connection is made and after it is lost.
        fault: The connection error of the peer, if there was one.
        has_received: Whether data has arrived since a subclass has set it to False.
        is_flushing: Whether the output of the core will be written in the next turn of the loop.
        stall: The write buffer while it is full; None while it is not.
        turn: Increases with each flush.
    """

    __slots__ = (
        "_has_large_reads",
        "_is_paused",
        "_waits_for_turn",
        "core",
        "fault",
        "has_received",
        "is_flushing",
        "is_new",
        "loop",
        "stall",
        "transport",
        "turn",
    )

    core: Http2Connection

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: Any = None
        self.fault: Http2ConnectionError | None = None
        self.is_flushing = False
        self.is_new = False
        self.has_received = False
        self.turn = 0
        self._has_large_reads = self._is_paused = False
        self._waits_for_turn = False
        self.stall: WriteStall | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket's options, and write the preface or SETTINGS."""
        self.transport = transport
        tune(transport.get_extra_info("socket"))
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.flush_soon()

    def data_received(self, data: bytes) -> None:
        """Feed the core, as far as the turn of this connection allows."""
        if (
            self.fault is not None
            or self.transport is None
            or (self.is_new and self.is_foreign(data))
        ):
            return
        core = self.core
        reader = core.reader
        self.has_received = True
        try:
            reader.feed(data)
        except Http2ConnectionError as fault:
            self.fault = fault.with_traceback(None)  # the traceback would be a reference cycle
            self.broken(fault)
            self.flush()
            if self.transport is not None:
                self.transport.close()
            return
        if core.out and not self.is_flushing:
            self.flush_soon()
        if reader.is_copying and not self._has_large_reads:
            self.receive_with(LargeReads(self))
            self._has_large_reads = True
        if reader.is_behind:
            self._wait_for_turn()

    def receive_with(self, protocol: asyncio.BaseProtocol) -> None:
        """Let *protocol* receive, until this object or another one does."""
        self._has_large_reads = False
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._is_paused:
            transport.set_protocol(protocol)
        else:  # uvloop looks at the kind of a protocol when it begins to read
            transport.pause_reading()
            transport.set_protocol(protocol)
            transport.resume_reading()

    def read_rest(self, error: BaseException | None) -> None:
        """Read what has arrived before *error* ended the connection; for `connection_lost`."""
        for data in unread_input(self.transport, error):
            self.data_received(data)
            while self.core.reader.is_behind and self.fault is None:
                self.data_received(b"")

    def is_foreign(self, data: bytes) -> bool:  # noqa: ARG002  # for subclasses
        """Return whether *data* begins another protocol, and close the connection if so."""
        return False

    def _wait_for_turn(self) -> None:
        """Stop reading until other connections had their turn."""
        if self.transport is None:
            return
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self.loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._waits_for_turn = False
        self.data_received(b"")
        if self._is_paused and not self.core.reader.is_behind and self.transport is not None:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def broken(self, fault: Http2ConnectionError) -> None:
        """Handle a protocol error of the peer; the connection closes afterwards."""

    def flush_soon(self) -> None:
        """Write the output of the core in the next turn of the loop."""
        if not self.is_flushing:
            self.is_flushing = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the output of the core."""
        self.is_flushing = False
        self.turn += 1
        out = self.core.out
        if not out:
            return
        transport = self.transport
        if transport is None:
            out.clear()
        elif len(out) == 1:
            transport.write(out[0])
            out.clear()
            if transport.is_closing():  # the write failed at once: nothing of this turn is sent
                self.turn -= 1
        else:
            buffers: list[Buffer] = out[:]
            out.clear()
            transport.writelines(buffers)
            if transport.is_closing():
                self.turn -= 1

    def pause_writing(self) -> None:
        """Stop writing: the write buffer is full."""
        self.core.writer.is_paused = True
        self.stall = WriteStall(self.transport)

    def resume_writing(self) -> None:
        """Write again: the write buffer is empty."""
        self.core.writer.is_paused = False
        self.stall = None
        self.core.writer.pump()
        self.flush()

    def close(self) -> None:
        """Close after the output is written. A second call does nothing."""
        self.flush()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once. A second call does nothing."""
        if self.transport is not None:
            self.transport.abort()


class _ReadBuffer(threading.local):
    """What all connections of a thread receive into, each for the length of one call."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_BUFFER: Final = _ReadBuffer()


class LargeReads(asyncio.BufferedProtocol):
    """Receives for a connection while large messages arrive, whose bytes it copies at most once.

    Args:
        connection: Receives by itself again after some reads without a part of such a message.
    """

    __slots__ = ("_connection", "_is_direct", "_others")

    def __init__(self, connection: Http2Protocol) -> None:
        self._connection = connection
        self._is_direct = False
        self._others = 0

    def get_buffer(self, _hint: int) -> memoryview:
        """Return the place of the rest of a large frame, or the buffer of the thread."""
        room = self._connection.core.reader.rest_room
        self._is_direct = room is not None
        return _BUFFER.view if room is None else room

    def buffer_updated(self, size: int) -> None:
        """Put parts of messages in their places, and let the connection receive the rest."""
        connection = self._connection
        reader, at, data = connection.core.reader, size, _BUFFER.view[:size]
        if self._is_direct:
            reader.rest_received(size)
        else:
            at = reader.copy(data)
        if at < size:
            connection.data_received(bytes(data[at:]))
        connection.has_received = True
        self._others = 0 if at or reader.is_copying else self._others + 1
        if self._others == _OTHER_READS:
            connection.receive_with(connection)

    def pause_writing(self) -> None:
        """Tell the connection."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection."""
        self._connection.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the connection."""
        self._connection.connection_lost(error)
