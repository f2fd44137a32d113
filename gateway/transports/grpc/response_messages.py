"""ResponseMessages: receives the messages of a response, within the memory budget."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from gateway.ir import errors
from gateway.ir.streaming_body import StreamingBody
from gateway.transports.grpc.headers import GrpcResponseHead
from gateway.transports.grpc.messages import GrpcMessage, MessageReader
from gateway.transports.http2.connection import STREAM_WINDOW, Http2Connection
from gateway.transports.http2.flood_control import SMALL_FRAME_BYTES
from gateway.transports.http2.states import CLOSED
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.reservation import Reservation
from gateway.wire.grpc import GrpcResponse


class Http2ClientConnection(Protocol):
    """The interface of a connection that a call uses."""

    core: Http2Connection
    loop: asyncio.AbstractEventLoop
    name: str

    def reservation(self) -> Reservation:
        """Return a reservation for a response, in the share of the client that called."""

    def flush_soon(self) -> None:
        """Write the frames of the core in the next turn of the loop."""

    def flush(self) -> None:
        """Write the frames of the core."""

    def on_cancelled(self) -> None:
        """Let a call that waits for a stream have that of a cancelled call."""

    def on_unanswered(self) -> None:
        """Ask a silent server whether it is there: a call has ended without a response."""


class ResponseMessages(Struct, eq=False):
    """The response of a call, as it arrives."""

    # Most calls change nothing but `_end`, so a struct with defaults is made twice as fast.
    connection: Http2ClientConnection
    stream: Http2Stream
    limit_bytes: int
    turn: int
    is_unary: bool
    waiter: asyncio.Future[GrpcResponse | None] | None
    withholds: bool = False
    _head: GrpcResponseHead | None = None
    _reader: MessageReader | None = None
    _messages: deque[GrpcMessage] | tuple[()] = ()
    _end: GrpcResponseHead | None = None
    _error: errors.GatewayError | None = None
    _rest: StreamingBody | None = None
    _on_end: Callable[[], None] | None = None
    _reservation: Reservation | None = None
    _growing: asyncio.Task[None] | None = None

    def _feed(self, view: memoryview, *, end: bool) -> None:
        """Parse data that is not exactly one message."""
        if self._head is None:
            self.fail(self._protocol_error("data before header fields"))
            return
        if self._reader is None:
            self._reader = MessageReader(self.limit_bytes, self._head.coding)
        reader = self._reader
        try:
            found = reader.feed(view)
            self._add(found)
        except errors.TooLarge as error:
            why = f"the response of {self.connection.name} is too large: {error.message}"
            self.fail(errors.TooLarge(why, limit=error.limit))
            return
        except errors.GatewayError as error:
            self.fail(self._protocol_error(error.message))
            return
        if found:
            self.connection.core.flood_budget.remaining += 1  # of a prefix in a frame of its own
        elif len(view) < SMALL_FRAME_BYTES:
            self.connection.core.flood_budget.charge(1)
        if end:
            self.fail(self._protocol_error("a response that ends without a status"))
        elif self._messages:
            self._on_messages()
        else:
            self._reserve(reader)

    def _add(self, messages: list[GrpcMessage]) -> None:
        self._messages = self._messages or deque()
        self._messages += messages

    def _reserve(self, reader: MessageReader) -> None:
        """Reserve memory for an incomplete message, then open the window for it."""
        if self._growing is not None:
            return
        stream = self.stream
        if not reader.missing or (
            stream.short_by(reader.missing) <= 0 and self._reservation is None
        ):
            self._consume(stream.unread)  # a small message
            return
        held = self._reservation
        if held is None:
            held = self._reservation = self.connection.reservation()
            reader.reserve(held)
        more = held.step(reader.filled, reader.size)
        if more > 0 and not held.try_grow(more):
            self._growing = self.connection.loop.create_task(self._grow(held, reader, more))
            return
        self._grant(held, reader)

    async def _grow(self, held: Reservation, reader: MessageReader, size: int) -> None:
        try:
            await held.grow(size)
        except errors.GatewayError as error:
            self.fail(error)
            return
        finally:
            self._growing = None
        self._grant(held, reader)

    def _grant(self, held: Reservation, reader: MessageReader) -> None:
        """Open the window as far as memory is reserved for a message."""
        stream = self.stream
        short = stream.short_by(min(reader.missing, held.size_bytes - reader.filled))
        if short > 0:
            self.connection.core.grant(stream, short)
            self.connection.flush_soon()
        self._consume(stream.unread)
        if not reader.missing:
            self._reservation = None  # the message holds the reservation

    def _consume(self, size: int) -> None:
        if self.connection.core.consume(self.stream, size):
            self.connection.flush_soon()

    def _on_messages(self) -> None:
        """Wake the caller of a stream; check that a unary call has one response."""
        if self._on_end is not None:
            self._drop_messages()
        elif not self.is_unary:
            self._wake()
        elif len(self._messages) > 1:
            self.fail(self._protocol_error("two responses to a unary call"))
        elif self._reader is not None or self.stream.window < STREAM_WINDOW // 2:
            self._widen()  # the trailers need a window

    def _drop_messages(self) -> None:
        """Let the server go on with a call that nobody waits for."""
        self._messages = ()
        self._widen()

    def fail(self, error: errors.GatewayError) -> None:
        """Fail the call with *error*, unless it has ended."""
        if not self._is_done:
            self._error = error
            self.cancel()
            self._wake()

    def cancel(self) -> None:
        """Reset the stream, unless it has ended."""
        core = self.connection.core
        if self.stream.state is not CLOSED:
            core.cancel(self.stream)
            self.connection.flush()
            self.connection.on_cancelled()

    def _widen(self) -> None:
        """Open the window again, once the messages that have arrived are consumed."""
        stream = self.stream
        if self._reservation is not None and self._messages:
            self._reservation = None
        if (self._messages and not self.is_unary) or self._is_done:
            return
        self._consume(stream.unread)
        if self._reader is not None and self._reader.missing:
            self._reserve(self._reader)
        elif self.connection.core.replenish(stream):
            self.connection.flush_soon()

    def _finish(self, head: GrpcResponseHead) -> None:
        """Handle the end of the call."""
        if self._end is None and self._error is None:
            if head.status is None:
                self._error = self._protocol_error("a response that ends without a status")
            elif self._reader is not None and not self._reader.is_empty:
                self._error = self._protocol_error(
                    "a response that ends in the middle of a message"
                )
            else:
                self._end = head
        if self.stream.state is not CLOSED:
            self.cancel()  # the rest of the request is not needed any more
        self._wake()

    @property
    def _is_done(self) -> bool:
        return self._end is not None or self._error is not None

    def _wake(self) -> None:
        """Wake the caller."""
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end()
        elif self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def _protocol_error(self, what: str) -> errors.UpstreamProtocolError:
        return errors.UpstreamProtocolError(f"response of {self.connection.name}: {what}")
