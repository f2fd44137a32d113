"""NormalizeOutputs: requests with the same meaning become equal."""

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
from gateway.ir.errors import NotFound
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.model_info.metadata_cache import MetadataCache
from gateway.policies.batch.layers import NormalizeOutputs
from tests.fakes import FakeStream, ScriptedService

M = ModelRef("m")
METADATA = ModelMetadata(
    name="m", outputs=tuple(TensorMetadata(name, Datatype.INT8, (1,)) for name in "yz")
)


def output(name: str) -> Tensor:
    return Tensor(name, Datatype.INT8, (1,), RawData(memoryview(name.encode())))


REPLY = InferResponse(model=M, outputs=(output("y"), output("z")))


def request(*outputs: Any) -> InferRequest:
    requested_outputs = [RequestedOutput(one) if isinstance(one, str) else one for one in outputs]
    return InferRequest(model=M, outputs=tuple(requested_outputs))


def build(metadata: Any = METADATA) -> tuple[NormalizeOutputs, ScriptedService, ScriptedService]:
    target, metadata_service = ScriptedService(always=REPLY), ScriptedService(always=metadata)
    return NormalizeOutputs(target, MetadataCache(metadata_service)), target, metadata_service


async def test_names_of_all_outputs_are_removed() -> None:
    """A request that names every output, in any order, is sent without output names."""
    layer, target, _ = build()
    assert REPLY is await layer(request("y", "z"))
    assert REPLY is await layer(request("z", "y"))
    assert [request(), request()] == target.calls


@pytest.mark.parametrize(
    "call",
    [
        request("y"),
        request("y", "z", "other"),
        request("y", RequestedOutput("z", 3)),
        request("y", RequestedOutput("z", parameters={"p": 1})),
        request("y", RequestedOutput("z", shared=SharedMemoryData("r", 0, 1))),
    ],
    ids=["some", "unknown", "classes", "parameters", "elsewhere"],
)
async def test_other_output_requests_are_unchanged(call: InferRequest) -> None:
    """A request for other outputs, or with options for one, is passed on unchanged."""
    layer, target, _ = build()
    assert REPLY is await layer(call)
    assert call is target.calls[0]


async def test_request_is_unchanged_without_metadata() -> None:
    """If the metadata are unavailable, the request is passed on unchanged."""
    layer, target, _ = build(NotFound("no"))
    assert REPLY is await layer(request("y", "z"))
    assert request("y", "z") == target.calls[0]


async def test_request_without_model_looks_up_an_empty_name() -> None:
    """A request without a model fetches the metadata of the empty model name."""
    layer, target, metadata_service = build()
    assert REPLY is await layer(request("y", "z").changed(model=None))
    assert ModelRef("") == metadata_service.calls[0].model
    assert () == target.calls[0].outputs  # type: ignore[attr-defined]  # an inference


async def test_only_unary_requests_with_outputs_fetch_metadata() -> None:
    """Requests without output names, streams and other calls fetch no metadata."""
    layer, target, metadata_service = build()
    call = request()
    assert REPLY is await layer(call)
    stream = FakeStream([])
    target._script += [stream, METADATA]
    assert stream is await layer(StreamInferRequest(model=M, request=request("y", "z")))
    assert METADATA == await layer(ModelMetadataRequest(model=M))
    assert (call, []) == (target.calls[0], metadata_service.calls)


async def test_load_invalidates_the_metadata() -> None:
    """After a load the metadata are fetched again, because the outputs may differ."""
    layer, target, metadata_service = build()
    await layer(request("y", "z"))
    target._script.append(lambda _call: None)
    await layer(ModelLoadRequest(model=M))
    await layer(request("y", "z"))
    assert 2 == len(metadata_service.calls)
