"""HTTP/1 answers: however they are cut and framed, whole or in pieces."""

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


def fed(answer: ResponseReader, *pieces: bytes) -> ResponseReader:
    """Feed *pieces* as a connection does: into the answer's room where it has one."""
    for piece in pieces:
        room = answer.room()
        if room is None:
            assert answer.feed(piece) == len(piece)
        else:
            room[: len(piece)] = piece
            answer.received(len(piece))
    return answer


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("framing", FRAMED)
@given(cuts=st.sets(st.integers(1, 80)), heads=st.booleans())
def test_reads_the_same_however_it_is_cut(
    framing: str, streamed: bool, cuts: set[int], heads: bool
) -> None:
    """Status, fields and body do not depend on pieces, framing, and whether the head is known."""
    head_cache = ResponseHeadCache()
    for _ in range(2 * heads):
        fed(ResponseReader(PEER, "GET", streamed=streamed, heads=head_cache), FRAMED[framing])
    answer = fed(
        ResponseReader(PEER, "GET", streamed=streamed, heads=head_cache),
        *cut(FRAMED[framing], cuts),
    )
    assert answer.feed_eof()
    body = b"".join(answer.pieces) if streamed else bytes(answer.body())
    assert (200, b"hello") == (answer.head.status, body)
    assert "1" == answer.head.headers.get("x-one")
    assert (framing != "until_close") == answer.is_persistent


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("framing", FRAMED)
def test_a_head_that_is_known_says_the_same(framing: str, streamed: bool) -> None:
    """Of a head that came before, nothing is read anew, and everything is as it was."""
    head_cache = ResponseHeadCache()
    results = []
    for _ in range(3):
        answer = fed(
            ResponseReader(PEER, "GET", streamed=streamed, heads=head_cache), FRAMED[framing]
        )
        assert answer.feed_eof()
        body = b"".join(answer.pieces) if streamed else bytes(answer.body())
        results.append((answer.head, answer.is_persistent, body))
    assert results[0] == results[1] == results[2]
    assert (framing != "interim") == len(head_cache)


def known_after(times: int, data: bytes, peer: UpstreamErrors = PEER) -> ResponseHeadCache:
    """Return what is known of heads after *data* came so many times."""
    head_cache = ResponseHeadCache()
    for _ in range(times):
        with contextlib.suppress(TooLarge):
            ResponseReader(peer, "GET", streamed=False, heads=head_cache).feed(data)
    return head_cache


def test_an_answer_of_a_known_head_is_given_at_once() -> None:
    """From the third on, one that came whole is what a reader would make of it, without a copy."""
    data = FRAMED["length"]
    assert known_after(1, data).complete_response(data) is None
    answer = known_after(2, data).complete_response(data)
    assert answer is not None
    assert (200, "1", b"hello") == (answer.status, answer.headers.get("x-one"), bytes(answer.view))
    assert np.shares_memory(np.frombuffer(answer.view, np.uint8), np.frombuffer(data, np.uint8))


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
def test_whatever_else_is_to_be_done_is_left_to_a_reader(data: bytes) -> None:
    """Chunks, codings, ends of connections, too many bytes or too few: known heads or not."""
    assert known_after(3, data).complete_response(data) is None
    assert known_after(3, FRAMED["length"]).complete_response(data) is None


def test_a_large_body_is_received_where_it_stays() -> None:
    """What a socket is read into, once the head is known, is the body that is given."""
    size = 1 << 20
    answer = ResponseReader(UpstreamErrors("far:80", "far", ClientLimits()), "GET", streamed=False)
    answer.feed(HEAD + b"Content-Length: %d\r\n\r\nfirst" % size)
    rooms = []
    while not answer.is_done:
        room = answer.room()
        assert room is not None
        answer.received(min(60_000, len(room)))
        rooms.append(room)
    body = np.frombuffer(answer.body(), np.uint8)
    assert size == body.nbytes
    assert b"first" == body[:5].tobytes()
    assert all(np.shares_memory(body, np.frombuffer(room, np.uint8)) for room in rooms)


def test_a_known_head_is_checked_against_the_limit_each_time() -> None:
    """A body that is too large is refused the second time as it was the first."""
    head_cache = ResponseHeadCache()
    for streamed in (True, True, False, False):
        answer = ResponseReader(PEER, "GET", streamed=streamed, heads=head_cache)
        with contextlib.nullcontext() if streamed else pytest.raises(TooLarge):
            answer.feed(HEAD + b"Content-Length: 101\r\n\r\n")


def test_a_known_head_of_a_question_for_the_head_alone_has_no_body() -> None:
    """What is remembered of an answer to GET is read by the method of the next request."""
    head_cache = ResponseHeadCache()
    for _ in range(2):
        fed(ResponseReader(PEER, "GET", streamed=False, heads=head_cache), FRAMED["length"])
    answer = ResponseReader(PEER, "HEAD", streamed=False, heads=head_cache)
    head = FRAMED["length"].removesuffix(b"hello")
    assert answer.feed(FRAMED["length"]) == len(head)
    assert answer.is_done
    assert b"" == bytes(answer.body())


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", HEAD + b"Content-Length: 5\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
        ("POST", HEAD + b"Content-Length: 0\r\n\r\n"),
    ],
)
def test_answers_without_a_body_end_with_their_head(method: str, head: bytes) -> None:
    """Where HTTP has no body none is awaited, and the connection is kept."""
    answer = fed(ResponseReader(PEER, method, streamed=False), head)
    assert (True, True, b"") == (answer.is_done, answer.is_persistent, bytes(answer.body()))


def test_leaves_what_follows_an_answer() -> None:
    """Bytes behind the end do not belong to the answer, whether its head is known or not."""
    head_cache = ResponseHeadCache()
    data = FRAMED["length"]
    for _ in range(3):
        answer = ResponseReader(PEER, "GET", streamed=False, heads=head_cache)
        assert len(data) == answer.feed(data + b"HTTP/1.1 200 OK")
        assert b"hello" == bytes(answer.body())
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
def test_refuses_what_is_no_answer_or_too_large(data: bytes, kind: type[GatewayError]) -> None:
    """What an upstream may not send is said by name."""
    answer = ResponseReader(PEER, "GET", streamed=False)
    with pytest.raises(GatewayError) as caught:
        answer.feed(data)
    assert kind is type(caught.value)


def test_connection_that_ends_early_leaves_it_unfinished() -> None:
    """The end of the connection ends only an answer that has no other end."""
    answer = fed(
        ResponseReader(PEER, "GET", streamed=False), HEAD + b"Content-Length: 5\r\n\r\nhel"
    )
    assert not answer.feed_eof()
