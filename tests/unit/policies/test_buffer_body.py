"""BufferBody, and retries of calls whose body was partly forwarded."""

from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import NotSent
from gateway.ir.tensors.data import StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import as_raw, streamed_tensor
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


async def test_call_is_passed_on_after_its_body_arrived() -> None:
    """The inner service gets tensors with all their bytes."""
    inner = ScriptedService(REPLY)
    assert REPLY is await BufferBody(inner)(waiting(FakeArriving(b"xyz", 1)))
    (call,) = inner.calls
    assert isinstance(call, InferRequest)
    assert b"yz" == bytes(as_raw(call.inputs[0]))


async def test_call_without_streaming_body_is_unchanged() -> None:
    """A call that waits for no bytes is passed on as the same object."""
    inner = ScriptedService(REPLY)
    call = InferRequest(model=MODEL)
    await BufferBody(inner)(call)
    assert call is inner.calls[0]


async def test_unsent_call_is_retried_before_its_bytes_are_forwarded() -> None:
    """An unsent call is retried while none of its body was forwarded."""
    clock = FakeClock()
    inner = ScriptedService(NotSent("not now"), REPLY)
    retry = CallLimits(inner, retries=RetryBudget(sleep=clock.sleep, clock=clock))
    assert REPLY is await retry(waiting(FakeArriving(b"xyz", 1)))
    assert 2 == len(inner.calls)


async def test_call_is_not_retried_after_bytes_are_forwarded() -> None:
    """After a part of its body was forwarded, a call is not retried."""
    clock = FakeClock()
    source = FakeArriving(b"xyz", 1)
    source.is_started = True
    inner = ScriptedService(NotSent("not now"), REPLY)
    with pytest.raises(NotSent):
        await CallLimits(inner, retries=RetryBudget(sleep=clock.sleep, clock=clock))(
            waiting(source)
        )
    assert 1 == len(inner.calls)
