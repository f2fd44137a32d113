"""One call on a server: from its header fields to its trailers.

A call that brings one message has a task only once that message is whole, so slow senders hold
none, and no slot either.  The slot is given back when the service has replied; what the client does
not take counts in bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Final

import structlog

from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    InternalError,
    MalformedMessage,
    TooLarge,
)
from gateway.transports.admission import (
    CLIENT_MEMORY,
    RESPONSE_PATIENCE_S,
    RESPONSE_UNCOUNTED_BYTES,
    Reservation,
)
from gateway.transports.contract import is_probe
from gateway.transports.grpc.admission import GrpcSessionLimits, Slot
from gateway.transports.grpc.compression import decompress_message
from gateway.transports.grpc.headers import (
    RESPONSE_HEAD,
    TRAILERS_OK,
    GrpcRequestHead,
    only_block,
    trailers_block,
    with_metadata,
)
from gateway.transports.grpc.messages import PREFIX_BYTES, GrpcMessage, frame_message, whole_message
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_messages import Http2ServerConnection, RequestMessages
from gateway.transports.http2 import frames as h2
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.reserved_buffer import uncounted_bytes
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, Metadata
from gateway.wire.http import size_of

log = structlog.get_logger(__name__)

# By a name of our own: to look a member up in its Enum costs as much as a call does.
_OK: Final = GrpcStatus.OK
# The frontend ends the call at its deadline, in its own words; this is for one that does not.
_GRACE_S: Final = 0.01


class ServerCall:
    """A call that a server answers.

    Args:
        line: Its connection.
        stream: Its stream.
        head: What it began with.
        method: Who answers.
    """

    __slots__ = (
        "_answering",
        "_began",
        "_deadline",
        "_ending",
        "_head",
        "_incoming",
        "_line",
        "_method",
        "_running",
        "_sent",
        "_step",
        "_stream",
        "task",
    )

    def __init__(
        self,
        line: Http2ServerConnection,
        stream: Http2Stream,
        head: GrpcRequestHead,
        method: Method,
    ) -> None:
        self._line = line
        self._stream = stream
        self._head = head
        self._method = method
        # A call of one message that comes in one piece, as most are, needs none.
        self._incoming: RequestMessages | None = None
        self._began = monotonic()
        self._sent: asyncio.Future[None] | None = None
        self._ending: GrpcResponse | None = None
        self._answering = False
        self._running = False
        self._step = 0
        self._deadline: float | None = None
        self.task: asyncio.Task[None] | None = None
        if head.timeout_s is not None:
            self._deadline = self._began + head.timeout_s

    def begin(self) -> None:
        """Take the call up, of which the head has come."""
        if self._is_in_time() and self._method.bidirectional:
            self._start(None)

    def on_complete_stream(self, view: memoryview) -> None:
        """Take the call up, all of which has come."""
        if self._deadline is not None and not self._is_in_time():
            return
        method = self._method
        message = whole_message(view, method.limits.message_bytes)
        if message is not None and method.unary:
            self._start(GrpcMessage(message))
            return
        if method.bidirectional:
            self._start(None)
        self.on_data(view, end=True)

    def _is_in_time(self) -> bool:
        """Watch the client's deadline, if there is one; False when it is past: the call is over."""
        if self._deadline is not None:
            if self._deadline <= self._began:
                self.on_timeout()
                return False
            self._step = self._method.wheel.schedule(self, self._deadline + _GRACE_S)
        return True

    # -- what the connection tells

    def on_data(self, view: memoryview, *, end: bool) -> None:
        """Take a part of the request."""
        method = self._method
        one = not method.bidirectional
        if one and self.task is not None:
            return  # the one message was there: nobody reads what follows
        if one and self._incoming is None:
            whole = whole_message(view, method.limits.message_bytes)
            if whole is not None:
                self._start(GrpcMessage(whole))
                return
        incoming = self._receiving()
        try:
            incoming.feed(view, end=end)
        except GatewayError as error:
            self._fail(error)
            return
        if one and incoming.messages:
            self._start(incoming.messages.popleft())
        elif one and end:
            self._fail(MalformedMessage("the call ended without a message"))

    def on_data_batch(self, views: Sequence[memoryview]) -> None:
        """Take parts of the request."""
        stream = self._stream
        if self._incoming is not None:
            coming, stream.coming = stream.coming, 0
            if self._incoming.fill(views):
                return
            stream.coming = coming
        for view in views:
            if stream.owner is not None:  # else the call has ended with one of them
                stream.coming -= len(view)
                self.on_data(view, end=False)

    def on_reset(self) -> None:
        """Cancel the call: the client has reset it, or the connection is lost."""
        if self.task is not None:
            self.task.cancel()
        if not self._running:
            self._leave()

    def cancel(self) -> None:
        """End the call with a status that says the server is stopping."""
        details = "the gateway is shutting down"
        self._end(GrpcResponse(status=GrpcStatus.UNAVAILABLE, details=details))

    def on_timeout(self) -> None:
        """End the call: the client's deadline has passed."""
        self._fail(DeadlineExceeded("the call's time is over"))

    def on_writable(self) -> None:
        """Continue: the buffered response is written."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    def overdue(self, now: float) -> None:
        """Give up on a message that comes too slowly."""
        error = None if self.task is not None else self._receiving().overdue(now)
        if error is not None:
            self._fail(error)

    # -- reading

    def _receiving(self) -> RequestMessages:
        """Return what receives messages that come in pieces, or several."""
        incoming = self._incoming
        if incoming is None:
            method, coding = self._method, self._head.coding
            incoming = self._incoming = RequestMessages(
                self._line,
                self._stream,
                coding,
                method.limits,
                method.admission.reservation(self._line.client),
                self._fail,
                self._began,
            )
        return incoming

    def _start(self, message: GrpcMessage | None) -> None:
        method = self._method
        if message is not None and method.unary:
            answering = self._unary(message)
        else:
            answering = self._streaming(message)
        # Not the loop's `create_task`: it takes longer, and so does making up a name.
        self.task = asyncio.Task(answering, loop=self._line.loop, name=method.path)

    async def _read(self) -> AsyncGenerator[GrpcRequest, None]:
        """Give the messages of a bidirectional stream as they come."""
        async with aclosing(self._receiving().read()) as messages:
            async for message in messages:
                yield self._request(await self._plain(message), message)

    async def _plain(self, message: GrpcMessage) -> memoryview:
        """Return a message as it was before it was compressed."""
        limits = self._method.limits
        ratio, floor = limits.decompressed_ratio, limits.decompressed_ratio_floor_bytes
        return await decompress_message(message, limits.message_bytes, ratio, floor)

    def _request(self, view: memoryview, message: GrpcMessage) -> GrpcRequest:
        """Return the request that is *view*, which came as *message*."""
        elements = None
        if message.coding is not None:
            elements = self._method.limits.decompressed_elements + len(message.view)
        metadata, deadline = self._head.metadata, self._deadline
        return GrpcRequest(self._method.path, (view,), metadata, deadline, None, elements)

    # -- answering

    async def _unary(self, message: GrpcMessage) -> None:  # noqa: PLR0915  # one frame
        """Answer one message with one; a frame more on every step of the way would be felt."""
        self._running = True
        method = self._method
        admission = method.admission
        client = admission.shares(self._line.client)
        CLIENT_MEMORY.set(client.memory)
        try:
            view = message.view if message.coding is None else await self._plain(message)
            size = len(view)
            request = self._request(view, message)
            held = None if self._incoming is None else self._incoming.take_reservation()
            free = False
            if held is not None or not admission.admit(size, client):
                free = not admission.has_room and is_probe(method.frontend, request, size)
                await admission.enter(size, client, held, free=free)
            has_slot = not free
            size = 0 if free else size
            try:
                found = await method.ask(request)
                if not isinstance(found, GrpcResponse):
                    found = await self._first(found)
                if has_slot:
                    has_slot = False
                    admission.release(1, client.slots)
                answer_bytes = size_of(found.message)
                if answer_bytes <= RESPONSE_UNCOUNTED_BYTES:
                    self._finish(found, answer_bytes)
                    if self._stream.waiting is not None:
                        await self._taken()
                else:
                    found = self._checked(found, request)
                    # From here on the response is held, and not the request.
                    del view, message, request
                    admission.budget.release(size, client.memory)
                    size = 0
                    await self._send_held(found)
            finally:
                if has_slot:
                    admission.release(1, client.slots)
                admission.budget.release(size, client.memory)
                admission.leave()
        except BaseException as error:
            if not self._ended_by(error):
                raise
        finally:
            self._leave()

    async def _send_held(self, answer: GrpcResponse) -> None:
        """Send a response, and hold its bytes until the client has taken it."""
        held = self._hold(uncounted_bytes(answer.message))
        try:
            self._finish(answer)
            await self._taken()
        finally:
            held.close()

    def _hold(self, size: int) -> Reservation:
        """Return what holds a response of *size* bytes. Raises Overloaded."""
        held = self._method.admission.hold_response(size, self._line.client)
        held.move_with(self._written, self._stop_sending, RESPONSE_PATIENCE_S)
        return held

    def _written(self) -> int:
        return self._stream.written

    def _stop_sending(self, _error: GatewayError) -> None:
        """Give up on a client that does not take its response."""
        if self.task is not None:
            self.task.cancel()

    async def _streaming(self, message: GrpcMessage | None) -> None:
        """Answer one message, or as many as come, with any number."""
        self._running = True
        CLIENT_MEMORY.set(self._line.client.memory)
        try:
            if message is None:
                await self._bidirectional()
            else:
                await self._server_stream(message)
        except BaseException as error:
            if not self._ended_by(error):
                raise
        finally:
            self._leave()

    def _ended_by(self, error: BaseException) -> bool:
        """See to it that the call ends; return whether that was all there is to do."""
        if isinstance(error, asyncio.CancelledError):
            if self._ending is None:
                self._line.core.reset(self._stream, h2.CANCEL)
                self._line.flush_soon()
                return False
            self._finish(self._ending)
        elif isinstance(error, GatewayError):
            self._finish(self._method.frontend.reject(error))
        elif isinstance(error, Exception):  # a bug of ours ends one call, not the server
            log.error("internal error", exc_info=error, method=self._method.path)
            self._finish(GrpcResponse(status=GrpcStatus.INTERNAL, details="internal error"))
        else:
            return False
        return True

    async def _first(self, answers: AsyncGenerator[GrpcResponse, None]) -> GrpcResponse:
        async with aclosing(answers):
            async for answer in answers:
                return answer
        raise InternalError(f"{self._method.path} was given no answer")

    async def _server_stream(self, message: GrpcMessage) -> None:
        view = await self._plain(message)
        held = None if self._incoming is None else self._incoming.take_reservation()
        request = self._request(view, message)
        async with (
            Slot(self._method.admission, len(view), self._line.client, held),
            aclosing(self._method.frontend(request)) as answers,
        ):
            await self._relay(answers, request)

    async def _bidirectional(self) -> None:
        gate = GrpcSessionLimits(self._method.admission, self._line.client)
        wires = self._read()
        answering = self._method.frontend.session(wires, gate)
        async with aclosing(wires), aclosing(answering) as answers:
            await self._relay(answers, None)

    async def _relay(
        self, answers: AsyncGenerator[GrpcResponse, None], request: GrpcRequest | None
    ) -> None:
        """Write the answers of a stream one after the other, each once its forerunner is out."""
        metadata: Metadata = ()
        outlet = self._line.core.writer
        async for given in answers:
            answer = given if request is None else self._checked(given, request)
            metadata = answer.metadata or metadata
            if answer.status is not _OK:
                self._finish(answer)
                return
            if not self._answering:
                outlet.head(self._stream, RESPONSE_HEAD)
                self._answering = True
            size = size_of(answer.message)
            held = None
            if size > RESPONSE_UNCOUNTED_BYTES:
                held = self._hold(uncounted_bytes(answer.message))
            try:
                outlet.data(self._stream, frame_message(answer.message, size))
                self._line.flush_soon()
                await self._taken()
            finally:
                if held is not None:
                    held.close()
        self._finish(GrpcResponse(metadata=metadata), message=False)

    def _checked(self, answer: GrpcResponse, request: GrpcRequest) -> GrpcResponse:
        """Return *answer*, or the refusal to send so much."""
        try:
            self._method.admission.check(answer)
        except TooLarge as error:
            return self._method.frontend.reject_message(request, error)
        return answer

    async def _taken(self) -> None:
        """Wait until the client's windows have let everything pass."""
        while self._stream.waiting is not None:
            self._sent = asyncio.get_running_loop().create_future()
            await self._sent

    def _fail(self, error: GatewayError) -> None:
        """End the call for what came, or did not come in time."""
        self._end(self._method.frontend.reject(error))

    def _end(self, answer: GrpcResponse) -> None:
        """End the call with *answer*, whatever is being done for it."""
        if self._running:
            self._ending = self._ending or answer
        else:
            self._finish(answer)
            self._leave()
        if self.task is not None:
            self.task.cancel()

    def _finish(
        self, answer: GrpcResponse, size: int | None = None, *, message: bool = True
    ) -> None:
        """Write the last of the call; *size* is that of its message, where it is known."""
        stream, core = self._stream, self._line.core
        if stream.number not in core.streams or stream.local_closed or stream.end_waits:
            return
        metadata = answer.metadata
        if answer.status is _OK and message:
            if size is None:
                size = size_of(answer.message)
            tail = with_metadata(TRAILERS_OK, metadata)
            buffers = frame_message(answer.message, size)
            if self._answering:  # a refusal that the protocol says in an answer, after others
                core.writer.data(stream, buffers)
                core.writer.end(stream, tail)
            else:
                core.writer.send(stream, RESPONSE_HEAD, buffers, tail, size + PREFIX_BYTES)
        elif self._answering:
            core.writer.end(stream, trailers_block(answer.status, answer.details, metadata))
        else:
            block = only_block(answer.status, answer.details, metadata)
            core.writer.head(stream, block, end=True)
        if core.streams:
            if not self._line.flushing:
                self._line.flush_soon()
        else:  # nothing else will be said in this turn
            self._line.flush()

    def _leave(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
        if self._step:
            self._method.wheel.cancel(self, self._step)
        core, stream = self._line.core, self._stream
        if stream.unread:
            core.consume(stream, stream.unread)
            self._line.flush_soon()
        if stream.local_closed and not stream.remote_closed:
            core.reset(stream, h2.NO_ERROR)  # nothing more of the request is wanted
            self._line.flush_soon()
        stream.owner = None
        if self._line.final and not core.streams:
            self._line.left()
