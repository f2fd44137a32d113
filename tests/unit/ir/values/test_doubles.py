"""Numbers of protocols that carry doubles: both readers agree with exact arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.tensors.data import UntypedRules
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.values.doubles import MOST_EXACT, NotExact, exact_array, exact_list, reads_doubles

RULES = UntypedRules(has_whole_floats=True, has_doubles_only=True)
WHOLE = UntypedRules(has_whole_floats=True)
BITS = UntypedRules(has_bits=True)
FLOATS = st.one_of(
    st.floats(),
    st.integers(-(2**54), 2**54).map(float),
    st.sampled_from([2.0**53, 2.0**53 + 2, -(2.0**53), 0.5, -0.0, math.nan, math.inf]),
)


def first_wrong(values: list[float]) -> int | None:
    """Return where the first value is that is no integer of at most 2**53; None for nowhere."""
    for index, each in enumerate(values):
        if not math.isfinite(each) or each != int(each) or abs(int(each)) > MOST_EXACT:
            return index
    return None


@given(st.lists(FLOATS, min_size=1, max_size=8))
def test_a_float_is_an_integer_exactly_or_refused(values: list[float]) -> None:
    """A list and an array have the same integers, and refuse the same values."""
    wrong = first_wrong(values)
    found = exact_list(list(values), Datatype.INT64, RULES)
    array = exact_array(np.array(values), Datatype.INT64, RULES)
    if wrong is None:
        assert [int(each) for each in values] == found
        assert isinstance(array, np.ndarray)
        assert array.tolist() == found
    else:
        assert isinstance(found, NotExact)
        assert isinstance(array, NotExact)
        assert found.index == wrong
        assert first_wrong([values[array.index]]) == 0


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_an_integer_is_a_double_or_refused(values: list[int]) -> None:
    """Without doubles on the wire, all integers are themselves."""
    wrong = next((at for at, each in enumerate(values) if abs(each) > MOST_EXACT), None)
    array = np.array(values, np.int64)
    for found in (
        exact_list(list(values), Datatype.INT64, RULES),
        exact_array(array, Datatype.INT64, RULES),
    ):
        if wrong is None:
            assert values == list(found)  # type: ignore[arg-type]  # neither is an error
        else:
            assert isinstance(found, NotExact)
            assert found.index == wrong
    assert values == exact_list(list(values), Datatype.INT64, WHOLE)
    assert exact_array(array, Datatype.INT64, WHOLE) is array


@pytest.mark.parametrize("values", [[0.0, 1.0, -0.0], [1, 0]])
def test_bits_are_booleans(values: list[float]) -> None:
    """Any other number is none."""
    assert [bool(each) for each in values] == exact_list(list(values), Datatype.BOOL, BITS)
    found = exact_array(np.array(values), Datatype.BOOL, BITS)
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [bool(each) for each in values]
    assert exact_array(np.array([*values, 2]), Datatype.BOOL, BITS) == NotExact(
        len(values), "true, false, 0 or 1 for BOOL"
    )
    assert exact_list([2, True, "x"], Datatype.BOOL, BITS) == [2, True, "x"]


def test_floats_and_texts_have_no_rule_of_doubles() -> None:
    """Only integers have a rule of their own, and booleans where bits are."""
    assert reads_doubles(Datatype.INT8, WHOLE)
    assert reads_doubles(Datatype.BOOL, BITS)
    for datatype in (Datatype.FP32, Datatype.BYTES, Datatype.BOOL):
        assert not reads_doubles(datatype, RULES)
