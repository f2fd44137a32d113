"""ServerCall: one call of a gRPC server, from its header fields to its trailers.

A call with one request message gets a task and a slot when that message is complete, so a slow
sender holds neither.  The slot is released when the service has replied.  A response that the
client does not read is charged to the memory budget.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any, Final

from gateway.accelerator import accelerated
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.ir import errors
from gateway.transports.contract import is_probe
from gateway.transports.grpc.admission import GrpcSessionLimits, Slot
from gateway.transports.grpc.call_responses import CallResponses
from gateway.transports.grpc.headers import GrpcRequestHead
from gateway.transports.grpc.messages import GrpcMessage, whole_message
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_messages import Http2ServerConnection, RequestMessages
from gateway.transports.grpc.states import (
    RECEIVING,
    RUNNING,
)
from gateway.transports.http2.flood_control import EARLY_RESET_S
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.reservation import RESPONSE_UNCOUNTED_BYTES
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import size_of

# The frontend ends a call at its deadline; this ends a call that it has not ended by then.
_GRACE_S: Final = 0.01


class ServerCall(CallResponses):
    """A call of a server.

    Args:
        connection: Its connection.
        stream: Its stream.
        head: Its header fields.
        method: Its method, with the frontend and the limits.

    Attributes:
        task: Runs the call; None until the request is complete.
    """

    __slots__ = ()

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

    def on_data_batch(self, views: Sequence[memoryview]) -> None:
        """Handle several parts of the request."""
        stream = self._stream
        if self._incoming is not None:
            coming, stream.frame_bytes_left = stream.frame_bytes_left, 0
            if self._incoming.fill(views):
                return
            stream.frame_bytes_left = coming
        for view in views:
            if stream.owner is not None:  # the call may end with one of them
                stream.frame_bytes_left -= len(view)
                self.on_data(view, end=False)

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
        async with aclosing(self._receiving().read()) as messages:
            async for message in messages:
                yield self._wire_request(await self._plain(message), message)

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
                    admission.release(1, client.slots)
                response_bytes = size_of(found.message)
                if response_bytes <= RESPONSE_UNCOUNTED_BYTES:
                    self._finish(found, response_bytes)
                    if self._stream.waiting is not None:
                        await self._drained()
                else:
                    found = self._checked(found, request)
                    # From here on, the budget counts the response and not the request.
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


@accelerated
def new_call(
    connection: Http2ServerConnection, stream: Http2Stream, head: GrpcRequestHead, method: Method
) -> ServerCall:
    """Return a call, with the arguments of its class."""
    return ServerCall(connection, stream, head, method)
