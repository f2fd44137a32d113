"""The client for framed byte streams: pool, replay, deadlines, and upstreams that misbehave."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    NotSent,
    Overloaded,
    TooLarge,
    Unavailable,
    UpstreamProtocolError,
)
from gateway.transports.contract import ClientLimits
from gateway.transports.net.sockets import reset_when_closed
from gateway.transports.stream.client import StreamClient
from gateway.wire.stream import Frame, Framer
from tests.fakes import settle
from tests.integration.cli_kit import free_port
from tests.integration.http_kit import eventually
from tests.integration.stream_kit import (
    LOOPBACK,
    MOST,
    Big,
    Echo,
    NumberedFramer,
    Slow,
    framed,
    numbered,
    ordered,
    payload_of,
    serving,
)

HELLO = Frame((b"hello ", b"123"))


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address to listen on, over each carrier."""
    return f"unix:{tmp_path}/s" if request.param == "unix" else LOOPBACK


def _framer_of(in_order: bool) -> Callable[[], Framer]:
    return ordered if in_order else NumberedFramer


@asynccontextmanager
async def client_of(
    address: str, *, in_order: bool = True, **limits: Any
) -> AsyncIterator[StreamClient]:
    client = StreamClient(address, _framer_of(in_order), ClientLimits(**limits), ordered=in_order)
    try:
        yield client
    finally:
        await client.close()
        await asyncio.sleep(0)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


@asynccontextmanager
async def upstream(serve: Serve) -> AsyncIterator[str]:
    """A scripted upstream; its function gets the connection's number."""
    count = iter(range(1000))
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await serve(reader, writer, next(count))
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    size: int = struct.unpack("<I", await reader.readexactly(4))[0]
    return await reader.readexactly(size)


async def ask(client: StreamClient, payload: bytes = b"question") -> bytes:
    return payload_of(await client.send(Frame((payload,)), deadline=None))


@pytest.mark.parametrize("in_order", [True, False])
async def test_connection_is_reused(in_order: bool) -> None:
    """A connection with a complete response serves the next request."""
    async with (
        serving(Echo(), in_order=in_order) as running,
        client_of(running.server.address, in_order=in_order) as client,
    ):
        found = [await ask(client, b"question %d" % number) for number in range(5)]
        assert 1 == len(running.server._listener.connections)
    assert [b"question %d" % number for number in range(5)] == found


async def test_sends_over_tcp_and_unix_sockets(address: str) -> None:
    """TCP and unix sockets carry the same frames."""
    async with (
        serving(Echo(), address) as running,
        client_of(running.server.address) as client,
    ):
        found = payload_of(await client.send(HELLO, deadline=time.monotonic() + 30))
    assert b"hello 123" == found


async def test_stream_has_one_response() -> None:
    """`stream` yields the one response."""
    async with serving(Echo()) as running, client_of(running.server.address) as client:
        found = [payload_of(frame) async for frame in client.stream(HELLO, deadline=None)]
    assert [b"hello 123"] == found


async def test_large_frames_are_echoed() -> None:
    """A frame of many reads and writes arrives whole in both directions."""
    payload = bytes(range(256)) * 4000
    async with serving(Echo()) as running, client_of(running.server.address) as client:
        found = await asyncio.gather(*[ask(client, payload) for _ in range(8)])
    assert [payload] * 8 == found


async def test_concurrent_requests_use_separate_connections() -> None:
    """Without correlation ids each connection carries one request at a time."""
    frontend = Slow()
    names = [b"question %d" % number for number in range(4)]
    async with serving(frontend) as running, client_of(running.server.address) as client:
        asking = [asyncio.ensure_future(ask(client, name)) for name in names]
        await eventually(lambda: len(frontend.waiting) == 4)
        assert 4 == len(running.server._listener.connections)
        for name in reversed(names):
            frontend.waiting[name].set()
        found = await asyncio.gather(*asking)
    assert [b"answer " + name for name in names] == found


async def test_numbered_requests_share_connections() -> None:
    """Responses with ids find their requests in any order."""
    frontend = Slow()
    names = [b"question %d" % number for number in range(50)]
    async with (
        serving(frontend, in_order=False) as running,
        client_of(running.server.address, in_order=False) as client,
    ):
        asking = [asyncio.ensure_future(ask(client, name)) for name in names]
        await eventually(lambda: len(frontend.waiting) == 50)
        assert 16 <= len(running.server._listener.connections) <= 17
        for name in reversed(names):
            frontend.waiting[name].set()
        found = await asyncio.gather(*asking)
    assert [b"answer " + name for name in names] == found


async def test_connections_and_queue_are_limited() -> None:
    """Over its connections and queue the pool raises Overloaded at once."""
    frontend = Slow()
    async with (
        serving(frontend) as running,
        client_of(running.server.address, connections=1, pending=1) as client,
    ):
        first = asyncio.ensure_future(ask(client, b"question 1"))
        await eventually(lambda: len(frontend.waiting) == 1)
        second = asyncio.ensure_future(ask(client, b"question 2"))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await ask(client, b"question 3")
        frontend.waiting[b"question 1"].set()
        await first
        await eventually(lambda: b"question 2" in frontend.waiting)
        frontend.waiting[b"question 2"].set()
        assert b"answer question 2" == await second
        assert 1 == len(running.server._listener.connections)


@pytest.mark.parametrize("in_order", [True, False])
async def test_deadline_ends_the_request(in_order: bool) -> None:
    """At the deadline the caller gets an error, the work ends, and the connection is closed."""
    frontend = Slow()
    async with (
        serving(frontend, in_order=in_order) as running,
        client_of(running.server.address, in_order=in_order) as client,
    ):
        with pytest.raises(DeadlineExceeded):
            await client.send(HELLO, deadline=time.monotonic() + 1)
        async with asyncio.timeout(20):
            await frontend.end.wait()
        assert set() == client._open


async def test_past_deadline_sends_nothing() -> None:
    """A past deadline raises before any byte is sent."""
    frontend = Echo()
    async with serving(frontend) as running, client_of(running.server.address) as client:
        with pytest.raises(DeadlineExceeded):
            await client.send(HELLO, deadline=time.monotonic() - 1)
    assert [] == frontend.seen


async def test_cancelled_request_cancels_the_server(address: str) -> None:
    """Cancellation closes the connection, which ends the work at the server."""
    frontend = Slow()
    async with (
        serving(frontend, address) as running,
        client_of(running.server.address) as client,
    ):
        asking = asyncio.ensure_future(client.send(HELLO, deadline=None))
        await eventually(lambda: bool(frontend.waiting))
        asking.cancel()
        async with asyncio.timeout(20):
            await frontend.end.wait()
    assert [b"hello 123"] == frontend.cancelled


async def test_cancelled_request_keeps_its_shared_connection() -> None:
    """The other requests get their responses; new ones use another connection."""
    frontend = Slow()
    async with (
        serving(frontend, in_order=False) as running,
        client_of(running.server.address, in_order=False, connections=1) as client,
    ):
        first = asyncio.ensure_future(ask(client, b"kept"))
        given_up = asyncio.ensure_future(ask(client, b"given up"))
        await eventually(lambda: len(frontend.waiting) == 2)
        given_up.cancel()
        await asyncio.sleep(0)
        frontend.waiting[b"given up"].set()  # too late: nobody wants it
        later = asyncio.ensure_future(ask(client, b"later"))
        await eventually(lambda: b"later" in frontend.waiting)
        assert 2 == len(running.server._listener.connections)
        frontend.waiting[b"later"].set()
        frontend.waiting[b"kept"].set()
        assert (b"answer kept", b"answer later") == tuple(await asyncio.gather(first, later))
        await eventually(lambda: len(running.server._listener.connections) == 1)


async def test_cancelled_request_among_few_cancels_the_server() -> None:
    """Few requests have a connection each, which closes when its request is cancelled."""
    frontend = Slow()
    async with (
        serving(frontend, in_order=False) as running,
        client_of(running.server.address, in_order=False) as client,
    ):
        asking = [asyncio.ensure_future(ask(client, b"%d" % number)) for number in range(5)]
        await eventually(lambda: len(frontend.waiting) == 5)
        asking[2].cancel()
        async with asyncio.timeout(20):
            await frontend.end.wait()
        assert [b"2"] == frontend.cancelled
        for response in frontend.waiting.values():
            response.set()
        found = await asyncio.gather(*asking, return_exceptions=True)
    assert [b"answer 0", b"answer 1", b"answer 3", b"answer 4"] == found[:2] + found[3:]


async def test_connection_is_shared_if_no_other_can_be_opened() -> None:
    """When the server accepts no more connections, open ones carry the requests."""
    frontend = Slow()
    async with (
        serving(frontend, in_order=False) as running,
        client_of(running.server.address, in_order=False) as client,
    ):
        first = asyncio.ensure_future(ask(client, b"first"))
        await eventually(lambda: bool(frontend.waiting))
        for listening in running.server._servers:
            listening.close()  # listens no more; what is open goes on
        second = asyncio.ensure_future(ask(client, b"second"))
        await eventually(lambda: len(frontend.waiting) == 2)
        assert 1 == len(running.server._listener.connections)
        for response in frontend.waiting.values():
            response.set()
        assert (b"answer first", b"answer second") == tuple(await asyncio.gather(first, second))


async def test_unreachable_upstream_raises_not_sent(tmp_path: Path) -> None:
    """Without a connection the upstream has seen nothing, so a retry is safe."""
    for target in (f"127.0.0.1:{free_port()}", f"unix:{tmp_path}/nobody"):
        async with client_of(target) as client:
            with pytest.raises(NotSent, match=f"cannot connect to upstream {target}: "):
                await ask(client)


async def test_connect_times_out() -> None:
    """Connecting has its own time limit."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        where = full.getsockname()
        with ExitStack() as others:
            for _ in range(4):
                other = others.enter_context(socket.socket())
                other.setblocking(False)
                other.connect_ex(where)
            async with client_of(f"127.0.0.1:{where[1]}", connect_timeout_s=0.3) as client:
                with pytest.raises(NotSent, match="no response within"):
                    await ask(client)


async def test_closed_client_sends_nothing() -> None:
    """After close a call raises NotSent; closing twice is harmless."""
    async with serving(Echo()) as running, client_of(running.server.address) as client:
        await ask(client)
        await client.close()
        with pytest.raises(NotSent, match="is closed"):
            await ask(client)


async def test_lost_connection_is_unavailable_and_not_retried() -> None:
    """An upstream that read the request may have run it."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, _w: asyncio.StreamWriter, _n: int) -> None:
        requests.append(await read_request(reader))

    async with upstream(serve) as where, client_of(where) as client:
        with pytest.raises(Unavailable, match="broke the connection") as found:
            await ask(client)
    assert not isinstance(found.value, NotSent)
    assert [b"question"] == requests


async def test_truncated_response_is_unavailable() -> None:
    """An incomplete response raises Unavailable."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _n: int) -> None:
        await read_request(reader)
        writer.write(framed(b"a long answer")[:10])

    async with upstream(serve) as where, client_of(where) as client:
        with pytest.raises(Unavailable):
            await ask(client)


async def test_closed_idle_connection_is_replaced() -> None:
    """A connection that the server closed while idle costs no call."""
    requests: list[tuple[int, bytes]] = []
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, n: int) -> None:
        requests.append((n, await read_request(reader)))
        writer.write(framed(b"answer %d" % n + bytes(8)))
        await writer.drain()
        if n == 0:
            writer.close()
            await writer.wait_closed()
            closed.set()
            return
        await reader.read()

    async with upstream(serve) as where, client_of(where) as client:
        first = await ask(client, b"question 1")
        await closed.wait()
        await settle()
        second = await ask(client, b"question 2")
    assert [b"answer 0", b"answer 1"] == [first[:8], second[:8]]
    assert [(0, b"question 1"), (1, b"question 2")] == requests


async def test_restarted_upstream_is_used_again(address: str) -> None:
    """Connections that were idle during a restart cost no call."""
    async with serving(Echo(), address) as running:
        where = running.server.address
        client = StreamClient(where, ordered, ClientLimits())
        assert b"question" == await ask(client)
    async with serving(Echo(), where):
        assert b"question" == await ask(client)
        await client.close()


async def test_reset_of_a_reused_connection_is_not_retried() -> None:
    """The server may have read the request before the reset, so it is not sent again."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _n: int) -> None:
        requests.append(await read_request(reader))
        writer.write(framed(b"an answer"))
        requests.append(await read_request(reader))
        reset_when_closed(writer.transport.get_extra_info("socket"))
        writer.transport.abort()

    async with upstream(serve) as where, client_of(where) as client:
        await ask(client, b"question 1")
        with pytest.raises(Unavailable) as caught:
            await ask(client, b"question 2")
    assert (Unavailable, [b"question 1", b"question 2"]) == (type(caught.value), requests)


@pytest.mark.parametrize("extra", [framed(b"another answer"), b"\0", framed(b"12345678")[:7]])
async def test_surplus_bytes_close_the_connection(extra: bytes) -> None:
    """Bytes after a response must not become the next response."""
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, n: int) -> None:
        text = await read_request(reader)
        writer.write(framed(b"answer to " + text) + (extra if n == 0 else b""))
        await reader.read()
        closed.set()

    async with upstream(serve) as where, client_of(where) as client:
        found = [await ask(client, b"question 1"), await ask(client, b"question 2")]
        await closed.wait()
    assert [b"answer to question 1", b"answer to question 2"] == found


async def test_unsolicited_bytes_close_an_idle_connection() -> None:
    """Unsolicited bytes are never used as a response."""
    is_answered, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, n: int) -> None:
        text = await read_request(reader)
        writer.write(framed(b"answer to " + text))
        if n == 0:
            await is_answered.wait()
            writer.write(framed(b"poison, poison"))
            await reader.read()
            closed.set()
        await reader.read()

    async with upstream(serve) as where, client_of(where) as client:
        first = await ask(client, b"question 1")
        is_answered.set()
        await closed.wait()
        await settle()
        second = await ask(client, b"question 2")
    assert [b"answer to question 1", b"answer to question 2"] == [first, second]


async def test_unknown_correlation_id_is_a_protocol_error() -> None:
    """A response with an unknown id ends the connection and all its requests."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _n: int) -> None:
        await reader.readexactly(8)
        writer.write(numbered(77, b"whose?"))
        await reader.read()

    async with upstream(serve) as where, client_of(where, in_order=False) as client:
        with pytest.raises(UpstreamProtocolError, match="matches no request"):
            await ask(client)
        assert set() == client._open or all(each.is_unusable for each in client._open)


BAD: list[tuple[bytes, type[GatewayError], str]] = [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", UpstreamProtocolError, "begins with 'HTTP'"),
    (struct.pack("<I", 3), UpstreamProtocolError, "declares 3 bytes"),
    (struct.pack("<I", MOST + 1), TooLarge, "declares 1048577 bytes"),
]


@pytest.mark.parametrize(("answer", "kind", "reason"), BAD)
async def test_invalid_framing_is_an_upstream_error(
    answer: bytes, kind: type[GatewayError], reason: str
) -> None:
    """The error names the upstream."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _n: int) -> None:
        await read_request(reader)
        writer.write(answer)
        await reader.read()

    async with upstream(serve) as where, client_of(where) as client:
        with pytest.raises(kind, match=reason) as found:
            await ask(client)
        assert where in found.value.message


async def test_response_over_the_limit_is_too_large() -> None:
    """The message limit holds for responses."""
    async with serving(Big(MOST + 1)) as running, client_of(running.server.address) as client:
        with pytest.raises(TooLarge, match="the response of upstream"):
            await ask(client)


async def test_idle_connections_are_closed() -> None:
    """A connection that is unused for `keepalive_s` is closed."""
    async with (
        serving(Echo()) as running,
        client_of(running.server.address, keepalive_s=0.05) as client,
    ):
        await ask(client)
        await eventually(lambda: not running.server._listener.connections)
        assert b"question" == await ask(client)


async def test_old_connections_are_replaced() -> None:
    """A connection is used no longer than `connection_age_s`, so that a moved name is noticed."""
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, n: int) -> None:
        connections.append(n)
        while True:
            writer.write(framed(await read_request(reader)))

    async with upstream(serve) as where, client_of(where, connection_age_s=0.03) as client:

        async def is_replaced() -> bool:
            await ask(client)
            return [0, 1] == connections

        await eventually(is_replaced)


async def test_response_in_single_bytes_is_read() -> None:
    """A response may arrive byte by byte."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _n: int) -> None:
        while True:
            for byte in framed(b"answer to " + await read_request(reader)):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

    async with upstream(serve) as where, client_of(where) as client:
        found = [await ask(client, b"question 1"), await ask(client, b"question 2")]
    assert [b"answer to question 1", b"answer to question 2"] == found
