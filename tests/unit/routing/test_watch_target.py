"""WatchTarget: how each inference of a target ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.ir.calls import InferRequest, InferResponse, ModelReadyRequest, StreamInferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import ErrorCode, Unavailable
from gateway.routing.watch_target import WatchTarget
from tests.fakes import FakeClock, FakeStream, ScriptedService

M = ModelRef("m")
CALL = InferRequest(model=M)
REPLY = InferResponse(model=M, outputs=())
Ends = list[ErrorCode | None]


@pytest.fixture
def ends() -> Ends:
    return []


async def test_replies_and_errors_are_reported(ends: Ends) -> None:
    """An error keeps its code and is raised; calls other than inferences do not count."""
    service = ScriptedService(REPLY, Unavailable("gone"), KeyError("bug"), True)
    watch = WatchTarget(service, ends.append)
    assert REPLY is await watch(CALL)
    with pytest.raises(Unavailable):
        await watch(CALL)
    with pytest.raises(KeyError):
        await watch(CALL)
    assert await watch(ModelReadyRequest(model=M))
    assert [None, ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL] == ends


@pytest.mark.parametrize(
    ("deadline", "timeout_s", "code"),
    [
        (None, None, ErrorCode.CANCELLED),
        (1010.0, None, ErrorCode.CANCELLED),
        (1005.0, None, ErrorCode.DEADLINE_EXCEEDED),
        (None, 5.0, ErrorCode.DEADLINE_EXCEEDED),
        (None, 6.0, ErrorCode.CANCELLED),
    ],
)
async def test_call_cancelled_at_its_deadline_is_a_failure(
    ends: Ends, deadline: float | None, timeout_s: float | None, code: ErrorCode
) -> None:
    """At its deadline a cancelled call is too late; before, it is only cancelled."""
    clock = FakeClock()
    service = ScriptedService()
    watch = WatchTarget(service, ends.append, timeout_s, clock)
    task = asyncio.ensure_future(watch(CALL.changed(context=Context(deadline=deadline))))
    while not service.waiting:  # noqa: ASYNC110  # a double notifies nobody
        await asyncio.sleep(0)
    clock.advance(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [code] == ends


@pytest.mark.parametrize(
    ("items", "code"),
    [([REPLY, REPLY], None), ([REPLY, Unavailable("gone")], ErrorCode.UNAVAILABLE)],
)
async def test_stream_is_reported_at_its_end(
    ends: Ends, items: list[InferResponse], code: ErrorCode | None
) -> None:
    """A stream is reported once, with the error that ended it."""
    watch = WatchTarget(ScriptedService(FakeStream(items)), ends.append)
    stream: AsyncIterator[InferResponse] = await watch(StreamInferRequest(request=CALL))
    assert [] == ends
    try:
        async for _ in stream:
            pass
    except Unavailable:
        assert code is not None
    assert [code] == ends
