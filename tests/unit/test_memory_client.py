"""The in-memory client delivers requests and responses as a real wire does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from gateway.ir.errors import DeadlineExceeded, GatewayError, NotSent
from gateway.transports.contract import GrpcFrontend, HttpFrontend, StreamFrontend
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.stream import Frame
from tests.memory_client import grpc_memory, http_memory, stream_memory


class HttpEcho(HttpFrontend):
    """Replies with the body, `times` times, or never."""

    def __init__(self, *, times: int = 1, hangs: bool = False) -> None:
        self.seen: list[HttpRequest] = []
        self.closed = False
        self._times = times
        self._hangs = hangs

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        self.seen.append(wire)
        try:
            for _ in range(self._times):
                if self._hangs:
                    await asyncio.Event().wait()
                yield HttpResponse(200, Headers((("Content-Length", "9"),)), (b"a", wire.view))
        finally:
            self.closed = True

    def reject(self, error: GatewayError, /) -> HttpResponse:
        raise error


async def test_http_body_is_one_fresh_view() -> None:
    """Buffers are joined into one read-only copy, both ways."""
    echo = HttpEcho()
    source = bytearray(b"bc")
    wire = HttpRequest("POST", "/x", body=(source, b"d"))
    response = await http_memory(echo).send(wire, deadline=None)
    source[0] = 0
    assert len(echo.seen[0].body) == len(response.body) == 1
    assert (bytes(echo.seen[0].view), bytes(response.view)) == (b"bcd", b"abcd")
    assert echo.seen[0].view.readonly
    assert response.headers.get("content-length") is None
    assert echo.seen[0].headers.get("content-length") == "3"
    assert echo.closed


async def test_deadline_reaches_the_frontend() -> None:
    """The request that the frontend receives has the deadline of the call."""
    echo = HttpEcho()
    deadline = time.monotonic() + 9
    await http_memory(echo).send(HttpRequest("GET", "/"), deadline=deadline)
    assert echo.seen[0].deadline == deadline


@pytest.mark.parametrize("remaining_s", [0.02, -1.0])
async def test_deadline_ends_the_call(remaining_s: float) -> None:
    """The frontend is closed at the deadline."""
    echo = HttpEcho(hangs=True)
    with pytest.raises(DeadlineExceeded):
        await http_memory(echo).send(
            HttpRequest("GET", "/"), deadline=time.monotonic() + remaining_s
        )
    assert echo.closed == (remaining_s > 0)


async def test_a_stream_yields_every_response() -> None:
    """They arrive in order."""
    client = http_memory(HttpEcho(times=3))
    responses = [bytes(a.view) async for a in client.stream(HttpRequest("GET", "/"), deadline=None)]
    assert responses == [b"a", b"a", b"a"]


async def test_a_closed_client_raises_not_sent() -> None:
    """Closing it twice is harmless."""
    client = http_memory(HttpEcho())
    await client.close()
    await client.close()
    with pytest.raises(NotSent):
        await client.send(HttpRequest("GET", "/"), deadline=None)


async def test_grpc_messages_and_statuses_are_delivered() -> None:
    """A message is joined; a status with its details and metadata stays the same."""

    class Grpc(GrpcFrontend):
        async def __call__(self, wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
            yield GrpcResponse((wire.view, b"!"), GrpcStatus.OK, "", (("k", "v"),))
            yield GrpcResponse((), GrpcStatus.NOT_FOUND, "gone")

        def reject(self, error: GatewayError, /) -> GrpcResponse:
            raise error

    client = grpc_memory(Grpc())
    wire = GrpcRequest("/s/m", (b"a", b"b"))
    responses = [response async for response in client.stream(wire, deadline=None)]
    assert [b"ab!", b""] == [bytes(response.view) for response in responses]
    assert responses[0].metadata == (("k", "v"),)
    assert (responses[1].status, responses[1].details) == (GrpcStatus.NOT_FOUND, "gone")


async def test_frames_are_copied_with_id_and_deadline() -> None:
    """The stream client joins payloads, and carries correlation and deadline."""
    seen: list[Frame] = []

    class StreamEcho(StreamFrontend):
        async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
            seen.append(wire)
            yield Frame((b"an", b"swer"), wire.correlation)

        def reject(self, error: GatewayError, /) -> Frame:
            raise AssertionError(error)

    deadline = time.monotonic() + 60
    response = await stream_memory(StreamEcho()).send(
        Frame((b"ques", b"tion"), 7), deadline=deadline
    )
    [request] = seen
    assert (b"question", 7, deadline) == (
        bytes(request.payload[0]),
        request.correlation,
        request.deadline,
    )
    assert (b"answer", 7) == (bytes(response.payload[0]), response.correlation)
