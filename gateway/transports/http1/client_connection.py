"""One connection to an HTTP/1 upstream, which carries one request at a time.

Its response is read as far as there is memory for it.
"""

import asyncio
import sys
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from gateway.accelerator import accelerated
from gateway.ir.bodies.streaming_body import StreamingBody
from gateway.ir.errors import GatewayError, NotSent
from gateway.transports.http.client_rules import UpstreamErrors
from gateway.transports.http1.head_reader import READ_BYTES
from gateway.transports.http1.response_reader import ResponseHeadCache, ResponseReader
from gateway.transports.http1.streaming_body import CutThroughBody
from gateway.transports.net.sockets import (
    has_unread,
    peer_left,
    reset_when_closed,
    tune,
    unacknowledged,
    unread_input,
)
from gateway.transports.net.wrong_port import MAYBE_GRPC
from gateway.wire.http import Buffer, HttpResponse

_MAX_UNREAD_BYTES = 1 << 20

# What is paused: one number for both, because `release` looks at it for every request.
_READING = 1

_WRITING = 2

UNSENT: Final = sys.maxsize
"""What is unread of a request of which nothing was sent, whatever its size is."""


class BodyWriter:
    """Sends the rest of the body of one request as it arrives.

    Args:
        connection: Sends it.
        body: The rest of the body.
    """

    __slots__ = ("_body", "_connection", "_first", "_is_paused", "_late")

    def __init__(self, connection: "Http1ClientConnection", body: StreamingBody) -> None:
        self._connection = connection
        self._body = body
        self._first: list[Buffer] | None = None
        self._late: list[Buffer] = []
        self._is_paused = False

    @property
    def remaining_bytes(self) -> int:
        """How many bytes of the body are not sent yet."""
        return self._body.remaining_bytes

    def begin(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Pipe the body from now on; return *buffers* with the bytes that are here already."""
        self._first = first = [*buffers]
        self._body.pipe_to(self)
        self._first = None
        return first

    def write(self, piece: memoryview) -> None:
        """Send the next piece.

        A response that has arrived is read first: if the upstream has closed after it, the write
        would fail, and the response would be lost.
        """
        if self._first is not None:
            self._first.append(piece)
        elif self._connection.is_usable:
            transport = self._connection.transport
            if not self._late and not has_unread(transport.get_extra_info("socket")):
                transport.write(piece)
                return
            self._late.append(piece)
            if len(self._late) == 1:
                self._body.pause()
                # The loop reads after the callbacks of its next turn, and before those after it.
                loop = self._connection.loop
                loop.call_soon(loop.call_soon, self._write_late)

    def _write_late(self) -> None:
        late, self._late = self._late, []
        if late and self._connection.is_usable:
            self._connection.transport.writelines(late)
            if not self._is_paused:
                self._body.resume()

    def pause(self) -> None:
        """Send nothing more until `resume`: the socket's send buffer is full."""
        self._is_paused = True
        self._body.pause()

    def resume(self) -> None:
        """Continue."""
        self._is_paused = False
        self._body.resume()

    def detach(self) -> None:
        """Send nothing more."""
        self._late = []
        self._body.detach()


class Http1ClientConnection(asyncio.BufferedProtocol):
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

    # The compiled methods find these at their offsets.
    __slots__ = (
        "_buffer",
        "_growing",
        "_heads",
        "_method",
        "_paused",
        "_peer",
        "_pending",
        "_rest",
        "_socket",
        "_waiter",
        "created_at",
        "failure",
        "is_awaiting",
        "is_usable",
        "last_used_at",
        "loop",
        "response",
        "transport",
        "unread_bytes",
        "uses",
    )

    def __init__(
        self,
        peer: UpstreamErrors,
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        heads: ResponseHeadCache,
    ) -> None:
        self._peer = peer
        self._heads = heads
        self.loop = loop
        self._buffer = buffer
        self._socket: Any = None
        self._method = ""
        self._waiter: asyncio.Future[HttpResponse | None] | None = None
        self._paused = 0
        self._pending = b""
        self._growing: asyncio.Task[None] | None = None
        self._rest: BodyWriter | None = None
        self.transport: Any = None
        self.created_at = self.last_used_at = monotonic()
        self.uses = 0
        self.is_usable = False
        self.failure: Exception | None = None
        self.is_awaiting = False
        self.response: ResponseReader | None = None
        self.unread_bytes = 0

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

    @accelerated
    def buffer_updated(self, nbytes: int) -> None:
        """Read a part of a response; data that no request expects ends the connection."""
        response = self.response
        if response is not None:
            if response.reads_into_body and not response.is_done:
                response.received(nbytes)
                if response.needs_memory:
                    self._grow(response)
                self._notify(response)
            else:
                self._feed(response, self._buffer[:nbytes].tobytes())
        elif self.is_awaiting:
            data = self._buffer[:nbytes].tobytes()
            complete = self._heads.complete_response(data) if self._method != "HEAD" else None
            if complete is not None:
                self.is_awaiting = False
                self._wake(complete)
            else:
                self._begin_response(data)
        else:
            self.abort()

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
        self._paused |= _WRITING
        if self._rest is not None:
            self._rest.pause()

    def resume_writing(self) -> None:
        """Resume the streaming body."""
        self._paused &= ~_WRITING
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

    def response_reader(self) -> ResponseReader:
        """Return the complete response of `exchange`. Raises what `more` raises."""
        if self.failure is not None:
            raise self.failure
        assert self.response is not None  # noqa: S101  # else there was a failure
        return self.response

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
            self._rest = BodyWriter(self, rest)
            buffers = self._rest.begin(buffers)
        self.transport.writelines(buffers)
        if self.transport.is_closing():
            self.note_unsent()
        elif isinstance(rest, CutThroughBody):
            rest.splice_to(self.transport)
        return response

    async def more(self) -> None:
        """Wait until the response is complete; if it is streamed, until more of it has arrived.

        Raises:
            Unavailable: The connection broke.
            UpstreamProtocolError, TooLarge: The response cannot be used.
        """
        if self.failure is None:
            self._waiter = self.loop.create_future()
            if not self._pending and self._growing is None:
                self._resume()
            await self._waiter
        if self.failure is not None:
            raise self.failure

    def note_unsent(self) -> None:
        """Note that the write of a request has failed at once, so that nothing of it was sent."""
        self.unread_bytes = UNSENT

    def on_timeout(self) -> None:
        """Fail the exchange: its deadline has passed."""
        if self.is_awaiting:
            self._fail(self._peer.late())

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

    def abort(self) -> None:
        """Close at once with a reset, without sending the data that is still buffered.

        A server may take a plain end of the stream for a half-close, and go on working.
        """
        if self.transport is not None:
            self.is_usable = False
            reset_when_closed(self._socket)
            self.transport.abort()

    def has_ended(self) -> bool:
        """Return whether the peer has closed it, even if the loop has not read that yet."""
        return peer_left(self._socket)

    @property
    def has_replied(self) -> bool:
        """Whether the server has replied to a request on this connection."""
        return self.uses > 1 or (self.uses == 1 and not self.is_awaiting)

    # -- its response

    def _begin_response(self, data: bytes) -> None:
        """Read the first part of a response that is not plain."""
        self.response = ResponseReader(self._peer, self._method, streamed=False, heads=self._heads)
        self._feed(self.response, data)

    def _feed(self, response: ResponseReader, data: bytes) -> None:
        """Parse *data*, as far as the turn of this connection and the memory budget allow."""
        try:
            at = response.feed(data)
        except GatewayError as error:
            self._fail(error)
            return
        if response.needs_memory and not response.is_done:
            self._pending = data[at:]
            self._grow(response)
        elif response.is_behind:
            self._pending = data[at:]
            self._pause()
            self.loop.call_soon(self._continue, response)
        elif at != len(data):
            response.is_persistent = False  # data follows that no request expects
        self._notify(response)

    def _continue(self, response: ResponseReader) -> None:
        """Parse the data that waited for the next turn of the loop, or for memory."""
        data, self._pending = self._pending, b""
        if response is not self.response or self.failure is not None or not self.is_usable:
            return
        if data:
            self._feed(response, data)
        waits = self._pending or self._growing is not None
        if not waits and not (response.is_streamed and response.pieces):
            self._resume()

    def _grow(self, response: ResponseReader) -> None:
        """Stop reading the response until there is memory for it."""
        self._pause()
        if self._growing is None:
            self._growing = self.loop.create_task(self._wait_for_memory(response))

    async def _wait_for_memory(self, response: ResponseReader) -> None:
        try:
            await response.grow()
        except GatewayError as error:
            self._fail(error)
        finally:
            self._growing = None
        self._continue(response)

    def _pause(self) -> None:
        if not self._paused & _READING and self.transport is not None:
            self._paused |= _READING
            self.transport.pause_reading()

    def _resume(self) -> None:
        paused = self._paused & _READING
        if paused and self.transport is not None and not self.transport.is_closing():
            self._paused &= ~_READING
            self.transport.resume_reading()

    def _read_rest(self, error: BaseException | None) -> None:
        """Read what has arrived before *error*, unless a part of it waits for memory already."""
        for data in unread_input(self.transport, error):
            left = memoryview(data)
            while left and self.is_awaiting:
                if self._paused & _READING or self._pending or self._growing is not None:
                    return
                room = self.get_buffer(-1)[: len(left)]
                room[:] = left[: len(room)]
                left = left[len(room) :]
                self.buffer_updated(len(room))

    def _notify(self, response: ResponseReader) -> None:
        """Wake the caller if the response is complete, or if it is streamed and has grown."""
        self.is_awaiting = not response.is_done
        if response.is_streamed:
            if response.pieces and sum(map(len, response.pieces)) > _MAX_UNREAD_BYTES:
                self._pause()
            self._wake()
        elif response.is_done:
            self._wake()

    def _end(self, why: str) -> None:
        if not self.is_awaiting:
            return
        if self.response is not None and self.response.feed_eof():
            self._notify(self.response)
        else:
            is_silent = self.uses == 1 and not (self.response and self.response.is_started)
            error = self._peer.lost(why, MAYBE_GRPC if is_silent else "")
            self._fail(NotSent(error.message) if self.unread_bytes == UNSENT else error)

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        self._wake()

    def _wake(self, complete: HttpResponse | None = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(complete)


def read_buffer() -> memoryview:
    """Return the buffer that the connections of a pool read into."""
    return memoryview(bytearray(READ_BYTES))
