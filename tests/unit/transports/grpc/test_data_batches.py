"""Batched DATA frames of a gRPC call: flow control and invalid messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.ir.errors import GatewayError
from gateway.transports.contract import GrpcFrontend, GrpcMount, MemoryBudget, ServerLimits
from gateway.transports.grpc.server import GrpcServer
from gateway.transports.grpc.server_connection import GrpcServerConnection
from gateway.transports.http2 import frames
from gateway.transports.http2.hpack import literal
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind

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
    """A transport that records the bytes written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None: ...

    def abort(self) -> None: ...


class RecordingFrontend(GrpcFrontend):
    """A frontend that records the size of each request."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def __call__(self, wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
        self.sizes.append(len(wire.view))
        yield GrpcResponse((b"",))

    def reject(self, error: GatewayError, /) -> GrpcResponse:
        return GrpcResponse(status=GrpcStatus.RESOURCE_EXHAUSTED, details=error.message)


async def send_call(
    body: bytes, read: int, length: int | None = None
) -> tuple[list[int], int, bytes]:
    """Send a call with *body* in long frames, *read* bytes at a time, within the stream's window.

    With *length*, the request head has it as content-length.

    Returns the sizes of the requests, the bytes granted beyond the first window, and the output.
    """
    frontend = RecordingFrontend()
    mount = GrpcMount({METHOD: MethodKind.UNARY}, frontend)
    limits = ServerLimits(message_bytes=LIMIT)
    server = GrpcServer("127.0.0.1:0", [mount], limits, MemoryBudget(1 << 30), listens=False)
    await server.start()
    connection: GrpcServerConnection = server.connection()
    transport = RecordingTransport()
    connection.connection_made(transport)
    length_header = b"" if length is None else literal(b"content-length", b"%d" % length)
    head = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, HEAD + length_header)
    connection.data_received(frames.PREFACE + frames.settings([]) + head)
    granted, at, room = 0, 0, 65_535
    while at < len(body) and room > 0:
        sent = b""
        while at < len(body) and room >= min(FRAME, len(body) - at):
            piece = body[at : at + FRAME]
            at, room = at + len(piece), room - len(piece)
            sent += frames.frame(frames.DATA, frames.END_STREAM if at == len(body) else 0, 1, piece)
        seen = len(transport.written)
        for begin in range(0, len(sent), read):
            connection.data_received(sent[begin : begin + read])
        await asyncio.sleep(0)
        more = grants(transport.written[seen:])
        granted, room = granted + more, room + more
        if not sent:
            break
    for _ in range(5):
        await asyncio.sleep(0)
    await server.stop()
    return frontend.sizes, granted, transport.written


def grants(data: bytes) -> int:
    """Return the sum of the WINDOW_UPDATE frames of stream 1."""
    total = at = 0
    while at < len(data):
        size, kind = int.from_bytes(data[at : at + 3], "big"), data[at + 3]
        if kind == frames.WINDOW_UPDATE and data[at + 8] == 1:
            total += int.from_bytes(data[at + 9 : at + 13], "big")
        at += 9 + size
    return total


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
