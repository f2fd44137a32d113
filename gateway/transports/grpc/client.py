"""GrpcClient of the native implementation: calls with raw messages, multiplexed on connections.

A status that the server sent is a response, which the codec interprets.  Only failures of the
transport are raised.
"""

import asyncio
from collections.abc import AsyncGenerator
from time import monotonic
from types import CoroutineType
from typing import Any, Final

from gateway.concurrency.timeouts import TimerWheel
from gateway.ir.errors import DeadlineExceeded, GatewayError, NotSent
from gateway.transports.contract import ClientLimits, Decode
from gateway.transports.grpc.client_call import ClientCall
from gateway.transports.grpc.client_pool import GrpcConnectionPool
from gateway.transports.grpc.withheld import WithheldCalls
from gateway.transports.memory_budget import UNLIMITED, MemoryBudget
from gateway.transports.net.resolver import upstream_of
from gateway.transports.net.tls_files import TlsContext
from gateway.transports.slots import upstream_slots
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus

# A lookup of an Enum member costs as much as a function call.
_DEADLINE_EXCEEDED: Final = GrpcStatus.DEADLINE_EXCEEDED
# The server enforces the deadline too, rounded down and by a clock of its own.
_CLOCK_SLACK_S: Final = 0.02


class GrpcClient:
    """Sends raw messages to one upstream.

    Args:
        target: "host:port" or "unix:/path".
        limits: The limits of this upstream.
        tls: The context of handshakes; None for plain text.
        withheld: Decides whether calls without a waiting client are cancelled.
        budget: The memory budget for responses.
        address: IP address of the host; "" to look it up.

    Raises:
        ValueError: *target* has neither form.
    """

    sends_rest = True

    def __init__(
        self,
        target: str,
        limits: ClientLimits,
        *,
        tls: TlsContext | None = None,
        withheld: WithheldCalls | None = None,
        budget: MemoryBudget = UNLIMITED,
        address: str = "",
    ) -> None:
        self._target = target
        upstream = upstream_of(target, limits.resolve_floor_s, address)
        self._pool = GrpcConnectionPool(target, upstream, limits, tls, budget)
        self._slots = upstream_slots("in_flight", limits.most_in_flight, limits, target)
        self._wheel = TimerWheel()
        self._withheld = WithheldCalls() if withheld is None else withheld
        self._is_closed = False

    async def send(  # noqa: C901, PLR0912, PLR0915  # one frame
        self,
        wire: GrpcRequest,
        /,
        *,
        deadline: float | None,
        decode: Decode[GrpcResponse] | None = None,
    ) -> Any:
        """Send one message and return its only response, or the status that replaces it.

        Metadata that gRPC cannot carry is omitted.
        """
        now = monotonic()
        if self._is_closed or (deadline is not None and deadline <= now):
            raise self._not_started()
        slots = self._slots
        if slots.used < slots.limit and not slots.queued:  # as `try_acquire`, without its frame
            slots.used += 1
        else:
            now = await self._wait_for_slot(deadline)
        withheld = False
        try:
            connection = self._pool.find(now)
            if connection is None:
                connection = await self._pool.acquire(deadline)
                now = monotonic()
            waiter = connection.loop.create_future()
            call = connection.call(wire, deadline, now, waiter, self._withheld.is_enabled)
            step = None if deadline is None else self._wheel.schedule(call, deadline)
            try:
                response = await waiter or await call.only_response()
            except (asyncio.CancelledError, DeadlineExceeded):
                if call.can_be_left():
                    withheld = self._withhold(call)
                else:
                    call.cancel()
                raise
            finally:
                if step is not None:
                    step.discard(call)
                if not withheld and call.stream.owner is not None:
                    call.release()
        finally:
            if not withheld:
                if slots.queued:
                    slots.release()
                else:
                    slots.used -= 1
        if response.status is _DEADLINE_EXCEEDED:
            self._check_deadline(deadline)
        # HTTP/2 numbers its streams: a wrong response does not affect other calls.
        if decode is None:
            return response
        reply = decode(response)
        return await reply if type(reply) is CoroutineType else reply

    async def stream(
        self, wire: GrpcRequest, /, *, deadline: float | None
    ) -> AsyncGenerator[GrpcResponse, None]:
        """Send one message and yield its responses; a status other than OK is the last."""
        now = monotonic()
        if self._is_closed or (deadline is not None and deadline <= now):
            raise self._not_started()
        if not self._slots.try_acquire():
            now = await self._wait_for_slot(deadline)
        withheld = False
        try:
            connection = self._pool.find(now)
            if connection is None:
                connection = await self._pool.acquire(deadline)
                now = monotonic()
            call = connection.call(wire, deadline, now, None, self._withheld.is_enabled)
            step = None if deadline is None else self._wheel.schedule(call, deadline)
            try:
                while (response := await call.next_response()) is not None:
                    if response.status is _DEADLINE_EXCEEDED:
                        self._check_deadline(deadline)
                    yield response
                    if response.status is not GrpcStatus.OK:
                        return
            finally:
                if step is not None:
                    self._wheel.cancel(call, step)
                if call.can_be_left():
                    withheld = self._withhold(call)
                else:
                    call.cancel()
                    call.release()
        finally:
            if not withheld:
                self._slots.release()

    async def close(self) -> None:
        """Close every connection and fail the calls on them. A second call does nothing."""
        self._is_closed = True
        await self._pool.close(f"the client of {self._target} was closed during the call")
        self._wheel.close()

    def _withhold(self, call: ClientCall) -> bool:
        """Leave a call to end by itself, which releases its slot. Return True."""
        step = self._wheel.schedule(call, monotonic() + self._withheld.longest_s)

        def end() -> None:
            self._wheel.cancel(call, step)
            call.release()
            self._slots.release()
            self._withheld.end()

        call.detach(end)
        self._withheld.begin()
        return True

    def _check_deadline(self, deadline: float | None) -> None:
        """Raise DeadlineExceeded if the server's DEADLINE_EXCEEDED means the caller's deadline."""
        if _is_over(deadline):
            raise DeadlineExceeded(f"no response from {self._target} in time")

    async def _wait_for_slot(self, deadline: float | None) -> float:
        """Wait for a slot; return the time afterwards."""
        try:
            await self._slots.wait(None, deadline=deadline)
        except GatewayError:
            if self._is_closed:
                raise self._not_started() from None
            raise
        return monotonic()

    def _not_started(self) -> GatewayError:
        """Return why a call is not started: the client is closed, or the deadline has passed."""
        if self._is_closed:
            return NotSent(f"the client of {self._target} is closed")
        return DeadlineExceeded(f"deadline exceeded before {self._target} was called")


def _is_over(deadline: float | None) -> bool:
    """Return whether *deadline* has passed, within the difference between two clocks."""
    return deadline is not None and monotonic() >= deadline - _CLOCK_SLACK_S
