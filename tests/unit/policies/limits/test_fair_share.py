"""Fair shares: one caller cannot use up a route."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import Call, InferRequest, InferResponse, ServerReadyRequest
from gateway.ir.calls import StreamInferRequest as StreamRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import Overloaded, QueueTimeout, RateExceeded, Unavailable
from gateway.policies.limits.fair_share import CallRate, FairShare
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

M = ModelRef("m")
REPLY = InferResponse(model=M, outputs=())


def of(tenant: str) -> InferRequest:
    return InferRequest(model=M, context=Context(metadata=(("x-tenant", tenant),)))


def tenant_of(call: Call[object]) -> str | None:
    return next((value for _, value in call.context.metadata), None)


def shared(service: ScriptedService, **limits: float) -> FairShare:
    settings = {"in_flight": 4, "share": 2, "queue": 8, "wait_s": 0.02, **limits}
    return FairShare(service, tenant_of, route="r", **settings)  # type: ignore[arg-type]


async def test_caller_is_limited_to_its_share() -> None:
    """The third call of a caller waits and is rejected; another caller is served meanwhile."""
    service = ScriptedService()
    limited = shared(service)
    with capture_logs() as lines:
        busy = [asyncio.ensure_future(limited(of("busy"))) for _ in range(4)]
        await settle()
        quiet = asyncio.ensure_future(limited(of("quiet")))
        await settle()
        assert ["busy", "busy", "quiet"] == [tenant_of(call) for call in service.calls]
        for task in busy[2:]:
            with pytest.raises(Overloaded, match="at most 2 of 4 are allowed") as caught:
                await task
            assert "share" == caught.value.limit
    assert ["share of a route used up"] == [line["event"] for line in lines]
    assert "busy" not in str(lines)
    for future in service.waiting:
        future.set_result(REPLY)
    assert [REPLY] * 3 == await asyncio.gather(*busy[:2], quiet)
    assert 0 == limited._limiter.used


async def test_callers_take_turns_when_the_route_is_full() -> None:
    """Waiting calls get the released slots; a caller's second one is served after the others."""
    service = ScriptedService()
    limited = shared(service, in_flight=2, share=3, queue=12, wait_s=5.0)
    tasks = [asyncio.ensure_future(limited(of(name))) for name in ("b", "a", "a", "a", "c")]
    await settle()
    for number in range(5):
        service.waiting[number].set_result(REPLY)
        await settle()
    await asyncio.gather(*tasks)
    assert ["b", "a", "a", "c", "a"] == [tenant_of(call) for call in service.calls]


async def test_callers_without_a_key_have_one_share() -> None:
    """Together they have no more than one caller with a key."""
    service = ScriptedService()
    limited = shared(service, wait_s=0.01)
    tasks = [asyncio.ensure_future(limited(InferRequest(model=M))) for _ in range(3)]
    with pytest.raises(Overloaded):
        await tasks[2]
    assert 2 == len(service.calls)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (0, 0) == (limited._limiter.used, limited._limiter.queued)


async def test_failed_call_and_closed_stream_release_their_share() -> None:
    """A failed call releases its slot at once, a stream at its end; health calls need none."""
    service = ScriptedService(Unavailable("down"), FakeStream([REPLY]), True)
    limited = shared(service)
    with pytest.raises(Unavailable):
        await limited(of("a"))
    assert 0 == limited._limiter.used
    items = await limited(StreamRequest(model=M, request=of("a"), context=of("a").context))
    assert 1 == limited._limiter.used
    await close_stream(items)
    assert 0 == limited._limiter.used
    assert await limited(ServerReadyRequest())


async def test_queue_timeout_limits_the_wait() -> None:
    """The request's queue timeout ends the wait before that of the route, with Triton's text."""
    service = ScriptedService()
    limited = shared(service, share=1, wait_s=5.0)
    running = asyncio.ensure_future(limited(of("busy")))
    await settle()
    with pytest.raises(QueueTimeout, match=r"Request timeout expired: .* share .* 30 us"):
        await limited(of("busy").changed(timeout_us=30))
    service.waiting[0].set_result(REPLY)
    assert REPLY == await running
    assert 0 == limited._limiter.used


async def test_caller_is_limited_to_its_rate() -> None:
    """Calls above burst and rate are rejected; another caller has its own rate."""
    clock = FakeClock()
    limited = shared(ScriptedService(*[REPLY] * 5), rate=CallRate(10, 2, clock=clock))  # type: ignore[arg-type]
    for _ in range(2):
        await limited(of("busy"))
    with pytest.raises(Overloaded, match=r"allows 10 inferences .* in a second \(share.rate\)"):
        await limited(of("busy"))
    await limited(of("quiet"))
    clock.advance(0.1)
    await limited(of("busy"))
    with pytest.raises(RateExceeded) as caught:
        await limited(of("busy"))
    assert 0.1 == pytest.approx(caught.value.retry_after_s)
    clock.advance(0.1)
    await limited(of("busy"))


def test_names_beyond_the_limit_share_one_rate() -> None:
    """A thousand names have rates of their own, and idle names are forgotten."""
    clock = FakeClock()
    rate = CallRate(1, 1, clock=clock)
    assert all(rate.admit(f"name {number}") for number in range(1001))
    assert not rate.admit("another")
    assert not rate.admit("name 0")
    clock.advance(2.0)
    assert all(rate.admit(name) for name in ("another", "one more", "name 0"))
