"""Messages with their prefixes, in any pieces of the stream."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.errors import MalformedMessage, TooLarge, Unsupported
from gateway.transports.grpc.messages import (
    GrpcMessage,
    MessageReader,
    frame_message,
    whole_message,
)
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import Reservation

pytestmark = pytest.mark.usefixtures("build")

CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=200)


def cut(data: bytes, sizes: list[int]) -> list[memoryview]:
    """Return *data* in pieces of *sizes*, again and again."""
    pieces, at, number = [], 0, 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        pieces.append(memoryview(data)[at : at + size])
        at, number = at + size, number + 1
    return pieces


@given(messages=st.lists(st.binary(max_size=100), max_size=8), sizes=CUTS, reserve=st.booleans())
def test_messages_survive_any_cut(messages: list[bytes], sizes: list[int], reserve: bool) -> None:
    """The same messages are decoded, with memory reserved for them or not, and no bytes remain."""
    data = b"".join(b"".join(frame_message([message])) for message in messages)
    reader = MessageReader(100, "identity")
    found: list[bytes] = []
    for piece in cut(data, sizes):
        found += [each.view.tobytes() for each in reader.feed(piece)]
        if reserve:
            reader.reserve(Reservation(MemoryBudget(1), None), lasts=False)
    assert messages == found
    assert reader.is_empty


def test_whole_message_is_a_view() -> None:
    """A message received in one piece is not copied."""
    data = bytearray(b"\0\0\0\0\3abc")
    (message,) = MessageReader(3, "identity").feed(memoryview(data))
    data[5:] = b"xyz"
    assert b"xyz" == message.view.tobytes()


@given(message=st.binary(max_size=100), limit=st.integers(90, 100))
def test_data_with_exactly_one_message_needs_no_reader(message: bytes, limit: int) -> None:
    """The fast path returns the reader's message as a view, and None for any other data."""
    data = b"".join(frame_message([message]))
    found = whole_message(memoryview(data), limit)
    assert (len(message) <= limit) == (found is not None)
    if found is not None:
        assert [GrpcMessage(found)] == MessageReader(limit, "identity").feed(memoryview(data))
        assert found.obj is data
    for other in (data[:-1], data + b"\0", b"\1" + data[1:], data[:4]):
        assert whole_message(memoryview(other), limit) is None


def test_a_message_in_many_frames_is_copied_once() -> None:
    """Once its memory is reserved, the bytes are copied there without further allocations."""
    size, piece = 4 << 20, memoryview(bytes(16 << 10))
    reader = MessageReader(size, "identity")
    tracemalloc.start()
    try:
        reader.feed(memoryview(b"\0" + size.to_bytes(4, "big")))
        reader.feed(piece)
        reader.reserve(Reservation(MemoryBudget(1), None), lasts=False)
        baseline, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(size // len(piece) - 2):
            assert [] == reader.feed(piece)
        (message,) = reader.feed(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == len(message.view)
    assert baseline >= size
    assert peak - baseline < len(piece)


@pytest.mark.parametrize(
    ("data", "coding", "error", "why"),
    [
        (b"\0\0\0\0\4", "identity", TooLarge, "has 4 bytes, at most 3"),
        (b"\0\xff\xff\xff\xff", "identity", TooLarge, "4294967295"),
        (b"\2\0\0\0\1x", "identity", MalformedMessage, "begins with 2"),
        (b"\1\0\0\0\1x", "identity", MalformedMessage, "does not say how"),
        (b"\1\0\0\0\1x", "br", Unsupported, "'br' is unknown"),
    ],
)
def test_invalid_message_prefixes_are_rejected(
    data: bytes, coding: str, error: type[Exception], why: str
) -> None:
    """Size, flag and coding are checked before any byte of the message arrives."""
    with pytest.raises(error, match=why):
        MessageReader(3, coding).feed(memoryview(data))


def test_the_reader_reports_the_missing_bytes() -> None:
    """The reader has the size of the incomplete message and the number of missing bytes."""
    reader = MessageReader(1000, "gzip")
    assert [] == reader.feed(memoryview(b"\1\0\0\0\x0aabc"))
    assert (10, 7, False) == (reader.size, reader.missing, reader.is_empty)
    (message,) = reader.feed(memoryview(b"defghij"))
    assert (b"abcdefghij", "gzip", 0) == (message.view.tobytes(), message.coding, reader.missing)
