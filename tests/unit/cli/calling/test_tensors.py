"""Tensors as users write and read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.cli.calling.tensors import json_of, read_value, tensor_of
from gateway.ir.errors import InvalidTensor
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor, as_items, as_numpy, items_tensor

NUMBERS = [datatype for datatype in Datatype if datatype.is_integer or datatype.is_float]


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda datatype: datatype.name)
def test_numbers_round_trip(datatype: Datatype) -> None:
    """Values in the range of a datatype are unchanged."""
    value = [[0, 1, 2], [3, 64, 100]]
    found = json_of(tensor_of("X", value, datatype))
    expected = {"name": "X", "datatype": datatype.name, "shape": [2, 3], "data": value}
    assert expected == found


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        (Datatype.BOOL, [True, False]),
        (Datatype.BYTES, ["text", "", "Bäckerei"]),
        (Datatype.BYTES, [{"b64": "/w=="}]),
        (Datatype.FP32, [0.1, -1.5e-30]),
        (Datatype.FP16, [0.1]),
        (Datatype.FP64, [0.1, 1e308]),
        (Datatype.BF16, [1.5]),
        (Datatype.INT64, [-(2**63), 2**63 - 1]),
        (Datatype.UINT64, [2**64 - 1]),
        (Datatype.INT8, []),
        (Datatype.INT8, [[], []]),
        (Datatype.INT8, 5),
        (Datatype.INT8, [[[[[1]]]]]),
    ],
)
def test_other_values_round_trip(datatype: Datatype, value: Any) -> None:
    """Text, bytes, booleans, extremes and unusual shapes are unchanged."""
    assert value == json_of(tensor_of("X", value, datatype))["data"]


@pytest.mark.parametrize(
    ("value", "declared", "shape"),
    [
        ([1, 2, 3, 4], (-1, 2), (2, 2)),
        ([1, 2], (-1, 2), (1, 2)),
        (7, (-1,), (1,)),
        (7, (1, 1), (1, 1)),
        ([7], (), ()),
        ([1, 2, 3], (-1, 2), (3,)),
        ([1, 2], (-1, -1), (2,)),
        ([1, 2], (-1, 0), (2,)),
        ([1, 2], (3, 1), (2,)),
        ([[1, 2]], (-1, 1, 2), (1, 2)),
        ([1, 2], None, (2,)),
        ([1, 2], (5,), (2,)),
    ],
)
def test_a_flat_list_takes_an_unambiguous_shape(
    value: Any, declared: tuple[int, ...] | None, shape: tuple[int, ...]
) -> None:
    """It gets the model's shape if it fits in exactly one way; otherwise it stays flat."""
    assert shape == tensor_of("X", value, Datatype.INT32, declared).shape


@pytest.mark.parametrize(
    ("datatype", "value", "message"),
    [
        (Datatype.INT8, [128], "128 is out of range; INT8 is -128 to 127"),
        (Datatype.UINT8, [-1], "-1 is out of range; UINT8 is 0 to 255"),
        (Datatype.UINT64, [2**64], "is out of range; UINT64 is"),
        (Datatype.INT32, [1.0], "1.0 is not an element of INT32"),
        (Datatype.INT32, [True], "true is not an element of INT32"),
        (Datatype.INT32, ["1"], '"1" is not an element of INT32'),
        (Datatype.BOOL, [1], "1 is not an element of BOOL"),
        (Datatype.FP32, [None], "null is not an element of FP32"),
        (Datatype.FP32, [1e39], "1e\\+39 is out of range for FP32"),
        (Datatype.FP16, [65520], "65520.0 is out of range for FP16"),
        (Datatype.BF16, [3.4e38], "3.4e\\+38 is out of range for BF16"),
        (Datatype.FP64, [10**400], "is out of range for FP64"),
        (Datatype.BYTES, [1], "1 is invalid; expected text"),
        (Datatype.BYTES, [{"b64": "?"}], "'b64' is not base64"),
        (Datatype.BYTES, [{"b64": 1}], "'b64' is not base64"),
        (Datatype.INT32, [[1, 2], [3]], "different lengths at the same level"),
        (Datatype.INT32, [[1, 2], [3, 4, 5], [6]], "different lengths at the same level"),
        (Datatype.INT32, [1, [2]], "different lengths at the same level"),
        (Datatype.INT32, [[], [1]], "different lengths at the same level"),
    ],
)
def test_rejects_values_that_would_change(datatype: Datatype, value: Any, message: str) -> None:
    """Values are not wrapped, rounded, converted or padded."""
    with pytest.raises(InvalidTensor, match=message):
        tensor_of("X", value, datatype)


def test_rejects_deep_nesting() -> None:
    """More than 32 axes are rejected, at any depth."""
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidTensor, match="nested deeper than 32"):
        tensor_of("X", value, Datatype.INT32)


def test_fp32_is_rounded_once() -> None:
    """A decimal number becomes the nearest FP32."""
    array = as_numpy(tensor_of("X", [0.1], Datatype.FP32))
    assert np.array_equal(np.array([0.1], np.float32), array)


def test_bytes_are_utf8_or_base64() -> None:
    """Text is sent as UTF-8, base64 as the decoded bytes."""
    tensor = tensor_of("X", ["ä", {"b64": "AAE="}], Datatype.BYTES)
    assert [b"\xc3\xa4", b"\x00\x01"] == [bytes(item) for item in as_items(tensor)]


def test_shows_nan_and_infinities_as_words() -> None:
    """JSON has no numbers for them."""
    array = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert ["NaN", "Infinity", "-Infinity", 1.0] == json_of(array_tensor("Y", array))["data"]


def test_shows_bytes_that_are_not_text() -> None:
    """Elements that are not UTF-8 are shown as base64."""
    assert [{"b64": "/w=="}, "a"] == json_of(items_tensor("Y", (2,), [b"\xff", b"a"]))["data"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("[1, 2]", [1, 2]), ('"text"', "text"), ("9007199254740993", 9007199254740993)],
)
def test_reads_json(text: str, value: Any) -> None:
    """The text is JSON with exact integers."""
    assert value == read_value(text)


def test_reads_json_from_a_file(tmp_path: Path) -> None:
    """@FILE reads the JSON of that file."""
    path = tmp_path / "x.json"
    path.write_text("[1.5]")
    assert [1.5] == read_value(f"@{path}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "'hello' is not JSON"),
        ("", "'' is not JSON"),
        ("[NaN]", "NaN is not JSON"),
        ("[" * 100_000, "JSON"),
        ("@none.json", "cannot read 'none.json': No such file or directory"),
    ],
)
def test_rejects_text_that_is_not_json(text: str, message: str) -> None:
    """The error has the text, or the name of a missing file."""
    with pytest.raises(ValueError, match=message):
        read_value(text)


def test_rejects_a_binary_file(tmp_path: Path) -> None:
    """It is rejected before it is parsed."""
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_value(f"@{path}")
