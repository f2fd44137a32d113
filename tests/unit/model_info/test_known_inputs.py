from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from gateway.ir.calls import Call, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import InvalidRequest, Unavailable
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.expected_inputs import UncheckedInputs
from gateway.model_info.known_inputs import KnownInputs
from tests.fakes import ScriptedService, settle

M = ModelRef("m")
CONTEXT = Context("fake", (("x-route", "canary"),), "id-1")


def metadata(*names: str, platform: str = "onnxruntime_onnx") -> ModelMetadata:
    inputs = tuple([TensorMetadata(name, Datatype.FP32, (-1,)) for name in names])
    return ModelMetadata(name="m", platform=platform, inputs=inputs)


async def check(known_inputs: KnownInputs, *names: str) -> None:
    await known_inputs.check(UncheckedInputs(M, names), CONTEXT)


async def test_the_first_message_of_a_local_model_is_compared() -> None:
    """A model in the same process replies to the metadata request at once."""
    service = ScriptedService(metadata("a", "b"))
    known_inputs = KnownInputs(service)
    assert not known_inputs.accepts(M, ("a",))
    with pytest.raises(InvalidRequest, match="has no input 'x'; its inputs are 'a', 'b'"):
        await check(known_inputs, "a", "x")
    (request,) = service.calls
    assert isinstance(request, ModelMetadataRequest)
    assert (M, CONTEXT) == (request.model, request.context)
    assert known_inputs.accepts(M, ("b", "a"))
    assert not known_inputs.accepts(M, ("x",))
    assert not known_inputs.accepts(ModelRef("other"), ("a",))


class Slow:
    """Replies once the test sets `go`."""

    def __init__(self, found: ModelMetadata) -> None:
        self.request_count = 0
        self.go = asyncio.Event()
        self._found = found

    async def __call__(self, _call: Call[Any], /) -> Any:
        self.request_count += 1
        await self.go.wait()
        return self._found


async def test_a_message_does_not_wait_for_the_metadata() -> None:
    """The first messages pass; one request for metadata serves later ones."""
    service = Slow(metadata("a"))
    known_inputs = KnownInputs(service)
    await check(known_inputs, "x")
    await check(known_inputs, "x")
    assert 1 == service.request_count
    service.go.set()
    await settle()
    with pytest.raises(InvalidRequest):
        await check(known_inputs, "x")
    assert 2 == service.request_count
    assert not known_inputs.accepts(M, ("x",))


async def test_a_mismatch_requests_the_metadata_again() -> None:
    """The model may have changed, or the caller's route may lead to another one."""
    service = ScriptedService(metadata("a"), metadata("a", "x"), metadata("a"))
    known_inputs = KnownInputs(service)
    await check(known_inputs, "a")
    await check(known_inputs, "a", "x")
    assert known_inputs.accepts(M, ("a", "x"))
    with pytest.raises(InvalidRequest):
        await check(known_inputs, "a", "y")
    assert 3 == len(service.calls)


def accepts_all(known_inputs: KnownInputs, names: Collection[str]) -> bool:
    return known_inputs.accepts(M, names)


@pytest.mark.parametrize(
    "found", [metadata("a", platform=""), metadata(), Unavailable("no server is there")]
)
async def test_some_models_are_not_compared(found: Any) -> None:
    """MLServer has no platform and accepts other inputs; a server may not reply at all."""
    known_inputs = KnownInputs(ScriptedService(found))
    await check(known_inputs, "x")
    assert accepts_all(known_inputs, ("x", "y"))
