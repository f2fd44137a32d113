"""gRPC client of our own: raw bytes out, raw bytes in, calls multiplexed on few connections.

A status the server sent is an answer, whatever it is: the codec knows what it means.  Raised is
what happened on the way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from time import monotonic
from types import CoroutineType
from typing import Any, Final

from gateway.concurrency.timer_wheel import TimerWheel
from gateway.ir.errors import DeadlineExceeded, GatewayError, NotSent, Overloaded
from gateway.transports.admission import UNLIMITED, ConcurrencyLimiter, MemoryBudget
from gateway.transports.contract import ClientLimits, Decode
from gateway.transports.grpc.client_call import ClientCall
from gateway.transports.grpc.client_pool import GrpcClientConnection, GrpcConnectionPool
from gateway.transports.grpc.headers import request_block
from gateway.transports.grpc.messages import PREFIX_BYTES, frame_message
from gateway.transports.grpc.withheld import WithheldCalls
from gateway.transports.net.resolver import UNIX, upstream_of
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import size_of

# By a name of our own: to look a member up in its Enum costs as much as a call does.
_DEADLINE_EXCEEDED: Final = GrpcStatus.DEADLINE_EXCEEDED
# The deadline is sent rounded down, and both ends keep it; loops have clocks of their own.
_CLOCK_SLACK_S: Final = 0.02


class GrpcClient:
    """Sends raw messages to one upstream.

    Args:
        target: "host:port" or "unix:/path".
        limits: Of this upstream.
        ssl_context: From `tls.client_context`; None for plain text.
        withheld: Whether calls are cancelled when nobody waits for them.
        budget: Of the process, for responses.

    Raises:
        ValueError: The target is neither.
    """

    sends_rest = True

    def __init__(
        self,
        target: str,
        limits: ClientLimits,
        *,
        ssl_context: ssl.SSLContext | None = None,
        withheld: WithheldCalls | None = None,
        budget: MemoryBudget = UNLIMITED,
    ) -> None:
        self._target = target
        self._most_bytes = limits.message_bytes
        self._authority = "localhost" if target.startswith(UNIX) else target
        self._scheme = "http" if ssl_context is None else "https"
        upstream = upstream_of(target, limits.resolve_floor_s)
        self._pool = GrpcConnectionPool(target, upstream, limits, ssl_context, budget)
        self._slots = ConcurrencyLimiter("in_flight", limits.in_flight, limits.pending)
        self._wheel = TimerWheel()
        self._withheld = WithheldCalls() if withheld is None else withheld
        self._closed = False

    async def send(  # noqa: C901, PLR0912  # one frame
        self,
        wire: GrpcRequest,
        /,
        *,
        deadline: float | None,
        decode: Decode[GrpcResponse] | None = None,
    ) -> Any:
        """Send one message and return its one answer, or the status that came instead.

        Metadata that gRPC cannot carry is left out.
        """
        now = monotonic()
        if self._closed or (deadline is not None and deadline <= now):
            raise self._not_asked()
        if not self._slots.try_acquire():
            now = await self._place(now, deadline)
        withheld = False
        try:
            connection = self._pool.find(now)
            if connection is None:
                connection = await self._pool.acquire(deadline)
                now = monotonic()
            withholds = self._withheld.enabled
            exchange = self._begin(connection, wire, None if withholds else deadline, now)
            exchange.withholds = withholds
            step = 0 if deadline is None else self._wheel.schedule(exchange, deadline)
            try:
                answer = await exchange.ending() or await exchange.one()
            except (asyncio.CancelledError, DeadlineExceeded):
                if exchange.can_be_left():
                    withheld = self._withhold(exchange)
                else:
                    exchange.cancel()
                raise
            finally:
                if step:
                    self._wheel.cancel(exchange, step)
                if not withheld:
                    exchange.forget()
        finally:
            if not withheld:
                self._slots.release()
        if answer.status is _DEADLINE_EXCEEDED:
            self._check_time(deadline)
        # Streams have numbers: an answer to another call says nothing of the connection.
        if decode is None:
            return answer
        reply = decode(answer)
        return await reply if type(reply) is CoroutineType else reply

    async def stream(
        self, wire: GrpcRequest, /, *, deadline: float | None
    ) -> AsyncGenerator[GrpcResponse, None]:
        """Send one message and iterate over its answers; a status other than OK is the last."""
        now = monotonic()
        if self._closed or (deadline is not None and deadline <= now):
            raise self._not_asked()
        if not self._slots.try_acquire():
            now = await self._place(now, deadline)
        try:
            connection = self._pool.find(now)
            if connection is None:
                connection = await self._pool.acquire(deadline)
                now = monotonic()
            exchange = self._begin(connection, wire, deadline, now)
            step = 0 if deadline is None else self._wheel.schedule(exchange, deadline)
            try:
                while (answer := await exchange.next()) is not None:
                    if answer.status is _DEADLINE_EXCEEDED:
                        self._check_time(deadline)
                    yield answer
                    if answer.status is not GrpcStatus.OK:
                        return
            finally:
                exchange.cancel()
                if step:
                    self._wheel.cancel(exchange, step)
                exchange.forget()
        finally:
            self._slots.release()

    async def close(self) -> None:
        """Close every connection and break off the calls on them; harmless the second time."""
        self._closed = True
        await self._pool.close(f"the client of {self._target} was closed during the call")
        self._wheel.close()

    def _begin(
        self,
        connection: GrpcClientConnection,
        wire: GrpcRequest,
        deadline: float | None,
        now: float,
    ) -> ClientCall:
        """Begin a call on a connection with room."""
        left_s = None if deadline is None else deadline - now
        block = request_block(wire.method, self._authority, self._scheme, wire.metadata, left_s)
        rest = wire.rest
        size = size_of(wire.message)
        message = frame_message(wire.message, size if rest is None else size + rest.remaining_bytes)
        return connection.call(block, message, size + PREFIX_BYTES, self._most_bytes, rest)

    def _withhold(self, exchange: ClientCall) -> bool:
        """Let a call end by itself; its place is given back then. Return True."""
        step = self._wheel.schedule(exchange, monotonic() + self._withheld.longest_s)

        def end() -> None:
            self._wheel.cancel(exchange, step)
            exchange.forget()
            self._slots.release()
            self._withheld.end()

        exchange.leave(end)
        self._withheld.begin()
        return True

    def _check_time(self, deadline: float | None) -> None:
        """Raise DeadlineExceeded for a server that was first to say that our deadline is past."""
        if _is_over(deadline):
            raise DeadlineExceeded(f"no answer from {self._target} in time")

    async def _place(self, now: float, deadline: float | None) -> float:
        """Wait for a place among the calls in flight; return the time then."""
        try:
            await self._slots.wait(None if deadline is None else deadline - now)
        except Overloaded as error:
            if self._closed or _is_over(deadline):
                raise self._not_asked() from None
            raise Overloaded(f"{self._target}: {error.message}", limit=error.limit) from None
        return monotonic()

    def _not_asked(self) -> GatewayError:
        """Return why a call is not begun: the client is closed, else its time is over."""
        if self._closed:
            return NotSent(f"the client of {self._target} is closed")
        return DeadlineExceeded(f"the call's time was over before {self._target} was asked")


def _is_over(deadline: float | None) -> bool:
    """Return whether *deadline* is past, as near as clocks are."""
    return deadline is not None and monotonic() >= deadline - _CLOCK_SLACK_S
