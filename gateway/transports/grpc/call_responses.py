"""CallResponses: sends the responses of one call of a gRPC server, and ends the call."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import monotonic, monotonic_ns
from typing import Final

import structlog

from gateway.accelerator import accelerated
from gateway.concurrency.timeouts import TimerStep
from gateway.ir import errors
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
)
from gateway.transports.grpc.method import Method
from gateway.transports.grpc.server_messages import Http2ServerConnection, RequestMessages
from gateway.transports.grpc.states import (
    FINAL,
    OVER,
    RECEIVING,
    RESPONDING,
    RUNNING,
    GrpcCallState,
)
from gateway.transports.http2 import frames
from gateway.transports.http2.states import HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE, OPEN
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.read_ahead import ReadAhead
from gateway.transports.reservation import (
    RESPONSE_PATIENCE_S,
    Reservation,
)
from gateway.transports.reserved_buffer import uncounted_bytes
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, Metadata
from gateway.wire.http import size_of
from gateway.wire.metadata import text_metadata
from gateway.wire.request_id import metadata_request_id

log = structlog.get_logger(__name__)

# A lookup of an Enum member costs as much as a function call.
_OK: Final = GrpcStatus.OK


class CallResponses:
    """The output of a call, with its arguments."""

    __slots__ = (
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
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._head = head
        self._method = method
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

    def on_writable(self) -> None:
        """Continue: the buffered response is written."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

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
        metadata, caller = self._head.metadata, self._connection.client.caller
        # Equal heads are read once, and so is their client.
        client = caller.last if caller.fields is metadata else caller.client(metadata)
        return GrpcRequest(
            self._method.path, (view,), metadata, self._deadline, None, elements, client
        )

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

    def _written(self) -> int:
        return self._stream.written

    def _watch_progress(self, held: Reservation) -> None:
        """End the stream if its client does not read while others wait for *held*."""
        held.watch_progress(self._progress, self._stop_sending, RESPONSE_PATIENCE_S)

    def _progress(self) -> int:
        """As `_written`; it changes while nothing waits for the client."""
        return self._stream.written if self._is_blocked() else monotonic_ns()

    def _stop_sending(self, _error: errors.GatewayError) -> None:
        """End the call: the client does not read its response."""
        if self.task is not None:
            self.task.cancel()

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

    async def _first_response(self, responses: AsyncGenerator[GrpcResponse, None]) -> GrpcResponse:
        async with aclosing(responses):
            async for response in responses:
                return response
        raise errors.InternalError(f"{self._method.path} has no response")

    def _read_ahead(self) -> ReadAhead:
        """Return the responses of this call that the client has not read."""
        held = self._method.admission.reservation(self._connection.client)
        return ReadAhead(held, self._is_blocked, self._drained, self._written, self._stop_sending)

    def _is_blocked(self) -> bool:
        return self._stream.waiting is not None

    async def _send_all(
        self,
        responses: AsyncGenerator[GrpcResponse, None],
        ahead: ReadAhead,
        request: GrpcRequest | None,
    ) -> GrpcResponse:
        """Send the responses of a stream; return its end, an error or one without a message."""
        metadata: Metadata = ()
        writer = self._connection.core.writer
        async for found in responses:
            response = found if request is None else self._checked(found, request)
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

    def _checked(self, response: GrpcResponse, request: GrpcRequest) -> GrpcResponse:
        """Return *response*, or an error if it is too large."""
        try:
            self._method.admission.check(response)
        except errors.TooLarge as error:
            return self._method.frontend.reject_message(request, error)
        return response

    async def _drained(self) -> None:
        """Wait until the flow-control windows of the client have admitted all data."""
        while self._stream.waiting is not None:
            self._sent = asyncio.get_running_loop().create_future()
            await self._sent

    def _fail(self, error: errors.GatewayError) -> None:
        """End the call with *error*."""
        self._end(self._reject(error))

    def _reject(self, error: errors.GatewayError) -> GrpcResponse:
        """Return *error* as a response, and report it with all that is known of the request."""
        metadata = self._head.metadata
        error.client = self._connection.client.caller.client(metadata)
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
            core.consume(stream, stream.unread)
            self._connection.flush_soon()
        if stream.state is HALF_CLOSED_LOCAL:
            core.reset(stream, frames.NO_ERROR)  # the rest of the request is not needed
            self._connection.flush_soon()
        stream.owner = None
        if self._connection.state is FINAL and not core.streams:
            self._connection.close_when_idle()
