"""A client that does not read: the slot of its call is free once the last response is computed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator

import pytest

from gateway.api.protocol import ProtocolSpec
from gateway.transports.contract import ServerLimits
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Buffer, HttpRequest, HttpResponse
from gateway.wire.stream import Frame
from tests.integration import grpc_echo, http_kit, stream_kit
from tests.integration.http2_kit import H2Client, h2_client
from tests.integration.stream_kit import numbered
from tests.properties.registered import CARRIERS, REGISTERED

ANSWER_S = 5.0
"""A bystander is answered within this time; a client may read nothing for 10 s."""

SIZES = {"one": (32 << 20,), "stream": (1, 32 << 20)}
"""The sizes of the responses to a client that does not read, which fit no buffer or window."""

GRPC = (("te", "trailers"), ("content-type", "application/grpc"))
STREAMS = pytest.mark.parametrize("kind", list(SIZES))


async def bodies(request: Buffer) -> AsyncGenerator[bytes, None]:
    """Yield responses of the sizes of a kind, or one small response."""
    for size in SIZES.get(bytes(request).decode(), (1,)):
        yield bytes(size)
        await asyncio.sleep(0.01)  # the first one may be sent


class HttpBodies(http_kit.Refusing):
    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        async for body in bodies(wire.view):
            yield HttpResponse(200, body=(body,))


class FrameBodies(stream_kit.Refusing):
    async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
        async for body in bodies(wire.payload[0]):
            yield Frame((body,))


async def grpc_bodies(wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
    async for body in bodies(wire.message[0]):
        yield GrpcResponse((body,))


@pytest.mark.usefixtures("http_makes")
@STREAMS
async def test_unread_http_responses_hold_no_slot(kind: str) -> None:
    """The only response of a generator held its slot until it was sent, as did a stream."""
    async with http_kit.serving(HttpBodies(), requests_in_flight=1) as running:
        unread, other = await running.connect(), await running.connect()
        await unread.send(http_kit.post(kind.encode()))
        await unread.head()
        async with asyncio.timeout(ANSWER_S):
            await other.send(http_kit.post(b"x"))
            assert 200 == (await other.head())[0]
        unread.writer.transport.abort()
        await other.close()


@STREAMS
async def test_unread_http2_responses_hold_no_slot(kind: str) -> None:
    """A stream that is not read lets another stream of its connection be served."""
    http_kit.HTTP_MAKES.server = "native"
    async with (
        http_kit.serving(HttpBodies(), requests_in_flight=1) as running,
        h2_client(running.server.address) as client,
    ):
        await _check_streams(client, "/v2/x", kind.encode(), b"x", ())
    http_kit.HTTP_MAKES.server = "reference"


@pytest.mark.needs("read_ahead")
@pytest.mark.parametrize("server", ["native", "reference"])
@STREAMS
async def test_unread_grpc_responses_hold_no_slot(server: str, kind: str) -> None:
    """The last response of a stream was sent before its call had ended."""
    grpc_echo.MAKES.server = server
    frontend, limits = grpc_echo.Answers(grpc_bodies), ServerLimits(requests_in_flight=1)
    try:
        async with (
            grpc_echo.serving(frontend, limits) as running,
            h2_client(running.address) as client,
        ):
            first, other = (
                b"\0%s%s" % (len(each).to_bytes(4, "big"), each) for each in (kind.encode(), b"x")
            )
            await _check_streams(client, grpc_echo.STREAM, first, other, GRPC)
    finally:
        grpc_echo.MAKES.server = "reference"


async def _check_streams(
    client: H2Client, path: str, first: bytes, other: bytes, fields: tuple[tuple[str, str], ...]
) -> None:
    """Check that *other* is answered while the response to *first* is not read."""
    client.reads = False
    unread = client.begin("POST", path, fields)
    await client.send(unread, first)
    async with asyncio.timeout(ANSWER_S):
        await client.answers[unread].start.wait()
        number = client.begin("POST", path, fields)
        await client.send(number, other)
        await client.answers[number].start.wait()
    assert 200 == client.answers[number].status


@pytest.mark.parametrize("in_order", [True, False])
@STREAMS
async def test_unread_frames_hold_no_slot(in_order: bool, kind: str) -> None:
    """Framed streams are like all others."""
    requests = [kind.encode(), b"x"]
    first, other = (stream_kit.framed(each) if in_order else numbered(1, each) for each in requests)
    async with stream_kit.serving(
        FrameBodies(), in_order=in_order, requests_in_flight=1
    ) as running:
        unread, bystander = await running.connect(), await running.connect()
        await unread.send(first)
        await unread.reader.readexactly(1)
        async with asyncio.timeout(ANSWER_S):
            await bystander.send(other)
            await bystander.reader.readexactly(1)
        unread.writer.transport.abort()
        await bystander.close()


CHECKS = {
    "http": (test_unread_http_responses_hold_no_slot, test_unread_http2_responses_hold_no_slot),
    "grpc": (test_unread_grpc_responses_hold_no_slot,),
    "stream": (test_unread_frames_hold_no_slot,),
}


def test_every_carrier_of_the_registry_is_checked() -> None:
    """A carrier that a protocol brings fails here until its unread responses are checked."""
    fields = {each.name for each in dataclasses.fields(ProtocolSpec)}
    assert {each.carrier for each in REGISTERED.values()} == set(CHECKS) == set(CARRIERS)
    bindings = {
        name
        for each in REGISTERED.values()
        for name in fields
        if hasattr(getattr(each.spec, name), "codec")
    }
    assert bindings == set(CHECKS)
