"""Packed arrays, against the protobuf library and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.schema import open_inference_pb2 as oip
from gateway.wire.protobuf import packed as arrays
from gateway.wire.protobuf import wire_format as pb

EDGES = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**31 - 1, 2**35, 2**56, 2**63 - 1]


def packed(message: oip.InferTensorContents) -> memoryview:
    """Return the contents of the only field of *message*."""
    ((_, found),) = pb.fields(memoryview(message.SerializeToString()))
    assert isinstance(found, memoryview)
    return found


def test_reads_packed_varints() -> None:
    """Values of every length, negative ones too, are read as the library wrote them."""
    values = [*EDGES, *(-value for value in EDGES)]
    found = packed(oip.InferTensorContents(int64_contents=values))
    assert values == arrays.varint_array([found], np.int64).tolist()


@pytest.mark.parametrize("high", [100, 300, 2**40])
def test_reads_across_blocks(high: int) -> None:
    """A field longer than one block is read whole."""
    values = np.random.default_rng(0).integers(0, high, 70_000)
    found = packed(oip.InferTensorContents(int64_contents=values.tolist()))
    assert np.array_equal(values, arrays.varint_array([found], np.int64))


def test_reads_packed_and_unpacked_mixed() -> None:
    """Occurrences of both forms are joined in order."""
    mixed: list[int | memoryview] = [1, 300, memoryview(b"\x02\xac\x02"), 4, memoryview(b""), 5]
    assert [1, 300, 2, 300, 4, 5] == arrays.varint_array(mixed, np.uint64).tolist()
    assert arrays.varint_array([], np.int32).tolist() == []
    assert [7] == arrays.varint_array([7], np.int32).tolist()


def test_keeps_low_bits() -> None:
    """int32 and uint32 keep the low half; a boolean is true when any bit is set."""
    values: list[int | memoryview] = [2**32 + 5, 2**64 - 1, memoryview(b"\x80\x80\x80\x80\x10")]
    assert [5, -1, 0] == arrays.varint_array(values, np.int32).tolist()
    assert [5, 2**32 - 1, 0] == arrays.varint_array(values, np.uint32).tolist()
    assert [True, True, True] == arrays.varint_array(values, np.bool_).tolist()


@pytest.mark.parametrize(
    "data",
    [b"\x80", b"\x01\x80", b"\x80" * 10 + b"\x01", b"\x80" * 70_000 + b"\x01"],
    ids=["cut", "cut_after_one", "eleven_bytes", "longer_than_a_block"],
)
def test_rejects_invalid_varints(data: bytes) -> None:
    """A varint that does not end or is too long raises WireError."""
    with pytest.raises(pb.WireError):
        arrays.varint_array([memoryview(data)], np.int64)


def test_cuts_ten_byte_varints() -> None:
    """Only one bit of the tenth byte is used."""
    found = arrays.varint_array([memoryview(b"\xff" * 9 + b"\x7f")], np.uint64)
    assert [2**64 - 1] == found.tolist()


def test_returns_one_fixed_run_without_a_copy() -> None:
    """A packed field sent at once is returned as the same memory."""
    data = memoryview(bytes(16))
    assert arrays.fixed_run([data], 4) is data


def test_joins_fixed_runs() -> None:
    """Packed and unpacked occurrences are joined in order; none is an empty run."""
    assert (
        bytes(arrays.fixed_run([memoryview(b"abcd"), memoryview(b"efghijkl")], 4))
        == b"abcdefghijkl"
    )
    assert bytes(arrays.fixed_run([], 4)) == b""


def test_rejects_part_of_an_element() -> None:
    """A packed field that ends inside an element is rejected, even when the sum would fit."""
    with pytest.raises(pb.WireError, match="6 bytes"):
        arrays.fixed_run([memoryview(b"abcdef"), memoryview(b"gh")], 4)


@pytest.mark.parametrize("copies", [1, 8])  # few, and many
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "uint32", "uint64"])
def test_writes_packed_varints(dtype: str, copies: int) -> None:
    """Arrays of every kind are written as varints that read back the same."""
    values = [*EDGES, *(-value for value in EDGES)] * copies
    array = np.array(values).astype(dtype).reshape(4 * copies, 5)
    expected = b"".join(pb.varint(int(value)) for value in array.reshape(-1))
    assert expected == bytes(arrays.packed_varints(array))
    small = np.zeros((2, 0), dtype)
    assert bytes(arrays.packed_varints(small)) == b""
    assert bytes(arrays.packed_varints(np.ones(3, dtype))) == b"\x01\x01\x01"
