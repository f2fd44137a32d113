"""Messages through the reference gRPC server and client, over the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import pytest

from gateway.wire.grpc import GrpcRequest, GrpcStatus
from tests.integration.grpc_echo import (
    MIB,
    STREAM,
    UNARY,
    Answers,
    ask,
    calling,
    echo,
    only_quiet,
    serving,
)

pytestmark = pytest.mark.usefixtures("grpc_makes")


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Every ending tested in this file is normal: none may write to stderr or log a warning."""
    yield
    only_quiet(capfd, caplog)


@pytest.mark.parametrize("size", [0, 1, 4096, 602_112, 16 * MIB])
async def test_unary_message_is_echoed_unchanged(size: int) -> None:
    """A message of any size reaches the frontend and its response the caller, byte for byte."""
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    frontend = Answers(echo)
    async with serving(frontend) as server, calling(server) as client:
        response = await client.send(ask(message), deadline=None)
    assert message == response.view.tobytes()
    assert GrpcStatus.OK is response.status
    assert message == frontend.requests[0].view.tobytes()


async def test_frontend_sees_method_metadata_and_deadline() -> None:
    """Path, metadata of both kinds and the deadline arrive with the message."""
    frontend = Answers(echo)
    metadata = (("x-text", "a b"), ("x-data-bin", b"\0\xff"))
    request = GrpcRequest(UNARY, (b"ab", memoryview(b"cd")), metadata)
    deadline = monotonic() + 600
    async with serving(frontend) as server, calling(server) as client:
        response = await client.send(request, deadline=deadline)
    seen = frontend.requests[0]
    assert UNARY == seen.method
    assert b"abcd" == seen.view.tobytes()
    assert set(metadata) <= set(seen.metadata)
    assert seen.deadline == pytest.approx(deadline, abs=20)
    assert (("x-echo", "yes"),) == response.metadata


async def test_stream_messages_arrive_in_order() -> None:
    """A server-streaming method delivers every message."""
    async with serving(Answers(echo)) as server, calling(server) as client:
        responses = [
            response.view.tobytes()
            async for response in client.stream(ask(b"m", STREAM), deadline=None)
        ]
    assert [b"m"] * 3 == responses
