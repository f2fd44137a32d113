"""The limit of an overloaded upstream: what is never limited, waiting, refusing and its end."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import InferRequest, InferResponse, ServerReadyRequest, StreamInferRequest
from gateway.ir.context import ModelRef, Sequence
from gateway.ir.errors import Overloaded, QueueTimeout
from gateway.policies.limits import overload_limit
from gateway.policies.limits.overload_limit import OverloadLimit
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

M = ModelRef("m")
CALL = InferRequest(model=M)
REPLY = InferResponse(model=M, outputs=())


class Overload:
    """An upstream that answers 100 calls in a second, and gets 300.

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

    async def ask(self, call: InferRequest = CALL) -> asyncio.Future[InferResponse]:
        """Begin a call."""
        task = asyncio.ensure_future(self.limited(call))
        self.calls.append(task)
        await settle()
        return task

    async def answer(self) -> None:
        """Reply to the call that has waited longest at the upstream."""
        next(each for each in self.service.waiting if not each.done()).set_result(REPLY)
        await settle()

    async def measure(self) -> None:
        """Let ten calls of 10 ms pass, one after another."""
        for _ in range(10):
            await self.ask()
            self.clock.advance(0.01)
            await self.answer()

    async def grow(self, until: int) -> None:
        """Send three calls for each reply, until *until* calls have no reply."""
        await self.measure()
        while sum(not task.done() for task in self.calls) < until:
            for _ in range(3):
                await self.ask()
            self.clock.advance(0.01)
            await self.answer()

    async def end(self) -> None:
        """Reply to all that is left."""
        while any(not each.done() for each in self.service.waiting):
            await self.answer()
        await asyncio.gather(*self.calls, return_exceptions=True)


async def test_calls_wait_and_are_then_refused() -> None:
    """Up to 48 calls are sent at once, up to 100 more wait, and then all that wait are refused."""
    overload = Overload()
    with capture_logs() as lines:
        await overload.grow(until=47)
        assert 0 == overload.limited.limit
        await overload.grow(until=90)
        assert 48 <= overload.limited.limit < 80
        assert not any(task.exception() for task in overload.calls if task.done())
        while not lines:
            await overload.ask()
    assert [("upstream overloaded", "up")] == [(each["event"], each["upstream"]) for each in lines]
    failed = [task for task in overload.calls if task.done() and task.exception()]
    assert len(failed) > 100
    error = failed[0].exception()
    assert isinstance(error, Overloaded)
    assert "adaptive_concurrency" == error.limit
    await overload.end()


async def test_the_limit_ends() -> None:
    """Some seconds without refusals later calls are sent at once again."""
    overload = Overload()
    await overload.grow(until=90)
    await overload.end()
    for _ in range(3):
        overload.clock.advance(6.0)
        await overload.ask()
        await overload.answer()
    assert 0 == overload.limited.limit
    assert all(task.result() == REPLY for task in overload.calls)


async def test_a_queue_timeout_bounds_the_wait() -> None:
    """The request's own timeout ends its wait, in Triton's words; nothing else is refused."""
    overload = Overload()
    await overload.grow(until=80)
    waiting = await overload.ask(CALL.changed(timeout_us=30))
    with pytest.raises(QueueTimeout, match=r"expired: .*'up'.* 30 us"):
        await waiting
    await overload.end()
    assert 1 == sum(task.exception() is not None for task in overload.calls)


async def test_streams_sequences_and_questions_pass() -> None:
    """They neither count nor wait."""
    overload = Overload()
    await overload.grow(until=80)
    limited, sent = overload.limited, len(overload.service.waiting)
    sequence = await overload.ask(CALL.changed(sequence=Sequence(1, start=True)))
    assert sent + 1 == len(overload.service.waiting)
    question = asyncio.ensure_future(limited(ServerReadyRequest()))
    stream = asyncio.ensure_future(limited(StreamInferRequest(model=M, request=CALL)))
    await settle()
    assert sent + 3 == len(overload.service.waiting)
    overload.service.waiting[-1].set_result(FakeStream([REPLY]))
    assert await stream
    await overload.end()
    await asyncio.gather(sequence, question)


async def test_callers_that_leave_give_their_places_back() -> None:
    """Whether they are at the upstream or wait here."""
    overload = Overload()
    await overload.grow(until=80)
    for task in overload.calls:
        task.cancel()
    await asyncio.gather(*overload.calls, return_exceptions=True)
    groups = overload.limited._groups.values()
    assert [(0, 0)] == [(each.limiter.used, each.limiter.queued) for each in groups]


async def test_names_of_models_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose them, so that idle ones are forgotten."""
    names = iter(range(2000))
    monkeypatch.setattr(overload_limit, "queue_group", lambda: ("route", str(next(names))))
    limited = OverloadLimit(ScriptedService(*[REPLY] * 2000))
    for _ in range(2000):
        await limited(CALL)
    assert 512 == len(limited._groups)


async def test_a_full_queue_of_the_upstream_holds_calls() -> None:
    """The upstream refuses calls itself before it is seen that they grow."""
    overload = Overload()
    await overload.measure()
    for _ in range(80):
        await overload.ask()
    assert 0 == overload.limited.limit
    overload.service.waiting[-1].set_exception(Overloaded("the queue is full", limit="pending"))
    await settle()
    assert 48 == overload.limited.limit
    sent = len(overload.service.waiting)
    await overload.ask()
    assert sent == len(overload.service.waiting)
    await overload.end()
