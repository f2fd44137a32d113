"""One request of a connection, and its body: received straight into its final buffer."""

import asyncio
from collections import deque
from time import monotonic

from gateway.accelerator import accelerated
from gateway.ir.errors import MalformedMessage
from gateway.transports.client_shares import ClientShares
from gateway.transports.contract import ServerLimits
from gateway.transports.http.cut_through import OnBodyError, early_dispatch_bytes
from gateway.transports.http.faults import HttpError
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.request_body import (
    TransferRateLimit,
    too_many_bytes,
    too_many_chunks,
    wait_for_body,
)
from gateway.transports.http.request_head import Head, read_head
from gateway.transports.http1.chunked import ChunkReader
from gateway.transports.http1.head_reader import HeadReader, RequestHead, RequestHeadCache
from gateway.transports.http1.head_template import END
from gateway.transports.http1.streaming_body import BodySource, CutThroughBody
from gateway.transports.reservation import Reservation
from gateway.transports.reserved_buffer import ReservedBuffer


class BufferedRequest:
    """A request that arrived completely with its head.

    Args:
        head: The head as sent.
        head_cache: The cache of heads.
        here: The body; None if it has not arrived.
    """

    __slots__ = (
        "_head",
        "_head_cache",
        "buffered_body",
        "is_complete",
        "method",
        "reservation",
        "should_close",
        "version",
    )

    def __init__(
        self, head: RequestHead, head_cache: RequestHeadCache, here: memoryview | None
    ) -> None:
        self._head = head
        self._head_cache = head_cache
        self.method = head.method
        self.version = head.version
        self.should_close = head.should_close
        self.buffered_body = here
        self.is_complete = here is not None
        self.reservation: Reservation | None = None

    def head(self, limits: ServerLimits, /) -> Head:
        """Return its head; raises HttpError."""
        head = self._head
        if head.checked is None:
            head.checked = read_head(head.method, head.target, head.version, head.fields, limits)
            self._head_cache.note(head)
        return head.checked

    async def body(
        self, _length: int | None, _limits: ServerLimits, held: Reservation, /
    ) -> memoryview:
        """Return its body; see `http.interfaces.RequestReader`."""
        assert self.buffered_body is not None  # noqa: S101  # it is complete
        if held.size_bytes < self.buffered_body.nbytes:
            await held.grow(self.buffered_body.nbytes - held.size_bytes)
        return self.buffered_body

    def received_bytes(self) -> int:
        """Return how many bytes of the body have arrived."""
        return 0 if self.buffered_body is None else self.buffered_body.nbytes

    def forget(self) -> None:
        """Drop the body, which is not needed any more."""
        self.buffered_body = None

    async def open_body_stream(
        self,
        _length: int,
        _start: int,
        _limits: ServerLimits,
        _held: Reservation,
        _on_error: OnBodyError,
        /,
    ) -> CutThroughBody | None:
        """Return None: the body is complete."""
        return None


@accelerated
def known_request(
    buffer: memoryview, nbytes: int, heads: HeadReader
) -> BufferedRequest | RequestHead | None:
    """Return the request that has arrived alone and completely, with a head that needs no parser.

    Nearly every request arrives like this. The result is only the head where more or less than its
    body has arrived, and None for a head that must be parsed.

    Args:
        buffer: What was read into.
        nbytes: How many bytes were read.
        heads: Reads the heads of the connection.
    """
    data = buffer[:nbytes].tobytes()
    end = data.find(END) + len(END)
    if heads.size or end < len(END):
        return None
    head = None if heads.unsampled else heads.head_cache.get(data[:end])
    if head is None:
        head = heads.known(data, 0, end)
    if head is None or head.is_chunked or end + (head.length or 0) != nbytes:
        return head
    return BufferedRequest(head, heads.head_cache, memoryview(data[end:]))


class ReceivingRequest(BufferedRequest):
    """A request whose head has arrived, but not its body.

    Args:
        source: The connection that receives the body.
        head: The head as sent.
        head_cache: The cache of heads.
    """

    __slots__ = (
        "_arrival",
        "_buffer",
        "_chunks",
        "_failure",
        "_filled",
        "_pieces",
        "_source",
        "_wanted",
    )

    def __init__(self, source: BodySource, head: RequestHead, head_cache: RequestHeadCache) -> None:
        super().__init__(head, head_cache, None)
        self._source = source
        self._chunks = ChunkReader() if head.is_chunked else None
        self._pieces: deque[memoryview] = deque()
        self._buffer: ReservedBuffer | None = None
        self._filled = 0
        self._wanted: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._arrival: CutThroughBody | None = None

    def preallocate(self, listener: ListenerState, client: ClientShares) -> bool:
        """Receive the body into its final buffer from now on, if nothing must be done before.

        Otherwise the exchange decides when it runs.

        Returns:
            Whether nobody needs to wait for the body until it is complete, or has taken long.
        """
        limits = listener.limits
        if listener.authentication is not None:
            return False
        try:
            head = self.head(limits)
            frontend, _ = listener.handler_of(head.path)
        except HttpError:
            return False
        length = head.length
        if (
            length is None
            or length > limits.message_bytes
            or head.has_content_coding
            or head.has_expectation
        ):
            return False
        if early_dispatch_bytes(frontend, head, limits) is not None:
            return False
        deadline = None if head.timeout_s is None else monotonic() + head.timeout_s
        held = Reservation(listener.budget, limits.queue_wait_s, client.memory, deadline)
        if not held.try_grow(held.step(0, length)):
            return False
        self.reservation = held
        self._buffer = ReservedBuffer(length, held)
        return deadline is None

    async def body(
        self, length: int | None, limits: ServerLimits, held: Reservation, /
    ) -> memoryview:
        """Return its body; see `http.interfaces.RequestReader`."""
        if self.buffered_body is not None:
            return await super().body(length, limits, held)
        pace = TransferRateLimit(limits, asyncio.get_running_loop())
        if length is None:
            return await self._chunked(limits, held, pace)
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = ReservedBuffer(length, held)
        pace.received(buffer.filled)
        while not self.is_complete:
            if buffer.needs_memory:
                with pace.paused():
                    await buffer.wait()
            await self._more(pace)
        return buffer.view

    def received_bytes(self) -> int:
        """Return how many bytes of the body have arrived."""
        return self._filled if self._buffer is None else self._buffer.filled

    def forget(self) -> None:
        """Drop the body, which is not needed any more."""
        super().forget()
        if self.is_complete:
            self._buffer = None

    async def open_body_stream(
        self,
        length: int,
        start: int,
        limits: ServerLimits,
        held: Reservation,
        on_error: OnBodyError,
        /,
    ) -> CutThroughBody | None:
        """Return the body when *start* bytes have arrived; see `http.interfaces.RequestReader`."""
        if self.is_complete:
            return None
        pace = TransferRateLimit(limits, asyncio.get_running_loop())
        arrival = self._arrival = CutThroughBody(self._source, length, start, pace, held, on_error)
        await arrival.begin()
        return arrival

    async def _chunked(
        self, limits: ServerLimits, held: Reservation, pace: TransferRateLimit
    ) -> memoryview:
        reader = self._chunks
        assert reader is not None  # noqa: S101  # a body without a length is chunked
        buffer = bytearray()
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                if len(buffer) + len(piece) > limits.message_bytes:
                    raise too_many_bytes(limits)
                if not held.try_grow(len(piece)):
                    with pace.paused():
                        await held.grow(len(piece))
                buffer += piece
            if reader.chunks > limits.body_chunks:
                raise too_many_chunks(limits)
            if self.is_complete:
                return memoryview(buffer).toreadonly()
            await self._more(pace)

    async def _more(self, pace: TransferRateLimit) -> None:
        """Wait until more of the body has arrived.

        Raises:
            HttpError: It arrives too slowly.
            MalformedMessage: Its framing is broken.
            ConnectionError: The client has left.
        """
        if self._failure is not None:
            raise self._failure
        self._wanted = asyncio.get_running_loop().create_future()
        resume = self._source.resume_reading
        await wait_for_body(self._wanted, self.received_bytes, pace, resume)
        self._wanted = None
        if self._failure is not None:
            raise self._failure

    # -- for the connection

    def room(self) -> memoryview | None:
        """Return the buffer for the next bytes of a body of known length; None if there is none."""
        if self._arrival is not None:
            return self._arrival.room()
        return None if self._buffer is None else self._buffer.room()

    def received(self, size: int) -> None:
        """Note that *size* bytes were written into `room`."""
        if self._arrival is not None:
            self._arrival.received(size)
            self.is_complete = self._arrival.is_complete
            return
        buffer = self._buffer
        assert buffer is not None  # noqa: S101  # there was room in it
        if not buffer.advance(size):
            self._filled_to(buffer)

    def _filled_to(self, buffer: ReservedBuffer) -> None:
        """Wake the exchange if the body is complete, or if there is no memory for more."""
        if buffer.is_whole:
            self.is_complete = True
            self.buffered_body = buffer.view
            self._wake()
        elif buffer.needs_memory:
            self._source.pause_reading()
            self._wake()

    def put(self, piece: memoryview) -> bool:
        """Copy *piece* into the buffer, if there is room for more than that; return success."""
        room = self.room()
        if room is None or len(room) <= len(piece):
            return False
        room[: len(piece)] = piece
        self.received(len(piece))
        return True

    def feed(self, data: bytes, at: int) -> int:
        """Consume the part of *data* that belongs to the body; return the position after it.

        An incomplete body is consumed only when the exchange requests it: there may be no memory.
        """
        if self._chunks is not None:
            waited_for = self._wanted is not None and not self._wanted.done()
            return self._take_chunks(self._chunks, data, at) if waited_for else at
        if self._arrival is not None:
            stop = self._arrival.feed(data, at)
            self.is_complete = self._arrival.is_complete
            return stop
        if self._buffer is not None:
            at = self._buffer.put(data, at)
            self._filled_to(self._buffer)
            return at
        length = self._head.length or 0
        if len(data) - at < length:
            return at
        self.buffered_body = memoryview(data[at : at + length])
        self.is_complete = True
        return at + length

    def _take_chunks(self, reader: ChunkReader, data: bytes, at: int) -> int:
        try:
            pieces, stop = reader.feed(data, at)
        except MalformedMessage as error:
            self.fail(MalformedMessage(f"malformed framing of the request body: {error.message}"))
            return len(data)
        self._pieces.extend(pieces)
        self._filled += stop - at
        self.is_complete = reader.is_done
        self._wake()
        return stop

    def fail(self, error: Exception) -> None:
        """Raise *error* in the exchange that reads the body."""
        self._failure = error
        if self._arrival is not None:
            self._arrival.fail(error)
        self._wake()

    def _wake(self) -> None:
        self._source.begin_exchange()
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
