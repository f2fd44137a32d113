"""Timeout: the earliest deadline that anybody asked for."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ServerLiveRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import DeadlineExceeded
from gateway.ir.streams import close_stream
from gateway.policies.limits.policy import CallLimits
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

M = ModelRef("m")
REPLY = InferResponse(model=M, outputs=())


@pytest.mark.parametrize(
    ("route_s", "caller", "request_us", "expected"),
    [
        (None, None, None, None),
        (5.0, None, None, 1005.0),
        (5.0, 1003.0, None, 1003.0),
        (5.0, 1009.0, None, 1005.0),
        (5.0, None, 30, 1005.0),
        (None, 1003.0, 30, 1003.0),
        (None, None, 30, None),
    ],
)
async def test_earliest_deadline_is_passed_on(
    route_s: float | None, caller: float | None, request_us: int | None, expected: float | None
) -> None:
    """The earlier of route and caller holds; a queue timeout of the request is not a deadline."""
    service = ScriptedService(REPLY)
    timeout = CallLimits(service, route_s, clock=FakeClock(1000.0))
    call = InferRequest(model=M, timeout_us=request_us, context=Context(deadline=caller))
    assert REPLY == await timeout(call)
    assert [expected] == [each.context.deadline for each in service.calls]


@pytest.mark.parametrize(
    ("caller", "request_us", "expected"),
    [(None, None, None), (1003.0, None, 1003.0), (1003.0, 30, 1003.0)],
)
async def test_a_stream_is_told_what_its_caller_set(
    caller: float | None, request_us: int | None, expected: float | None
) -> None:
    """The route's time is about its first answer alone, which is no upstream's business."""
    service = ScriptedService(FakeStream([]))
    request = InferRequest(model=M, timeout_us=request_us)
    call = StreamInferRequest(model=M, request=request, context=Context(deadline=caller))
    await CallLimits(service, 1.0, clock=FakeClock(1000.0))(call)
    assert [expected] == [each.context.deadline for each in service.calls]


async def test_origin_survives_a_deadline() -> None:
    """A deadline does not change what the wire form says, so the wire form stays."""
    service = ScriptedService(REPLY)
    call = InferRequest(model=M, context=Context(protocol="p"))
    await CallLimits(service, 1.0)(call)
    assert "p" == service.calls[0].context.protocol


@pytest.mark.parametrize("left_s", [0.0, -1.0])
async def test_past_deadline_asks_nobody(left_s: float) -> None:
    """A call that comes too late is refused at once."""
    service = ScriptedService()
    call = InferRequest(model=M, context=Context(deadline=1000.0 + left_s))
    with pytest.raises(DeadlineExceeded, match="expired before the call arrived"):
        await CallLimits(service, 5.0, clock=FakeClock(1000.0))(call)
    assert [] == service.calls


async def test_late_answer_is_cancelled() -> None:
    """At the deadline the caller gets an error and the work is cancelled."""
    service = ScriptedService()
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        await CallLimits(service, 0.02)(InferRequest(model=M))
    assert 0.02 <= time.monotonic() - start < 1
    assert ("no response from model 'm' before the deadline", 1) == (
        caught.value.message,
        service.cancelled,
    )


async def test_server_is_named_in_the_error() -> None:
    """A question to the server that comes too late says so."""
    with pytest.raises(DeadlineExceeded, match="no response from the gateway before the deadline"):
        await CallLimits(ScriptedService(), 0.005)(ServerLiveRequest())


async def test_timeout_error_of_others_is_not_ours() -> None:
    """A TimeoutError from within is a bug there, and no deadline of ours."""
    with pytest.raises(TimeoutError, match="theirs"):
        await CallLimits(ScriptedService(TimeoutError("theirs")), 5.0)(InferRequest(model=M))
    stream = FakeStream([TimeoutError("theirs")])
    items = await CallLimits(ScriptedService(stream), 5.0)(
        StreamInferRequest(model=M, request=InferRequest(model=M))
    )
    with pytest.raises(TimeoutError, match="theirs"):
        await anext(items)


async def test_caller_that_leaves_cancels() -> None:
    """A cancelled caller cancels the work, and is not told of a deadline."""
    service = ScriptedService()
    task = asyncio.ensure_future(CallLimits(service, 5.0)(InferRequest(model=M)))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 1 == service.cancelled


class Stuck(FakeStream):
    """Gives its answers, and then no further one."""

    async def __anext__(self) -> InferResponse:
        try:
            return await super().__anext__()
        except StopAsyncIteration:
            await asyncio.Event().wait()
            raise


async def stuck(
    answers: int, *, deadline_s: float | None = None, **times: Any
) -> tuple[Stuck, Any]:
    """Return a stream that is stuck after so many answers, beneath and timed."""
    stream = Stuck([REPLY] * answers)
    deadline = None if deadline_s is None else time.monotonic() + deadline_s
    timeout = CallLimits(ScriptedService(stream), times.pop("timeout_s", None), **times)
    request = InferRequest(model=M)
    call = StreamInferRequest(model=M, request=request, context=Context(deadline=deadline))
    return stream, await timeout(call)


async def test_stream_ends_at_its_callers_deadline() -> None:
    """It holds for every answer, and closes the stream beneath."""
    stream, items = await stuck(1, deadline_s=0.02, timeout_s=5.0, stream_idle_s=5.0)
    assert REPLY == await anext(items)
    with pytest.raises(DeadlineExceeded, match="no further response from model 'm'"):
        await anext(items)
    assert 1 == stream.closed
    await close_stream(items)
    assert 2 == stream.closed


async def test_the_routes_time_is_for_the_first_answer() -> None:
    """A stream that does not begin in time is closed."""
    stream, items = await stuck(0, timeout_s=0.02, stream_idle_s=5.0)
    with pytest.raises(DeadlineExceeded, match="no response from model 'm'"):
        await anext(items)
    assert 1 == stream.closed


@pytest.mark.parametrize("timeout_s", [None, 5.0])
async def test_each_further_answer_has_a_time_of_its_own(timeout_s: float | None) -> None:
    """A stream that has begun may take as long as it goes on."""
    stream, items = await stuck(3, timeout_s=timeout_s, stream_idle_s=0.02)
    for _ in range(3):
        assert REPLY == await anext(items)
    with pytest.raises(DeadlineExceeded, match="no further response"):
        await anext(items)
    assert 1 == stream.closed


async def test_a_begun_stream_outlives_the_routes_time() -> None:
    """However long ago the first answer came."""
    clock = FakeClock(1000.0)
    stream = FakeStream([REPLY, REPLY])
    timeout = CallLimits(ScriptedService(stream), 1.0, stream_idle_s=2.0, clock=clock)
    items = await timeout(StreamInferRequest(model=M, request=InferRequest(model=M)))
    assert REPLY == await anext(items)
    clock.advance(1000.0)
    assert REPLY == await anext(items)


async def test_without_times_a_stream_may_take_any() -> None:
    """Nobody gives up a stream that no time was set for."""
    clock = FakeClock(1000.0)
    guard = CallLimits(ScriptedService(FakeStream([REPLY, REPLY])), clock=clock)
    items = await guard(StreamInferRequest(model=M, request=InferRequest(model=M)))
    for _ in range(2):
        clock.advance(1e9)
        assert REPLY == await anext(items)


async def test_other_calls_have_only_route_and_caller() -> None:
    """A question to the server has no queue timeout of its own."""

    def answer(call: Call[Any]) -> bool:
        return call.context.deadline == 1001.0

    timeout = CallLimits(ScriptedService(answer), 1.0, clock=FakeClock(1000.0))
    assert await timeout(ServerLiveRequest()) is True


async def test_stream_in_time_is_whole() -> None:
    """A stream that ends before the deadline is passed on whole."""
    items = await CallLimits(ScriptedService(FakeStream([REPLY, REPLY])), 5.0)(
        StreamInferRequest(model=M, request=InferRequest(model=M))
    )
    assert [REPLY, REPLY] == [item async for item in items]
