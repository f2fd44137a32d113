"""Bodies of requests: each byte is written once, to its final buffer."""

from __future__ import annotations

import asyncio

import numpy as np

from gateway.transports.contract import ServerLimits
from gateway.transports.http1.head_reader import RequestHead, RequestHeadCache
from gateway.transports.http1.request import ReceivingRequest
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import Reservation

SIZE = 1 << 20
PIECE = 60_000


class IdleConnection:
    """A connection whose methods do nothing."""

    transport = None

    def resume_reading(self) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing."""

    def begin_exchange(self) -> None:
        """Do nothing."""

    def check_peer(self, missing: int) -> None:
        """Do nothing."""

    def body_ended(self) -> None:
        """Do nothing."""


def receiving_request(size: int) -> ReceivingRequest:
    fields = [(b"Host", b"h"), (b"Content-Length", b"%d" % size)]
    head = RequestHead("POST", (1, 1), False, size, False, None, "/x", fields)
    return ReceivingRequest(IdleConnection(), head, RequestHeadCache(ServerLimits()))


async def test_a_large_body_is_received_without_a_copy() -> None:
    """The socket reads into the buffer that the frontend receives."""
    request = receiving_request(SIZE)
    lease = Reservation(MemoryBudget(SIZE), 0.1)
    reading = asyncio.create_task(request.body(SIZE, ServerLimits(), lease))
    await asyncio.sleep(0)
    rooms: list[memoryview] = []
    sent = b""
    while not request.is_complete:
        room = request.room()
        assert room is not None
        piece = bytes([len(rooms) % 256]) * min(PIECE, len(room))
        room[: len(piece)] = piece
        request.received(len(piece))
        rooms.append(room)
        sent += piece
    body = await reading
    assert sent == body
    assert body.readonly
    whole = np.frombuffer(body, np.uint8)
    assert all(np.shares_memory(whole, np.frombuffer(room, np.uint8)) for room in rooms)


async def test_a_small_body_received_in_one_piece_is_a_view() -> None:
    """It is complete or None, and every read returns the same buffer."""
    request = receiving_request(5)
    before = request.buffered_body
    assert 3 == request.feed(b"abchello"[:5], 3)
    halfway = request.buffered_body
    assert 8 == request.feed(b"abchello", 3)
    body = request.buffered_body
    assert before is halfway is None
    assert body is not None
    assert b"hello" == body.tobytes()
    again = await request.body(5, ServerLimits(), Reservation(MemoryBudget(5), 0.1))
    assert body.obj is again.obj
