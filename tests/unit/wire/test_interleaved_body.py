"""Bytes put between those of a body that is still arriving."""

from __future__ import annotations

import pytest

from gateway.ir.streaming_body import BodySink
from gateway.wire.interleaved_body import InterleavedBody
from tests.fakes import FakeArriving

INSERTS = ((4, b"<one>"), (7, b"<two>"), (9, b"<three>"))
EXPECTED = b"ab<one>cde<two>fg<three>h"


class Cup:
    """Takes what is poured, and notes how much was left each time."""

    def __init__(self, poured: InterleavedBody) -> None:
        self.poured = poured
        self.content = b""
        self.remaining_bytes: list[int] = []

    def write(self, piece: memoryview, /) -> None:
        self.content += piece
        self.remaining_bytes.append(self.poured.remaining_bytes)


class Pieces(FakeArriving):
    """A body that comes in pieces of one size."""

    def __init__(self, body: bytes, start: int, size: int) -> None:
        super().__init__(body, start)
        self._size = size
        self.calls: list[str] = []

    def pipe_to(self, taker: BodySink, /) -> None:
        self.is_started = True
        for at in range(self.start, self.end, self._size):
            piece = memoryview(self.body)[at : at + self._size]
            self.remaining_bytes -= piece.nbytes
            taker.write(piece)

    def pause(self) -> None:
        self.calls.append("hold")

    def resume(self) -> None:
        self.calls.append("go on")

    def detach(self) -> None:
        self.calls.append("leave")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_everything_stands_where_it_belongs(size: int) -> None:
    """Whatever the pieces, each insert comes before its place; what is left is known throughout."""
    poured = InterleavedBody(Pieces(b"..abcdefgh", 2, size), INSERTS)
    assert len(EXPECTED) == poured.remaining_bytes
    assert poured.remaining_bytes == poured.end - poured.start
    cup = Cup(poured)
    poured.pipe_to(cup)
    assert EXPECTED == cup.content
    assert 0 == cup.remaining_bytes[-1]
    assert all(cup.remaining_bytes[:-1]), "it looked as if it were over"
    assert poured.is_started


def test_an_insert_at_the_end() -> None:
    """Nothing of the source may follow the last ones."""
    poured = InterleavedBody(
        Pieces(b"..abc", 2, 2), ((4, b"<one>"), (5, b"<two>"), (5, b"<three>"))
    )
    cup = Cup(poured)
    poured.pipe_to(cup)
    assert b"ab<one>c<two><three>" == cup.content
    assert 0 == poured.remaining_bytes


def test_an_insert_at_the_beginning() -> None:
    """The first place may be where the source begins."""
    poured = InterleavedBody(Pieces(b"..abc", 2, 2), ((2, b"<first>"),))
    cup = Cup(poured)
    poured.pipe_to(cup)
    assert b"<first>abc" == cup.content


async def test_all_else_is_the_sources() -> None:
    """Holding, going on and leaving are its affair, and so is the whole."""
    source = Pieces(b"..abc", 2, 2)
    poured = InterleavedBody(source, ())
    source.last_progress = 7.0
    assert 7.0 == poured.last_progress
    assert b"..abc" == bytes(await poured.read_all())
    poured.pause()
    poured.resume()
    poured.detach()
    assert ["hold", "go on", "leave"] == source.calls
    cup = Cup(poured)
    poured.pipe_to(cup)
    poured.detach()
    poured.write(memoryview(b"late"))
    assert b"abc" == cup.content
