"""Bytes inserted into a streaming body."""

from __future__ import annotations

import pytest

from gateway.ir.bodies.streaming_body import BodySink, InterleavedBody
from tests.fakes import FakeArriving

INSERTS = ((4, b"<one>"), (7, b"<two>"), (9, b"<three>"))
EXPECTED = b"ab<one>cde<two>fg<three>h"


class Sink:
    """Collects the pieces, and records the remaining bytes after each."""

    def __init__(self, body: InterleavedBody) -> None:
        self.body = body
        self.content = b""
        self.remaining_bytes: list[int] = []

    def write(self, piece: memoryview, /) -> None:
        self.content += piece
        self.remaining_bytes.append(self.body.remaining_bytes)


class Pieces(FakeArriving):
    """A body that arrives in pieces of one size."""

    def __init__(self, body: bytes, start: int, size: int) -> None:
        super().__init__(body, start)
        self._size = size
        self.calls: list[str] = []

    def pipe_to(self, sink: BodySink, /) -> None:
        self.is_started = True
        for at in range(self.start, self.end, self._size):
            piece = memoryview(self.body)[at : at + self._size]
            self.remaining_bytes -= piece.nbytes
            sink.write(piece)

    def pause(self) -> None:
        self.calls.append("hold")

    def resume(self) -> None:
        self.calls.append("go on")

    def detach(self) -> None:
        self.calls.append("leave")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_inserts_precede_their_offsets(size: int) -> None:
    """The pieces may have any size; `remaining_bytes` is 0 only at the end."""
    body = InterleavedBody(Pieces(b"..abcdefgh", 2, size), INSERTS)
    assert len(EXPECTED) == body.remaining_bytes
    assert body.remaining_bytes == body.end - body.start
    sink = Sink(body)
    body.pipe_to(sink)
    assert EXPECTED == sink.content
    assert 0 == sink.remaining_bytes[-1]
    assert all(sink.remaining_bytes[:-1]), "it looked as if it were over"
    assert body.is_started


def test_inserts_at_the_end_are_written() -> None:
    """Several inserts may follow the last byte of the source."""
    body = InterleavedBody(Pieces(b"..abc", 2, 2), ((4, b"<one>"), (5, b"<two>"), (5, b"<three>")))
    sink = Sink(body)
    body.pipe_to(sink)
    assert b"ab<one>c<two><three>" == sink.content
    assert 0 == body.remaining_bytes


def test_insert_at_the_beginning_is_written() -> None:
    """The first insert may precede the first byte."""
    body = InterleavedBody(Pieces(b"..abc", 2, 2), ((2, b"<first>"),))
    sink = Sink(body)
    body.pipe_to(sink)
    assert b"<first>abc" == sink.content


async def test_other_operations_are_delegated_to_the_source() -> None:
    """Pause, resume, detach, read_all and last_progress are the source's."""
    source = Pieces(b"..abc", 2, 2)
    body = InterleavedBody(source, ())
    source.last_progress = 7.0
    assert 7.0 == body.last_progress
    assert b"..abc" == bytes(await body.read_all())
    body.pause()
    body.resume()
    body.detach()
    assert ["hold", "go on", "leave"] == source.calls
    sink = Sink(body)
    body.pipe_to(sink)
    body.detach()
    body.write(memoryview(b"late"))
    assert b"abc" == sink.content
