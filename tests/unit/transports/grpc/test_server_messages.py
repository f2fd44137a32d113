"""What the messages of a call keep in memory until they are read."""

from __future__ import annotations

from typing import Any, cast

from gateway.transports.admission import MemoryBudget, Reservation
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc.server_messages import RequestMessages

EMPTY = bytes(5)


def test_unread_messages_keep_no_received_buffer() -> None:
    """A small message is copied, so that the 64 KiB that it arrived with can be freed."""
    unused = cast("Any", None)  # complete messages need neither a connection nor a stream
    reservation = Reservation(MemoryBudget(1 << 20), 0.0)
    found = RequestMessages(unused, unused, "", ServerLimits(), reservation, unused, 0.0)
    message = b"\0\0\0\0\3abc"
    for received in (EMPTY + bytes(65_000), message + bytes(65_000)):
        found.feed(memoryview(received)[: 5 + received[4]], end=False)
    assert [b"", b"abc"] == [bytes(each.view) for each in found.messages]
    assert [0, 3] == [len(cast("bytes", each.view.obj)) for each in found.messages]
    assert 0 == reservation.size_bytes


def test_a_message_that_fills_its_buffer_is_not_copied() -> None:
    """It is a view of what arrived."""
    unused = cast("Any", None)
    reservation = Reservation(MemoryBudget(1 << 20), 0.0)
    found = RequestMessages(unused, unused, "", ServerLimits(), reservation, unused, 0.0)
    received = b"\0" + (1000).to_bytes(4, "big") + bytes(1000)
    found.feed(memoryview(received), end=True)
    assert received is found.messages[0].view.obj
