"""Shapes and elements of JSON as numpy converts them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gateway.ir.errors import InvalidTensor, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.data import ArrayData, ItemsData, JsonItemsData
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.oip.json.numpy_elements import as_dimensions, convert_elements

INF, NAN = math.inf, math.nan


def converted(datatype: str, shape: list[int], data: Any, *, half: bool = True) -> Any:
    found, filled = convert_elements(
        "X", Datatype(datatype), shape, data, DEFAULT_LIMITS, half=half
    )
    assert isinstance(found, ArrayData)
    assert filled == found.array.shape
    assert Datatype(datatype).numpy_dtype == found.array.dtype
    return found.array


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("FP32", [1.5, None], [1.5, NAN]),
        ("FP64", [None, 2], [NAN, 2]),
        ("FP16", [1.5, None], [1.5, NAN]),
        ("FP32", ["NaN", "-Infinity", "1.5"], [NAN, -INF, 1.5]),
        ("FP32", [1e39, True], [INF, 1]),
        ("INT64", [1.0, 1e3, -0.0], [1, 1000, 0]),
        ("INT64", [1.5, -1.5, "7", True], [1, -1, 7, 1]),
        ("UINT8", [1e2, 255], [100, 255]),
        ("BOOL", [1, 0, 2.5, "x", "", None], [True, False, True, True, False, False]),
    ],
    ids=str,
)
def test_elements_are_those_of_numpy(datatype: str, data: list[Any], expected: list[Any]) -> None:
    """Each element is what numpy makes of it in the datatype."""
    found = converted(datatype, [len(data)], data)
    np.testing.assert_array_equal(np.array(expected, found.dtype), found)


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("INT64", [None]),
        ("INT64", [1e300]),
        ("INT64", [NAN]),
        ("INT64", ["1.0"]),
        ("INT64", [{"a": 1}]),
        ("UINT8", [256]),
        ("UINT8", [-1]),
        ("FP32", ["x"]),
        ("FP32", [[1], [2, 3]]),
        ("BF16", [1.0]),
    ],
    ids=str,
)
def test_elements_that_numpy_refuses_are_refused(datatype: str, data: list[Any]) -> None:
    """No element is guessed, and a ragged list has none."""
    with pytest.raises(InvalidTensor, match="'X'"):
        converted(datatype, [-1], data)


def test_half_floats_may_be_refused() -> None:
    """KServe takes no FP16 as numbers."""
    with pytest.raises(InvalidTensor, match="is FP16, which JSON cannot represent"):
        converted("FP16", [1], [1.0], half=False)


@pytest.mark.parametrize(
    ("shape", "data", "expected"),
    [
        ([-1], [1, 2], (2,)),
        ([-1, 2], [1, 2, 3, 4], (2, 2)),
        ([2, -1], [[1, 2], [3, 4]], (2, 2)),
        ([4], [[1, 2], [3, 4]], (4,)),
        ([2, 2], [[1], [2], [3], [4]], (2, 2)),
        ([-1], [], (0,)),
        ([1], 5, (1,)),
        ([], [5], ()),
    ],
    ids=str,
)
def test_one_dimension_follows_from_the_elements(
    shape: list[int], data: Any, expected: tuple[int, ...]
) -> None:
    """The nesting of lists does not matter, and -1 stands for what is left."""
    assert expected == converted("INT64", shape, data).shape


@pytest.mark.parametrize("shape", [[3, -1], [3], [0, -1]], ids=str)
def test_elements_must_fill_the_shape(shape: list[int]) -> None:
    """A shape that the elements do not fill is refused."""
    with pytest.raises(InvalidTensor, match="has 4 elements in data"):
        converted("INT64", shape, [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([2, -1], [2, -1]),
        (["2", 3.0, True], [2, 3, 1]),
        ([-1, -1], None),
        ([-2], None),
        ([1.5], None),
        ([None], None),
        (["x"], None),
        ("2", None),
    ],
    ids=str,
)
def test_dimensions_are_converted(shape: Any, expected: list[int] | None) -> None:
    """A dimension is an integer in any form, and at most one is -1."""
    assert expected == as_dimensions(shape)


def test_bytes_elements_are_strings_or_json() -> None:
    """Elements that are all strings are text; others keep their JSON."""
    texts, shape = convert_elements(
        "X", Datatype.BYTES, [-1], [["a"], ["é"]], DEFAULT_LIMITS, half=True
    )
    assert isinstance(texts, ItemsData)
    assert ([b"a", "é".encode()], (2,)) == (texts.items, shape)
    mixed, _ = convert_elements(
        "X", Datatype.BYTES, [4], ["a", None, 5, {"b": [1]}], DEFAULT_LIMITS, half=True
    )
    assert isinstance(mixed, JsonItemsData)
    assert [b'"a"', b"null", b"5", b'{"b":[1]}'] == mixed.values


def test_bytes_elements_are_bounded() -> None:
    """The limit on an element holds for its text."""
    limits = MessageLimits(bytes_element_size=4)
    with pytest.raises(TooLarge, match="has an element of 5 bytes") as caught:
        convert_elements("X", Datatype.BYTES, [1], ["abcde"], limits, half=True)
    assert "bytes_element_size" == caught.value.limit
