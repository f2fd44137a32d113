"""KnownModels: which inferences reach a server that remembers names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.ir.calls import (
    InferRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import ModelNotFound, Unavailable, UpstreamError
from gateway.policies.known_models import KnownModels
from tests.fakes import FakeClock, ScriptedService, settle

M = ModelRef("m")
CALL = InferRequest(model=M)
UNKNOWN = ModelNotFound("no", origin=Origin("oip", None))


def layer(*script: Any, always: Any = None) -> tuple[KnownModels, ScriptedService, FakeClock]:
    service, clock = ScriptedService(*script, always=always), FakeClock()
    return KnownModels(service, clock=clock), service, clock


def types(service: ScriptedService) -> list[type]:
    return [type(call) for call in service.calls]


@pytest.mark.parametrize("call", [CALL, StreamInferRequest(model=M, request=CALL)])
async def test_first_inference_looks_up_the_model(call: Any) -> None:
    """Later inferences are sent without a lookup."""
    known_models, service, _ = layer(always="reply")
    assert ["reply", "reply"] == [await known_models(call) for _ in range(2)]
    assert [ModelMetadataRequest, type(call), type(call)] == types(service)


async def test_unknown_model_gets_no_inference() -> None:
    """An unknown model is looked up once in five seconds, for each version."""
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


@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
async def test_load_or_unload_clears_unknown_models(kind: Any) -> None:
    """The next inference after a load or an unload looks up an unknown model again."""
    known_models, service, _ = layer(UNKNOWN, lambda _call: None, "metadata", "reply")
    with pytest.raises(ModelNotFound):
        await known_models(CALL)
    await known_models(kind(model=ModelRef("other")))
    assert "reply" == await known_models(CALL)
    assert [ModelMetadataRequest, kind, ModelMetadataRequest, InferRequest] == types(service)


@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
async def test_load_or_unload_clears_known_models(kind: Any) -> None:
    """The next inference after a load or an unload looks up a known model again."""
    known_models, service, _ = layer("metadata", "reply", lambda _call: None, UNKNOWN)
    assert "reply" == await known_models(CALL)
    await known_models(kind(model=M))
    with pytest.raises(ModelNotFound):
        await known_models(CALL)
    assert [ModelMetadataRequest, InferRequest, kind, ModelMetadataRequest] == types(service)


async def test_number_of_unknown_names_is_limited() -> None:
    """Clients choose names, so the oldest unknown ones are evicted."""
    known_models, service, _ = layer(always=UNKNOWN)
    for number in range(1100):
        with pytest.raises(ModelNotFound):
            await known_models(InferRequest(model=ModelRef(f"m{number}")))
    with pytest.raises(ModelNotFound):
        await known_models(InferRequest(model=ModelRef("m0")))
    assert 1101 == len(service.calls)


async def test_model_without_metadata_gets_inferences() -> None:
    """If the runtime of a model fails on the lookup, inferences are still sent."""
    known_models, service, _ = layer(
        UpstreamError("bug", origin=Origin("oip", None)), "reply", "reply"
    )
    assert ["reply", "reply"] == [await known_models(CALL) for _ in range(2)]
    assert [ModelMetadataRequest, InferRequest, InferRequest] == types(service)


async def test_unavailable_server_is_not_cached() -> None:
    """The next inference looks up the model again."""
    known_models, service, _ = layer(Unavailable("gone"), "metadata", "reply")
    with pytest.raises(Unavailable):
        await known_models(CALL)
    assert "reply" == await known_models(CALL)
    assert 3 == len(service.calls)


@pytest.mark.parametrize("deadline", [None, 1001.0])
async def test_lookup_has_a_deadline(deadline: float | None) -> None:
    """The lookup has a timeout of its own, because callers with other deadlines share it."""
    known_models, service, _ = layer(always="reply")
    await known_models(CALL.with_context(deadline=deadline))
    assert 1005.0 == service.calls[0].context.deadline


async def test_concurrent_inferences_share_one_lookup() -> None:
    """The first caller may leave; the others get the result."""
    known_models, service, _ = layer()
    callers = [asyncio.ensure_future(known_models(CALL)) for _ in range(3)]
    await settle()
    callers[0].cancel()
    service.waiting[0].set_result("metadata")
    await settle()
    assert [ModelMetadataRequest, InferRequest, InferRequest] == types(service)
    for future in service.waiting[1:]:
        future.set_result("reply")
    assert ["reply", "reply"] == await asyncio.gather(*callers[1:])


async def test_other_calls_pass_through() -> None:
    """Other calls, and inferences without a model, cause no lookup."""
    known_models, service, _ = layer(always=True)
    calls: list[Any] = [ModelReadyRequest(model=M), ModelMetadataRequest(model=M)]
    for call in [*calls, InferRequest(model=None)]:
        await known_models(call)
    assert 3 == len(service.calls)
