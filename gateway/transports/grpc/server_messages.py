"""RequestMessages: receives the messages of one call on a server, within memory and time limits.

A message that arrives in several pieces is charged to the memory budget as it arrives, one step
ahead, and the window of its stream is opened as far as memory is reserved.  Bytes that are not
charged yet, and messages that the call has not read, stay in the connection's window.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from time import monotonic
from typing import Final, Protocol

from gateway.ir.errors import DeadlineExceeded, GatewayError, MalformedMessage, Overloaded
from gateway.transports.client_shares import ClientShares
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc.connection_lifecycle import ConnectionLifecycle
from gateway.transports.grpc.messages import PREFIX_BYTES, GrpcMessage, MessageReader
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.frames import SMALL_FRAME_BYTES
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.reservation import Reservation

# Unread messages of a stream; the window limits their bytes.
_MAX_UNREAD_MESSAGES: Final = 4096


class Http2ServerConnection(Protocol):
    """The interface of a connection that a call uses."""

    core: Http2Connection
    client: ClientShares
    lifecycle: ConnectionLifecycle
    is_flushing: bool
    loop: asyncio.AbstractEventLoop

    def flush(self) -> None:
        """Write the frames of the core."""

    def flush_soon(self) -> None:
        """Write the frames of the core in the next turn of the loop."""


class RequestMessages:
    """The messages of one call.

    Args:
        connection: Its connection.
        stream: Its stream.
        coding: The compression that its messages may have.
        limits: The limits of the listener.
        held: The memory reservation of the call.
        on_failure: Called if there is no memory for the messages.
        started_at: When the call started, on the clock of `time.monotonic`.

    Attributes:
        messages: The complete messages that nobody has read.
        has_ended: The client has sent its last message.
        has_message: A message has arrived completely.
        room: Returns where the next bytes of a large message belong; None to `feed` them.
    """

    __slots__ = (
        "_arrived",
        "_connection",
        "_growing",
        "_is_charged",
        "_last_data_at",
        "_limits",
        "_on_failure",
        "_reader",
        "_received",
        "_reservation",
        "_started_at",
        "_stream",
        "has_ended",
        "has_message",
        "messages",
        "room",
    )

    def __init__(  # all of one call
        self,
        connection: Http2ServerConnection,
        stream: Http2Stream,
        coding: str,
        limits: ServerLimits,
        held: Reservation,
        on_failure: Callable[[GatewayError], None],
        started_at: float,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._limits = limits
        self._reservation = held
        self._on_failure = on_failure
        self._reader = MessageReader(limits.message_bytes, coding)
        self.room = self._reader.room
        stream.place = self
        self._growing: asyncio.Task[None] | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._received = 0
        self._is_charged = False
        self._started_at = self._last_data_at = started_at
        self.messages: deque[GrpcMessage] = deque()
        self.has_message = False
        self.has_ended = False

    def feed(self, view: memoryview, *, end: bool) -> None:
        """Parse a part of the request.

        Raises:
            MalformedMessage: It violates gRPC's framing.
            TooLarge: A message exceeds `message_bytes`.
            Overloaded: Too many messages are unread.
        """
        self.has_ended = end
        found = self._reader.feed(view)
        if found:
            self._add(found)
        if end and not self._reader.is_empty:
            raise MalformedMessage("the call ended in the middle of a message")
        if len(self.messages) > _MAX_UNREAD_MESSAGES:
            raise Overloaded(f"{len(self.messages)} messages wait", limit="stream_requests")
        if not found and not end:
            self._last_data_at = monotonic()
            self._received += len(view)
            if len(view) < SMALL_FRAME_BYTES:
                self._charge()
        if not self.messages and not end:
            self._make_room()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _add(self, found: list[GrpcMessage]) -> None:
        self.messages += _unpinned(found)
        self.has_message = True
        if self._reservation.size_bytes:
            self._reservation.stop_watching()  # a message that is complete waits for this side
        if self._is_charged:
            self._is_charged = False
            self._connection.core.flood_budget.remaining += 1

    def _charge(self) -> None:
        """Charge a small frame; the message that it belongs to refunds one of them."""
        self._is_charged = True
        self._connection.core.flood_budget.charge(1)

    def copied(self, size: int) -> None:
        """Handle *size* bytes that were copied into `room`."""
        reader, held, core = self._reader, self._reservation, self._connection.core
        reader.advance(size)
        self._last_data_at = monotonic()
        self._received += size
        if held.size_bytes < reader.size and 4 * reader.filled >= 3 * held.size_bytes:
            self._make_room()
        if core.windows.consume(self._stream, size) and not self._connection.is_flushing:
            self._connection.flush_soon()

    async def read(self) -> AsyncGenerator[GrpcMessage, None]:
        """Yield the messages of a bidirectional stream."""
        while True:
            while self.messages:
                message = self.messages.popleft()
                self._consume(len(message.view) + PREFIX_BYTES)
                if not self.messages:
                    self._widen()
                yield message
            if self.has_ended:
                return
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived

    def overdue(self, now: float) -> DeadlineExceeded | None:
        """Return the error for a message that arrives too slowly; None to wait longer."""
        limits = self._limits
        waited = now - self._started_at
        if now - self._last_data_at > limits.body_idle_timeout_s:
            why, limit = f"and nothing for {limits.body_idle_timeout_s:g} s", "body_idle_timeout"
        elif waited > limits.body_timeout_s:
            why, limit = f"within {limits.body_timeout_s:g} s", "body_timeout"
        elif waited > limits.body_min_rate_grace_s + self._received / limits.body_min_rate_bytes_s:
            why = f"at {limits.body_min_rate_bytes_s} bytes per second"
            limit = "body_min_rate_bytes_s"
        else:
            return None
        return DeadlineExceeded(f"no complete message arrived {why}", limit=limit)

    def take_reservation(self) -> Reservation:
        """Return the reservation of the only message, which the caller must close."""
        held = self._reservation
        held.stop_watching()
        self._reservation = held.new_for_same_client()
        return held

    def close(self) -> None:
        """Release the memory. A second call does nothing."""
        self._stream.place = None
        self._on_failure = _ignore  # it would be a reference cycle with the call
        self._reservation.close()
        if self._growing is not None:
            self._growing.cancel()
            self._growing = None

    def _make_room(self) -> None:
        """Reserve memory for an incomplete message, then open the window for it."""
        reader, held = self._reader, self._reservation
        if self._growing is not None:
            return
        if not held.size_bytes and reader.missing:
            held.watch_progress(self._position, self._abort_stalled)
        if not reader.missing:  # its length has not arrived
            self._consume(self._stream.unread)
            return
        more = held.step(reader.filled, reader.size)
        if more > 0 and not held.try_grow(more):
            self._growing = asyncio.get_running_loop().create_task(self._grow(more))
            return
        self._grant()

    async def _grow(self, size: int) -> None:
        try:
            await self._reservation.grow(size)
        except GatewayError as error:
            self._growing = None
            self._on_failure(error)
            return
        self._growing = None
        self._grant()

    def _grant(self) -> None:
        """Open the windows as far as memory is reserved for a message."""
        reader, stream = self._reader, self._stream
        allowed = min(reader.missing, self._reservation.size_bytes - reader.filled)
        if stream.short_by(reader.missing) > 0:
            reader.reserve(self._reservation, lasts=False)
        short = stream.short_by(allowed)
        if short > 0:
            self._connection.core.windows.grant(stream, short)
            self._connection.flush_soon()
        self._consume(stream.unread)

    def _consume(self, size: int) -> None:
        if self._connection.core.windows.consume(self._stream, size):
            self._connection.flush_soon()

    def _position(self) -> int:
        return self._received

    def _abort_stalled(self, error: Overloaded) -> None:
        self._on_failure(error)

    def _widen(self) -> None:
        """Open the window of a stream whose messages were all read."""
        self._reservation.close()
        if self.has_ended:
            return
        if self._reader.missing:
            self._make_room()
        elif self._connection.core.windows.replenish(self._stream):
            self._connection.flush_soon()


def _unpinned(messages: list[GrpcMessage]) -> list[GrpcMessage]:
    """Return messages that do not keep much more memory than their own bytes alive.

    Messages that arrived together are views of one received buffer.
    """
    return [
        each
        if 2 * len(each.view) >= len(each.view.obj)  # type: ignore[arg-type]  # bytes, or an array
        else GrpcMessage(memoryview(bytes(each.view)), each.coding)
        for each in messages
    ]


def _ignore(_error: GatewayError) -> None: ...
