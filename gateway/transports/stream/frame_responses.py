"""FrameResponses: handles the frames of one connection, and sends their responses."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic
from typing import Any

import structlog

from gateway.concurrency.limiter import CLIENT_MEMORY, WAITED_S
from gateway.ir.errors import (
    Cancelled,
    DeadlineExceeded,
    GatewayError,
    Overloaded,
    Unavailable,
)
from gateway.transports.client_shares import NO_CLIENT_SHARES
from gateway.transports.contract import is_probe
from gateway.transports.net.write_drain import SlowReaderError, drain_writes
from gateway.transports.read_ahead import ReadAhead
from gateway.transports.reservation import (
    RESPONSE_PATIENCE_S,
    RESPONSE_UNCOUNTED_BYTES,
    Reservation,
    no_memory,
)
from gateway.transports.stream.listener import StreamListenerState
from gateway.transports.stream.states import (
    GIVEN_UP,
    OPEN,
    TRANSITIONS,
    FramedConnectionEvent,
    FramedConnectionState,
)
from gateway.wire.http import Buffer, size_of
from gateway.wire.stream import Frame

log = structlog.get_logger(__name__)

_LINGER_S = 1.0


@dataclass(slots=True)
class PendingFrame:
    """A complete frame without a complete response.

    Attributes:
        is_late: It arrived after the connection stopped reading.
        is_answered: A response, or a part of one, was written.
        has_slot: It holds a slot: its response is not computed.
    """

    frame: Frame
    reservation: Reservation
    is_late: bool
    is_answered: bool = False
    has_slot: bool = False


def _shutting_down() -> Unavailable:
    return Unavailable("the gateway is shutting down")


class FrameResponses(asyncio.Protocol):
    """The output of a connection, with its arguments."""

    def __init__(self, listener: StreamListenerState, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop
        self._framer = listener.framer()
        self._transport: Any = None
        self._address: str | None = None
        self._client = NO_CLIENT_SHARES
        self._partial = self._new_lease()
        self._queue: deque[PendingFrame] = deque()
        self._running: dict[asyncio.Task[None], PendingFrame] = {}
        self._room: asyncio.Task[None] | None = None
        self._farewell: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._is_writable = asyncio.Event()
        self._is_writable.set()
        self._ended = asyncio.Event()  # the client sends nothing more
        self._closing_error: GatewayError | None = None
        self._is_reading = True
        self._state: FramedConnectionState = OPEN
        self._drain_timer: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """Frames taken and not yet answered."""
        return len(self._queue) + len(self._running)

    @property
    def transport(self) -> Any:
        """That of asyncio; None before and after."""
        return self._transport

    def _move(self, event: FramedConnectionEvent) -> None:
        self._state = TRANSITIONS.get((self._state, event), self._state)

    def pause_writing(self) -> None:
        """Note that the write buffer is full."""
        self._is_writable.clear()

    def _with_client(self, error: GatewayError) -> GatewayError:
        """Return *error*, after adding the client to it."""
        error.client = self._client.caller.client()
        return error

    def _new_lease(self) -> Reservation:
        listener = self._listener
        return Reservation(listener.budget, listener.limits.queue_wait_s, self._client.memory)

    async def _answer(self, pending: PendingFrame) -> None:
        CLIENT_MEMORY.set(self._client.memory)
        try:
            await self._ask_or_give_up(pending)
        except SlowReaderError as error:
            self._listener.on_reject(self._with_client(Cancelled(str(error), limit=error.limit)))
        except OSError:  # the client has left
            self.abort()

    async def _ask_or_give_up(self, pending: PendingFrame) -> None:
        try:
            if pending.is_late:
                await self._refuse(pending, _shutting_down())
            else:
                await self._admit_and_ask(pending)
        except asyncio.CancelledError:
            if self._state is not GIVEN_UP or pending.is_answered:
                raise  # a local variable with the task would be a reference cycle
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            await self._refuse(pending, _shutting_down())

    async def _admit_and_ask(self, pending: PendingFrame) -> None:
        slots, limits, client = self._listener.slots, self._listener.limits, self._client.slots
        try:
            frame, reservation, waited_s = pending.frame, pending.reservation, 0.0
            needed = size_of(frame.payload) + frame.extra_bytes
            more = needed + self._listener.budget.call_bytes - reservation.size_bytes
            # Memory comes first: who has a slot must not wait for those who wait for slots.
            has_memory = more <= 0 or reservation.try_grow(more) or reservation.try_grow_rest(more)
            if not has_memory or not slots.try_acquire(1, client):
                if is_probe(self._listener.frontend, frame, needed):
                    await self._ask(pending)
                    return
                if not has_memory:
                    await reservation.grow(more)
                began = monotonic()
                await slots.wait(limits.queue_wait_s, client, deadline=frame.deadline)
                waited_s = monotonic() - began
        except GatewayError as error:
            await self._refuse(pending, error)
            return
        pending.has_slot = True
        try:
            waited_s += reservation.waited_s
            if waited_s:
                WAITED_S.set(waited_s)
            found = await self._listener.frontend.handle(pending.frame)  # as `_ask`
            if isinstance(found, Frame):
                self._release_slot(pending)
                await self._write(found, pending)
            else:
                await self._relay(found, pending)
        except (DeadlineExceeded, Overloaded) as error:
            await self._refuse(pending, error)
        finally:
            self._release_slot(pending)

    def _release_slot(self, pending: PendingFrame) -> None:
        """Release the slot of a frame, whose response is computed."""
        if pending.has_slot:
            pending.has_slot = False
            self._listener.slots.release(1, self._client.slots)

    async def _ask(self, pending: PendingFrame) -> None:
        found = await self._listener.frontend.handle(pending.frame)
        if isinstance(found, Frame):
            await self._write(found, pending)
        else:
            await self._relay(found, pending)

    async def _relay(self, found: AsyncGenerator[Frame, None], pending: PendingFrame) -> None:
        """Write the frames of a stream, as far ahead of the client as allowed."""
        ahead = ReadAhead(
            self._new_lease(), self._is_blocked, self._drained, self._unwritten, self._give_way
        )
        async with ahead:
            async with aclosing(found) as answers:
                async for answer in answers:
                    await ahead.admit(size_of(answer.payload), answer.payload)
                    self._write_frame(answer, pending)
                    ahead.written()
            self._release_slot(pending)

    def _is_blocked(self) -> bool:
        return not self._is_writable.is_set()

    def _give_way(self, _error: GatewayError) -> None:
        self.abort()

    async def _refuse(self, pending: PendingFrame, error: GatewayError) -> None:
        await self._write(self._listener.frontend.reject(self._with_client(error)), pending)

    async def _write(self, answer: Frame, pending: PendingFrame) -> None:
        """Write a frame, with the number of its question, and wait until the kernel has it."""
        size = size_of(answer.payload)
        if size <= RESPONSE_UNCOUNTED_BYTES and not self._writing.locked():
            await self._write_now(answer, pending)
            return
        # Until the client has read it, the budget counts the response and not the request.
        pending.reservation.close()
        pending.frame = Frame((), pending.frame.correlation)
        held = self._new_lease()
        try:
            if held.try_grow_response(size):
                held.watch_progress(self._unwritten, self._give_way, RESPONSE_PATIENCE_S)
            else:
                answer = self._listener.frontend.reject(self._with_client(no_memory(size)))
            await self._write_now(answer, pending)
        finally:
            held.close()

    def _unwritten(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def _write_now(self, answer: Frame, pending: PendingFrame) -> None:
        async with self._writing:
            self._write_frame(answer, pending)
            await self._flush()

    def _write_frame(self, answer: Frame, pending: PendingFrame) -> None:
        """Write a frame, which may have to wait for the client."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the client has left")
        buffers = self._framed(Frame(answer.payload, pending.frame.correlation))
        pending.is_answered = True
        self._transport.writelines(buffers)

    async def _drained(self) -> None:
        """Wait until the client has read what all tasks have written."""
        async with self._writing:
            await self._flush()

    def _framed(self, frame: Frame) -> list[Buffer]:
        try:
            return self._framer.send(frame)
        except GatewayError as error:  # no frame can carry it
            refusal = self._listener.frontend.reject(self._with_client(error))
            return self._framer.send(Frame(refusal.payload, frame.correlation))

    async def _flush(self) -> None:
        if not self._is_writable.is_set():
            await drain_writes(self._transport, self._is_writable, self._listener.limits)

    def abort(self) -> None:
        """Close at once, without the rest of the output."""
        if self._transport is not None:
            self._transport.abort()

    async def _send_last_frame(self, error: GatewayError | None) -> None:
        """Send the last frame, and read for a moment so that no reset destroys it."""
        try:
            if error is not None:
                refusal = self._listener.frontend.reject(self._with_client(error))
                self._transport.writelines(self._framer.send(refusal))
                await self._flush()
            if not self._ended.is_set() and self._transport.can_write_eof():
                self._transport.write_eof()
                async with asyncio.timeout(_LINGER_S):
                    await self._ended.wait()
        except (OSError, TimeoutError):  # the client does not read it
            self.abort()
        if self._transport is not None:
            self._transport.close()
