"""Heads of HTTP/1 read beside others: httptools alone, and the parser of aiohttp that is plain Python.

What we take they must take, and read the same; what is right by the grammar we must take. The second
parser shares nothing with ours, which stands on llhttp.
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
    """What a parser made of the first request.

    Attributes:
        framing: "chunked", a length, or None for no body.
    """

    method: str
    target: str
    version: tuple[int, int]
    fields: tuple[tuple[bytes, bytes], ...]
    framing: str | int | None


def ours(data: bytes) -> Read | None:
    """Read by our own code; None for a refusal, or a head that has not ended."""
    try:
        raw, _ = HeadReader(LIMITS, RequestHeadCache()).feed(data, 0)
        if raw is None:
            return None
        head: Head = read_head(raw.method, raw.target, raw.version, raw.fields, LIMITS)
    except HttpError:
        return None
    assert head.length == raw.length
    assert head.is_chunked == raw.is_chunked
    framing = "chunked" if head.is_chunked else head.length
    return Read(raw.method, raw.target, raw.version, tuple(raw.fields), framing)


class Taken:
    """What httptools tells."""

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
    """Read by httptools; its target and fields, or None."""
    request = Taken()
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
    """Read by aiohttp's parser in Python."""
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
    """Compare what the three make of *data*; return whether ours took it."""
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


# What the parser in Python refuses, and llhttp and we take: several blanks in the first line.
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
    """A head that is right."""
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
def test_right_heads_are_taken(loop: asyncio.AbstractEventLoop, data: bytes) -> None:
    """What the grammar allows is taken, and everybody reads it alike."""
    assert check(data + NEXT, loop)


@given(
    data=heads(),
    places=st.lists(st.tuples(st.integers(0, 200), st.sampled_from(ODD)), min_size=1, max_size=3),
)
def test_what_is_taken_has_one_reading(
    loop: asyncio.AbstractEventLoop, data: bytes, places: list[tuple[int, bytes]]
) -> None:
    """Odd bytes anywhere: a refusal, or what the others make of it."""
    for at, odd in places:
        data = data[: at % len(data)] + odd + data[at % len(data) :]
    check(data + NEXT, loop)


@pytest.mark.parametrize("name", [key for key in CASES if len(CASES[key]) < 10_000])
def test_hostile_heads_have_one_reading(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """What the hostile suite sends is refused, or has one reading."""
    check(CASES[name] + NEXT, loop)
