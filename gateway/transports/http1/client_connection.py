"""One connection to an HTTP/1 upstream, which carries one request at a time."""

import asyncio
from collections.abc import Sequence
from time import monotonic

from gateway.ir.streaming_body import StreamingBody
from gateway.transports.http1.head_reader import READ_BYTES
from gateway.transports.http1.response_arrival import READING, UNSENT, WRITING, ResponseArrival
from gateway.transports.http1.response_reader import ResponseReader
from gateway.transports.net.sockets import (
    has_unread,
    tune,
    unacknowledged,
    unread_input,
)
from gateway.wire.http import Buffer, HttpResponse


class Http1ClientConnection(ResponseArrival):
    """A connection of a pool.

    Args:
        peer: Creates the errors of this upstream, and holds its limits.
        loop: The event loop.
        buffer: Receives data, and is emptied before the callback returns.  All connections of a
            pool share it.
        heads: The cache of response heads of this upstream.

    Attributes:
        loop: The event loop.
        created_at: When the connection was made, on the clock of `time.monotonic`.
        last_used_at: When it was last used.
        uses: How many requests were sent on it.
        is_usable: Whether another request may be sent on it.
        failure: Why the response cannot arrive.
        is_awaiting: A response is expected and incomplete.
        response: The response that is being read, until `release`.  None if nothing of it has
            arrived, or if all of it arrived at once.
        unread_bytes: Bytes of a request that had not arrived when the upstream closed its end
            instead of a response; UNSENT if nothing was sent.
    """

    __slots__ = ()

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the options of the socket."""
        self.transport = transport
        self.is_usable = True
        self._socket = transport.get_extra_info("socket")
        tune(self._socket)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's
        """Return the buffer for the next bytes: the body itself, if it is large."""
        response = self.response
        room = response.room() if response is not None and response.reads_into_body else None
        return self._buffer if room is None else room

    def eof_received(self) -> bool:
        """Fail the response in progress: the upstream has closed its half."""
        self.is_usable = False
        if self.is_awaiting and not (self.response and self.response.is_started):
            unsent: int = self.transport.get_write_buffer_size()
            self.unread_bytes = unacknowledged(self._socket) + unsent
        self._end("it was closed before the response was complete")
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        """Fail the response in progress, unless its rest has arrived."""
        self.is_usable = False
        self._peer.has_replied |= self.has_replied
        if self.is_awaiting:
            self._read_rest(exc)
        self._end(str(exc) if exc else "it was closed before the response was complete")
        self.transport = None
        if self._rest is not None:
            self._rest.detach()

    def pause_writing(self) -> None:
        """Pause the streaming body: the socket's send buffer is full."""
        self._paused |= WRITING
        if self._rest is not None:
            self._rest.pause()

    def resume_writing(self) -> None:
        """Resume the streaming body."""
        self._paused &= ~WRITING
        if self._rest is not None:
            self._rest.resume()

    # -- one request

    def exchange(
        self, method: str, buffers: Sequence[Buffer]
    ) -> asyncio.Future[HttpResponse | None]:
        """Send a request; return a future of its response.

        Most responses arrive in one piece, with a head that is in the cache.  For any other, the
        result is None, and `response_reader` returns the response.

        Args:
            method: The method of the request.
            buffers: Head and body.
        """
        self.uses += 1
        self.is_awaiting = True
        self._method = method
        self._waiter = waiter = self.loop.create_future()
        self.transport.writelines(buffers)
        if self.transport.is_closing():
            self.note_unsent()
        return waiter

    def begin(
        self, method: str, buffers: Sequence[Buffer], rest: StreamingBody | None, *, streamed: bool
    ) -> ResponseReader:
        """Send a request; return its response, which `more` waits for.

        Args:
            method: The method of the request.
            buffers: The head, and the body or its beginning.
            rest: The rest of the body, which is sent as it arrives.
            streamed: Whether the caller wants the response's body in pieces.
        """
        self.uses += 1
        self.is_awaiting = True
        self.response = response = ResponseReader(
            self._peer, method, streamed=streamed, heads=self._heads
        )
        if rest is not None:
            self._rest = rest
            self._first = [*buffers]  # bytes that are here already are sent with the head
            rest.pipe_to(self)
            buffers, self._first = self._first, None
        self.transport.writelines(buffers)
        if self.transport.is_closing():
            self.note_unsent()
        return response

    def note_unsent(self) -> None:
        """Note that the write of a request has failed at once, so that nothing of it was sent."""
        self.unread_bytes = UNSENT

    def write(self, piece: memoryview) -> None:
        """Send the next piece of the streaming body.

        A response that has arrived is read first: if the upstream has closed after it, the write
        would fail, and the response would be lost.
        """
        if self._first is not None:
            self._first.append(piece)
        elif self.is_usable:
            if self._late or has_unread(self._socket):
                self._write_later(piece)
            else:
                self.transport.write(piece)

    def _write_later(self, piece: memoryview) -> None:
        self._late.append(piece)
        if len(self._late) == 1:
            assert self._rest is not None  # noqa: S101  # it writes
            self._rest.pause()
            # The loop reads after the callbacks of its next turn, and so before those after it.
            self.loop.call_soon(self.loop.call_soon, self._write_late, self._rest)

    def _write_late(self, rest: StreamingBody) -> None:
        late, self._late = self._late, []
        if rest is not self._rest or not self.is_usable:
            return
        self.transport.writelines(late)
        if not self._paused & WRITING:
            rest.resume()

    def release(self) -> bool:
        """End the exchange; return whether the connection may be used again.

        It may not after a request whose body was not sent completely: the server would read the
        next request as the rest of that body.  It may not either while a large part of a request
        waits to be sent: a server that responds so early need not read the rest.
        """
        response, self.response = self.response, None
        # The traceback of an error holds the frame that waited, and so this connection.
        self._waiter = self.failure = None
        self.last_used_at = monotonic()
        keeps = not self.is_awaiting
        if response is not None:
            response.close()
            keeps = keeps and response.is_persistent
        self.is_awaiting = False
        if self._growing is not None:
            self._growing.cancel()
        keeps = keeps and not self._pending
        if self._rest is not None:
            self._rest.detach()
            keeps = keeps and not self._rest.remaining_bytes
            self._rest = None
        return keeps and self.is_usable and not self._paused

    def _read_rest(self, error: BaseException | None) -> None:
        """Read what has arrived before *error*, unless a part of it waits for memory already."""
        for data in unread_input(self.transport, error):
            left = memoryview(data)
            while left and self.is_awaiting:
                if self._paused & READING or self._pending or self._growing is not None:
                    return
                room = self.get_buffer(-1)[: len(left)]
                room[:] = left[: len(room)]
                left = left[len(room) :]
                self.buffer_updated(len(room))


def read_buffer() -> memoryview:
    """Return the buffer that the connections of a pool read into."""
    return memoryview(bytearray(READ_BYTES))
