"""The in-memory client: as a real wire delivers it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from gateway.ir.errors import DeadlineExceeded, GatewayError, NotSent
from gateway.transports.contract import GrpcFrontend, HttpFrontend, StreamFrontend
from gateway.transports.memory import grpc_memory, http_memory, stream_memory
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.stream import Frame


class HttpEcho(HttpFrontend):
    """Answers with the body, `times` times, after `wait_s`."""

    def __init__(self, *, times: int = 1, wait_s: float = 0.0) -> None:
        self.seen: list[HttpRequest] = []
        self.closed = False
        self._times = times
        self._wait_s = wait_s

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        self.seen.append(wire)
        try:
            for _ in range(self._times):
                await asyncio.sleep(self._wait_s)
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
    answer = await http_memory(echo).send(wire, deadline=None)
    source[0] = 0
    assert len(echo.seen[0].body) == len(answer.body) == 1
    assert (bytes(echo.seen[0].view), bytes(answer.view)) == (b"bcd", b"abcd")
    assert echo.seen[0].view.readonly
    assert answer.headers.get("content-length") is None
    assert echo.seen[0].headers.get("content-length") == "3"
    assert echo.closed


async def test_deadline_reaches_the_frontend() -> None:
    """The deadline of a call is that of the request the frontend sees."""
    echo = HttpEcho()
    deadline = time.monotonic() + 9
    await http_memory(echo).send(HttpRequest("GET", "/"), deadline=deadline)
    assert echo.seen[0].deadline == deadline


@pytest.mark.parametrize("remaining_s", [0.02, -1.0])
async def test_deadline_ends_the_call(remaining_s: float) -> None:
    """At the deadline the frontend is closed."""
    echo = HttpEcho(wait_s=5)
    with pytest.raises(DeadlineExceeded):
        await http_memory(echo).send(
            HttpRequest("GET", "/"), deadline=time.monotonic() + remaining_s
        )
    assert echo.closed == (remaining_s > 0)


async def test_stream_yields_every_answer() -> None:
    """All answers come, in order."""
    client = http_memory(HttpEcho(times=3))
    answers = [bytes(a.view) async for a in client.stream(HttpRequest("GET", "/"), deadline=None)]
    assert answers == [b"a", b"a", b"a"]


async def test_closed_client_refuses() -> None:
    """After close nothing is sent."""
    client = http_memory(HttpEcho())
    await client.close()
    await client.close()
    with pytest.raises(NotSent):
        await client.send(HttpRequest("GET", "/"), deadline=None)


async def test_grpc_message_and_status_cross() -> None:
    """A message is joined; a status comes back as it was given."""

    class Grpc(GrpcFrontend):
        async def __call__(self, wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
            yield GrpcResponse((wire.view, b"!"), GrpcStatus.OK, "", (("k", "v"),))
            yield GrpcResponse((), GrpcStatus.NOT_FOUND, "gone")

        def reject(self, error: GatewayError, /) -> GrpcResponse:
            raise error

    client = grpc_memory(Grpc())
    wire = GrpcRequest("/s/m", (b"a", b"b"))
    answers = [answer async for answer in client.stream(wire, deadline=None)]
    assert [b"ab!", b""] == [bytes(answer.view) for answer in answers]
    assert answers[0].metadata == (("k", "v"),)
    assert (answers[1].status, answers[1].details) == (GrpcStatus.NOT_FOUND, "gone")


async def test_frames_arrive_fresh_with_their_deadline() -> None:
    """A byte stream in memory joins payloads, and carries number and deadline."""
    seen: list[Frame] = []

    class Answering(StreamFrontend):
        async def __call__(self, wire: Frame, /) -> AsyncGenerator[Frame, None]:
            seen.append(wire)
            yield Frame((b"an", b"swer"), wire.correlation)

        def reject(self, error: GatewayError, /) -> Frame:
            raise AssertionError(error)

    deadline = time.monotonic() + 60
    answer = await stream_memory(Answering()).send(Frame((b"ques", b"tion"), 7), deadline=deadline)
    [question] = seen
    assert (b"question", 7, deadline) == (
        bytes(question.payload[0]),
        question.correlation,
        question.deadline,
    )
    assert (b"answer", 7) == (bytes(answer.payload[0]), answer.correlation)
