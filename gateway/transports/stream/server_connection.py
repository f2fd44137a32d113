"""One server connection of a framed byte stream.

Frames are split as they arrive and handled in tasks: one at a time if the protocol responds in
order, several if it numbers its frames.  The number and the bytes of frames that are read ahead are
limited.  `pacing` limits the time of a client, `liveness` notices that it has left, and `server`
listens.
"""

import asyncio
from abc import ABC, abstractmethod

from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
)
from gateway.transports.authentication import peer_of
from gateway.transports.client_shares import client_shares
from gateway.transports.net.sockets import has_unread, pause_until_drained
from gateway.transports.stream.frame_responses import FrameResponses, PendingFrame, log
from gateway.transports.stream.listener import StreamListenerState
from gateway.transports.stream.liveness import LivenessMonitor
from gateway.transports.stream.pacing import FrameTimeouts
from gateway.transports.stream.states import (
    DRAINING,
    GIVEN_UP,
    LEAVING,
    OPEN,
    FramedConnectionEvent,
)
from gateway.wire.stream import Frame

_UNREAD_S = 0.02
"""How long a connection that drains has to read what the kernel has received."""


class FrameIntake(FrameResponses, ABC):
    """The incomplete frame of a connection, and the memory for it."""

    @property
    def _reads_frames(self) -> bool:
        return self._state is OPEN or self._state is DRAINING

    @abstractmethod
    def _advance(self) -> None:
        """Start the frames that can be handled, update reading, and close at the end."""

    def _hold(self) -> None:
        """Reserve memory for an incomplete frame, one step ahead."""
        wanted, held = self._framer.wanted, self._partial
        if not wanted or self._room is not None:
            return
        if not held.size_bytes:
            held.watch_progress(self._position, self._abort_stalled)
        more = held.step(self._framer.held, wanted)
        if more > 0 and not held.try_grow(more):
            self._room = self._loop.create_task(self._wait_for_room(more))

    def _position(self) -> int:
        return self._framer.held

    def _abort_stalled(self, error: GatewayError) -> None:
        self._end_reading(error)
        self._advance()

    async def _wait_for_room(self, size: int) -> None:
        try:
            await self._partial.grow(size)
        except GatewayError as error:
            self._room = None
            self._end_reading(error.with_traceback(None))
        else:
            self._room = None
        self._advance()

    def _end_reading(self, error: GatewayError | None) -> None:
        """Read nothing more; after the pending responses, send *error* and close."""
        if not self._reads_frames:
            return
        self._move(FramedConnectionEvent.STOP_READING)
        self._closing_error = error
        self._drop_partial()

    def _drop_partial(self) -> None:
        """Drop an incomplete frame, of which nothing more is read."""
        if self._room is not None:
            self._room.cancel()
            self._room = None
        self._partial.close()


class StreamConnection(FrameIntake):
    """A connection of *listener*."""

    def __init__(self, listener: StreamListenerState, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(listener, loop)
        self._pace = FrameTimeouts(listener.limits, loop, self._too_slow)
        self._liveness_monitor = LivenessMonitor(loop, self._is_unseen, self._probe)

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it at once above a limit."""
        self._transport = transport
        self._address = self._listener.enter(self, transport)
        if self._address is None:
            return
        listener = self._listener
        peer = None if listener.authentication is None else peer_of(transport)
        self._client = client_shares(self._address, listener.slots, listener.budget, peer)
        self._partial = self._new_lease()
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
        for task in (*self._running, self._room, self._farewell):
            if task is not None:
                task.cancel()
        self._room = self._farewell = None
        for pending in self._queue:
            pending.reservation.close()
        self._queue.clear()
        self._partial.close()
        if self._address is not None:
            self._listener.count.leave(self._address)
            self._address = None
        self._forget_if_over()

    def resume_writing(self) -> None:
        """Note that the write buffer is empty, and continue."""
        self._is_writable.set()
        self._advance()

    def data_received(self, data: bytes) -> None:
        """Split *data* into frames, and start to handle them."""
        if self._state is not OPEN and self._state is not DRAINING:
            return
        try:
            frames = self._framer.receive(data)
            fault = self._framer.fault
        except GatewayError as error:
            frames, fault = [], error
        # While draining an ordered connection, started frames are finished and the rest is not
        # read.  Otherwise one client could keep it open for ever.
        late = self._state is DRAINING and self._listener.width > 1
        for frame in frames:
            self._partial.stop_watching()
            client = self._client.caller.client()
            sent = Frame(
                frame.payload, frame.correlation, frame.deadline, frame.extra_bytes, client
            )
            self._queue.append(PendingFrame(sent, self._partial, late))
            self._partial = self._new_lease()
        self._pace.received(len(data), partial=self._framer.wanted > 0, frames=len(frames))
        if fault is not None:
            self._end_reading(fault)
        else:
            self._hold()
        self._advance()

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
        self._end_reading(fault)
        self._advance()
        return True

    # -- taking frames

    def _too_slow(self, limit: str) -> None:
        """Close a connection that is idle too long, or whose frame arrives too slowly."""
        if self._framer.wanted:
            self._end_reading(
                InvalidRequest(
                    f"a frame came too slowly: {self._pace.received_bytes} of "
                    f"{self._framer.wanted} bytes in {self._pace.elapsed_s:.1f} s",
                    limit=limit,
                )
            )
            self._advance()
            return
        if limit == "header_timeout_s":
            error = InvalidRequest("a connection sent no request", limit=limit)
            self._listener.on_reject(self._with_client(error))
        self._transport.close()

    # -- progress after each event

    def _advance(self) -> None:
        """Start the frames that can be handled, update reading, and close at the end."""
        # A client that does not read its responses gets no further ones.
        while (
            self._queue and len(self._running) < self._listener.width and self._is_writable.is_set()
        ):
            pending = self._queue.popleft()
            task = self._loop.create_task(self._answer(pending))
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
        state = self._state
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
        self._advance()

    def _update_reading(self) -> None:
        """Read while there is room; the kernel keeps the rest."""
        full = self.in_flight >= self._listener.ahead or self._room is not None
        is_last = self._state is DRAINING and not self._framer.wanted
        unwanted = is_last and self._listener.width == 1
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
            self._listener.forget(self)

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
        if self._state is OPEN:
            self._move(FramedConnectionEvent.DRAIN)
        self._advance()

    def fail_in_flight(self) -> None:
        """End the requests in progress with an error, and close."""
        self._move(FramedConnectionEvent.GIVE_UP)
        if self._state is GIVEN_UP:
            self._drop_partial()
        for task in list(self._running):
            task.cancel()
        self._advance()

    def _send_closing_frame(self) -> None:
        if self._closing_error is None and (self._ended.is_set() or self._listener.width == 1):
            # What the client may have sent meanwhile is unread, so it learns that by a reset.
            self._transport.close()
            return
        self._farewell = self._loop.create_task(self._send_last_frame(self._closing_error))

    def _is_unseen(self) -> bool:
        """Whether the client could leave unnoticed: its response is pending and nothing is read."""
        if self._transport is None or not (self._ended.is_set() or not self._is_reading):
            return False
        # A task whose response is written counts as running until the loop has called back.
        return bool(self._queue) or not all(each.is_answered for each in self._running.values())

    def _probe(self) -> None:
        if self._is_writable.is_set():  # otherwise a failed write would show it
            self._transport.write(self._framer.begin())
