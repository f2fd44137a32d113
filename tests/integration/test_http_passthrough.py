"""Unclaimed requests pass through the gateway's HTTP server to an HTTP upstream, over sockets."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.transports.contract import ClientLimits
from gateway.transports.http.passthrough import Passthrough, PassthroughClient, PassthroughRules
from tests.integration.http_kit import HTTP_MAKES, Echo, Running, parse, post, serving
from tests.integration.test_http_client import Script, hang, respond_with, upstream

pytestmark = pytest.mark.usefixtures("http_sides")

CLOSE = "Connection: close"
ALL = PassthroughRules(post=("*",))


@asynccontextmanager
async def passing(
    script: Script,
    *,
    limits: ClientLimits | None = None,
    rules: PassthroughRules | None = None,
    forwarded: bool = False,
) -> AsyncIterator[Running]:
    async with upstream(script) as server:
        client = HTTP_MAKES.http_client(f"http://127.0.0.1:{server.port}", limits or ClientLimits())
        fallback = Passthrough(PassthroughClient(client), rules or ALL, forwarded=forwarded)
        try:
            async with serving(Echo(), fallback=fallback) as running:
                yield running
        finally:
            await client.close()


async def test_request_and_response_pass_through_unchanged() -> None:
    """Method, exact target, end-to-end headers and body pass; hop-by-hop headers do not."""
    got: list[bytes] = []

    async def script(peer) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        got.append(await peer.request())
        peer.writer.write(
            b"HTTP/1.1 207 Multi\r\nX-Answer: a\r\nKeep-Alive: 5\r\nConnection: X-Hop\r\n"
            b"X-Hop: h\r\nContent-Length: 2\r\n\r\nok"
        )

    async with passing(script, forwarded=True) as running:
        data = await running.ask(
            post(
                gzip.compress(b"body"),
                "Connection: close, X-Mine",
                "X-Mine: hop",
                "X-Kept: 1",
                "TE: trailers",
                "Content-Encoding: gzip",
                "Accept-Encoding: br",
                path="/a%2Fb/./c;d=1?q=%zz&x",
            )
        )
    head, _, body = got[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /a%2Fb/./c;d=1?q=%zz&x HTTP/1.1"
    assert body == b"body"
    # Only the reference implementation has a connection for each request.
    names = sorted(line.partition(b":")[0] for line in lines[1:] if line != b"Connection: close")
    assert names == sorted(
        [b"Host", b"X-Kept", b"Accept-Encoding", b"X-Forwarded-Host", b"Content-Length"]
    )
    assert b"X-Forwarded-Host: h" in lines
    assert data.startswith(b"HTTP/1.1 207 ")
    assert b"\r\nX-Answer: a\r\n" in data
    assert b"X-Hop" not in data
    assert data.endswith(b"\r\n\r\nok")


async def test_head_response_has_no_content_length() -> None:
    """Its length would be that of the response to GET (RFC 9110 8.6), which has one."""
    script = respond_with(b"HTTP/1.1 200 OK\r\nX-Answer: a\r\nContent-Length: 1234\r\n\r\n")
    async with passing(script) as running:
        data = await running.ask(b"HEAD /page HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert data.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nX-Answer: a\r\n" in data
    assert b"Content-Length" not in data
    assert data.endswith(b"\r\n\r\n")


async def test_trace_is_rejected() -> None:
    """An upstream that echoes TRACE would expose credentials, so it gets no such request."""

    async def script(_peer) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        pytest.fail("the upstream was asked")

    async with passing(script) as running:
        data = await running.ask(
            b"TRACE /a HTTP/1.1\r\nHost: h\r\nCookie: secret\r\nConnection: close\r\n\r\n"
        )
    assert data.startswith(b"HTTP/1.1 405 ")
    assert b"secret" not in data


async def test_connect_is_rejected() -> None:
    """No tunnel is opened."""

    async def script(_peer) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        pytest.fail("the upstream was asked")

    async with passing(script) as running:
        data = await running.ask(b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n")
    assert data.startswith(b"HTTP/1.1 405 ")


async def test_event_stream_is_forwarded_as_it_arrives() -> None:
    """Events reach the client before the stream ends."""
    go = asyncio.Event()

    async def script(peer) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        await peer.request()
        peer.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await go.wait()
        peer.writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async with passing(script) as running:
        raw = await running.connect()
        await raw.send(post(b"", "Accept: text/event-stream", path="/events"))
        assert (await raw.head())[0] == 200
        assert await raw.chunk() == b"one"
        go.set()
        assert [b"two", b""] == [await raw.chunk(), await raw.chunk()]
        await raw.close()


async def test_truncated_event_stream_stays_truncated() -> None:
    """A stream that the upstream cuts off is cut off for the client."""

    async def script(peer) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        await peer.request()
        peer.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")

    async with passing(script) as running:
        raw = await running.connect()
        await raw.send(post(b"", "Accept: text/event-stream", path="/events"))
        await raw.head()
        assert await raw.chunk() == b"one"
        assert await raw.rest() == b""
        await raw.close()


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (respond_with(b""), 503),
        (respond_with(b"garbage\r\n\r\n"), 502),
        (respond_with(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"), 503),
        (respond_with(b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n"), 502),
        (hang, 504),
    ],
)
async def test_upstream_failures_have_a_gateway_status(script: Script, status: int) -> None:
    """A failing upstream is 502, 503 or 504 with a JSON error, never a truncated 200."""
    async with passing(script, limits=ClientLimits(message_bytes=100)) as running:
        raw = await running.connect()
        await raw.send(post(b"", "X-Request-Timeout: 200ms", path="/other"))
        response = await raw.answer()
        await raw.close()
    assert response.status == status
    assert list(response.json) == ["error"]
    assert "127.0.0.1" not in response.json["error"]


async def test_listener_limits_apply_to_passthrough() -> None:
    """The listener's own limits hold for forwarded requests."""
    async with passing(hang) as running:
        data = await running.ask(post(b"", CLOSE, path="/other", length=1 << 30))
    assert [413] == parse(data)
