"""The fast path of packed integers agrees with the general codec."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.ir.tensors.datatypes import Datatype, datatype_of
from gateway.protocols.grps.protobuf.message import unpacked
from gateway.wire.protobuf.packed import packed_varints, varint_array

DTYPES = [np.uint8, np.int8, np.int16, np.int32, np.int64]


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_fast_path_reads_packed_integers_like_the_general_codec(
    dtype: npt.DTypeLike, data: st.DataObject
) -> None:
    """Packed arrays of any size are read the same where the fast path supports it."""
    array = data.draw(arrays.arrays(dtype, st.integers(0, 150)))
    found = packed_varints(array)
    assert varint_array([found], dtype).tolist() == array.tolist()
    datatype = datatype_of(array.dtype)
    assert datatype is not None
    back = unpacked([found], datatype) if len(found) else None
    assert back is None or (array.dtype, array.tolist()) == (back.dtype, back.tolist())


@given(st.binary(min_size=1, max_size=12))
def test_fast_path_reads_any_bytes_like_the_general_codec(data: bytes) -> None:
    """The fast path returns the same elements or None."""
    found = unpacked([memoryview(data)], Datatype.UINT8)
    if found is not None:
        assert varint_array([memoryview(data)], np.uint32).tolist() == found.tolist()


def test_fast_path_reads_bytes_above_127() -> None:
    """An image does not need the general codec."""
    array = np.arange(256, dtype=np.uint8)
    found = unpacked([packed_varints(array)], Datatype.UINT8)
    assert found is not None
    assert array.tolist() == found.tolist()


@pytest.mark.parametrize("values", [[], [1, 2], [memoryview(b"\x01"), memoryview(b"\x02")]])
def test_fast_path_skips_unpacked_and_split_fields(values: list[int]) -> None:
    """The fast path is for one packed occurrence."""
    assert unpacked(values, Datatype.INT32) is None
