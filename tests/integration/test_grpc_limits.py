"""Limits of the reference gRPC server and client, each at its boundary."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator

import grpc
import pytest
from grpc import aio

from gateway.ir.errors import GatewayError, Overloaded, TooLarge
from gateway.transports.contract import ClientLimits, MemoryBudget, ServerLimits
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from tests.integration.grpc_echo import (
    STREAM,
    UNARY,
    Answers,
    Slow,
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


LIMIT = 100_000


@pytest.mark.parametrize(
    ("size", "status"), [(LIMIT, GrpcStatus.OK), (LIMIT + 1, GrpcStatus.RESOURCE_EXHAUSTED)]
)
async def test_request_size_is_limited(size: int, status: GrpcStatus) -> None:
    """A request of the limit passes; one byte more is rejected and never reaches the frontend."""
    frontend = Answers(echo)
    async with (
        serving(frontend, ServerLimits(message_bytes=LIMIT)) as server,
        calling(server) as client,
    ):
        response = await client.send(ask(bytes(size)), deadline=None)
    assert status is response.status
    assert (status is GrpcStatus.OK) == bool(frontend.requests)


@pytest.mark.parametrize("method", [UNARY, STREAM])
async def test_response_over_the_client_limit_is_too_large(method: str) -> None:
    """A response one byte over the limit raises TooLarge; one of the limit passes."""
    async with (
        serving(Answers(echo)) as server,
        calling(server, ClientLimits(message_bytes=LIMIT)) as client,
    ):
        responses = client.stream(ask(bytes(LIMIT), method), deadline=None)
        assert LIMIT == len((await anext(responses)).view)
        await responses.aclose()  # type: ignore[attr-defined]  # it is a generator
        with pytest.raises(TooLarge, match=r"100001.+100000"):
            await anext(client.stream(ask(bytes(LIMIT + 1), method), deadline=None))


async def test_response_over_the_server_limit_is_rejected() -> None:
    """The message limit holds for the frontend's responses, too."""

    def double(wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
        return echo(GrpcRequest(wire.method, (*wire.message, *wire.message)))

    limits = ServerLimits(message_bytes=LIMIT)
    async with serving(Answers(double), limits) as server, calling(server) as client:
        good = await client.send(ask(bytes(LIMIT // 2)), deadline=None)
        bad = await client.send(ask(bytes(LIMIT // 2 + 1)), deadline=None)
    assert LIMIT == len(good.view)
    assert (
        GrpcStatus.RESOURCE_EXHAUSTED,
        "the response has 100002 bytes, at most 100000 are allowed",
    ) == (
        bad.status,
        bad.details,
    )


async def test_error_within_a_message_does_not_end_a_stream() -> None:
    """Some protocols have errors in messages: then the responses behind one too large follow."""

    class Within(Answers):
        def reject_message(self, _wire: GrpcRequest, error: GatewayError, /) -> GrpcResponse:
            return GrpcResponse((error.code.value.encode(),))

    async def grow(_wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
        for size in (1, LIMIT + 1, 2):
            yield GrpcResponse((bytes(size),))

    limits = ServerLimits(message_bytes=LIMIT)
    async with serving(Within(grow), limits) as server, calling(server) as client:
        responses = client.stream(ask(b"", STREAM), deadline=None)
        found = [bytes(response.view) async for response in responses]
    assert [bytes(1), b"too_large", bytes(2)] == found


async def test_compressed_messages_are_limited_by_inflated_size() -> None:
    """Gzip and deflate are decoded; the limit holds for the inflated size."""
    async with (
        serving(Answers(echo), ServerLimits(message_bytes=LIMIT)) as server,
        aio.insecure_channel(server.address) as channel,
    ):
        call = channel.unary_unary(UNARY)
        for coding in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            assert bytes(LIMIT) == await call(bytes(LIMIT), compression=coding)
            with pytest.raises(aio.AioRpcError) as caught:
                await call(bytes(LIMIT + 1), compression=coding)
            assert grpc.StatusCode.RESOURCE_EXHAUSTED is caught.value.code()


async def test_metadata_size_is_limited() -> None:
    """Metadata below the limit passes every time; metadata over it is rejected every time."""
    frontend = Answers(echo)
    async with serving(frontend) as server, calling(server) as client:
        for size, status in ((15_000, GrpcStatus.OK), (16_385, GrpcStatus.RESOURCE_EXHAUSTED)):
            request = GrpcRequest(UNARY, (b"x",), (("x-large", "v" * size),))
            for _ in range(5):
                assert status is (await client.send(request, deadline=None)).status
    assert 5 == len(frontend.requests)


async def test_calls_in_flight_and_queued_are_limited() -> None:
    """Of 300 calls at once 4 run and 8 wait; the rest is rejected."""
    frontend = Slow()
    limits = ServerLimits(
        requests_in_flight=4,
        requests_per_address=4,
        requests_queued=8,
        queue_wait_s=5,
        h2_streams=400,
    )
    async with (
        serving(frontend, limits) as server,
        calling(server, ClientLimits(in_flight=300)) as client,
    ):
        calls = [asyncio.create_task(client.send(ask(), deadline=None)) for _ in range(300)]
        for done in itertools.islice(asyncio.as_completed(calls), 288):
            assert GrpcStatus.RESOURCE_EXHAUSTED is (await done).status
        frontend.go.set()
        responses = await asyncio.gather(*calls)
    assert 12 == sum(response.status is GrpcStatus.OK for response in responses)
    assert 4 == frontend.most


async def test_wait_for_a_slot_is_limited() -> None:
    """A call that gets no slot in time is rejected with the limit's value."""
    frontend = Slow()
    limits = ServerLimits(requests_in_flight=1, queue_wait_s=0.02)
    async with serving(frontend, limits) as server, calling(server) as client:
        first = asyncio.create_task(client.send(ask(), deadline=None))
        await frontend.started.wait()
        second = await client.send(ask(), deadline=None)
        frontend.go.set()
        await first
    assert GrpcStatus.RESOURCE_EXHAUSTED is second.status
    assert "at most 1 are allowed" in second.details


async def test_bytes_in_flight_are_limited_and_released() -> None:
    """A message over the free budget is rejected; afterwards the whole budget is free."""
    frontend = Slow()
    budget = MemoryBudget(LIMIT)
    limits = ServerLimits(queue_wait_s=0.02)
    async with serving(frontend, limits, budget=budget) as server, calling(server) as client:
        largest = bytes(LIMIT - budget.call_bytes)
        first = asyncio.create_task(client.send(ask(largest), deadline=None))
        await frontend.started.wait()
        second = await client.send(ask(b"x"), deadline=None)
        frontend.go.set()
        await first
    assert GrpcStatus.RESOURCE_EXHAUSTED is second.status
    assert f"{LIMIT} of {LIMIT} bytes are in use" in second.details
    assert 0 == budget.used


async def test_client_limits_its_own_calls() -> None:
    """One call may run, one may wait for it, and the third raises Overloaded at once."""
    frontend = Slow()
    async with (
        serving(frontend) as server,
        calling(server, ClientLimits(in_flight=1, pending=1)) as client,
    ):
        calls = [asyncio.create_task(client.send(ask(), deadline=None)) for _ in range(2)]
        await frontend.started.wait()
        with pytest.raises(Overloaded, match=r"1 requests to \S+ are in flight") as caught:
            await client.send(ask(), deadline=None)
        frontend.go.set()
        responses = await asyncio.gather(*calls)
    assert "in_flight" == caught.value.limit
    assert [GrpcStatus.OK] * 2 == [response.status for response in responses]
    assert 1 == frontend.most


async def test_client_runs_more_calls_than_a_connection_has_streams() -> None:
    """Two hundred calls run at once although a connection allows a hundred."""
    frontend = Slow()
    async with serving(frontend) as server, calling(server) as client:
        calls = [asyncio.create_task(client.send(ask(), deadline=None)) for _ in range(200)]
        await frontend.reached(200)
        frontend.go.set()
        responses = await asyncio.gather(*calls)
    assert {GrpcStatus.OK} == {response.status for response in responses}
