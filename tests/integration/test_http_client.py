"""The HTTP client over real sockets, with our own server and with raw ones that misbehave."""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing

import pytest

from gateway.ir.bodies.streams import close_stream
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    NotSent,
    Overloaded,
    TooLarge,
    Unavailable,
    UpstreamProtocolError,
)
from gateway.transports.contract import ClientLimits, HttpClient
from gateway.transports.net.sockets import UNSEEN_S, reset_when_closed
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.fakes import settle
from tests.integration.http_kit import HTTP_MAKES, Echo, Parts, Running, Slow, eventually, serving

pytestmark = pytest.mark.usefixtures("http_sides")

LIMITS = ClientLimits()
POST = HttpRequest("POST", "/v2/x", body=(b"hello",))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """One connection of a scripted upstream."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, got_request: asyncio.Event
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._got_request = got_request

    async def request(self) -> bytes:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        body = await self.reader.readexactly(length)
        self._got_request.set()
        return head + body


class Upstream:
    """A server that runs one script per connection, in their order; the last one repeats."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.requests: list[bytes] = []
        self.got_request = asyncio.Event()
        self.disconnect = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.connections, len(self._scripts) - 1)]
        self.connections += 1
        self._writers.append(writer)
        try:
            await script(Peer(reader, writer, self.got_request))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.disconnect.set()
            writer.close()

    def abort(self) -> None:
        """End the connections whose scripts go on, or whose ends nobody read."""
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def upstream(*scripts: Script) -> AsyncIterator[Upstream]:
    result = Upstream(*scripts)
    server = await asyncio.start_server(result.serve, "127.0.0.1", 0)
    result.port = server.sockets[0].getsockname()[1]
    try:
        yield result
    finally:
        server.close()
        result.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def client_of(port: int, limits: ClientLimits = LIMITS) -> AsyncIterator[HttpClient]:
    client = HTTP_MAKES.http_client(f"http://127.0.0.1:{port}", limits)
    try:
        yield client
    finally:
        await client.close()


def respond_with(data: bytes, *, close: bool = True) -> Script:
    """Respond to every request with *data*; *close* ends the connection after the first."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            peer.writer.write(data)
            await peer.writer.drain()
            if close:
                return

    return script


async def hang(peer: Peer) -> None:
    """Read the request, send nothing, and wait for the client to disconnect."""
    await peer.request()
    await peer.reader.read()


async def failure(data: bytes, limits: ClientLimits = LIMITS) -> GatewayError:
    async with upstream(respond_with(data)) as server, client_of(server.port, limits) as client:
        with pytest.raises(GatewayError) as caught:
            await client.send(POST, deadline=time.monotonic() + 20)
    return caught.value


async def test_round_trip_through_our_server() -> None:
    """Path, query, headers and a body in several buffers arrive unchanged."""
    echo = Echo()
    body = (b"a" * 100_000, memoryview(b"b" * 100_000), b"c")
    wire = HttpRequest("POST", "/v2/a%2Fb", "q=%20", Headers((("X-One", "1"),)), body)
    async with serving(echo) as running, client_of(running.port) as client:
        response = await client.send(wire, deadline=None)
    (seen,) = echo.seen
    assert (seen.path, seen.query, seen.headers.get("x-one")) == ("/v2/a%2Fb", "q=%20", "1")
    assert seen.headers.get("content-length") == "200001"
    assert bytes(seen.view) == bytes(response.view) == b"".join(body)
    assert (response.status, response.headers.get("x-path")) == (200, "/v2/a%2Fb")
    assert response.headers.get("content-length") is None


@pytest.mark.needs("kept_connections")
async def test_request_has_exact_bytes() -> None:
    """The client adds no header beyond the required ones."""
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


async def test_deadline_is_forwarded_and_ends_the_call() -> None:
    """The remaining time is forwarded; at the deadline the call and its connection end."""
    got: list[bytes] = []

    async def script(peer: Peer) -> None:
        got.append(await peer.request())
        await peer.reader.read()

    async with upstream(script) as server, client_of(server.port) as client:
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await client.send(POST, deadline=start + 1)
        took = time.monotonic() - start
        await asyncio.wait_for(server.disconnect.wait(), 20)
    assert took > 0.95
    found = re.search(rb"\r\ngrpc-timeout: (\d+)m\r\n", got[0])
    assert found is not None
    assert 0 < int(found[1]) <= 1000


async def test_past_deadline_sends_no_request() -> None:
    """A deadline that has passed reaches no upstream."""
    async with upstream(hang) as server, client_of(server.port) as client:
        with pytest.raises(DeadlineExceeded):
            await client.send(POST, deadline=time.monotonic() - 1)
        assert server.connections == 0


async def test_cancellation_closes_the_connection() -> None:
    """The upstream sees the end, although the call has no deadline."""
    async with upstream(hang) as server, client_of(server.port) as client:
        task = asyncio.create_task(client.send(POST, deadline=None))
        await server.got_request.wait()
        task.cancel()
        await asyncio.wait_for(server.disconnect.wait(), 20)
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.needs("resets")
async def test_cancelled_request_resets_the_connection() -> None:
    """A reset shows the server that the client has left; a FIN could be a half-close.

    After a FIN the server had to find out whether the client still waits, which took each hop 50 ms.
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
        await asyncio.wait_for(arrival.wait(), 20)
        task.cancel()
        await asyncio.wait_for(end.wait(), 20)
        await asyncio.gather(task, return_exceptions=True)
    assert [ConnectionResetError] == [type(each) for each in found]


async def test_cancelled_send_cancels_the_frontend() -> None:
    """Cancelling `send` cancels the frontend of the server."""
    slow = Slow()
    async with serving(slow) as running, client_of(running.port) as client:
        task = asyncio.create_task(client.send(POST, deadline=None))
        await slow.started.wait()
        task.cancel()
        await asyncio.wait_for(slow.end.wait(), 20)
        await asyncio.gather(task, return_exceptions=True)
    assert slow.cancelled


async def test_unreachable_upstream_raises_not_sent() -> None:
    """An unreachable upstream has not seen the call."""
    async with upstream(hang) as server:
        port = server.port
    async with client_of(port) as client:
        with pytest.raises(NotSent):
            await client.send(POST, deadline=None)


@pytest.mark.needs("kept_connections")
async def test_connection_is_reused() -> None:
    """Successive calls share a connection."""
    async with upstream(respond_with(OK, close=False)) as server, client_of(server.port) as client:
        for _ in range(5):
            assert bytes((await client.send(POST, deadline=None)).view) == b"ok"
        assert server.connections == 1


async def test_old_connection_is_replaced() -> None:
    """A connection past its age is not used again."""
    limits = ClientLimits(connection_age_s=0.05)
    async with (
        upstream(respond_with(OK, close=False)) as server,
        client_of(server.port, limits) as client,
    ):

        async def is_replaced() -> bool:
            await client.send(POST, deadline=None)
            return server.connections == 2

        await eventually(is_replaced)


async def test_unsolicited_bytes_close_an_idle_connection() -> None:
    """An unsolicited response is never used for the next request."""
    is_answered, is_poisoned = asyncio.Event(), asyncio.Event()

    async def poison(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(OK)
        await is_answered.wait()
        peer.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad")
        is_poisoned.set()
        await peer.reader.read()

    async with upstream(poison, respond_with(OK)) as server, client_of(server.port) as client:
        await client.send(POST, deadline=None)
        is_answered.set()
        await is_poisoned.wait()
        await settle()  # the client reads what the kernel has
        response = await client.send(POST, deadline=None)
        assert (bytes(response.view), server.connections) == (b"ok", 2)


async def test_surplus_bytes_close_the_connection() -> None:
    """A second response right behind the first is dropped with its connection."""
    double = respond_with(OK + OK.replace(b"ok", b"no"), close=False)
    async with upstream(double) as server, client_of(server.port) as client:
        first = await client.send(POST, deadline=None)
        second = await client.send(POST, deadline=None)
        assert (bytes(first.view), bytes(second.view), server.connections) == (b"ok", b"ok", 2)


@pytest.mark.parametrize("size", [0, 8 << 20])
@pytest.mark.needs("kept_connections")
async def test_reset_of_a_reused_connection_is_not_retried(size: int) -> None:
    """The server may have read the request before the reset, so it is not sent again."""

    async def answer_then_reset(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(OK)
        await peer.reader.readexactly(1)
        reset_when_closed(peer.writer.transport.get_extra_info("socket"))
        peer.writer.transport.abort()

    async with (
        upstream(answer_then_reset, respond_with(OK)) as server,
        client_of(server.port) as client,
    ):
        await client.send(POST, deadline=None)
        wire = HttpRequest("POST", "/v2/x", body=(bytes(size),))
        with pytest.raises(Unavailable) as caught:
            await client.send(wire, deadline=time.monotonic() + 20)
        assert (Unavailable, 1) == (type(caught.value), server.connections)


async def test_connection_with_an_unsent_body_is_not_reused() -> None:
    """A server that rejects a request early may never read the rest of it."""

    async def refuse(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a stream's
        peer.writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await asyncio.Event().wait()

    large = HttpRequest("POST", "/v2/x", body=(bytes(16 << 20),))
    async with upstream(refuse, respond_with(OK)) as server, client_of(server.port) as client:
        assert 413 == (await client.send(large, deadline=time.monotonic() + 20)).status
        assert 200 == (await client.send(POST, deadline=time.monotonic() + 20)).status
        assert 2 == server.connections


async def test_connection_is_not_reused_after_status_500() -> None:
    """ASGI servers close the connection after status 500 without `Connection: close`."""
    failed = OK.replace(b"200 OK", b"500 Internal Server Error")
    async with (
        upstream(respond_with(failed, close=False), respond_with(OK)) as server,
        client_of(server.port) as client,
    ):
        statuses = [(await client.send(POST, deadline=None)).status for _ in range(2)]
        assert ([500, 200], 2) == (statuses, server.connections)


@pytest.mark.needs("kept_connections")
async def test_closed_idle_connection_is_detected_before_reuse() -> None:
    """The kernel's state of an idle connection is checked before it is used.

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
@pytest.mark.needs("kept_connections")
async def test_only_get_is_resent_after_a_lost_connection(method: str, connections: int) -> None:
    """The upstream may have run the request before it closed: only GET is sent again."""

    async def answer_then_die(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(OK)
        await peer.request()

    wire = HttpRequest(method, "/v2/x")
    async with (
        upstream(answer_then_die, respond_with(OK)) as server,
        client_of(server.port) as client,
    ):
        await client.send(wire, deadline=None)
        if method == "GET":
            assert (await client.send(wire, deadline=None)).status == 200
        else:
            with pytest.raises(Unavailable) as caught:
                await client.send(wire, deadline=None)
            assert not isinstance(caught.value, NotSent)
        assert server.connections == connections


@pytest.mark.needs("single_attempts")
async def test_lost_new_connection_is_not_retried() -> None:
    """A fresh connection that closes without a byte is an error at once."""
    async with upstream(respond_with(b"")) as server, client_of(server.port) as client:
        with pytest.raises(Unavailable):
            await client.send(HttpRequest("GET", "/"), deadline=None)
        assert server.connections == 1


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", Unavailable),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", Unavailable),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab",
            UpstreamProtocolError,
            marks=pytest.mark.needs("framing_errors"),
        ),
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
async def test_malformed_responses_raise(data: bytes, kind: type[GatewayError]) -> None:
    """A truncated response is unavailability; an invalid one is a protocol error."""
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
async def test_response_over_the_limit_is_too_large(data: bytes) -> None:
    """One byte over the limit is too large in every framing."""
    assert type(await failure(data, ClientLimits(message_bytes=100))) is TooLarge


async def test_response_at_the_limit_is_accepted() -> None:
    """A response of exactly the limit passes, and its coding is decoded."""
    coded = gzip.compress(bytes(100))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(coded)
    limits = ClientLimits(message_bytes=100)
    async with (
        upstream(respond_with(head + coded)) as server,
        client_of(server.port, limits) as client,
    ):
        response = await client.send(POST, deadline=None)
    assert bytes(response.view) == bytes(100)
    assert response.headers.get("content-encoding") is None


async def test_redirects_and_cookies_are_ignored() -> None:
    """A redirect is returned, not followed; a cookie is not stored."""
    got: list[bytes] = []

    async def script(peer: Peer) -> None:
        while True:
            got.append(await peer.request())
            peer.writer.write(
                b"HTTP/1.1 302 Found\r\nLocation: /y\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
            )

    async with upstream(script) as server, client_of(server.port) as client:
        responses = [await client.send(POST, deadline=None) for _ in range(2)]
    assert [302, 302] == [response.status for response in responses]
    assert b"cookie" not in got[1].lower()


async def test_pending_calls_are_limited() -> None:
    """Calls over the connection limit wait; over the queue limit they raise at once."""
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
        assert [200, 200] == [response.status for response in await asyncio.gather(first, second)]


async def test_stream_yields_parts_as_they_arrive() -> None:
    """Each part is yielded when it arrives."""
    parts = Parts()
    async with serving(parts) as running, client_of(running.port) as client:
        responses = client.stream(POST, deadline=None)
        parts.parts.put_nowait(b"one")
        assert bytes((await anext(responses)).view) == b"one"
        parts.parts.put_nowait(b"two")
        assert bytes((await anext(responses)).view) == b"two"
        parts.parts.put_nowait(None)
        assert [response async for response in responses] == []


async def test_closing_a_stream_cancels_the_frontend() -> None:
    """A closed iterator ends the stream at the server."""
    parts = Parts()
    async with serving(parts) as running, client_of(running.port) as client:
        responses = client.stream(POST, deadline=None)
        parts.parts.put_nowait(b"one")
        await anext(responses)
        await close_stream(responses)
        await asyncio.wait_for(parts.closed.wait(), 20)


async def test_truncated_stream_raises() -> None:
    """A stream without its end is unavailability."""
    parts = Parts(fail=True)
    async with serving(parts) as running, client_of(running.port) as client:
        responses = client.stream(POST, deadline=None)
        parts.parts.put_nowait(b"one")
        await anext(responses)
        parts.parts.put_nowait(None)
        with pytest.raises(Unavailable):
            await anext(responses)


async def test_closed_client_sends_nothing() -> None:
    """After close a call raises NotSent, and closing again is harmless."""
    async with serving(Echo()) as running:
        assert isinstance(running, Running)
        client = HTTP_MAKES.http_client(f"http://127.0.0.1:{running.port}", LIMITS)
        await client.send(POST, deadline=None)
        await client.close()
        await client.close()
        with pytest.raises(NotSent):
            await client.send(POST, deadline=None)


async def test_response_that_decode_rejects_closes_its_connection() -> None:
    """It may belong to another request, and later responses would be shifted by one."""

    def refuse(_response: HttpResponse) -> None:
        raise UpstreamProtocolError("response has the id 'other'")

    async with upstream(respond_with(OK, close=False)) as server, client_of(server.port) as client:
        with pytest.raises(UpstreamProtocolError, match="other"):
            await client.send(POST, deadline=None, decode=refuse)
        await eventually(server.disconnect.is_set)
        assert b"ok" == bytes((await client.send(POST, deadline=None)).view)
        assert 2 == server.connections


@pytest.mark.needs("framing_errors")
async def test_response_in_tiny_chunks_is_limited() -> None:
    """The number of chunks has a limit that grows by one for each KiB."""
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
        await asyncio.wait_for(server.disconnect.wait(), 20)
        assert sent < 1_000_000
