"""The limit of an overloaded upstream: exempt calls, waiting, rejection and its end."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import InferRequest, InferResponse, ServerReadyRequest, StreamInferRequest
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import Overloaded, QueueTimeout
from gateway.policies.limits.adaptive import overload as overload_limit
from gateway.policies.limits.adaptive.overload import OverloadLimit
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

M = ModelRef("m")
CALL = InferRequest(model=M)
REPLY = InferResponse(model=M, outputs=())


class Overload:
    """An upstream that serves 100 calls in a second, and gets 300.

    Attributes:
        service: The upstream.
        limited: Its limit.
        calls: The tasks of all calls.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.service = ScriptedService()
        self.limited = OverloadLimit(self.service, name="up", clock=self.clock)
        self.calls: list[asyncio.Future[InferResponse]] = []

    async def start(self, call: InferRequest = CALL) -> asyncio.Future[InferResponse]:
        """Begin a call."""
        task = asyncio.ensure_future(self.limited(call))
        self.calls.append(task)
        await settle()
        return task

    async def reply(self) -> None:
        """Reply to the call that has waited longest at the upstream."""
        next(each for each in self.service.waiting if not each.done()).set_result(REPLY)
        await settle()

    async def measure(self) -> None:
        """Let ten calls of 10 ms pass, one after another."""
        for _ in range(10):
            await self.start()
            self.clock.advance(0.01)
            await self.reply()

    async def grow(self, until: int) -> None:
        """Send three calls for each reply, until *until* calls have no reply."""
        await self.measure()
        while sum(not task.done() for task in self.calls) < until:
            for _ in range(3):
                await self.start()
            self.clock.advance(0.01)
            await self.reply()

    async def end(self) -> None:
        """Reply to all remaining calls."""
        while any(not each.done() for each in self.service.waiting):
            await self.reply()
        await asyncio.gather(*self.calls, return_exceptions=True)


async def test_calls_queue_and_are_then_rejected() -> None:
    """Up to 48 calls run and 100 more wait; then all waiting calls are rejected."""
    overload = Overload()
    with capture_logs() as lines:
        await overload.grow(until=47)
        assert 0 == overload.limited.limit
        await overload.grow(until=90)
        assert 48 <= overload.limited.limit < 80
        assert not any(task.exception() for task in overload.calls if task.done())
        while not lines:
            await overload.start()
    assert [("upstream overloaded", "up")] == [(each["event"], each["upstream"]) for each in lines]
    failed = [task for task in overload.calls if task.done() and task.exception()]
    assert len(failed) > 100
    error = failed[0].exception()
    assert isinstance(error, Overloaded)
    assert "adaptive_concurrency" == error.limit
    await overload.end()


async def test_limit_ends_after_the_overload() -> None:
    """After some seconds without rejections, calls are sent at once again."""
    overload = Overload()
    await overload.grow(until=90)
    await overload.end()
    for _ in range(3):
        overload.clock.advance(6.0)
        await overload.start()
        await overload.reply()
    assert 0 == overload.limited.limit
    assert all(task.result() == REPLY for task in overload.calls)


async def test_queue_timeout_limits_the_wait() -> None:
    """The request's queue timeout ends its wait with Triton's text; no other call is rejected."""
    overload = Overload()
    await overload.grow(until=80)
    waiting = await overload.start(CALL.changed(timeout_us=30))
    with pytest.raises(QueueTimeout, match=r"expired: .*'up'.* 30 us"):
        await waiting
    await overload.end()
    assert 1 == sum(task.exception() is not None for task in overload.calls)


async def test_streams_sequences_and_health_calls_are_not_limited() -> None:
    """These calls neither count nor wait."""
    overload = Overload()
    await overload.grow(until=80)
    limited, sent = overload.limited, len(overload.service.waiting)
    sequence = await overload.start(CALL.changed(sequence=CallSequence(1, start=True)))
    assert sent + 1 == len(overload.service.waiting)
    readiness = asyncio.ensure_future(limited(ServerReadyRequest()))
    stream = asyncio.ensure_future(limited(StreamInferRequest(model=M, request=CALL)))
    await settle()
    assert sent + 3 == len(overload.service.waiting)
    overload.service.waiting[-1].set_result(FakeStream([REPLY]))
    assert await stream
    await overload.end()
    await asyncio.gather(sequence, readiness)


async def test_cancelled_calls_release_their_slots() -> None:
    """Both running and waiting calls release their slots."""
    overload = Overload()
    await overload.grow(until=80)
    for task in overload.calls:
        task.cancel()
    await asyncio.gather(*overload.calls, return_exceptions=True)
    groups = overload.limited._groups.values()
    assert [(0, 0)] == [(each.limiter.used, each.limiter.queued) for each in groups]


async def test_number_of_tracked_models_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose model names, so idle groups are removed."""
    names = iter(range(2000))
    monkeypatch.setattr(overload_limit, "queue_group", lambda: ("route", str(next(names))))
    limited = OverloadLimit(ScriptedService(*[REPLY] * 2000))
    for _ in range(2000):
        await limited(CALL)
    assert 512 == len(limited._groups)


async def test_rejection_by_the_upstream_starts_the_limit() -> None:
    """After the upstream rejects one call itself, further calls wait."""
    overload = Overload()
    await overload.measure()
    for _ in range(80):
        await overload.start()
    assert 0 == overload.limited.limit
    overload.service.waiting[-1].set_exception(Overloaded("the queue is full", limit="pending"))
    await settle()
    assert 48 == overload.limited.limit
    sent = len(overload.service.waiting)
    await overload.start()
    assert sent == len(overload.service.waiting)
    await overload.end()
