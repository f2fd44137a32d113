"""Joining: many requests as one, one answer as many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef, Sequence
from gateway.ir.data import ArrayData, ItemsData, RawData, SharedMemoryData, SlicedData, TensorData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidTensor, UpstreamProtocolError
from gateway.ir.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    as_items,
    as_numpy,
    as_raw,
    items_tensor,
    raw_tensor,
)
from gateway.policies.batch.merge import (
    SHARED_NEEDS,
    batch_key,
    merge_requests,
    row_count,
    split_reply,
)

M = ModelRef("m")


def raw(name: str, array: np.ndarray[Any, Any], **fields: Any) -> Tensor:
    """Return a tensor as it comes off a wire."""
    plain = array_tensor(name, array)
    assert plain.datatype is not None
    return raw_tensor(name, plain.datatype, array.shape, as_raw(plain), **fields)


def ints(*rows: int) -> Tensor:
    return raw("x", np.array(rows, np.int32).reshape(-1, 1))


def ask(*inputs: Tensor, **fields: Any) -> InferRequest:
    return InferRequest(model=M, inputs=inputs, **fields)


def text(*rows: bytes) -> Tensor:
    return items_tensor("t", (len(rows), 1), rows)


# --- which may be joined ---


def test_rows_are_the_first_axis() -> None:
    """The batch axis of all inputs is the number of rows."""
    assert 3 == row_count(ask(ints(1, 2, 3), text(b"a", b"b", b"c")))


def elsewhere(data: TensorData) -> Tensor:
    return Tensor("x", Datatype.INT32, (2, 1), data)


@pytest.mark.parametrize(
    "call",
    [
        ask(),
        ask(ints()),
        ask(raw("x", np.array(5, np.int32))),
        ask(ints(1, 2), text(b"a")),
        ask(ints(1), ints(1)),
        ask(Tensor("x", None, (1, 1), RawData(memoryview(b"1234")))),
        ask(Tensor("x", Datatype.INT32, None, RawData(memoryview(b"1234")))),
        ask(elsewhere(SlicedData(memoryview(b"12345678"), 0))),
        ask(elsewhere(SharedMemoryData("region", 0, 8))),
        ask(ints(1), sequence=Sequence(7)),
        ask(ints(1), batch_size=1),
        ask(ints(1), outputs=(RequestedOutput("y", shared=SharedMemoryData("region", 0, 8)),)),
    ],
    ids=[
        "no inputs",
        "no rows",
        "scalar",
        "other batch",
        "same name",
        "no datatype",
        "no shape",
        "share",
        "shared memory",
        "sequence",
        "batch apart",
        "output in shared memory",
    ],
)
def test_cannot_be_joined(call: InferRequest) -> None:
    """What has no batch axis of its own, or a place in something else, stays alone."""
    assert 0 == row_count(call)


def test_same_key_for_other_rows_ids_times_and_order() -> None:
    """What the target does not answer by does not keep requests apart."""
    y = raw("y", np.zeros((1, 4), np.float32))
    here = Context(
        protocol="oip.http", deadline=5.0, request_id="1", metadata=(("traceparent", "a"),)
    )
    there = Context(protocol="trtis.grpc", metadata=(("x-request-id", "2"),))
    one = ask(ints(1), y, id="a", context=here, timeout_us=5)
    two = ask(raw("y", np.ones((3, 4), np.float32)), ints(7, 8, 9), id="b", context=there)
    assert batch_key(one) == batch_key(two)


@pytest.mark.parametrize(
    "other",
    [
        ask(raw("x", np.zeros((1, 2), np.int32))),
        ask(raw("x", np.zeros((1, 1), np.uint32))),
        ask(raw("z", np.zeros((1, 1), np.int32))),
        ask(raw("x", np.zeros((1, 1), np.int32), parameters={"p": 1})),
        ask(ints(1), ints(1).renamed("z")),
        ask(ints(1), outputs=(RequestedOutput("y"),)),
        ask(ints(1), parameters={"a": 1}),
        ask(ints(1), priority=1),
        ask(ints(1), context=Context(metadata=(("authorization", "me"),))),
        ask(ints(1)).changed(model=ModelRef("m", "2")),
        ask(ints(1)).changed(model=ModelRef("n")),
    ],
    ids=[
        "inner shape",
        "datatype",
        "name",
        "input parameters",
        "more inputs",
        "outputs",
        "parameters",
        "priority",
        "header",
        "version",
        "model",
    ],
)
def test_other_keys(other: InferRequest) -> None:
    """All that the target may answer by keeps requests apart."""
    assert batch_key(ask(ints(1))) != batch_key(other)


@pytest.mark.parametrize("pair", [(1, True), (0, False), (1, 1.0), (1, "1")])
def test_parameters_of_other_types_are_others(pair: tuple[Any, Any]) -> None:
    """Python takes 1 for true; a target does not."""
    one, two = (batch_key(ask(ints(1), parameters={"p": value})) for value in pair)
    assert one != two


# --- many as one ---


def test_rows_are_laid_end_to_end() -> None:
    """The joined call has everybody's rows in order, and is nobody's."""
    calls = [ask(ints(1, 2), id="a"), ask(ints(3), id="b"), ask(ints(4, 5, 6))]
    found = merge_requests(calls)
    assert ask(ints(1, 2, 3, 4, 5, 6)).changed(context=Context(needs=SHARED_NEEDS)) == found


def test_inputs_in_another_order_meet_by_name() -> None:
    """The first request's order holds; the others' tensors are found by their names."""
    y, z = raw("y", np.array([[1.0]])), raw("y", np.array([[2.0]]))
    found = merge_requests([ask(ints(1), y), ask(z, ints(2))])
    assert (ints(1, 2), raw("y", np.array([[1.0], [2.0]]))) == found.inputs


def test_mixed_forms_become_one_array() -> None:
    """Arrays and raw bytes are joined, with one copy."""
    array = array_tensor("x", np.array([[2], [3]], np.int32)[::-1])
    (found,) = merge_requests([ask(ints(1)), ask(array)]).inputs
    assert [[1], [3], [2]] == as_numpy(found).tolist()
    assert Datatype.INT32 == found.datatype


def test_texts_are_joined_in_either_form() -> None:
    """BYTES come as elements or in wire form; elements are passed on, not copied."""
    one, two = text(b"a", b""), text(b"ccc")
    wired = raw_tensor("t", Datatype.BYTES, (1, 1), as_raw(two))
    (mixed,) = merge_requests([ask(one), ask(wired)]).inputs
    assert [b"a", b"", b"ccc"] == [bytes(item) for item in as_items(mixed)]
    assert isinstance(mixed.data, ItemsData)
    assert as_items(one)[0] is as_items(mixed)[0]
    both = [ask(raw_tensor("t", Datatype.BYTES, (2, 1), as_raw(one))), ask(wired)]
    (found,) = merge_requests(both).inputs
    assert mixed == found
    assert isinstance(found.data, RawData)


@pytest.mark.parametrize(
    ("deadlines", "expected"), [((5.0, 9.0), 9.0), ((5.0, None), None), ((None, None), None)]
)
def test_time_is_that_of_the_most_patient(
    deadlines: tuple[float | None, ...], expected: float | None
) -> None:
    """Nobody's call ends because another's time is over."""
    calls = [ask(ints(1), context=Context(deadline=deadline)) for deadline in deadlines]
    assert expected == merge_requests(calls).context.deadline


@pytest.mark.parametrize(
    ("timeouts", "expected"), [((5, 9), 9), ((5, None), None), ((None, None), None)]
)
def test_so_is_the_queue_timeout(timeouts: tuple[int | None, ...], expected: int | None) -> None:
    """The target must not give up on a batch that somebody still waits for."""
    calls = [ask(ints(1), timeout_us=timeout) for timeout in timeouts]
    assert expected == merge_requests(calls).timeout_us


def test_what_was_asked_goes_on() -> None:
    """Model, outputs, parameters, priority, and what crosses of the headers."""
    fields: Mapping[str, Any] = {
        "outputs": (RequestedOutput("y", 2),),
        "parameters": {"p": 1},
        "priority": 3,
        "context": Context(metadata=(("x-tenant", "a"),), request_id="first", session=4),
    }
    expected = ask(ints(1, 2), **fields).with_context(needs=SHARED_NEEDS, session=None)
    assert expected == merge_requests([ask(ints(1), **fields), ask(ints(2), **fields)])


@pytest.mark.parametrize(
    "broken",
    [
        Tensor("x", Datatype.INT32, (2, 1), RawData(memoryview(b"1234"))),
        Tensor("x", Datatype.INT32, (2, 1), ArrayData(np.zeros((1, 1), np.int32))),
        Tensor("x", Datatype.BYTES, (2, 1), ItemsData([b"a"])),
        Tensor("x", Datatype.BYTES, (2, 1), RawData(memoryview(b"\1\0\0\0a"))),
    ],
    ids=["raw", "array", "items", "raw text"],
)
def test_data_that_would_move_others_rows_is_refused(broken: Tensor) -> None:
    """A tensor that holds less than its shape says must not be filled up from a neighbour."""
    with pytest.raises(InvalidTensor, match="tensor 'x'"):
        merge_requests([ask(broken), ask(broken)])


# --- one as many ---


def reply(*outputs: Tensor, **fields: Any) -> InferResponse:
    return InferResponse(model=M, outputs=outputs, **fields)


def test_everybody_gets_own_rows_as_views() -> None:
    """Outputs are divided along the first axis, and nothing is copied."""
    array = np.arange(12, dtype=np.float32).reshape(6, 2)
    whole = raw("y", array)
    found = split_reply(reply(whole, array_tensor("z", array)), [1, 2, 3])
    assert [array[:1].tolist(), array[1:3].tolist(), array[3:].tolist()] == [
        as_numpy(outputs[0]).tolist() for outputs in found
    ]
    assert [as_numpy(one).tolist() for one, _ in found] == [
        as_numpy(two).tolist() for _, two in found
    ]
    for one, two in found:
        assert np.shares_memory(as_numpy(one), as_numpy(whole))
        assert np.shares_memory(as_numpy(two), array)


def test_texts_are_divided_in_either_form() -> None:
    """Rows of BYTES are found by their lengths, and are views as well."""
    items = items_tensor("t", (3, 2), [b"a", b"bb", b"", b"dddd", b"e", b"f"])
    wired = raw_tensor("t", Datatype.BYTES, (3, 2), as_raw(items))
    for tensor in (items, wired):
        (one,), (two,) = split_reply(reply(tensor), [1, 2])
        assert items_tensor("t", (1, 2), [b"a", b"bb"]) == one
        assert items_tensor("t", (2, 2), [b"", b"dddd", b"e", b"f"]) == two
    (one,), _ = split_reply(reply(wired), [1, 2])
    assert np.shares_memory(
        np.frombuffer(as_raw(one), np.uint8), np.frombuffer(as_raw(wired), "u1")
    )


def test_rows_of_nothing() -> None:
    """Inner shapes without elements, and answers without outputs, are divided too."""
    empty = raw("y", np.zeros((3, 0), np.float32))
    assert [(1, 0), (2, 0)] == [one.shape for (one,) in split_reply(reply(empty), [1, 2])]
    nothing = items_tensor("t", (3, 0), [])
    wired = raw_tensor("t", Datatype.BYTES, (3, 0), memoryview(b""))
    for tensor in (nothing, wired):
        assert [(1, 0), (2, 0)] == [one.shape for (one,) in split_reply(reply(tensor), [1, 2])]
    assert [(), ()] == split_reply(reply(), [1, 2])


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (ints(1, 2), r"has shape \[2, 1\] for 3 rows of 2 requests"),
        (raw("x", np.array(3, np.int32)), r"has shape \[\] for 3 rows"),
        (Tensor("x", Datatype.INT32, None, RawData(memoryview(b""))), "has no shape for 3 rows"),
        (Tensor("x", Datatype.INT32, (3, 1), RawData(memoryview(b"1234"))), "has 4 bytes"),
        (
            Tensor("x", Datatype.INT32, (3,), SharedMemoryData("r", 0, 12)),
            "is in the shared memory",
        ),
    ],
    ids=["other rows", "scalar", "no shape", "too short", "elsewhere"],
)
def test_answers_that_cannot_be_divided(output: Tensor, found: str) -> None:
    """The error names the output, what it has and what was needed."""
    with pytest.raises(UpstreamProtocolError, match=found):
        split_reply(reply(output), [1, 2])


def test_batch_size_apart_is_no_answer_here() -> None:
    """Shapes of one item must not be taken for those of a batch."""
    with pytest.raises(UpstreamProtocolError, match="has a batch size separate"):
        split_reply(reply(ints(1, 2, 3), batch_size=3), [1, 2])
