"""GrpcClient of the reference implementation: grpcio with raw messages, within the limits.

A status that the server sent is a response, which the codec interprets.  Only failures of this side
of the connection are raised; `grpc_errors` distinguishes them.
"""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

from grpc import aio

from gateway.ir import errors
from gateway.transports.contract import ClientLimits, Decode, accepted
from gateway.transports.grpc.metadata import sendable
from gateway.transports.grpc.withheld import WithheldCalls
from gateway.transports.net.tls_files import TlsFiles
from gateway.transports.reference.grpc_errors import Ending, local_failure
from gateway.transports.reference.grpc_metadata import STATUS_OF, plain_metadata
from gateway.transports.reference.grpc_pool import GrpcChannelPool, PooledChannel
from gateway.transports.slots import upstream_slots
from gateway.wire.grpc import GrpcRequest, GrpcResponse

# grpcio and the event loop round time differently.
_CLOCK_SLACK_S = 0.002


class GrpcClient:
    """Sends raw messages to one upstream.

    Args:
        target: "host:port" or "unix:/path".
        limits: The limits of this upstream.
        tls: The TLS files; None for plain text.
        withheld: Decides whether calls without a waiting client are cancelled.
    """

    def __init__(
        self,
        target: str,
        limits: ClientLimits,
        *,
        tls: TlsFiles | None = None,
        withheld: WithheldCalls | None = None,
    ) -> None:
        self._target = target
        self._withheld = WithheldCalls() if withheld is None else withheld
        self._pool = GrpcChannelPool(target, limits, tls)
        self._slots = upstream_slots("in_flight", limits.most_in_flight, limits, target)
        self._is_closed = False

    async def send(
        self,
        wire: GrpcRequest,
        /,
        *,
        deadline: float | None,
        decode: Decode[GrpcResponse] | None = None,
    ) -> Any:
        """Send one message and return its only response, or the status that replaces it.

        Metadata that gRPC cannot carry is omitted.  A message of several buffers, and any view, is
        copied once.
        """
        answer = await (
            self._send_without_deadline(wire, deadline)
            if self._withheld.is_enabled
            else self._send(wire, deadline)
        )
        return answer if decode is None else await accepted(answer, decode)

    async def _send(self, wire: GrpcRequest, deadline: float | None) -> GrpcResponse:
        channel = await self._enter(deadline)
        try:
            call = channel.unary(wire.method)(
                b"".join(wire.message),
                timeout=self._remaining_s(deadline),
                metadata=sendable(wire.metadata),
            )
            try:
                message = await call
                channel.heard()
                return GrpcResponse((message,), metadata=await _trailing(call))
            except aio.AioRpcError as error:
                return self._status(error, channel, deadline)
            except asyncio.CancelledError:
                self._pool.unanswered(channel)
                self._raise_if_closed()
                raise
        finally:
            self._leave(channel)

    async def _send_without_deadline(
        self, wire: GrpcRequest, deadline: float | None
    ) -> GrpcResponse:
        """Send one message; if its client leaves, the call ends by itself."""
        channel = await self._enter(deadline)
        call = channel.unary(wire.method)(b"".join(wire.message), metadata=sendable(wire.metadata))
        ending = asyncio.ensure_future(self._reply(call, channel))
        ending.add_done_callback(lambda _: self._leave(channel))
        try:
            async with asyncio.timeout(None if deadline is None else deadline - monotonic()):
                return await asyncio.shield(ending)
        except (TimeoutError, asyncio.CancelledError) as error:
            if not ending.done():
                self._pool.unanswered(channel)
                self._withhold(ending, call)
            elif not ending.cancelled():
                ending.exception()  # it came too late
            self._raise_if_closed()
            if isinstance(error, TimeoutError):
                raise errors.DeadlineExceeded(f"no response from {self._target} in time") from None
            raise

    async def _reply(self, call: Any, channel: PooledChannel) -> GrpcResponse:
        try:
            message = await call
            channel.heard()
            return GrpcResponse((message,), metadata=await _trailing(call))
        except aio.AioRpcError as error:
            return self._status(error, channel, None)

    def _withhold(self, ending: asyncio.Future[GrpcResponse], call: Any) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.call_later(self._withheld.longest_s, call.cancel)

        def end(ended: asyncio.Future[GrpcResponse]) -> None:
            limit.cancel()
            if not ended.cancelled():
                ended.exception()  # nobody waits for it
            self._withheld.end()

        self._withheld.begin()
        ending.add_done_callback(end)

    async def stream(
        self, wire: GrpcRequest, /, *, deadline: float | None
    ) -> AsyncIterator[GrpcResponse]:
        """Send one message and yield its responses; a status other than OK is the last."""
        channel = await self._enter(deadline)
        try:
            call = channel.stream(wire.method)(
                b"".join(wire.message),
                timeout=self._remaining_s(deadline),
                metadata=sendable(wire.metadata),
            )
            try:
                while (message := await call.read()) is not aio.EOF:
                    channel.heard()
                    yield GrpcResponse((message,))
            except aio.AioRpcError as error:
                yield self._status(error, channel, deadline)
            except asyncio.CancelledError:
                self._pool.unanswered(channel)
                self._raise_if_closed()
                raise
            finally:
                call.cancel()
        finally:
            self._leave(channel)

    async def close(self) -> None:
        """Close every connection and break off the calls on them; harmless the second time."""
        self._is_closed = True
        await self._pool.close()

    async def _enter(self, deadline: float | None) -> PooledChannel:
        """Acquire a slot and a channel for one call; `_leave` releases them."""
        if self._is_closed:
            raise errors.NotSent(f"the client of {self._target} is closed")
        self._remaining_s(deadline)
        if not self._slots.try_acquire():
            await self._slots.wait(None, deadline=deadline)
        try:
            return self._pool.acquire()
        except BaseException:
            self._slots.release()
            raise

    def _leave(self, channel: PooledChannel) -> None:
        self._pool.release(channel)
        self._slots.release()

    def _remaining_s(self, deadline: float | None) -> float | None:
        """Return the seconds left. Raises DeadlineExceeded when there are none."""
        if deadline is None:
            return None
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise self._too_late()
        return left_s

    def _too_late(self) -> errors.GatewayError:
        return errors.DeadlineExceeded(f"deadline exceeded before {self._target} was called")

    def _status(
        self, error: aio.AioRpcError, channel: PooledChannel, deadline: float | None
    ) -> GrpcResponse:
        """Return the server's status. Raises a failure of this side of the connection."""
        details = error.details() or ""
        late = deadline is not None and monotonic() >= deadline - _CLOCK_SLACK_S
        ending = Ending(error.code(), details, channel.is_connected, late)
        failure = local_failure(self._target, ending)
        if failure is None:
            channel.heard()
        else:
            if isinstance(failure, errors.DeadlineExceeded):
                self._pool.unanswered(channel)
            raise failure from error
        return GrpcResponse(
            status=STATUS_OF[error.code()],
            details=details,
            metadata=plain_metadata(error.trailing_metadata()),
        )

    def _raise_if_closed(self) -> None:
        """Raise Unavailable if the call was cancelled because its channel closed."""
        task = asyncio.current_task()
        if self._is_closed and (task is None or not task.cancelling()):
            raise errors.Unavailable(f"the client of {self._target} was closed during the call")


async def _trailing(call: Any) -> tuple[tuple[str, str | bytes], ...]:
    return plain_metadata(await call.trailing_metadata())
