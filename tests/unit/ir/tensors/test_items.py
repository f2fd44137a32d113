from __future__ import annotations

import struct
from itertools import cycle, islice

import pytest

from gateway.ir.errors import InvalidTensor
from gateway.ir.tensors.data import check_items, split_items
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.items import ItemViews, longest_of
from gateway.ir.tensors.tensor import as_items, as_raw, items_tensor, raw_tensor


def wire(*lengths: int) -> bytes:
    return b"".join(struct.pack("<I", size) + bytes([65 + size % 191]) * size for size in lengths)


@pytest.mark.parametrize("lengths", [(0,), (3,), (0, 1), (2, 0, 5), (1, 300)])
@pytest.mark.parametrize("count", [1, 32, 33, 1000, 5000])
def test_elements_of_any_number_and_length_are_split(lengths: tuple[int, ...], count: int) -> None:
    """Each element is a view of its part of the buffer."""
    sizes = list(islice(cycle(lengths), count))
    data = memoryview(wire(*sizes))
    expected = [bytes([65 + size % 191]) * size for size in sizes]
    for items in (split_items("x", data, count), split_items("x", data)):
        assert count == len(items)
        assert sizes == [len(item) for item in items]
        assert data == as_raw(items_tensor("x", (count,), items))
        assert expected == [bytes(item) for item in items]
        assert all(item.obj is data.obj for item in items)
    check_items("x", data, count)


@pytest.mark.parametrize("count", [33, 100, 5000])
def test_wrong_element_count_is_rejected(count: int) -> None:
    """One element too few or too many is rejected, of equal and of other lengths."""
    for sizes in ([1] * count, list(islice(cycle((0, 2)), count))):
        data = memoryview(wire(*sizes))
        for wrong in (count - 1, count + 1):
            with pytest.raises(InvalidTensor):
                split_items("x", data, wrong)
            with pytest.raises(InvalidTensor):
                check_items("x", data, wrong)


def test_elements_can_be_sliced_and_counted() -> None:
    """A slice keeps the lengths; the longest element and the total size are found."""
    items = split_items("x", memoryview(wire(*range(60))), 60)
    assert isinstance(items, ItemViews)
    assert [10, 11] == [len(item) for item in items[10:12]]
    assert (59, 59) == longest_of(items)
    assert (1, 7) == longest_of([b"", b"x" * 7, b"y" * 7])
    assert (0, 0) == longest_of([])
    assert sum(range(60)) + 4 * 60 == items_tensor("x", (60,), items).nbytes


def test_as_items_returns_all_elements_of_a_raw_tensor() -> None:
    """All elements of the buffer are returned as views of it."""
    data = memoryview(wire(*[2] * 100))
    items = as_items(raw_tensor("x", Datatype.BYTES, (100,), data))
    assert 100 == len(items)
    assert all(isinstance(item, memoryview) and item.obj is data.obj for item in items)
