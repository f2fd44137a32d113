"""Heads of HTTP/1, compared with two parsers: httptools, and the parser of aiohttp in plain Python.

Both must accept the heads that we accept, with the same result; we must accept every valid head. The
second parser shares nothing with ours, which is based on llhttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import httptools
import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParserPy
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.contract import ServerLimits
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_head import Head, read_head
from gateway.transports.http1.head_reader import HeadReader, RequestHeadCache
from tests.hostile.test_http_framing import CASES

LIMITS = ServerLimits()
PROTOCOL = mock.create_autospec(BaseProtocol, instance=True)
NEXT = b"GET /next HTTP/1.1\r\nHost: n\r\n\r\n"


@dataclass(frozen=True)
class Read:
    """The first request as a parser reads it.

    Attributes:
        framing: "chunked", a length, or None for no body.
    """

    method: str
    target: str
    version: tuple[int, int]
    fields: tuple[tuple[bytes, bytes], ...]
    framing: str | int | None


def ours(data: bytes) -> Read | None:
    """Parse with our own code; None for a rejected or incomplete head."""
    try:
        raw, _ = HeadReader(LIMITS, RequestHeadCache(LIMITS)).feed(data, 0)
        if raw is None:
            return None
        head: Head = read_head(raw.method, raw.target, raw.version, raw.fields, LIMITS)
    except HttpError:
        return None
    assert head.length == raw.length
    assert head.is_chunked == raw.is_chunked
    framing = "chunked" if head.is_chunked else head.length
    return Read(raw.method, raw.target, raw.version, tuple(raw.fields), framing)


class HttptoolsRequest:
    """The callbacks of httptools, which store target and fields."""

    def __init__(self) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:
            self.fields.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.complete = True


def by_httptools(data: bytes) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]] | None:
    """Parse with httptools; return target and fields, or None."""
    request = HttptoolsRequest()
    parser = httptools.HttpRequestParser(request)
    with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
        parser.feed_data(data[: data.index(b"\r\n\r\n") + 4])
    return (request.target, tuple(request.fields)) if request.complete else None


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that never runs, for aiohttp."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def by_aiohttp(data: bytes, loop: asyncio.AbstractEventLoop) -> Read | None:
    """Parse with aiohttp's parser in Python."""
    parser = HttpRequestParserPy(PROTOCOL, loop, 2**16, max_line_size=2**16, max_field_size=2**16)
    try:
        messages, _, _ = parser.feed_data(data[: data.index(b"\r\n\r\n") + 4])
    except (HttpProcessingError, ValueError):
        return None
    if not messages:
        return None
    message, _ = messages[0]
    length = message.headers.get("Content-Length")
    framing = "chunked" if message.chunked else None if length is None else int(length)
    fields = tuple((name, value) for name, value in message.raw_headers)
    version = (message.version.major, message.version.minor)
    return Read(message.method, message.path, version, fields, framing)


def check(data: bytes, loop: asyncio.AbstractEventLoop) -> bool:
    """Compare the results of the three parsers; return whether ours accepts *data*."""
    found = ours(data)
    if found is None:
        return False
    theirs = by_httptools(data)
    assert theirs is not None, data
    assert (found.target.encode(), found.fields) == theirs
    other = by_aiohttp(data.lstrip(b"\r\n"), loop)
    if other is None:
        assert STRICTER.match(data), data
    else:
        assert found == other, data
    return True


# The parser in Python rejects several blanks in the first line; llhttp and we accept them.
STRICTER = re.compile(rb"^(\r\n)*\S+ +\S+ +HTTP")

NAMES = st.sampled_from(["X-One", "accept", "User-Agent", "x!#$%&'*+-.^_`|~9", "Cookie"])
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
TARGETS = st.sampled_from(
    ["/", "/v2/models/a/infer", "/a?b=c&d", "*", "http://other:80/v2?x", "/%00"]
)
METHODS = st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"])
FRAMINGS = st.sampled_from(
    [None, "Content-Length: 0", "Content-Length: 17", "Transfer-Encoding: chunked"]
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Draw a valid head."""
    fields = draw(st.lists(st.tuples(NAMES, VALUES), max_size=5))
    lines = [f"{draw(METHODS)} {draw(TARGETS)} HTTP/1.1", "Host: h:80"]
    lines += [f"{name}:{' ' if draw(st.booleans()) else ''}{value}" for name, value in fields]
    framing = draw(FRAMINGS)
    if framing is not None:
        lines.insert(draw(st.integers(1, len(lines))), framing)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


ODD = [
    *(bytes([byte]) for byte in b'\0\t\n\x0b\x0c\r !",:;@[\\]{}\x7f\x80\xa0\xff'),
    b"\r\n",
    b"\r\n ",
    b"Content-Length: 3\r\n",
    b"Content-Length: +3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"transfer-encoding : chunked\r\n",
    b"Host: two\r\n",
    b"Connection: close\r\n",
    b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
]


@given(data=heads())
def test_valid_heads_are_accepted(loop: asyncio.AbstractEventLoop, data: bytes) -> None:
    """A valid head is accepted, and the parsers agree on it."""
    assert check(data + NEXT, loop)


@given(
    data=heads(),
    insertions=st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from(ODD)), min_size=1, max_size=3
    ),
)
def test_accepted_heads_are_unambiguous(
    loop: asyncio.AbstractEventLoop, data: bytes, insertions: list[tuple[int, bytes]]
) -> None:
    """A head with odd bytes is rejected, or the parsers agree on it."""
    for at, odd in insertions:
        data = data[: at % len(data)] + odd + data[at % len(data) :]
    check(data + NEXT, loop)


@pytest.mark.parametrize("name", [key for key in CASES if len(CASES[key]) < 10_000])
def test_hostile_heads_are_rejected_or_unambiguous(
    loop: asyncio.AbstractEventLoop, name: str
) -> None:
    """A head of the hostile suite is rejected, or the parsers agree on it."""
    check(CASES[name] + NEXT, loop)
