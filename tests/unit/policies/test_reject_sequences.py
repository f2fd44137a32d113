"""RejectSequences: rejects sequences whose requests may reach different processes."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import Unsupported
from gateway.policies.reject_sequences import RejectSequences
from tests.fakes import ScriptedService

M = ModelRef("m")
IN_SEQUENCE = InferRequest(model=M, sequence=CallSequence(7, start=True))


@pytest.mark.parametrize("call", [IN_SEQUENCE, StreamInferRequest(model=M, request=IN_SEQUENCE)])
async def test_sequences_are_rejected(call: Call[Any]) -> None:
    """The error names the model, the workers and the setting; the model gets no call."""
    inner = ScriptedService(always=True)
    with pytest.raises(Unsupported, match=r"model 'm' runs in each of 2 workers .*'workers: 1'"):
        await RejectSequences(inner, 2)(call)
    assert [] == inner.calls


async def test_other_calls_pass_through() -> None:
    """Stateless requests and readiness calls reach the model."""
    reply = InferResponse(model=M, outputs=())
    inner = ScriptedService(reply, True)
    service = RejectSequences(inner, 2)
    assert reply == await service(InferRequest(model=M))
    assert await service(ModelReadyRequest(model=M))
