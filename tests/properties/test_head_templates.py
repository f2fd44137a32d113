"""Heads that a template recognises are read as if they were parsed; also those of hostile suites."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.errors import GatewayError, TooLarge
from gateway.transports.contract import ClientLimits, ServerLimits
from gateway.transports.http.client_rules import UpstreamErrors
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_head import Head, read_head
from gateway.transports.http1.head_reader import HeadReader, RequestHead, RequestHeadCache
from gateway.transports.http1.head_template import END
from gateway.transports.http1.request import BufferedRequest, known_request
from gateway.transports.http1.response_reader import ResponseHeadCache, ResponseReader
from tests.accelerated_parts import damaged
from tests.hostile.smuggling import CORPUS
from tests.hostile.test_http_framing import CASES

LIMITS = ServerLimits()
PEER = UpstreamErrors("far:80", "far", ClientLimits())
_HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"
_HEADS = int(os.environ.get("HEAD_TEMPLATES", "20000"))
"""A change of the templates needs a million: HEAD_TEMPLATES=1000000."""

_FIRST_LINES = (
    b"POST /v2/models/m/infer HTTP/1.1",
    b"POST /v2/models/another/infer?a=b HTTP/1.1",
    b"GET /v2 HTTP/1.0",
    b"GET //h/a HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"POST http://h/v2 HTTP/1.1",
    b"CONNECT /h HTTP/1.1",
)
_FIELDS = (
    *(b"traceparent", b"X-Request-ID", b"Authorization", b"user-agent", b"cookie", b"accept"),
    *(b"content-type", b"Content-Length", b"transfer-encoding", b"Connection", b"expect"),
    *(b"accept-encoding", b"content-encoding", b"upgrade", b"grpc-timeout", b"x-request-timeout"),
    *(b"keep-alive", b"te", b"host", b"inference-header-content-length"),
)
_VALUES = (
    *(b"", b"1", b"12", b"0", b"00", b"+5", b"5, 5", b"a", b"a" * 40, b"close", b"keep-alive"),
    *(b"chunked", b"gzip", b"identity", b"100-continue", b"application/json", b"h2c", b"X"),
    *(b"application/grpc-web", b"a\tb", b"\xc3\xa9", b"\xff", b"2S", b"250m", b"trailers"),
)
_ODD = b"\r\n: \t\0\x0b\x7f\x80aA0#?/"


def request_head(random: Random) -> bytes:
    """Return a head that is valid more often than not."""
    lines = [random.choices(_FIRST_LINES, (9, 9, 1, 1, 1, 1, 1))[0], b"Host: h"]
    for _ in range(random.randrange(6)):
        name = random.choice(_FIELDS[:6] if random.random() < 0.7 else _FIELDS)
        lines.append(name + random.choice((b":", b": ", b":  ")) + random.choice(_VALUES))
    return b"\r\n".join([*lines, b"", b""])


def other_values(random: Random, head: bytes) -> bytes:
    """Return a head with other values in some of its fields, and damaged now and then."""
    first, *lines = head.removesuffix(END).split(b"\r\n")
    for index, line in enumerate(lines):
        if random.random() < 0.4:
            lines[index] = line.partition(b":")[0] + b": " + random.choice(_VALUES)
    if random.random() < 0.3:
        first = random.choice(_FIRST_LINES)
    found = b"\r\n".join([first, *lines, b"", b""])
    return damaged(random, found, _ODD) if random.random() < 0.2 else found


def requested(reader: HeadReader, memory: RequestHeadCache, data: bytes) -> object:
    """Return the first head in *data* as the exchange gets it, or the error; teach *memory*."""
    try:
        head, at = reader.feed(data, 0)
        if head is None:
            return None
        checked = head.checked or read_head(
            head.method, head.target, head.version, head.fields, LIMITS
        )
        _teach(memory, head, checked)
    except HttpError as error:
        return error.status, error.message, error.should_close
    return shown(head, checked, at)


def at_once(reader: HeadReader, data: bytes) -> object:
    """Return the same for a head that needs no parser; None for another one."""
    found = known_request(memoryview(data), len(data), reader)
    head = found._head if isinstance(found, BufferedRequest) else found
    if head is None:
        return None
    assert head.checked is not None
    at = data.find(END) + len(END)
    if isinstance(found, BufferedRequest):
        assert found.buffered_body is not None
        assert data[at:] == found.buffered_body.tobytes()
        assert len(data) - at == (head.length or 0)
        assert not head.is_chunked
    return shown(head, head.checked, at)


def shown(head: RequestHead, checked: Head, at: int) -> object:
    """Return all that is read of a head that ends at *at*."""
    framing = head.method, head.version, head.should_close, head.length, head.is_chunked
    fields = checked.headers.pairs, checked.headers.lowered
    names = {name for name, _ in checked.headers.lowered}
    values = {name: checked.headers.get(name) for name in (*names, "x-absent")}
    return at, framing, checked, fields, values


def _teach(memory: RequestHeadCache, head: RequestHead, checked: Head) -> None:
    if head.checked is None:
        head.checked = checked
        memory.note(head)


def agree(known: bytes, data: bytes) -> bool:
    """Check that *data* is read the same after *known*; return whether a template was used."""
    memory = RequestHeadCache(LIMITS)
    for _ in range(2):
        requested(HeadReader(LIMITS, memory), memory, known)
    fresh = RequestHeadCache(LIMITS)
    expected = requested(HeadReader(LIMITS, fresh), fresh, data)
    assert expected == requested(HeadReader(LIMITS, memory), memory, data)
    end = data.find(END) + len(END)
    is_recognised = end >= len(END) and memory.recognise(data, 0, end)[0] is not None
    without_lookup = HeadReader(LIMITS, memory)
    without_lookup.unsampled = 1
    assert expected == requested(without_lookup, memory, data)
    for unsampled in (0, 1):
        reader = HeadReader(LIMITS, memory)
        reader.unsampled = unsampled
        found = at_once(reader, data)
        assert found == expected or (found is None and not is_recognised)
    return is_recognised


@given(random=st.randoms(use_true_random=False))
def test_a_recognised_request_is_read_as_if_it_was_parsed(random: Random) -> None:
    """Method, target, fields, framing and errors do not depend on the heads before."""
    known = request_head(random)
    agree(known, other_values(random, known))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_recognised_requests_are_read_as_if_they_were_parsed() -> None:
    """The same for many heads, a good part of which a template recognises."""
    random = Random(34)  # noqa: S311  # inputs of a test
    used = 0
    for _ in range(_HEADS):
        known = request_head(random)
        used += agree(known, other_values(random, known))
    assert used > _HEADS // 20


def hostile_heads() -> Iterator[bytes]:
    """Yield the requests of the suites of malformed framing and of smuggling."""
    yield from (data + _HIDDEN for data in CASES.values())
    for group in CORPUS.values():
        yield from (smuggle(_HIDDEN) for smuggle in group.values())


def test_no_template_changes_how_a_hostile_head_is_read() -> None:
    """Each is read the same after itself, and after a head with other values in its fields."""
    random = Random(126)  # noqa: S311  # inputs of a test
    known = [request_head(random) for _ in range(3)]
    for data in hostile_heads():
        head, end, _ = data.partition(END)
        for each in (data, other_values(random, head + end), *known):
            agree(each, data)


def test_the_usual_requests_are_recognised() -> None:
    """Other values of tracing fields, other targets and other lengths need no parser."""
    known = (
        b"POST /v2/models/a/infer HTTP/1.1\r\nHost: h\r\nTraceparent: 00-1-2-01\r\n"
        b"Content-Length: 5\r\n\r\n"
    )
    other = known.replace(b"1-2", b"3-4").replace(b"/a/", b"/b/").replace(b" 5\r", b" 17\r")
    assert agree(known, other)
    assert not agree(known, other.replace(b" 17\r", b" 0\r"))
    assert not agree(known, other.replace(b"3-4", b"3\xff4"))
    assert not agree(known, other.replace(b"Host: h", b"Host: i"))


_REPLY_FIELDS = (
    *(b"Date", b"x-request-id", b"server-timing", b"X-One", b"content-type", b"content-length"),
    *(b"Content-Encoding", b"Transfer-Encoding", b"connection", b"keep-alive", b"trailer", b"te"),
)


def reply_head(random: Random) -> bytes:
    """Return the head of a response that is valid more often than not."""
    lines = [
        random.choices(
            (b"HTTP/1.1 200 OK", b"HTTP/1.1 500 X", b"HTTP/1.0 204 ", b"X"), (9, 1, 1, 1)
        )[0]
    ]
    for _ in range(random.randrange(6)):
        name = random.choice(_REPLY_FIELDS[:6] if random.random() < 0.7 else _REPLY_FIELDS)
        lines.append(name + random.choice((b":", b": ")) + random.choice(_VALUES))
    return b"\r\n".join([*lines, b"", b""])


def replied(memory: ResponseHeadCache, data: bytes) -> object:
    """Return a response as the client gets it, or the error; teach *memory*."""
    complete = memory.complete_response(data)
    if complete is not None:
        return complete.status, complete.headers.lowered, bytes(complete.view)
    reader = ResponseReader(PEER, "POST", heads=memory)
    try:
        reader.feed(data)
    except GatewayError as error:
        return type(error), error.message
    if not reader.is_done:
        return reader.has_head and (reader.head, reader.head.headers.lowered)
    return reader.head.status, reader.head.headers.lowered, bytes(reader.body())


@given(random=st.randoms(use_true_random=False))
def test_a_recognised_response_is_read_as_if_it_was_parsed(random: Random) -> None:
    """Status, fields, body and errors do not depend on the heads before."""
    known = reply_head(random)
    data = other_values(random, known) + b"a" * random.randrange(14)
    memory = ResponseHeadCache()
    for _ in range(2):
        replied(memory, known)
    expected = replied(ResponseHeadCache(), data)
    assert expected == replied(memory, data)
    memory._unsampled = 1
    assert expected == replied(memory, data)


def test_the_usual_responses_are_recognised() -> None:
    """Other dates, ids and lengths need no parser; a length beyond the limit has its error."""
    known = b"HTTP/1.1 200 OK\r\nDate: a\r\nX-Request-Id: 1\r\nContent-Length: 5\r\n\r\nhello"
    memory = ResponseHeadCache()
    for _ in range(2):
        ResponseReader(PEER, "POST", heads=memory).feed(known)
    other = known.replace(b" a\r", b" b\r").replace(b" 5\r", b" 3\r")[:-2]
    response = memory.complete_response(other)
    assert response is not None
    assert (("Date", "b"), ("X-Request-Id", "1")) == response.headers.pairs
    assert ("b", b"hel") == (response.headers.get("date"), bytes(response.view))
    large = known.replace(b" 5\r", b" 999999999999\r")
    assert memory.complete_response(large) is None
    with pytest.raises(TooLarge):
        ResponseReader(PEER, "POST", heads=memory).feed(large)
