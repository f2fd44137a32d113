"""A body that is passed on while it comes: received in pieces, and given to whoever takes them.

What is held of it is bounded: while its taker is full nothing is read, so the rest waits in the
kernel's buffers and at the client. The client's pace counts only while it is read from. That it
has left is seen then too, unless what it sent before fills the kernel's buffers: TCP tells of it
only behind that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Final, Protocol

import numpy as np

from gateway.ir.errors import Overloaded, Unavailable
from gateway.ir.streaming_body import BodySink
from gateway.transports.admission import Reservation
from gateway.transports.http.cut_through import Broken
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_body import TransferRateLimit
from gateway.transports.reserved_buffer import ReservedBuffer

PIECE_BYTES: Final = 256 * 1024
"""What is received at a time; also the largest head that a body is begun with."""

HELD_BYTES: Final = 2 * PIECE_BYTES
"""What a body that is passed on counts for in the budget: a piece here and one on its way out."""

# While nothing is read a client that leaves is looked for: work for nobody ends within 100 ms.
_LOOK_S: Final = 0.05


class BodySource(Protocol):
    """The connection, as the body of a request sees it."""

    def resume_reading(self) -> None:
        """Hand on what is held, and read on."""
        ...

    def pause_reading(self) -> None:
        """Read no further until then."""
        ...

    def check_peer(self, missing: int) -> None:
        """End the connection if its client has left before sending *missing* bytes more."""
        ...


class CutThroughBody:
    """A body of known length, of which a part has come; an `Arriving`.

    Args:
        source: Where it comes from.
        end: Its length.
        start: Length of what must have come for it to begin; at most `PIECE_BYTES`.
        pace: Which it must keep.
        held: Grows by `HELD_BYTES`, or up to the whole where that is asked for.
        broken: Told when it comes too slowly.

    Attributes:
        complete: All of it has come.
        left: What is still to be poured.
        begun: Pouring has begun.
        moved: When some of it was last poured, or received where it lands.
    """

    def __init__(  # all there is to it
        self,
        source: BodySource,
        end: int,
        start: int,
        pace: TransferRateLimit,
        held: Reservation,
        broken: Broken,
        /,
    ) -> None:
        self._source = source
        self._pace = pace
        self._held = held
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._filled = 0
        self._piece = np.empty(min(PIECE_BYTES, end), np.uint8).data
        self._at = 0
        self._pieces: deque[memoryview] = deque()
        self._whole: ReservedBuffer | None = None
        self._taker: BodySink | None = None
        self._dropping = False
        self._held_since: float | None = None
        self._changed: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.start = start
        self.end = end
        self.remaining_bytes = end - start
        self._head: memoryview | None = None
        self.complete = False
        self.is_started = False
        self.last_progress = 0.0

    # -- what an exchange asks

    async def begin(self) -> None:
        """Wait for the head.

        Raises:
            Overloaded: No room in the budget.
            ConnectionError: The client has left.
        """
        await self._held.grow(min(self.end, HELD_BYTES))
        self._look()
        self._read_on()
        while self._head is None:
            await self._more()

    @property
    def head(self) -> memoryview:
        """Its beginning, once `begin` has returned."""
        assert self._head is not None  # noqa: S101  # it has
        return self._head

    async def drop(self) -> None:
        """Let the rest come and go, so that the connection can be used again.

        Raises:
            ConnectionError: The client has left.
        """
        self._taker = None
        self._pieces.clear()
        self._dropping = True
        self._piece = np.empty(PIECE_BYTES, np.uint8).data  # the last may be on its way out still
        self._at = 0
        self._excuse()
        self._read_on()
        while not self.complete:
            await self._more()

    def close(self) -> None:
        """Forget all of it; harmless the second time."""
        self.detach()
        self._dropping = True
        self._pieces.clear()
        self._whole = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what an upstream asks

    def pipe_to(self, taker: BodySink, /) -> None:
        """Give *taker* what is here, and the rest as it comes."""
        self.is_started = True
        self._taker = taker
        self.resume()

    def pause(self) -> None:
        """Give no more for now."""
        if self._dropping or self.complete:
            return
        if self._held_since is None:
            self._held_since = self._loop.time()
        self._source.pause_reading()

    def resume(self) -> None:
        """Give more; harmless when nothing was held."""
        if self._taker is None:
            return
        self._excuse()
        while self._pieces and self._held_since is None:
            self._give(self._pieces.popleft())
        if self._held_since is None:
            self._read_on()

    def detach(self) -> None:
        """Give no more for good."""
        if self._taker is not None:
            self.pause()
            self._taker = None

    async def read_all(self) -> memoryview:
        """Return the whole body when it has come.

        Raises:
            Unavailable: A part was poured, and is gone.
            Overloaded: No room in the budget.
            ConnectionError: The client has left.
        """
        if self.is_started:
            raise Unavailable(
                "the request was passed on while it came, and cannot be sent a second time"
            )
        if self._held.size_bytes < self._filled:
            await self._held.grow(self._filled - self._held.size_bytes)
        whole = self._whole or self._land()
        self._held.move_with(lambda: self._filled, self._gives_way)
        while not self.complete:
            if whole.is_short:
                with self._pace.paused():
                    await whole.wait()
                self._read_on()
            else:
                await self._more()
        self._held.settle()
        return whole.view

    def _gives_way(self, error: Overloaded) -> None:
        self._broken(HttpError(503, error.message, limit=error.limit, close=True))

    def _land(self) -> ReservedBuffer:
        """Have the rest received behind what has come, in one buffer."""
        whole = self._whole = ReservedBuffer(self.end, self._held)
        for piece in (self.head, *self._pieces):
            whole.put(piece)  # which `HELD_BYTES` were reserved for
        self._pieces.clear()
        self._excuse()
        self._read_on()
        return whole

    # -- what the connection gives

    def room(self) -> memoryview | None:
        """Return where the next bytes go; None after the last."""
        if self.complete:
            return None
        if self._whole is not None:
            return self._whole.room()
        if self._at == self._piece.nbytes:
            self._piece = np.empty(PIECE_BYTES, np.uint8).data
            self._at = 0
        return self._piece[self._at : self._at + self.end - self._filled]

    def received(self, size: int) -> None:
        """Note that *size* bytes have been put into `room`."""
        self._pace.received(size)
        self._filled += size
        self.complete = self._filled == self.end
        if self._whole is not None:
            self.last_progress = monotonic()
            self._whole.advance(size)
            if self._whole.is_short:
                self._source.pause_reading()
                self._wake()
        else:
            begin, self._at = self._at, self._at + size
            if self._dropping:
                self._at = 0
            elif self._head is None:
                self._begin_with(self._piece[: self._at])
            else:
                self._pass(self._piece[begin : self._at])
        if self.complete:
            self._wake()

    def feed(self, data: bytes, at: int) -> int:
        """Take what belongs to the body of *data* from *at*; return the place after it."""
        stop = min(len(data), at + self.end - self._filled)
        if self._head is None and not self._filled and stop - at >= self.start:
            self._filled = stop - at  # all of it in one piece, as it is: no copy
            self._pace.received(self._filled)
            self.complete = self._filled == self.end
            self._begin_with(memoryview(data)[at:stop])
            return stop
        while at < stop:
            room = self.room()
            if room is None:  # there is no memory for more yet
                return at
            size = min(room.nbytes, stop - at)
            room[:size] = memoryview(data)[at : at + size]
            self.received(size)
            at += size
        return stop

    def fail(self, error: Exception) -> None:
        """Let whoever waits learn that no more of it comes."""
        self._failure = error
        self._wake()

    def _begin_with(self, view: memoryview) -> None:
        """Take the head off what has come so far, if it is all there."""
        if view.nbytes < self.start:
            return
        self._head = view[: self.start].toreadonly()
        if view.nbytes > self.start:
            self._pass(view[self.start :])
        self._wake()

    def _pass(self, piece: memoryview) -> None:
        if self._taker is not None and self._held_since is None:
            self._give(piece)
        else:
            self._pieces.append(piece)
            self.pause()  # nobody takes it yet

    def _give(self, piece: memoryview) -> None:
        assert self._taker is not None  # noqa: S101  # whoever calls has looked
        self.remaining_bytes -= piece.nbytes
        self.last_progress = monotonic()
        self._taker.write(piece)

    def _read_on(self) -> None:
        if not self.complete:
            self._source.resume_reading()
        if self._held_since is not None:
            self.pause()  # what was at hand is more than is wanted yet

    def _excuse(self) -> None:
        if self._held_since is not None:
            self._pace.exclude_time(self._loop.time() - self._held_since)
            self._held_since = None

    # -- waiting

    async def _more(self) -> None:
        self._changed = self._loop.create_future()
        if self._failure is None:
            await self._changed
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _look(self) -> None:
        """See to it that the body comes fast enough while it is read, and still comes if not."""
        self._timer = None
        if self.complete or self._failure is not None:
            return
        if self._held_since is None:
            left_s, limit = self._pace.time_left()
            if left_s <= 0:
                self._broken(self._pace.fault(limit))
                return
        self._timer = self._loop.call_later(_LOOK_S, self._look)
        if self._held_since is not None:
            self._source.check_peer(self.end - self._filled)
