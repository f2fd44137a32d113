"""The native gRPC client with servers that misbehave, and the errors that its callers get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

import grpc
import pytest
from grpc import aio

from gateway.ir.errors import NotSent, Unavailable, UpstreamProtocolError
from gateway.transports.contract import ClientLimits, ServerLimits
from gateway.transports.grpc.headers import RESPONSE_HEAD, trailers_block, trailers_only_block
from gateway.transports.http2 import frames
from gateway.transports.http2.hpack import literal
from gateway.wire.grpc import GrpcStatus
from tests.integration.grpc_echo import MAKES, Slow, ask, calling, new_client, only_quiet, serving


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No behaviour of a peer may write to stderr or log a warning."""
    yield
    only_quiet(capfd, caplog)


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides use the native implementation."""
    monkeypatch.setattr(MAKES, "server", "native")
    monkeypatch.setattr(MAKES, "client", "native")


@asynccontextmanager
async def responding(data: bytes, *, close: bool = False) -> AsyncIterator[str]:
    """Run a server that responds to the first call with *data*; yield its address."""
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frames.settings([]))
        received = b""
        while b"message" not in received:
            received += await reader.read(65_536)
        writer.write(data)
        if not close:
            with suppress(ConnectionError):
                await reader.read()
        writer.close()
        served.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(20):
            await served.wait()


def head(block: bytes, *, end: bool = False) -> bytes:
    return frames.frame(frames.HEADERS, frames.END_HEADERS | end, 1, block)


def data(payload: bytes, *, end: bool = False) -> bytes:
    return frames.frame(frames.DATA, int(end), 1, payload)


OK = trailers_block(GrpcStatus.OK, "", ())
HEAD = head(RESPONSE_HEAD)
ANSWER = data(b"\0\0\0\0\2hi")

BROKEN = {
    "two_answers": (HEAD + ANSWER + ANSWER + head(OK, end=True), "two responses"),
    "no_answer": (HEAD + head(OK, end=True), "status OK without a message"),
    "no_status": (HEAD + ANSWER + head(b"", end=True), "ends without a status"),
    "ends_with_data": (HEAD + data(b"\0\0\0\0\2hi", end=True), "ends without a status"),
    "half_a_message": (HEAD + data(b"\0\0\0\0\5hi") + head(OK, end=True), "middle of a message"),
    "data_first": (ANSWER, "data before header fields"),
    "html": (
        head(literal(b":status", b"200") + literal(b"content-type", b"text/html")),
        "a response that is not gRPC",
    ),
    "reset_cancel": (frames.reset(1, frames.CANCEL), "reset of the stream with CANCEL"),
    "odd_flag": (HEAD + data(b"\7\0\0\0\2hi"), "begins with 7"),
    "unknown_coding": (
        head(RESPONSE_HEAD + literal(b"grpc-encoding", b"br")) + data(b"\1\0\0\0\2hi"),
        "'br' is unknown",
    ),
    "garbage_as_gzip": (
        head(RESPONSE_HEAD + literal(b"grpc-encoding", b"gzip"))
        + data(b"\1\0\0\0\2hi")
        + head(OK, end=True),
        "cannot be decoded",
    ),
    "broken_framing": (frames.frame(frames.PING, 0, 0, b"short"), "PING of 5 bytes"),
    "push": (frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), "server push is not allowed"),
    "window_exceeded": (HEAD + data(bytes(70_000)), "sent more than"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_malformed_response_is_an_upstream_protocol_error(name: str) -> None:
    """Each raises UpstreamProtocolError at once, with a reason."""
    sent, why = BROKEN[name]
    async with responding(sent) as address, calling(address) as client:
        with pytest.raises(UpstreamProtocolError, match=why):
            await client.send(ask(b"message"), deadline=monotonic() + 30)


STATUSES = {
    "trailers_only": (
        head(trailers_only_block(GrpcStatus.NOT_FOUND, "nö", ()), end=True),
        GrpcStatus.NOT_FOUND,
    ),
    "interim_answer": (
        head(literal(b":status", b"103")) + HEAD + ANSWER + head(OK, end=True),
        GrpcStatus.OK,
    ),
    "proxy_503": (head(literal(b":status", b"503"), end=True), GrpcStatus.UNAVAILABLE),
    "proxy_404_with_body": (
        head(literal(b":status", b"404")) + data(b"<html>", end=True),
        GrpcStatus.UNIMPLEMENTED,
    ),
    "reset_calm": (frames.reset(1, frames.ENHANCE_YOUR_CALM), GrpcStatus.RESOURCE_EXHAUSTED),
    "reset_internal": (frames.reset(1, frames.INTERNAL_ERROR), GrpcStatus.INTERNAL),
}


@pytest.mark.parametrize("name", STATUSES)
async def test_status_without_a_message_is_mapped(name: str) -> None:
    """HTTP statuses of proxies and resets become gRPC statuses."""
    sent, status = STATUSES[name]
    async with responding(sent) as address, calling(address) as client:
        response = await client.send(ask(b"message"), deadline=monotonic() + 30)
    assert status is response.status


@pytest.mark.parametrize(
    "sent", [frames.reset(1, frames.REFUSED_STREAM), frames.goaway(0, 0)], ids=["reset", "goaway"]
)
async def test_unprocessed_call_raises_not_sent(sent: bytes) -> None:
    """A refused stream, and one above GOAWAY's last, may be sent again."""
    async with responding(sent) as address, calling(address) as client:
        with pytest.raises(NotSent, match="without processing it"):
            await client.send(ask(b"message"), deadline=monotonic() + 30)


async def test_connection_closed_within_a_response_is_unavailable() -> None:
    """The upstream has seen the call, so the error is not NotSent."""
    async with responding(HEAD + ANSWER, close=True) as address, calling(address) as client:
        with pytest.raises(Unavailable, match="broke the connection") as caught:
            await client.send(ask(b"message"), deadline=monotonic() + 30)
    assert Unavailable is type(caught.value)


async def test_compressed_responses_are_decoded() -> None:
    """A response that the library's server compresses is decoded."""

    async def respond(message: bytes, _context: Any) -> bytes:
        return message * 1000

    handler = grpc.method_handlers_generic_handler(
        "test.Echo", {"Unary": grpc.unary_unary_rpc_method_handler(respond)}
    )
    server = aio.server(compression=grpc.Compression.Gzip)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with calling(f"127.0.0.1:{port}") as client:
            got = await client.send(ask(b"abc"), deadline=None)
    finally:
        await server.stop(None)
    assert b"abc" * 1000 == got.view.tobytes()


async def test_close_ends_the_wait_for_a_connection() -> None:
    """Calls that wait for a silent upstream raise NotSent."""
    accepted = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        client = new_client(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        calls = [asyncio.create_task(client.send(ask(), deadline=None)) for _ in range(2)]
        await accepted.wait()
        await client.close()
        for each in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(each, NotSent)


async def test_close_ends_the_wait_for_a_stream() -> None:
    """A call that waits for another to end raises NotSent."""
    frontend = Slow()
    async with serving(frontend, ServerLimits(h2_streams=1)) as server:
        client = new_client(server.address, ClientLimits(connections=1))
        first = asyncio.create_task(client.send(ask(), deadline=None))
        await frontend.started.wait()
        second = asyncio.create_task(client.send(ask(), deadline=None))
        await asyncio.sleep(0)
        await client.close()
        ends = await asyncio.gather(first, second, return_exceptions=True)
    assert [Unavailable, NotSent] == [type(each) for each in ends]
