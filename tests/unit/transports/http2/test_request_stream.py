"""The body of a plain HTTP request on a stream of HTTP/2, while memory is short."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.transports.client_shares import NO_CLIENT_SHARES
from gateway.transports.contract import ServerLimits
from gateway.transports.http2.flood_control import FloodBudget
from gateway.transports.http2.request_stream import HttpStream
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.memory_budget import STEP_BYTES, MemoryBudget
from gateway.transports.reservation import Reservation

SIZE = 2 * STEP_BYTES - 5
WINDOW = 65_535
CONTENT = bytes(range(251)) * (SIZE // 251 + 1)


class Connection:
    """A connection and its core, which note the windows that are opened."""

    def __init__(self) -> None:
        self.core: Any = self
        self.windows = self
        self.loop = asyncio.get_running_loop()
        self.http_client = NO_CLIENT_SHARES
        self.flood_budget = FloodBudget()

    def consume(self, stream: Http2Stream, size: int) -> bool:
        return False

    def grant(self, stream: Http2Stream, size: int) -> None:
        stream.window += size

    def flush_soon(self) -> None:
        pass


class Body(HttpStream):
    """A request without its exchange."""

    def __init__(self, connection: Any, stream: Http2Stream) -> None:
        head: Any = type("Head", (), {"method": "POST"})
        super().__init__(connection, stream, head, listener=head, body=None)

    async def _run(self) -> None:
        """Leave the body to the test."""


def send(body: Body, stream: Http2Stream, at: int, *, is_copied: bool) -> int:
    """Send as much as the window of the client allows, from *at*; return the position after it."""
    size = min(stream.window, SIZE - at)
    room = body.room() if is_copied else None
    stream.window -= size
    if room is None or at + size == SIZE:
        body.on_data(memoryview(CONTENT)[at : at + size], end=at + size == SIZE)
    else:
        room[:size] = CONTENT[at : at + size]
        body.copied(size)
    return at + size


@pytest.mark.parametrize("is_copied", [False, True])
async def test_a_body_whose_reservation_is_full_waits_for_memory(is_copied: bool) -> None:
    """The window opens again when memory is free, although nothing that has arrived waits for it.

    The exchange waited for the client, and the client for a window, until the body timed out.
    """
    connection, stream = Connection(), Http2Stream(1, WINDOW, WINDOW, None)
    body, budget = Body(connection, stream), MemoryBudget(SIZE)
    other, held = Reservation(budget, None), Reservation(budget, None)
    assert held.try_grow(STEP_BYTES)
    assert other.try_grow(SIZE - STEP_BYTES)
    task = asyncio.create_task(body.body(SIZE, ServerLimits(), held))
    await asyncio.sleep(0)
    at = 0
    while at < STEP_BYTES:
        at = send(body, stream, at, is_copied=is_copied)
        await asyncio.sleep(0)
    assert (STEP_BYTES, 0) == (at, stream.window)
    for _ in range(4):
        await asyncio.sleep(0)
    other.close()
    for _ in range(4):
        await asyncio.sleep(0)
    assert stream.window > 0
    while at < SIZE:
        at = send(body, stream, at, is_copied=is_copied)
        await asyncio.sleep(0)
    assert CONTENT[:SIZE] == await task
