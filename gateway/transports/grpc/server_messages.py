"""The messages of one call as a server receives them: room for them, and patience.

A message that does not come in one piece counts against the memory budget as it comes, with one
step ahead.  Its stream's window is widened as far as that.  Bytes that are not counted yet, and
messages that nobody has taken, narrow the connection's window.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from time import monotonic
from typing import Final, Protocol

from gateway.ir.errors import DeadlineExceeded, GatewayError, MalformedMessage, Overloaded
from gateway.transports.admission import ClientShares, Reservation
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc.messages import PREFIX_BYTES, GrpcMessage, MessageReader
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.flood_control import SMALL_FRAME_BYTES
from gateway.transports.http2.receiver import STREAM_WINDOW
from gateway.transports.http2.streams import Http2Stream
from gateway.wire.http import size_of

# Messages of a stream that have come and were not yet taken: the window bounds their bytes.
_MOST_MESSAGES: Final = 4096


class Http2ServerConnection(Protocol):
    """The part of a connection that a call uses."""

    core: Http2Connection
    client: ClientShares
    final: bool
    flushing: bool
    loop: asyncio.AbstractEventLoop

    def flush(self) -> None:
        """Write what the core has to say now."""

    def flush_soon(self) -> None:
        """Write soon what the core has to say."""

    def left(self) -> None:
        """Close a draining connection after its last call."""


class RequestMessages:
    """What comes of one call.

    Args:
        line: Its connection.
        stream: Its stream.
        coding: What its messages may be compressed with.
        limits: Of the listener.
        held: Holds what comes.
        failed: Told when there is none.
        began: When the call did.

    Attributes:
        messages: Those that have come whole.
        ended: Nothing more comes.
    """

    __slots__ = (
        "_asking",
        "_began",
        "_came",
        "_failed",
        "_heard",
        "_held",
        "_limits",
        "_line",
        "_reader",
        "_received",
        "_stream",
        "ended",
        "messages",
    )

    def __init__(  # all of one call
        self,
        line: Http2ServerConnection,
        stream: Http2Stream,
        coding: str,
        limits: ServerLimits,
        held: Reservation,
        failed: Callable[[GatewayError], None],
        began: float,
    ) -> None:
        self._line = line
        self._stream = stream
        self._limits = limits
        self._held = held
        self._failed = failed
        self._reader = MessageReader(limits.message_bytes, coding)
        self._asking: asyncio.Task[None] | None = None
        self._came: asyncio.Future[None] | None = None
        self._received = 0
        self._began = self._heard = began
        self.messages: deque[GrpcMessage] = deque()
        self.ended = False

    def feed(self, view: memoryview, *, end: bool) -> None:
        """Take a part of the request.

        Raises:
            GatewayError: It is not what gRPC says, or too large, or comes too fast.
        """
        self.ended = end
        if not end and self.fill((view,)):  # nearly all of a large message
            return
        found = self._reader.feed(view)
        self.messages += _unpinned(found)
        if end and not self._reader.empty:
            raise MalformedMessage("the call ended in the middle of a message")
        if len(self.messages) > _MOST_MESSAGES:
            raise Overloaded(f"{len(self.messages)} messages wait", limit="stream_requests")
        if not found and not end:
            self._heard = monotonic()
            self._received += len(view)
            if len(view) < SMALL_FRAME_BYTES:
                self._line.core.flood_budget.charge(1)
        if not self.messages and not end:
            self._make_room()
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    def fill(self, views: Sequence[memoryview]) -> bool:
        """Take parts from the middle of a message whose memory is ready; return whether it is."""
        if not self._reader.fill(views):
            return False
        self._heard = monotonic()
        size = size_of(views)
        self._received += size
        core = self._line.core
        if size < SMALL_FRAME_BYTES:
            core.flood_budget.charge(1)
        reader, held = self._reader, self._held
        if held.size_bytes < reader.size and 4 * reader.filled >= 3 * held.size_bytes:
            self._make_room()
        if core.consume(self._stream, size) and not self._line.flushing:
            self._line.flush_soon()
        return True

    async def read(self) -> AsyncGenerator[GrpcMessage, None]:
        """Give the messages of a bidirectional stream as they come."""
        while True:
            while self.messages:
                message = self.messages.popleft()
                self._consume(len(message.view) + PREFIX_BYTES)
                if not self.messages:
                    self._widen()
                yield message
            if self.ended:
                return
            self._came = asyncio.get_running_loop().create_future()
            await self._came

    def overdue(self, now: float) -> DeadlineExceeded | None:
        """Return why a message that has not come is no longer waited for; None to wait on."""
        limits = self._limits
        waited = now - self._began
        if now - self._heard > limits.body_idle_timeout_s:
            why, limit = f"and nothing for {limits.body_idle_timeout_s:g} s", "body_idle_timeout"
        elif waited > limits.body_timeout_s:
            why, limit = f"within {limits.body_timeout_s:g} s", "body_timeout"
        elif waited > limits.body_min_rate_grace_s + self._received / limits.body_min_rate_bytes_s:
            why = f"at {limits.body_min_rate_bytes_s} bytes per second"
            limit = "body_min_rate_bytes_s"
        else:
            return None
        return DeadlineExceeded(f"no message came whole {why}", limit=limit)

    def take_reservation(self) -> Reservation:
        """Return what holds the bytes of the one message, which has come: the caller's now."""
        held = self._held
        held.settle()
        self._held = held.another()
        return held

    def close(self) -> None:
        """Give back what is held, and forget who is told; harmless the second time."""
        self._failed = _nobody  # else call and messages would hold one another
        self._held.close()
        if self._asking is not None:
            self._asking.cancel()

    def _make_room(self) -> None:
        """Hold what has come of a message, and a step more; then let that come."""
        reader, held = self._reader, self._held
        if self._asking is not None:
            return
        if not held.size_bytes and reader.missing:
            held.move_with(self._position, self._gives_way)
        if not reader.missing:  # its length has not come
            self._consume(self._stream.unread)
            return
        more = held.step(reader.filled, reader.size)
        if more > 0 and not held.try_grow(more):
            self._asking = asyncio.get_running_loop().create_task(self._ask_for_room(more))
            return
        self._grant()

    async def _ask_for_room(self, size: int) -> None:
        try:
            await self._held.grow(size)
        except GatewayError as error:
            self._asking = None
            self._failed(error)
            return
        self._asking = None
        self._grant()

    def _grant(self) -> None:
        """Let come what is held of a message, and count it in the connection's window no more."""
        reader, stream = self._reader, self._stream
        allowed = min(reader.missing, self._held.size_bytes - reader.filled)
        if stream.short_by(reader.missing) > 0:
            reader.reserve()
        short = stream.short_by(allowed)
        if short > 0:
            self._line.core.grant(stream, short)
            self._line.flush_soon()
        self._consume(stream.unread)

    def _consume(self, size: int) -> None:
        if self._line.core.consume(self._stream, size):
            self._line.flush_soon()

    def _position(self) -> int:
        return self._received

    def _gives_way(self, error: Overloaded) -> None:
        self._failed(error)

    def _widen(self) -> None:
        """Let more come of a stream whose messages have all been taken."""
        self._held.close()
        if self.ended:
            return
        if self._reader.missing:
            self._make_room()
        elif self._stream.window < STREAM_WINDOW // 2:
            self._line.core.grant(self._stream, STREAM_WINDOW - self._stream.window)
            self._line.flush_soon()


def _unpinned(messages: list[GrpcMessage]) -> list[GrpcMessage]:
    """Return messages that hold little more memory than they have bytes.

    Messages that came together are views of all the bytes that were received with them.
    """
    return [
        each
        if 2 * len(each.view) >= len(each.view.obj)  # type: ignore[arg-type]  # bytes, or an array
        else GrpcMessage(memoryview(bytes(each.view)), each.coding)
        for each in messages
    ]


def _nobody(_error: GatewayError) -> None: ...
