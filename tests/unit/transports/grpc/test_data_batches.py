"""DATA frames of large gRPC messages, which are copied together: flow control, invalid messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from gateway.ir.errors import GatewayError
from gateway.transports.contract import GrpcFrontend, GrpcMount, MemoryBudget, ServerLimits
from gateway.transports.grpc.server import GrpcServer
from gateway.transports.grpc.server_connection import GrpcServerConnection
from gateway.transports.http2 import frames
from gateway.transports.http2.frames import FRAME_BYTES
from gateway.transports.http2.hpack import literal
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind

pytestmark = pytest.mark.usefixtures("build")

METHOD = "/a.B/C"
HEAD = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", METHOD.encode()),
        (b"content-type", b"application/grpc"),
    )
)
FRAME = 9000
LIMIT = 1 << 20


class RecordingTransport(asyncio.Transport):
    """A transport that records the bytes written to it, and delivers others to its protocol."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.written = b""
        self.protocol = protocol
        self.ways: Counter[str] = Counter()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def deliver(self, data: bytes) -> None:
        """Let the protocol receive *data*, as an event loop does."""
        while data:
            if not isinstance(self.protocol, asyncio.BufferedProtocol):
                self.ways["bytes"] += 1
                cast("asyncio.Protocol", self.protocol).data_received(data)
                return
            buffer = cast("memoryview", self.protocol.get_buffer(len(data)))
            self.ways["one buffer" if len(buffer) == 256 * 1024 else "its place"] += 1
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]


class RecordingFrontend(GrpcFrontend):
    """A frontend that records each request."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    async def __call__(self, wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
        self.messages.append(bytes(wire.view))
        yield GrpcResponse((b"",))

    def reject(self, error: GatewayError, /) -> GrpcResponse:
        return GrpcResponse(status=GrpcStatus.RESOURCE_EXHAUSTED, details=error.message)


@asynccontextmanager
async def connected(
    message_bytes: int = LIMIT,
) -> AsyncGenerator[tuple[RecordingTransport, RecordingFrontend], None]:
    """Run a server with one connection, whose client has sent its SETTINGS."""
    frontend = RecordingFrontend()
    mount = GrpcMount({METHOD: MethodKind.UNARY}, frontend)
    limits = ServerLimits(message_bytes=message_bytes)
    server = GrpcServer("127.0.0.1:0", [mount], limits, MemoryBudget(1 << 30), listens=False)
    await server.start()
    connection: GrpcServerConnection = server.connection()
    transport = RecordingTransport(connection)
    connection.connection_made(transport)
    transport.deliver(frames.PREFACE + frames.settings([]))
    yield transport, frontend
    for _ in range(5):
        await asyncio.sleep(0)
    await server.stop()


async def send_call(
    body: bytes, read: int, length: int | None = None
) -> tuple[list[int], int, bytes]:
    """Send a call with *body* in long frames, *read* bytes at a time, within the stream's window.

    With *length*, the request head has it as content-length.

    Returns the sizes of the requests, the bytes granted beyond the first window, and the output.
    """
    length_header = b"" if length is None else literal(b"content-length", b"%d" % length)
    granted, at, room = 0, 0, 65_535
    async with connected() as (transport, frontend):
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, HEAD + length_header)
        transport.deliver(head)
        while at < len(body) and room > 0:
            sent = b""
            while at < len(body) and room >= min(FRAME, len(body) - at):
                piece = body[at : at + FRAME]
                at, room = at + len(piece), room - len(piece)
                sent += frames.frame(
                    frames.DATA, frames.END_STREAM if at == len(body) else 0, 1, piece
                )
            seen = len(transport.written)
            for begin in range(0, len(sent), read):
                transport.deliver(sent[begin : begin + read])
            await asyncio.sleep(0)
            more = grants(transport.written[seen:])
            granted, room = granted + more, room + more
            if not sent:
                break
    return [len(each) for each in frontend.messages], granted, transport.written


def grants(data: bytes, stream: int = 1) -> int:
    """Return the sum of the WINDOW_UPDATE frames of a stream."""
    return sum(
        int.from_bytes(payload, "big")
        for kind, number, payload in written_frames(data)
        if kind == frames.WINDOW_UPDATE and number == stream
    )


def written_frames(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield kind, stream and payload of frames."""
    at = 0
    while at < len(data):
        size, kind = int.from_bytes(data[at : at + 3], "big"), data[at + 3]
        number = int.from_bytes(data[at + 5 : at + 9], "big")
        yield kind, number, data[at + 9 : at + 9 + size]
        at += 9 + size


@pytest.mark.parametrize("read", [1000, FRAME + 9, 20_000, 1 << 20])
async def test_the_window_grows_by_the_missing_bytes_only(read: int) -> None:
    """A message larger than the window is granted its missing bytes, whatever the read sizes."""
    size = 200_000
    sizes, granted, _ = await send_call(b"\0" + size.to_bytes(4, "big") + bytes(size), read)
    assert [size] == sizes
    assert 5 + size - 65_535 == granted


@pytest.mark.parametrize("read", [FRAME + 9, 1 << 20])
async def test_frames_after_an_oversized_message_are_ignored(read: int) -> None:
    """A call rejected in one frame ignores the next frames, which look like messages."""
    too_large = b"\0" + (LIMIT + 1).to_bytes(4, "big")
    good = b"\0" + (FRAME - 5).to_bytes(4, "big") + bytes(FRAME - 5)
    sizes, granted, written = await send_call(too_large.ljust(FRAME, b"x") + good * 3, read)
    assert [] == sizes
    assert granted == 0
    assert b"at most 1048576 are allowed" in written


@pytest.mark.parametrize("read", [FRAME + 9, 1 << 20])
@pytest.mark.parametrize("wrong", [0, 1, -1, -FRAME, 10_000 - 65_535])
async def test_a_body_unlike_its_content_length_resets_the_stream(wrong: int, read: int) -> None:
    """The stream is reset for a shorter and for a longer body, whatever the read sizes."""
    size = 60_000
    body = b"\0" + size.to_bytes(4, "big") + bytes(size)
    sizes, _, written = await send_call(body, read, len(body) + wrong)
    assert ([] if wrong else [size]) == sizes
    assert (frames.reset(1, frames.PROTOCOL_ERROR) in written) == (wrong != 0)


@pytest.mark.parametrize("seed", range(12))
async def test_large_messages_arrive_whatever_their_frames_and_reads(seed: int) -> None:
    """Frames of up to 1 MiB, of three calls in any order and any reads, become the messages."""
    random = Random(seed)  # noqa: S311  # inputs of a test
    most = random.choice((3000, 16_384, FRAME_BYTES))
    bodies = {}
    for number in (1, 3, 5):
        size = random.choice((9, 50_000, 400_000, 3_000_000))
        bodies[number] = b"\0" + size.to_bytes(4, "big") + random.randbytes(size)
    sent_bytes, padding = dict.fromkeys(bodies, 0), dict.fromkeys(bodies, 0)
    async with connected(4 << 20) as (transport, frontend):
        for number in bodies:
            transport.deliver(frames.frame(frames.HEADERS, frames.END_HEADERS, number, HEAD))
        for _ in range(10_000):
            used = sum(sent_bytes.values()) + sum(padding.values())
            room_of_all = 65_535 + grants(transport.written, 0) - used
            sent = b""
            for _ in range(random.randrange(1, 30)):
                number = random.choice(list(bodies))
                at, body = sent_bytes[number], bodies[number]
                room = 65_535 + grants(transport.written, number) - at - padding[number]
                size = min(random.randint(1, most), room, room_of_all, len(body) - at)
                if size <= 0:
                    continue
                sent_bytes[number] += size
                room_of_all -= size
                is_last = at + size == len(body)
                flags = frames.END_STREAM if is_last else 0
                if is_last and random.random() < 0.3:
                    sent += frames.frame(frames.DATA, 0, number, body[at:])
                    sent += frames.frame(frames.DATA, flags, number)
                elif random.random() < 0.05 and size + 4 <= room and room_of_all >= 4:
                    padding[number] += 4
                    room_of_all -= 4
                    padded = b"\3" + body[at : at + size] + bytes(3)
                    sent += frames.frame(frames.DATA, flags | frames.PADDED, number, padded)
                else:
                    sent += frames.frame(frames.DATA, flags, number, body[at : at + size])
            while sent:
                read = random.choice((random.randint(1, 40), random.randint(1, 300_000)))
                transport.deliver(sent[:read])
                sent = sent[read:]
            await asyncio.sleep(0)
            if sent_bytes == {number: len(body) for number, body in bodies.items()}:
                break
    assert sorted(body[5:] for body in bodies.values()) == sorted(frontend.messages)
    assert not any(kind == frames.GOAWAY for kind, _, _ in written_frames(transport.written))


async def test_a_large_frame_is_received_into_its_place() -> None:
    """The rest of a frame is not copied; the reads after the message are ordinary ones again."""
    body = b"\0" + (250_000).to_bytes(4, "big") + bytes(range(250)) * 1000
    async with connected() as (transport, frontend):
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, HEAD)
        transport.deliver(head + frames.frame(frames.DATA, 0, 1, body[:60_000]))
        await asyncio.sleep(0)
        rest = frames.frame(frames.DATA, frames.END_STREAM, 1, body[60_000:])
        transport.deliver(rest[:1000])
        transport.deliver(rest[1000:80_000])
        transport.deliver(rest[80_000:])
        assert transport.ways["its place"] >= 2
        for _ in range(30):
            transport.deliver(frames.frame(frames.PING, 0, 0, bytes(8)))
        assert transport.protocol is not None
        assert not isinstance(transport.protocol, asyncio.BufferedProtocol)
    assert [body[5:]] == frontend.messages


@pytest.mark.parametrize(
    ("size", "code"),
    [(FRAME_BYTES, frames.FLOW_CONTROL_ERROR), (FRAME_BYTES + 1, frames.FRAME_SIZE_ERROR)],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_a_frame_above_1_mib_is_an_error_of_its_size(
    size: int, code: int, begun: bool
) -> None:
    """One of 1 MiB is refused only because no window is as large, also within a large message."""
    async with connected(4 << 20) as (transport, _):
        transport.deliver(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, HEAD))
        if begun:
            prefix = b"\0" + (3 << 20).to_bytes(4, "big")
            transport.deliver(frames.frame(frames.DATA, 0, 1, prefix.ljust(20_000, b"x")))
            await asyncio.sleep(0)
        transport.deliver(frames.frame_head(size, frames.DATA, 0, 1) + bytes(100))
        await asyncio.sleep(0)
    *_, (kind, _, payload) = written_frames(transport.written)
    assert (frames.GOAWAY, code) == (kind, int.from_bytes(payload[4:8], "big"))


async def test_a_call_that_ends_within_its_message_is_an_error() -> None:
    """The end of the stream counts, although the frame before it was copied."""
    body = b"\0" + (200_000).to_bytes(4, "big") + bytes(50_000)
    async with connected() as (transport, frontend):
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, HEAD)
        transport.deliver(head + frames.frame(frames.DATA, 0, 1, body[:20_000]))
        transport.deliver(frames.frame(frames.DATA, frames.END_STREAM, 1, body[20_000:]))
        await asyncio.sleep(0)
    assert [] == frontend.messages
    assert b"the call ended in the middle of a message" in transport.written
