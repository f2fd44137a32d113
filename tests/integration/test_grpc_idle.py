"""Idle gRPC connections: the server checks one when its client sends, or when its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

import pytest

from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import MemoryBudget, ServerLimits
from gateway.transports.grpc import connection_lifecycle
from gateway.transports.grpc.admission import CallAdmission
from gateway.transports.grpc.connection_lifecycle import ConnectionLifecycle, OpenConnections
from gateway.transports.grpc.server_connection import GrpcServerConnection
from gateway.transports.grpc.states import OPEN
from gateway.transports.http2 import frames
from tests.integration.grpc_echo import Answers, echo
from tests.integration.http_kit import eventually
from tests.integration.test_grpc_hostile import PREFACE
from tests.integration.test_grpc_native import exchange, frame_of, served

LATER_S = 6.0
PING = frames.frame(frames.PING, 0, 0, b"12345678")
HALF_A_BLOCK = frames.frame(frames.HEADERS, frames.END_STREAM, 1, b"\x82")


@dataclass
class Connected:
    """A connection, seen from both ends."""

    server: ConnectionLifecycle
    open: OpenConnections
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def look(self, after_s: float) -> None:
        """Let the server check it, as if it were *after_s* seconds later."""
        now = monotonic() + after_s
        self.server.sweep(now)
        self.server.become_idle(now)


@asynccontextmanager
async def connected() -> AsyncIterator[Connected]:
    """Connect as a client of HTTP/2."""
    limits = ServerLimits()
    found = OpenConnections(ConnectionCount(9, 9))
    admission = CallAdmission(MemoryBudget(1 << 20), limits)

    def make() -> GrpcServerConnection:
        return GrpcServerConnection({}, limits, found, admission, lambda _: None, 3600.0)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(make, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(PREFACE + PING)
    while await frame_of(reader) != (frames.PING, 0, b"12345678"):
        pass
    (connection,) = found.members
    yield Connected(connection, found, reader, writer)
    writer.close()
    server.close()


async def test_idle_connection_is_not_checked_until_its_timeout() -> None:
    """It is idle after five seconds, until its age or `keepalive` expires."""
    async with connected() as each:
        each.look(1.0)
        assert {each.server} == each.open.active
        each.look(LATER_S)
        assert set() == each.open.active
        assert each.server.idle_until == pytest.approx(monotonic() + 75.0, abs=20.0)


async def test_idle_connection_is_active_when_its_client_sends() -> None:
    """Its PING is acknowledged as usual."""
    async with connected() as each:
        each.look(LATER_S)
        each.writer.write(PING)
        assert (frames.PING, 0, b"12345678") == await frame_of(each.reader)
        assert ({each.server}, OPEN) == (each.open.active, each.server.state)


async def test_idle_connection_that_closes_is_forgotten() -> None:
    """The server keeps nothing of it."""
    async with connected() as each:
        each.look(LATER_S)
        each.writer.close()
        await eventually(lambda: not each.open.members)
        assert 0 == each.open.count.total


async def test_idle_connection_can_get_goaway() -> None:
    """Its client gets GOAWAY, and it is active until its last call ends."""
    async with connected() as each:
        each.look(LATER_S)
        each.server.announce_close()
        assert frames.GOAWAY == (await frame_of(each.reader))[0]
        assert {each.server} == each.open.active
        each.look(LATER_S)
        assert {each.server} == each.open.active


async def test_incomplete_header_block_is_not_idle() -> None:
    """A header block that is not complete has a time limit."""
    async with connected() as each:
        each.writer.write(HALF_A_BLOCK)
        await eventually(lambda: not each.server.is_idle())
        each.look(LATER_S)
        assert {each.server} == each.open.active


async def test_idle_connection_gets_goaway_after_keepalive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server checks it again when `keepalive` is over."""
    monkeypatch.setattr(connection_lifecycle, "_IDLE_AFTER_S", 0.0)
    async with served(Answers(echo), keepalive_s=0.3) as server:
        started_s = monotonic()
        assert frames.goaway(0, 0) in await exchange(server.address, PREFACE)
        assert monotonic() - started_s >= 0.3
