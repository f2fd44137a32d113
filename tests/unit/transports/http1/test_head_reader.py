"""Heads of HTTP/1 requests: however they are cut, within their limits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.contract import ServerLimits
from gateway.transports.http.faults import HttpError
from gateway.transports.http1.head_reader import HeadReader, RequestHead, RequestHeadCache

HEAD = b"POST /v2/x?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nX-One:  two \r\n\r\n"
LIMITS = ServerLimits()


def read(reader: HeadReader, *pieces: bytes) -> tuple[RequestHead | None, bytes]:
    """Feed *pieces*; return the first head, and what is left of the piece it ended in."""
    for piece in pieces:
        head, at = reader.feed(piece, 0)
        if head is not None:
            return head, piece[at:]
    return None, b""


def described(head: RequestHead | None) -> tuple[object, ...]:
    assert head is not None
    return (
        head.method,
        head.target,
        head.version,
        head.fields,
        head.should_close,
        head.length,
        head.is_chunked,
    )


EXPECTED = (
    "POST",
    "/v2/x?a=b",
    (1, 1),
    [(b"Host", b"h"), (b"Content-Length", b"5"), (b"X-One", b"two")],
    False,
    5,
    False,
)


def test_leaves_what_follows_the_head() -> None:
    """A head ends at its empty line; the body is not looked at."""
    head, rest = read(HeadReader(LIMITS, RequestHeadCache()), HEAD + b"hello")
    assert (EXPECTED, b"hello") == (described(head), rest)


@given(cuts=st.sets(st.integers(1, len(HEAD) - 1)))
def test_reads_the_same_however_it_is_cut(cuts: set[int]) -> None:
    """The pieces a head comes in make no difference."""
    places = [0, *sorted(cuts), len(HEAD)]
    pieces = [HEAD[start:stop] for start, stop in itertools.pairwise(places)]
    head, rest = read(HeadReader(LIMITS, RequestHeadCache()), *pieces)
    assert (EXPECTED, b"") == (described(head), rest)


def test_reads_one_head_after_the_other() -> None:
    """Pipelined heads come one a call, blank lines between them passed over."""
    reader = HeadReader(LIMITS, RequestHeadCache())
    data = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n\r\n\r\nGET /b HTTP/1.0\r\n\r\n"
    first, at = reader.feed(data, 0)
    second, end = reader.feed(data, at)
    assert [("GET", "/a", False), ("GET", "/b", True)] == [
        (head.method, head.target, head.should_close)
        for head in (first, second)
        if head is not None
    ]
    assert len(data) == end


@pytest.mark.parametrize("lines", [b"\n", b"\r", b"\r\r\n", b"\r\n\n", b"\r\n\r"])
@pytest.mark.parametrize("at_once", [True, False])
def test_no_cr_or_lf_alone_stands_before_a_head(lines: bytes, at_once: bool) -> None:
    """Other parsers stop at them, however what is sent is cut, and also before a head in memory."""
    memory = RequestHeadCache()
    for _ in range(2):
        head, _ = read(HeadReader(LIMITS, memory), HEAD)
        assert head is not None
        memory.note(head)
    sent = [lines, HEAD] if at_once else [bytes((byte,)) for byte in lines + HEAD]
    with pytest.raises(HttpError, match="empty lines of CR LF"):
        read(HeadReader(LIMITS, memory), *sent)
    with pytest.raises(HttpError, match="empty lines of CR LF"):
        read(HeadReader(LIMITS, memory), lines + HEAD)


def test_many_empty_lines_are_no_request() -> None:
    """They cost more to skip than they are worth."""
    with pytest.raises(HttpError, match="at most 16 empty lines"):
        read(HeadReader(LIMITS, RequestHeadCache()), b"\r\n" * 17 + HEAD)


@given(cuts=st.sets(st.integers(1, len(HEAD) + 3)))
def test_empty_lines_before_a_head_are_skipped(cuts: set[int]) -> None:
    """RFC 9112 2.2: some clients send them; they do not begin a head."""
    sent = b"\r\n\r\n" + HEAD
    places = [0, *sorted(cuts), len(sent)]
    pieces = [sent[start:stop] for start, stop in itertools.pairwise(places)]
    head, rest = read(HeadReader(LIMITS, RequestHeadCache()), *pieces)
    assert (EXPECTED, b"") == (described(head), rest)


def test_an_empty_line_may_follow_every_request() -> None:
    """Old clients send one after each body."""
    reader = HeadReader(LIMITS, RequestHeadCache())
    for _ in range(40):
        head, rest = read(reader, HEAD + b"\r\n")
        assert (EXPECTED, b"\r\n") == (described(head), rest)
        assert (None, 2) == reader.feed(rest, 0)


def test_an_empty_line_begins_no_head() -> None:
    """A connection is idle after one, and its client has as much time as after a response."""
    reader = HeadReader(LIMITS, RequestHeadCache())
    assert (None, 2) == reader.feed(b"\r\n", 0)
    assert not reader.is_started
    assert (None, 1) == reader.feed(b"\r", 0)
    assert reader.is_started


@pytest.mark.parametrize(
    ("field", "closes"),
    [
        (b"Connection: close", True),
        (b"Connection: keep-alive", False),
        (b"Connection: upgrade\r\nUpgrade: websocket", True),
        (b"Upgrade: h2c", True),
    ],
)
def test_notes_who_wants_the_connection_to_end(field: bytes, closes: bool) -> None:
    """Clients that ask for the end, or for another protocol, are told apart."""
    head, _ = read(
        HeadReader(LIMITS, RequestHeadCache()),
        b"GET / HTTP/1.1\r\nHost: h\r\n" + field + b"\r\n\r\n",
    )
    assert head is not None
    assert closes == head.should_close


@pytest.mark.parametrize(
    ("limits", "data", "limit"),
    [
        ({"header_line_bytes": 10}, b"GET /" + b"a" * 10, "header_total_bytes"),
        ({"header_total_bytes": 100}, b"GET / HTTP/1.1\r\nX: " + b"a" * 200, "header_total_bytes"),
        ({"header_count": 2}, b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 3, "header_count"),
    ],
)
def test_gives_up_heads_that_grow(limits: dict[str, int], data: bytes, limit: str) -> None:
    """A head over a limit is refused before its end has come."""
    with pytest.raises(HttpError) as caught:
        read(HeadReader(ServerLimits(**limits), RequestHeadCache()), data, b"\r\n")
    assert (431, limit, True) == (
        caught.value.status,
        caught.value.limit,
        caught.value.should_close,
    )


@given(st.binary(max_size=200))
def test_refuses_or_waits_for_anything_else(data: bytes) -> None:
    """Whatever comes is a head, the beginning of one, or an HttpError."""
    reader = HeadReader(LIMITS, RequestHeadCache())
    try:
        head, at = reader.feed(data, 0)
    except HttpError:
        return
    assert at == len(data) or head is not None


def test_knows_a_head_again_once_it_was_found_right() -> None:
    """A head that was checked twice is not read a third time; one that was not, is."""
    memory = RequestHeadCache()
    first, _ = read(HeadReader(LIMITS, memory), HEAD)
    again, _ = read(HeadReader(LIMITS, memory), HEAD)
    assert first is not None
    assert again is not None
    assert first is not again
    memory.note(first)
    unkept, _ = read(HeadReader(LIMITS, memory), HEAD)
    assert unkept is not first
    memory.note(again)
    cached_head, rest = read(HeadReader(LIMITS, memory), HEAD + b"hello")
    assert cached_head is again
    assert b"hello" == rest
    other, _ = read(HeadReader(LIMITS, memory), HEAD.replace(b"two", b"six"))
    assert other is not again


def test_remembers_no_head_that_came_in_pieces() -> None:
    """Only the bytes of a whole head are a key."""
    memory = RequestHeadCache()
    head, _ = read(HeadReader(LIMITS, memory), HEAD[:10], HEAD[10:])
    assert head is not None
    assert b"" == head.raw
