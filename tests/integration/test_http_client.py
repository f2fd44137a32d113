"""The HTTP client over real sockets, against our own server and against raw ones that misbehave."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import aiohttp
import pytest
from aiohttp.http_writer import StreamWriter

from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    NotSent,
    Overloaded,
    TooLarge,
    Unavailable,
    UpstreamProtocolError,
)
from gateway.ir.streams import close_stream
from gateway.transports.contract import ClientLimits, HttpClient
from gateway.transports.net.sockets import UNSEEN_S, reset_when_closed
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.integration.http_kit import HTTP_MAKES, Echo, Parts, Running, Slow, eventually, serving

pytestmark = pytest.mark.usefixtures("http_makes", "http_clients")

LIMITS = ClientLimits()
POST = HttpRequest("POST", "/v2/x", body=(b"hello",))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """One connection of a scripted upstream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        return head + await self.reader.readexactly(length)


class Upstream:
    """A server that runs one script per connection, in their order; the last one repeats."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self.connections = 0
        self.requests: list[bytes] = []
        self.disconnect = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.connections, len(self._scripts) - 1)]
        self.connections += 1
        try:
            await script(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.disconnect.set()
            writer.close()


@asynccontextmanager
async def upstream(*scripts: Script) -> AsyncIterator[Upstream]:
    result = Upstream(*scripts)
    server = await asyncio.start_server(result.serve, "127.0.0.1", 0)
    result.port = server.sockets[0].getsockname()[1]
    try:
        yield result
    finally:
        server.close()


@asynccontextmanager
async def client_of(port: int, limits: ClientLimits = LIMITS) -> AsyncIterator[HttpClient]:
    client = HTTP_MAKES.http_client(f"http://127.0.0.1:{port}", limits)
    try:
        yield client
    finally:
        await client.close()


def says(data: bytes, *, close: bool = True) -> Script:
    """Answer every request with *data*; *close* ends the connection after the first."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            peer.writer.write(data)
            await peer.writer.drain()
            if close:
                return

    return script


async def hang(peer: Peer) -> None:
    """Take the request, say nothing, and wait for the client to go."""
    await peer.request()
    await peer.reader.read()


async def failure(data: bytes, limits: ClientLimits = LIMITS) -> GatewayError:
    async with upstream(says(data)) as server, client_of(server.port, limits) as client:
        with pytest.raises(GatewayError) as caught:
            await client.send(POST, deadline=time.monotonic() + 5)
    return caught.value


async def test_sends_and_receives_through_our_server() -> None:
    """Path, query, fields and body in several buffers arrive as given."""
    echo = Echo()
    body = (b"a" * 100_000, memoryview(b"b" * 100_000), b"c")
    wire = HttpRequest("POST", "/v2/a%2Fb", "q=%20", Headers((("X-One", "1"),)), body)
    async with serving(echo) as running, client_of(running.port) as client:
        answer = await client.send(wire, deadline=None)
    (seen,) = echo.seen
    assert (seen.path, seen.query, seen.headers.get("x-one")) == ("/v2/a%2Fb", "q=%20", "1")
    assert seen.headers.get("content-length") == "200001"
    assert bytes(seen.view) == bytes(answer.view) == b"".join(body)
    assert (answer.status, answer.headers.get("x-path")) == (200, "/v2/a%2Fb")
    assert answer.headers.get("content-length") is None


async def test_exact_bytes_of_a_request() -> None:
    """Nothing is sent that was not asked for."""
    got: list[bytes] = []

    async def script(peer: Peer) -> None:
        got.append(await peer.request())
        peer.writer.write(OK)

    async with upstream(script) as server, client_of(server.port) as client:
        await client.send(POST, deadline=None)
    expected = (
        f"POST /v2/x HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAccept-Encoding: identity\r\n"
        "Content-Length: 5\r\n\r\nhello"
    )
    assert got == [expected.encode()]


async def test_deadline_travels_and_ends_the_call() -> None:
    """What is left is sent on; at the deadline the call ends and the connection with it."""
    got: list[bytes] = []

    async def script(peer: Peer) -> None:
        got.append(await peer.request())
        await peer.reader.read()

    async with upstream(script) as server, client_of(server.port) as client:
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await client.send(POST, deadline=start + 0.2)
        took = time.monotonic() - start
        await asyncio.wait_for(server.disconnect.wait(), 1)
    assert 0.15 < took < 0.3
    assert b"\r\ngrpc-timeout: 1" in got[0]


async def test_past_deadline_makes_no_call() -> None:
    """A deadline that has passed reaches no upstream."""
    async with upstream(hang) as server, client_of(server.port) as client:
        with pytest.raises(DeadlineExceeded):
            await client.send(POST, deadline=time.monotonic() - 1)
        assert server.connections == 0


async def test_cancellation_closes_the_connection() -> None:
    """The upstream sees the end within 100 ms of the cancellation."""
    async with upstream(hang) as server, client_of(server.port) as client:
        task = asyncio.create_task(client.send(POST, deadline=None))
        await eventually(lambda: server.connections == 1)
        await asyncio.sleep(0.02)
        task.cancel()
        start = time.monotonic()
        await asyncio.wait_for(server.disconnect.wait(), 1)
        assert time.monotonic() - start < 0.1
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_server_takes_a_cancelled_request_for_a_half_closed_one() -> None:
    """A server that works on a request is told of its end by a reset, which means one thing only.

    After a mere end it had to find out whether the client still waits, which took each hop 50 ms.
    """
    arrival, end = asyncio.Event(), asyncio.Event()
    found: list[BaseException | bytes] = []

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrival.set()
        try:
            found.append(await reader.read())
        except ConnectionResetError as error:
            found.append(error)
        writer.close()
        end.set()

    server = await asyncio.start_server(work, "127.0.0.1", 0)
    async with server, client_of(server.sockets[0].getsockname()[1]) as client:
        task = asyncio.create_task(client.send(POST, deadline=None))
        await asyncio.wait_for(arrival.wait(), 5)
        task.cancel()
        await asyncio.wait_for(end.wait(), 5)
        await asyncio.gather(task, return_exceptions=True)
    assert [ConnectionResetError] == [type(each) for each in found]


async def test_cancellation_reaches_through_our_server() -> None:
    """A cancelled send cancels the frontend at the other end."""
    slow = Slow()
    async with serving(slow) as running, client_of(running.port) as client:
        task = asyncio.create_task(client.send(POST, deadline=None))
        await slow.started.wait()
        task.cancel()
        await asyncio.wait_for(slow.end.wait(), 1)
        await asyncio.gather(task, return_exceptions=True)
    assert slow.cancelled


async def test_no_listener_is_not_sent() -> None:
    """Who cannot be reached has not seen the call."""
    async with upstream(hang) as server:
        port = server.port
    async with client_of(port) as client:
        with pytest.raises(NotSent):
            await client.send(POST, deadline=None)


async def test_connection_is_reused() -> None:
    """Calls in turn share a connection."""
    async with upstream(says(OK, close=False)) as server, client_of(server.port) as client:
        for _ in range(5):
            assert bytes((await client.send(POST, deadline=None)).view) == b"ok"
        assert server.connections == 1


async def test_old_connection_is_replaced() -> None:
    """A connection past its age is not used again."""
    limits = ClientLimits(connection_age_s=0.05)
    async with upstream(says(OK, close=False)) as server, client_of(server.port, limits) as client:
        await client.send(POST, deadline=None)
        await asyncio.sleep(0.1)
        await client.send(POST, deadline=None)
        assert server.connections == 2


async def test_unasked_bytes_end_an_idle_connection() -> None:
    """An answer nobody asked for is never taken for the next one's."""

    async def poison(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(OK)
        await asyncio.sleep(0.05)
        peer.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad")
        await peer.reader.read()

    async with upstream(poison, says(OK)) as server, client_of(server.port) as client:
        await client.send(POST, deadline=None)
        await asyncio.sleep(0.15)
        answer = await client.send(POST, deadline=None)
        assert (bytes(answer.view), server.connections) == (b"ok", 2)


async def test_surplus_bytes_end_the_connection() -> None:
    """A second answer right behind the first is dropped with its connection."""
    double = says(OK + OK.replace(b"ok", b"no"), close=False)
    async with upstream(double) as server, client_of(server.port) as client:
        first = await client.send(POST, deadline=None)
        second = await client.send(POST, deadline=None)
        assert (bytes(first.view), bytes(second.view), server.connections) == (b"ok", b"ok", 2)


@pytest.mark.parametrize("size", [0, 8 << 20])
async def test_a_reset_does_not_say_that_a_request_was_not_read(size: int) -> None:
    """A server that reads a request and then fails may reset: only the operator may repeat it."""

    async def answer_then_reset(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(OK)
        await peer.reader.readexactly(1)
        reset_when_closed(peer.writer.transport.get_extra_info("socket"))
        peer.writer.transport.abort()

    async with upstream(answer_then_reset, says(OK)) as server, client_of(server.port) as client:
        await client.send(POST, deadline=None)
        wire = HttpRequest("POST", "/v2/x", body=(bytes(size),))
        with pytest.raises(Unavailable) as caught:
            await client.send(wire, deadline=time.monotonic() + 5)
        assert (Unavailable, 1) == (type(caught.value), server.connections)


async def test_a_connection_is_not_used_while_a_part_of_its_request_is_unsent() -> None:
    """A server that refuses a request early may leave the rest of it unread for ever."""

    async def refuse(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a stream's
        peer.writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await asyncio.sleep(5)

    large = HttpRequest("POST", "/v2/x", body=(bytes(16 << 20),))
    async with upstream(refuse, says(OK)) as server, client_of(server.port) as client:
        assert 413 == (await client.send(large, deadline=time.monotonic() + 2)).status
        assert 200 == (await client.send(POST, deadline=time.monotonic() + 2)).status
        assert 2 == server.connections


async def test_a_connection_is_not_used_after_an_internal_error() -> None:
    """ASGI servers close the connection after status 500 and do not say so."""
    failed = OK.replace(b"200 OK", b"500 Internal Server Error")
    async with (
        upstream(says(failed, close=False), says(OK)) as server,
        client_of(server.port) as client,
    ):
        statuses = [(await client.send(POST, deadline=None)).status for _ in range(2)]
        assert ([500, 200], 2) == (statuses, server.connections)


async def test_a_connection_closed_while_it_idled_costs_no_call() -> None:
    """What the kernel knows of an idle connection is asked before it is used, and nothing is lost.

    The loop does not run between the close and the next request, so it has not read of it.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    with closing(listener):
        async with client_of(listener.getsockname()[1]) as client:
            sending = asyncio.create_task(client.send(POST, deadline=None))
            first = await asyncio.to_thread(_answer, listener)
            await sending
            time.sleep(UNSEEN_S)  # noqa: ASYNC251  # the loop must not run
            first.close()
            sending = asyncio.create_task(client.send(POST, deadline=None))
            second = await asyncio.to_thread(_answer, listener)
            assert b"ok" == bytes((await sending).view)
            second.close()


def _answer(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    data = b""
    while not data.endswith(b"hello"):
        data += connection.recv(65536)
    connection.sendall(OK)
    return connection


@pytest.mark.parametrize(("method", "connections"), [("POST", 1), ("GET", 2)])
async def test_call_that_was_received_is_replayed_only_if_harmless(
    method: str, connections: int
) -> None:
    """A request the upstream took before it died may have had its effect: only GET goes again."""

    async def answer_then_die(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(OK)
        await peer.request()

    wire = HttpRequest(method, "/v2/x")
    async with upstream(answer_then_die, says(OK)) as server, client_of(server.port) as client:
        await client.send(wire, deadline=None)
        if method == "GET":
            assert (await client.send(wire, deadline=None)).status == 200
        else:
            with pytest.raises(Unavailable) as caught:
                await client.send(wire, deadline=None)
            assert not isinstance(caught.value, NotSent)
        assert server.connections == connections


async def test_new_connection_is_never_replayed() -> None:
    """A fresh connection that breaks without a byte is an error at once."""
    async with upstream(says(b"")) as server, client_of(server.port) as client:
        with pytest.raises(Unavailable):
            await client.send(HttpRequest("GET", "/"), deadline=None)
        assert server.connections == 1


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", Unavailable),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", Unavailable),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab", UpstreamProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Le", Unavailable),
        (b"SSH-2.0-OpenSSH\r\n", UpstreamProtocolError),
        (b"HTTP/1.1 abc OK\r\n\r\n", UpstreamProtocolError),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab",
            UpstreamProtocolError,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            UpstreamProtocolError,
        ),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", UpstreamProtocolError),
        (b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 101 + b"\r\n", UpstreamProtocolError),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
            UpstreamProtocolError,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
            UpstreamProtocolError,
        ),
    ],
)
async def test_broken_answers(data: bytes, kind: type[GatewayError]) -> None:
    """An answer that is cut is unavailability; one that is wrong breaks the protocol."""
    assert type(await failure(data)) is kind


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n"
        + b"x" * 101
        + b"\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s"
        % (len(gzip.compress(bytes(101), mtime=0)), gzip.compress(bytes(101), mtime=0)),
    ],
    ids=["declared", "chunked", "until_close", "inflated"],
)
async def test_answer_over_the_limit(data: bytes) -> None:
    """However an answer is framed, one byte over the limit is too large."""
    assert type(await failure(data, ClientLimits(message_bytes=100))) is TooLarge


async def test_answer_at_the_limit() -> None:
    """An answer of exactly the limit passes, and its coding is undone."""
    coded = gzip.compress(bytes(100))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(coded)
    limits = ClientLimits(message_bytes=100)
    async with upstream(says(head + coded)) as server, client_of(server.port, limits) as client:
        answer = await client.send(POST, deadline=None)
    assert bytes(answer.view) == bytes(100)
    assert answer.headers.get("content-encoding") is None


async def test_redirects_and_cookies_are_just_answers() -> None:
    """A redirect is returned, not followed; a cookie is not kept."""
    got: list[bytes] = []

    async def script(peer: Peer) -> None:
        while True:
            got.append(await peer.request())
            peer.writer.write(
                b"HTTP/1.1 302 Found\r\nLocation: /y\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
            )

    async with upstream(script) as server, client_of(server.port) as client:
        answers = [await client.send(POST, deadline=None) for _ in range(2)]
    assert [302, 302] == [answer.status for answer in answers]
    assert b"cookie" not in got[1].lower()


async def test_pending_calls_are_bounded() -> None:
    """Over the connections calls wait; over the queue they are refused at once."""
    limits = ClientLimits(connections=1, pending=1)
    slow = Slow()
    async with serving(slow) as running, client_of(running.port, limits) as client:
        first = asyncio.create_task(client.send(POST, deadline=None))
        await slow.started.wait()
        second = asyncio.create_task(client.send(POST, deadline=None))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await client.send(POST, deadline=None)
        slow.go.set()
        assert [200, 200] == [answer.status for answer in await asyncio.gather(first, second)]


async def test_stream_yields_as_it_comes() -> None:
    """Pieces are handed on when they arrive."""
    parts = Parts()
    async with serving(parts) as running, client_of(running.port) as client:
        answers = client.stream(POST, deadline=None)
        parts.parts.put_nowait(b"one")
        assert bytes((await anext(answers)).view) == b"one"
        parts.parts.put_nowait(b"two")
        assert bytes((await anext(answers)).view) == b"two"
        parts.parts.put_nowait(None)
        assert [answer async for answer in answers] == []


async def test_closing_a_stream_cancels_it() -> None:
    """Who stops reading a stream ends it at the other end."""
    parts = Parts()
    async with serving(parts) as running, client_of(running.port) as client:
        answers = client.stream(POST, deadline=None)
        parts.parts.put_nowait(b"one")
        await anext(answers)
        await close_stream(answers)
        await asyncio.wait_for(parts.closed.wait(), 1)


async def test_cut_stream_is_an_error() -> None:
    """A stream without its end is unavailability, not an end."""
    parts = Parts(fail=True)
    async with serving(parts) as running, client_of(running.port) as client:
        answers = client.stream(POST, deadline=None)
        parts.parts.put_nowait(b"one")
        await anext(answers)
        parts.parts.put_nowait(None)
        with pytest.raises(Unavailable):
            await anext(answers)


async def test_closed_client_sends_nothing() -> None:
    """After close a call is refused, and closing again is harmless."""
    async with serving(Echo()) as running:
        assert isinstance(running, Running)
        client = HTTP_MAKES.http_client(f"http://127.0.0.1:{running.port}", LIMITS)
        await client.send(POST, deadline=None)
        await client.close()
        await client.close()
        with pytest.raises(NotSent):
            await client.send(POST, deadline=None)


async def test_connection_that_dies_before_the_last_byte_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kept connection that is gone when the body is written cannot have carried the request."""
    if HTTP_MAKES.client != "reference":
        pytest.skip("stands in for aiohttp's writer; the native make has none")
    write = StreamWriter.write
    failures = iter([False, True])

    async def failing(self: StreamWriter, *arguments: Any, **settings: Any) -> None:
        if next(failures, False):
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        await write(self, *arguments, **settings)

    wire = HttpRequest("POST", "/v2/x", body=(b"{}",))
    two = upstream(says(OK, close=False), says(OK))
    async with two as server, client_of(server.port) as client:
        monkeypatch.setattr(StreamWriter, "write", failing)
        await client.send(wire, deadline=None)
        answer = await client.send(wire, deadline=None)
        assert (bytes(answer.view), server.connections) == (b"ok", 2)


async def test_a_response_that_the_codec_refuses_ends_its_connection() -> None:
    """It may be that to another request, and all that follow would be shifted by one."""

    def refuse(_response: HttpResponse) -> None:
        raise UpstreamProtocolError("response has the id 'other'")

    async with upstream(says(OK, close=False)) as server, client_of(server.port) as client:
        with pytest.raises(UpstreamProtocolError, match="other"):
            await client.send(POST, deadline=None, decode=refuse)
        await eventually(server.disconnect.is_set)
        assert b"ok" == bytes((await client.send(POST, deadline=None)).view)
        assert 2 == server.connections


async def test_a_response_in_endless_chunks_ends() -> None:
    """Each chunk costs more than its byte: so many are allowed, and then one for each KiB."""
    sent = 0

    async def endless(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        peer.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:  # until the connection is reset
            peer.writer.write(b"1\r\nx\r\n" * 1000)
            sent += 1000
            await peer.writer.drain()

    async with upstream(endless) as server, client_of(server.port) as client:
        with pytest.raises(UpstreamProtocolError, match="chunks"):
            await client.send(POST, deadline=time.monotonic() + 20)
        await asyncio.wait_for(server.disconnect.wait(), 5)
        assert sent < 1_000_000
