"""CutThroughBody: a request body that is passed on to an upstream while it arrives.

Its memory is bounded: while the upstream connection is full, nothing is read, so the rest waits in
the kernel's buffers and at the client.  Between two plain TCP connections most of it never enters
the process: see `splice.py`.  The minimum rate applies only while the gateway reads.  A
client that leaves is noticed meanwhile too, unless its data fills the kernel's buffers.
"""

import asyncio
from collections import deque
from time import monotonic
from typing import Any, Final, Protocol

import numpy as np

from gateway.ir.bodies.streaming_body import BodySink
from gateway.ir.errors import Overloaded, Unavailable
from gateway.transports.http.cut_through import OnBodyError
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_body import EMPTY, TransferRateLimit
from gateway.transports.http1.splice import Splice, splice_between
from gateway.transports.reservation import Reservation
from gateway.transports.reserved_buffer import ReservedBuffer

PIECE_BYTES: Final = 384 * 1024
"""The size of one piece, and the limit of *start*.

A request of 16 MiB takes a tenth less CPU time than with 256 KiB. Two pieces are less than 1 MiB.
"""

HELD_BYTES: Final = 2 * PIECE_BYTES
"""The reservation of a body that is passed on: one piece arrives while another one is written.

A body that is spliced has its first piece and a pipe instead.
"""

# While reading is paused, the gateway checks whether the client has left, to end its call early.
_CHECK_INTERVAL_S: Final = 0.05


class BodySource(Protocol):
    """The connection, as the body of a request sees it.

    Attributes:
        transport: Of the connection; None after its end.
    """

    transport: Any

    def resume_reading(self) -> None:
        """Deliver the buffered data, and read on."""
        ...

    def pause_reading(self) -> None:
        """Stop reading."""
        ...

    def begin_exchange(self) -> None:
        """Handle the request, if nothing does yet: its body is complete, or waits for something."""
        ...

    def check_peer(self, missing: int) -> None:
        """Close the connection if its client has left before sending *missing* more bytes."""
        ...

    def body_ended(self) -> None:
        """Read what follows the body, whose last byte was taken past the connection."""
        ...


class _BodyWait:
    """Waits for more of a body, and watches its pace and its client."""

    is_complete: bool
    end: int
    _source: BodySource
    _loop: asyncio.AbstractEventLoop
    _pace: TransferRateLimit
    _on_error: OnBodyError
    _filled: int
    _held_since: float | None
    _failure: Exception | None
    _changed: asyncio.Future[None] | None
    _timer: asyncio.TimerHandle | None

    def fail(self, error: Exception) -> None:
        """Raise *error* in the caller that waits for data."""
        self._failure = error
        self._wake()

    def _abort_stalled(self, error: Overloaded) -> None:
        self._on_error(HttpError(503, error.message, limit=error.limit, close=True))

    def hold_clock(self) -> None:
        """Leave the time from now on out of account: the upstream is slower than the client."""
        if self._held_since is None:
            self._held_since = self._loop.time()

    def resume_clock(self) -> None:
        """Count the time again."""
        if self._held_since is not None:
            self._pace.exclude_time(self._loop.time() - self._held_since)
            self._held_since = None

    async def _more(self) -> None:
        self._changed = self._loop.create_future()
        if self._failure is None:
            await self._changed
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _check(self) -> None:
        """Check the minimum rate while reading, and whether the client is there otherwise."""
        self._timer = None
        if self.is_complete or self._failure is not None:
            return
        if self._held_since is None:
            left_s, limit = self._pace.time_left()
            if left_s <= 0:
                self._on_error(self._pace.fault(limit))
                return
        self._timer = self._loop.call_later(_CHECK_INTERVAL_S, self._check)
        if self._held_since is not None:
            self._source.check_peer(self.end - self._filled)


class CutThroughBody(_BodyWait):
    """A body of known length, of which a part has arrived.

    Args:
        source: The connection of the client.
        end: The length of the body.
        start: How many bytes must arrive before it is passed on; at most `PIECE_BYTES`.
        pace: The minimum rate and the timeouts.
        held: The memory reservation: `HELD_BYTES`, or the whole body for `read_all`.
        on_error: Called if the body arrives too slowly.

    Attributes:
        is_complete: The whole body has arrived.
        remaining_bytes: How many bytes were not passed on yet.
        is_started: A part of the body was passed on.
        last_progress: When a part was last passed on, or received into the buffer of `read_all`.
    """

    def __init__(  # all there is to it
        self,
        source: BodySource,
        end: int,
        start: int,
        pace: TransferRateLimit,
        held: Reservation,
        on_error: OnBodyError,
        /,
    ) -> None:
        self._source = source
        self._pace = pace
        self._reservation = held
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._filled = 0
        self._piece = np.empty(min(PIECE_BYTES, end), np.uint8).data
        self._at = 0
        self._pieces: deque[memoryview] = deque()
        self._whole: ReservedBuffer | None = None
        self._sink: BodySink | None = None
        self._is_dropping = False
        self._splice: Splice | None = None
        self._held_since: float | None = None
        self._changed: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.start = start
        self.end = end
        self.remaining_bytes = end - start
        self._head: memoryview | None = None
        self.is_complete = False
        self.is_started = False
        self.last_progress = 0.0

    # -- for the exchange

    async def begin(self) -> None:
        """Wait until *start* bytes have arrived.

        Raises:
            Overloaded: There is no memory for the body.
            ConnectionError: The client has left.
        """
        await self._reservation.grow(min(self.end, HELD_BYTES))
        self._check()
        self._resume_reading()
        while self._head is None:
            await self._more()

    @property
    def head(self) -> memoryview:
        """The beginning of the body, after `begin` has returned."""
        assert self._head is not None  # noqa: S101  # it has
        return self._head

    async def drop(self) -> None:
        """Read and drop the rest, so that the connection can be used again.

        Raises:
            ConnectionError: The client has left.
        """
        self._sink = None
        self._pieces.clear()
        self._is_dropping = True
        self._piece = np.empty(
            PIECE_BYTES, np.uint8
        ).data  # the previous piece may still be written
        self._at = 0
        self.resume_clock()
        self._resume_reading()
        while not self.is_complete:
            await self._more()

    def close(self) -> None:
        """Drop all data. A second call does nothing."""
        self.detach()
        self._is_dropping = True
        self._pieces.clear()
        self._whole = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # A cycle with the exchange would keep a piece of memory until the next garbage collection.
        self._on_error = _ignore

    # -- for the upstream

    def pipe_to(self, sink: BodySink, /) -> None:
        """Write the data that has arrived to *sink*, and the rest as it arrives."""
        self.is_started = True
        self._sink = sink
        self.resume()

    def splice_to(self, transport: Any) -> None:
        """Move the rest to the transport of the sink past the process, if both are plain TCP.

        What has arrived was written to it before.
        """
        if self.is_complete or self._pieces:
            return
        missing = self.end - self._filled
        self._splice = splice_between(self._source.transport, transport, missing, self)
        if self._splice is not None:
            self._source.pause_reading()
            self._piece, self._at = EMPTY, 0
            self._splice.move()

    def pause(self) -> None:
        """Stop writing."""
        if self._is_dropping or self.is_complete or self._splice is not None:
            return
        self.hold_clock()
        self._source.pause_reading()

    def resume(self) -> None:
        """Continue to write, if it was paused."""
        if self._sink is None or self._splice is not None:
            return
        self.resume_clock()
        while self._pieces and self._held_since is None:
            self._write(self._pieces.popleft())
        if self._held_since is None:
            self._resume_reading()

    def detach(self) -> None:
        """Stop writing for good."""
        self._end_splice()
        if self._sink is not None:
            self.pause()
            self._sink = None

    async def read_all(self) -> memoryview:
        """Return the whole body when it has arrived.

        Raises:
            Unavailable: A part was passed on, and is not in memory any more.
            Overloaded: There is no memory for the body.
            ConnectionError: The client has left.
        """
        if self.is_started:
            raise Unavailable(
                "the body was streamed to the upstream, and cannot be sent a second time"
            )
        if self._reservation.size_bytes < self._filled:
            await self._reservation.grow(self._filled - self._reservation.size_bytes)
        whole = self._whole or self._receive_whole()
        self._reservation.watch_progress(lambda: self._filled, self._abort_stalled)
        while not self.is_complete:
            if whole.needs_memory:
                with self._pace.paused():
                    await whole.wait()
                self._resume_reading()
            else:
                await self._more()
        self._reservation.stop_watching()
        return whole.view

    def _receive_whole(self) -> ReservedBuffer:
        """Receive the rest into one buffer, after the data that has arrived."""
        whole = self._whole = ReservedBuffer(self.end, self._reservation)
        for piece in (self.head, *self._pieces):
            whole.put(piece)  # `HELD_BYTES` are reserved for them
        self._pieces.clear()
        self.resume_clock()
        self._resume_reading()
        return whole

    # -- for the splice

    def count_received(self, size: int, /) -> None:
        """Note that *size* bytes have left the socket of the client."""
        self._pace.received(size)
        self._filled += size
        self.is_complete = self._filled == self.end
        if self.is_complete:
            self._source.body_ended()

    def count_sent(self, size: int, /) -> None:
        """Note that *size* bytes have entered the socket of the upstream."""
        self.remaining_bytes -= size
        self.last_progress = monotonic()

    def give_back(self, rest: bytes, /) -> None:
        """Write *rest*, which was taken and not passed, and read on as without a splice."""
        self._splice = None
        self.resume_clock()
        if rest:
            self._pass(memoryview(rest))
        if self._held_since is None:
            self._resume_reading()

    def _end_splice(self) -> None:
        splice, self._splice = self._splice, None
        if splice is not None:
            splice.close()

    # -- for the connection

    def fail(self, error: Exception) -> None:
        """Raise *error* in the caller that waits for data, and move nothing any more."""
        self._end_splice()
        super().fail(error)

    def room(self) -> memoryview | None:
        """Return the buffer for the next bytes; None after the last."""
        if self.is_complete:
            return None
        if self._whole is not None:
            return self._whole.room()
        if self._at == self._piece.nbytes:
            self._piece = np.empty(PIECE_BYTES, np.uint8).data
            self._at = 0
        return self._piece[self._at : self._at + self.end - self._filled]

    def received(self, size: int) -> None:
        """Note that *size* bytes were written into `room`."""
        assert self._splice is None  # noqa: S101  # it would have overtaken them
        self._pace.received(size)
        self._filled += size
        self.is_complete = self._filled == self.end
        if self._whole is not None:
            self.last_progress = monotonic()
            self._whole.advance(size)
            if self._whole.needs_memory:
                self._source.pause_reading()
                self._wake()
        else:
            begin, self._at = self._at, self._at + size
            if self._is_dropping:
                self._at = 0
            elif self._head is None:
                self._begin_with(self._piece[: self._at])
            else:
                self._pass(self._piece[begin : self._at])
        if self.is_complete:
            self._wake()

    def feed(self, data: bytes, at: int) -> int:
        """Consume the part of *data* that belongs to the body; return the position after it."""
        stop = min(len(data), at + self.end - self._filled)
        if self._head is None and not self._filled and stop - at >= self.start:
            self._filled = stop - at  # all data in one piece: no copy
            self._pace.received(self._filled)
            self.is_complete = self._filled == self.end
            self._begin_with(memoryview(data)[at:stop])
            return stop
        while at < stop:
            room = self.room()
            if room is None:  # there is no memory yet
                return at
            size = min(room.nbytes, stop - at)
            room[:size] = memoryview(data)[at : at + size]
            self.received(size)
            at += size
        return stop

    def _begin_with(self, view: memoryview) -> None:
        """Set `head` and pass on the rest, if *start* bytes have arrived."""
        if view.nbytes < self.start:
            return
        self._head = view[: self.start].toreadonly()
        if view.nbytes > self.start:
            self._pass(view[self.start :])
        self._wake()

    def _pass(self, piece: memoryview) -> None:
        if self._sink is not None and self._held_since is None:
            self._write(piece)
        else:
            self._pieces.append(piece)
            self.pause()  # there is no sink yet

    def _write(self, piece: memoryview) -> None:
        assert self._sink is not None  # noqa: S101  # checked by the callers
        self.remaining_bytes -= piece.nbytes
        self.last_progress = monotonic()
        self._sink.write(piece)

    def _resume_reading(self) -> None:
        if not self.is_complete:
            self._source.resume_reading()
        if self._held_since is not None:
            self.pause()  # the sink was full before all data was written


def _ignore(_fault: HttpError) -> None:
    """Do nothing: the body has ended."""
