"""A splice between two sockets: what goes first, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.transports.contract import ServerLimits
from gateway.transports.http.request_body import TransferRateLimit
from gateway.transports.http1.streaming_body import CutThroughBody
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import Reservation

pytestmark = pytest.mark.skipif(not hasattr(os, "splice"), reason="there is no splice here")

SIZE = 100_000


class Transport:
    """A transport of which only the socket is real."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.unsent = 0
        self.questions = 0
        self.written = b""

    def get_extra_info(self, name: str) -> Any:
        return self.sock if name == "socket" else None

    def get_write_buffer_size(self) -> int:
        self.questions += 1
        return self.unsent

    def write(self, piece: memoryview, /) -> None:
        self.written += piece


class Source:
    """A connection of a client that notes whether it reads."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.reading = True
        self.has_ended = False

    def resume_reading(self) -> None:
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def begin_exchange(self) -> None:
        raise AssertionError("it has begun")

    def check_peer(self, missing: int) -> None:
        raise AssertionError(missing)

    def body_ended(self) -> None:
        self.has_ended = True


class Scene:
    """A body of which one byte was received, between a client and a server."""

    def __init__(self, client: socket.socket, near: list[socket.socket]) -> None:
        self.client = client
        self.source = Source(Transport(near[0]))
        self.sink = Transport(near[1])
        pace = TransferRateLimit(ServerLimits(), asyncio.get_running_loop())
        held = Reservation(MemoryBudget(1 << 30), 0.01)
        self.errors: list[Any] = []
        self.body = CutThroughBody(self.source, SIZE + 1, 1, pace, held, self.errors.append)
        self.body.feed(b"x", 0)
        self.body.pipe_to(self.sink)


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        with one, other:
            one.setblocking(False)
            other.setblocking(False)
            yield one, other


@contextmanager
def scene() -> Iterator[tuple[Scene, socket.socket]]:
    with pair() as (client, source), pair() as (sink, server):
        made = Scene(client, [source, sink])
        yield made, server
        made.body.close()


async def test_buffered_output_is_sent_before_the_splice() -> None:
    """Nothing moves while the transport of the upstream has bytes, although there is room."""
    data = os.urandom(SIZE)
    loop = asyncio.get_running_loop()
    with scene() as (made, server):
        made.sink.unsent = 10
        await loop.sock_sendall(made.client, data)
        made.body.splice_to(made.sink)
        async with asyncio.timeout(20):
            while made.sink.questions < 20:  # noqa: ASYNC110  # there is room: each turn asks
                await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            server.recv(1)
        made.sink.unsent = 0
        received = b""
        async with asyncio.timeout(20):
            while len(received) < SIZE:
                received += await loop.sock_recv(server, SIZE)
        assert data == received
        assert made.source.has_ended
        assert 0 == made.body.remaining_bytes


async def test_resumed_sink_does_not_resume_reading() -> None:
    """Bytes that the connection read meanwhile would be missing in the middle."""
    with scene() as (made, _server):
        made.body.splice_to(made.sink)
        assert not made.source.reading
        made.body.pause()
        made.body.resume()
        assert not made.source.reading
        assert b"" == made.sink.written


async def test_failed_body_closes_the_client_socket() -> None:
    """Its connection is closed with the last descriptor of it: the client sees that at once."""
    with scene() as (made, _server):
        made.body.splice_to(made.sink)
        made.source.transport.sock.close()
        made.body.fail(ConnectionResetError("the client has left"))
        async with asyncio.timeout(20):
            assert b"" == await asyncio.get_running_loop().sock_recv(made.client, 1)
