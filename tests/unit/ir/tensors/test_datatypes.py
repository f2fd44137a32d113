from __future__ import annotations

import numpy as np
import pytest

from gateway.ir.tensors.datatypes import Datatype, bf16_of_fp32, datatype_of, fp32_of_bf16


@pytest.mark.parametrize("datatype", Datatype)
def test_sizes_and_dtypes_agree(datatype: Datatype) -> None:
    """A fixed-size datatype has the size of its dtype; BYTES has none."""
    expected = 0 if datatype is Datatype.BYTES else datatype.numpy_dtype.itemsize
    assert expected == datatype.size_bytes


@pytest.mark.parametrize("datatype", [each for each in Datatype if each is not Datatype.BF16])
def test_a_dtype_maps_to_its_datatype(datatype: Datatype) -> None:
    """The mapping from numpy is the inverse, whatever the byte order."""
    assert datatype is datatype_of(datatype.numpy_dtype)
    assert datatype is datatype_of(datatype.numpy_dtype.newbyteorder(">"))


def test_text_dtypes_are_bytes() -> None:
    """Fixed-width text and byte strings mean BYTES."""
    assert Datatype.BYTES is datatype_of("S3")
    assert Datatype.BYTES is datatype_of("U3")


def test_a_foreign_dtype_has_no_datatype() -> None:
    """Complex numbers have no datatype."""
    assert datatype_of(np.complex64) is None


def test_bf16_rounds_to_even_and_widens_exactly() -> None:
    """Ties round to the even pattern, and widening restores the kept bits."""
    values = np.array([1.0, -2.5, 1.00390625, 1.01171875, np.inf, -np.inf], np.float32)
    bits = bf16_of_fp32(values)
    assert [0x3F80, 0xC020, 0x3F80, 0x3F82, 0x7F80, 0xFF80] == bits.tolist()
    assert bits.tolist() == bf16_of_fp32(fp32_of_bf16(bits)).tolist()


def test_bf16_keeps_nan() -> None:
    """A NaN whose payload would be cut off stays a NaN."""
    nan = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(fp32_of_bf16(bf16_of_fp32(nan))).all()
