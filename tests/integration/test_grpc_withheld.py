"""Abandoned calls to servers that end at cancelled calls: the cancellation is withheld."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from gateway.app.build.chain_context import NO_CONTEXT
from gateway.app.build.upstreams import build_upstream
from gateway.config.models import UpstreamConfig
from gateway.ir.errors import DeadlineExceeded, Overloaded, Unavailable
from gateway.policies.hand_over.pool import RegionPool
from gateway.policies.signatures import DescribedModels
from gateway.telemetry.metrics import Metrics
from gateway.transports.contract import ClientLimits, GrpcMount, MemoryBudget, ServerLimits
from gateway.transports.grpc.server import GrpcServer
from gateway.transports.grpc.withheld import WithheldCalls
from gateway.wire.grpc import GrpcRequest, GrpcResponse, MethodKind
from tests.integration.grpc_echo import (
    MAKES,
    STREAM,
    Answers,
    Slow,
    ask,
    calling,
    only_quiet,
    serving,
)

pytestmark = pytest.mark.needs("withheld_calls")


@pytest.fixture(autouse=True, params=["native", "reference"])
def client_make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of both implementations call a native server."""
    monkeypatch.setattr(MAKES, "server", "native")
    monkeypatch.setattr(MAKES, "client", request.param)


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is written to stderr, and no warning logged."""
    yield
    only_quiet(capfd, caplog)


async def leave(task: asyncio.Task[GrpcResponse]) -> None:
    """Cancel a call, which ends although its server does not reply."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_call_is_withheld_and_runs_to_its_end() -> None:
    """The client returns at once; the server sees no cancellation, and its reply is dropped."""
    slow, counted = Slow(), []
    withheld = WithheldCalls(enabled=True, report=lambda: counted.append(1))
    async with serving(slow) as server, calling(server, withheld=withheld) as client:
        task = asyncio.create_task(client.send(ask(), deadline=None))
        await slow.started.wait()
        await leave(task)
        assert (1, [1]) == (withheld.pending, counted)
        assert 1 == slow.running
        slow.go.set()
        await withheld.drained()
        assert not slow.cancelled.is_set()
        reply = await client.send(ask(b"next"), deadline=None)
        assert b"next" == b"".join(bytes(view) for view in reply.message)


async def test_deadline_is_not_sent_to_the_server() -> None:
    """The server gets no deadline; the caller gets its error, although the server does not reply."""
    slow, withheld = Slow(), WithheldCalls(enabled=True)
    async with serving(slow) as server, calling(server, withheld=withheld) as client:
        with pytest.raises(DeadlineExceeded, match="in time"):
            await client.send(ask(), deadline=monotonic() + 1)
        assert (1, 1) == (withheld.pending, slow.running)
        slow.go.set()
        await withheld.drained()
        assert not slow.cancelled.is_set()


async def test_withheld_call_keeps_its_slot() -> None:
    """Otherwise the server would run more calls than its limit."""
    slow, withheld = Slow(), WithheldCalls(enabled=True)
    limits = ClientLimits(in_flight=1, pending=0)
    async with serving(slow) as server, calling(server, limits, withheld=withheld) as client:
        task = asyncio.create_task(client.send(ask(), deadline=None))
        await slow.started.wait()
        await leave(task)
        with pytest.raises(Overloaded):
            await client.send(ask(), deadline=None)
        slow.go.set()
        await withheld.drained()
        await client.send(ask(), deadline=None)


async def test_cancelled_queued_call_is_never_sent() -> None:
    """It is removed from the queue."""
    slow, withheld = Slow(), WithheldCalls(enabled=True)
    limits = ClientLimits(in_flight=1, pending=1)
    async with serving(slow) as server, calling(server, limits, withheld=withheld) as client:
        first = asyncio.create_task(client.send(ask(), deadline=None))
        await slow.started.wait()
        second = asyncio.create_task(client.send(ask(), deadline=None))
        await asyncio.sleep(0)
        await leave(second)
        assert 0 == withheld.pending
        slow.go.set()
        await first
        assert 1 == slow.most


async def test_withheld_call_is_cancelled_after_its_timeout() -> None:
    """Its slot is free again."""
    slow, withheld = Slow(), WithheldCalls(0.2, enabled=True)
    limits = ClientLimits(in_flight=1, pending=0)
    async with serving(slow) as server, calling(server, limits, withheld=withheld) as client:
        with pytest.raises(DeadlineExceeded):
            await client.send(ask(), deadline=monotonic() + 1)
        await withheld.drained()
        await slow.cancelled.wait()
        slow.go.set()
        await client.send(ask(), deadline=None)


async def test_lost_connection_ends_a_withheld_call() -> None:
    """No task is left waiting for its reply."""
    slow, withheld = Slow(), WithheldCalls(enabled=True)
    async with serving(slow) as server, calling(server, withheld=withheld) as client:
        task = asyncio.create_task(client.send(ask(), deadline=None))
        await slow.started.wait()
        await leave(task)
        await server.stop()
        await withheld.drained()


async def test_close_ends_withheld_and_running_calls() -> None:
    """A caller that wants them to finish must wait for `drained` first."""
    slow, withheld = Slow(), WithheldCalls(enabled=True)
    async with serving(slow) as server:
        async with calling(server, withheld=withheld) as client:
            leaver = asyncio.create_task(client.send(ask(), deadline=None))
            stays = asyncio.create_task(client.send(ask(), deadline=None))
            await slow.reached(2)
            await leave(leaver)
        with pytest.raises(Unavailable):
            await stays
        await withheld.drained()


async def test_a_stream_left_after_its_first_response_runs_to_its_end() -> None:
    """A Triton ended by a signal under cancelled streams: it sees none, and its rest is dropped."""
    go, ended, sent = asyncio.Event(), asyncio.Event(), 0

    async def responses(_wire: GrpcRequest) -> AsyncGenerator[GrpcResponse, None]:
        nonlocal sent
        try:
            for _ in range(10):
                yield GrpcResponse((bytes(100_000),))
                sent += 1
                await go.wait()
        finally:
            ended.set()

    withheld = WithheldCalls(enabled=True)
    async with serving(Answers(responses)) as server, calling(server, withheld=withheld) as client:
        stream = client.stream(ask(method=STREAM), deadline=monotonic() + 30)
        await anext(aiter(stream))
        await stream.aclose()  # type: ignore[attr-defined]  # both are generators
        assert 1 == withheld.pending
        go.set()
        await withheld.drained()
        await ended.wait()
    assert 10 == sent
    assert 0 == withheld.pending


async def test_a_withheld_stream_is_cancelled_after_its_timeout() -> None:
    """A stream may never end by itself, so it ends after the longest time."""
    slow, withheld = Slow(), WithheldCalls(0.1, enabled=True)
    async with serving(slow) as server, calling(server, withheld=withheld) as client:
        stream = client.stream(ask(method=STREAM), deadline=None)
        await anext(aiter(stream))
        await stream.aclose()  # type: ignore[attr-defined]  # both are generators
        await slow.cancelled.wait()
        await withheld.drained()


async def test_calls_are_cancelled_by_default() -> None:
    """The server sees the cancellation at once."""
    slow = Slow()
    async with serving(slow) as server, calling(server, withheld=WithheldCalls()) as client:
        task = asyncio.create_task(client.send(ask(), deadline=None))
        await slow.started.wait()
        await leave(task)
        await slow.cancelled.wait()


async def test_timed_out_probe_is_withheld() -> None:
    """The endpoint is not ready, and the server sees no cancellation of the probe."""
    slow, metrics = Slow(), Metrics("1")
    method = {"/inference.GRPCInferenceService/ServerReady": MethodKind.UNARY}
    budget = MemoryBudget(1 << 20)
    server = GrpcServer("127.0.0.1:0", [GrpcMount(method, slow)], ServerLimits(), budget)
    await server.start()
    document = {"url": f"oip+grpc://{server.address}", "transport": MAKES.client}
    config = UpstreamConfig.model_validate({**document, "probe": {"timeout": "1s"}})
    parts = {**NO_CONTEXT.parts, MemoryBudget: budget, RegionPool: RegionPool(0)}
    at = replace(NO_CONTEXT, name="u", sections={"upstream": config}, parts=parts, metrics=metrics)
    built = build_upstream(config, DescribedModels(), Path(), at)
    calls = f'gateway_upstream_withheld_calls{{endpoint="{server.address}",upstream="u"}} '
    try:
        assert not await built.members[0].prober.probe()
        assert calls + "1.0" in metrics.page("")[0].decode()
        slow.go.set()
        await built.drain(5.0)
        assert calls + "0.0" in metrics.page("")[0].decode()
        assert not slow.cancelled.is_set()
    finally:
        await built.close()
        await server.stop()
