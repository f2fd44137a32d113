"""KnownModels: which inferences reach a server that remembers names."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    InferRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import ModelNotFound, Unavailable, UpstreamError
from gateway.policies.known_models import KnownModels
from tests.fakes import FakeClock, ScriptedService

M = ModelRef("m")
CALL = InferRequest(model=M)
UNKNOWN = ModelNotFound("no", origin=Origin("oip", None))


def layer(*script: Any, always: Any = None) -> tuple[KnownModels, ScriptedService, FakeClock]:
    service, clock = ScriptedService(*script, always=always), FakeClock()
    return KnownModels(service, clock=clock), service, clock


def types(service: ScriptedService) -> list[type]:
    return [type(call) for call in service.calls]


@pytest.mark.parametrize("call", [CALL, StreamInferRequest(model=M, request=CALL)])
async def test_the_first_inference_asks_for_the_model(call: Any) -> None:
    """Those that follow do not."""
    known_models, service, _ = layer(always="reply")
    assert ["reply", "reply"] == [await known_models(call) for _ in range(2)]
    assert [ModelMetadataRequest, type(call), type(call)] == types(service)


async def test_an_unknown_model_gets_no_inference() -> None:
    """The server is asked once in five seconds, and for each version."""
    known_models, service, clock = layer(always=UNKNOWN)
    for _ in range(3):
        with pytest.raises(ModelNotFound, match="model 'm' is unknown to its server"):
            await known_models(CALL)
    assert 1 == len(service.calls)
    with pytest.raises(ModelNotFound):
        await known_models(InferRequest(model=ModelRef("m", "7")))
    clock.advance(5.0)
    with pytest.raises(ModelNotFound):
        await known_models(CALL)
    assert [ModelMetadataRequest] * 3 == types(service)


async def test_a_model_that_was_loaded_is_asked_for_again() -> None:
    """A load or unload may change any model."""
    known_models, service, _ = layer(UNKNOWN, None, "metadata", "reply")
    with pytest.raises(ModelNotFound):
        await known_models(CALL)
    await known_models(ModelLoadRequest(model=ModelRef("other")))
    assert "reply" == await known_models(CALL)
    assert 4 == len(service.calls)


async def test_unknown_names_are_bounded() -> None:
    """A client can invent more of them than anybody wants to remember."""
    known_models, service, _ = layer(always=UNKNOWN)
    for number in range(1100):
        with pytest.raises(ModelNotFound):
            await known_models(InferRequest(model=ModelRef(f"m{number}")))
    assert 1024 == len(known_models._unknown)
    with pytest.raises(ModelNotFound):
        await known_models(InferRequest(model=ModelRef("m0")))
    assert 1101 == len(service.calls)


async def test_a_model_without_metadata_gets_inferences() -> None:
    """Its runtime fails over the question, but the server knows the model."""
    known_models, service, _ = layer(
        UpstreamError("bug", origin=Origin("oip", None)), "reply", "reply"
    )
    assert ["reply", "reply"] == [await known_models(CALL) for _ in range(2)]
    assert [ModelMetadataRequest, InferRequest, InferRequest] == types(service)


async def test_a_server_that_is_away_decides_nothing() -> None:
    """The next inference asks again."""
    known_models, service, _ = layer(Unavailable("gone"), "metadata", "reply")
    with pytest.raises(Unavailable):
        await known_models(CALL)
    assert "reply" == await known_models(CALL)
    assert 3 == len(service.calls)


@pytest.mark.parametrize(("deadline", "expected"), [(None, 1005.0), (1001.0, 1001.0)])
async def test_the_question_ends_in_time(deadline: float | None, expected: float) -> None:
    """It has a timeout, and the deadline of the caller."""
    known_models, service, _ = layer(always="reply")
    await known_models(CALL.with_context(deadline=deadline))
    assert expected == service.calls[0].context.deadline


async def test_other_calls_pass() -> None:
    """Questions leave nothing behind."""
    known_models, service, _ = layer(always=True)
    calls: list[Any] = [ModelReadyRequest(model=M), ModelMetadataRequest(model=M)]
    for call in [*calls, InferRequest(model=None)]:
        await known_models(call)
    assert 3 == len(service.calls)
