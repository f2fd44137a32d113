"""The layer before what cannot do without bytes, and what is not repeated once they have gone."""

from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.data import StreamedData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import NotSent
from gateway.ir.tensor import as_raw, streamed_tensor
from gateway.policies.buffer_body import BufferBody
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import RetryBudget
from tests.fakes import FakeArriving, FakeClock, ScriptedService

MODEL = ModelRef("m")
REPLY = InferResponse(model=MODEL, outputs=())


def waiting(source: FakeArriving) -> InferRequest:
    data = StreamedData(source, source.start, source.remaining_bytes)
    return InferRequest(
        model=MODEL, inputs=(streamed_tensor("a", Datatype.UINT8, (source.remaining_bytes,), data),)
    )


async def test_what_is_within_sees_bytes() -> None:
    """A call is handed on when all of it has come."""
    inner = ScriptedService(REPLY)
    assert REPLY is await BufferBody(inner)(waiting(FakeArriving(b"xyz", 1)))
    (call,) = inner.calls
    assert isinstance(call, InferRequest)
    assert b"yz" == bytes(as_raw(call.inputs[0]))


async def test_a_whole_call_goes_on_as_it_is() -> None:
    """A call that waits for nothing is not touched."""
    inner = ScriptedService(REPLY)
    call = InferRequest(model=MODEL)
    await BufferBody(inner)(call)
    assert call is inner.calls[0]


async def test_what_was_not_passed_on_is_repeated() -> None:
    """A call that was never sent is sent again while none of its bytes have gone."""
    clock = FakeClock()
    inner = ScriptedService(NotSent("not now"), REPLY)
    retry = CallLimits(inner, retries=RetryBudget(sleep=clock.sleep, clock=clock))
    assert REPLY is await retry(waiting(FakeArriving(b"xyz", 1)))
    assert 2 == len(inner.calls)


async def test_nothing_is_repeated_that_was_passed_on() -> None:
    """Once a part of its bytes has gone a call is not sent again."""
    clock = FakeClock()
    source = FakeArriving(b"xyz", 1)
    source.is_started = True
    inner = ScriptedService(NotSent("not now"), REPLY)
    with pytest.raises(NotSent):
        await CallLimits(inner, retries=RetryBudget(sleep=clock.sleep, clock=clock))(
            waiting(source)
        )
    assert 1 == len(inner.calls)
