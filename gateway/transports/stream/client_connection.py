"""One connection to an upstream on a framed byte stream: questions out, answers matched to them.

Bytes that nobody asked for, or that cannot be followed, end the connection: what it would say next
could be taken for the answer to another question.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.ir.errors import (
    GatewayError,
    MalformedMessage,
    TooLarge,
    Unavailable,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.transports.admission import Reservation
from gateway.transports.net.sockets import peer_refused, reset_when_closed, tune
from gateway.wire.stream import Frame, Framer

_NUMBERS = 1 << 31


class FramedClientConnection(asyncio.Protocol):
    """A connection of a pool.

    Attributes:
        users: Questions on it now; counted by the pool.
        asked: A question has been put to it.
        spoilt: It must not be used again.
        never_received: The upstream had closed it before it could read the question asked last.

    Args:
        name: Of the upstream, for errors.
        framer: Of this connection.
        ordered: Whether answers come in the order of the questions.
        loop: Its clock.
        open_ones: It is in there while it is open.
        held: Holds the bytes of an answer that is coming.
    """

    def __init__(
        self,
        name: str,
        framer: Framer,
        *,
        ordered: bool,
        loop: asyncio.AbstractEventLoop,
        open_ones: set[FramedClientConnection],
        held: Reservation,
    ) -> None:
        self._name = name
        self._framer = framer
        self._ordered = ordered
        self._loop = loop
        self._open_ones = open_ones
        self._held = held
        self._growing: asyncio.Task[None] | None = None
        self._transport: Any = None
        self._waiting: dict[int | None, asyncio.Future[Frame]] = {}
        self._abandoned: set[int | None] = set()
        self._number = 0
        self._silent = True  # no byte has come since the last question
        self._refused = False
        self.born = self.idle_since = loop.time()
        self.users = 0
        self.asked = False
        self.spoilt = False

    @property
    def never_received(self) -> bool:
        """Whether the question asked last met a connection that the upstream had closed."""
        return self._refused and self._silent

    async def exchange(self, frame: Frame) -> Frame:
        """Send *frame* and return its answer.

        Given up before the answer is whole, the connection is not used again; with nobody else
        on it, it is closed.

        Raises:
            Unavailable: The connection broke.
            UpstreamProtocolError: The answer's framing is broken, or nobody asked for it.
            TooLarge: The answer is over the limit.
            Unsupported: No frame can carry the question.
        """
        if self._transport is None or self._transport.is_closing():
            self._refused = self._silent = True
            raise self._lost("it was closed")
        number = self._next_number()
        try:
            buffers = self._framer.send(Frame(frame.payload, number, frame.deadline))
        except TooLarge as error:  # what is over a limit here is not the answer
            raise Unsupported(error.message, limit=error.limit) from error
        answer: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[number] = answer
        self._silent = self.asked = True
        self._transport.writelines(buffers)
        try:
            return await answer
        finally:
            self.idle_since = self._loop.time()
            if self._waiting.pop(number, None) is not None:  # given up
                self.spoilt = True
                self._abandoned.add(number)
                if not self._waiting and self._transport is not None:
                    # A mere end would leave the upstream to guess whether its answer is still read.
                    reset_when_closed(self._transport.get_extra_info("socket"))
                    self.abort()

    def abort(self) -> None:
        """Close at once; what is unsent stays so."""
        self.spoilt = True
        if self._transport is not None:
            self._transport.abort()

    def _next_number(self) -> int | None:
        if self._ordered:
            return None
        self._number = (self._number + 1) % _NUMBERS
        return self._number

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket's options."""
        self._transport = transport
        self._open_ones.add(self)
        tune(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Hand answers to those who wait for them."""
        self._silent = False
        try:
            frames = self._framer.receive(data)
            fault = self._framer.fault
        except GatewayError as error:
            frames, fault = [], error
        for frame in frames:
            if not self._hand_over(frame):
                fault = fault or MalformedMessage("an answer that nobody asked for")
                break
        if fault is not None:
            self._fail(self._broken(fault))
            self.abort()
        elif self._framer.wanted and not self._waiting:
            self.abort()
        else:
            self._hold()

    def _hold(self) -> None:
        """Hold what has come of an answer, and a step more; read no further until that is had."""
        wanted, held = self._framer.wanted, self._held
        if not wanted:
            held.close()
            return
        more = held.step(self._framer.held, wanted)
        if more > 0 and not held.try_grow(more) and self._growing is None:
            self._transport.pause_reading()
            self._growing = self._loop.create_task(self._grow(more))

    async def _grow(self, size: int) -> None:
        try:
            await self._held.grow(size)
        except GatewayError as error:
            self._fail(error)
            self.abort()
        finally:
            self._growing = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> None:
        """Learn, while the socket is still open, how the upstream closed it."""
        # A peer that closed an idle connection resets it when the question arrives; one that took
        # the question and then failed merely ends it.
        self._refused = peer_refused(self._transport.get_extra_info("socket"))
        self.spoilt = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whatever waits."""
        self._refused |= isinstance(exc, ConnectionResetError | BrokenPipeError)
        self.spoilt = True
        self._transport = None
        self._open_ones.discard(self)
        if self._growing is not None:
            self._growing.cancel()
        self._held.close()
        self._fail(self._lost("it ended without an answer" if exc is None else str(exc)))

    # -- answers

    def _hand_over(self, frame: Frame) -> bool:
        number = None if self._ordered else frame.correlation
        answer = self._waiting.pop(number, None)
        if answer is None:
            known = number in self._abandoned
            self._abandoned.discard(number)
            return known
        if not answer.done():
            answer.set_result(frame)
        return True

    def _fail(self, error: GatewayError) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def _broken(self, fault: GatewayError) -> GatewayError:
        if isinstance(fault, TooLarge):
            message = f"the answer of upstream {self._name}: {fault.message}"
            return TooLarge(message, limit=fault.limit)
        return UpstreamProtocolError(f"upstream {self._name} broke its framing: {fault.message}")

    def _lost(self, reason: str) -> Unavailable:
        return Unavailable(f"upstream {self._name} broke the connection: {reason[:200]}")
