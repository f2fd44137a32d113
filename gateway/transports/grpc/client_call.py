"""One call of a client: what is sent, and what of the answer has come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    MalformedMessage,
    NotSent,
    TooLarge,
    Unavailable,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.streaming_body import StreamingBody
from gateway.transports.admission import Reservation
from gateway.transports.grpc.compression import decompress_message
from gateway.transports.grpc.headers import GrpcResponseHead, status_of_http
from gateway.transports.grpc.messages import GrpcMessage, MessageReader, whole_message
from gateway.transports.http2 import frames as h2
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.flood_control import SMALL_FRAME_BYTES
from gateway.transports.http2.receiver import STREAM_WINDOW
from gateway.transports.http2.streams import Http2Stream
from gateway.wire.grpc import GrpcResponse, GrpcStatus

# By a name of our own: to look a member up in its Enum costs as much as a call does.
_OK: Final = GrpcStatus.OK
_RATIO: Final = 200
_RATIO_FLOOR_BYTES: Final = 1 << 20
# Source: gRPC over HTTP/2, "Errors".
_OF_RESET: Final = {
    h2.ENHANCE_YOUR_CALM: GrpcStatus.RESOURCE_EXHAUSTED,
    h2.INADEQUATE_SECURITY: GrpcStatus.PERMISSION_DENIED,
}


class Http2ClientConnection(Protocol):
    """The part of a connection that a call uses."""

    core: Http2Connection
    loop: asyncio.AbstractEventLoop
    name: str

    def reservation(self) -> Reservation:
        """Return what may hold a response, in the share of the client that asked for it."""

    def flush_soon(self) -> None:
        """Write soon what the core has to say."""

    def flush(self) -> None:
        """Write it now."""


class ClientCall:
    """A call under way.

    Args:
        line: Its connection.
        limit_bytes: Of an answer.

    Attributes:
        stream: Its stream.
        turn: The connection's turn in which it was written.
        withholds: It is not cancelled at its deadline: whoever waits for it is told.
    """

    __slots__ = (
        "_end",
        "_error",
        "_growing",
        "_head",
        "_held",
        "_limit",
        "_line",
        "_messages",
        "_on_end",
        "_reader",
        "_rest",
        "_single",
        "_waiter",
        "stream",
        "turn",
        "withholds",
    )

    def __init__(
        self, line: Http2ClientConnection, stream: Http2Stream, limit_bytes: int, turn: int
    ) -> None:
        self._line = line
        self._limit = limit_bytes
        self.stream = stream
        self.turn = turn
        self._head: GrpcResponseHead | None = None
        self._reader: MessageReader | None = None
        self._messages: deque[GrpcMessage] = deque()
        self._single = False
        self._end: GrpcResponseHead | None = None
        self._error: GatewayError | None = None
        self._waiter: asyncio.Future[GrpcResponse | None] | None = None
        self._rest: StreamingBody | None = None
        self.withholds = False
        self._on_end: Callable[[], None] | None = None
        self._held: Reservation | None = None
        self._growing: asyncio.Task[None] | None = None

    # -- what the connection tells

    def on_headers(self, head: GrpcResponseHead, *, end: bool) -> None:
        """Take the fields before the messages, or those after."""
        if self._head is None:
            if head.http_status is not None and 100 <= head.http_status < 200:  # noqa: PLR2004
                return  # an interim answer says nothing of the call
            if head.http_status is None:
                self._error = self._broken("header fields without :status")
            self._head = head
            if head.http_status != 200 and head.status is None:  # noqa: PLR2004  # OK
                status = status_of_http(head.http_status or 0)
                details = f"HTTP status {head.http_status} without a gRPC status"
                self._end = GrpcResponseHead(None, True, status, details, head.metadata, "")
            elif not head.is_grpc and head.status is None:
                self._error = self._broken("an answer that is no gRPC")
        elif head.http_status is not None or not end:
            self._error = self._broken("header fields where only trailers may be")
        if end or self._end is not None or self._error is not None:
            self._finish(head)

    def on_complete_stream(
        self, head: GrpcResponseHead, view: memoryview, tail: GrpcResponseHead
    ) -> None:
        """Take all of an answer: what `head`, `data` and `head` again would be told."""
        message = whole_message(view, self._limit)
        if (
            message is not None
            and self._single
            and self._head is None
            and self._error is None
            and self._waiter is not None
            and head.http_status == 200  # noqa: PLR2004  # OK
            and head.is_grpc
            and head.status is None
            and tail.status is _OK
            and tail.http_status is None
        ):
            self._end = tail
            if not self._waiter.done():
                self._waiter.set_result(GrpcResponse((message,), metadata=tail.metadata))
            if not self.stream.local_closed:
                self.cancel()
            return
        self.on_headers(head, end=False)
        self.on_data(view, end=False)
        self.on_headers(tail, end=True)

    def on_data(self, view: memoryview, *, end: bool) -> None:
        """Take a part of the answer."""
        if self._end is not None or self._error is not None:
            self._consume(len(view))
            return
        message = whole_message(view, self._limit) if self._reader is None else None
        if message is not None and self._head is not None and not end:
            self._messages.append(GrpcMessage(message))
            self._came()
        else:
            self._piece(view, end=end)

    def on_data_batch(self, views: Sequence[memoryview]) -> None:
        """Take parts of the answer."""
        if self._reader is not None and self._reader.fill(views):
            self.stream.coming = 0
            self._go_on(self._reader)
            return
        for view in views:
            self.stream.coming -= len(view)
            self.on_data(view, end=False)

    def _piece(self, view: memoryview, *, end: bool) -> None:
        """Take data that is not just one message."""
        if self._head is None:
            self.fail(self._broken("data before header fields"))
            return
        if self._reader is None:
            self._reader = MessageReader(self._limit, self._head.coding)
        reader = self._reader
        try:
            found = reader.feed(view)
            self._messages += found
        except TooLarge as error:
            why = f"the answer of {self._line.name} is too large: {error.message}"
            self.fail(TooLarge(why, limit=error.limit))
            return
        except GatewayError as error:
            self.fail(self._broken(error.message))
            return
        if not found and len(view) < SMALL_FRAME_BYTES:
            self._line.core.flood_budget.charge(1)
        if end:
            self.fail(self._broken("an answer that ends without a status"))
        elif self._messages:
            self._came()
        else:
            self._go_on(reader)

    def _go_on(self, reader: MessageReader) -> None:
        """Hold what has come of a message, and a step more; then let that come."""
        if self._growing is not None:
            return
        stream = self.stream
        if not reader.missing or (stream.short_by(reader.missing) <= 0 and self._held is None):
            self._consume(stream.unread)  # it is small
            return
        held = self._held
        if held is None:
            held = self._held = self._line.reservation()
            reader.reserve(held)
        more = held.step(reader.filled, reader.size)
        if more > 0 and not held.try_grow(more):
            self._growing = self._line.loop.create_task(self._grow(held, reader, more))
            return
        self._grant(held, reader)

    async def _grow(self, held: Reservation, reader: MessageReader, size: int) -> None:
        try:
            await held.grow(size)
        except GatewayError as error:
            self.fail(error)
            return
        finally:
            self._growing = None
        self._grant(held, reader)

    def _grant(self, held: Reservation, reader: MessageReader) -> None:
        """Let come what is held of a message."""
        stream = self.stream
        short = stream.short_by(min(reader.missing, held.size_bytes - reader.filled))
        if short > 0:
            self._line.core.grant(stream, short)
            self._line.flush_soon()
        self._consume(stream.unread)
        if not reader.missing:
            self._held = None  # which lives as long as the message

    def _consume(self, size: int) -> None:
        if self._line.core.consume(self.stream, size):
            self._line.flush_soon()

    def _came(self) -> None:
        """Tell of messages that have come; of the one answer, once it has ended."""
        if not self._single:
            self._wake()
        elif len(self._messages) > 1:
            self.fail(self._broken("two answers where one was asked for"))
        elif self._reader is not None or self.stream.window < STREAM_WINDOW // 2:
            self._widen()  # for the end to come, or what should not

    def on_reset(self, code: int) -> None:
        """Fail the call: the stream was reset."""
        if code == h2.REFUSED_STREAM:
            self.fail(NotSent(f"{self._line.name} refused the call before it looked at it"))
        elif code == h2.CANCEL:  # nobody here cancelled the call: the server broke it off
            self.fail(self._broken("a reset of the stream with CANCEL"))
        elif not self._done:
            details = f"{self._line.name} reset the stream: {h2.code_name(code)}"
            status = _OF_RESET.get(code, GrpcStatus.INTERNAL)
            self._end = GrpcResponseHead(None, True, status, details, (), "")
            self._wake()

    def on_writable(self) -> None:
        """Send more of the message: the server has opened its window."""
        if self._rest is not None:  # not at once: the core is in the middle of writing
            asyncio.get_running_loop().call_soon(self._rest.resume)

    def on_timeout(self) -> None:
        """End the call, or what waits for it: its deadline has passed."""
        error = DeadlineExceeded(f"no answer from {self._line.name} in time")
        waiter = self._waiter
        if waiter is not None and self.can_be_left():
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # it may be that nobody waits any more
        else:
            self.fail(error)

    def fail(self, error: GatewayError) -> None:
        """End the call with *error*, unless it has ended."""
        if not self._done:
            self._error = error
            self.cancel()
            self._wake()

    def lost(self, why: str, *, written: bool) -> None:
        """Fail the call: the connection is lost."""
        kind = Unavailable if written else NotSent
        self.fail(kind(f"{self._line.name} broke the connection before it answered: {why}"))

    # -- a message that is arriving

    def send_rest(self, rest: StreamingBody) -> None:
        """Send *rest* as it comes, and the end of the message after it."""
        self._rest = rest
        rest.pipe_to(self)

    def write(self, piece: memoryview) -> None:
        """Send the next piece."""
        stream, outlet, rest = self.stream, self._line.core.writer, self._rest
        if rest is None or stream.number not in self._line.core.streams:
            return
        outlet.data(stream, (piece,))
        if not rest.remaining_bytes:
            outlet.end(stream, None)
        elif stream.waiting is not None:
            rest.pause()
        self._line.flush_soon()

    # -- what the client asks

    def cancel(self) -> None:
        """Reset the stream unless it has ended."""
        core = self._line.core
        if self.stream.number in core.streams:
            core.reset(self.stream, h2.CANCEL)
            self._line.flush()

    def can_be_left(self) -> bool:
        """Return whether the call can end by itself, and is not cancelled: its message is whole."""
        return (
            self.withholds
            and not self._done
            and (self._rest is None or not self._rest.remaining_bytes)
            and self.stream.number in self._line.core.streams
        )

    def leave(self, on_end: Callable[[], None]) -> None:
        """Drop the reply, and call *on_end* when the call has ended."""
        self._waiter = None
        self._on_end = on_end

    def forget(self) -> None:
        """Let go of the stream, which has ended: otherwise the two would hold one another."""
        self.stream.owner = None
        if self._growing is not None:
            self._growing.cancel()
        if self.stream.unread:
            self._consume(self.stream.unread)
        if self._rest is not None:
            self._rest.detach()
            self._rest = None

    def ending(self) -> asyncio.Future[GrpcResponse | None]:
        """Return what is done when the call has ended; to be asked for at once.

        It has the one answer, where that came whole; else `one` says what came.
        """
        self._single = True
        self._waiter = waiter = self._line.loop.create_future()
        if self._error is not None or self._end is not None:
            waiter.set_result(None)
        return waiter

    async def one(self) -> GrpcResponse:
        """Return the one answer of a call that has ended, or the status that came instead."""
        if self._error is not None:
            raise self._error
        end = self._end
        assert end is not None  # noqa: S101  # there was no error
        if end.status is not _OK:
            return self._ended()
        if not self._messages:
            raise self._broken("status OK without an answer")
        message = self._messages[0]
        view = message.view if message.coding is None else await self._plain(message)
        return GrpcResponse((view,), metadata=end.metadata)

    async def next(self) -> GrpcResponse | None:
        """Return the next of many answers; a status other than OK; None after the last."""
        found = await self._next()
        if found is None:
            end = self._ended()
            return None if end.status is _OK else end
        self._widen()
        return GrpcResponse((await self._plain(found),))

    async def _next(self) -> GrpcMessage | None:
        """Return the next message; None at the end."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._end is not None:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._messages.popleft()

    def _widen(self) -> None:
        """Let more come once what has come is taken."""
        stream = self.stream
        if self._held is not None and self._messages:
            self._held = None
        if (self._messages and not self._single) or self._done:
            return
        self._consume(stream.unread)
        if self._reader is not None and self._reader.missing:
            self._go_on(self._reader)
        elif stream.window < STREAM_WINDOW // 2:
            self._line.core.grant(stream, STREAM_WINDOW - stream.window)
            self._line.flush_soon()

    def _finish(self, head: GrpcResponseHead) -> None:
        """Take the end of the call."""
        if self._end is None and self._error is None:
            if head.status is None:
                self._error = self._broken("an answer that ends without a status")
            elif self._reader is not None and not self._reader.empty:
                self._error = self._broken("an answer that ends in the middle of a message")
            else:
                self._end = head
        if not (self.stream.local_closed and self.stream.remote_closed):
            self.cancel()  # what was not sent yet need not be
        self._wake()

    @property
    def _done(self) -> bool:
        return self._end is not None or self._error is not None

    def _wake(self) -> None:
        """Let whoever waits look at what came."""
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _ended(self) -> GrpcResponse:
        end = self._end
        assert end is not None  # noqa: S101  # `_next` returned None
        assert end.status is not None  # noqa: S101  # `_finish` looked
        return GrpcResponse(status=end.status, details=end.details, metadata=end.metadata)

    async def _plain(self, message: GrpcMessage) -> Any:
        if message.coding is None:
            return message.view
        try:
            return await decompress_message(message, self._limit, _RATIO, _RATIO_FLOOR_BYTES)
        except (MalformedMessage, Unsupported) as error:
            raise self._broken(f"a message that cannot be decoded: {error.message}") from error

    def _broken(self, what: str) -> UpstreamProtocolError:
        return UpstreamProtocolError(f"answer of {self._line.name}: {what}")
