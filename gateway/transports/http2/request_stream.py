"""HttpStream: one plain HTTP request on a stream of HTTP/2.

The exchange is that of HTTP/1 (`http.exchange`), with the same limits.  To the exchange, a stream
is both its connection and its request.  Bodies are received completely.

Source: RFC 9113 8.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final, Protocol

from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.ir.context import REQUEST_ID
from gateway.transports.client_shares import ClientShares
from gateway.transports.contract import ServerLimits
from gateway.transports.http import states
from gateway.transports.http.cut_through import OnBodyError
from gateway.transports.http.exchange import Exchange
from gateway.transports.http.faults import HttpError, failure
from gateway.transports.http.headers import is_writable, safe_value
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.request_body import (
    EMPTY,
    TransferRateLimit,
    too_many_bytes,
    wait_for_body,
)
from gateway.transports.http.request_head import Head, Version
from gateway.transports.http.response_writer import ResponseWriter
from gateway.transports.http.states import HttpConnectionState
from gateway.transports.http2 import frames
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.flood_control import (
    EARLY_RESET_S,
    RESPONSE_REFUND,
)
from gateway.transports.http2.hpack import literal
from gateway.transports.http2.request_head import HttpStreamHead
from gateway.transports.http2.states import (
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    OPEN,
)
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.reservation import Reservation
from gateway.transports.reserved_buffer import ReservedBuffer
from gateway.wire.http import Buffer, Headers, HttpResponse, size_of, write_fields

_BODILESS: Final = frozenset({204, 304})
_FIRST_ERROR: Final = 400
_CONTINUE: Final = literal(b":status", b"100")
_VARIES: Final = literal(b"vary", b"accept-encoding")


class RequestStreamConnection(Protocol):
    """The part of a connection that a request uses."""

    core: Http2Connection
    loop: asyncio.AbstractEventLoop

    @property
    def http_client(self) -> ClientShares:
        """What its client has of the slots and the memory of the listener."""
        ...

    def flush_soon(self) -> None:
        """Write the frames of the core in the next turn of the loop."""

    def on_http_begin(self) -> None:
        """Note the begin of a request."""

    def on_http_end(self) -> None:
        """Note its end."""


class StreamWriter:
    """Writes the response of one stream; what `Exchange` has for a transport.

    Args:
        connection: The connection.
        stream: The stream.
    """

    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: RequestStreamConnection, stream: Http2Stream) -> None:
        self._connection = connection
        self._stream = stream

    @property
    def is_open(self) -> bool:
        """Whether the response may go on."""
        state = self._stream.state
        return state is HALF_CLOSED_REMOTE or state is OPEN

    def response(
        self,
        response: HttpResponse,
        _keep: bool,  # a stream carries one request
        _version: Version,
        varies: bool = False,
        head_only: bool = False,
    ) -> None:
        """Write a complete *response*, with its exact length."""
        if response.status in _BODILESS:
            self._head(_block(response), end=True)
            return
        size = size_of(response.body)
        block = _block(response)
        if response.body or not head_only:  # as in HTTP/1
            block += literal(b"content-length", b"%d" % size)
        if varies:
            block += _VARIES
        if head_only or not size:
            self._head(block, end=True)
        elif self.is_open:
            core, stream = self._connection.core, self._stream
            remaining = core.flood_budget.remaining
            core.writer.send(stream, block, response.body, None, size)
            # A rejected request earns no refund. An end that waits for a window will be refunded.
            if response.status >= _FIRST_ERROR:
                core.flood_budget.remaining = remaining - RESPONSE_REFUND * stream.has_pending_end
            self._connection.flush_soon()

    def head(self, response: HttpResponse, **_: object) -> None:
        """Write the head of a streamed response."""
        self._head(_block(response))

    def proceed(self) -> None:
        """Send "100 Continue" to a client that waits for it."""
        self._head(_CONTINUE)

    def _head(self, block: bytes, *, end: bool = False) -> None:
        if self.is_open:
            self._connection.core.writer.head(self._stream, block, end=end)
            self._connection.flush_soon()

    def part(self, body: Iterable[Buffer], _version: Version) -> None:
        """Write a part of a streamed response, as far as the windows of the client allow."""
        buffers = [buffer for buffer in body if len(buffer)]
        if buffers and self.is_open:
            self._connection.core.writer.data(self._stream, buffers)
            self._connection.flush_soon()

    def end(self, _version: Version | None = None) -> None:
        """End the stream after what waits."""
        if self.is_open:
            self._connection.core.writer.end(self._stream, None)
            self._connection.flush_soon()

    def abort(self) -> None:
        """Reset the stream."""
        if self._stream.state is not CLOSED:
            self._connection.core.reset(self._stream, frames.CANCEL)
            self._connection.flush_soon()

    def can_write_eof(self) -> bool:
        """Return False: the end of a stream is part of its response."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for the windows of the client."""
        return size_of(self._stream.waiting or ())


HTTP2: Final = ResponseWriter(
    StreamWriter.response,
    StreamWriter.head,
    StreamWriter.part,
    StreamWriter.end,
    StreamWriter.proceed,
)


class HttpStream:
    """A plain HTTP request: the `HttpConnection` and the `RequestReader` of its exchange.

    Args:
        connection: Its connection.
        stream: Its stream.
        head: Its header fields.
        listener: The state of the listener.
        body: The complete body; None if it has not arrived.
    """

    should_close = False
    state: HttpConnectionState = states.OPEN  # that of the connection is HTTP/2's
    must_close = False
    version: Version = (1, 1)

    def __init__(
        self,
        connection: RequestStreamConnection,
        stream: Http2Stream,
        head: HttpStreamHead,
        listener: ListenerState,
        body: memoryview | None,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._head = head
        self._listener = listener
        self._writer = StreamWriter(connection, stream)
        self._pieces: deque[memoryview] = deque()
        self._buffer: ReservedBuffer | None = None
        self._received = 0
        self._wanted: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self.method = head.method
        self.buffered_body = body
        self.is_complete = self._has_whole_body = body is not None
        self.reservation: Reservation | None = None
        self.transport: Any = self._writer
        self._paused: asyncio.Event | None = None
        self._is_running = False
        self._started_at = time.monotonic()
        self.is_head_sent = False
        self.responses_sent = 0
        self.client = connection.http_client
        self.cancel_exchange: Callable[[], None] | None = None
        self.task: asyncio.Task[None] | None = connection.loop.create_task(self._run())

    def abort(self) -> None:
        """Reset the stream."""
        self._writer.abort()

    async def body(
        self, length: int | None, limits: ServerLimits, held: Reservation, /
    ) -> memoryview:
        """Return the body as one view; see `http.interfaces.RequestReader`."""
        if self.buffered_body is not None:
            if held.size_bytes < self.buffered_body.nbytes:
                await held.grow(self.buffered_body.nbytes - held.size_bytes)
            return self.buffered_body
        pace = TransferRateLimit(limits, self._connection.loop)
        if length is None:
            return await self._unknown_length(limits, held, pace)
        buffer = self._buffer = ReservedBuffer(length, held)
        self._stream.place = self
        while True:
            while self._pieces:
                if buffer.needs_memory:
                    with pace.paused():
                        await buffer.wait()
                self._keep(self._pieces.popleft(), first=True)
            if self.is_complete:
                self.buffered_body = buffer.view
                return buffer.view
            if buffer.needs_memory:  # what is reserved is full, and so is the window of the client
                with pace.paused():
                    await buffer.wait()
            else:
                await self._more(pace)

    async def _unknown_length(
        self, limits: ServerLimits, held: Reservation, pace: TransferRateLimit
    ) -> memoryview:
        whole = bytearray()
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                size = len(piece)
                if len(whole) + size > limits.message_bytes:
                    raise too_many_bytes(limits)
                if not held.try_grow(size):
                    with pace.paused():
                        await held.grow(size)
                whole += piece
                self._consume(size)
                self._widen(max(len(whole), frames.DEFAULT_WINDOW))
            if self.is_complete:
                self.buffered_body = memoryview(whole).toreadonly()
                return self.buffered_body
            await self._more(pace)

    def received_bytes(self) -> int:
        """Return how many bytes of the body have arrived."""
        return self._received

    def forget(self) -> None:
        """Drop the body, which is not needed any more."""
        if self.is_complete:
            self.buffered_body = EMPTY
            self._buffer = None

    async def open_body_stream(
        self,
        _length: int,
        _start: int,
        _limits: ServerLimits,
        _held: Reservation,
        _on_error: OnBodyError,
        /,
    ) -> None:
        """Return None: bodies are received completely."""
        return

    def _keep(self, view: memoryview, *, first: bool = False) -> None:
        """Put *view* where the body is collected, or behind what waits for memory."""
        buffer = self._buffer
        if buffer is None or (self._pieces and not first):
            self._pieces.append(view)
            return
        length = buffer.put(view)
        self._consume(length)
        if length < len(view):
            self._pieces.appendleft(view[length:])
        elif not buffer.is_whole:
            self._widen(buffer.reserved_ahead)

    def _consume(self, size: int) -> None:
        if self._connection.core.windows.consume(self._stream, size):
            self._connection.flush_soon()

    def _widen(self, ahead: int) -> None:
        """Open the window for *ahead* more bytes, if they justify a frame."""
        stream = self._stream
        short = stream.short_by(ahead)
        if short > 0 and 2 * stream.window <= ahead:
            self._connection.core.windows.grant(stream, short)
            self._connection.flush_soon()

    async def _more(self, pace: TransferRateLimit) -> None:
        """Wait until more of the body has arrived.

        Raises:
            HttpError: It arrives too slowly.
            ConnectionError: The client has left.
        """
        if self._failure is not None:
            raise self._failure
        self._wanted = self._connection.loop.create_future()
        try:
            await wait_for_body(self._wanted, self.received_bytes, pace, self._resume)
        finally:
            self._wanted = None
        if self._failure is not None:
            raise self._failure

    def _resume(self) -> None:
        """Open the window for more of the body."""
        if self._buffer is not None:
            self._widen(self._buffer.reserved_ahead)

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    def _leave(self) -> None:
        """End the stream, and remove the request from its connection."""
        core, stream = self._connection.core, self._stream
        self._writer.end()  # the response to HEAD has no other end
        if stream.unread:
            self._consume(stream.unread)
        if stream.state is HALF_CLOSED_LOCAL:
            core.reset(stream, frames.NO_ERROR)  # nothing more of the request is wanted
            self._connection.flush_soon()
        stream.owner = stream.place = None
        self.transport = None
        self._pieces.clear()

    async def _run(self) -> None:
        """Handle the request."""
        self._is_running = True
        self._connection.on_http_begin()
        CLIENT_MEMORY.set(self.client.memory)
        try:
            await Exchange(self._listener, self, self, self.task, HTTP2).run()
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception as error:  # noqa: BLE001  # it ends this stream only
            if self.is_head_sent:
                self.abort()  # a response that has started must not look complete
            else:
                self._writer.response(failure(error), False, self.version)
        finally:
            self.task = None  # which holds what ended it, and that this frame
            self._leave()
            self._connection.on_http_end()

    @property
    def write_paused(self) -> asyncio.Event | None:
        """Set once all that was written has left; None while nothing waits."""
        if self._stream.waiting is None:
            return None
        if self._paused is None:
            self._paused = asyncio.Event()
        return self._paused

    # -- events of the stream

    def on_data(self, view: memoryview, *, end: bool) -> None:
        """Handle a part of the body."""
        self._received += len(view)
        if len(view) < frames.SMALL_FRAME_BYTES and not end:
            self._connection.core.flood_budget.charge(1)
        self._keep(view)
        self.is_complete = end
        if end or self._buffer is None or self._pieces or self._buffer.needs_memory:
            self._wake()

    def room(self) -> memoryview | None:
        """Return where the next data of the body belong, as far as memory is reserved."""
        return None if self._buffer is None or self._pieces else self._buffer.room()

    def copied(self, size: int) -> None:
        """Handle data that were copied into `room`."""
        buffer = self._buffer
        assert buffer is not None  # noqa: S101  # it has the room
        self._received += size
        has_room = buffer.advance(size)
        self._consume(size)
        if has_room:
            self._widen(buffer.reserved_ahead)
        elif not buffer.is_whole:
            self._wake()

    def on_reset(self) -> bool:
        """Cancel the request: the client has reset it, or the connection is lost.

        Returns:
            Whether the request was served, and for longer than those of a flood of resets.
        """
        age_s = time.monotonic() - self._started_at
        was_served = self._is_running and self.is_complete and age_s >= EARLY_RESET_S
        self.transport = None
        self._failure = ConnectionResetError("the client has left")
        if self.task is not None:
            self.task.cancel()
        if not self._is_running:
            self._leave()
        return was_served

    def on_writable(self) -> None:
        """Continue: all that waited is written."""
        if self._paused is not None:
            self._paused.set()
            self._paused = None

    def overdue(self, _now: float) -> None:
        """Do nothing: the exchange watches the pace of its body."""

    def cancel(self) -> None:
        """Respond with an error: the server is stopping."""
        (self.cancel_exchange or self.abort)()

    # -- the request, as its exchange reads it

    def head(self, limits: ServerLimits, /) -> Head:  # noqa: ARG002  # it was read with them
        """Return the head. Raises HttpError."""
        error, head = self._head.error, self._head.head
        if error is not None or head is None:
            assert error is not None  # noqa: S101  # one of them is there
            raise HttpError(error.status, error.message, limit=error.limit)
        if head.length is None and not self._has_whole_body:
            return _with_body(head, None)
        if head.length is None and self.buffered_body:
            return _with_body(head, len(self.buffered_body))
        return head


def _with_body(head: Head, length: int | None) -> Head:
    """Return *head* for a body of *length* bytes, which it does not announce; None for no end."""
    return Head(
        method=head.method,
        path=head.path,
        query=head.query,
        headers=head.headers,
        length=length,
        is_chunked=length is None,
        has_expectation=head.has_expectation,
        has_content_coding=head.has_content_coding,
        wants=head.wants,
        timeout_s=head.timeout_s,
    )


def _block(response: HttpResponse) -> bytes:
    """Return the header block of a response, without its length."""
    fields, dated = response.headers.parsed_with(_fields)
    block = _status(response.status) + fields
    if response.request_id:
        block += literal(REQUEST_ID.lower().encode(), safe_value(response.request_id).encode())
    return block if dated else block + _date(int(time.time()))  # noqa: TID251  # no duration


@lru_cache(2)
def _date(second: int) -> bytes:
    return literal(b"date", formatdate(second, usegmt=True).encode())


@lru_cache(256)
def _status(status: int) -> bytes:
    return literal(b":status", b"%d" % status)


def _fields(headers: Headers) -> tuple[bytes, bool]:
    """Return the block of the fields of a response, and whether a date is among them."""
    return write_fields(headers, _fields, _literals)


def _literals(pairs: tuple[tuple[str, str], ...]) -> tuple[bytes, bool]:
    block, dated = b"", False
    for name, value in pairs:
        if is_writable(name):
            block += literal(name.lower().encode(), safe_value(value).encode())
            dated = dated or name.lower() == "date"
    return block, dated
