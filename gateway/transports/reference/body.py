"""Reading a request's body into one buffer, within every limit on bytes and time.

The order is that of the cost: the declared length before anything is read, then what has arrived,
then the content coding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestPayloadError

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.transports.admission import Lease
from gateway.transports.base import ServerLimits
from gateway.transports.coding import Inflater, coding_of, inflate
from gateway.transports.faults import HttpFault

EMPTY = memoryview(b"")


def check_declared(length: int | None, limits: ServerLimits) -> None:
    """Refuse a body by its Content-Length, before a byte of it is read.

    Raises:
        TooLarge: It exceeds the limit.
    """
    if length is not None and length > limits.message_bytes:
        raise TooLarge(
            f"request body has {length} bytes, at most {limits.message_bytes} are allowed",
            limit="message_bytes",
        )


async def read_body(
    payload: StreamReader, length: int | None, limits: ServerLimits, lease: Lease
) -> memoryview:
    """Read *payload* whole and return it as one read-only view.

    Args:
        payload: Of this request.
        length: Its Content-Length; None when it comes in chunks.
        limits: Of the listener.
        lease: Grows by what is held.

    Raises:
        TooLarge: More bytes or chunks than allowed.
        MalformedMessage: The framing broke.
        Overloaded: No room in the budget.
        HttpFault: It comes too slowly.
    """
    check_declared(length, limits)
    if length is not None:
        await lease.grow(length)
    try:
        if length is None:
            return await _read_chunked(_Reader(payload, limits), limits, lease)
        if payload.is_eof():  # all of it is here, as with most small bodies in one piece
            return memoryview(payload.read_nowait())
        return await _read_sized(_Reader(payload, limits), length)
    except RequestPayloadError as error:
        raise MalformedMessage(f"request body is not framed rightly: {error}") from error
    except RuntimeError as error:  # how aiohttp's reader says that the connection is gone
        raise ConnectionResetError("the client has left") from error


async def _read_sized(reader: _Reader, length: int) -> memoryview:
    piece, _ = await reader.next()
    if len(piece) == length:  # small bodies come in one piece: no copy
        return memoryview(piece)
    buffer = bytearray(piece)
    while True:
        piece, _ = await reader.next()
        if not piece:
            return memoryview(buffer).toreadonly()
        buffer += piece


async def _read_chunked(reader: _Reader, limits: ServerLimits, lease: Lease) -> memoryview:
    buffer = bytearray()
    chunks = 0
    while True:
        piece, ends_chunk = await reader.next()
        if not piece and not ends_chunk:
            return memoryview(buffer).toreadonly()
        if len(buffer) + len(piece) > limits.message_bytes:
            raise TooLarge(
                f"request body has more than {limits.message_bytes} bytes", limit="message_bytes"
            )
        await lease.grow(len(piece))
        buffer += piece
        chunks += ends_chunk
        if chunks > limits.body_chunks:
            raise TooLarge(
                f"request body has more than {limits.body_chunks} chunks", limit="body_chunks"
            )


class _Reader:
    """Pieces of a body as they arrive, with its deadlines: idle, total and the least rate."""

    def __init__(self, payload: StreamReader, limits: ServerLimits) -> None:
        self._payload = payload
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._received = 0

    async def next(self) -> tuple[bytes, bool]:
        """Return a piece and whether a chunk ends with it; an empty piece is the end."""
        if self._payload.is_eof():  # all of it is here
            piece, ends_chunk = await self._payload.readchunk()
        else:
            wait_s, limit = self._patience()
            try:
                async with asyncio.timeout(wait_s):
                    piece, ends_chunk = await self._payload.readchunk()
            except TimeoutError:
                raise HttpFault(
                    408,
                    f"request body came too slowly: {self._received} bytes in "
                    f"{self._loop.time() - self._start:.1f} s",
                    limit=limit,
                    close=True,
                ) from None
        self._received += len(piece)
        return piece, ends_chunk

    def _patience(self) -> tuple[float, str]:
        limits = self._limits
        elapsed = self._loop.time() - self._start
        by_rate = limits.body_min_rate_grace_s + self._received / limits.body_min_rate_bytes_s
        return min(
            (limits.body_idle_timeout_s, "body_idle_timeout_s"),
            (limits.body_timeout_s - elapsed, "body_timeout_s"),
            (by_rate - elapsed, "body_min_rate_bytes_s"),
        )


async def undo_coding(
    body: memoryview, codings: Sequence[str], limits: ServerLimits, lease: Lease
) -> memoryview:
    """Return *body* without its content coding.

    Raises:
        Unsupported: The coding is unknown.
        MalformedMessage: The content is not of its coding.
        TooLarge: It inflates too far.
        Overloaded: No room in the budget.
    """
    coding = coding_of(codings)
    if coding is None:
        return body
    inflater = Inflater(
        coding,
        body,
        limits.message_bytes,
        limits.decompressed_ratio,
        limits.decompressed_ratio_floor_bytes,
    )
    return await inflate(inflater, lease.grow)
