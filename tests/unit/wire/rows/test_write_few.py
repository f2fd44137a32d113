"""Few rows of integers have the text that the general writer gives them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gateway.ir.tensors.tensor import Tensor, array_tensor
from gateway.wire.rows.write import RowStyle, columns_json, rows_json, value_json
from gateway.wire.rows.write_few import few_rows

A = array_tensor("a", np.array([[1, -2], [3, 127]], np.int8))
C = array_tensor("c", np.array([[0] * 3, [10, 99, -100]], np.int64))
B = array_tensor("é", np.array([[2**64 - 1], [0]], np.uint64))


@pytest.mark.parametrize("outputs", [(A,), (A, B), (B, A, C)], ids=len)
def test_rows_and_columns_are_json_of_the_elements(outputs: tuple[Tensor, ...]) -> None:
    """64-bit integers are whole, and each output has its name."""
    values = {
        each.name: value.tolist() for each, value in zip(outputs, map(_array, outputs), strict=True)
    }
    rows, columns = few_rows(outputs, False), few_rows(outputs, True)
    assert rows is not None
    assert columns is not None
    if len(outputs) == 1:
        assert values[outputs[0].name] == json.loads(rows) == json.loads(columns)
        return
    pairs = zip(*values.values(), strict=True)
    assert [dict(zip(values, row, strict=True)) for row in pairs] == json.loads(rows)
    assert values == json.loads(columns)


@pytest.mark.parametrize(
    "outputs",
    [
        (array_tensor("a", np.zeros((1, 2), np.float32)),),
        (array_tensor("a", np.zeros((1, 2), np.bool_)),),
        (array_tensor("a", np.zeros(2, np.int32)),),
        (array_tensor("a", np.zeros((1, 1, 2), np.int32)),),
        (array_tensor("a", np.zeros((100, 2), np.int32)),),
        (A, array_tensor("b", np.zeros((3, 1), np.int32))),
        (),
    ],
    ids=["float", "bool", "rank_1", "rank_3", "many", "other_count", "none"],
)
def test_other_outputs_have_no_text(outputs: tuple[Tensor, ...]) -> None:
    """The writer returns None for them."""
    assert few_rows(outputs, False) is None
    assert few_rows(outputs, True) is None


def test_the_general_writers_use_it() -> None:
    """All three functions have the same text for the same elements."""
    style = RowStyle()
    assert few_rows((A, B), False) == rows_json((A, B), style)
    assert few_rows((A, B), True) == columns_json((A, B), style)
    assert few_rows((A,), False) == value_json(A, style) == rows_json([A], style)


def _array(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return tensor.data.array  # type: ignore[union-attr]  # they are arrays
