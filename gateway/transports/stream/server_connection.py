"""One server connection of a framed byte stream.

Frames are split as they arrive and handled in tasks: one at a time if the protocol responds in
order, several if it numbers its frames.  The number and the bytes of frames that are read ahead are
limited.  `incomplete_frame` reserves memory for a frame as it arrives, `frame_writer` writes the
responses, `pacing` limits the time of a client, `liveness` notices that it has left, and `server`
listens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Any

import structlog

from gateway.concurrency.limiter import CLIENT_MEMORY, WAITED_S
from gateway.ir.errors import (
    Cancelled,
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    Overloaded,
    Unauthenticated,
    Unavailable,
)
from gateway.transports.authentication import peer_of
from gateway.transports.callers import IdentifiedCaller
from gateway.transports.client_shares import NO_CLIENT_SHARES, client_shares
from gateway.transports.contract import is_probe
from gateway.transports.net.sockets import has_unread, pause_until_drained
from gateway.transports.net.write_drain import SlowReaderError
from gateway.transports.reservation import Reservation
from gateway.transports.stream.frame_writer import FrameWriter
from gateway.transports.stream.identification import FrameIdentification
from gateway.transports.stream.incomplete_frame import IncompleteFrame
from gateway.transports.stream.listener import StreamListenerState
from gateway.transports.stream.liveness import LivenessMonitor
from gateway.transports.stream.pacing import FrameTimeouts
from gateway.transports.stream.states import (
    DRAINING,
    GIVEN_UP,
    LEAVING,
    OPEN,
    TRANSITIONS,
    FramedConnectionEvent,
    FramedConnectionState,
)
from gateway.wire.http import size_of
from gateway.wire.stream import Frame

log = structlog.get_logger(__name__)

_LINGER_S = 1.0

_UNREAD_S = 0.02
"""How long a connection that drains has to read what the kernel has received."""


class StreamConnection(asyncio.Protocol):
    """A connection of a listener.

    Args:
        listener: The state of the listener.
        loop: The event loop.

    Attributes:
        listener: The state of the listener.
        client: The shares of the client.
        identification: Names the clients of frames; None where nobody asks for them.
        writer: Writes the responses.
        state: What the connection does with further frames.
    """

    def __init__(self, listener: StreamListenerState, loop: asyncio.AbstractEventLoop) -> None:
        self.listener = listener
        self._loop = loop
        self._framer = listener.framer()
        self._transport: Any = None
        self._address: str | None = None
        self.client = NO_CLIENT_SHARES
        self.identification: FrameIdentification | None = None
        self._incomplete = IncompleteFrame(self, listener, self._framer)
        self.writer = FrameWriter(listener, self._framer)
        self._queue: deque[FrameExchange] = deque()
        self._running: dict[asyncio.Task[None], FrameExchange] = {}
        self._farewell: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()  # the client sends nothing more
        self._closing_error: GatewayError | None = None
        self._is_reading = True
        self.state: FramedConnectionState = OPEN
        self._drain_timer: asyncio.TimerHandle | None = None
        self._pace = FrameTimeouts(listener.limits, loop, self._too_slow)
        self._liveness_monitor = LivenessMonitor(loop, self._is_unseen, self.writer.probe)

    @property
    def in_flight(self) -> int:
        """Frames taken and not yet answered."""
        return len(self._queue) + len(self._running)

    @property
    def transport(self) -> Any:
        """That of asyncio; None before and after."""
        return self._transport

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it at once above a limit."""
        self._transport = transport
        self._address = self.listener.enter(self, transport)
        if self._address is None:
            return
        listener = self.listener
        peer = None if listener.authentication is None else peer_of(transport)
        self.client = client_shares(self._address, listener.slots, listener.budget, peer)
        if isinstance(self.client.caller, IdentifiedCaller):
            self.identification = FrameIdentification(listener, self.client.caller)
        self._incomplete.start(self.client, self.identification)
        self.writer.start(transport, self.client)
        pause_until_drained(transport)
        self._pace.opened()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Cancel the tasks of the connection."""
        self._transport = None
        self._move(FramedConnectionEvent.LOSE)
        self._ended.set()
        self._pace.close()
        self._liveness_monitor.close()
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        for task in (*self._running, self._farewell):
            if task is not None:
                task.cancel()
        self._farewell = None
        for pending in self._queue:
            pending.reservation.close()
        self._queue.clear()
        self._incomplete.close()
        self.writer.close()
        if self._address is not None:
            self.listener.count.leave(self._address)
            self._address = None
        self._forget_if_over()

    def pause_writing(self) -> None:
        """Note that the write buffer is full."""
        self.writer.pause()

    def resume_writing(self) -> None:
        """Note that the write buffer is empty, and continue."""
        self.writer.resume()
        self.advance()

    def data_received(self, data: bytes) -> None:
        """Split *data* into frames, and start to handle them."""
        if self.state is not OPEN and self.state is not DRAINING:
            return
        try:
            frames = self._framer.receive(data)
            fault = self._framer.fault
        except GatewayError as error:
            frames, fault = [], error
        # While draining an ordered connection, started frames are finished and the rest is not
        # read.  Otherwise one client could keep it open for ever.
        late = self.state is DRAINING and self.listener.width > 1
        for frame in frames:
            lease = self._incomplete.complete()
            client = self.client.caller.client()
            sent = Frame(
                frame.payload, frame.correlation, frame.deadline, frame.extra_bytes, client
            )
            self.enqueue(sent, lease, is_late=late)
        self._pace.received(len(data), partial=self._framer.wanted > 0, frames=len(frames))
        if fault is not None:
            self.end_reading(fault)
        else:
            self._incomplete.hold()
        self.advance()

    def eof_received(self) -> bool:
        """Finish the complete frames of a client that has closed its half."""
        self._ended.set()
        if self._transport.get_extra_info("sslcontext") is not None:
            return False  # TLS has no half-closed connections
        fault: GatewayError | None = None
        try:
            self._framer.receive(b"")
        except GatewayError as error:
            fault = error
        self.end_reading(fault)
        self.advance()
        return True

    # -- the end of reading

    def end_reading(self, error: GatewayError | None) -> None:
        """Read nothing more; after the pending responses, send *error* and close."""
        if not self._reads_frames:
            return
        self._move(FramedConnectionEvent.STOP_READING)
        self._closing_error = error
        self._incomplete.drop()

    def _too_slow(self, limit: str) -> None:
        """Close a connection that is idle too long, or whose frame arrives too slowly."""
        if self._framer.wanted:
            self.end_reading(
                InvalidRequest(
                    f"a frame came too slowly: {self._pace.received_bytes} of "
                    f"{self._framer.wanted} bytes in {self._pace.elapsed_s:.1f} s",
                    limit=limit,
                )
            )
            self.advance()
            return
        if limit == "header_timeout_s":
            error = InvalidRequest("a connection sent no request", limit=limit)
            self.report(error)
        self._transport.close()

    def report(self, error: GatewayError) -> None:
        """Report an error of the client that reaches no frontend."""
        error.client = self.client.caller.client()
        self.listener.on_reject(error)

    def enqueue(self, frame: Frame, reservation: Reservation, *, is_late: bool = False) -> None:
        """Handle a frame when it is its turn; a late one is refused."""
        self._queue.append(FrameExchange(self, frame, reservation, is_late=is_late))

    # -- progress after each event

    def _move(self, event: FramedConnectionEvent) -> None:
        self.state = TRANSITIONS.get((self.state, event), self.state)

    @property
    def _reads_frames(self) -> bool:
        return self.state is OPEN or self.state is DRAINING

    def advance(self) -> None:
        """Start the frames that can be handled, update reading, and close at the end."""
        # A client that does not read its responses gets no further ones.
        while (
            self._queue
            and len(self._running) < self.listener.width
            and not self.writer.is_blocked()
        ):
            pending = self._queue.popleft()
            task = self._loop.create_task(pending.run())
            self._running[task] = pending
            task.add_done_callback(self._answered)
        if self._transport is None:
            self._forget_if_over()
            return
        self._update_reading()
        self._liveness_monitor.watch(self._transport, ended=self._ended.is_set())
        is_reading = self._is_reading and self._reads_frames
        self._pace.update(busy=self.in_flight > 0, reading=is_reading)
        if self.in_flight:
            return
        state = self.state
        is_last = state is not OPEN and state is not LEAVING
        if is_last and not (state is DRAINING and self._framer.wanted):
            self._move(FramedConnectionEvent.FINISH)
            self._send_closing_frame()

    def _answered(self, task: asyncio.Task[None]) -> None:
        # Not in the task: a task that is cancelled before its first step runs no `finally`.
        self._running.pop(task).reservation.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("internal error", exc_info=error)
            self.abort()
        self.advance()

    def _update_reading(self) -> None:
        """Read while there is room; the kernel keeps the rest."""
        full = self.in_flight >= self.listener.ahead or self._incomplete.is_waiting
        is_last = self.state is DRAINING and not self._framer.wanted
        unwanted = is_last and self.listener.width == 1
        reading = not (full or unwanted) or not self._reads_frames
        if reading == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _forget_if_over(self) -> None:
        if self._transport is None and not self._running:
            self.listener.forget(self)

    # -- ending

    def drain(self) -> None:
        """Close when idle, or after the last pending response.

        A frame that the kernel has received is pending, too: closing would reset it.
        """
        is_idle = self._transport is not None and not self.in_flight
        if (
            is_idle
            and self._drain_timer is None
            and has_unread(self._transport.get_extra_info("socket"))
        ):
            self._drain_timer = self._loop.call_later(_UNREAD_S, self.drain)
            return
        if self.state is OPEN:
            self._move(FramedConnectionEvent.DRAIN)
        self.advance()

    def fail_in_flight(self) -> None:
        """End the requests in progress with an error, and close."""
        self._move(FramedConnectionEvent.GIVE_UP)
        if self.state is GIVEN_UP:
            self._incomplete.drop()
        for task in list(self._running):
            task.cancel()
        self.advance()

    def abort(self) -> None:
        """Close at once, without the rest of the output."""
        if self._transport is not None:
            self._transport.abort()

    def _send_closing_frame(self) -> None:
        if self._closing_error is None and (self._ended.is_set() or self.listener.width == 1):
            # What the client may have sent meanwhile is unread, so it learns that by a reset.
            self._transport.close()
            return
        self._farewell = self._loop.create_task(self._send_last_frame(self._closing_error))

    async def _send_last_frame(self, error: GatewayError | None) -> None:
        """Send the last frame, and read for a moment so that no reset destroys it."""
        try:
            if error is not None:
                await self.writer.write_last(error)
            if not self._ended.is_set() and self._transport.can_write_eof():
                self._transport.write_eof()
                async with asyncio.timeout(_LINGER_S):
                    await self._ended.wait()
        except (OSError, TimeoutError):  # the client does not read it
            self.abort()
        if self._transport is not None:
            self._transport.close()

    # -- liveness

    def _is_unseen(self) -> bool:
        """Whether the client could leave unnoticed: its response is pending and nothing is read."""
        if self._transport is None or not (self._ended.is_set() or not self._is_reading):
            return False
        # A task whose response is written counts as running until the loop has called back.
        return bool(self._queue) or not all(each.is_answered for each in self._running.values())


class FrameExchange:
    """A complete frame, until its response is complete.

    Args:
        connection: Its connection.
        frame: The frame.
        reservation: The memory of the frame.
        is_late: It arrived after the connection stopped reading.

    Attributes:
        frame: The frame.
        reservation: The memory of the frame.
        is_answered: A response, or a part of one, was written.
        has_slot: It holds a slot: its response is not computed.
    """

    __slots__ = ("_connection", "_is_late", "frame", "has_slot", "is_answered", "reservation")

    def __init__(
        self,
        connection: StreamConnection,
        frame: Frame,
        reservation: Reservation,
        *,
        is_late: bool,
    ) -> None:
        self._connection = connection
        self.frame = frame
        self.reservation = reservation
        self._is_late = is_late
        self.is_answered = self.has_slot = False

    async def run(self) -> None:
        """Answer the frame, or end its connection."""
        CLIENT_MEMORY.set(self._connection.client.memory)
        try:
            await self._ask_or_give_up()
        except SlowReaderError as error:
            self._connection.report(Cancelled(str(error), limit=error.limit))
        except OSError:  # the client has left
            self._connection.abort()

    async def _ask_or_give_up(self) -> None:
        try:
            if self._is_late:
                await self._refuse(_shutting_down())
            elif self._connection.identification is None or await self._identify(
                self._connection.identification
            ):
                await self._admit_and_ask()
        except asyncio.CancelledError:
            if self._connection.state is not GIVEN_UP or self.is_answered:
                raise  # a local variable with the task would be a reference cycle
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            await self._refuse(_shutting_down())

    async def _identify(self, identification: FrameIdentification) -> bool:
        """Name the client of a complete frame; refuse it and return False if it may not send it."""
        reservation = self.reservation
        try:
            self.frame = await identification.name_client(self.frame, reservation)
        except GatewayError as error:
            reservation.close()
            await self._refuse(error)
            if self._connection.listener.closes_denied and isinstance(error, Unauthenticated):
                self._connection.end_reading(None)
            return False
        return True

    async def _admit_and_ask(self) -> None:
        listener, client = self._connection.listener, self._connection.client.slots
        try:
            frame, reservation, waited_s = self.frame, self.reservation, 0.0
            needed = size_of(frame.payload) + frame.extra_bytes
            more = needed + listener.budget.call_bytes - reservation.size_bytes
            # Memory comes first: who has a slot must not wait for those who wait for slots.
            has_memory = more <= 0 or reservation.try_grow(more) or reservation.try_grow_rest(more)
            if not has_memory or not listener.slots.try_acquire(1, client):
                if is_probe(listener.frontend, frame, needed):
                    await self._ask()
                    return
                if not has_memory:
                    await reservation.grow(more)
                began = monotonic()
                await listener.slots.wait(
                    listener.limits.queue_wait_s, client, deadline=frame.deadline
                )
                waited_s = monotonic() - began
        except GatewayError as error:
            await self._refuse(error)
            return
        self.has_slot = True
        try:
            waited_s += reservation.waited_s
            if waited_s:
                WAITED_S.set(waited_s)
            await self._ask()
        except (DeadlineExceeded, Overloaded) as error:
            await self._refuse(error)
        finally:
            self.release_slot()

    def release_slot(self) -> None:
        """Release the slot of a frame, whose response is computed."""
        if self.has_slot:
            self.has_slot = False
            self._connection.listener.slots.release(1, self._connection.client.slots)

    async def _ask(self) -> None:
        found = await self._connection.listener.frontend.handle(self.frame)
        if isinstance(found, Frame):
            self.release_slot()
            await self._connection.writer.write(found, self)
        else:
            await self._connection.writer.relay(found, self)

    async def _refuse(self, error: GatewayError) -> None:
        await self._connection.writer.write(self._connection.writer.refusal(error), self)


def _shutting_down() -> Unavailable:
    return Unavailable("the gateway is shutting down")
