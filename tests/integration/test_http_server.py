"""The HTTP server over real sockets: exchanges, streams, cancellation, drain."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import time
import zlib
from collections.abc import AsyncGenerator

import pytest

from gateway.transports.contract import MemoryBudget, ServerLimits
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.integration.http_kit import (
    HTTP_MAKES,
    Echo,
    Parts,
    Slow,
    eventually,
    parse,
    post,
    serving,
)

pytestmark = pytest.mark.usefixtures("http_makes")

CLOSE = "Connection: close"


async def test_request_reaches_the_frontend_unchanged() -> None:
    """Body, path, query, header spelling and method reach the frontend as sent."""
    echo = Echo()
    async with serving(echo) as running:
        raw = await running.connect()
        await raw.send(post(b"hello", "X-ODD-Case: 1", path="/v2/a%2Fb?c=%20d&e"))
        response = await raw.answer()
        await raw.close()
    (wire,) = echo.seen
    assert (response.status, response.body) == (200, b"hello")
    assert (wire.method, wire.path, wire.query) == ("POST", "/v2/a%2Fb", "c=%20d&e")
    assert ("X-ODD-Case", "1") in wire.headers.pairs
    assert wire.view.readonly
    assert len(wire.body) == 1


async def test_response_names_no_software() -> None:
    """A response names neither the server nor its version."""
    async with serving(Echo()) as running:
        data = await running.ask(post(b"", CLOSE))
    assert b"aiohttp" not in data
    assert b"Server:" not in data


async def test_chunked_body_becomes_one_buffer() -> None:
    """Chunks are joined, and the frontend does not see the framing."""
    echo = Echo()
    async with serving(echo) as running:
        data = await running.ask(
            b"POST /v2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: t\r\n\r\n"
        )
    assert [200] == parse(data)
    assert data.endswith(b"abcde")
    assert bytes(echo.seen[0].view) == b"abcde"


async def test_large_body_is_echoed() -> None:
    """Megabytes pass unchanged in both directions."""
    body = bytes(range(256)) * 20_000
    async with serving(Echo()) as running:
        raw = await running.connect()
        sending = asyncio.create_task(raw.send(post(body)))
        response = await raw.answer()
        await sending
        await raw.close()
    assert response.body == body


async def test_pipelined_requests_are_served_in_order() -> None:
    """Requests sent at once get their responses in order, on one connection."""
    async with serving(Echo()) as running:
        raw = await running.connect()
        await raw.send(b"".join(post(b"%d" % i) for i in range(40)))
        bodies = [(await raw.answer()).body for _ in range(40)]
        await raw.close()
    assert bodies == [b"%d" % i for i in range(40)]


@pytest.mark.needs("half_close")
async def test_half_closed_client_gets_its_response() -> None:
    """A client that half-closes after a whole request still gets its response."""
    slow = Slow()
    async with serving(slow) as running:
        raw = await running.connect()
        await raw.send(post(b"x"))
        raw.writer.write_eof()
        await slow.started.wait()
        await asyncio.sleep(0.15)
        assert not slow.cancelled
        slow.go.set()
        data = await raw.rest()
        await raw.close()
    assert parse(data)[-1] == 200
    assert data.endswith(b"slow")


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "fin"])
async def test_client_disconnect_cancels_the_frontend(reset: bool) -> None:
    """The frontend is cancelled at the disconnect, and not at a limit of time."""
    slow = Slow()
    async with serving(slow) as running:
        raw = await running.connect()
        await raw.send(post(b"x"))
        await slow.started.wait()
        if reset:
            raw.writer.transport.abort()
        else:
            raw.writer.close()
        await asyncio.wait_for(slow.end.wait(), 20)
    assert slow.cancelled


async def test_stream_is_sent_in_chunks() -> None:
    """Each part of a frontend is sent as a chunk when it is made."""
    parts = Parts()
    async with serving(parts) as running:
        raw = await running.connect()
        await raw.send(post(b""))
        parts.parts.put_nowait(b"one")
        status, headers = await raw.head()
        assert await raw.chunk() == b"one"
        parts.parts.put_nowait(b"two")
        assert await raw.chunk() == b"two"
        parts.parts.put_nowait(None)
        assert await raw.chunk() == b""
        await raw.close()
    assert (status, headers.get("transfer-encoding")) == (200, "chunked")
    assert headers.get("content-type") == "text/plain"


async def test_failing_stream_is_truncated() -> None:
    """An error in mid-stream closes the connection without the last chunk."""
    parts = Parts(fail=True)
    async with serving(parts) as running:
        raw = await running.connect()
        await raw.send(post(b""))
        parts.parts.put_nowait(b"one")
        await raw.head()
        assert await raw.chunk() == b"one"
        parts.parts.put_nowait(None)
        assert await raw.rest() == b""
        await raw.close()


async def test_client_disconnect_closes_the_stream() -> None:
    """The frontend's generator is closed when the client of a stream disconnects."""
    parts = Parts()
    async with serving(parts) as running:
        raw = await running.connect()
        await raw.send(post(b""))
        parts.parts.put_nowait(b"one")
        await raw.head()
        raw.writer.close()
        await asyncio.wait_for(parts.closed.wait(), 20)


async def test_http_1_0_connection_is_closed() -> None:
    """A client of HTTP/1.0 gets its response, and the connection ends."""
    async with serving(Echo()) as running:
        data = await running.ask(b"POST /v2 HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi")
    assert data.endswith(b"\r\n\r\nhi")
    assert b"Connection: close" in data


async def test_head_has_no_body() -> None:
    """A response to HEAD has the headers of a body and none."""
    async with serving(Echo()) as running:
        data = await running.ask(
            b"HEAD /v2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
        )
    assert b"Content-Length: 2\r\n" in data
    assert data.endswith(b"\r\n\r\n")


async def test_unclaimed_path_is_not_found() -> None:
    """Without a fallback, a path of no mount is a JSON 404."""
    async with serving(Echo()) as running:
        raw = await running.connect()
        await raw.send(post(b"x", path="/v22"))
        response = await raw.answer()
        await raw.close()
    assert response.status == 404
    assert response.json == {"error": "nothing is served at '/v22'"}


@pytest.mark.parametrize("kind", ["", "+proto", "-text", "-text+proto", "; x=y"])
async def test_grpc_web_is_415(kind: str) -> None:
    """It is not gRPC, and no frontend reads its messages as those of HTTP."""
    echo = Echo()
    async with serving(echo, fallback=echo) as running:
        for path in ("/v2/x", "/inference.GRPCInferenceService/ModelInfer"):
            head = f"Content-Type: application/grpc-web{kind}"
            data = await running.ask(post(b"x", head, CLOSE, path=path))
            assert [415] == parse(data)
    assert [] == echo.seen


@pytest.mark.parametrize(
    "path", ["/x/../v2/a", "/%762/a", "//v2/a", "/x/%2e%2e/v2", "/./v2", "/x%5c..%5cv2", "/v2;a/b"]
)
async def test_disguised_path_does_not_reach_the_fallback(path: str) -> None:
    """Another spelling of a mounted path is rejected, not forwarded."""
    fallback = Echo()
    async with serving(Echo(), fallback=fallback) as running:
        data = await running.ask(post(b"", CLOSE, path=path))
        plain = await running.ask(post(b"", CLOSE, path="/other/x"))
    assert ([400], [200]) == (parse(data), parse(plain))
    assert [wire.path for wire in fallback.seen] == ["/other/x"]


@pytest.mark.parametrize(
    ("field", "seconds"),
    [
        ("grpc-timeout: 20S", 20.0),
        ("grpc-timeout: 20500m", 20.5),
        ("X-Request-Timeout: 21.5", 21.5),
        ("X-Request-Timeout: 20250ms", 20.25),
    ],
)
async def test_timeout_header_sets_the_deadline(field: str, seconds: float) -> None:
    """A timeout in a header becomes an absolute deadline."""
    echo = Echo()
    async with serving(echo) as running:
        before = time.monotonic()
        await running.ask(post(b"", CLOSE, field))
        after = time.monotonic()
    deadline = echo.seen[0].deadline
    assert deadline is not None
    assert before - 0.1 <= deadline - seconds <= after + 0.1


async def test_malformed_deadline_is_ignored() -> None:
    """A timeout that cannot be parsed is ignored."""
    echo = Echo()
    async with serving(echo) as running:
        await running.ask(post(b"", CLOSE, "grpc-timeout: soon", "X-Request-Timeout: -1"))
    assert echo.seen[0].deadline is None


@pytest.mark.parametrize(
    ("coding", "coded"),
    [("gzip", gzip.compress(b"data", mtime=0)), ("deflate", zlib.compress(b"data"))],
)
async def test_content_coding_is_decoded(coding: str, coded: bytes) -> None:
    """The frontend sees the decoded body."""
    echo = Echo()
    async with serving(echo) as running:
        await running.ask(post(coded, CLOSE, f"Content-Encoding: {coding}"))
    assert bytes(echo.seen[0].view) == b"data"


async def test_response_is_compressed_by_accept_encoding() -> None:
    """The best accepted coding is used and named in the headers."""
    async with serving(Echo(compressible=True)) as running:
        raw = await running.connect()
        await raw.send(post(b"a" * 1000, "Accept-Encoding: deflate;q=0.5, gzip"))
        response = await raw.answer()
        await raw.send(post(b"a" * 1000))
        plain = await raw.answer()
        await raw.close()
    assert gzip.decompress(response.body) == b"a" * 1000
    assert response.headers.get("content-encoding") == "gzip"
    assert response.headers.get("vary") == "Accept-Encoding"
    assert (plain.headers.get("content-encoding"), plain.body) == (None, b"a" * 1000)
    assert ["an-id"] * 2 == [each.headers.get("x-request-id") for each in (response, plain)]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [1, 4096, 4097])
async def test_responses_of_all_sizes_are_compressed(size: int, coding: str) -> None:
    """Small ones are written with a small window, which every client reads."""
    chance = random.Random(size)  # noqa: S311  # no secret
    body = chance.randbytes(size // 2).hex().encode() + b"a" * (size % 2)
    async with serving(Echo(compressible=True)) as running:
        raw = await running.connect()
        await raw.send(post(body, f"Accept-Encoding: {coding}"))
        response = await raw.answer()
        await raw.close()
    assert coding == response.headers.get("content-encoding")
    decoded = (gzip.decompress if coding == "gzip" else zlib.decompress)(response.body)
    assert body == decoded
    deflated = response.body[0] >> 4 if coding == "deflate" else None
    assert deflated in {None, 4 if size <= 4096 else 7}


async def test_expect_continue_gets_100() -> None:
    """A client that expects 100 Continue gets it, then its response."""
    async with serving(Echo()) as running:
        raw = await running.connect()
        await raw.send(post(b"", "Expect: 100-continue", length=2))
        assert (await raw.head())[0] == 100
        await raw.send(b"hi")
        assert (await raw.answer()).body == b"hi"
        await raw.close()


async def test_drain_finishes_requests_in_flight() -> None:
    """A drain closes idle connections and finishes the others with `Connection: close`."""
    slow = Slow()
    async with serving(slow) as running:
        idle, busy = await running.connect(), await running.connect()
        await busy.send(post(b"x"))
        await slow.started.wait()
        drain = asyncio.create_task(running.server.drain(5))
        assert await idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await running.connect()
        slow.go.set()
        response = await busy.answer()
        await drain
        await idle.close()
        await busy.close()
    assert (response.status, response.headers.get("connection")) == (200, "close")


async def test_drain_serves_a_request_on_its_way() -> None:
    """A request that arrives during a drain is served with `Connection: close`."""
    async with serving(Echo()) as running:
        connection = await running.connect()
        await connection.send(post(b"x"))
        assert 200 == (await connection.answer()).status
        drain = asyncio.create_task(running.server.drain(5))
        await asyncio.sleep(0)
        await connection.send(post(b"y"))
        response = await connection.answer()
        assert (200, "close") == (response.status, response.headers.get("connection"))
        assert b"" == await connection.rest()
        await drain
        await connection.close()


async def test_drain_serves_a_request_in_the_kernel_buffer() -> None:
    """An idle connection with an unread request is not reset."""
    loop = asyncio.get_running_loop()
    async with serving(Echo()) as running, asyncio.timeout(20):
        with socket.create_connection((running.host, running.port)) as kept:
            kept.setblocking(False)
            kept.send(post(b"x"))
            assert b"HTTP/1.1 200" in await loop.sock_recv(kept, 4096)
            kept.send(post(b"y"))  # the loop has no turn to read it
            for connection in running.server.open_connections:
                connection.drain()
            response = await loop.sock_recv(kept, 4096)
            assert b"HTTP/1.1 200" in response
            assert b"\r\nConnection: close\r\n" in response
            await eventually(lambda: not running.server.open_connections)


async def test_drain_serves_the_accept_backlog() -> None:
    """A connection that is established but not accepted is served, not reset."""
    async with serving(Echo()) as running:
        with socket.socket() as waiting:
            waiting.connect((running.host, running.port))  # the loop has no turn to accept it
            waiting.sendall(post(b"x"))
            await running.server.drain(5)
            assert b"HTTP/1.1 200" in waiting.recv(4096)


async def test_drain_cancels_requests_that_take_too_long() -> None:
    """A request that exceeds the drain time is cancelled and gets 503."""
    slow = Slow()
    async with serving(slow) as running:
        busy = await running.connect()
        await busy.send(post(b"x"))
        await slow.started.wait()
        await running.server.drain(0.05)
        response = await busy.answer()
        await busy.close()
    assert response.status == 503
    assert "shutting down" in response.json["error"]
    assert slow.cancelled


async def test_response_header_values_are_escaped() -> None:
    """Line ends and other invalid characters never reach the wire."""

    class Odd(Echo):
        async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
            yield HttpResponse(200, Headers((("X-A", "a\r\nX-B: b\x00é"), ("X C", "d"))), (b"",))

    async with serving(Odd()) as running:
        data = await running.ask(post(b"", CLOSE))
    assert b"X-A: a%0D%0AX-B: b%00%C3%A9\r\n" in data
    assert b"X C" not in data


async def test_address_in_use_is_an_os_error() -> None:
    """A port in use raises OSError at start."""
    async with serving(Echo()) as running:
        server = HTTP_MAKES.http_server(
            "127.0.0.1", running.port, mounts=[], limits=ServerLimits(), budget=MemoryBudget(1)
        )
        with pytest.raises(OSError, match="in use"):
            await server.start()


async def test_http_1_0_stream_ends_with_the_connection() -> None:
    """A client of HTTP/1.0 gets a stream without chunks, even with keep-alive."""
    parts = Parts()
    async with serving(parts) as running:
        raw = await running.connect()
        await raw.send(b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        parts.parts.put_nowait(b"one")
        _, headers = await raw.head()
        parts.parts.put_nowait(b"two")
        parts.parts.put_nowait(None)
        assert await raw.rest() == b"onetwo"
        await raw.close()
    assert headers.get("transfer-encoding") is None


async def test_status_204_has_no_content_length() -> None:
    """204 has neither body nor Content-Length, and the connection stays usable."""

    class Nothing(Echo):
        async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
            yield HttpResponse(204)

    async with serving(Nothing()) as running:
        raw = await running.connect()
        for _ in range(2):
            await raw.send(post(b""))
            status, headers = await raw.head()
            assert (status, headers.get("content-length")) == (204, None)
        await raw.close()


async def test_exception_of_a_frontend_is_500_without_details() -> None:
    """The body of an unexpected exception has no details."""

    class Buggy(Echo):
        async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
            if wire.body:
                raise RuntimeError("secret")
            yield HttpResponse(200)

    async with serving(Buggy()) as running:
        data = await running.ask(post(b"x"))
    assert [500] == parse(data)
    assert b"secret" not in data


async def test_disconnect_within_a_body_releases_its_memory() -> None:
    """An incomplete body releases its reservation and reaches no frontend."""
    echo = Echo()
    async with serving(echo) as running:
        raw = await running.connect()
        await raw.send(post(b"x" * 10, length=1000))
        await eventually(lambda: running.budget.used == 1000)
        await raw.close()
        await eventually(lambda: running.budget.used == 0)
    assert echo.seen == []
