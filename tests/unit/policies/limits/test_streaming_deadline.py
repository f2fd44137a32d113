"""Timeouts of calls whose bytes are still arriving."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import DeadlineExceeded
from gateway.ir.tensors.data import StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import streamed_tensor
from gateway.policies.limits.policy import CallLimits
from tests.fakes import FakeArriving, FakeClock, ScriptedService
from tests.simulation.virtual_time import elapse, in_virtual_time, now

M = ModelRef("m")
REPLY = InferResponse(model=M, outputs=())


def waiting(source: FakeArriving, deadline: float | None = None) -> InferRequest:
    data = StreamedData(source, 0, source.end)
    tensor = streamed_tensor("a", Datatype.UINT8, (source.end,), data)
    return InferRequest(model=M, inputs=(tensor,), context=Context(deadline=deadline))


@in_virtual_time
async def test_progress_restarts_the_route_timeout() -> None:
    """A call that takes longer than the timeout succeeds while its bytes still move."""
    source = FakeArriving(b"xyz", 0)

    async def slow(_call: Call[Any]) -> InferResponse:
        for _ in range(4):
            await elapse(0.3)
            source.last_progress = now()
        return REPLY

    assert REPLY is await CallLimits(ScriptedService(slow), 1.0, clock=now)(waiting(source))


@in_virtual_time
async def test_call_without_progress_times_out() -> None:
    """The route's timeout starts at the last progress of the body."""
    source = FakeArriving(b"xyz", 0)
    service = ScriptedService()
    task = asyncio.ensure_future(CallLimits(service, 1.0, clock=now)(waiting(source)))
    await elapse(0.3)
    source.last_progress = now()
    with pytest.raises(DeadlineExceeded):
        await task
    assert 1.3 == pytest.approx(now(), abs=0.01)
    assert 1 == service.cancelled


async def test_callers_deadline_applies_despite_progress() -> None:
    """Progress of the body does not extend the deadline of the caller."""
    source = FakeArriving(b"xyz", 0)
    source.last_progress = time.monotonic() + 60
    call = waiting(source, time.monotonic() + 0.05)
    with pytest.raises(DeadlineExceeded):
        await CallLimits(ScriptedService(), 10.0)(call)


@pytest.mark.parametrize("deadline", [None, 1003.0])
async def test_only_the_callers_deadline_is_forwarded(deadline: float | None) -> None:
    """The route's timeout is not forwarded, because progress may extend it."""
    service = ScriptedService(REPLY)
    await CallLimits(service, 5.0, clock=FakeClock(1000.0))(
        waiting(FakeArriving(b"x", 0), deadline)
    )
    assert [deadline] == [call.context.deadline for call in service.calls]
