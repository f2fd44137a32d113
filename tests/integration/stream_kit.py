"""Shared by the byte stream tests: scripted frontends, two framings, a started server, sockets."""

from __future__ import annotations

import asyncio
import struct
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from gateway.ir.errors import GatewayError, MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.protocols.graphpipe.stream import SizePrefixFramer
from gateway.transports.contract import MemoryBudget, ServerLimits, StreamFrontend
from gateway.transports.net.tls_files import TlsContext
from gateway.transports.stream.server import StreamServer
from gateway.wire.http import Buffer, size_of
from gateway.wire.stream import Frame, Framer

MOST = 1 << 20
LOOPBACK = "127.0.0.1:0"


def ordered() -> SizePrefixFramer:
    """A framer whose responses are in order."""
    return SizePrefixFramer(MessageLimits(message_bytes=MOST))


class NumberedFramer:
    """Frames of size and number, 4 bytes each, as brpc's in kind."""

    def __init__(self) -> None:
        self._buffer = b""
        self.fault: GatewayError | None = None

    @property
    def held(self) -> int:
        return len(self._buffer)

    @property
    def wanted(self) -> int:
        if len(self._buffer) < 8:
            return 8 if self._buffer else 0
        size: int = struct.unpack_from("<I", self._buffer)[0]
        return 8 + size

    def receive(self, data: bytes, /) -> list[Frame]:
        if not data and self._buffer:
            raise MalformedMessage("the stream ended inside a frame")
        self._buffer += data
        frames = []
        while len(self._buffer) >= 8:
            size, number = struct.unpack_from("<II", self._buffer)
            if size > MOST:
                self.fault = TooLarge(f"{size} bytes", limit="message_bytes")
                break
            if len(self._buffer) < 8 + size:
                break
            frames.append(Frame((self._buffer[8 : 8 + size],), number))
            self._buffer = self._buffer[8 + size :]
        return frames

    def send(self, frame: Frame, /) -> list[Buffer]:
        if frame.correlation is None:
            return []
        return [struct.pack("<II", size_of(frame.payload), frame.correlation), *frame.payload]

    def begin(self) -> bytes:
        return b""

    def incomplete(self) -> Frame | None:
        return Frame(()) if self._buffer else None


class Compressed(NumberedFramer):
    """The same; the number is also how much is compressed in a frame."""

    def receive(self, data: bytes, /) -> list[Frame]:
        return [
            Frame(frame.payload, frame.correlation, None, frame.correlation or 0)
            for frame in super().receive(data)
        ]


def framed(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def numbered(number: int, payload: bytes) -> bytes:
    return struct.pack("<II", len(payload), number) + payload


def payload_of(frame: Frame) -> bytes:
    return b"".join(frame.payload)


class Refusing(StreamFrontend):
    """The rejections of a frontend."""

    def reject(self, error: GatewayError, /) -> Frame:
        return Frame((f"refused {error.limit or error.code.value}: {error.message}".encode(),))


class Echo(Refusing):
    """Responds with the request, and keeps it."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
        self.seen.append(payload_of(wire))
        yield Frame(wire.payload)


class Slow(Refusing):
    """Responds to each frame when its event is set, by its payload; notes how they end."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, asyncio.Event] = {}
        self.cancelled: list[bytes] = []
        self.end = asyncio.Event()

    async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
        name = payload_of(wire)
        self.waiting[name] = asyncio.Event()
        try:
            await self.waiting[name].wait()
            yield Frame((b"answer " + name,))
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            del self.waiting[name]
            self.end.set()


class Big(Refusing):
    """Responds with many bytes."""

    def __init__(self, size: int) -> None:
        self._answer = bytes(size)

    async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
        yield Frame((self._answer,))


class Counting(Big):
    """The same, and counts its calls."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.call_count = 0

    async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
        self.call_count += 1
        async for response in super().__call__(wire):
            yield response


class Watched(Big):
    """The same, and keeps weak references to its responses."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.answers: list[weakref.ref[memoryview]] = []

    async def __call__(self, _wire: Frame, /) -> AsyncGenerator[Frame, None]:
        response = memoryview(self._answer)
        self.answers.append(weakref.ref(response))
        yield Frame((response,))


class Raw:
    """A raw connection that reads ordered responses one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> bytes:
        size: int = struct.unpack("<I", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def numbered(self) -> tuple[int, bytes]:
        size, number = struct.unpack("<II", await self.reader.readexactly(8))
        return number, await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """Return all bytes until the end; a reset counts as the end."""
        data = b""
        with suppress(ConnectionError):
            while piece := await self.reader.read(65536):
                data += piece
        return data

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass
class Running:
    server: StreamServer
    budget: MemoryBudget
    refused: list[GatewayError] = field(default_factory=list)

    @property
    def limits_hit(self) -> list[str | None]:
        return [error.limit for error in self.refused]

    async def connect(self) -> Raw:
        address = self.server.address
        if address.startswith("unix:"):
            return Raw(*await asyncio.open_unix_connection(address.removeprefix("unix:")))
        host, _, port = address.rpartition(":")
        return Raw(*await asyncio.open_connection(host, int(port)))

    async def ask(self, data: bytes) -> bytes:
        """Send raw bytes, and return all bytes until the server closes."""
        raw = await self.connect()
        try:
            with suppress(ConnectionError):  # closed before it was sent
                await raw.send(data)
            return await raw.rest()
        finally:
            await raw.close()


def _framer_of(in_order: bool) -> Framer:
    return ordered() if in_order else NumberedFramer()


@asynccontextmanager
async def serving(
    frontend: StreamFrontend,
    address: str = LOOPBACK,
    *,
    budget_bytes: int = 1 << 30,
    in_order: bool = True,
    framer: Callable[[], Framer] | None = None,
    ssl_context: Any = None,
    mode: int = 0o660,
    **limits: Any,
) -> AsyncIterator[Running]:
    """Serve *frontend* with *limits* shortened for the test."""
    refused: list[GatewayError] = []
    budget = MemoryBudget(budget_bytes)
    server = StreamServer(
        address,
        framer or (lambda: _framer_of(in_order)),
        frontend,
        limits=ServerLimits(**{"requests_per_address": 256, **limits}),
        budget=budget,
        ordered=in_order,
        tls=None if ssl_context is None else TlsContext(ssl_context),
        mode=mode,
        on_reject=refused.append,
    )
    await server.start()
    try:
        yield Running(server, budget, refused)
    finally:
        await server.stop()
    assert budget.used == 0
