"""ServerCall: one call of a gRPC server, from its header fields to its trailers.

A call with one request message gets a task and a slot when that message is complete, so a slow
sender holds neither.  The slot is released when the service has replied.  A response that the
client does not read is charged to the memory budget.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from time import monotonic, monotonic_ns
from typing import Any, Final

import structlog

from gateway.accelerator import accelerated
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.concurrency.timeouts import TimerStep
from gateway.ir import errors
from gateway.ir.context import Client
from gateway.transports.contract import is_probe
from gateway.transports.grpc.admission import GrpcSessionLimits, Slot
from gateway.transports.grpc.compression import decompress_message
from gateway.transports.grpc.headers import (
    RESPONSE_HEAD,
    TRAILERS_OK,
    GrpcRequestHead,
    trailers_block,
    trailers_only_block,
    with_metadata,
)
from gateway.transports.grpc.messages import (
    PREFIX_BYTES,
    GrpcMessage,
    frame_message,
    join_call,
    whole_message,
)
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_messages import Http2ServerConnection, RequestMessages
from gateway.transports.grpc.states import (
    OVER,
    RECEIVING,
    RESPONDING,
    RUNNING,
    GrpcCallState,
)
from gateway.transports.http2 import frames
from gateway.transports.http2.flood_control import EARLY_RESET_S
from gateway.transports.http2.states import HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE, OPEN
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.read_ahead import ReadAhead
from gateway.transports.reservation import (
    RESPONSE_PATIENCE_S,
    RESPONSE_UNCOUNTED_BYTES,
    Reservation,
)
from gateway.transports.reserved_buffer import uncounted_bytes
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, Metadata
from gateway.wire.heads.metadata import text_metadata
from gateway.wire.heads.request_id import metadata_request_id
from gateway.wire.http import size_of

log = structlog.get_logger(__name__)

# A lookup of an Enum member costs as much as a function call.
_OK: Final = GrpcStatus.OK
# The frontend ends a call at its deadline; this ends a call that it has not ended by then.
_GRACE_S: Final = 0.01


AskClient = Callable[[], Client | Awaitable[Client]]
"""Asks again for the client of a call. Raises GatewayError."""


class ServerCall:
    """A call of a server.

    Args:
        connection: Its connection.
        stream: Its stream.
        head: Its header fields.
        method: Its method, with the frontend and the limits.
        client: Its client, where clients are asked for.
        ask_client: Asks for it again, with each further message.

    Attributes:
        task: Runs the call; None until the request is complete.
    """

    __slots__ = (
        "_ask_client",
        "_client",
        "_connection",
        "_deadline",
        "_final_response",
        "_head",
        "_incoming",
        "_method",
        "_sent",
        "_started_at",
        "_state",
        "_step",
        "_stream",
        "task",
    )

    def __init__(
        self,
        connection: Http2ServerConnection,
        stream: Http2Stream,
        head: GrpcRequestHead,
        method: Method,
        client: Client | None = None,
        ask_client: AskClient | None = None,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._head = head
        self._method = method
        self._client = client
        self._ask_client = ask_client
        # None for most calls, whose only message arrives in one piece.
        self._incoming: RequestMessages | None = None
        self._started_at = monotonic()
        self._sent: asyncio.Future[None] | None = None
        self._final_response: GrpcResponse | None = None
        self._state: GrpcCallState = RECEIVING
        self._step: TimerStep | None = None
        self._deadline: float | None = None
        self.task: asyncio.Task[None] | None = None
        if head.timeout_s is not None:
            self._deadline = self._started_at + head.timeout_s

    def begin(self) -> None:
        """Start a call whose header fields have arrived."""
        if self._is_in_time() and self._method.is_bidirectional:
            self._start(None)

    def on_complete_stream(self, view: memoryview) -> None:
        """Start a call whose request has arrived completely."""
        if self._deadline is not None and not self._is_in_time():
            return
        method = self._method
        message = whole_message(view, method.limits.message_bytes)
        if message is not None and method.is_unary:
            self._run(self._unary(message, None))
            return
        if method.is_bidirectional:
            self._start(None)
        self.on_data(view, end=True)

    def _is_in_time(self) -> bool:
        """Schedule the client's deadline; end the call and return False if it has passed."""
        if self._deadline is not None:
            if self._deadline <= self._started_at:
                self.on_timeout()
                return False
            self._step = self._method.wheel.schedule(self, self._deadline + _GRACE_S)
        return True

    # -- events of the stream

    def on_data(self, view: memoryview, *, end: bool) -> None:
        """Handle a part of the request."""
        method = self._method
        one = not method.is_bidirectional
        if one and self.task is not None:
            return  # data after the only message is ignored
        if one and self._incoming is None:
            complete = whole_message(view, method.limits.message_bytes)
            if complete is not None:
                self._start(GrpcMessage(complete))
                return
        incoming = self._receiving()
        try:
            incoming.feed(view, end=end)
        except errors.GatewayError as error:
            self._fail(error)
            return
        if one and incoming.messages:
            self._start(incoming.messages.popleft())
        elif one and end:
            self._fail(errors.MalformedMessage("the call ended without a message"))

    def on_writable(self) -> None:
        """Continue: the buffered response is written."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    def on_reset(self) -> bool:
        """Cancel the call: the client has reset it, or the connection is lost.

        Returns:
            Whether the call was served, and for longer than those of a flood of resets.
        """
        if self.task is not None:
            self.task.cancel()
        if self._state is RECEIVING:
            self._release()
            return False
        if self._method.is_bidirectional and not self._receiving().has_message:
            return False
        return monotonic() - self._started_at >= EARLY_RESET_S

    def cancel(self) -> None:
        """End the call with UNAVAILABLE: the server is stopping."""
        details = "the gateway is shutting down"
        self._end(GrpcResponse(status=GrpcStatus.UNAVAILABLE, details=details))

    def on_timeout(self) -> None:
        """End the call: the client's deadline has passed."""
        self._fail(errors.DeadlineExceeded("deadline exceeded before the call was complete"))

    def overdue(self, now: float) -> None:
        """End the call if its message arrives too slowly."""
        error = None if self.task is not None else self._receiving().overdue(now)
        if error is not None:
            self._fail(error)

    # -- reading

    def _receiving(self) -> RequestMessages:
        """Return the receiver of messages that arrive in pieces."""
        incoming = self._incoming
        if incoming is None:
            method, coding = self._method, self._head.coding
            incoming = self._incoming = RequestMessages(
                self._connection,
                self._stream,
                coding,
                method.limits,
                method.admission.reservation(self._connection.client, self._deadline),
                self._fail,
                self._started_at,
            )
            if not method.is_bidirectional:
                method.admission.begin()  # a drain waits for the rest of the only message
        return incoming

    def _start(self, message: GrpcMessage | None) -> None:
        if message is not None and self._method.is_unary:
            self._run(self._unary(message.view, message))
        else:
            self._run(self._streaming(message))

    def _run(self, running: Coroutine[Any, Any, None]) -> None:
        # `loop.create_task` is slower, and so is a generated name.
        self.task = asyncio.Task(running, loop=self._connection.loop, name=self._method.path)

    async def _read(self) -> AsyncGenerator[GrpcRequest, None]:
        """Yield the messages of a bidirectional stream."""
        ask_client = None  # the client of the first message is known
        async with aclosing(self._receiving().read()) as messages:
            async for message in messages:
                view = await self._plain(message)
                if ask_client is not None:
                    found = ask_client()
                    self._client = found if isinstance(found, Client) else await found
                ask_client = self._ask_client
                yield self._wire_request(view, message)

    async def _plain(self, message: GrpcMessage) -> memoryview:
        """Return the decompressed bytes of a message."""
        limits = self._method.limits
        ratio, floor = limits.decompressed_ratio, limits.decompressed_ratio_floor_bytes
        return await decompress_message(message, limits.message_bytes, ratio, floor)

    @accelerated
    def _wire_request(self, view: memoryview, message: GrpcMessage | None) -> GrpcRequest:
        """Return the request with the bytes *view*, which were received as *message*."""
        elements = None
        if message is not None and message.coding is not None:
            elements = self._method.limits.decompressed_elements + len(message.view)
        metadata, client = self._head.metadata, self._client
        if client is None:
            # Equal heads are read once, and so is their client.
            caller = self._connection.client.caller
            client = caller.last if caller.fields is metadata else caller.client(metadata)
        return GrpcRequest(
            self._method.path, (view,), metadata, self._deadline, None, elements, client
        )

    # -- the response

    async def _unary(  # noqa: PLR0915  # one frame
        self, view: memoryview, message: GrpcMessage | None
    ) -> None:
        """Run a unary call, in one frame: each further frame would cost 0.7 us.

        Args:
            view: The message as received.
            message: The same; may be None if it is not compressed.
        """
        self._state = RUNNING
        method = self._method
        admission = method.admission
        client = admission.shares(self._connection.client)
        CLIENT_MEMORY.set(client.memory)
        try:
            if message is not None and message.coding is not None:
                view = await self._plain(message)
            size = len(view) + admission.budget.call_bytes
            request = self._wire_request(view, message)
            held = None if self._incoming is None else self._incoming.take_reservation()
            free = False
            if held is not None or not admission.admit(size, client):
                free = not admission.has_room and is_probe(method.frontend, request, len(view))
                await admission.enter(size, client, held, deadline=self._deadline, free=free)
            has_slot = not free
            size = 0 if free else size
            try:
                found = await method.ask(request)
                if not isinstance(found, GrpcResponse):
                    found = await self._first_response(found)
                if has_slot:
                    has_slot = False
                    admission.slots.release(1, client.slots)
                response_bytes = size_of(found.message)
                if response_bytes <= RESPONSE_UNCOUNTED_BYTES:
                    self._finish(found, response_bytes)
                    if self._stream.waiting is not None:
                        await self._drained()
                else:
                    found = admission.checked(found, request, method.frontend)
                    # From here on, the budget counts the response and not the request.
                    del view, message, request
                    admission.budget.release(size, client.memory)
                    size = 0
                    await self._send_held(found)
            finally:
                if has_slot:
                    admission.slots.release(1, client.slots)
                admission.budget.release(size, client.memory)
                admission.leave()
        except BaseException as error:
            if not self._end_with(error):
                raise
        finally:
            self._release()

    async def _streaming(self, message: GrpcMessage | None) -> None:
        """Run a call with several responses; without *message*, with several requests too."""
        self._state = RUNNING
        CLIENT_MEMORY.set(self._connection.client.memory)
        try:
            if message is None:
                await self._bidirectional()
            else:
                await self._server_stream(message)
        except BaseException as error:
            if not self._end_with(error):
                raise
        finally:
            self._release()

    async def _server_stream(self, message: GrpcMessage) -> None:
        view = await self._plain(message)
        held = None if self._incoming is None else self._incoming.take_reservation()
        request = self._wire_request(view, message)
        slot = Slot(
            self._method.admission,
            len(view),
            self._connection.client,
            held,
            deadline=self._deadline,
        )
        async with self._read_ahead() as ahead:
            async with slot, aclosing(self._method.frontend(request)) as responses:
                end = await self._send_all(responses, ahead, request)
            self._finish(end, message=False)

    async def _bidirectional(self) -> None:
        client = self._connection.client
        limits = GrpcSessionLimits(self._method.admission, client, self._watch_progress)
        wires = self._read()
        session = self._method.frontend.session(wires, limits)
        async with self._read_ahead() as ahead:
            async with aclosing(wires), aclosing(session) as responses:
                end = await self._send_all(responses, ahead, None)
            self._finish(end, message=False)

    async def _first_response(self, responses: AsyncGenerator[GrpcResponse, None]) -> GrpcResponse:
        async with aclosing(responses):
            async for response in responses:
                return response
        raise errors.InternalError(f"{self._method.path} has no response")

    async def _send_all(
        self,
        responses: AsyncGenerator[GrpcResponse, None],
        ahead: ReadAhead,
        request: GrpcRequest | None,
    ) -> GrpcResponse:
        """Send the responses of a stream; return its end, an error or one without a message."""
        metadata: Metadata = ()
        writer, method = self._connection.core.writer, self._method
        async for found in responses:
            response = found
            if request is not None:
                response = method.admission.checked(found, request, method.frontend)
            metadata = response.metadata or metadata
            if response.status is not _OK:
                return response
            size = size_of(response.message)
            await ahead.admit(size, response.message)
            if self._state is RUNNING:
                writer.head(self._stream, RESPONSE_HEAD)
                self._state = RESPONDING
            writer.data(self._stream, frame_message(response.message, size))
            self._connection.flush_soon()
            ahead.written()
        return GrpcResponse(metadata=metadata)

    async def _send_held(self, response: GrpcResponse) -> None:
        """Send a response, and reserve its bytes until the client has received it."""
        held = self._reserve(uncounted_bytes(response.message))
        try:
            self._finish(response)
            await self._drained()
        finally:
            held.close()

    def _reserve(self, size: int) -> Reservation:
        """Return the reservation of a response of *size* bytes. Raises Overloaded."""
        held = self._method.admission.hold_response(size, self._connection.client)
        held.watch_progress(self._written, self._stop_sending, RESPONSE_PATIENCE_S)
        return held

    def _watch_progress(self, held: Reservation) -> None:
        """End the stream if its client does not read while others wait for *held*."""
        held.watch_progress(self._progress, self._stop_sending, RESPONSE_PATIENCE_S)

    def _read_ahead(self) -> ReadAhead:
        """Return the responses of this call that the client has not read."""
        held = self._method.admission.reservation(self._connection.client)
        return ReadAhead(held, self._is_blocked, self._drained, self._written, self._stop_sending)

    def _written(self) -> int:
        return self._stream.written

    def _progress(self) -> int:
        """As `_written`; it changes while nothing waits for the client."""
        return self._stream.written if self._is_blocked() else monotonic_ns()

    def _is_blocked(self) -> bool:
        return self._stream.waiting is not None

    async def _drained(self) -> None:
        """Wait until the flow-control windows of the client have admitted all data."""
        while self._stream.waiting is not None:
            self._sent = asyncio.get_running_loop().create_future()
            await self._sent

    def _stop_sending(self, _error: errors.GatewayError) -> None:
        """End the call: the client does not read its response."""
        if self.task is not None:
            self.task.cancel()

    # -- the end

    def _fail(self, error: errors.GatewayError) -> None:
        """End the call with *error*."""
        self._end(self._reject(error))

    def _reject(self, error: errors.GatewayError) -> GrpcResponse:
        """Return *error* as a response, and report it with all that is known of the request."""
        metadata, client = self._head.metadata, self._client
        error.client = self._connection.client.caller.client(metadata) if client is None else client
        error.metadata = text_metadata(metadata)
        error.request_id = error.request_id or metadata_request_id(metadata)
        return self._method.frontend.reject(error)

    def _end(self, response: GrpcResponse) -> None:
        """End the call with *response*, and cancel its task."""
        if self.task is not None:
            self.task.cancel()
        if self._state is RECEIVING:
            self._finish(response)
            self._release()
        else:
            self._final_response = self._final_response or response

    def _end_with(self, error: BaseException) -> bool:
        """End the call after *error*; return False if *error* must be raised."""
        if isinstance(error, asyncio.CancelledError):
            if self._final_response is None:
                self._connection.core.reset(self._stream, frames.CANCEL)
                self._connection.flush_soon()
                return False
            self._finish(self._final_response)
        elif isinstance(error, errors.GatewayError):
            self._finish(self._reject(error))
        elif isinstance(error, Exception):  # a bug of the gateway ends one call only
            log.error("internal error", exc_info=error, method=self._method.path)
            self._finish(GrpcResponse(status=GrpcStatus.INTERNAL, details="internal error"))
        else:
            return False
        return True

    def _finish(
        self, response: GrpcResponse, size: int | None = None, message: bool = True
    ) -> None:
        """Send the last response and the trailers; *size* is that of its message, if known."""
        stream, core = self._stream, self._connection.core
        if (state := stream.state) is not HALF_CLOSED_REMOTE and state is not OPEN:
            return
        metadata = response.metadata
        if response.status is _OK and message:
            if size is None:
                size = size_of(response.message)
            is_begun = self._state is RESPONDING  # an error that the protocol sends as a message
            sent, call_frames = response.message, None
            if not is_begun:
                call_frames = join_call(
                    stream.number, RESPONSE_HEAD, (), sent, size, TRAILERS_OK, metadata
                )
            if call_frames is None or not core.writer.send_joined(
                stream, call_frames, size + PREFIX_BYTES
            ):
                if not is_begun:
                    core.writer.head(stream, RESPONSE_HEAD)
                core.writer.data(stream, frame_message(sent, size))
                core.writer.end(stream, with_metadata(TRAILERS_OK, metadata))
        elif self._state is RESPONDING:
            core.writer.end(stream, trailers_block(response.status, response.details, metadata))
        else:
            block = trailers_only_block(response.status, response.details, metadata)
            core.writer.head(stream, block, end=True)
        if core.streams:
            if not self._connection.is_flushing:
                self._connection.flush_soon()
        else:  # no other call will write in this turn
            self._connection.flush()

    def _release(self) -> None:
        """Release everything that the call holds of its connection."""
        self._state = OVER
        self.task = None  # it holds the error that ended it, and so the frames of the call
        if self._incoming is not None:
            self._incoming.close()
            if not self._method.is_bidirectional:
                self._method.admission.leave()
        if self._step is not None:
            self._step.discard(self)
        core, stream = self._connection.core, self._stream
        if stream.unread:
            core.windows.consume(stream, stream.unread)
            self._connection.flush_soon()
        if stream.state is HALF_CLOSED_LOCAL:
            core.reset(stream, frames.NO_ERROR)  # the rest of the request is not needed
            self._connection.flush_soon()
        stream.owner = None
        self._connection.lifecycle.on_call_ended()


@accelerated
def new_call(
    connection: Http2ServerConnection, stream: Http2Stream, head: GrpcRequestHead, method: Method
) -> ServerCall:
    """Return a call, with the arguments of its class."""
    return ServerCall(connection, stream, head, method)
