"""One connection of a framed byte stream, on the server's side.

Frames are cut as they arrive and answered in tasks of their own: one at a time where the protocol
answers in order, as they come where it numbers its frames. What is read ahead is bounded, by frames
and by bytes: over that, nothing is read. How long a client may take is in `stream_pace`, how its
leaving is noticed in `stream_presence`, listening in `stream_server`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import structlog

from gateway.ir.errors import Cancelled, GatewayError, InvalidRequest, Overloaded, Unavailable
from gateway.transports.admission import (
    CLIENT_MEMORY,
    NOBODY,
    RESPONSE_PATIENCE_S,
    RESPONSE_UNCOUNTED_BYTES,
    Reservation,
    client_shares,
    no_memory,
)
from gateway.transports.contract import is_probe
from gateway.transports.net.sockets import pause_until_taken
from gateway.transports.net.write_drain import SlowReaderError, drain_writes
from gateway.transports.stream.listener import StreamListenerState
from gateway.transports.stream.liveness import LivenessMonitor
from gateway.transports.stream.pacing import FrameTimeouts
from gateway.wire.http import Buffer, size_of
from gateway.wire.stream import Frame

log = structlog.get_logger(__name__)

_LINGER_S = 1.0


@dataclass(slots=True)
class _PendingFrame:
    """A whole frame on its way to its answer.

    Attributes:
        late: It came when no more were wanted.
        answered: An answer, or part of one, was written.
    """

    frame: Frame
    lease: Reservation
    late: bool
    answered: bool = False


class StreamConnection(asyncio.Protocol):
    """A connection of *listener*."""

    def __init__(self, listener: StreamListenerState, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop
        self._framer = listener.framer()
        self._pace = FrameTimeouts(listener.limits, loop, self._too_slow)
        self._presence = LivenessMonitor(loop, self._unseen, self._probe)
        self._transport: Any = None
        self._address: str | None = None
        self._client = NOBODY
        self._partial = self._new_lease()
        self._queue: deque[_PendingFrame] = deque()
        self._running: dict[asyncio.Task[None], _PendingFrame] = {}
        self._room: asyncio.Task[None] | None = None
        self._farewell: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._taken = asyncio.Event()
        self._taken.set()
        self._ended = asyncio.Event()  # nothing more comes from the client
        self._last_word: GatewayError | None = None
        self._reading = True
        self._closing = False  # nothing more is taken; what is due is answered
        self._draining = False
        self._given_up = False

    @property
    def in_flight(self) -> int:
        """Frames taken and not yet answered."""
        return len(self._queue) + len(self._running)

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or close it at once when there are too many."""
        self._transport = transport
        self._address = self._listener.enter(self, transport)
        if self._address is None:
            return
        self._client = client_shares(self._address, self._listener.slots, self._listener.budget)
        self._partial = self._new_lease()
        pause_until_taken(transport)
        self._pace.opened()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Forget the connection and cancel what still answers."""
        self._transport = None
        self._closing = True
        self._ended.set()
        self._pace.close()
        for task in (*self._running, self._room, self._farewell):
            if task is not None:
                task.cancel()
        for asked in self._queue:
            asked.lease.close()
        self._queue.clear()
        self._partial.close()
        if self._address is not None:
            self._listener.count.leave(self._address)
            self._address = None
        self._forget_if_over()

    def pause_writing(self) -> None:
        """Note that the kernel has not taken all that was written."""
        self._taken.clear()

    def resume_writing(self) -> None:
        """Note that it has."""
        self._taken.set()
        self._go_on()

    def data_received(self, data: bytes) -> None:
        """Cut frames, and take them."""
        if self._closing:
            return
        try:
            frames = self._framer.receive(data)
            fault = self._framer.fault
        except GatewayError as error:
            frames, fault = [], error
        # In order, what was begun is finished and the rest left unread; otherwise one client could
        # keep a connection busy for good.
        late = self._draining and self._listener.width > 1
        for frame in frames:
            self._partial.settle()
            self._queue.append(_PendingFrame(frame, self._partial, late))
            self._partial = self._new_lease()
        self._pace.received(len(data), partial=self._framer.wanted > 0, frames=len(frames))
        if fault is not None:
            self._end_reading(fault)
        else:
            self._hold()
        self._go_on()

    def eof_received(self) -> bool:
        """Answer what came whole to a client that only stopped sending."""
        self._ended.set()
        if self._transport.get_extra_info("sslcontext") is not None:
            return False  # TLS has no half-closed connections
        fault: GatewayError | None = None
        try:
            self._framer.receive(b"")
        except GatewayError as error:
            fault = error
        self._end_reading(fault)
        self._go_on()
        return True

    # -- taking frames

    def _new_lease(self) -> Reservation:
        listener = self._listener
        return Reservation(listener.budget, listener.limits.queue_wait_s, self._client.memory)

    def _hold(self) -> None:
        """Reserve what has come of the frame that has begun, and one step ahead."""
        wanted, held = self._framer.wanted, self._partial
        if not wanted or self._room is not None:
            return
        if not held.size_bytes:
            held.move_with(self._position, self._gives_way)
        more = held.step(self._framer.held, wanted)
        if more > 0 and not held.try_grow(more):
            self._room = self._loop.create_task(self._wait_for_room(more))

    def _position(self) -> int:
        return self._framer.held

    def _gives_way(self, error: GatewayError) -> None:
        self._end_reading(error)
        self._go_on()

    async def _wait_for_room(self, size: int) -> None:
        error: GatewayError | None = None
        try:
            await self._partial.grow(size)
        except GatewayError as overloaded:
            error = overloaded
        self._room = None
        if error is not None:
            self._end_reading(error)
        self._go_on()

    def _end_reading(self, error: GatewayError | None) -> None:
        """Take nothing more; once what is due is answered, say *error* and close."""
        if self._closing:
            return
        self._closing = True
        self._last_word = error
        if self._room is not None:
            self._room.cancel()
            self._room = None
        self._partial.close()

    def _too_slow(self, limit: str) -> None:
        """End a connection that has been idle for long, or whose frame comes too slowly."""
        if self._framer.wanted:
            self._end_reading(
                InvalidRequest(
                    f"a frame came too slowly: {self._pace.received_bytes} of "
                    f"{self._framer.wanted} bytes in {self._pace.elapsed_s:.1f} s",
                    limit=limit,
                )
            )
            self._go_on()
            return
        if limit == "header_timeout_s":
            self._listener.refused(InvalidRequest("a connection asked nothing", limit=limit))
        self._transport.close()

    # -- going on after whatever has happened

    def _go_on(self) -> None:
        """Answer what can be answered now, read or not, and close when nothing is left."""
        # A client that does not take its answers is not given more.
        while self._queue and len(self._running) < self._listener.width and self._taken.is_set():
            asked = self._queue.popleft()
            task = self._loop.create_task(self._answer(asked))
            self._running[task] = asked
            task.add_done_callback(self._answered)
        if self._transport is None:
            self._forget_if_over()
            return
        self._read_or_not()
        self._presence.watch(self._transport, ended=self._ended.is_set())
        self._pace.go_on(busy=self.in_flight > 0, reading=self._reading and not self._closing)
        if self.in_flight:
            return
        if self._draining and not self._framer.wanted:
            self._closing = True
        if self._closing and self._farewell is None:
            self._say_farewell()

    def _answered(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("internal error", exc_info=error)
            self.abort()
        self._go_on()

    def _read_or_not(self) -> None:
        """Read while there is room; what cannot be used is left to the kernel, and so refused."""
        full = self.in_flight >= self._listener.ahead or self._room is not None
        unwanted = self._draining and not self._framer.wanted and self._listener.width == 1
        reading = self._closing or not (full or unwanted)
        if reading == self._reading or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _forget_if_over(self) -> None:
        if self._transport is None and not self._running:
            self._listener.forget(self)

    # -- answering

    async def _answer(self, asked: _PendingFrame) -> None:
        CLIENT_MEMORY.set(self._client.memory)
        try:
            await self._ask_or_give_up(asked)
        except SlowReaderError as error:
            self._listener.refused(Cancelled(str(error), limit=error.limit))
        except OSError:  # the client has left: there is nobody to tell
            self.abort()
        finally:
            asked.lease.close()

    async def _ask_or_give_up(self, asked: _PendingFrame) -> None:
        try:
            if asked.late:
                await self._refuse(asked, _shutting_down())
            else:
                await self._admit_and_ask(asked)
        except asyncio.CancelledError:
            if not self._given_up or asked.answered or self._transport is None:
                raise  # a task among the names here would keep the frame till the next collection
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            await self._refuse(asked, _shutting_down())

    async def _admit_and_ask(self, asked: _PendingFrame) -> None:
        slots, limits, client = self._listener.slots, self._listener.limits, self._client.slots
        try:
            needed = size_of(asked.frame.payload) + asked.frame.extra_bytes
            if not slots.try_acquire(1, client):
                if is_probe(self._listener.frontend, asked.frame, needed):
                    await self._ask(asked)
                    return
                await slots.wait(limits.queue_wait_s, client)
        except GatewayError as error:
            await self._refuse(asked, error)
            return
        has_slot = True
        try:
            more = needed - asked.lease.size_bytes
            if more > 0:  # it came whole, in one read, or holds more than came
                await asked.lease.grow(more)
            found = await self._listener.frontend.handle(asked.frame)
            if isinstance(found, Frame):
                has_slot = False
                slots.release(1, client)
                await self._write(found, asked)
                return
            await self._relay(found, asked)
        except Overloaded as error:
            await self._refuse(asked, error)
        finally:
            if has_slot:
                slots.release(1, client)

    async def _relay(self, found: AsyncGenerator[Frame, None], asked: _PendingFrame) -> None:
        async with aclosing(found) as answers:
            async for answer in answers:
                await self._write(answer, asked)

    async def _ask(self, asked: _PendingFrame) -> None:
        found = await self._listener.frontend.handle(asked.frame)
        if isinstance(found, Frame):
            await self._write(found, asked)
        else:
            await self._relay(found, asked)

    async def _refuse(self, asked: _PendingFrame, error: GatewayError) -> None:
        await self._write(self._listener.frontend.reject(error), asked)

    async def _write(self, answer: Frame, asked: _PendingFrame) -> None:
        """Write a frame, with the number of its question, and wait until the kernel has it."""
        size = size_of(answer.payload)
        if size <= RESPONSE_UNCOUNTED_BYTES and not self._writing.locked():
            await self._write_now(answer, asked)
            return
        # Until the client has taken it, it counts in memory, and its request no more.
        asked.lease.close()
        asked.frame = Frame((), asked.frame.correlation)
        held = self._new_lease()
        try:
            if held.try_grow_response(size):
                held.move_with(self._unwritten, lambda _error: self.abort(), RESPONSE_PATIENCE_S)
            else:
                answer = self._listener.frontend.reject(no_memory(size))
            await self._write_now(answer, asked)
        finally:
            held.close()

    def _unwritten(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def _write_now(self, answer: Frame, asked: _PendingFrame) -> None:
        async with self._writing:
            if self._transport is None or self._transport.is_closing():
                raise ConnectionResetError("the client has left")
            buffers = self._framed(Frame(answer.payload, asked.frame.correlation))
            asked.answered = True
            self._transport.writelines(buffers)
            await self._flush()

    def _framed(self, frame: Frame) -> list[Buffer]:
        try:
            return self._framer.send(frame)
        except GatewayError as error:  # no frame can carry it
            refusal = self._listener.frontend.reject(error)
            return self._framer.send(Frame(refusal.payload, frame.correlation))

    async def _flush(self) -> None:
        if not self._taken.is_set():
            await drain_writes(self._transport, self._taken, self._listener.limits)

    # -- ending

    def drain(self) -> None:
        """Close when idle, else after the last answer that is due."""
        self._draining = True
        self._go_on()

    def fail_in_flight(self) -> None:
        """Answer what is in flight with an error, and close."""
        self._end_reading(None)
        self._given_up = True
        for task in list(self._running):
            task.cancel()
        self._go_on()

    def abort(self) -> None:
        """Close at once, without the end of what was being written."""
        if self._transport is not None:
            self._transport.abort()

    def _say_farewell(self) -> None:
        if self._last_word is None and (self._ended.is_set() or self._listener.width == 1):
            # What the client may have sent meanwhile is unread, so it learns that by a reset.
            self._transport.close()
            return
        self._farewell = self._loop.create_task(self._bid_farewell(self._last_word))

    async def _bid_farewell(self, error: GatewayError | None) -> None:
        """Say the last word, and read on for a moment so that no reset destroys it."""
        try:
            if error is not None:
                refusal = self._listener.frontend.reject(error)
                self._transport.writelines(self._framer.send(refusal))
                await self._flush()
            if not self._ended.is_set() and self._transport.can_write_eof():
                self._transport.write_eof()
                async with asyncio.timeout(_LINGER_S):
                    await self._ended.wait()
        except (OSError, TimeoutError):  # it does not take or heed it
            self.abort()
        if self._transport is not None:
            self._transport.close()

    def _unseen(self) -> bool:
        """Whether the client could leave unnoticed: it is owed an answer and not read from."""
        blind = self._ended.is_set() or not self._reading
        return self._transport is not None and self.in_flight > 0 and blind

    def _probe(self) -> None:
        if self._taken.is_set():  # else what is being written tells as much
            self._transport.write(self._framer.begin())


def _shutting_down() -> Unavailable:
    return Unavailable("the gateway is shutting down")
