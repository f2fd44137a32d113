"""ReferenceHttpRequest: a request read by aiohttp, with its body in one buffer."""

from __future__ import annotations

import asyncio

from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from gateway.ir.errors import MalformedMessage
from gateway.transports.contract import ServerLimits
from gateway.transports.http.cut_through import OnBodyError
from gateway.transports.http.request_body import TransferRateLimit, too_many_bytes, too_many_chunks
from gateway.transports.http.request_head import Head, Version, read_head
from gateway.transports.reservation import Reservation


class KeepAliveResult:
    """The interface that aiohttp's protocol needs of a response that is already written."""

    def __init__(self, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive

    async def prepare(self, _request: object) -> None:
        """Do nothing: the head is out."""

    async def write_eof(self) -> None:
        """Do nothing: the body is out."""


class ReferenceHttpRequest:
    """One request of a connection.

    Attributes:
        buffered_body: None: a body is always read by `body`.
        reservation: None: no body is received before its exchange.
    """

    buffered_body: memoryview | None = None
    reservation: Reservation | None = None

    def __init__(self, request: BaseRequest) -> None:
        self._request = request
        self._payload = request.content
        self._body: _PayloadReader | None = None
        self.method = request.method
        self.version: Version = (request.version.major, request.version.minor)
        # An upgrade is declined; what may follow it on the connection is not ours to guess.
        self.should_close = not request.keep_alive or "upgrade" in request.headers

    @property
    def is_complete(self) -> bool:
        """Whether the whole body has arrived."""
        return self._payload.is_eof()

    def head(self, limits: ServerLimits) -> Head:
        """Return its head. Raises HttpError."""
        message = self._request._message  # noqa: SLF001  # the only way to the fields as sent
        return read_head(self.method, message.path, self.version, message.raw_headers, limits)

    async def body(self, length: int | None, limits: ServerLimits, held: Reservation) -> memoryview:
        """Return its body; see `http.interfaces.RequestReader`."""
        payload = self._payload
        try:
            if length is None:
                return await _read_chunked(self._reader(limits), limits, held)
            if payload.is_eof():  # all of it is here, as with most small bodies in one piece
                await held.grow(length)
                return memoryview(payload.read_nowait())
            return await _read_sized(self._reader(limits), length, held)
        except RequestPayloadError as error:
            raise MalformedMessage(f"malformed framing of the request body: {error}") from error
        except RuntimeError as error:  # aiohttp's reader raises this when the connection is lost
            raise ConnectionResetError("the client has left") from error

    def _reader(self, limits: ServerLimits) -> _PayloadReader:
        self._body = _PayloadReader(self._payload, limits)
        return self._body

    def received_bytes(self) -> int:
        """Return how many bytes of the body were read."""
        return 0 if self._body is None else self._body.received

    def forget(self) -> None:
        """Do nothing: aiohttp's reader does not keep the bytes."""

    async def open_body_stream(
        self,
        length: int,
        start: int,
        limits: ServerLimits,
        held: Reservation,
        on_error: OnBodyError,
    ) -> None:
        """Return None: aiohttp's bodies are received completely."""


async def _read_sized(reader: _PayloadReader, length: int, held: Reservation) -> memoryview:
    held.allocated(0)  # the buffer grows as the reservation does
    await held.grow(held.step(0, length))
    piece, _ = await reader.next()
    if len(piece) == length:  # small bodies arrive in one piece: no copy
        return memoryview(piece)
    buffer = bytearray(piece)
    while True:
        more = held.step(len(buffer), length)
        if more > 0 and not held.try_grow(more):
            with reader.pace.paused():
                await held.grow(more)
        piece, _ = await reader.next()
        if not piece:
            return memoryview(buffer).toreadonly()
        buffer += piece


async def _read_chunked(
    reader: _PayloadReader, limits: ServerLimits, held: Reservation
) -> memoryview:
    buffer = bytearray()
    chunks = 0
    while True:
        piece, ends_chunk = await reader.next()
        if not piece and not ends_chunk:
            return memoryview(buffer).toreadonly()
        if len(buffer) + len(piece) > limits.message_bytes:
            raise too_many_bytes(limits)
        with reader.pace.paused():
            await held.grow(len(piece))
        buffer += piece
        chunks += ends_chunk
        if chunks > limits.body_chunks:
            raise too_many_chunks(limits)


class _PayloadReader:
    """Pieces of a body as they arrive, at the pace it must keep."""

    def __init__(self, payload: StreamReader, limits: ServerLimits) -> None:
        self._payload = payload
        self.pace = TransferRateLimit(limits, asyncio.get_running_loop())
        self.received = 0

    async def next(self) -> tuple[bytes, bool]:
        """Return a piece and whether a chunk ends with it; an empty piece is the end."""
        if self._payload.is_eof():  # all of it is here
            piece, ends_chunk = await self._payload.readchunk()
        else:
            wait_s, limit = self.pace.time_left()
            try:
                async with asyncio.timeout(wait_s):
                    piece, ends_chunk = await self._payload.readchunk()
            except TimeoutError:
                raise self.pace.fault(limit) from None
        self.pace.received(len(piece))
        self.received += len(piece)
        return piece, ends_chunk
