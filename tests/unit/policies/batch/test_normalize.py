"""NormalizeOutputs: what means the same is the same."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelMetadataRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.data import RawData, SharedMemoryData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import NotFound
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import RequestedOutput, Tensor
from gateway.policies.batch.normalize import NormalizeOutputs
from gateway.policies.metadata_cache import MetadataCache
from tests.fakes import FakeStream, ScriptedService

M = ModelRef("m")
METADATA = ModelMetadata(
    name="m", outputs=tuple(TensorMetadata(name, Datatype.INT8, (1,)) for name in "yz")
)


def output(name: str) -> Tensor:
    return Tensor(name, Datatype.INT8, (1,), RawData(memoryview(name.encode())))


REPLY = InferResponse(model=M, outputs=(output("y"), output("z")))


def ask(*outputs: Any) -> InferRequest:
    requested_outputs = [RequestedOutput(one) if isinstance(one, str) else one for one in outputs]
    return InferRequest(model=M, outputs=tuple(requested_outputs))


def made(metadata: Any = METADATA) -> tuple[NormalizeOutputs, ScriptedService, ScriptedService]:
    target, metadata_service = ScriptedService(always=REPLY), ScriptedService(always=metadata)
    return NormalizeOutputs(target, MetadataCache(metadata_service)), target, metadata_service


async def test_every_output_by_name_is_all_of_them() -> None:
    """In any order; the answer is the target's own."""
    alike, target, _ = made()
    assert REPLY is await alike(ask("y", "z"))
    assert REPLY is await alike(ask("z", "y"))
    assert [ask(), ask()] == target.calls


@pytest.mark.parametrize(
    "call",
    [
        ask("y"),
        ask("y", "z", "other"),
        ask("y", RequestedOutput("z", 3)),
        ask("y", RequestedOutput("z", parameters={"p": 1})),
        ask("y", RequestedOutput("z", shared=SharedMemoryData("r", 0, 1))),
    ],
    ids=["some", "unknown", "classes", "parameters", "elsewhere"],
)
async def test_other_wishes_stay(call: InferRequest) -> None:
    """Whoever wants less, more, or anything else of an output, is asked for as it came."""
    alike, target, _ = made()
    assert REPLY is await alike(call)
    assert call is target.calls[0]


async def test_a_model_that_does_not_tell() -> None:
    """Without metadata nothing is changed, and nothing fails."""
    alike, target, _ = made(NotFound("no"))
    assert REPLY is await alike(ask("y", "z"))
    assert ask("y", "z") == target.calls[0]


async def test_a_model_without_a_name() -> None:
    """The target that is asked for no model in particular is asked about none."""
    alike, target, metadata_service = made()
    assert REPLY is await alike(ask("y", "z").changed(model=None))
    assert ModelRef("") == metadata_service.calls[0].model
    assert () == target.calls[0].outputs  # type: ignore[attr-defined]  # an inference


async def test_who_asks_for_no_output_costs_nothing() -> None:
    """No question is asked where there is nothing to compare, nor for streams and the rest."""
    alike, target, metadata_service = made()
    call = ask()
    assert REPLY is await alike(call)
    stream = FakeStream([])
    target._script += [stream, METADATA]
    assert stream is await alike(StreamInferRequest(model=M, request=ask("y", "z")))
    assert METADATA == await alike(ModelMetadataRequest(model=M))
    assert (call, []) == (target.calls[0], metadata_service.calls)


async def test_a_model_that_is_loaded_again_is_asked_again() -> None:
    """It may have other outputs."""
    alike, target, metadata_service = made()
    await alike(ask("y", "z"))
    target._script.append(lambda _call: None)
    await alike(ModelLoadRequest(model=M))
    await alike(ask("y", "z"))
    assert 2 == len(metadata_service.calls)
