"""Complete, if one side has a separate batch size and shapes of one item."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest, StreamInferRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import InvalidRequest
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import RawData, SlicedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, as_numpy
from gateway.model_info.metadata_cache import MetadataCache
from gateway.policies.complete.policy import Complete
from tests.fakes import FakeClock, ScriptedService

M = ModelRef("m")
WHOLE = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
SEPARATE = WHOLE | {Need.BATCHING}
TENSORS = (
    TensorMetadata("a", Datatype.INT32, (-1, 2)),
    TensorMetadata("b", Datatype.INT32, (-1, 1)),
)
METADATA = ModelMetadata(name="m", inputs=TENSORS, outputs=TENSORS[:1], max_batch_size=4)
BODY = memoryview(np.arange(6, dtype="<i4").tobytes())
SHARES = (
    Tensor("a", None, None, SlicedData(BODY, 0)),
    Tensor("b", None, (1,), SlicedData(BODY, 1)),
)


def target_of(reply: InferResponse) -> ScriptedService:
    def respond(call: Any) -> Any:
        return METADATA if isinstance(call, ModelMetadataRequest) else reply

    return ScriptedService(always=respond)


def sent(inner: ScriptedService) -> InferRequest:
    return next(call for call in inner.calls if isinstance(call, InferRequest))


def metadata_calls(inner: ScriptedService) -> int:
    return sum(isinstance(call, ModelMetadataRequest) for call in inner.calls)


def output(shape: tuple[int, ...], datatype: Datatype | None) -> Tensor:
    return Tensor("a", datatype, shape, RawData(memoryview(bytes(16))))


V1_CALL = InferRequest(model=M, inputs=SHARES, batch_size=2, context=Context(needs=SEPARATE))


async def test_v1_caller_with_a_target_of_whole_shapes() -> None:
    """The request gets whole tensors, and the reply loses its batch axis."""
    inner = target_of(InferResponse(model=M, outputs=(output((2, 2), Datatype.INT32),)))
    reply = await Complete(inner, WHOLE)(V1_CALL)
    request = sent(inner)
    assert request.batch_size is None
    np.testing.assert_array_equal([[0, 1], [2, 3]], as_numpy(request.inputs[0]))
    np.testing.assert_array_equal([[4], [5]], as_numpy(request.inputs[1]))
    assert (reply.batch_size, reply.outputs[0].shape) == (2, (2,))


async def test_v1_on_both_sides() -> None:
    """The batch size stays separate; output names and missing datatypes are filled in."""
    upstream_reply = InferResponse(model=M, outputs=(output((2,), None),), batch_size=2)
    inner = target_of(upstream_reply)
    reply = await Complete(inner, SEPARATE | {Need.OUTPUTS})(V1_CALL)
    request = sent(inner)
    assert request.batch_size == 2
    assert [one.shape for one in request.inputs] == [(2,), (1,)]
    assert request.outputs == (RequestedOutput("a"),)
    assert (reply.batch_size, reply.outputs[0].shape) == (2, (2,))
    assert reply.outputs[0].datatype is Datatype.INT32


@pytest.mark.parametrize("needs", [WHOLE, frozenset[Need]()])
async def test_caller_of_whole_shapes_with_a_v1_target(needs: frozenset[Need]) -> None:
    """The batch size is split from the request's shapes and merged into the reply's."""
    inner = target_of(InferResponse(model=M, outputs=(output((2,), None),), batch_size=2))
    x, y = np.zeros((2, 2), "<i4"), np.zeros((2, 1), "<i4")
    call = InferRequest(
        model=M,
        inputs=(array_tensor("a", x), array_tensor("b", y)),
        context=Context(needs=needs),
    )
    reply = await Complete(inner, SEPARATE | {Need.OUTPUTS})(call)
    request = sent(inner)
    assert request.batch_size == 2
    assert [one.shape for one in request.inputs] == [(2,), (1,)]
    assert reply.batch_size is None
    assert reply.outputs[0].shape == (2, 2)


async def test_stream_replies_of_a_v1_target_get_whole_shapes() -> None:
    """Each reply of a stream gets its batch axis."""

    async def items() -> Any:
        yield InferResponse(model=M, outputs=(output((2,), None),), batch_size=2)

    def respond(call: Any) -> Any:
        return METADATA if isinstance(call, ModelMetadataRequest) else items()

    request = InferRequest(model=M, inputs=(array_tensor("a", np.zeros((2, 2), "<i4")),))
    stream = await Complete(ScriptedService(always=respond), SEPARATE)(
        StreamInferRequest(model=M, request=request)
    )
    assert [(2, 2)] == [item.outputs[0].shape async for item in stream]


async def test_mismatch_invalidates_old_metadata() -> None:
    """If a request does not fit metadata that are not recent, they are fetched again."""
    clock = FakeClock()
    inner = target_of(InferResponse(model=M, outputs=(output((2, 2), Datatype.INT32),)))
    service = Complete(MetadataCache(inner, clock=clock), WHOLE)
    wider = V1_CALL.changed(batch_size=5)
    for _ in range(2):  # recent metadata are not invalidated
        with pytest.raises(InvalidRequest, match=r"batch size is 5, .* allows 1 to 4"):
            await service(wider)
        clock.advance(2)
    assert 1 == metadata_calls(inner)
    for _ in range(2):
        await service(V1_CALL)
        clock.advance(2)
    assert 2 == metadata_calls(inner)
