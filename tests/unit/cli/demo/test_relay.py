"""The counting relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.cli.demo.relay import Relay


@pytest.fixture
async def upper_case_server() -> AsyncIterator[int]:
    """Run a server that sends each line twice, in capitals; yield its port."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper() * 2)
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_forwards_and_counts_in_both_directions(upper_case_server: int) -> None:
    """Bytes are forwarded unchanged and counted by direction, until both ends close."""
    async with Relay("127.0.0.1", upper_case_server) as relay:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(b"hello\n")
        writer.write_eof()
        assert await reader.read() == b"HELLO\nHELLO\n"
        writer.close()
        assert (6, 12) == (relay.sent, relay.received)


async def test_close_ends_open_connections(upper_case_server: int) -> None:
    """A connection that is still open ends with the relay."""
    async with Relay("127.0.0.1", upper_case_server) as relay:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(b"hello\n")
        assert await reader.readline() == b"HELLO\n"
    rest = await reader.read()
    assert rest == b"HELLO\n"
    writer.close()


async def test_a_missing_server_ends_the_connection() -> None:
    """The client sees the end of the stream, as after the crash of a server."""
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    async with Relay("127.0.0.1", port) as relay:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await reader.read() == b""
        writer.close()


def test_a_closed_relay_has_no_port() -> None:
    """The port is known only while the relay listens."""
    with pytest.raises(RuntimeError, match="the relay is not open"):
        _ = Relay("127.0.0.1", 1).port
