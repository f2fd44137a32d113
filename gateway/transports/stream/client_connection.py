"""One connection to an upstream that exchanges frames: sends requests, and matches the responses.

An unexpected or malformed response ends the connection: a later response could be matched to the
wrong request.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.ir import errors
from gateway.transports.net.sockets import peer_left, reset_when_closed, tune, unread_input
from gateway.transports.reservation import Reservation
from gateway.wire.stream import Frame, Framer

_NUMBERS = 1 << 31


class FramedClientConnection(asyncio.Protocol):
    """A connection of a pool.

    Attributes:
        created_at: When the connection was made, on the clock of the loop.
        idle_since: When its last exchange ended.
        exchanges: How many exchanges are in progress, counted by the pool.
        is_used: A request was sent on it.
        is_unusable: No further request may be sent on it.

    Args:
        name: The name of the upstream, for errors.
        framer: The framer of this connection.
        ordered: Whether responses arrive in the order of the requests.
        loop: The event loop.
        open_connections: Contains the connection while it is open.
        held: The memory reservation for an incomplete response.
    """

    def __init__(
        self,
        name: str,
        framer: Framer,
        *,
        ordered: bool,
        loop: asyncio.AbstractEventLoop,
        open_connections: set[FramedClientConnection],
        held: Reservation,
    ) -> None:
        self._name = name
        self._framer = framer
        self._is_ordered = ordered
        self._loop = loop
        self._open_connections = open_connections
        self._reservation = held
        self._growing: asyncio.Task[None] | None = None
        self._transport: Any = None
        self._waiting: dict[int | None, asyncio.Future[Frame]] = {}
        self._abandoned: set[int | None] = set()
        self._number = 0
        self.created_at = self.idle_since = loop.time()
        self.exchanges = 0
        self.is_used = False
        self.is_unusable = False

    async def exchange(self, frame: Frame) -> Frame:
        """Send *frame* and return its response.

        If the caller is cancelled before the response is complete, the connection is not used
        again.  It is closed when it carries no other exchange.

        Raises:
            NotSent: The connection was closed already, so that nothing was sent.
            Unavailable: The connection broke.
            UpstreamProtocolError: The response is malformed, or matches no request.
            TooLarge: The response exceeds the limit.
            Unsupported: The request is too large for a frame.
        """
        if self._transport is None or self._transport.is_closing():
            raise errors.NotSent(f"upstream {self._name} closed the connection")
        number = self._next_number()
        try:
            buffers = self._framer.send(Frame(frame.payload, number, frame.deadline))
        except errors.TooLarge as error:  # of the caller, TooLarge would mean the response
            raise errors.Unsupported(error.message, limit=error.limit) from error
        response: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[number] = response
        self.is_used = True
        self._transport.writelines(buffers)
        try:
            if self._transport.is_closing():  # the write failed at once
                raise errors.NotSent(f"upstream {self._name} closed the connection")
            return await response
        finally:
            self.idle_since = self._loop.time()
            if self._waiting.pop(number, None) is not None:  # cancelled
                self.is_unusable = True
                self._abandoned.add(number)
                if not self._waiting and self._transport is not None:
                    # A reset tells the upstream that nobody reads its response.
                    reset_when_closed(self._transport.get_extra_info("socket"))
                    self.abort()

    def has_ended(self) -> bool:
        """Return whether the peer has closed it, even if the loop has not read that yet."""
        return self._transport is None or peer_left(self._transport.get_extra_info("socket"))

    def abort(self) -> None:
        """Close at once, without sending the data that is still buffered."""
        self.is_unusable = True
        if self._transport is not None:
            self._transport.abort()

    def _next_number(self) -> int | None:
        if self._is_ordered:
            return None
        self._number = (self._number + 1) % _NUMBERS
        return self._number

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the options of the socket."""
        self._transport = transport
        self._open_connections.add(self)
        tune(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Pass each complete response to its caller."""
        try:
            frames = self._framer.receive(data)
            fault = self._framer.fault
        except errors.GatewayError as error:
            frames, fault = [], error
        for frame in frames:
            if not self._resolve(frame):
                fault = fault or errors.MalformedMessage("a response that matches no request")
                break
        if fault is not None:
            self._fail(self._framing_error(fault))
            self.abort()
        elif self._framer.wanted and not self._waiting:
            self.abort()
        else:
            self._reserve()

    def _reserve(self) -> None:
        """Reserve memory for an incomplete response; stop reading until it is available."""
        wanted, held = self._framer.wanted, self._reservation
        if not wanted:
            held.close()
            return
        more = held.step(self._framer.held, wanted)
        if more > 0 and not held.try_grow(more) and self._growing is None:
            self._transport.pause_reading()
            self._growing = self._loop.create_task(self._grow(more))

    async def _grow(self, size: int) -> None:
        try:
            await self._reservation.grow(size)
        except errors.GatewayError as error:
            self._fail(error)
            self.abort()
        finally:
            self._growing = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> None:
        """Send no further request."""
        self.is_unusable = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every exchange whose response has not arrived."""
        self.is_unusable = True
        for data in unread_input(self._transport, exc):
            if self._growing is None:  # else its beginning waits for memory
                self.data_received(data)
        self._transport = None
        self._open_connections.discard(self)
        if self._growing is not None:
            self._growing.cancel()
        self._reservation.close()
        self._fail(self._lost("it ended without a response" if exc is None else str(exc)))

    # -- responses

    def _resolve(self, frame: Frame) -> bool:
        """Pass a response to its caller; return whether there is or was one."""
        number = None if self._is_ordered else frame.correlation
        response = self._waiting.pop(number, None)
        if response is None:
            was_abandoned = number in self._abandoned
            self._abandoned.discard(number)
            return was_abandoned
        if not response.done():
            response.set_result(frame)
        return True

    def _fail(self, error: errors.GatewayError) -> None:
        waiting, self._waiting = self._waiting, {}
        for response in waiting.values():
            if not response.done():
                response.set_exception(error)

    def _framing_error(self, fault: errors.GatewayError) -> errors.GatewayError:
        if isinstance(fault, errors.TooLarge):
            message = f"the response of upstream {self._name}: {fault.message}"
            return errors.TooLarge(message, limit=fault.limit)
        return errors.UpstreamProtocolError(
            f"upstream {self._name} broke its framing: {fault.message}"
        )

    def _lost(self, reason: str) -> errors.Unavailable:
        return errors.Unavailable(f"upstream {self._name} broke the connection: {reason[:200]}")
