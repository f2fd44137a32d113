"""One request of a connection, and its body: received straight into its final buffer."""

from __future__ import annotations

import asyncio
from collections import deque

import numpy as np

from gateway.ir.errors import MalformedMessage
from gateway.transports.admission import Reservation
from gateway.transports.contract import ServerLimits
from gateway.transports.http.cut_through import Broken, early_dispatch_bytes
from gateway.transports.http.faults import HttpError
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.request_body import TransferRateLimit, too_many_bytes, too_many_chunks
from gateway.transports.http.request_head import Head, read_head
from gateway.transports.http1.chunked import ChunkReader
from gateway.transports.http1.head_reader import RequestHead, RequestHeadCache
from gateway.transports.http1.streaming_body import BodySource, CutThroughBody


class BufferedRequest:
    """A request that came whole, its body with its head.

    Args:
        head: As it was sent.
        memory: Of heads that were found right.
        here: Its body; None for one that has not come.
    """

    __slots__ = (
        "_head",
        "_memory",
        "buffered_body",
        "closes",
        "is_complete",
        "lease",
        "method",
        "version",
    )

    def __init__(
        self, head: RequestHead, memory: RequestHeadCache, here: memoryview | None
    ) -> None:
        self._head = head
        self._memory = memory
        self.method = head.method
        self.version = head.version
        self.closes = head.closes
        self.buffered_body = here
        self.is_complete = here is not None
        self.lease: Reservation | None = None

    def head(self, limits: ServerLimits, /) -> Head:
        """Return its head; raises HttpFault."""
        head = self._head
        if head.checked is None:
            head.checked = read_head(head.method, head.target, head.version, head.fields, limits)
            self._memory.note(head)
        return head.checked

    async def body(
        self, _length: int | None, _limits: ServerLimits, _lease: Reservation, /
    ) -> memoryview:
        """Return its body; see `http_exchange.Incoming`."""
        assert self.buffered_body is not None  # noqa: S101  # it is whole
        return self.buffered_body

    async def open_body_stream(
        self,
        _length: int,
        _start: int,
        _limits: ServerLimits,
        _lease: Reservation,
        _broken: Broken,
        /,
    ) -> CutThroughBody | None:
        """Return None: all of it is here."""
        return None


class ReceivingRequest(BufferedRequest):
    """A request whose head was read, and whose body is still to come.

    Args:
        source: Where its body comes from.
        head: As it was sent.
        memory: Of heads that were found right.
    """

    __slots__ = (
        "_arrival",
        "_chunks",
        "_failure",
        "_filled",
        "_pieces",
        "_room",
        "_source",
        "_wanted",
    )

    def __init__(self, source: BodySource, head: RequestHead, memory: RequestHeadCache) -> None:
        super().__init__(head, memory, None)
        self._source = source
        self._chunks = ChunkReader() if head.chunked else None
        self._pieces: deque[memoryview] = deque()
        self._room: memoryview | None = None
        self._filled = 0
        self._wanted: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._arrival: CutThroughBody | None = None

    def preallocate(self, listener: ListenerState) -> None:
        """Have its body received where it stays, from now on, if nothing is to be seen to first.

        Whatever stands against that, or is to be said before, is left to who answers it.
        """
        limits = listener.limits
        try:
            head = self.head(limits)
            frontend, _ = listener.find(head.path)
        except HttpError:
            return
        length = head.length
        if length is None or length > limits.message_bytes or head.coded or head.expects:
            return
        if early_dispatch_bytes(frontend, head, limits) is not None:
            return
        lease = Reservation(listener.budget, limits.queue_wait_s)
        if lease.take_in_turn(length):
            self.lease = lease
            self._room = _room_for(length)

    async def body(
        self, length: int | None, limits: ServerLimits, lease: Reservation, /
    ) -> memoryview:
        """Return its body; see `http_exchange.Incoming`."""
        if self.buffered_body is not None:
            return self.buffered_body
        pace = TransferRateLimit(limits, asyncio.get_running_loop())
        if length is None:
            return await self._chunked(limits, lease, pace)
        if self._room is None:
            self._room = _room_for(length)
        pace.received(self._filled)
        while not self.is_complete:
            await self._more(pace)
        return self._room.toreadonly()

    async def open_body_stream(
        self, length: int, start: int, limits: ServerLimits, lease: Reservation, broken: Broken, /
    ) -> CutThroughBody | None:
        """Return its body when *start* bytes have come; see `http_exchange.Incoming`."""
        if self.is_complete:
            return None
        pace = TransferRateLimit(limits, asyncio.get_running_loop())
        arrival = self._arrival = CutThroughBody(self._source, length, start, pace, lease, broken)
        await arrival.begin()
        return arrival

    async def _chunked(
        self, limits: ServerLimits, lease: Reservation, pace: TransferRateLimit
    ) -> memoryview:
        reader = self._chunks
        assert reader is not None  # noqa: S101  # a body without a length comes in chunks
        buffer = bytearray()
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                if len(buffer) + len(piece) > limits.message_bytes:
                    raise too_many_bytes(limits)
                await lease.grow(len(piece))
                buffer += piece
            if reader.chunks > limits.body_chunks:
                raise too_many_chunks(limits)
            if self.is_complete:
                return memoryview(buffer).toreadonly()
            await self._more(pace)

    async def _more(self, pace: TransferRateLimit) -> None:
        """Wait until more of the body has come.

        Raises:
            HttpFault: It comes too slowly.
            MalformedMessage: Its framing broke.
            ConnectionError: The client has left.
        """
        if self._failure is not None:
            raise self._failure
        received = self._filled
        self._wanted = asyncio.get_running_loop().create_future()
        self._source.resume_reading()
        while not self._wanted.done():
            if self._filled != received:
                pace.received(self._filled - received)
                received = self._filled
            wait_s, limit = pace.time_left()
            await asyncio.wait([self._wanted], timeout=max(0.0, wait_s))
            # A large body is not heard of piece by piece: what has come is looked at in time.
            if self._filled == received and not self._wanted.done():
                raise pace.fault(limit)
        pace.received(self._filled - received)
        self._wanted = None
        if self._failure is not None:
            raise self._failure

    # -- what the connection gives

    def room(self) -> memoryview | None:
        """Return where the next bytes of a body of known length go; None for no such place."""
        if self._arrival is not None:
            return self._arrival.room()
        return None if self._room is None or self.is_complete else self._room[self._filled :]

    def received(self, size: int) -> None:
        """Note that *size* bytes have been put into `room`."""
        if self._arrival is not None:
            self._arrival.received(size)
            self.is_complete = self._arrival.complete
            return
        self._filled += size
        if self._room is not None and self._filled == self._room.nbytes:
            self.is_complete = True
            self.buffered_body = self._room.toreadonly()
            self._wake()

    def put(self, piece: memoryview) -> bool:
        """Put *piece* where it stays and return True, if there is a place for it and for more."""
        room = self.room()
        if room is None or len(room) <= len(piece):
            return False
        room[: len(piece)] = piece
        self.received(len(piece))
        return True

    def feed(self, data: bytes, at: int) -> int:
        """Take what belongs to the body of *data* from *at*; return the place after it.

        One that is not here whole is taken once it is asked for: it is not known before whether
        there is room for it.
        """
        if self._chunks is not None:
            waited_for = self._wanted is not None and not self._wanted.done()
            return self._take_chunks(self._chunks, data, at) if waited_for else at
        if self._arrival is not None:
            stop = self._arrival.feed(data, at)
            self.is_complete = self._arrival.complete
            return stop
        length = self._head.length or 0
        room = self.room()
        if room is not None:
            size = min(room.nbytes, len(data) - at)
            room[:size] = memoryview(data)[at : at + size]
            self.received(size)
            return at + size
        if len(data) - at < length:
            return at
        self.buffered_body = memoryview(data[at : at + length])
        self.is_complete = True
        return at + length

    def _take_chunks(self, reader: ChunkReader, data: bytes, at: int) -> int:
        try:
            pieces, stop = reader.feed(data, at)
        except MalformedMessage as error:
            self.fail(MalformedMessage(f"request body is not framed rightly: {error.message}"))
            return len(data)
        self._pieces.extend(pieces)
        self._filled += stop - at
        self.is_complete = reader.done
        self._wake()
        return stop

    def fail(self, error: Exception) -> None:
        """Let whoever reads the body learn that no more of it comes."""
        self._failure = error
        if self._arrival is not None:
            self._arrival.fail(error)
        self._wake()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)


def _room_for(length: int) -> memoryview:
    # Not a bytearray: that would be written twice, with zeros first.
    return np.empty(length, np.uint8).data
