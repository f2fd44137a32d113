"""Merging requests into one batch, and splitting its reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import CallSequence, Context, ModelRef
from gateway.ir.errors import InvalidTensor, UpstreamProtocolError
from gateway.ir.tensors.data import (
    ArrayData,
    ItemsData,
    RawData,
    SharedMemoryData,
    SlicedData,
    TensorData,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
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


def request(*inputs: Tensor, **fields: Any) -> InferRequest:
    return InferRequest(model=M, inputs=inputs, **fields)


def text(*rows: bytes) -> Tensor:
    return items_tensor("t", (len(rows), 1), rows)


# --- which requests can be merged ---


def test_rows_are_the_first_axis() -> None:
    """The row count is the size of the first axis of all inputs."""
    assert 3 == row_count(request(ints(1, 2, 3), text(b"a", b"b", b"c")))


def input_with(data: TensorData) -> Tensor:
    return Tensor("x", Datatype.INT32, (2, 1), data)


@pytest.mark.parametrize(
    "call",
    [
        request(),
        request(ints()),
        request(raw("x", np.array(5, np.int32))),
        request(ints(1, 2), text(b"a")),
        request(ints(1), ints(1)),
        request(Tensor("x", None, (1, 1), RawData(memoryview(b"1234")))),
        request(Tensor("x", Datatype.INT32, None, RawData(memoryview(b"1234")))),
        request(input_with(SlicedData(memoryview(b"12345678"), 0))),
        request(input_with(SharedMemoryData("region", 0, 8))),
        request(ints(1), sequence=CallSequence(7)),
        request(ints(1), batch_size=1),
        request(ints(1), outputs=(RequestedOutput("y", shared=SharedMemoryData("region", 0, 8)),)),
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
def test_unmergeable_request_has_no_rows(call: InferRequest) -> None:
    """A request without a batch axis of its own, or bound to a sequence or region, has no rows."""
    assert 0 == row_count(call)


def test_batch_key_ignores_rows_ids_deadlines_and_input_order() -> None:
    """Fields that do not affect the reply do not change the batch key."""
    y = raw("y", np.zeros((1, 4), np.float32))
    here = Context(
        protocol="oip.http", deadline=5.0, request_id="1", metadata=(("traceparent", "a"),)
    )
    there = Context(protocol="trtis.grpc", metadata=(("x-request-id", "2"),))
    one = request(ints(1), y, id="a", context=here, timeout_us=5)
    two = request(raw("y", np.ones((3, 4), np.float32)), ints(7, 8, 9), id="b", context=there)
    assert batch_key(one) == batch_key(two)


@pytest.mark.parametrize(
    "other",
    [
        request(raw("x", np.zeros((1, 2), np.int32))),
        request(raw("x", np.zeros((1, 1), np.uint32))),
        request(raw("z", np.zeros((1, 1), np.int32))),
        request(raw("x", np.zeros((1, 1), np.int32), parameters={"p": 1})),
        request(ints(1), ints(1).renamed("z")),
        request(ints(1), outputs=(RequestedOutput("y"),)),
        request(ints(1), parameters={"a": 1}),
        request(ints(1), priority=1),
        request(ints(1), context=Context(metadata=(("authorization", "me"),))),
        request(ints(1)).changed(model=ModelRef("m", "2")),
        request(ints(1)).changed(model=ModelRef("n")),
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
def test_batch_key_covers_everything_that_affects_the_reply(other: InferRequest) -> None:
    """Requests that differ in anything that may affect the reply have different keys."""
    assert batch_key(request(ints(1))) != batch_key(other)


@pytest.mark.parametrize("pair", [(1, True), (0, False), (1, 1.0), (1, "1")])
def test_batch_key_distinguishes_types_of_parameters(pair: tuple[Any, Any]) -> None:
    """A parameter value of another type, such as True for 1, changes the batch key."""
    one, two = (batch_key(request(ints(1), parameters={"p": value})) for value in pair)
    assert one != two


# --- merging requests ---


def test_merged_request_has_all_rows_in_order() -> None:
    """The merged call has the rows of all requests in order, and the id of none."""
    calls = [request(ints(1, 2), id="a"), request(ints(3), id="b"), request(ints(4, 5, 6))]
    found = merge_requests(calls)
    assert request(ints(1, 2, 3, 4, 5, 6)).changed(context=Context(needs=SHARED_NEEDS)) == found


def test_inputs_are_matched_by_name() -> None:
    """Merged inputs have the first request's order; those of other requests match by name."""
    y, z = raw("y", np.array([[1.0]])), raw("y", np.array([[2.0]]))
    found = merge_requests([request(ints(1), y), request(z, ints(2))])
    assert (ints(1, 2), raw("y", np.array([[1.0], [2.0]]))) == found.inputs


def test_arrays_and_raw_bytes_merge_into_one_array() -> None:
    """Arrays, also reversed ones, and raw bytes are merged by value."""
    array = array_tensor("x", np.array([[2], [3]], np.int32)[::-1])
    (found,) = merge_requests([request(ints(1)), request(array)]).inputs
    assert isinstance(found.data, ArrayData)
    assert (Datatype.INT32, (3, 1)) == (found.datatype, found.shape)
    assert [[1], [3], [2]] == found.data.array.tolist()


def test_bytes_tensors_merge_in_either_form() -> None:
    """BYTES tensors merge as elements or in wire form; elements are not copied."""
    one, two = text(b"a", b""), text(b"ccc")
    wired = raw_tensor("t", Datatype.BYTES, (1, 1), as_raw(two))
    (mixed,) = merge_requests([request(one), request(wired)]).inputs
    assert [b"a", b"", b"ccc"] == [bytes(item) for item in as_items(mixed)]
    assert isinstance(mixed.data, ItemsData)
    assert as_items(one)[0] is as_items(mixed)[0]
    both = [request(raw_tensor("t", Datatype.BYTES, (2, 1), as_raw(one))), request(wired)]
    (found,) = merge_requests(both).inputs
    assert mixed == found
    assert isinstance(found.data, RawData)


@pytest.mark.parametrize(
    ("deadlines", "expected"), [((5.0, 9.0), 9.0), ((5.0, None), None), ((None, None), None)]
)
def test_merged_deadline_is_the_latest(
    deadlines: tuple[float | None, ...], expected: float | None
) -> None:
    """The merged call has the latest deadline, or none if one request has none."""
    calls = [request(ints(1), context=Context(deadline=deadline)) for deadline in deadlines]
    assert expected == merge_requests(calls).context.deadline


@pytest.mark.parametrize(
    ("timeouts", "expected"), [((5, 9), 9), ((5, None), None), ((None, None), None)]
)
def test_merged_queue_timeout_is_the_longest(
    timeouts: tuple[int | None, ...], expected: int | None
) -> None:
    """The merged call has the longest queue timeout, or none if one request has none."""
    calls = [request(ints(1), timeout_us=timeout) for timeout in timeouts]
    assert expected == merge_requests(calls).timeout_us


def test_merged_request_keeps_common_fields() -> None:
    """The merged call keeps outputs, parameters, priority and metadata, but no session."""
    fields: Mapping[str, Any] = {
        "outputs": (RequestedOutput("y", 2),),
        "parameters": {"p": 1},
        "priority": 3,
        "context": Context(metadata=(("x-tenant", "a"),), request_id="first", session=4),
    }
    expected = request(ints(1, 2), **fields).with_context(needs=SHARED_NEEDS, session=None)
    assert expected == merge_requests([request(ints(1), **fields), request(ints(2), **fields)])


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
def test_tensor_with_too_little_data_is_rejected(broken: Tensor) -> None:
    """A tensor with less data than its shape needs is not filled from the next request."""
    with pytest.raises(InvalidTensor, match="tensor 'x'"):
        merge_requests([request(broken), request(broken)])


# --- splitting a reply ---


def reply(*outputs: Tensor, **fields: Any) -> InferResponse:
    return InferResponse(model=M, outputs=outputs, **fields)


def test_each_request_gets_its_rows_as_views() -> None:
    """Outputs are split along the first axis without a copy."""
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


def test_bytes_outputs_split_in_either_form() -> None:
    """BYTES outputs split as elements or in wire form; the wire form is not copied."""
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


def test_empty_outputs_are_split() -> None:
    """Outputs without elements, and replies without outputs, are split as well."""
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
def test_reply_that_cannot_be_split_is_rejected(output: Tensor, found: str) -> None:
    """The error describes why the output cannot be split."""
    with pytest.raises(UpstreamProtocolError, match=found):
        split_reply(reply(output), [1, 2])


def test_reply_with_separate_batch_size_is_rejected() -> None:
    """A reply with shapes of one item and a separate batch size cannot be split."""
    with pytest.raises(UpstreamProtocolError, match="has a batch size separate"):
        split_reply(reply(ints(1, 2, 3), batch_size=3), [1, 2])
