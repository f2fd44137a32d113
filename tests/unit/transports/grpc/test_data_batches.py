"""Long frames of a gRPC call that come together: what is let in, and what becomes of a broken one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.ir.errors import GatewayError
from gateway.transports.contract import GrpcFrontend, GrpcMount, MemoryBudget, ServerLimits
from gateway.transports.grpc.server import GrpcServer
from gateway.transports.grpc.server_connection import GrpcServerConnection
from gateway.transports.http2 import frames as h2
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


class Kept(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Asked(GrpcFrontend):
    """A frontend that keeps what it is asked."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def __call__(self, wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
        self.sizes.append(len(wire.view))
        yield GrpcResponse((b"",))

    def reject(self, error: GatewayError, /) -> GrpcResponse:
        return GrpcResponse(status=GrpcStatus.RESOURCE_EXHAUSTED, details=error.message)


async def answered(
    body: bytes, read: int, length: int | None = None
) -> tuple[list[int], int, bytes]:
    """Send a call with *body* in long frames, *read* bytes at a time, within what is let in.

    With *length*, the head says that as the length of the whole.

    Returns what was asked, how much was let in beyond the first window, and all that was written.
    """
    frontend = Asked()
    mount = GrpcMount({METHOD: MethodKind.UNARY}, frontend)
    limits = ServerLimits(message_bytes=LIMIT)
    server = GrpcServer("127.0.0.1:0", [mount], limits, MemoryBudget(1 << 30), listens=False)
    await server.start()
    connection: GrpcServerConnection = server.connection()
    transport = Kept()
    connection.connection_made(transport)
    length_header = b"" if length is None else literal(b"content-length", b"%d" % length)
    head = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEAD + length_header)
    connection.data_received(h2.PREFACE + h2.settings([]) + head)
    granted, at, room = 0, 0, 65_535
    while at < len(body) and room > 0:
        sent = b""
        while at < len(body) and room >= min(FRAME, len(body) - at):
            piece = body[at : at + FRAME]
            at, room = at + len(piece), room - len(piece)
            sent += h2.frame(h2.DATA, h2.END_STREAM if at == len(body) else 0, 1, piece)
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
    """Return what the WINDOW_UPDATE frames of stream 1 come to."""
    total = at = 0
    while at < len(data):
        size, kind = int.from_bytes(data[at : at + 3], "big"), data[at + 3]
        if kind == h2.WINDOW_UPDATE and data[at + 8] == 1:
            total += int.from_bytes(data[at + 9 : at + 13], "big")
        at += 9 + size
    return total


@pytest.mark.parametrize("read", [1000, FRAME + 9, 20_000, 1 << 20])
async def test_no_more_is_let_in_than_is_missing(read: int) -> None:
    """A message larger than the window is granted the rest of itself, however its frames come."""
    size = 200_000
    sizes, granted, _ = await answered(b"\0" + size.to_bytes(4, "big") + bytes(size), read)
    assert [size] == sizes
    assert 5 + size - 65_535 == granted


@pytest.mark.parametrize("read", [FRAME + 9, 1 << 20])
async def test_nothing_is_read_after_what_is_too_large(read: int) -> None:
    """A call refused in one frame is not begun with the next, which looks like a message."""
    too_large = b"\0" + (LIMIT + 1).to_bytes(4, "big")
    good = b"\0" + (FRAME - 5).to_bytes(4, "big") + bytes(FRAME - 5)
    sizes, granted, written = await answered(too_large.ljust(FRAME, b"x") + good * 3, read)
    assert [] == sizes
    assert granted == 0
    assert b"at most 1048576 are allowed" in written


@pytest.mark.parametrize("read", [FRAME + 9, 1 << 20])
@pytest.mark.parametrize("wrong", [0, 1, -1, -FRAME, 10_000 - 65_535])
async def test_an_announced_length_is_held_to(wrong: int, read: int) -> None:
    """A call that says how long it is has that length, or is reset, in whatever frames it comes."""
    size = 60_000
    body = b"\0" + size.to_bytes(4, "big") + bytes(size)
    sizes, _, written = await answered(body, read, len(body) + wrong)
    assert ([] if wrong else [size]) == sizes
    assert (h2.reset(1, h2.PROTOCOL_ERROR) in written) == (wrong != 0)
