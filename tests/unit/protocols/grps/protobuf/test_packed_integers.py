"""The short ways of packed integers say what the general way says."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.ir.datatypes import Datatype, datatype_of
from gateway.protocols.grps.protobuf.packed_integers import packed, unpacked
from gateway.wire.protobuf_packed import packed_varints, varint_array

DTYPES = [np.uint8, np.int8, np.int16, np.int32, np.int64]


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_integers_are_packed_as_by_the_general_way(
    dtype: npt.DTypeLike, data: st.DataObject
) -> None:
    """Few and many, small and large, and they are read back where the short way follows."""
    array = data.draw(arrays.arrays(dtype, st.integers(0, 150)))
    found = packed(array)
    assert bytes(packed_varints(array)) == bytes(found)
    datatype = datatype_of(array.dtype)
    assert datatype is not None
    back = unpacked([found], datatype) if len(found) else None
    assert back is None or (array.dtype, array.tolist()) == (back.dtype, back.tolist())


@given(st.binary(min_size=1, max_size=12))
def test_any_bytes_are_read_alike_or_left_to_the_general_way(data: bytes) -> None:
    """The short way for bytes never says something else."""
    found = unpacked([memoryview(data)], Datatype.UINT8)
    if found is not None:
        assert varint_array([memoryview(data)], np.uint32).tolist() == found.tolist()


def test_bytes_above_127_take_the_short_way() -> None:
    """An image is not read by the general way."""
    array = np.arange(256, dtype=np.uint8)
    found = unpacked([packed(array)], Datatype.UINT8)
    assert found is not None
    assert array.tolist() == found.tolist()


@pytest.mark.parametrize("values", [[], [1, 2], [memoryview(b"\x01"), memoryview(b"\x02")]])
def test_unpacked_and_split_fields_are_left_to_the_general_way(values: list[int]) -> None:
    """The short way is for one packed occurrence."""
    assert unpacked(values, Datatype.INT32) is None
