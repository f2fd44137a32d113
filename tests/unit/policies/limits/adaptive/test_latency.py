"""Adaptive concurrency: how the limit follows the latency, and the calls above it."""

from __future__ import annotations

import asyncio
import contextlib
import math

import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import InferRequest, InferResponse, ServerReadyRequest, StreamInferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.data import StreamedData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import DeadlineExceeded, Overloaded, QueueTimeout, Unavailable
from gateway.ir.streams import close_stream
from gateway.ir.tensor import Tensor
from gateway.policies.limits.adaptive.latency import (
    AdaptiveConcurrency,
    AdaptiveLimit,
    AdaptiveRules,
)
from gateway.policies.limits.policy import CallLimits
from tests.fakes import FakeArriving, FakeClock, FakeStream, HangingStream, ScriptedService, settle

M = ModelRef("m")
CALL = InferRequest(model=M)
REPLY = InferResponse(model=M, outputs=())
FIXED = AdaptiveRules(least=2, most=2, queue=1)


def measured(clock: FakeClock, **rules: object) -> AdaptiveLimit:
    """Return a limit that has measured a minimum latency of 10 ms."""
    limit = AdaptiveLimit(AdaptiveRules(**rules), clock, lambda: 0.0)  # type: ignore[arg-type]
    sample(limit, clock, 0.01, times=30)
    return limit


def sample(limit: AdaptiveLimit, clock: FakeClock, latency_s: float, times: int = 10) -> None:
    """Record calls that use the whole limit, and let the time of a sample pass."""
    clock.advance(0.1)
    for _ in range(times):
        limit.record(latency_s, limit.limit)


def test_minimum_latency_is_measured_first() -> None:
    """The smallest limit applies meanwhile, and timeouts do not count."""
    clock = FakeClock()
    limit = AdaptiveLimit(AdaptiveRules(), clock, lambda: 0.0)
    sample(limit, clock, 0.01, times=29)
    limit.record(5.0, 3, timed_out=True)
    assert (3, 0.0) == (limit.limit, limit.min_latency_s)
    limit.record(0.01, 3)
    assert (3, 0.01) == (limit.limit, limit.min_latency_s)


@pytest.mark.parametrize(
    ("algorithm", "latency_s", "limits"),
    [
        ("gradient", 0.01, [5, 8, 12]),  # 3 * 1.25 + sqrt(3), rounded down
        ("gradient", 0.1, [3, 3, 3]),
        ("aimd", 0.01, [4, 5, 6]),
        ("aimd", 0.1, [3, 3, 3]),
    ],
)
def test_the_limit_grows_while_the_latency_is_low(
    algorithm: str, latency_s: float, limits: list[int]
) -> None:
    """A high latency does not lower the limit below its minimum."""
    clock = FakeClock()
    limit = measured(clock, algorithm=algorithm)
    found = []
    for _ in limits:
        sample(limit, clock, latency_s)
        found.append(limit.limit)
    assert limits == found


@pytest.mark.parametrize("algorithm", ["gradient", "aimd"])
def test_the_limit_falls_when_the_latency_rises(algorithm: str) -> None:
    """A latency of five times the minimum lowers the limit with each sample."""
    clock = FakeClock()
    limit = measured(clock, algorithm=algorithm)
    for _ in range(60):
        sample(limit, clock, 0.01)
    before = limit.limit
    assert before > 40
    sample(limit, clock, 0.05)
    assert limit.limit < before
    for _ in range(40):
        sample(limit, clock, 0.05)
    assert limit.limit <= 10


def test_the_limit_has_a_maximum_and_does_not_grow_unused() -> None:
    """The limit grows only while it is used, up to its maximum."""
    clock = FakeClock()
    limit = measured(clock, most=20)
    for _ in range(10):
        clock.advance(0.1)
        for _ in range(10):
            limit.record(0.01, 1)
    assert 3 == limit.limit
    for _ in range(20):
        sample(limit, clock, 0.01)
    assert 20 == limit.limit


def test_minimum_latency_is_measured_again() -> None:
    """A slower model gets a new minimum latency, and the limit recovers."""
    clock = FakeClock()
    limit = measured(clock)
    for _ in range(5):
        sample(limit, clock, 0.01)
    before = limit.limit
    clock.advance(60)
    sample(limit, clock, 0.02)
    assert 3 == limit.limit
    sample(limit, clock, 0.02, times=30)
    assert 0.02 == limit.min_latency_s
    assert before / 2 < limit.limit <= before


def test_earlier_calls_do_not_count_for_the_minimum_latency() -> None:
    """Calls that waited at the upstream before the measurement would hide an overload."""
    clock = FakeClock()
    limit = measured(clock)
    clock.advance(60)
    sample(limit, clock, 0.01)
    for used in range(50, 3, -1):
        limit.record(0.5, used)
    sample(limit, clock, 0.01, times=30)
    assert 0.01 == limit.min_latency_s


async def test_calls_above_the_limit_queue_or_are_rejected() -> None:
    """One call waits for a moment, further ones are rejected at once, and the log has one line."""
    service = ScriptedService()
    limited = AdaptiveConcurrency(service, FIXED, name="up")
    with capture_logs() as lines:
        running = [asyncio.ensure_future(limited(CALL)) for _ in range(2)]
        await settle()
        waiting = asyncio.ensure_future(limited(CALL))
        await settle()
        with pytest.raises(Overloaded, match="its latency allows 2") as caught:
            await limited(CALL)
        with pytest.raises(Overloaded):
            await waiting
    assert "adaptive_concurrency" == caught.value.limit
    assert ["upstream overloaded"] == [line["event"] for line in lines]
    for future in service.waiting:
        future.set_result(REPLY)
    assert [REPLY, REPLY] == await asyncio.gather(*running)
    assert 0 == limited._limiter.used


async def test_health_calls_are_not_limited() -> None:
    """A readiness call succeeds while the upstream is busy."""
    limited = AdaptiveConcurrency(ScriptedService(always=True), AdaptiveRules(least=1, most=1))
    assert limited._limiter.try_acquire()
    assert await limited(ServerReadyRequest())


STREAM = StreamInferRequest(model=M, request=CALL)


async def test_a_stream_keeps_its_slot_until_it_is_closed() -> None:
    """A stream that is closed before its first reply has no latency."""
    limited = AdaptiveConcurrency(ScriptedService(FakeStream([REPLY])), FIXED)
    limited._adaptive._is_measuring = False
    items = await limited(STREAM)
    assert 1 == limited._limiter.used
    await close_stream(items)
    assert (0, []) == (limited._limiter.used, limited._adaptive._latencies)


async def test_the_latency_of_a_stream_is_that_of_its_first_reply() -> None:
    """Its duration shows nothing about load."""
    clock = FakeClock()
    limited = AdaptiveConcurrency(ScriptedService(FakeStream([REPLY] * 3)), FIXED, clock=clock)
    items = await limited(STREAM)
    clock.advance(0.25)
    await anext(items)
    assert [0.25] == limited._adaptive._latencies
    clock.advance(10)
    assert [REPLY, REPLY] == [item async for item in items]
    assert ([0.25], 0) == (limited._adaptive._latencies, limited._limiter.used)


async def test_an_upstream_of_streams_only_gets_a_higher_limit() -> None:
    """The limit stayed at its minimum, because streams were not measured."""
    clock = FakeClock()
    streams = ScriptedService(always=lambda _call: FakeStream([REPLY]))
    limited = AdaptiveConcurrency(streams, AdaptiveRules(least=2), clock=clock)
    for _ in range(60):
        opened = [await limited(STREAM) for _ in range(2)]
        clock.advance(0.01)
        for items in opened:
            assert [REPLY] == [item async for item in items]
    assert 3 < limited.limit


@pytest.mark.parametrize(
    ("end", "latencies"),
    [
        (DeadlineExceeded("late"), [0.5]),
        (Unavailable("down"), []),
        (InferResponse(model=M, outputs=(), error=Unavailable("down")), []),
    ],
)
async def test_a_stream_without_a_reply_counts_only_if_it_timed_out(
    end: BaseException | InferResponse, latencies: list[float]
) -> None:
    """Another failure may be quick. The slot is released in any case."""
    clock = FakeClock()
    limited = AdaptiveConcurrency(ScriptedService(FakeStream([end])), FIXED, clock=clock)
    limited._adaptive._is_measuring = False
    limited._adaptive._next_change = clock() + 100
    items = await limited(STREAM)
    clock.advance(0.5)
    with contextlib.suppress(Unavailable, DeadlineExceeded):
        await anext(items)
    await close_stream(items)
    assert (latencies, 0) == (limited._adaptive._latencies, limited._limiter.used)


async def test_a_stream_that_the_timeout_of_its_route_ends_counts() -> None:
    """Its call has no deadline of its own, so the cancellation shows the timeout."""
    limited = AdaptiveConcurrency(ScriptedService(HangingStream()), FIXED)
    limited._adaptive._is_measuring = False
    limited._adaptive._next_change = math.inf
    items = await CallLimits(limited, timeout_s=0.01)(STREAM)
    with pytest.raises(DeadlineExceeded):
        await anext(items)
    assert (1, 0) == (len(limited._adaptive._latencies), limited._limiter.used)


@pytest.mark.parametrize(("remaining_bytes", "samples"), [(0, 1), (1, 0)])
async def test_timeout_of_a_slow_client_is_no_latency(remaining_bytes: int, samples: int) -> None:
    """Only a client that has sent its whole body waits for the upstream."""
    limited = AdaptiveConcurrency(ScriptedService(), FIXED)
    limited._adaptive._is_measuring = False
    limited._adaptive._next_change = math.inf
    body = FakeArriving(bytes(4), 0)
    body.remaining_bytes = remaining_bytes
    data = StreamedData(body, 0, 4)
    call = CALL.changed(inputs=(Tensor("x", Datatype.UINT8, (4,), data),))
    with pytest.raises(DeadlineExceeded):
        await CallLimits(limited, timeout_s=0.01)(call)
    assert (samples, 0) == (len(limited._adaptive._latencies), limited._limiter.used)


@pytest.mark.parametrize(
    ("error", "deadline_s", "samples"),
    [
        (Unavailable("down"), None, 0),
        (DeadlineExceeded("late"), None, 1),
        (asyncio.CancelledError(), None, 0),
        (asyncio.CancelledError(), 0.0, 1),
    ],
)
async def test_failures_other_than_timeouts_are_no_latency_samples(
    error: BaseException, deadline_s: float | None, samples: int
) -> None:
    """A failure may be quick, and a cancelled caller proves nothing; the slot is released."""
    clock = FakeClock()
    limited = AdaptiveConcurrency(ScriptedService(error), FIXED, clock=clock)
    limited._adaptive._is_measuring = False
    limited._adaptive._next_change = clock() + 100
    deadline = None if deadline_s is None else clock() + deadline_s
    with pytest.raises(type(error)):
        await limited(InferRequest(model=M, context=Context(deadline=deadline)))
    assert (samples, 0) == (len(limited._adaptive._latencies), limited._limiter.used)


async def test_queue_timeout_limits_the_wait() -> None:
    """The request's queue timeout ends the wait with Triton's text; it is no sign of overload."""
    service = ScriptedService()
    limited = AdaptiveConcurrency(service, FIXED, name="up")
    running = [asyncio.ensure_future(limited(CALL)) for _ in range(2)]
    await settle()
    with capture_logs() as lines, pytest.raises(QueueTimeout, match=r"expired: .*'up'.* 30 us"):
        await limited(CALL.changed(timeout_us=30))
    assert [] == lines
    for future in service.waiting:
        future.set_result(REPLY)
    assert [REPLY, REPLY] == await asyncio.gather(*running)
    assert 0 == limited._limiter.used
