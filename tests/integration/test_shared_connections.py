"""A connection that many callers share: what one of them does leaves the calls of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import monotonic

import grpc
import pytest

from gateway.ir.errors import GatewayError
from gateway.transports.contract import ServerLimits
from gateway.transports.http2 import frames
from gateway.transports.http2.flood_control import EARLY_RESET_S
from gateway.transports.http2.hpack import literal
from tests.integration.grpc_echo import BIDI, STREAM, UNARY, Slow, only_quiet, serving
from tests.integration.test_grpc_hostile import PREFACE, call
from tests.integration.test_grpc_native import connected, message, served

PING = frames.frame(frames.PING, 0, 0, bytes(8))
_CALLS = 300
_LIMITS = ServerLimits(requests_per_address=1000, requests_in_flight=1000, h2_streams=1000)


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a client does may not write to stderr or log a warning."""
    yield
    only_quiet(capfd, caplog)


class Peer:
    """A client of raw frames.

    Attributes:
        received: The frames of the server: kind, flags, stream and payload.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.received: list[tuple[int, int, int, bytes]] = []
        self.send(PREFACE)

    def send(self, *parts: bytes) -> None:
        """Send frames."""
        self._writer.write(b"".join(parts))

    async def frame(self) -> tuple[int, int, int, bytes] | None:
        """Return the next frame; None at the end of the connection."""
        try:
            async with asyncio.timeout(20):
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        found = head[3], head[4], int.from_bytes(head[5:], "big"), payload
        self.received.append(found)
        return found

    async def until(self, kind: int, stream: int, flags: int = 0) -> bytes:
        """Return the payload of the next frame of *kind* on *stream* with *flags*."""
        while (found := await self.frame()) is not None:
            if (kind, stream) == (found[0], found[2]) and found[1] & flags == flags:
                return found[3]
        raise AssertionError(f"the server closed the connection: {self.received[-1:]}")

    async def rest(self) -> list[int]:
        """Read to the end; return the codes of all GOAWAY frames of the connection."""
        while await self.frame() is not None:
            pass
        goaways = [each for each in self.received if each[0] == frames.GOAWAY]
        return [frames.read_two(payload)[1] for *_, payload in goaways]

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


@asynccontextmanager
async def peer(address: str) -> AsyncIterator[Peer]:
    """Connect to *address*."""
    client = Peer(*await connected(address))
    try:
        yield client
    finally:
        client.close()


def numbers(count: int, first: int = 3) -> list[int]:
    """Return *count* stream numbers."""
    return list(range(first, first + 2 * count, 2))


def complete(number: int) -> bytes:
    """Return a complete unary call."""
    return call(UNARY.encode(), stream=number) + message(number)


def reset(number: int) -> bytes:
    """Return the reset of a call that its client has left."""
    return frames.reset(number, frames.CANCEL)


@pytest.mark.usefixtures("grpc_makes")
async def test_cancelled_calls_leave_the_stream_of_a_neighbour() -> None:
    """300 calls that wait for a stalled model, and then are cancelled, are no attack."""
    slow = Slow()
    async with serving(slow, _LIMITS) as server, peer(server.address) as client:
        client.send(call(STREAM.encode(), stream=1), message(1))
        await client.until(frames.DATA, 1)
        client.send(*map(complete, numbers(_CALLS)))
        await slow.reached(1 + _CALLS)
        await asyncio.sleep(2 * EARLY_RESET_S)
        client.send(*map(reset, numbers(_CALLS)), PING)
        await client.until(frames.PING, 0)
        slow.go.set()
        assert b"\0\0\0\0\1x" == await client.until(frames.DATA, 1)
        await client.until(frames.HEADERS, 1, frames.END_STREAM)
        last = numbers(_CALLS + 1)[-1]
        client.send(complete(last))
        await client.until(frames.HEADERS, last, frames.END_STREAM)
    assert frames.GOAWAY not in [kind for kind, *_ in client.received]


@pytest.mark.usefixtures("grpc_makes")
async def test_deadlines_that_end_together_leave_the_stream_of_a_neighbour() -> None:
    """300 calls of a channel of grpcio, which cancels them at their deadline."""
    slow = Slow()
    async with serving(slow, _LIMITS) as server, grpc.aio.insecure_channel(server.address) as ours:
        neighbour = ours.unary_stream(STREAM)(b"x")
        assert b"first" == await neighbour.read()
        calls = [ours.unary_unary(UNARY)(b"x", timeout=4) for _ in range(_CALLS)]
        await slow.reached(1 + _CALLS)
        codes = [await call.code() for call in calls]
        slow.go.set()
        assert b"x" == await neighbour.read()
    assert [grpc.StatusCode.DEADLINE_EXCEEDED] * _CALLS == codes


async def test_small_frames_of_each_call_are_no_attack() -> None:
    """A client of gRPC updates windows when it begins to wait, and may reset a call that has ended."""
    slow = Slow()
    async with served(slow, h2_streams=2000) as server, peer(server.address) as client:
        calls = numbers(1500, 1)
        for number in calls:
            client.send(complete(number), *(frames.window_update(each, 5) for each in (0, number)))
        await slow.reached(len(calls))
        slow.go.set()
        for number in calls:
            await client.until(frames.HEADERS, number, frames.END_STREAM)
        client.send(*map(reset, calls), PING)
        await client.until(frames.PING, 0)
    assert frames.GOAWAY not in [kind for kind, *_ in client.received]


async def test_a_flood_of_resets_lets_the_streams_of_others_end() -> None:
    """New streams are refused, a neighbour's goes on, and the connection ends after it."""
    slow = Slow()
    refused: list[GatewayError] = []
    async with served(slow, on_reject=refused) as server, peer(server.address) as client:
        client.send(call(STREAM.encode(), stream=1), message(1))
        await client.until(frames.DATA, 1)
        for number in numbers(_CALLS):
            client.send(call(UNARY.encode(), stream=number), reset(number))
        last, code = frames.read_two(await client.until(frames.GOAWAY, 0))
        assert 1 < last < numbers(_CALLS)[-1]
        assert frames.NO_ERROR == code
        late = numbers(_CALLS + 1)[-1]
        client.send(complete(late), frames.window_update(late, 100))
        expected = frames.REFUSED_STREAM.to_bytes(4, "big")
        assert expected == await client.until(frames.RST_STREAM, late)
        slow.go.set()
        await client.until(frames.HEADERS, 1, frames.END_STREAM)
        assert [frames.NO_ERROR, frames.ENHANCE_YOUR_CALM] == await client.rest()
    assert ["h2"] == [each.limit for each in refused]


async def test_a_flood_of_resets_after_goaway_ends_the_connection() -> None:
    """A client that goes on loses its connection, with the calls on it."""
    slow = Slow()
    async with served(slow) as server, peer(server.address) as client:
        client.send(call(STREAM.encode(), stream=1), message(1))
        await client.until(frames.DATA, 1)
        for number in numbers(2000):
            client.send(call(UNARY.encode(), stream=number), reset(number))
        assert [frames.NO_ERROR, frames.ENHANCE_YOUR_CALM] == await client.rest()
    assert 1 == slow.most
    assert slow.cancelled.is_set()


@pytest.mark.parametrize("method", [UNARY, BIDI])
async def test_resets_of_calls_without_a_message_are_charged(method: str) -> None:
    """Such calls get no service, however long they were open."""
    async with served(Slow(), h2_streams=1000) as server, peer(server.address) as client:
        client.send(*[call(method.encode(), stream=number) for number in numbers(_CALLS)])
        client.send(PING)
        await client.until(frames.PING, 0)
        await asyncio.sleep(2 * EARLY_RESET_S)
        client.send(*map(reset, numbers(_CALLS)), PING)
        assert frames.ENHANCE_YOUR_CALM in await client.rest()


async def test_a_call_that_is_reset_before_goaway_arrives_costs_no_others() -> None:
    """Frames on streams after the last one of a GOAWAY break no rule of the protocol."""
    slow = Slow()
    async with served(slow) as server, peer(server.address) as client:
        client.send(complete(1))
        await slow.reached(1)
        stopping = asyncio.create_task(server.drain(5))
        for _ in range(2):
            await client.until(frames.GOAWAY, 0)
        client.send(call(UNARY.encode(), stream=3), reset(3), complete(5), reset(5))
        client.send(frames.window_update(5, 10))
        slow.go.set()
        await client.until(frames.HEADERS, 1, frames.END_STREAM)
        assert {frames.NO_ERROR} == set(await client.rest())
        await stopping


async def test_a_call_outlives_the_age_of_its_connection() -> None:
    """The client gets GOAWAY, and the connection is closed after the last call."""
    slow = Slow()
    async with served(slow, connection_age_s=3600) as server, peer(server.address) as client:
        client.send(call(STREAM.encode(), stream=1), message(1))
        await client.until(frames.DATA, 1)
        (connection,) = server._open.members
        for later_s in (4000, 4060):
            connection.sweep(monotonic() + later_s)
        await client.until(frames.GOAWAY, 0)
        slow.go.set()
        await client.until(frames.HEADERS, 1, frames.END_STREAM)


async def test_a_call_with_60_kb_of_metadata_is_refused_alone() -> None:
    """A proxy passes on so much; the limit of one call does not end the calls of others."""
    slow = Slow()
    large = b"".join(literal(b"x-%d" % each, b"a" * 1000) for each in range(60))
    async with served(slow) as server, peer(server.address) as client:
        client.send(complete(1))
        await slow.reached(1)
        client.send(call(UNARY.encode(), large, stream=3), message(3))
        assert b"metadata is too large" in await client.until(frames.HEADERS, 3, frames.END_STREAM)
        slow.go.set()
        await client.until(frames.HEADERS, 1, frames.END_STREAM)
