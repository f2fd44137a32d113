"""How gRPC calls end without a reply: cancellation, deadlines, broken connections, statuses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterator
from time import monotonic

import pytest

from gateway.ir.errors import DeadlineExceeded, NotSent, Unavailable
from gateway.transports.contract import ClientLimits, GrpcClient
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from tests.integration.grpc_echo import (
    STREAM,
    UNARY,
    Answers,
    Slow,
    ask,
    calling,
    echo,
    new_client,
    only_quiet,
    serving,
)
from tests.integration.http_kit import retried

pytestmark = pytest.mark.usefixtures("grpc_makes")


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Every ending tested in this file is normal: none may write to stderr or log a warning."""
    yield
    only_quiet(capfd, caplog)


PATIENCE_S = 20


def free_address() -> str:
    """Return an address of the loopback without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def test_cancelled_send_cancels_the_frontend() -> None:
    """The server's frontend is cancelled when `send` is."""
    frontend = Slow()
    async with serving(frontend) as server, calling(server) as client:
        call = asyncio.create_task(client.send(ask(), deadline=None))
        await frontend.started.wait()
        call.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await frontend.cancelled.wait()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert 0 == frontend.running


async def test_closed_stream_cancels_the_frontend() -> None:
    """The server's frontend is cancelled when the iterator is closed."""
    frontend = Slow()
    async with serving(frontend) as server, calling(server) as client:
        responses = client.stream(ask(method=STREAM), deadline=None)
        await anext(responses)
        await responses.aclose()  # type: ignore[attr-defined]  # it is a generator
        async with asyncio.timeout(PATIENCE_S):
            await frontend.cancelled.wait()
    assert 0 == frontend.running


async def test_deadline_fails_the_call_and_cancels_the_frontend() -> None:
    """At the deadline the caller gets its error and the frontend is cancelled."""
    frontend = Slow()
    async with serving(frontend) as server, calling(server) as client:
        began = monotonic()
        with pytest.raises(DeadlineExceeded, match="in time"):
            await client.send(ask(), deadline=began + 1)
        assert monotonic() - began > 0.95
        async with asyncio.timeout(PATIENCE_S):
            await frontend.cancelled.wait()


@pytest.mark.parametrize("left_s", [0.0, -1.0])
async def test_past_deadline_sends_no_call(left_s: float) -> None:
    """Without time left no call is sent."""
    frontend = Answers(echo)
    async with serving(frontend) as server, calling(server) as client:
        with pytest.raises(DeadlineExceeded, match="before"):
            await client.send(ask(), deadline=monotonic() + left_s)
        with pytest.raises(DeadlineExceeded, match="before"):
            await anext(client.stream(ask(), deadline=monotonic() + left_s))
    assert [] == frontend.requests


async def test_deadline_holds_while_waiting_for_a_slot() -> None:
    """A call that waits for the client's concurrency limit expires at its deadline."""
    frontend = Slow()
    async with serving(frontend) as server, calling(server, ClientLimits(in_flight=1)) as client:
        first = asyncio.create_task(client.send(ask(), deadline=None))
        await frontend.started.wait()
        with pytest.raises(DeadlineExceeded):
            await client.send(ask(), deadline=monotonic() + 0.05)
        frontend.go.set()
        assert GrpcStatus.OK is (await first).status


STATUSES = [status for status in GrpcStatus if status is not GrpcStatus.OK]


@pytest.mark.parametrize("status", STATUSES, ids=lambda status: status.name)
async def test_every_status_of_the_server_is_returned(status: GrpcStatus) -> None:
    """Every status is returned with its text and trailing metadata."""
    metadata = (("x-why", "because"), ("x-data-bin", b"\0\1"))
    ending = GrpcResponse(status=status, details="nö: 'x' has 1\nneeds 2", metadata=metadata)

    async def end(_wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
        yield ending

    async with serving(Answers(end)) as server, calling(server) as client:
        assert ending == await client.send(ask(), deadline=monotonic() + 30)
        assert [ending] == [each async for each in client.stream(ask(method=STREAM), deadline=None)]


async def test_stream_delivers_messages_before_a_status() -> None:
    """Messages before the status are delivered; those after it are not."""

    async def end(wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
        yield GrpcResponse((b"one",))
        yield GrpcResponse(status=GrpcStatus.ABORTED, details="half way")
        yield GrpcResponse((b"never",))

    async with serving(Answers(end)) as server, calling(server) as client:
        responses = [each async for each in client.stream(ask(method=STREAM), deadline=None)]
    assert [GrpcStatus.OK, GrpcStatus.ABORTED] == [each.status for each in responses]


async def test_unknown_method_is_unimplemented() -> None:
    """A path that no frontend serves is UNIMPLEMENTED, with a text."""
    async with serving(Answers(echo)) as server, calling(server) as client:
        response = await client.send(ask(method="/no.Such/Thing"), deadline=None)
    assert GrpcStatus.UNIMPLEMENTED is response.status
    assert "no protocol here serves this method" == response.details


async def test_refused_connection_raises_not_sent() -> None:
    """Without a listener the error is raised long before a timeout, and the call was not sent."""
    began = monotonic()
    async with calling(free_address(), ClientLimits(connect_timeout_s=60)) as client:
        with pytest.raises(NotSent, match="cannot connect to 127"):
            await client.send(ask(), deadline=began + 60)
    assert monotonic() - began < 30


async def until_sent(client: GrpcClient) -> GrpcResponse:
    """Retry until the upstream is reachable.

    A client of grpcio that has connected meanwhile takes a refused connection for a status, and
    one that the old server still accepted for a broken one.
    """

    async def send() -> GrpcResponse:
        response: GrpcResponse = await client.send(ask(b"again"), deadline=None)
        if response.status is GrpcStatus.UNAVAILABLE:
            raise NotSent(response.details)
        return response

    return await retried(send, Unavailable)


async def test_restarted_upstream_is_used_again() -> None:
    """A server that restarts at the same address is used again soon."""
    async with serving(Answers(echo)) as server, calling(server) as client:
        await client.send(ask(), deadline=None)
        await server.stop()
        with pytest.raises(Unavailable):
            await client.send(ask(), deadline=None)
        async with serving(Answers(echo), address=server.address):
            async with asyncio.timeout(20):
                response = await until_sent(client)
    assert b"again" == response.view.tobytes()


async def test_broken_connection_within_a_call_is_unavailable() -> None:
    """The upstream may have seen the call, so the error is not NotSent."""
    reached = asyncio.Event()

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("000000040000000000"))  # empty SETTINGS
        data = b""
        while b"Echo" not in data and b"message" not in data:
            data += await reader.read(65536)
        reached.set()
        writer.close()

    server = await asyncio.start_server(die, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, calling(f"127.0.0.1:{port}") as client:
        with pytest.raises(Unavailable, match="broke the connection") as caught:
            await client.send(ask(b"message"), deadline=monotonic() + 30)
    assert reached.is_set()
    assert Unavailable is type(caught.value)


async def test_http1_upstream_raises_not_sent() -> None:
    """A server that responds in HTTP/1.1 never saw a call."""

    async def respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, calling(f"127.0.0.1:{port}") as client:
        with pytest.raises(NotSent, match=r"http1\.x|it serves HTTP/1"):
            await client.send(ask(), deadline=monotonic() + 30)


async def test_silent_upstream_raises_not_sent_at_the_timeout() -> None:
    """An address that accepts no connection takes the connect timeout and no longer."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        with socket.create_connection(address):
            began = monotonic()
            async with calling(
                f"127.0.0.1:{address[1]}", ClientLimits(connect_timeout_s=0.3)
            ) as client:
                with pytest.raises(NotSent):
                    await client.send(ask(), deadline=monotonic() + 30)
            assert monotonic() - began > 0.25


async def test_closing_the_client_ends_its_calls() -> None:
    """A call in flight gets an error, not a cancellation; a later one is NotSent."""
    frontend = Slow()
    async with serving(frontend) as server:
        client = new_client(server.address)
        call = asyncio.create_task(client.send(ask(), deadline=None))
        await frontend.started.wait()
        await client.close()
        await client.close()
        with pytest.raises(Unavailable, match="closed during"):
            await call
        with pytest.raises(NotSent, match="closed"):
            await client.send(ask(), deadline=None)


async def test_metadata_that_grpc_cannot_carry_is_dropped() -> None:
    """An invalid header of the caller does not fail the call."""
    frontend = Answers(echo)
    odd = (("Bad Key", "x"), ("x-uml", "ä"), ("grpc-timeout", "1S"), ("x-b-bin", "text"))
    request = GrpcRequest(UNARY, (b"x",), (*odd, ("x-good", "yes")))
    async with serving(frontend) as server, calling(server) as client:
        assert GrpcStatus.OK is (await client.send(request, deadline=None)).status
    names = {name for name, _ in frontend.requests[0].metadata}
    assert {"x-good", "user-agent"} == names
