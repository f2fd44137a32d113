"""HTTP/1 responses: in any framing, whole or in pieces."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.errors import GatewayError, TooLarge, UpstreamProtocolError
from gateway.transports.contract import ClientLimits
from gateway.transports.http.client_rules import UpstreamErrors
from gateway.transports.http1.response_reader import ResponseHeadCache, ResponseReader

PEER = UpstreamErrors("far:80", "far", ClientLimits(message_bytes=100))
HEAD = b"HTTP/1.1 200 OK\r\nX-One: 1\r\n"
FRAMED = {
    "length": HEAD + b"Content-Length: 5\r\n\r\nhello",
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 5\r\n\r\nhello",
    "until_close": HEAD + b"\r\nhello",
}


def cut(data: bytes, cuts: set[int]) -> list[bytes]:
    places = [0, *sorted(each for each in cuts if each < len(data)), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(places)]


def feed_pieces(reader: ResponseReader, *pieces: bytes) -> ResponseReader:
    """Feed *pieces* as a connection does: into the reader's buffer where it has one."""
    for piece in pieces:
        room = reader.room()
        if room is None:
            assert reader.feed(piece) == len(piece)
        else:
            room[: len(piece)] = piece
            reader.received(len(piece))
    return reader


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("framing", FRAMED)
@given(cuts=st.sets(st.integers(1, 80)), heads=st.booleans())
def test_any_split_of_the_bytes_reads_the_same_response(
    framing: str, streamed: bool, cuts: set[int], heads: bool
) -> None:
    """Status, headers and body do not depend on pieces, framing, and whether the head is cached."""
    head_cache = ResponseHeadCache()
    for _ in range(2 * heads):
        feed_pieces(
            ResponseReader(PEER, "GET", streamed=streamed, heads=head_cache), FRAMED[framing]
        )
    reader = feed_pieces(
        ResponseReader(PEER, "GET", streamed=streamed, heads=head_cache),
        *cut(FRAMED[framing], cuts),
    )
    assert reader.feed_eof()
    body = b"".join(reader.pieces) if streamed else bytes(reader.body())
    assert (200, b"hello") == (reader.head.status, body)
    assert "1" == reader.head.headers.get("x-one")
    assert (framing != "until_close") == reader.is_persistent


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("framing", FRAMED)
def test_a_cached_head_reads_the_same_response(framing: str, streamed: bool) -> None:
    """Head, persistence and body are equal with and without the cache."""
    head_cache = ResponseHeadCache()
    results = []
    for _ in range(3):
        reader = feed_pieces(
            ResponseReader(PEER, "GET", streamed=streamed, heads=head_cache), FRAMED[framing]
        )
        assert reader.feed_eof()
        body = b"".join(reader.pieces) if streamed else bytes(reader.body())
        results.append((reader.head, reader.is_persistent, body))
    assert results[0] == results[1] == results[2]
    assert (framing != "interim") == len(head_cache)


def cache_after(times: int, data: bytes, peer: UpstreamErrors = PEER) -> ResponseHeadCache:
    """Return the head cache after *data* was received *times* times."""
    head_cache = ResponseHeadCache()
    for _ in range(times):
        with contextlib.suppress(TooLarge):
            ResponseReader(peer, "GET", streamed=False, heads=head_cache).feed(data)
    return head_cache


def test_a_whole_response_with_a_cached_head_needs_no_reader() -> None:
    """From the third on, a response received whole is returned at once, without a copy."""
    data = FRAMED["length"]
    assert cache_after(1, data).complete_response(data) is None
    response = cache_after(2, data).complete_response(data)
    assert response is not None
    assert (200, "1", b"hello") == (
        response.status,
        response.headers.get("x-one"),
        bytes(response.view),
    )
    assert np.shares_memory(np.frombuffer(response.view, np.uint8), np.frombuffer(data, np.uint8))


@pytest.mark.parametrize(
    "data",
    [
        FRAMED["chunks"],
        FRAMED["until_close"],
        FRAMED["interim"],
        b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        HEAD + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        HEAD + b"Content-Length: 101\r\n\r\n" + b"a" * 101,
        FRAMED["length"][:-1],
        FRAMED["length"] + b"H",
        b"",
    ],
)
def test_other_responses_need_a_reader(data: bytes) -> None:
    """Chunks, codings, closing connections and wrong lengths need a reader, cached head or not."""
    assert cache_after(3, data).complete_response(data) is None
    assert cache_after(3, FRAMED["length"]).complete_response(data) is None


def test_a_large_body_is_received_without_a_copy() -> None:
    """The socket reads into the buffer that is the body."""
    size = 1 << 20
    reader = ResponseReader(UpstreamErrors("far:80", "far", ClientLimits()), "GET", streamed=False)
    reader.feed(HEAD + b"Content-Length: %d\r\n\r\nfirst" % size)
    rooms = []
    while not reader.is_done:
        room = reader.room()
        assert room is not None
        reader.received(min(60_000, len(room)))
        rooms.append(room)
    body = np.frombuffer(reader.body(), np.uint8)
    assert size == body.nbytes
    assert b"first" == body[:5].tobytes()
    assert all(np.shares_memory(body, np.frombuffer(room, np.uint8)) for room in rooms)


def test_a_cached_head_is_checked_against_the_size_limit() -> None:
    """An oversized body is rejected the first and the second time."""
    head_cache = ResponseHeadCache()
    for streamed in (True, True, False, False):
        reader = ResponseReader(PEER, "GET", streamed=streamed, heads=head_cache)
        with contextlib.nullcontext() if streamed else pytest.raises(TooLarge):
            reader.feed(HEAD + b"Content-Length: 101\r\n\r\n")


def test_a_cached_head_of_a_head_response_has_no_body() -> None:
    """A head cached from a response to GET is read by the method of the next request."""
    head_cache = ResponseHeadCache()
    for _ in range(2):
        feed_pieces(ResponseReader(PEER, "GET", streamed=False, heads=head_cache), FRAMED["length"])
    reader = ResponseReader(PEER, "HEAD", streamed=False, heads=head_cache)
    head = FRAMED["length"].removesuffix(b"hello")
    assert reader.feed(FRAMED["length"]) == len(head)
    assert reader.is_done
    assert b"" == bytes(reader.body())


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", HEAD + b"Content-Length: 5\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
        ("POST", HEAD + b"Content-Length: 0\r\n\r\n"),
    ],
)
def test_responses_without_a_body_end_with_their_head(method: str, head: bytes) -> None:
    """Where HTTP has no body none is awaited, and the connection is kept."""
    reader = feed_pieces(ResponseReader(PEER, method, streamed=False), head)
    assert (True, True, b"") == (reader.is_done, reader.is_persistent, bytes(reader.body()))


def test_bytes_after_a_response_remain_unread() -> None:
    """Bytes after the end do not belong to the response, whether its head is cached or not."""
    head_cache = ResponseHeadCache()
    data = FRAMED["length"]
    for _ in range(3):
        reader = ResponseReader(PEER, "GET", streamed=False, heads=head_cache)
        assert len(data) == reader.feed(data + b"HTTP/1.1 200 OK")
        assert b"hello" == bytes(reader.body())
    assert 1 == len(head_cache)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"SSH-2.0\r\n", UpstreamProtocolError),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", UpstreamProtocolError),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", UpstreamProtocolError),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", UpstreamProtocolError),
        (HEAD + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n", UpstreamProtocolError),
        (HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n", UpstreamProtocolError),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", UpstreamProtocolError),
        (HEAD + b"X: " + b"a" * 40_000 + b"\r\n\r\n", UpstreamProtocolError),
        (HEAD + b"X: a\r\n" * 101 + b"\r\n", UpstreamProtocolError),
        (HEAD + b"Content-Length: 101\r\n\r\n", TooLarge),
        (HEAD + b"\r\n" + b"a" * 101, TooLarge),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n65\r\n" + b"a" * 101, TooLarge),
    ],
)
def test_invalid_or_oversized_responses_are_rejected(data: bytes, kind: type[GatewayError]) -> None:
    """The error is UpstreamProtocolError or TooLarge."""
    reader = ResponseReader(PEER, "GET", streamed=False)
    with pytest.raises(GatewayError) as caught:
        reader.feed(data)
    assert kind is type(caught.value)


def test_a_connection_closed_early_leaves_it_incomplete() -> None:
    """The end of the connection ends only a response without another framing."""
    reader = feed_pieces(
        ResponseReader(PEER, "GET", streamed=False), HEAD + b"Content-Length: 5\r\n\r\nhel"
    )
    assert not reader.feed_eof()
