"""Sequences end at the services where they began."""

from __future__ import annotations

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import CallSequence, ModelRef
from gateway.routing.finish_sequences import FinishSequences
from tests.fakes import ScriptedService

REPLY = InferResponse(model=ModelRef("m"), outputs=())


def request(sequence: CallSequence | None, model: str = "m") -> InferRequest:
    return InferRequest(model=ModelRef(model), sequence=sequence)


async def test_earlier_sequences_finish_at_the_previous_service() -> None:
    """New sequences and calls outside of sequences use the new service."""
    inner, previous = ScriptedService(*[REPLY] * 4), ScriptedService(*[REPLY] * 2)
    service = FinishSequences(inner, previous)
    plain, start = request(None), request(CallSequence(2, start=True))
    continued, end = request(CallSequence(2)), request(CallSequence(2, end=True))
    earlier, other = request(CallSequence(1)), request(CallSequence(2), "other")
    for call in (plain, start, earlier, continued, other, end):
        await service(call)
    assert inner.calls == [plain, start, continued, end]
    assert previous.calls == [earlier, other]


async def test_all_calls_use_the_new_service_after_the_end() -> None:
    """The previous service is released."""
    inner, previous = ScriptedService(REPLY), ScriptedService()
    service = FinishSequences(inner, previous)
    service.end()
    earlier = request(CallSequence(1))
    await service(earlier)
    assert inner.calls == [earlier]
