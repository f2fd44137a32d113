"""Retries: once more, and only for what was never sent."""

from __future__ import annotations

import asyncio

import pytest

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import Context, ModelRef, Sequence
from gateway.ir.errors import GatewayError, NotSent, Overloaded, Unavailable
from gateway.ir.streams import close_stream
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import RetryBudget, RetryUnsentStream
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

M = ModelRef("m")
CALL = InferRequest(model=M)
STREAM = StreamInferRequest(model=M, request=CALL)
REPLY = InferResponse(model=M, outputs=())
UNSENT = NotSent("refused")


def retrying(service: ScriptedService, draw: float = 0.0) -> tuple[CallLimits, FakeClock]:
    clock = FakeClock()
    retries = RetryBudget(draw=lambda: draw, sleep=clock.sleep, clock=clock)
    return CallLimits(service, retries=retries, clock=clock), clock


@pytest.mark.parametrize(("draw", "pause_s"), [(0.0, 0.025), (0.5, 0.1375), (1.0, 0.25)])
async def test_unsent_call_is_asked_again_after_a_pause(draw: float, pause_s: float) -> None:
    """The second attempt comes 25 to 250 ms later."""
    service = ScriptedService(UNSENT, REPLY)
    retry, clock = retrying(service, draw)
    assert REPLY == await retry(CALL)
    assert ([CALL, CALL], [pause_s]) == (service.calls, clock.sleeps)


async def test_there_is_no_third_attempt() -> None:
    """When the second attempt fails its error stands."""
    last = NotSent("refused again")
    service = ScriptedService(UNSENT, last, REPLY)
    with pytest.raises(NotSent) as caught:
        await retrying(service)[0](CALL)
    assert (last, 2) == (caught.value, len(service.calls))


@pytest.mark.parametrize("error", [Unavailable("broke off"), Overloaded("full")])
async def test_what_may_have_begun_is_not_repeated(error: GatewayError) -> None:
    """Retryable in name is not enough: only what was never sent is safe."""
    service = ScriptedService(error, REPLY)
    with pytest.raises(type(error)):
        await retrying(service)[0](CALL)
    assert 1 == len(service.calls)


async def test_sequences_are_not_repeated() -> None:
    """Inside a sequence nothing is sent twice, alone or as a stream."""
    call = CALL.changed(sequence=Sequence(1))
    service = ScriptedService(UNSENT, FakeStream([UNSENT]))
    retry, _ = retrying(service)
    with pytest.raises(NotSent):
        await retry(call)
    items = await retry(StreamInferRequest(model=M, request=call))
    with pytest.raises(NotSent):
        await anext(items)
    assert 2 == len(service.calls)


@pytest.mark.parametrize(("left_s", "attempts"), [(0.025, 1), (0.026, 2)])
async def test_pause_must_fit_the_deadline(left_s: float, attempts: int) -> None:
    """A second attempt that could only come too late is not made."""
    service = ScriptedService(UNSENT, UNSENT)
    retry, clock = retrying(service)
    call = InferRequest(model=M, context=Context(deadline=clock() + left_s))
    with pytest.raises(NotSent):
        await retry(call)
    assert attempts == len(service.calls)


@pytest.mark.parametrize(("calls", "retries"), [(5, 3), (40, 8)])
async def test_retries_at_a_time_are_few(calls: int, retries: int) -> None:
    """A fifth of the calls in flight, or three, may be second attempts at a time."""
    service = ScriptedService()
    asleep = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        await asleep.wait()

    retry = CallLimits(service, retries=RetryBudget(sleep=sleep))
    tasks = [asyncio.ensure_future(retry(CALL)) for _ in range(calls)]
    await settle()
    for future in service.waiting:
        future.set_exception(UNSENT)
    await settle()
    asleep.set()
    await settle()
    for future in service.waiting[calls:]:
        future.set_result(REPLY)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert (retries, calls - retries) == (found.count(REPLY), found.count(UNSENT))
    assert (0, 0) == (retry._retries.active, retry._retries._retrying)


async def test_stream_that_fails_unsent_is_opened_again() -> None:
    """Before its first answer a stream may begin anew; the caller sees one stream."""
    service = ScriptedService(FakeStream([UNSENT]), FakeStream([REPLY, REPLY]))
    retry, clock = retrying(service)
    items = await retry(STREAM)
    assert [REPLY, REPLY] == [item async for item in items]
    assert ([0.025], 0) == (clock.sleeps, retry._retries.active)


async def test_stream_that_cannot_be_opened_is_opened_again_once() -> None:
    """An opening that fails is the first attempt; there is no third one."""
    service = ScriptedService(UNSENT, FakeStream([UNSENT]), FakeStream([REPLY]))
    items = await retrying(service)[0](STREAM)
    with pytest.raises(NotSent):
        await anext(items)
    assert 2 == len(service.calls)


async def test_stream_is_not_begun_anew_after_an_answer() -> None:
    """After the first answer a failure stands."""
    service = ScriptedService(FakeStream([REPLY, UNSENT]), FakeStream([REPLY]))
    items = await retrying(service)[0](STREAM)
    assert REPLY == await anext(items)
    with pytest.raises(NotSent):
        await anext(items)
    assert 1 == len(service.calls)


async def test_closing_reaches_the_stream_beneath() -> None:
    """A stream closed by the caller is closed below, and no longer counts as in flight."""
    stream = FakeStream([REPLY])
    retry, _ = retrying(ScriptedService(stream))
    items = await retry(STREAM)
    assert (REPLY, 1) == (await anext(items), retry._retries.active)
    await close_stream(items)
    assert (1, 0) == (stream.closed, retry._retries.active)


async def test_empty_stream_is_complete() -> None:
    """A stream without answers is a success."""
    items = await retrying(ScriptedService(FakeStream([])))[0](STREAM)
    assert [] == [item async for item in items]


async def test_fresh_stream_can_be_iterated_by_itself() -> None:
    """The stream that may begin anew is an iterator like any other."""

    async def never(error: NotSent) -> None:
        raise AssertionError from error

    assert [REPLY] == [item async for item in RetryUnsentStream(FakeStream([REPLY]), never)]
