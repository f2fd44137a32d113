"""The messages of one call as a server receives them: room for them, and patience.

A stream's window holds what is read ahead.  A message larger than it comes only once the budget
has room for all of it; from then on its memory is ready and its bytes are copied there once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from time import monotonic
from typing import Final, Protocol

from gateway.ir.errors import DeadlineExceeded, GatewayError, MalformedMessage, Overloaded
from gateway.transports.contract import MemoryBudget, ServerLimits
from gateway.transports.grpc.messages import GrpcMessage, MessageReader
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.receiver import STREAM_WINDOW
from gateway.transports.http2.streams import Http2Stream
from gateway.wire.http import size_of

# Messages of a stream that have come and were not yet taken: the window bounds their bytes.
_MOST_MESSAGES: Final = 4096


class Http2ServerConnection(Protocol):
    """The part of a connection that a call uses."""

    core: Http2Connection
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
        budget: Where room for large messages is had.
        failed: Told when there is none.
        began: When the call did.

    Attributes:
        messages: Those that have come whole.
        ended: Nothing more comes.
    """

    __slots__ = (
        "_asking",
        "_began",
        "_budget",
        "_came",
        "_failed",
        "_heard",
        "_limits",
        "_line",
        "_reader",
        "_received",
        "_reserved",
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
        budget: MemoryBudget,
        failed: Callable[[GatewayError], None],
        began: float,
    ) -> None:
        self._line = line
        self._stream = stream
        self._limits = limits
        self._budget = budget
        self._failed = failed
        self._reader = MessageReader(limits.message_bytes, coding)
        self._asking: asyncio.Task[None] | None = None
        self._came: asyncio.Future[None] | None = None
        self._reserved = 0
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
        self.messages += self._reader.feed(view)
        if end and not self._reader.empty:
            raise MalformedMessage("the call ended in the middle of a message")
        if len(self.messages) > _MOST_MESSAGES:
            raise Overloaded(f"{len(self.messages)} messages wait", limit="stream_requests")
        if not self.messages:
            self._heard = monotonic()
            self._received += len(view)
            if not end and self._stream.short_by(self._reader.missing) > 0:
                self._make_room()
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    def fill(self, views: Sequence[memoryview]) -> bool:
        """Take parts from the middle of a message whose memory is ready; return whether it is."""
        if not self._reader.fill(views):
            return False
        self._heard = monotonic()
        self._received += size_of(views)
        return True

    async def read(self) -> AsyncGenerator[GrpcMessage, None]:
        """Give the messages of a bidirectional stream as they come."""
        while True:
            while self.messages:
                message = self.messages.popleft()
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

    def transfer_reservation(self) -> int:
        """Return the bytes that were reserved for messages; they are the caller's now."""
        reserved, self._reserved = self._reserved, 0
        return reserved

    def close(self) -> None:
        """Give back what is held, and forget who is told; harmless the second time."""
        self._failed = _nobody  # else call and messages would hold one another
        reserved = self.transfer_reservation()
        if reserved:
            self._budget.release(reserved)
        if self._asking is not None:
            self._asking.cancel()

    def _make_room(self) -> None:
        """Let a message come that is larger than the window, once the budget has room for it."""
        needed = max(0, self._reader.size - self._reserved)
        if self._budget.take(needed):
            self._reserved += needed
            self._grant()
        elif self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask_for_room(needed))

    async def _ask_for_room(self, size: int) -> None:
        try:
            await self._budget.acquire(size, self._limits.queue_wait_s)
        except GatewayError as error:
            self._asking = None
            self._failed(error)
            return
        self._asking = None
        self._reserved += size
        self._grant()

    def _grant(self) -> None:
        self._reader.reserve()
        self._line.core.grant(self._stream, self._stream.short_by(self._reader.missing))
        self._line.flush_soon()

    def _widen(self) -> None:
        """Let more come of a stream whose messages have all been taken."""
        reserved = self.transfer_reservation()
        if reserved:
            self._budget.release(reserved)
        if self.ended:
            return
        if self._stream.short_by(self._reader.missing) > 0:
            self._make_room()
        elif self._stream.window < STREAM_WINDOW // 2:
            self._line.core.grant(self._stream, STREAM_WINDOW - self._stream.window)
            self._line.flush_soon()


def _nobody(_error: GatewayError) -> None: ...
