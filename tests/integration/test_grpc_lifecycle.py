"""Starting, draining and stopping the reference gRPC server; connections of every kind."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from time import monotonic

import pytest
from grpc import aio

from gateway.ir.errors import Unavailable
from gateway.transports.contract import ClientLimits, Server
from gateway.transports.http2 import frames
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from tests.integration.grpc_echo import (
    BIDI,
    MIB,
    STREAM,
    Answers,
    Slow,
    ask,
    calling,
    echo,
    new_server,
    only_quiet,
    serving,
)
from tests.integration.http_kit import stable
from tests.integration.test_grpc_hostile import MESSAGE, PREFACE, call

pytestmark = pytest.mark.usefixtures("grpc_makes")


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Every ending tested in this file is normal: none may write to stderr or log a warning."""
    yield
    only_quiet(capfd, caplog)


def another(address: str) -> Server:
    """Return a server without mounts, not started."""
    return new_server(address)


async def test_port_in_use_raises_with_the_address() -> None:
    """A second server on the port fails with OSError that names the address."""
    async with serving(Answers(echo)) as server:
        with pytest.raises(OSError, match=f"listen on {server.address}: Address already") as caught:
            await another(server.address).start()
    assert errno.EADDRINUSE == caught.value.errno


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:port", "127.0.0.1:65536", ":", ""])
async def test_invalid_address_raises(address: str) -> None:
    """An address without host or port raises OSError that names the expected form."""
    with pytest.raises(OSError, match="expected host:port"):
        await another(address).start()


async def test_listens_on_a_unix_socket(tmp_path: Path) -> None:
    """A server listens on a unix socket; a second server does not replace a live one."""
    address = f"unix:{tmp_path}/gateway.sock"
    async with serving(Answers(echo), address=address) as server, calling(server) as client:
        assert address == server.address
        assert b"x" == (await client.send(ask(), deadline=None)).view.tobytes()
        with pytest.raises(OSError, match="already in use"):
            await another(address).start()
        assert b"x" == (await client.send(ask(), deadline=None)).view.tobytes()
    with pytest.raises(OSError, match="no directory"):
        await another(f"unix:{tmp_path}/no/gateway.sock").start()


async def test_drain_finishes_calls_in_flight() -> None:
    """A draining server finishes its call, accepts no new one, and stops."""
    frontend = Slow()
    async with serving(frontend) as server, calling(server) as client:
        call = asyncio.create_task(client.send(ask(b"late"), deadline=None))
        await frontend.started.wait()
        drained = asyncio.create_task(server.drain(10))
        await asyncio.sleep(0.05)
        async with calling(server) as newcomer:
            with pytest.raises(Unavailable):
                await newcomer.send(ask(), deadline=monotonic() + 30)
        frontend.go.set()
        assert b"late" == (await call).view.tobytes()
        async with asyncio.timeout(20):
            await drained


async def test_drain_waits_for_the_rest_of_a_message() -> None:
    """A call with an incomplete message is in flight, too."""
    async with serving(Answers(echo)) as server:
        host, _, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE + call() + frames.frame(frames.DATA, 0, 1, MESSAGE[9:-1]))
        writer.write(frames.frame(frames.PING, 0, 0, bytes(8)))
        received = b""
        while frames.frame(frames.PING, frames.ACK, 0, bytes(8)) not in received:
            received += await reader.read(65536)
        drained = asyncio.create_task(server.drain(10))
        await asyncio.sleep(0.2)
        assert not drained.done()
        writer.write(frames.frame(frames.DATA, frames.END_STREAM, 1, MESSAGE[-1:]))
        async with asyncio.timeout(20):
            assert MESSAGE[9:] in received + await reader.read()
            await drained
        writer.close()


async def test_drain_cancels_calls_that_take_too_long() -> None:
    """A call that exceeds the drain time is cancelled, and its caller gets a status."""
    frontend = Slow()
    async with serving(frontend) as server, calling(server) as client:
        call = asyncio.create_task(client.send(ask(), deadline=None))
        await frontend.started.wait()
        began = monotonic()
        await server.drain(0.2)
        assert monotonic() - began >= 0.19
        assert frontend.cancelled.is_set()
        try:
            response = await call
        except Unavailable:
            return
        assert GrpcStatus.UNAVAILABLE is response.status


async def test_drain_without_calls_is_quick_and_stop_is_repeatable() -> None:
    """An idle server does not wait, not even with a client connected."""
    async with serving(Answers(echo)) as server, calling(server) as client:
        await client.send(ask(), deadline=None)
        async with asyncio.timeout(20):
            await server.drain(60)
        await server.stop()
        await server.stop()
    await another("127.0.0.1:0").stop()
    await another("127.0.0.1:0").drain(1)


async def test_bidirectional_messages_are_separate_calls() -> None:
    """A frontend without sessions gets one message at a time, in order."""
    frontend = Answers(echo)
    async with serving(frontend) as server, aio.insecure_channel(server.address) as channel:

        async def messages() -> AsyncIterator[bytes]:
            for number in range(3):
                yield b"%d" % number

        call = channel.stream_stream(BIDI)(messages())
        responses = [response async for response in call]
    assert [b"0", b"1", b"2"] == responses
    assert [b"0", b"1", b"2"] == [request.view.tobytes() for request in frontend.requests]


async def test_reset_of_a_bidirectional_stream_cancels_its_call() -> None:
    """The frontend is cancelled when the client resets the stream."""
    frontend = Slow()
    async with serving(frontend) as server, aio.insecure_channel(server.address) as channel:
        call = channel.stream_stream(BIDI)()
        await call.write(b"x")
        await frontend.started.wait()
        call.cancel()
        async with asyncio.timeout(20):
            await frontend.cancelled.wait()


async def test_unread_session_pauses_its_calls() -> None:
    """A client that does not read holds a bounded part of the responses."""
    made = 0

    async def endless(_wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
        nonlocal made
        while True:
            made += 1
            yield GrpcResponse((b"x" * 65_536,))

    async with (
        serving(Answers(endless)) as server,
        aio.insecure_channel(server.address) as channel,
    ):
        call = channel.stream_stream(BIDI)()
        await call.write(b"x")
        await call.read()
        most = await stable(lambda: made)  # the windows of HTTP/2 fill up
        assert 65_536 * most < 32 * MIB  # the library's client grows its own window to 16
        call.cancel()


async def test_old_connections_are_replaced_without_loss() -> None:
    """Calls succeed while the client renews its connection after every few of them."""
    frontend = Answers(echo)
    async with (
        serving(frontend) as server,
        calling(server, ClientLimits(connection_age_s=0.02)) as client,
    ):
        for number in range(100):
            message = b"%d" % number
            assert message == (await client.send(ask(message), deadline=None)).view.tobytes()
    peers = {dict(request.metadata).get("user-agent") for request in frontend.requests}
    assert 1 == len(peers)


async def test_renewed_connection_lets_a_stream_finish() -> None:
    """Renewal does not cut off a stream on an old connection."""
    frontend = Slow()
    async with (
        serving(frontend) as server,
        calling(server, ClientLimits(connection_age_s=0.0)) as client,
    ):
        responses = client.stream(ask(b"last", STREAM), deadline=None)
        assert b"first" == (await anext(responses)).view.tobytes()
        frontend.go.set()
        for _ in range(3):
            await client.send(ask(), deadline=None)
        assert [b"last"] == [response.view.tobytes() async for response in responses]
