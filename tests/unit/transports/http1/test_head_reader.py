"""Heads of HTTP/1 requests: in any pieces, within their limits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.contract import ServerLimits
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_head import read_head
from gateway.transports.http1.head_reader import HeadReader, RequestHead, RequestHeadCache

HEAD = b"POST /v2/x?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nX-One:  two \r\n\r\n"
LIMITS = ServerLimits()


def read(reader: HeadReader, *pieces: bytes) -> tuple[RequestHead | None, bytes]:
    """Feed *pieces*; return the first head, and the rest of the piece in which it ended."""
    for piece in pieces:
        head, at = reader.feed(piece, 0)
        if head is not None:
            return head, piece[at:]
    return None, b""


def fields_of(head: RequestHead | None) -> tuple[object, ...]:
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


def test_bytes_after_the_head_remain() -> None:
    """A head ends at its empty line; the body is not read."""
    head, rest = read(HeadReader(LIMITS, RequestHeadCache(LIMITS)), HEAD + b"hello")
    assert (EXPECTED, b"hello") == (fields_of(head), rest)


@given(cuts=st.sets(st.integers(1, len(HEAD) - 1)))
def test_any_split_of_the_bytes_reads_the_same_head(cuts: set[int]) -> None:
    """A head does not depend on the pieces it is received in."""
    places = [0, *sorted(cuts), len(HEAD)]
    pieces = [HEAD[start:stop] for start, stop in itertools.pairwise(places)]
    head, rest = read(HeadReader(LIMITS, RequestHeadCache(LIMITS)), *pieces)
    assert (EXPECTED, b"") == (fields_of(head), rest)


def test_pipelined_heads_are_read_one_per_call() -> None:
    """Empty lines between them are skipped."""
    reader = HeadReader(LIMITS, RequestHeadCache(LIMITS))
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
def test_a_bare_cr_or_lf_before_a_head_is_rejected(lines: bytes, at_once: bool) -> None:
    """Other parsers reject them; a cached head and split bytes make no difference."""
    memory = RequestHeadCache(LIMITS)
    for _ in range(2):
        head, _ = read(HeadReader(LIMITS, memory), HEAD)
        assert head is not None
        memory.note(head)
    sent = [lines, HEAD] if at_once else [bytes((byte,)) for byte in lines + HEAD]
    with pytest.raises(HttpError, match="empty lines of CR LF"):
        read(HeadReader(LIMITS, memory), *sent)
    with pytest.raises(HttpError, match="empty lines of CR LF"):
        read(HeadReader(LIMITS, memory), lines + HEAD)


def test_too_many_empty_lines_are_rejected() -> None:
    """At most 16 empty lines are skipped before a head."""
    with pytest.raises(HttpError, match="at most 16 empty lines"):
        read(HeadReader(LIMITS, RequestHeadCache(LIMITS)), b"\r\n" * 17 + HEAD)


@given(cuts=st.sets(st.integers(1, len(HEAD) + 3)))
def test_empty_lines_before_a_head_are_skipped(cuts: set[int]) -> None:
    """RFC 9112 2.2: some clients send them."""
    sent = b"\r\n\r\n" + HEAD
    places = [0, *sorted(cuts), len(sent)]
    pieces = [sent[start:stop] for start, stop in itertools.pairwise(places)]
    head, rest = read(HeadReader(LIMITS, RequestHeadCache(LIMITS)), *pieces)
    assert (EXPECTED, b"") == (fields_of(head), rest)


def test_an_empty_line_may_follow_every_request() -> None:
    """Old clients send one after each body."""
    reader = HeadReader(LIMITS, RequestHeadCache(LIMITS))
    for _ in range(40):
        head, rest = read(reader, HEAD + b"\r\n")
        assert (EXPECTED, b"\r\n") == (fields_of(head), rest)
        assert (None, 2) == reader.feed(rest, 0)


def test_an_empty_line_does_not_start_a_head() -> None:
    """The connection stays idle after one; a first byte of a head starts it."""
    reader = HeadReader(LIMITS, RequestHeadCache(LIMITS))
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
def test_the_head_records_whether_to_close_the_connection(field: bytes, closes: bool) -> None:
    """Connection: close and Upgrade close the connection after the response."""
    head, _ = read(
        HeadReader(LIMITS, RequestHeadCache(LIMITS)),
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
def test_a_head_over_a_limit_is_rejected_early(
    limits: dict[str, int], data: bytes, limit: str
) -> None:
    """The status is 431 before the end of the head arrives."""
    with pytest.raises(HttpError) as caught:
        read(HeadReader(ServerLimits(**limits), RequestHeadCache(LIMITS)), data, b"\r\n")
    assert (431, limit, True) == (
        caught.value.status,
        caught.value.limit,
        caught.value.should_close,
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_incomplete_or_an_error(data: bytes) -> None:
    """Any bytes are a head, the start of one, or an HttpError."""
    reader = HeadReader(LIMITS, RequestHeadCache(LIMITS))
    try:
        head, at = reader.feed(data, 0)
    except HttpError:
        return
    assert at == len(data) or head is not None


def test_a_head_is_cached_after_its_second_valid_request() -> None:
    """A head noted twice is returned from the cache; a head noted once is parsed again."""
    memory = RequestHeadCache(LIMITS)
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


def test_a_repeated_head_is_cached_although_a_template_recognises_it() -> None:
    """The lookup of its bytes costs less than to fill the template."""
    cache = RequestHeadCache(LIMITS)
    for number in (b"1", b"2"):
        head, _ = read(HeadReader(LIMITS, cache), HEAD.replace(b"two", number))
        assert head is not None
        head.checked = read_head(head.method, head.target, head.version, head.fields, LIMITS)
        cache.note(head)
    other = HEAD.replace(b"two", b"three")
    found = [read(HeadReader(LIMITS, cache), other)[0] for _ in range(16)]
    assert found[0] is not found[1]
    assert found[14] is found[15]


def test_a_client_that_repeats_a_head_after_others_has_it_cached() -> None:
    """Most heads of a client whose heads differ are not looked up, but some are."""
    cache = RequestHeadCache(LIMITS)
    reader = HeadReader(LIMITS, cache)
    for number in range(30):
        head, _ = read(reader, HEAD.replace(b"two", b"%d" % number))
        assert head is not None
        if head.checked is None:
            head.checked = read_head(head.method, head.target, head.version, head.fields, LIMITS)
            cache.note(head)
    other = HEAD.replace(b"two", b"three")
    found = [read(reader, other)[0] for _ in range(40)]
    assert found[0] is not found[1]
    assert found[38] is found[39]


def test_a_head_received_in_pieces_is_not_cached() -> None:
    """Only the bytes of a whole head are a cache key."""
    memory = RequestHeadCache(LIMITS)
    head, _ = read(HeadReader(LIMITS, memory), HEAD[:10], HEAD[10:])
    assert head is not None
    assert b"" == head.raw
