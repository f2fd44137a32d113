"""Typed contents: every field for its datatypes, ranges, counts, views."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.errors import GatewayError, InvalidTensor, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_raw
from gateway.protocols.oip.grpc.typed_contents import typed_data
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.protobuf.wire_format import LEN, MAX_FIELDS, FieldCounter, WireError, tag, varint

D = Datatype


def read(
    datatype: Datatype, count: int, data: bytes, limits: MessageLimits = DEFAULT_LIMITS
) -> Any:
    return typed_data("X", datatype, count, memoryview(data), limits, FieldCounter())


def contents(**fields: Any) -> bytes:
    return pb.InferTensorContents(**fields).SerializeToString()


def raw(datatype: Datatype, count: int, data: bytes) -> bytes:
    return bytes(as_raw(Tensor("X", datatype, (count,), read(datatype, count, data))))


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        (D.BOOL, "bool_contents", [True, False, True]),
        (D.INT8, "int_contents", [-128, 0, 127]),
        (D.INT16, "int_contents", [-(2**15), -1, 2**15 - 1]),
        (D.INT32, "int_contents", [-(2**31), -1, 2**31 - 1]),
        (D.INT64, "int64_contents", [-(2**63), 2**53 + 1, 2**63 - 1]),
        (D.UINT8, "uint_contents", [0, 127, 255]),
        (D.UINT16, "uint_contents", [0, 300, 2**16 - 1]),
        (D.UINT32, "uint_contents", [0, 300, 2**32 - 1]),
        (D.UINT64, "uint64_contents", [0, 2**53 + 1, 2**64 - 1]),
        (D.FP32, "fp32_contents", [0.5, float("inf"), -0.0]),
        (D.FP64, "fp64_contents", [0.1, float("-inf"), -0.0]),
    ],
)
def test_reads_every_datatype(datatype: Datatype, field: str, values: list[Any]) -> None:
    """The elements of each field are exact, at the ends of the range too."""
    expected = np.array(values, datatype.numpy_dtype).tobytes()
    assert expected == raw(datatype, len(values), contents(**{field: values}))


def test_elements_are_views() -> None:
    """BYTES elements, empty ones among them, and floats packed in one run are not copied."""
    data = memoryview(contents(bytes_contents=[b"plum", b""]))
    found: Any = typed_data("X", D.BYTES, 2, data, DEFAULT_LIMITS, FieldCounter())
    assert [b"plum", b""] == [bytes(item) for item in found.items]
    assert np.shares_memory(np.frombuffer(found.items[0], np.uint8), np.frombuffer(data, np.uint8))
    data = memoryview(contents(fp32_contents=[1.0, 2.0]))
    found = typed_data("X", D.FP32, 2, data, DEFAULT_LIMITS, FieldCounter())
    assert isinstance(found, RawData)
    assert np.shares_memory(np.frombuffer(found.view, np.uint8), np.frombuffer(data, np.uint8))


def test_integers_are_arrays_of_their_datatype() -> None:
    """Integers are decoded to arrays of the datatype's own dtype."""
    found = read(D.UINT8, 2, contents(uint_contents=[1, 200]))
    assert np.dtype("u1") == found.array.dtype


@pytest.mark.parametrize("data", [b"", contents(), varint(tag(6, LEN)) + b"\0", b"\x78\x01"])
def test_contents_without_elements_are_absent(data: bytes) -> None:
    """Contents without elements count as absent, whatever other fields they have."""
    assert read(D.FP32, 0, data) is None


@pytest.mark.parametrize(
    ("datatype", "fields", "text"),
    [
        (D.INT32, {"fp32_contents": [1.0]}, "'X' is INT32 and has fp32_contents: expected int"),
        (D.FP16, {"fp32_contents": [1.0]}, "FP16 and has fp32_contents: expected raw"),
        (D.BF16, {"uint_contents": [1]}, "BF16 and has uint_contents: expected raw"),
        (D.FP32, {"fp32_contents": [1], "int_contents": [1]}, "both int_.* and fp32_contents"),
        (D.FP32, {"fp32_contents": [1.0, 2.0]}, "'X' has 2 elements: its shape needs 1"),
        (D.INT64, {"int64_contents": [1, 2]}, "'X' has 2 elements: its shape needs 1"),
        (D.BYTES, {"bytes_contents": [b"", b""]}, "'X' has 2 elements: its shape needs 1"),
        (D.INT8, {"int_contents": [128]}, "128 at index 0: expected INT8 from -128 to 127"),
        (D.INT8, {"int_contents": [-129]}, "has -129 at index 0"),
        (D.INT16, {"int_contents": [2**15]}, "expected INT16 from -32768 to 32767"),
        (D.UINT8, {"uint_contents": [256]}, "expected UINT8 from 0 to 255"),
        (D.UINT16, {"uint_contents": [2**16]}, "expected UINT16 from 0 to 65535"),
        (D.INT8, {"int_contents": [1, -5, 999, 1000]}, "has 999 at index 2"),
    ],
)
def test_rejects(datatype: Datatype, fields: dict[str, Any], text: str) -> None:
    """Contents that do not fit the datatype or the shape are rejected with both values."""
    with pytest.raises(InvalidTensor, match=text):
        read(datatype, 4 if "index 2" in text else 1, contents(**fields))


def test_long_element_is_rejected() -> None:
    """An element over the limit is rejected under the limit's name."""
    limits = MessageLimits(bytes_element_size=3)
    with pytest.raises(TooLarge, match="an element of 4 bytes, at most 3") as caught:
        read(D.BYTES, 1, contents(bytes_contents=[b"plum"]), limits)
    assert "bytes_element_size" == caught.value.limit


def test_many_bytes_elements_are_read() -> None:
    """BYTES contents may have more elements than the limit of fields of a message."""
    count = MAX_FIELDS + 10
    found = read(D.BYTES, count, b"\x42\0" * count)
    assert count == len(found.items)


def test_count_is_checked_before_allocation() -> None:
    """One byte on the wire is 8 in memory, so the number of elements is checked first."""
    data = varint(tag(3, LEN)) + varint(1 << 20) + bytes(1 << 20)
    with pytest.raises(InvalidTensor, match="has 1048576 elements: its shape needs 1"):
        read(D.INT64, 1, data)


@pytest.mark.parametrize(
    "data", [b"\x32\x03abc", b"\x12\x01\x80", b"\x12\x0b" + b"\x80" * 10 + b"\x01", b"\x12"]
)
def test_broken_bytes(data: bytes) -> None:
    """Runs that end inside an element, and overlong varints, are rejected."""
    with pytest.raises((WireError, GatewayError)):
        read(D.INT32 if data[0] == 0x12 else D.FP32, 1, data)


@pytest.mark.parametrize("sizes", [(0,), (3,), (0, 1), (5, 200, 0)])
def test_many_bytes_elements_are_views(sizes: tuple[int, ...]) -> None:
    """Each of many BYTES elements is a view of the message, whatever their lengths."""
    expected = [b"x" * sizes[at % len(sizes)] for at in range(100)]
    data = contents(bytes_contents=expected)
    found = read(D.BYTES, 100, data)
    assert expected == [bytes(item) for item in found.items]
    assert all(isinstance(item, memoryview) for item in found.items)


@pytest.mark.parametrize("count", [99, 101])
def test_the_number_of_many_bytes_elements_is_checked(count: int) -> None:
    """One element more or fewer than the shape needs is rejected."""
    with pytest.raises(InvalidTensor, match=f"has 100 elements: its shape needs {count}"):
        read(D.BYTES, count, contents(bytes_contents=[b"ab"] * 100))


def test_unknown_fields_among_many_bytes_elements_are_ignored() -> None:
    """Elements around an unknown field are found field by field."""
    data = contents(bytes_contents=[b"ab"] * 50) + b"\x7a\x00" + b"\x42\x01c" * 50
    found = read(D.BYTES, 100, data)
    assert [b"ab"] * 50 + [b"c"] * 50 == [bytes(item) for item in found.items]
