"""Tests of tensors whose bytes are not here yet: shares of a buffer, and shared memory."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.data import RawData, SharedMemoryData, SlicedData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidTensor
from gateway.ir.tensor import Tensor, as_items, as_numpy, as_raw

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
def test_bytes_that_are_not_here_are_not_read(data: Any, text: str) -> None:
    """Each way of reading says where the bytes are."""
    with pytest.raises(InvalidTensor, match=text):
        as_raw(tensor(data))
    with pytest.raises(InvalidTensor, match=text):
        as_numpy(tensor(data, Datatype.UINT8))
    with pytest.raises(InvalidTensor, match=text):
        as_items(tensor(data, Datatype.BYTES))


def test_equal_by_what_they_refer_to() -> None:
    """Such tensors are equal when they refer to the same bytes, without reading them."""
    assert tensor(SlicedData(WHOLE, 1)) == tensor(SlicedData(memoryview(b"abcdef"), 1))
    assert tensor(SlicedData(WHOLE, 1)) != tensor(SlicedData(WHOLE, 0))
    assert tensor(SlicedData(WHOLE, 1, 3)) != tensor(SlicedData(WHOLE, 1))
    assert tensor(SharedMemoryData("r", 0, 6)) == tensor(SharedMemoryData("r", 0, 6))
    assert tensor(SharedMemoryData("r", 0, 6)) != tensor(SharedMemoryData("r", 1, 6))
    assert tensor(SharedMemoryData("r", 0, 6)) != tensor(RawData(WHOLE))


def test_sizes_add_up() -> None:
    """Of a shared buffer the first share counts for all; shared memory counts its size."""
    assert [tensor(SlicedData(WHOLE, index)).nbytes for index in range(3)] == [6, 0, 0]
    assert tensor(SharedMemoryData("r", 0, 9)).nbytes == 9
