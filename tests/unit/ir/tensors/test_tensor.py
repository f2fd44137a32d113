from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.ir.errors import InvalidTensor
from gateway.ir.tensors.data import ArrayData, ItemsData, RawData, check_items, split_items
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    Tensor,
    array_tensor,
    as_items,
    as_numpy,
    as_raw,
    items_tensor,
    raw_tensor,
)

FIXED = sorted(set(Datatype) - {Datatype.BYTES}, key=lambda datatype: datatype.name)
WIRE = b"\x01\x00\x00\x00a\x00\x00\x00\x00\x02\x00\x00\x00bc"


@pytest.mark.parametrize("datatype", FIXED)
def test_raw_tensor_shares_its_memory(datatype: Datatype) -> None:
    """The array of a raw tensor is a view of the buffer."""
    buffer = bytes(6 * datatype.size_bytes)
    array = as_numpy(raw_tensor("x", datatype, (2, 3), memoryview(buffer)))
    assert (2, 3) == array.shape
    assert np.shares_memory(array, np.frombuffer(buffer, np.uint8))


def test_raw_tensor_rejects_a_wrong_size() -> None:
    """The error names the tensor, the found size and the expected size."""
    with pytest.raises(InvalidTensor) as caught:
        raw_tensor("x", Datatype.FP32, (1, 4), memoryview(bytes(12)))
    assert "tensor 'x' has 12 bytes, shape [1, 4] of FP32 needs 16" == caught.value.message


def test_sizes_do_not_overflow() -> None:
    """A shape whose product is 2**64 does not fit an empty buffer."""
    with pytest.raises(InvalidTensor, match="needs 73786976294838206464"):
        raw_tensor("x", Datatype.FP32, (1 << 32, 1 << 32), memoryview(b""))


def test_a_bool_byte_other_than_0_and_1_was_rejected() -> None:
    """Such a byte is unchanged in the raw form, and true in an array; 0 and 1 are not copied."""
    odd = raw_tensor("x", Datatype.BOOL, (3,), memoryview(b"\x00\x02\xff"))
    assert b"\x00\x02\xff" == bytes(as_raw(odd))
    assert b"\x00\x01\x01" == as_numpy(odd).tobytes()
    view = memoryview(b"\x00\x01")
    plain = as_numpy(raw_tensor("x", Datatype.BOOL, (2,), view))
    assert np.shares_memory(plain, np.frombuffer(view, "?"))
    assert (2, 0) == as_numpy(raw_tensor("x", Datatype.BOOL, (2, 0), memoryview(b""))).shape


def test_bytes_elements_are_counted() -> None:
    """The number of elements of a BYTES tensor must match its shape."""
    assert (3,) == raw_tensor("s", Datatype.BYTES, (3,), memoryview(WIRE)).shape
    with pytest.raises(InvalidTensor, match="has bytes after its 2 BYTES elements"):
        raw_tensor("s", Datatype.BYTES, (2,), memoryview(WIRE))
    with pytest.raises(InvalidTensor, match="hold only 3 complete BYTES elements"):
        raw_tensor("s", Datatype.BYTES, (4,), memoryview(WIRE))


@pytest.mark.parametrize("cut", range(1, len(WIRE)))
def test_truncated_bytes_tensor_is_rejected(cut: int) -> None:
    """No prefix of three elements is accepted as three elements."""
    with pytest.raises(InvalidTensor):
        split_items("s", memoryview(WIRE[:cut]), 3)
    with pytest.raises(InvalidTensor):
        check_items("s", memoryview(WIRE[:cut]), 3)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_elements_of_one_length_are_counted(size: int) -> None:
    """Many elements of equal length are accepted; one wrong length is rejected."""
    wire = bytearray((struct.pack("<I", size) + bytes(size)) * 100)
    assert (100,) == raw_tensor("s", Datatype.BYTES, (100,), memoryview(wire)).shape
    wire[50 * (4 + size)] ^= 0x40
    with pytest.raises(InvalidTensor, match=r"hold only [0-9]+ complete BYTES"):
        raw_tensor("s", Datatype.BYTES, (100,), memoryview(wire))


def test_items_are_views_of_the_buffer() -> None:
    """Splitting copies no element."""
    items = as_items(raw_tensor("s", Datatype.BYTES, (3,), memoryview(WIRE)))
    assert [b"a", b"", b"bc"] == [bytes(item) for item in items]
    assert all(isinstance(item, memoryview) and item.obj is WIRE for item in items)


def test_items_are_encoded_as_lengths_and_bytes() -> None:
    """The size of a list of elements is counted without encoding it."""
    tensor = items_tensor("s", (3,), [b"a", b"", b"bc"])
    assert WIRE == bytes(as_raw(tensor))
    assert len(WIRE) == tensor.nbytes


def test_items_must_fit_the_shape() -> None:
    """The number of elements must match the shape."""
    with pytest.raises(InvalidTensor, match=r"has 1 elements, shape \[2\] needs 2"):
        items_tensor("s", (2,), [b"a"])


def test_bytes_as_numpy_are_objects() -> None:
    """BYTES becomes an object array of bytes, trailing zero bytes kept."""
    array = as_numpy(items_tensor("s", (1, 2), [b"a\x00", b""]))
    assert [[b"a\x00", b""]] == array.tolist()


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(["é", b"x"], dtype=object), [b"\xc3\xa9", b"x"]),
        (np.array([b"ab", b"c"]), [b"ab", b"c"]),
        (np.array(["ab", "é"]), [b"ab", b"\xc3\xa9"]),
    ],
)
def test_text_arrays_are_bytes_tensors(array: npt.NDArray[Any], expected: list[bytes]) -> None:
    """Object, byte-string and text arrays all become BYTES."""
    assert expected == list(as_items(array_tensor("s", array)))


def test_an_object_array_holds_text_only() -> None:
    """The error names the type of any other object."""
    with pytest.raises(InvalidTensor, match="element of type int"):
        array_tensor("s", np.array([1], dtype=object))


@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=">i4").reshape(2, 3), np.arange(12, dtype="<i4").reshape(2, 6)[:, ::2]],
)
def test_any_layout_is_written_little_endian_and_row_major(array: npt.NDArray[Any]) -> None:
    """Byte order and strides do not show on the wire."""
    expected = struct.pack("<6i", *array.reshape(-1).tolist())
    assert expected == bytes(as_raw(array_tensor("x", array)))


def test_a_dtype_must_fit_its_datatype() -> None:
    """BF16 needs uint16 bits; a dtype without a datatype is rejected."""
    assert Datatype.BF16 is array_tensor("x", np.zeros(2, np.uint16), Datatype.BF16).datatype
    with pytest.raises(InvalidTensor, match="BF16 needs uint16"):
        array_tensor("x", np.zeros(2, np.float32), Datatype.BF16)
    with pytest.raises(InvalidTensor, match="which has no corresponding datatype"):
        array_tensor("x", np.zeros(2, np.complex64))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_scalars_and_empty_tensors_have_a_wire_form(shape: tuple[int, ...]) -> None:
    """A scalar has one element, an empty tensor no bytes."""
    tensor = array_tensor("x", np.zeros(shape, np.float32))
    assert int(np.prod(shape)) * 4 == as_raw(tensor).nbytes == tensor.nbytes
    assert shape == as_numpy(tensor).shape


def test_equality_compares_contents_not_forms() -> None:
    """Raw and array forms of the same tensor are equal; another name or value is not."""
    array = np.arange(4, dtype="<i4")
    one = array_tensor("x", array)
    other = raw_tensor("x", Datatype.INT32, (4,), memoryview(array.tobytes()))
    assert one == other
    assert one.renamed("y") != other
    assert array_tensor("x", array + 1) != other
    assert one != "x"


def test_tensor_without_datatype_or_shape_cannot_be_read() -> None:
    """A tensor without datatype or shape has no array and no elements."""
    bare = Tensor("x", None, None, RawData(memoryview(b"")))
    with pytest.raises(InvalidTensor, match="no datatype or shape yet"):
        as_numpy(bare)
    with pytest.raises(InvalidTensor, match="has datatype unknown; expected BYTES"):
        as_items(bare)


@pytest.mark.parametrize("size", [0, 4, 7, 9, 12])
def test_as_numpy_rejects_raw_data_of_a_wrong_size(size: int) -> None:
    """Too few bytes for a shape and too many are rejected."""
    tensor = Tensor("x", Datatype.FP32, (1, 2), RawData(memoryview(bytes(size))))
    with pytest.raises(InvalidTensor) as caught:
        as_numpy(tensor)
    assert f"tensor 'x' has {size} bytes, shape [1, 2] of FP32 needs 8" == caught.value.message


@pytest.mark.parametrize("datatype", FIXED)
def test_raw_form_of_an_array_is_in_c_order(datatype: Datatype) -> None:
    """Any memory layout is converted; a contiguous array shares its memory."""
    array = np.arange(6).astype(datatype.numpy_dtype).reshape(2, 3)
    for layout in (array, np.asfortranarray(array), array[::-1], array[:, 1:]):
        raw = as_raw(Tensor("x", datatype, layout.shape, ArrayData(layout)))
        assert layout.tobytes() == bytes(raw)
        assert (1, "B") == (raw.ndim, raw.format)
        assert np.shares_memory(layout, np.frombuffer(raw, np.uint8)) == layout.flags.c_contiguous


def test_data_of_the_wrong_kind_is_rejected() -> None:
    """Elements in a number tensor, and an array in a BYTES tensor, are rejected."""
    with pytest.raises(InvalidTensor, match="is FP32 and has BYTES elements"):
        as_numpy(Tensor("x", Datatype.FP32, (1,), ItemsData([b"a"])))
    with pytest.raises(InvalidTensor, match="holds a numpy array; expected elements"):
        as_items(Tensor("x", Datatype.BYTES, (1,), ArrayData(np.zeros(1))))
