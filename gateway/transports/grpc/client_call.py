"""ClientCall: one call of a gRPC client, with the part of its response that has arrived."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Struct

from gateway.accelerator import accelerated
from gateway.ir import errors
from gateway.ir.bodies.streaming_body import StreamingBody
from gateway.transports.grpc.compression import decompress_message
from gateway.transports.grpc.headers import GrpcResponseHead, status_of_http
from gateway.transports.grpc.messages import GrpcMessage, MessageReader, whole_message
from gateway.transports.http2 import frames
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.states import CLOSED
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.http2.windows import STREAM_WINDOW
from gateway.transports.reservation import Reservation
from gateway.wire.grpc import GrpcResponse, GrpcStatus

# A lookup of an Enum member costs as much as a function call.
_OK: Final = GrpcStatus.OK
_RATIO: Final = 200
_RATIO_FLOOR_BYTES: Final = 1 << 20
# Source: gRPC over HTTP/2, "Errors".
_STATUS_OF_RESET: Final = {
    frames.ENHANCE_YOUR_CALM: GrpcStatus.RESOURCE_EXHAUSTED,
    frames.INADEQUATE_SECURITY: GrpcStatus.PERMISSION_DENIED,
}


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


@accelerated
def answer(
    call: "ClientCall", head: GrpcResponseHead, view: memoryview, tail: GrpcResponseHead
) -> bool:
    """End a call with one response by a complete one, which is nearly every response.

    Returns:
        False, and nothing is done, for any other response.
    """
    message, waiter, stream = whole_message(view, call.limit_bytes), call.waiter, call.stream
    if (
        message is None
        or not call.is_unary
        or call._head is not None  # noqa: SLF001  # a function, so that it can be compiled
        or call._error is not None  # noqa: SLF001  # as above
        or waiter is None
        or head.http_status != 200  # noqa: PLR2004  # OK
        or not head.is_grpc
        or head.status is not None
        or tail.status is not _OK
        or tail.http_status is not None
    ):
        return False
    call._end = tail  # noqa: SLF001  # as above
    if not waiter.done():
        waiter.set_result(GrpcResponse((message,), metadata=tail.metadata))
    if stream.state is not CLOSED:
        call.cancel()
    elif call._rest is None and not stream.unread:  # noqa: SLF001  # as above
        stream.owner = None  # as `release`, which has nothing else to do
    return True


class ClientCall(Struct, eq=False):
    """A call in progress.

    Attributes:
        connection: Its connection.
        stream: Its stream.
        limit_bytes: The size limit of a response message.
        turn: The turn of the connection in which the request is written.
        is_unary: Whether the call has one response.
        waiter: For a call with one response: is done when the call has ended. Its result is a
            response that arrived in one piece; for any other it is None, and `only_response`
            returns the response. For any other call, what waits for the next response.
        withholds: At its deadline, the caller gets an error but the call is not cancelled.
    """

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

    # -- events of the stream

    def on_headers(self, head: GrpcResponseHead, *, end: bool) -> None:
        """Handle the header fields or the trailers."""
        if self._head is None:
            if head.http_status is not None and 100 <= head.http_status < 200:  # noqa: PLR2004
                return  # an interim response
            if head.http_status is None:
                self._error = self._protocol_error("header fields without :status")
            self._head = head
            if head.http_status != 200 and head.status is None:  # noqa: PLR2004  # OK
                status = status_of_http(head.http_status or 0)
                details = f"HTTP status {head.http_status} without a gRPC status"
                self._end = GrpcResponseHead(None, True, status, details, head.metadata, "")
            elif not head.is_grpc and head.status is None:
                self._error = self._protocol_error("a response that is not gRPC")
        elif head.http_status is not None or not end:
            self._error = self._protocol_error("header fields where only trailers are allowed")
        if end or self._end is not None or self._error is not None:
            self._finish(head)

    def on_complete_stream(
        self, head: GrpcResponseHead, view: memoryview, tail: GrpcResponseHead
    ) -> None:
        """Handle a complete response: the same as header fields, data and trailers."""
        if answer(self, head, view, tail):
            return
        self.on_headers(head, end=False)
        self.on_data(view, end=False)
        self.on_headers(tail, end=True)

    def on_data(self, view: memoryview, *, end: bool) -> None:
        """Handle a part of the response."""
        if self._end is not None or self._error is not None:
            self._consume(len(view))
            return
        message = whole_message(view, self.limit_bytes) if self._reader is None else None
        if message is not None and self._head is not None and not end:
            self._add([GrpcMessage(message)])
            self._on_messages()
        else:
            self._feed(view, end=end)

    def room(self) -> memoryview | None:
        """Return where the next data of a large response belong."""
        return None if self._reader is None else self._reader.room()

    def copied(self, size: int) -> None:
        """Handle data that were copied into `room`."""
        assert self._reader is not None  # noqa: S101  # it has the room
        self._reader.advance(size)
        self._reserve(self._reader)

    def on_reset(self, code: int) -> None:
        """Fail the call: the stream was reset."""
        if code == frames.REFUSED_STREAM:
            self.fail(
                errors.NotSent(f"{self.connection.name} refused the call without processing it")
            )
        elif code == frames.CANCEL:  # the gateway did not cancel the call
            self.fail(self._protocol_error("a reset of the stream with CANCEL"))
        elif not self._is_done:
            details = f"{self.connection.name} reset the stream: {frames.code_name(code)}"
            status = _STATUS_OF_RESET.get(code, GrpcStatus.INTERNAL)
            self._end = GrpcResponseHead(None, True, status, details, (), "")
            self._wake()

    def on_writable(self) -> None:
        """Send more of the message: the server has opened its window."""
        if self._rest is not None:  # in the next turn: the core is writing now
            asyncio.get_running_loop().call_soon(self._rest.resume)

    def on_timeout(self) -> None:
        """End the call, or only the wait for it: its deadline has passed."""
        error = errors.DeadlineExceeded(f"no response from {self.connection.name} in time")
        waiter = self.waiter
        if self._on_end is None and self.can_be_left():
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # asyncio warns of an error that nobody retrieves
        else:
            self.fail(error)

    def lost(self, why: str, *, written: bool) -> None:
        """Fail the call: the connection is lost."""
        kind = errors.Unavailable if written else errors.NotSent
        self.fail(kind(f"{self.connection.name} broke the connection before it replied: {why}"))

    # -- a streaming request

    def send_rest(self, rest: StreamingBody) -> None:
        """Send *rest* as it arrives, then end the request."""
        self._rest = rest
        rest.pipe_to(self)

    def write(self, piece: memoryview) -> None:
        """Send the next piece of a streaming request."""
        stream, writer, rest = self.stream, self.connection.core.writer, self._rest
        if rest is None or stream.state is CLOSED:
            return
        writer.data(stream, (piece,))
        if not rest.remaining_bytes:
            writer.end(stream, None)
        elif stream.waiting is not None:
            rest.pause()
        self.connection.flush_soon()

    # -- for the client

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

    def can_be_left(self) -> bool:
        """Return whether the call can end by itself: its request is sent completely."""
        return (
            self.withholds
            and not self._is_done
            and (self._rest is None or not self._rest.remaining_bytes)
            and self.stream.state is not CLOSED
        )

    def detach(self, on_end: Callable[[], None]) -> None:
        """Ignore all responses, and call *on_end* when the call has ended."""
        self.waiter = None
        self._on_end = on_end
        self._drop_messages()
        self.connection.on_unanswered()

    def release(self) -> None:
        """Detach the ended stream, which would otherwise be a reference cycle with the call."""
        self.stream.owner = self.stream.place = None
        if self._growing is not None:
            self._growing.cancel()
        if self.stream.unread:
            self._consume(self.stream.unread)
        if self._rest is not None:
            self._rest.detach()
            self._rest = None

    async def only_response(self) -> GrpcResponse:
        """Return the response of a unary call that has ended, or the status that replaces it."""
        if self._error is not None:
            raise self._error
        end = self._end
        assert end is not None  # noqa: S101  # there was no error
        if end.status is not _OK:
            return self._ended()
        if not self._messages:
            raise self._protocol_error("status OK without a message")
        message = self._messages[0]
        view = message.view if message.coding is None else await self._plain(message)
        return GrpcResponse((view,), metadata=end.metadata)

    async def next_response(self) -> GrpcResponse | None:
        """Return the next response of a stream, or a status other than OK; None at the end."""
        found = await self._next_message()
        if found is None:
            end = self._ended()
            return None if end.status is _OK else end
        self._widen()
        return GrpcResponse((await self._plain(found),))

    async def _next_message(self) -> GrpcMessage | None:
        """Return the next message; None at the end."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._end is not None:
                return None
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        return self._messages.popleft()

    def _ended(self) -> GrpcResponse:
        end = self._end
        assert end is not None  # noqa: S101  # `_next_message` returned None
        assert end.status is not None  # noqa: S101  # checked by `_finish`
        return GrpcResponse(status=end.status, details=end.details, metadata=end.metadata)

    async def _plain(self, message: GrpcMessage) -> Any:
        if message.coding is None:
            return message.view
        try:
            return await decompress_message(message, self.limit_bytes, _RATIO, _RATIO_FLOOR_BYTES)
        except (errors.MalformedMessage, errors.Unsupported) as error:
            raise self._protocol_error(
                f"a message that cannot be decoded: {error.message}"
            ) from error

    # -- the messages of the response

    def _feed(self, view: memoryview, *, end: bool) -> None:
        """Parse data that is not exactly one message."""
        if self._head is None:
            self.fail(self._protocol_error("data before header fields"))
            return
        if self._reader is None:
            self._reader = MessageReader(self.limit_bytes, self._head.coding)
            self.stream.place = self
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
        elif len(view) < frames.SMALL_FRAME_BYTES:
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
            reader.reserve(held, lasts=True)
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
            self.connection.core.windows.grant(stream, short)
            self.connection.flush_soon()
        self._consume(stream.unread)
        if not reader.missing:
            self._reservation = None  # the message holds the reservation

    def _consume(self, size: int) -> None:
        if self.connection.core.windows.consume(self.stream, size):
            self.connection.flush_soon()

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
        elif self.connection.core.windows.replenish(stream):
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

    # -- the end

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
