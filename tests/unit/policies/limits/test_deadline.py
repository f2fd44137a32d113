"""Timeouts: the earliest of the deadlines applies."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ServerLiveRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import DeadlineExceeded
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
    """The earlier of route and caller applies; the queue timeout of a request is no deadline."""
    service = ScriptedService(REPLY)
    timeout = CallLimits(service, route_s, clock=FakeClock(1000.0))
    call = InferRequest(model=M, timeout_us=request_us, context=Context(deadline=caller))
    assert REPLY == await timeout(call)
    assert [expected] == [each.context.deadline for each in service.calls]


@pytest.mark.parametrize(
    ("caller", "request_us", "expected"),
    [(None, None, None), (1003.0, None, 1003.0), (1003.0, 30, 1003.0)],
)
async def test_stream_forwards_only_its_callers_deadline(
    caller: float | None, request_us: int | None, expected: float | None
) -> None:
    """The route's timeout limits the first reply only, so it is not forwarded."""
    service = ScriptedService(FakeStream([]))
    request = InferRequest(model=M, timeout_us=request_us)
    call = StreamInferRequest(model=M, request=request, context=Context(deadline=caller))
    await CallLimits(service, 1.0, clock=FakeClock(1000.0))(call)
    assert [expected] == [each.context.deadline for each in service.calls]


async def test_rest_of_the_context_survives_a_deadline() -> None:
    """Setting a deadline keeps the protocol, the origin and all else in the context."""
    service = ScriptedService(REPLY)
    context = Context(protocol="p", request_id="r", origin=Origin("p", b"wire"))
    await CallLimits(service, 1.0, clock=FakeClock(1000.0))(InferRequest(model=M, context=context))
    (call,) = service.calls
    expected = Context(protocol="p", request_id="r", deadline=1001.0, origin=context.origin)
    assert (expected, context.origin) == (call.context, call.context.origin)


@pytest.mark.parametrize("left_s", [0.0, -1.0])
async def test_expired_deadline_reaches_no_upstream(left_s: float) -> None:
    """A call that arrives after its deadline is rejected at once."""
    service = ScriptedService()
    call = InferRequest(model=M, context=Context(deadline=1000.0 + left_s))
    with pytest.raises(DeadlineExceeded, match="expired before the call arrived"):
        await CallLimits(service, 5.0, clock=FakeClock(1000.0))(call)
    assert [] == service.calls


async def test_call_is_cancelled_at_its_deadline() -> None:
    """At the deadline the caller gets an error and the work is cancelled."""
    service = ScriptedService()
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        await CallLimits(service, 0.02)(InferRequest(model=M))
    assert time.monotonic() - start >= 0.02
    assert ("no response from model 'm' within 0.02 s (timeout)", 1) == (
        caught.value.message,
        service.cancelled,
    )


async def test_error_of_a_server_call_names_the_gateway() -> None:
    """A call without a model has no model to name."""
    with pytest.raises(DeadlineExceeded, match=r"no response from the gateway within 0\.005 s"):
        await CallLimits(ScriptedService(), 0.005)(ServerLiveRequest())


async def test_timeout_error_of_the_service_is_unchanged() -> None:
    """A TimeoutError of the service is a bug there, and no DeadlineExceeded."""
    with pytest.raises(TimeoutError, match="theirs"):
        await CallLimits(ScriptedService(TimeoutError("theirs")), 5.0)(InferRequest(model=M))
    stream = FakeStream([TimeoutError("theirs")])
    items = await CallLimits(ScriptedService(stream), 5.0)(
        StreamInferRequest(model=M, request=InferRequest(model=M))
    )
    with pytest.raises(TimeoutError, match="theirs"):
        await anext(items)


async def test_cancelled_caller_cancels_the_call() -> None:
    """The work is cancelled, and the caller gets no DeadlineExceeded."""
    service = ScriptedService()
    task = asyncio.ensure_future(CallLimits(service, 5.0)(InferRequest(model=M)))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 1 == service.cancelled


class Stuck(FakeStream):
    """Yields its replies, and then blocks."""

    async def __anext__(self) -> InferResponse:
        try:
            return await super().__anext__()
        except StopAsyncIteration:
            await asyncio.Event().wait()
            raise


async def stuck(
    replies: int, *, deadline_s: float | None = None, **times: Any
) -> tuple[Stuck, Any]:
    """Return a stream that blocks after *replies* replies, and the same with timeouts."""
    stream = Stuck([REPLY] * replies)
    deadline = None if deadline_s is None else time.monotonic() + deadline_s
    timeout = CallLimits(ScriptedService(stream), times.pop("timeout_s", None), **times)
    request = InferRequest(model=M)
    call = StreamInferRequest(model=M, request=request, context=Context(deadline=deadline))
    return stream, await timeout(call)


async def test_stream_ends_at_its_callers_deadline() -> None:
    """The caller's deadline applies to every reply, and the stream below is closed."""
    stream, items = await stuck(1, deadline_s=0.02, timeout_s=5.0, stream_idle_s=5.0)
    assert REPLY == await anext(items)
    with pytest.raises(DeadlineExceeded, match="no further response from model 'm'"):
        await anext(items)
    assert 1 == stream.closed
    await close_stream(items)
    assert 2 == stream.closed


async def test_route_timeout_limits_the_first_reply() -> None:
    """A stream without a reply in time is closed."""
    stream, items = await stuck(0, timeout_s=0.02, stream_idle_s=5.0)
    with pytest.raises(DeadlineExceeded, match="no response from model 'm'"):
        await anext(items)
    assert 1 == stream.closed


@pytest.mark.parametrize("timeout_s", [None, 5.0])
async def test_idle_timeout_limits_each_further_reply(timeout_s: float | None) -> None:
    """A started stream may run for as long as its replies arrive in time."""
    stream, items = await stuck(3, timeout_s=timeout_s, stream_idle_s=0.02)
    for _ in range(3):
        assert REPLY == await anext(items)
    with pytest.raises(DeadlineExceeded, match="no further response"):
        await anext(items)
    assert 1 == stream.closed


async def test_started_stream_outlives_the_route_timeout() -> None:
    """After the first reply the route's timeout no longer applies."""
    clock = FakeClock(1000.0)
    stream = FakeStream([REPLY, REPLY])
    timeout = CallLimits(ScriptedService(stream), 1.0, stream_idle_s=2.0, clock=clock)
    items = await timeout(StreamInferRequest(model=M, request=InferRequest(model=M)))
    assert REPLY == await anext(items)
    clock.advance(1000.0)
    assert REPLY == await anext(items)


async def test_stream_without_timeouts_is_not_limited() -> None:
    """Without timeouts, any time may pass between two replies."""
    clock = FakeClock(1000.0)
    guard = CallLimits(ScriptedService(FakeStream([REPLY, REPLY])), clock=clock)
    items = await guard(StreamInferRequest(model=M, request=InferRequest(model=M)))
    for _ in range(2):
        clock.advance(1e9)
        assert REPLY == await anext(items)


async def test_other_calls_have_the_route_timeout() -> None:
    """A server call gets the deadline of the route."""

    def respond(call: Call[Any]) -> bool:
        return call.context.deadline == 1001.0

    timeout = CallLimits(ScriptedService(respond), 1.0, clock=FakeClock(1000.0))
    assert await timeout(ServerLiveRequest()) is True


async def test_stream_within_its_deadline_is_complete() -> None:
    """A stream that ends before its deadline is passed on completely."""
    items = await CallLimits(ScriptedService(FakeStream([REPLY, REPLY])), 5.0)(
        StreamInferRequest(model=M, request=InferRequest(model=M))
    )
    assert [REPLY, REPLY] == [item async for item in items]
