"""Tests of tensors whose bytes are not available yet: slices of a buffer, shared memory."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.errors import InvalidTensor
from gateway.ir.tensors.data import RawData, SharedMemoryData, SlicedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy, as_raw

WHOLE = memoryview(b"abcdef")


def tensor(data: Any, datatype: Datatype | None = None) -> Tensor:
    return Tensor("x", datatype, (6,), data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (SlicedData(WHOLE, 1), "slice 1 of 6 bytes"),
        (SharedMemoryData("r", 0, 6), "shared memory region 'r'"),
    ],
)
def test_reading_unavailable_bytes_raises(data: Any, text: str) -> None:
    """The error of each read names the place of the bytes."""
    with pytest.raises(InvalidTensor, match=text):
        as_raw(tensor(data))
    with pytest.raises(InvalidTensor, match=text):
        as_numpy(tensor(data, Datatype.UINT8))
    with pytest.raises(InvalidTensor, match=text):
        as_items(tensor(data, Datatype.BYTES))


def test_tensors_with_the_same_reference_are_equal() -> None:
    """Such tensors are compared by reference, without reading their bytes."""
    assert tensor(SlicedData(WHOLE, 1)) == tensor(SlicedData(memoryview(b"abcdef"), 1))
    assert tensor(SlicedData(WHOLE, 1)) != tensor(SlicedData(WHOLE, 0))
    assert tensor(SlicedData(WHOLE, 1, 3)) != tensor(SlicedData(WHOLE, 1))
    assert tensor(SharedMemoryData("r", 0, 6)) == tensor(SharedMemoryData("r", 0, 6))
    assert tensor(SharedMemoryData("r", 0, 6)) != tensor(SharedMemoryData("r", 1, 6))
    assert tensor(SharedMemoryData("r", 0, 6)) != tensor(RawData(WHOLE))


def test_sizes_add_up() -> None:
    """The first slice counts the whole buffer; shared memory counts its size."""
    assert [tensor(SlicedData(WHOLE, index)).nbytes for index in range(3)] == [6, 0, 0]
    assert tensor(SharedMemoryData("r", 0, 9)).nbytes == 9
