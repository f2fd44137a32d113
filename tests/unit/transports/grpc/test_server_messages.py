"""The memory that the messages of a call use until they are read."""

from __future__ import annotations

from typing import Any, cast
from unittest import mock

import pytest

from gateway.ir.errors import GatewayError
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc.server_messages import RequestMessages
from gateway.transports.http2.flood_control import FloodBudget
from gateway.transports.http2.streams import Http2Stream
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import BODY_PATIENCE_S, Reservation

EMPTY = bytes(5)
STREAM = Http2Stream(1, 0, 0, None)


def test_unread_messages_do_not_keep_received_buffers() -> None:
    """A small message is copied, so that its received buffer of 64 KiB can be freed."""
    unused = cast("Any", None)  # complete messages need no connection
    reservation = Reservation(MemoryBudget(1 << 20), 0.0)
    found = RequestMessages(unused, STREAM, "", ServerLimits(), reservation, unused, 0.0)
    message = b"\0\0\0\0\3abc"
    for received in (EMPTY + bytes(65_000), message + bytes(65_000)):
        found.feed(memoryview(received)[: 5 + received[4]], end=False)
    assert [b"", b"abc"] == [bytes(each.view) for each in found.messages]
    assert [0, 3] == [len(cast("bytes", each.view.obj)) for each in found.messages]
    assert 0 == reservation.size_bytes


def test_a_message_that_fills_its_buffer_is_not_copied() -> None:
    """It is a view of the received buffer."""
    unused = cast("Any", None)
    reservation = Reservation(MemoryBudget(1 << 20), 0.0)
    found = RequestMessages(unused, STREAM, "", ServerLimits(), reservation, unused, 0.0)
    received = b"\0" + (1000).to_bytes(4, "big") + bytes(1000)
    found.feed(memoryview(received), end=True)
    assert received is found.messages[0].view.obj


async def test_a_complete_unread_message_is_not_a_stalled_one() -> None:
    """A complete message in a stream's queue does not fail while others wait for memory."""
    connection, stream = mock.MagicMock(), mock.MagicMock(unread=0)
    connection.core.windows.consume.return_value = False
    stream.short_by.return_value = 0
    budget = MemoryBudget(1 << 20)
    failures: list[GatewayError] = []
    found = RequestMessages(
        connection, stream, "", ServerLimits(), Reservation(budget, 0.0), failures.append, 0.0
    )
    received = memoryview(b"\0" + (200_000).to_bytes(4, "big") + bytes(200_000))
    found.feed(received[:1000], end=False)
    found.feed(received[1000:], end=False)
    assert (1, 200_000) == (len(found.messages), budget.used)
    with pytest.raises(TimeoutError):
        await budget.acquire(1 << 20, timeout_s=2 * BODY_PATIENCE_S)
    assert [] == failures
    found.close()
    assert 0 == budget.used


async def test_prefixes_in_frames_of_their_own_are_no_flood() -> None:
    """Each complete message refunds one small frame before it, and no more."""
    connection, stream = mock.MagicMock(), mock.MagicMock(unread=0)
    stream.short_by.return_value = 0
    connection.core.windows.consume.return_value = False
    connection.core.flood_budget = budget = FloodBudget()
    reservation = Reservation(MemoryBudget(1 << 20), 0.0)
    unused = cast("Any", None)
    found = RequestMessages(connection, stream, "", ServerLimits(), reservation, unused, 0.0)
    before = budget.remaining
    for _ in range(3000):
        found.feed(memoryview(b"\0\0\0\0\3"), end=False)
        found.feed(memoryview(b"abc"), end=False)
        found.messages.clear()
    assert before == budget.remaining
    for piece in (b"\0\0\0", b"\0\3", b"a", b"b", b"c"):
        found.feed(memoryview(piece), end=False)
    assert before - 3 == budget.remaining
