"""Requests of our HTTP clients: every parser reads them in the same way.

The gateway is a proxy too. Its clients may be hostile, and its upstream a lenient server: ends of
lines without CR, folded lines, the first or the last of several lengths, chunks before lengths. So
the bytes are read in all these ways, and each must find the same requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.transports.contract import ClientLimits, HttpClient
from gateway.wire.http import Headers, HttpRequest
from tests.integration.http_kit import HTTP_MAKES

MAKES = pytest.mark.parametrize("make", ["native", "reference"])
# Each example has a server, a client and a connection of its own.
FEWER = settings(max_examples=100)
FIELD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t\x20-\x7e]*\Z")
LINE = re.compile(rb"(GET|POST|HEAD|DELETE) /[!-~]* HTTP/1\.1\Z")

TEXT = st.text(max_size=12) | st.sampled_from(
    [
        "a\r\nInjected: b",
        "a\nContent-Length: 0",
        "a\r\n\r\nGET /hidden HTTP/1.1",
        "chunked",
        "a\0b",
        " padded ",
        "é\u2028x",
        "",
    ]
)
NAMES = st.sampled_from(
    [
        *("Content-Length", "Transfer-Encoding", "transfer-encoding", "Connection", "Host", "TE"),
        *("Expect", "Upgrade", "Trailer", "Keep-Alive", "X-One", "Content-Type", "X-\r\nY", "X Y"),
        *("X:Y", "", "Ünï", "content_length", "Content-Length ", "X-Nul\0", "Accept-Encoding"),
    ]
)
REQUESTS = st.builds(
    lambda *parts: HttpRequest(*parts),  # noqa: PLW0108  # of the class, hypothesis reads all types
    st.sampled_from(["GET", "POST", "HEAD", "DELETE"]),
    st.just("/v2/models/a%20b/infer"),
    st.sampled_from(["", "a=b&c=%0d%0a"]),
    st.lists(st.tuples(NAMES, TEXT), max_size=5).map(Headers),
    st.lists(
        st.binary(max_size=40) | st.just(b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"), max_size=3
    ).map(tuple),
)


class Recorder:
    """A strict server that records the received bytes and responds to every request."""

    def __init__(self) -> None:
        self.received = b""
        self._open = 0
        self._closed = asyncio.Event()
        self._closed.set()

    async def closed(self) -> None:
        """Wait until no client is connected."""
        async with asyncio.timeout(20):
            await self._closed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        self._closed.clear()
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"\r\ncontent-length: ([0-9]+)\r\n", head, re.IGNORECASE)
                self.received += head + await reader.readexactly(int(size[1]) if size else 0)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self._open -= 1
        if not self._open:
            self._closed.set()


@asynccontextmanager
async def client_of(
    make: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HttpClient]:
    """Run a client of *make*."""
    monkeypatch.setattr(HTTP_MAKES, "client", make)
    client = HTTP_MAKES.http_client(f"http://127.0.0.1:{port}", ClientLimits())
    try:
        yield client
    finally:
        await client.close()


def send_all(make: str, wires: list[HttpRequest]) -> bytes:
    """Return the bytes that a server receives on one connection."""

    async def run() -> bytes:
        recorder = Recorder()
        server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.MonkeyPatch.context() as patch:
                async with client_of(make, port, patch) as client:
                    for wire in wires:
                        await client.send(wire, deadline=None)
            await recorder.closed()
        return recorder.received

    return asyncio.run(run())


Framing = Callable[[list[tuple[bytes, bytes]]], int | None]


def _first_length(fields: list[tuple[bytes, bytes]]) -> int | None:
    found = [int(value) for name, value in fields if name == b"content-length"]
    return found[0] if found else 0


def _last_length(fields: list[tuple[bytes, bytes]]) -> int | None:
    found = [int(value) for name, value in fields if name == b"content-length"]
    return found[-1] if found else 0


def _chunks_first(fields: list[tuple[bytes, bytes]]) -> int | None:
    if any(b"chunked" in value for name, value in fields if b"transfer" in name):
        return None  # as no request here may be read
    return _last_length(fields)


def _as_variables(fields: list[tuple[bytes, bytes]]) -> int | None:
    names = [name.replace(b"_", b"-") for name, _ in fields]
    assert names.count(b"content-length") <= 1
    assert b"transfer-encoding" not in names
    return _last_length(fields)


LENIENT: dict[str, tuple[re.Pattern[bytes], Framing]] = {
    "first_length": (re.compile(rb"\r\n"), _first_length),
    "last_length": (re.compile(rb"\r\n"), _last_length),
    "chunks_before_lengths": (re.compile(rb"\r\n"), _chunks_first),
    "underscores_are_dashes": (re.compile(rb"\r\n"), _as_variables),
    "lf_is_enough": (re.compile(rb"\r?\n"), _first_length),
    "cr_is_enough": (re.compile(rb"\r\n?|\n"), _last_length),
    "folded_lines": (re.compile(rb"\A\r\n|\r\n(?![ \t])"), _first_length),
    "nul_ends_a_line": (re.compile(rb"\r\n|\0"), _last_length),
}


def read_as(data: bytes, ends: re.Pattern[bytes], framing: Framing) -> list[tuple[bytes, bytes]]:
    """Return first line and body of every request, as a lenient server finds them."""
    found = []
    while data:
        lines = []
        while (end := ends.search(data)) is not None:
            line, data = data[: end.start()], data[end.end() :]
            if not line:
                break
            lines.append(line)
        fields = [line.partition(b":")[::2] for line in lines[1:]]
        size = framing([(name.strip().lower(), value.strip()) for name, value in fields])
        assert size is not None, lines
        found.append((lines[0], data[:size]))
        data = data[size:]
    return found


@MAKES
@FEWER
@given(wires=st.lists(REQUESTS, min_size=1, max_size=3))
def test_every_parser_reads_the_same_requests(make: str, wires: list[HttpRequest]) -> None:
    """Each request is sent exactly once, and nothing else, with any fields and bodies."""
    data = send_all(make, wires)
    targets = [f"{wire.path}?{wire.query}" if wire.query else wire.path for wire in wires]
    expected = [
        (f"{wire.method} {target} HTTP/1.1".encode(), b"".join(wire.body))
        for wire, target in zip(wires, targets, strict=True)
    ]
    for name, (ends, framing) in LENIENT.items():
        assert expected == read_as(data, ends, framing), name


@MAKES
@FEWER
@given(wire=REQUESTS)
def test_heads_follow_the_grammar(make: str, wire: HttpRequest) -> None:
    """A head has one Host, no Transfer-Encoding, and names and values that follow the grammar."""
    data = send_all(make, [wire])
    head = data.partition(b"\r\n\r\n")[0]
    first, *lines = head.split(b"\r\n")
    assert LINE.match(first), first
    assert [] == [line for line in lines if not FIELD.match(line)]
    names = [line.partition(b":")[0].lower() for line in lines]
    assert 1 == names.count(b"host")
    assert names.count(b"content-length") <= 1
    assert not {b"transfer-encoding", b"upgrade", b"te", b"trailer", b"expect"} & set(names)


@MAKES
async def test_a_strict_server_accepts_every_request(
    make: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of aiohttp gets all requests in order, and each has its own response."""
    seen: list[tuple[str, bytes]] = []

    async def respond(request: web.BaseRequest) -> web.Response:
        seen.append((request.headers["X-Mark"], await request.read()))
        return web.Response(text=request.headers["X-Mark"])

    runner = web.ServerRunner(web.Server(respond))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with client_of(make, port, monkeypatch) as client:
            for number in range(30):
                odd = ("Content-Length", "3") if number % 2 else ("Transfer-Encoding", "chunked")
                fields = Headers([("X-Mark", str(number)), odd, ("X-Odd", "a\r\nHost: b")])
                body = b"GET /hidden HTTP/1.1\r\n\r\n" * (number % 3)
                wire = HttpRequest("POST", "/x", "", fields, (body,))
                response = await client.send(wire, deadline=None)
                assert str(number).encode() == bytes(response.view)
    finally:
        await runner.cleanup()
    assert [str(number) for number in range(30)] == [mark for mark, _ in seen]
