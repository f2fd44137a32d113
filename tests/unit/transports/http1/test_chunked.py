"""Chunked bodies: any pieces, and strict checks where parsers differ."""

from __future__ import annotations

import itertools

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.errors import MalformedMessage
from gateway.transports.http1.chunked import ChunkReader

BODY = b"5\r\nhello\r\n1;name=value\r\n!\r\n0\r\nX-Sum: 1\r\n\r\n"


def read(*pieces: bytes) -> tuple[bytes, int, bool, bytes]:
    """Return the body, its number of chunks, whether it ended, and the rest of the last piece."""
    reader = ChunkReader()
    found = b""
    rest = b""
    for piece in pieces:
        parts, at = reader.feed(piece, 0)
        found += b"".join(parts)
        rest = piece[at:]
    return found, reader.chunks, reader.is_done, rest


def test_reads_chunks_extensions_and_trailers() -> None:
    """Only chunk data reaches the body; bytes after its end remain."""
    assert (b"hello!", 2, True, b"GET /") == read(BODY + b"GET /")


@given(cuts=st.sets(st.integers(1, len(BODY) - 1)))
def test_any_split_of_the_bytes_reads_the_same_body(cuts: set[int]) -> None:
    """A body does not depend on the pieces it is received in."""
    places = [0, *sorted(cuts), len(BODY)]
    pieces = [BODY[start:stop] for start, stop in itertools.pairwise(places)]
    assert (b"hello!", 2, True, b"") == read(*pieces)


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"+1\r\na",
        b"0x1\r\na",
        b" 1\r\na",
        b"1 \r\na",
        b"1\na",
        b"\r\n",
        b"1_0\r\n",
        b"ffffffffffffffff\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"0\r\nno colon\r\n",
        b"0\r\nX : 1\r\n",
        b"0\r\n\n",
        b"1;a\nb\r\n",
        b"1;\r\na\r\n",
        b"1;a=\r\na\r\n",
        b'1;a="b\r\na\r\n',
        b"1;" + b"a" * 5000,
        b"0\r\n" + b"X: " + b"a" * 4000 + b"\r\n" + (b"X: " + b"a" * 4000 + b"\r\n") * 5,
    ],
)
def test_rejects_ambiguous_chunked_bodies(data: bytes) -> None:
    """Sizes, line ends, extensions and trailers are strictly checked and limited."""
    with pytest.raises(MalformedMessage):
        read(data)


@given(
    data=st.lists(
        st.sampled_from(
            [
                b"0",
                b"1",
                b"2",
                b"a",
                b"F",
                b"\r\n",
                b"\n",
                b"\r",
                b";",
                b"x=y",
                b" ",
                b":",
                b"hello",
            ]
        ),
        max_size=12,
    ).map(b"".join)
)
def test_accepted_bodies_are_read_as_by_llhttp(data: bytes) -> None:
    """A body that is read to its end is the body that llhttp reads."""

    class Oracle:
        def __init__(self) -> None:
            self.body = b""
            self.done = False

        def on_body(self, part: bytes) -> None:
            self.body += part

        def on_message_complete(self) -> None:
            self.done = True

    try:
        body, _, done, rest = read(data)
    except MalformedMessage:
        return
    if not done:
        return
    oracle = Oracle()
    parser = httptools.HttpRequestParser(oracle)
    parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    parser.feed_data(data[: len(data) - len(rest)])
    assert (body, True) == (oracle.body, oracle.done)
