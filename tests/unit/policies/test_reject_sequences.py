"""Requests of a sequence are refused where the next one may reach another process."""

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
from gateway.ir.context import ModelRef, Sequence
from gateway.ir.errors import Unsupported
from gateway.policies.reject_sequences import RejectSequences
from tests.fakes import ScriptedService

M = ModelRef("m")
IN_SEQUENCE = InferRequest(model=M, sequence=Sequence(7, start=True))


@pytest.mark.parametrize("call", [IN_SEQUENCE, StreamInferRequest(model=M, request=IN_SEQUENCE)])
async def test_sequences_are_refused(call: Call[Any]) -> None:
    """The error names the model, the workers and the way out; the model is not asked."""
    inner = ScriptedService(always=True)
    with pytest.raises(Unsupported, match=r"model 'm' runs in each of 2 workers .*'workers: 1'"):
        await RejectSequences(inner, 2)(call)
    assert [] == inner.calls


async def test_everything_else_goes_on() -> None:
    """Requests on their own and questions about the model are answered."""
    answer = InferResponse(model=M, outputs=())
    inner = ScriptedService(answer, True)
    service = RejectSequences(inner, 2)
    assert answer == await service(InferRequest(model=M))
    assert await service(ModelReadyRequest(model=M))
