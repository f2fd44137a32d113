"""The native gRPC implementation where it exceeds the reference: timeouts, counts, odd peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import monotonic, thread_time
from typing import Any

import pytest

from gateway.ir.context import Client
from gateway.ir.errors import GatewayError, Unavailable
from gateway.transports.contract import ClientLimits, GrpcMount, MemoryBudget, ServerLimits
from gateway.transports.grpc.health import Health
from gateway.transports.grpc.server import GrpcServer
from gateway.transports.http2 import frames
from gateway.transports.http2.hpack import literal
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from tests.fakes import settle
from tests.integration.grpc_echo import (
    MAKES,
    METHODS,
    MIB,
    STREAM,
    UNARY,
    Answers,
    Slow,
    ask,
    calling,
    echo,
    only_quiet,
)
from tests.integration.http_kit import retried, stable
from tests.integration.test_grpc_hostile import MESSAGE, PREFACE, call


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever peers do may not write to stderr or log a warning."""
    yield
    only_quiet(capfd, caplog)


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients use the native implementation."""
    monkeypatch.setattr(MAKES, "client", "native")


@asynccontextmanager
async def served(
    frontend: Any, *, on_reject: list[GatewayError] | None = None, **limits: Any
) -> AsyncIterator[GrpcServer]:
    """Run a native server with *limits*."""
    errors = [] if on_reject is None else on_reject
    server = GrpcServer(
        "127.0.0.1:0",
        (GrpcMount(METHODS, frontend),),
        ServerLimits(**limits),
        MemoryBudget(512 * MIB),
        on_reject=errors.append,
        extras=(Health(_serving).mount,),
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def _serving(_service: str, _client: Client) -> bool:
    return True


def message(stream: int) -> bytes:
    """Return `MESSAGE` on *stream*."""
    return frames.frame(frames.DATA, frames.END_STREAM, stream, MESSAGE[9:])


async def connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


async def exchange(address: str, data: bytes) -> bytes:
    """Send *data* and return all received bytes until the server closes."""
    reader, writer = await connected(address)
    try:
        writer.write(data)
        received = b""
        async with asyncio.timeout(20):
            try:
                while piece := await reader.read(65_536):
                    received += piece
            except ConnectionResetError:
                pass
        return received
    finally:
        writer.close()


@pytest.mark.parametrize("data", [b"", b"PRI * HT", frames.PREFACE, PREFACE + b"\0\0\x20\1"])
async def test_incomplete_connection_start_times_out(data: bytes) -> None:
    """An incomplete preface, SETTINGS or header block is cut after `header_timeout`."""
    async with served(Answers(echo), header_timeout_s=0.1) as server:
        began = monotonic()
        await exchange(server.address, data)
        assert monotonic() - began >= 0.1


async def test_frames_split_across_packets_do_not_time_out() -> None:
    """A busy client whose packets end within frames does not hit the frame timeout."""
    frames_of = [call(stream=2 * number + 1) + message(2 * number + 1) for number in range(50)]
    data = b"".join(frames_of)
    async with served(Answers(echo), header_timeout_s=1.0) as server:
        reader, writer = await connected(server.address)
        writer.write(PREFACE)
        at = 0
        for frame in frames_of:
            writer.write(data[at : at + len(frame)] if at else data[: len(frame) + 4])
            at += len(frame) + 4 * (not at)
            await asyncio.sleep(0.03)
        writer.write(data[at:])
        received = b""
        async with asyncio.timeout(20):
            while received.count(MESSAGE[9:]) < len(frames_of):
                piece = await reader.read(65_536)
                assert piece
                received += piece
        writer.close()


async def test_idle_connection_gets_goaway() -> None:
    """After `keepalive` without a call the client gets GOAWAY, and the connection ends."""
    async with served(Answers(echo), keepalive_s=0.1) as server:
        assert frames.goaway(0, 0) in await exchange(server.address, PREFACE)


async def test_old_connections_are_replaced_without_loss() -> None:
    """Calls succeed while the server closes connections because of their age."""
    async with served(Answers(echo), connection_age_s=0.05) as server, calling(server) as client:
        end = monotonic() + 0.6
        while monotonic() < end:
            assert GrpcStatus.OK is (await client.send(ask(), deadline=None)).status


async def test_a_call_may_outlive_the_age_of_its_connection() -> None:
    """A connection that is too old gets no new calls, and is not closed under its last one."""
    requested, released = asyncio.Event(), asyncio.Event()

    async def answer(wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
        requested.set()
        await released.wait()
        yield GrpcResponse(wire.message)

    async with served(Answers(answer), connection_age_s=1.0) as server, calling(server) as client:
        call = asyncio.create_task(client.send(ask(), deadline=None))
        await requested.wait()
        (connection,) = server._open.members
        for hours in (1, 2):
            connection.sweep(monotonic() + 3600 * hours)
        released.set()
        assert GrpcStatus.OK is (await call).status


async def test_connections_per_address_are_limited() -> None:
    """One over the limit gets GOAWAY and is counted; later another is accepted."""
    refused: list[GatewayError] = []
    async with served(Answers(echo), on_reject=refused, connections_per_address=1) as server:
        reader, writer = await connected(server.address)
        await reader.read(1)
        refusal = await exchange(server.address, PREFACE)
        goaway = frames.goaway(0, frames.ENHANCE_YOUR_CALM, refused[0].message)
        assert frames.settings(()) + goaway == refusal
        writer.close()
        async with calling(server) as client:
            response = await retried(lambda: client.send(ask(), deadline=None), Unavailable)
    assert GrpcStatus.OK is response.status
    assert "connections_per_address" == refused[0].limit


async def test_stream_with_a_closed_window_times_out() -> None:
    """A closed window holds no slot, and its call ends after `write_idle_timeout`."""
    limits: dict[str, Any] = {
        "requests_in_flight": 1,
        "queue_wait_s": 5.0,
        "write_idle_timeout_s": 0.15,
    }
    async with served(Answers(echo), **limits) as server, calling(server) as client:
        reader, writer = await connected(server.address)
        writer.write(PREFACE + frames.settings([(frames.INITIAL_WINDOW_SIZE, 0)]))
        writer.write(call() + MESSAGE)
        received = b""
        while b"grpc" not in received:
            received += await reader.read(65_536)
        assert GrpcStatus.OK is (await client.send(ask(), deadline=None)).status
        async with asyncio.timeout(20):
            while frames.reset(1, frames.CANCEL) not in received:
                received += await reader.read(65_536)
        writer.close()


async def test_stream_below_the_minimum_rate_is_reset() -> None:
    """A window that opens byte by byte is progress, but below the minimum rate."""
    limits: dict[str, Any] = {"write_min_rate_grace_s": 0.15, "write_idle_timeout_s": 60.0}
    message = frames.frame(
        frames.DATA, frames.END_STREAM, 1, b"\0" + (9_000).to_bytes(4, "big") + bytes(9_000)
    )
    async with served(Answers(echo), **limits) as server, asyncio.timeout(45):
        reader, writer = await connected(server.address)
        writer.write(PREFACE + frames.settings([(frames.INITIAL_WINDOW_SIZE, 0)]))
        writer.write(call() + message)
        size, is_reset = 0, False
        while not is_reset:
            kind, number, payload = await frame_of(reader)
            size += len(payload) * (kind == frames.DATA)
            is_reset = (kind, number) == (frames.RST_STREAM, 1)
            await asyncio.sleep(0.01)  # more updates in a second would be a flood
            writer.write(frames.window_update(1, 1))
        writer.close()
    assert 0 < size < 9_000


async def test_window_of_a_large_message_grows_in_few_steps() -> None:
    """A message gets window updates that double, independent of its frames."""
    size = 700_001
    message = b"\0" + size.to_bytes(4, "big") + bytes(size)
    starts = range(0, len(message), frames.DEFAULT_FRAME)
    parts = [message[at : at + frames.DEFAULT_FRAME] for at in starts]
    room = frames.DEFAULT_WINDOW
    grants = 0
    async with served(Answers(echo_size)) as server, asyncio.timeout(20):
        reader, writer = await connected(server.address)
        writer.write(PREFACE + call())
        for part in parts:
            while room < len(part):
                kind, number, payload = await frame_of(reader)
                if (kind, number) == (frames.WINDOW_UPDATE, 1):
                    room += int.from_bytes(payload, "big")
                    grants += 1
            for place in range(0, len(part), 10_007):
                piece = part[place : place + 10_007]
                writer.write(frames.frame(frames.DATA, 0, 1, piece))
                await writer.drain()
            room -= len(part)
        writer.write(frames.frame(frames.DATA, frames.END_STREAM, 1))
        heads = 0
        while heads < 2:
            kind, number, _ = await frame_of(reader)
            heads += (kind, number) == (frames.HEADERS, 1)
        writer.close()
    assert 1 <= grants <= 4


async def frame_of(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Read a frame; return its kind, its stream and its content."""
    head = await reader.readexactly(frames.HEAD_BYTES)
    high, low, kind, _, number = frames.FRAME_HEAD.unpack(head)
    return kind, number, await reader.readexactly(high << 16 | low)


async def echo_size(wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
    """Respond with the size of the message."""
    yield GrpcResponse((b"%d" % len(wire.view),))


async def test_message_below_the_minimum_rate_is_rejected() -> None:
    """A slow message gets its status once it is below the minimum rate."""
    data = PREFACE + call() + frames.frame(frames.DATA, 0, 1, b"\0\0\0\xff\xffx")
    limits: dict[str, Any] = {"body_min_rate_grace_s": 0.1, "keepalive_s": 0.1}
    async with served(Answers(echo), **limits) as server:
        received = await exchange(server.address, data)
    assert b"grpc-status\x014" in received
    assert b"at 1024 bytes per second" in received


async def test_invalid_frame_is_reported_in_goaway() -> None:
    """GOAWAY has the error, and it is counted as a rejection."""
    refused: list[GatewayError] = []
    async with served(Answers(echo), on_reject=refused) as server:
        received = await exchange(
            server.address, PREFACE + frames.frame(frames.PING, 0, 0, b"short")
        )
    assert b"PING of 5 bytes" in received
    assert ["PING of 5 bytes"] == [each.message for each in refused]


async def test_health_rejects_large_messages() -> None:
    """A message outside the memory budget has to be short."""
    async with served(Answers(echo)) as server, calling(server) as client:
        request = ask(bytes(65_537), "/grpc.health.v1.Health/Check")
        response = await client.send(request, deadline=None)
    assert "at most 65536 are allowed" in response.details


@pytest.mark.parametrize(
    "kind",
    [
        b"text/plain",
        b"application/grpc-web",
        b"application/grpc-web+proto",
        b"application/grpc-web-text",
    ],
)
async def test_other_content_type_is_415(kind: bytes) -> None:
    """A call of another content type gets HTTP status 415."""
    block = b"".join(
        literal(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", UNARY.encode()),
            (b"content-type", kind),
        )
    )
    data = PREFACE + frames.frame(frames.HEADERS, 5, 1, block)
    async with served(Answers(echo), keepalive_s=0.1) as server:
        assert b":status\x03415" in await exchange(server.address, data)


async def test_call_reset_in_its_own_packet_holds_no_slot() -> None:
    """A call that is reset in the packet that began it holds no slot."""
    frontend = Answers(echo)
    async with served(frontend, requests_in_flight=1) as server, calling(server) as client:
        reader, writer = await connected(server.address)
        for number in range(1, 61, 2):
            writer.write(PREFACE if number == 1 else b"")
            writer.write(call(stream=number))
            writer.write(frames.frame(frames.DATA, 1, number, b"\0\0\0\0\1x"))
            writer.write(frames.reset(number, frames.CANCEL))
        await reader.read(1)
        assert GrpcStatus.OK is (await client.send(ask(b"good"), deadline=None)).status
        writer.close()
    assert b"good" == frontend.requests[-1].view.tobytes()


async def test_exception_of_a_frontend_is_internal_without_details() -> None:
    """An exception that is no GatewayError ends its call alone."""

    class Buggy(Answers):
        async def handle(self, wire: GrpcRequest) -> GrpcResponse:
            if wire.view.tobytes() == b"bug":
                raise KeyError("secret")
            return GrpcResponse(wire.message)

    import structlog  # noqa: PLC0415  # only here

    with structlog.testing.capture_logs() as logs:
        async with served(Buggy(echo)) as server, calling(server) as client:
            bad = await client.send(ask(b"bug"), deadline=None)
            good = await client.send(ask(b"x"), deadline=None)
    assert (GrpcStatus.INTERNAL, "internal error") == (bad.status, bad.details)
    assert GrpcStatus.OK is good.status
    assert ["internal error"] == [each["event"] for each in logs]


async def test_slow_reader_pauses_the_stream() -> None:
    """A server makes no more messages than the windows of a slow caller admit."""
    made = 0

    async def endless(_wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
        nonlocal made
        while True:
            made += 1
            yield GrpcResponse((bytes(65_536),))

    async with served(Answers(endless)) as server, calling(server) as client:
        responses = client.stream(ask(method=STREAM), deadline=None)
        for _ in range(10):
            await anext(responses)
        assert await stable(lambda: made) <= 10 + 4
        await responses.aclose()  # type: ignore[attr-defined]  # it is a generator


FLOODS = {
    "rapid_reset": b"".join(
        call(stream=number) + frames.reset(number, frames.CANCEL) for number in range(1, 2001, 2)
    ),
    "empty_data": call() + frames.frame(frames.DATA, 0, 1) * 20_000,
    "continuation": frames.frame(frames.HEADERS, 0, 1, b"")
    + frames.frame(frames.CONTINUATION, 0, 1, b"") * 5000,
    "pings": frames.frame(frames.PING, 0, 0, bytes(8)) * 20_000,
    "settings": frames.settings([(4, 65_535)]) * 20_000,
    "shorter_than_announced": b"".join(
        call(
            UNARY.encode(),
            literal(b"content-length", b"1"),
            stream=number,
            flags=frames.LAST_HEADERS,
        )
        for number in range(1, 2001, 2)
    ),
    "hpack_bomb": call(UNARY.encode(), b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 12_000),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_flood_gets_goaway_and_delays_no_other_call(name: str) -> None:
    """Each flood gets GOAWAY; a good call during it succeeds, and takes little of a processor."""
    async with served(Answers(echo)) as server, calling(server) as client:
        await client.send(ask(), deadline=None)
        flood = asyncio.create_task(exchange(server.address, PREFACE + FLOODS[name]))
        took = []
        while not flood.done():
            began = thread_time()
            assert GrpcStatus.OK is (await client.send(ask(), deadline=None)).status
            took.append(thread_time() - began)
        received = await flood
    assert bytes([frames.GOAWAY, 0, 0, 0, 0, 0]) in received
    assert max(took) < 2


async def test_cancelled_call_frees_its_stream_for_the_next() -> None:
    """A call that waits for a stream of the only connection gets that of a cancelled one."""
    frontend = Slow()
    async with (
        served(frontend, h2_streams=1) as server,
        calling(server, ClientLimits(connections=1)) as client,
    ):
        first = asyncio.create_task(client.send(ask(), deadline=None))
        await frontend.started.wait()
        second = asyncio.create_task(client.send(ask(), deadline=monotonic() + 30))
        await settle()
        frontend.go.set()
        first.cancel()
        assert GrpcStatus.OK is (await second).status


async def test_client_opens_connections_for_more_streams() -> None:
    """Where a connection allows two streams, the client opens further connections."""
    frontend = Slow()
    async with (
        served(frontend, h2_streams=2) as server,
        calling(server, ClientLimits(connections=3)) as client,
    ):
        calls = [asyncio.create_task(client.send(ask(), deadline=None)) for _ in range(8)]
        await frontend.reached(6)
        frontend.go.set()
        responses = await asyncio.gather(*calls)
    assert 8 == sum(response.status is GrpcStatus.OK for response in responses)
    assert 6 == frontend.most
