"""Tests of Classify: classes from whole outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.data import as_items
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidRequest, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import RequestedOutput, Tensor, array_tensor, items_tensor
from gateway.policies.classify import Classify, classes
from tests.fakes import ScriptedService

M = ModelRef("m")
LABELS = {"o": ("zero", "one", "", "three")}


def metadata(max_batch_size: int | None) -> ModelMetadata:
    tensors = (TensorMetadata("o", Datatype.FP32, (-1, 4)),)
    return ModelMetadata(
        name="m", inputs=tensors, outputs=tensors, max_batch_size=max_batch_size, labels=LABELS
    )


def service(output: Tensor, max_batch_size: int | None, batch_size: int | None) -> ScriptedService:
    def answer(call: Any) -> Any:
        if isinstance(call, ModelMetadataRequest):
            return metadata(max_batch_size)
        return InferResponse(model=M, outputs=(output,), batch_size=batch_size)

    return ScriptedService(always=answer)


ASKED = InferRequest(model=M, outputs=(RequestedOutput("o", 2),))
VALUES = np.array([[1, 4, 3, 2], [5.5, 0, np.nan, 5.5]], "<f4")


async def test_each_item_of_a_batch_has_its_best_classes() -> None:
    """Best first, equal values by index, NaN last, labels where there are any."""
    inner = service(array_tensor("o", VALUES), 8, None)
    reply = await Classify(inner)(ASKED)
    assert reply.outputs[0].shape == (2, 2)
    assert as_items(reply.outputs[0]) == [b"4.0:1:one", b"3.0:2", b"5.5:0:zero", b"5.5:3:three"]
    infer = next(call for call in inner.calls if isinstance(call, InferRequest))
    assert infer.outputs == (RequestedOutput("o"),)


async def test_batch_size_apart_stays_apart() -> None:
    """Where shapes are of one item, the classes' shape is so too."""
    output = Tensor("o", Datatype.FP32, (4,), array_tensor("o", VALUES).data)
    reply = await Classify(service(output, 8, 2))(ASKED)
    assert (reply.batch_size, reply.outputs[0].shape) == (2, (2,))
    assert len(as_items(reply.outputs[0])) == 4


async def test_model_that_does_not_batch_has_one_list() -> None:
    """Without a batch axis the whole output is one list of values."""
    reply = await Classify(service(array_tensor("o", VALUES[:1]), 0, None))(ASKED)
    assert reply.outputs[0].shape == (2,)
    assert as_items(reply.outputs[0]) == [b"4.0:1:one", b"3.0:2"]


async def test_empty_batch_has_no_classes() -> None:
    """A batch of no items has no classes."""
    reply = await Classify(service(array_tensor("o", VALUES[:0]), 8, None))(ASKED)
    assert reply.outputs[0].shape == (0, 0)


async def test_calls_without_classes_go_through() -> None:
    """Nothing is asked and nothing is changed where no classes are wanted."""
    output = array_tensor("o", VALUES)
    inner = service(output, 8, None)
    reply = await Classify(inner)(InferRequest(model=M, outputs=(RequestedOutput("o"),)))
    assert reply.outputs == (output,)
    assert len(inner.calls) == 1


async def test_streams_are_classified() -> None:
    """Each answer of a stream gets its classes."""

    async def items() -> Any:
        for _ in range(2):
            yield InferResponse(model=M, outputs=(array_tensor("o", VALUES),))

    def answer(call: Any) -> Any:
        return metadata(8) if isinstance(call, ModelMetadataRequest) else items()

    stream = await Classify(ScriptedService(always=answer))(
        StreamInferRequest(model=M, request=ASKED)
    )
    shapes = [item.outputs[0].shape async for item in stream]
    assert shapes == [(2, 2), (2, 2)]


def test_large_integers_are_not_rounded() -> None:
    """Integers are ordered and written as they are; asking for more than there are gives all."""
    values = array_tensor("o", np.array([2**64 - 1, 2**64 - 2, 0], np.uint64))
    found = classes(values, 9, 1, ())
    assert found == [b"18446744073709551615:0", b"18446744073709551614:1", b"0:2"]


@pytest.mark.parametrize("datatype", [Datatype.BOOL, Datatype.FP16])
def test_other_datatypes_have_no_classes(datatype: Datatype) -> None:
    """Only integers, FP32 and FP64 can be classified."""
    output = array_tensor("o", np.zeros(2, datatype.numpy_dtype))
    with pytest.raises(InvalidRequest, match=datatype.name):
        classes(output, 1, 1, ())


def test_text_and_unknown_have_no_classes() -> None:
    """BYTES and unknown datatypes are refused by name."""
    with pytest.raises(InvalidRequest, match="BYTES"):
        classes(items_tensor("o", (1,), [b"a"]), 1, 1, ())
    untyped = Tensor("o", None, (1,), items_tensor("o", (1,), [b"a"]).data)
    with pytest.raises(InvalidRequest, match="unknown"):
        classes(untyped, 1, 1, ())


def test_output_must_divide_by_the_batch() -> None:
    """A batch that does not share the values is the target's fault."""
    with pytest.raises(UpstreamProtocolError, match="3 elements"):
        classes(array_tensor("o", np.zeros(3, "<i4")), 1, 2, ())
