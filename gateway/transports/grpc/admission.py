"""Places and bytes of one gRPC listener, and what it allows the messages of one stream."""

from __future__ import annotations

import asyncio

from gateway.ir.errors import TooLarge
from gateway.transports.admission import ConcurrencyLimiter
from gateway.transports.contract import MemoryBudget, ServerLimits
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import size_of


class CallAdmission(ConcurrencyLimiter):
    """Places and bytes of one listener."""

    def __init__(
        self, budget: MemoryBudget, limits: ServerLimits, *, places: int | None = None
    ) -> None:
        places = limits.requests_in_flight if places is None else places
        super().__init__("requests_in_flight", places, limits.requests_queued)
        self._budget = budget
        self._wait_s = limits.queue_wait_s
        self.message_bytes = limits.message_bytes
        self.stream_requests = limits.stream_requests
        self.message_timeout_s = limits.body_timeout_s
        self._entered = 0
        self._idle: asyncio.Event | None = None  # made by who waits for it

    async def quiet(self, seconds: float) -> None:
        """Wait until there was no call, and none came, for so long."""
        while True:
            while self.used:
                if self._idle is None:
                    self._idle = asyncio.Event()
                self._idle.clear()
                await self._idle.wait()
            entered = self._entered
            await asyncio.sleep(seconds)
            if entered == self._entered:
                return

    def place(self, size: int, held: int = 0) -> AdmittedCall:
        """Hold a place and *size* bytes, of which *held* were taken from the budget before.

        Raises Overloaded when they do not come free in time.
        """
        return AdmittedCall(self, size, held)

    def admit(self, size: int) -> bool:
        """Take a place and *size* bytes if both are free; return whether they were."""
        if self.used >= self._limit or not self._budget.take(size):
            return False
        self.used += 1
        self._entered += 1
        return True

    async def enter(self, size: int, held: int = 0) -> None:
        """Take a place and *size* bytes; what `place` does at its beginning."""
        self._entered += 1
        try:
            await self.acquire(self._wait_s)
            try:
                if held > size:
                    self._budget.release(held - size)
                elif not self._budget.take(size - held):
                    await self._budget.acquire(size - held, self._wait_s)
            except BaseException:
                self.release()
                raise
        except BaseException:
            self._budget.release(held)
            raise

    def leave(self, size: int) -> None:
        """Give both back; what `place` does at its end."""
        self._budget.release(size)
        if self._waiting or self._idle is not None:
            self.release()
        else:
            self.used -= 1

    def release(self) -> None:
        """Give a place back, to whoever waits longest, and tell who waits for there to be none."""
        super().release()
        if self._idle is not None and not self.used:
            self._idle.set()

    def check(self, answer: GrpcResponse) -> None:
        """Raise TooLarge for an answer over the limit."""
        size, limit = size_of(answer.message), self.message_bytes
        if size > limit:
            raise TooLarge(
                f"the answer has {size} bytes, at most {limit} are allowed", limit="message_bytes"
            )


class AdmittedCall:
    """A place held by one call."""

    __slots__ = ("_admission", "_held", "_size")

    def __init__(self, admission: CallAdmission, size: int, held: int) -> None:
        self._admission = admission
        self._size = size
        self._held = held

    async def __aenter__(self) -> None:
        await self._admission.enter(self._size, self._held)

    async def __aexit__(self, *_details: object) -> None:
        self._admission.leave(self._size)


class GrpcSessionLimits:
    """What the listener allows the messages of one bidirectional stream."""

    def __init__(self, admission: CallAdmission) -> None:
        self._admission = admission
        self.max_calls = admission.stream_requests

    def admit(self, wire: GrpcRequest, /) -> AdmittedCall:
        """Hold a place and the bytes of the message."""
        return self._admission.place(size_of(wire.message))

    def check_response(self, answer: GrpcResponse, /) -> None:
        """Raise TooLarge for an answer over the limit."""
        self._admission.check(answer)
