"""Merging and splitting the batch size, and splitting a shared buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, InvalidTensor, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import RawData, SharedMemoryData, SlicedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, as_raw
from gateway.policies.complete.batch_axis import (
    apply_batch_size,
    merge_batch_size,
    split_reply,
    split_request,
)

M = ModelRef("m")


def model(max_batch_size: int | None = 8, **inputs: Any) -> ModelMetadata:
    declared = tuple(TensorMetadata(name, *description) for name, description in inputs.items())
    return ModelMetadata(name="m", inputs=declared, outputs=declared, max_batch_size=max_batch_size)


def request(*inputs: Tensor, batch_size: int | None = 1) -> InferRequest:
    return InferRequest(model=M, inputs=inputs, batch_size=batch_size)


def share(
    name: str, whole: bytes, index: int, dims: Any = None, declared_bytes: Any = None
) -> Tensor:
    return Tensor(name, None, dims, SlicedData(memoryview(whole), index, declared_bytes))


TWO = model(a=(Datatype.INT32, (-1, 2)), b=(Datatype.UINT8, (-1, 3)))
TWO_BYTES = np.array([1, 2, 3, 4], "<i4").tobytes() + bytes(range(6))


def test_inputs_without_a_name_match_by_position() -> None:
    """They get the names and datatypes of the model; one declaration matches one input only."""
    call = request(share("", TWO_BYTES, 0), share("", TWO_BYTES, 1, (3,)), batch_size=2)
    found = apply_batch_size(call, TWO, whole=True)
    assert [("a", Datatype.INT32, (2, 2)), ("b", Datatype.UINT8, (2, 3))] == [
        (one.name, one.datatype, one.shape) for one in found.inputs
    ]
    twice = request(share("b", TWO_BYTES, 0), share("", TWO_BYTES, 1))
    with pytest.raises(InvalidRequest, match="input 'b' at position 1, where the message has an"):
        apply_batch_size(twice, TWO, whole=True)


def test_buffer_is_split_by_datatype_and_batch_size() -> None:
    """Each input gets a view of the buffer, in order and without a copy."""
    call = request(share("a", TWO_BYTES, 0), share("b", TWO_BYTES, 1, (3,)), batch_size=2)
    found = apply_batch_size(call, TWO, whole=False)
    assert [(one.name, one.datatype, one.shape) for one in found.inputs] == [
        ("a", Datatype.INT32, (2,)),
        ("b", Datatype.UINT8, (3,)),
    ]
    whole = apply_batch_size(call, TWO, whole=True)
    assert whole.batch_size is None
    first, second = (as_numpy(one) for one in whole.inputs)
    np.testing.assert_array_equal([[1, 2], [3, 4]], first)
    np.testing.assert_array_equal([[0, 1, 2], [3, 4, 5]], second)
    assert np.shares_memory(first, np.frombuffer(TWO_BYTES, np.uint8))


def test_buffer_is_split_in_the_order_of_the_request() -> None:
    """The order of the request's inputs applies, which need not be the model's."""
    body = bytes(range(3)) + np.array([7, 8], "<i4").tobytes()
    found = apply_batch_size(request(share("b", body, 0), share("a", body, 1)), TWO, whole=False)
    assert [7, 8] == as_numpy(found.inputs[1]).tolist()


@pytest.mark.parametrize("size", [len(TWO_BYTES) - 1, len(TWO_BYTES) + 4])
def test_buffer_of_wrong_size_is_rejected(size: int) -> None:
    """A buffer that is shorter or longer than the inputs need is rejected."""
    body = bytes(size)
    with pytest.raises(InvalidTensor, match=r"bytes"):
        apply_batch_size(
            request(share("a", body, 0), share("b", body, 1), batch_size=2), TWO, whole=False
        )


def test_bytes_input_takes_its_declared_size() -> None:
    """A BYTES input needs a declared size and must consist of complete elements."""
    text = b"\x01\x00\x00\x00a\x02\x00\x00\x00bc"
    texts = model(t=(Datatype.BYTES, (-1, 1)), n=(Datatype.UINT8, (-1, 1)))
    body = text + b"\x05\x06"
    inputs = (share("t", body, 0, (1,), len(text)), share("n", body, 1, (1,)))
    found = apply_batch_size(request(*inputs, batch_size=2), texts, whole=False)
    assert [b"a", b"bc"] == [bytes(item) for item in as_items(found.inputs[0])]
    assert b"\x05\x06" == bytes(as_raw(found.inputs[1]))
    unsized = (share("t", body, 0, (1,)), share("n", body, 1, (1,)))
    with pytest.raises(InvalidTensor, match="batch_byte_size"):
        apply_batch_size(request(*unsized, batch_size=2), texts, whole=False)
    broken = (share("t", body, 0, (1,), 4), share("n", body, 1, (1,)))
    with pytest.raises(InvalidTensor, match="BYTES elements"):
        apply_batch_size(request(*broken, batch_size=2), texts, whole=False)


def test_declared_size_of_a_fixed_size_datatype_is_checked() -> None:
    """A declared size must equal the size computed from shape and datatype."""
    with pytest.raises(InvalidTensor, match=r"has 9 bytes, batch size 2 .* needs 16"):
        apply_batch_size(request(share("a", TWO_BYTES, 0, (2,), 9), batch_size=2), TWO, whole=False)


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ((3,), "dims .3., the model expects .2."),
        ((2, 1), "dims .2, 1., the model expects .2."),
    ],
)
def test_dims_must_fit_the_model(dims: tuple[int, ...], text: str) -> None:
    """Rank and fixed dimensions must be those of the model."""
    with pytest.raises(InvalidRequest, match=text):
        apply_batch_size(
            request(Tensor("a", None, dims, RawData(memoryview(bytes(8))))), TWO, whole=False
        )


def test_missing_dims_must_be_fixed_in_the_model() -> None:
    """Missing dims are taken from the model only if all of them are fixed."""
    variable = model(a=(Datatype.INT32, (-1, -1)))
    with pytest.raises(InvalidRequest, match="has no dims"):
        apply_batch_size(
            request(Tensor("a", None, None, RawData(memoryview(bytes(8))))), variable, whole=False
        )


@pytest.mark.parametrize(
    ("metadata", "size", "text"),
    [
        (TWO, 9, "batch size is 9, model 'm' allows 1 to 8"),
        (TWO, 0, "batch size is 0"),
        (model(0, a=(Datatype.INT32, (2,))), 2, "does not batch"),
    ],
)
def test_batch_size_must_be_allowed_by_the_model(
    metadata: ModelMetadata, size: int, text: str
) -> None:
    """The batch size is from 1 to the model's maximum, and 1 if the model does not batch."""
    with pytest.raises(InvalidRequest, match=text):
        apply_batch_size(request(batch_size=size), metadata, whole=False)


def test_unknown_input_is_rejected() -> None:
    """The error names the unknown input and the inputs of the model."""
    with pytest.raises(InvalidRequest, match="no input 'x'; its inputs are 'a', 'b'"):
        apply_batch_size(
            request(Tensor("x", None, (1,), RawData(memoryview(b"1")))), TWO, whole=False
        )


def test_input_without_declared_datatype_is_rejected() -> None:
    """A buffer cannot be split if the metadata declare no datatype for an input."""
    with pytest.raises(InvalidRequest, match="declare no datatype for input 'a'"):
        apply_batch_size(request(share("a", b"", 0)), model(a=(None, (-1, 2))), whole=False)


def test_dims_of_one_element_match_scalar_items() -> None:
    """Dims [1] fit a model whose items are scalars, in requests and replies."""
    scalars = model(a=(Datatype.INT32, (-1,)))
    data = RawData(memoryview(bytes(8)))
    call = apply_batch_size(
        request(Tensor("a", None, (1,), data), batch_size=2), scalars, whole=True
    )
    assert (2,) == call.inputs[0].shape
    reply = InferResponse(model=M, outputs=(Tensor("a", None, (1,), data),), batch_size=2)
    assert (2,) == merge_batch_size(reply, scalars).outputs[0].shape


def test_size_of_an_input_in_shared_memory_is_checked() -> None:
    """An input in shared memory is unchanged, and its size must be the computed one."""
    shared = Tensor("a", None, (2,), SharedMemoryData("r", 0, 8))
    assert apply_batch_size(request(shared), TWO, whole=False).inputs[0].data == SharedMemoryData(
        "r", 0, 8
    )
    with pytest.raises(InvalidTensor, match="has 9 bytes"):
        apply_batch_size(
            request(Tensor("a", None, (2,), SharedMemoryData("r", 0, 9))), TWO, whole=False
        )


def test_bytes_input_in_shared_memory_is_not_checked() -> None:
    """Only a process that maps the region can know the size of BYTES elements."""
    texts = ModelMetadata(
        name="m", inputs=(TensorMetadata("a", Datatype.BYTES, (-1, 2)),), max_batch_size=4
    )
    shared = Tensor("a", None, (2,), SharedMemoryData("r", 0, 11))
    assert apply_batch_size(request(shared), texts, whole=True).inputs[0].data == SharedMemoryData(
        "r", 0, 11
    )


def test_first_axis_becomes_the_batch_size() -> None:
    """The first axis of every input becomes the batch size, which is 1 without batching."""
    x, y = np.zeros((3, 2), "<i4"), np.zeros((3, 3), "u1")
    found = split_request(request(array_tensor("a", x), array_tensor("b", y), batch_size=None), TWO)
    assert found.batch_size == 3
    assert [(2,), (3,)] == [one.shape for one in found.inputs]
    unbatched = model(0, a=(Datatype.INT32, (3, 2)))
    same = split_request(request(array_tensor("a", x), batch_size=None), unbatched)
    assert same.batch_size == 1
    assert same.inputs[0].shape == (3, 2)


@pytest.mark.parametrize("shapes", [[(3, 2), (2, 3)], [(), (2, 3)]])
def test_inputs_with_different_batch_sizes_are_rejected(shapes: list[tuple[int, ...]]) -> None:
    """All inputs must have a first axis of the same size."""
    inputs = [
        array_tensor(name, np.zeros(shape, "u1")) for name, shape in zip("ab", shapes, strict=True)
    ]
    with pytest.raises(InvalidRequest, match="first axes"):
        split_request(request(*inputs, batch_size=None), TWO)


def test_reply_is_split_and_merged_again() -> None:
    """A reply of whole shapes loses its first axis and regains it; another size is rejected."""
    whole = InferResponse(model=M, outputs=(array_tensor("a", np.ones((3, 2), "<i4")),))
    split = split_reply(whole, TWO, 3)
    assert (split.batch_size, split.outputs[0].shape) == (3, (2,))
    assert whole == merge_batch_size(split, TWO)
    with pytest.raises(UpstreamProtocolError, match="batch size 3, the request 2"):
        split_reply(whole, TWO, 2)


def test_reply_without_outputs_has_the_requests_batch_size() -> None:
    """Without an output, the batch size of the request applies."""
    assert split_reply(InferResponse(model=M, outputs=()), TWO, 3).batch_size == 3


def test_reply_of_a_model_without_batching_keeps_its_shapes() -> None:
    """Without a batch axis, the batch size is 1 and the shapes are whole."""
    unbatched = model(0, a=(Datatype.INT32, (3, 2)))
    whole = InferResponse(model=M, outputs=(array_tensor("a", np.ones((3, 2), "<i4")),))
    split = split_reply(whole, unbatched, 1)
    assert (split.batch_size, split.outputs[0].shape) == (1, (3, 2))
    assert whole == merge_batch_size(split, unbatched)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (model(4), True),
        (model(0, a=(Datatype.INT32, (-1,))), False),
        (model(None, a=(Datatype.INT32, (-1, 2))), True),
        (model(None, a=(Datatype.INT32, (-1,)), b=(Datatype.INT32, (2,))), False),
        (model(None, a=(Datatype.INT32, None)), False),
        (model(None), False),
    ],
)
def test_batching_follows_the_declared_maximum_or_the_shapes(
    metadata: ModelMetadata, expected: bool
) -> None:
    """Without a declared maximum, a model batches if every first axis is variable."""
    assert metadata.supports_batching is expected


def test_input_of_undeclared_shape_keeps_its_dims() -> None:
    """Without a declared shape the request's dims apply; without dims it is rejected."""
    undeclared = model(0, a=(Datatype.UINT8, None))
    data = RawData(memoryview(b"ab"))
    found = apply_batch_size(request(Tensor("a", None, (2,), data)), undeclared, whole=True)
    assert found.inputs[0].shape == (2,)
    with pytest.raises(InvalidRequest, match="those of the model are unknown"):
        apply_batch_size(request(Tensor("a", None, None, data)), undeclared, whole=True)


def test_inputs_in_shared_memory_use_no_buffer() -> None:
    """Inputs in shared memory take no bytes of the request's buffer."""
    shared = Tensor("b", None, (3,), SharedMemoryData("r", 0, 3))
    found = apply_batch_size(request(shared, share("a", bytes(8), 0)), TWO, whole=False)
    assert found.inputs[0].data == SharedMemoryData("r", 0, 3)
    assert as_raw(found.inputs[1]) == bytes(8)
