"""Rows of different lengths in one batch: padded for the model, cut back for their callers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import Call, InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.rows import IndependentRows
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.policies.batch.padding import PaddedSize
from gateway.policies.batch.policy import Batch
from gateway.policies.batch.queue import BatchRules
from tests.fakes import FakeClock, settle

M = ModelRef("m")
PAD = 9
METADATA = ModelMetadata(
    name="m",
    inputs=(TensorMetadata("ids", Datatype.INT64, (-1, -1)),),
    outputs=(
        TensorMetadata("states", Datatype.INT64, (-1, -1, 1)),
        TensorMetadata("sum", Datatype.INT64, (-1, 1)),
    ),
)


def request(*rows: Sequence[int], fills: int = PAD, **form: Any) -> InferRequest:
    """Return a call whose rows have one length, as `rows` says."""
    found = IndependentRows(lengths=tuple(map(len, rows)), fills=(("ids", fills),), **form)
    inputs = (array_tensor("ids", np.array(rows, np.int64)),)
    return InferRequest(model=M, inputs=inputs, id=str(rows[0][0]), rows=found)


class Model:
    """Returns the ids of each row as its states, and their sum."""

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []

    async def __call__(self, call: Call[Any], /) -> Any:
        if isinstance(call, ModelMetadataRequest):
            return METADATA
        assert isinstance(call, InferRequest)
        ids = as_numpy(call.inputs[0])
        self.seen.append(ids.tolist())
        sums = ids.sum(axis=1, keepdims=True)
        outputs = (array_tensor("states", ids[:, :, None]), array_tensor("sum", sums))
        return InferResponse(model=M, outputs=outputs, id=call.id)


async def replied(*calls: InferRequest) -> tuple[Model, list[InferResponse]]:
    """Return the model after concurrent calls, and their replies; the delay is not waited for."""
    model, clock = Model(), FakeClock()
    rules = BatchRules(in_flight=1, max_delay_s=1.0)
    batch = Batch(model, rules, clock=clock, call_later=clock.later)
    tasks = [asyncio.ensure_future(batch(call)) for call in calls]
    await settle()
    while not all(task.done() for task in tasks):
        clock.advance(1.0)
        await settle()
    return model, await asyncio.gather(*tasks)


async def batched(*calls: InferRequest) -> tuple[Model, list[list[list[int]]]]:
    """Return the model after concurrent calls, and the states that each of them got."""
    model, replies = await replied(*calls)
    assert [call.id for call in calls] == [reply.id for reply in replies]
    return model, [as_numpy(reply.outputs[0])[:, :, 0].tolist() for reply in replies]


@pytest.mark.parametrize(
    ("pads_left", "padded"), [(False, [1, 2, PAD, PAD]), (True, [PAD, PAD, 1, 2])]
)
async def test_shorter_rows_are_padded_and_cut_back(pads_left: bool, padded: list[int]) -> None:
    """The model sees one call; each caller gets states of its own length."""
    short = request([1, 2], pads_left=pads_left)
    long = request([3, 4, 5, 6], [7, 8, 9, 1], pads_left=pads_left)
    model, states = await batched(short, long)
    assert [[padded, [3, 4, 5, 6], [7, 8, 9, 1]]] == model.seen
    assert [[[1, 2]], [[3, 4, 5, 6], [7, 8, 9, 1]]] == states


async def test_outputs_without_an_axis_for_tokens_are_whole() -> None:
    """An output of two axes has its columns, whatever the padding is."""
    model, replies = await replied(request([1, 2], fills=0), request([3, 4, 5], fills=0))
    assert [[[3]], [[12]]] == [as_numpy(reply.outputs[1]).tolist() for reply in replies]
    assert 1 == len(model.seen)


async def test_other_padding_is_another_batch() -> None:
    """Calls whose padding differs are not merged."""
    model, states = await batched(request([1]), request([2, 3], fills=0))
    assert [[[1]], [[2, 3]]] == model.seen
    assert [[[1]], [[2, 3]]] == states


async def test_elements_with_padding_are_bounded() -> None:
    """A call that would make the padded batch too large waits for the next one.

    Rows of nearly the same length come first.
    """
    calls = [request([1, 1], most_elements=8), request([2] * 4, most_elements=8)]
    model, _ = await batched(*calls, request([3], most_elements=8))
    assert [[[1, 1], [3, PAD]], [[2, 2, 2, 2]]] == model.seen


async def test_a_long_row_does_not_lengthen_many_short_ones() -> None:
    """Padding is at most a quarter of the elements, where it costs more than another call."""
    short = [request([number]) for number in range(30)]
    model, _ = await batched(*short[:2], request([7] * 500), *short[2:])
    assert [30, 1] == list(map(len, model.seen))
    assert [1, 500] == [len(rows[0]) for rows in model.seen]


def test_the_first_call_always_fits() -> None:
    """A call larger than any limit is sent alone."""
    padding = PaddedSize()
    assert padding.add(request([1] * 100, most_elements=10))
    assert not padding.add(request([1], most_elements=10))
