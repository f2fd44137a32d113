from __future__ import annotations

import pytest

from gateway.ir.context import ModelRef
from gateway.ir.tensors.expected_inputs import (
    UncheckedInputs,
    compare_inputs,
    find_mismatch,
    is_comparing,
    with_expected_inputs,
)

M = ModelRef("m")


def test_compare_inputs_does_nothing_outside_comparing() -> None:
    """A codec that reads a short message or a response compares nothing."""
    assert not is_comparing()
    compare_inputs(M, ["a"])


def test_inputs_that_are_not_accepted_raise() -> None:
    """UncheckedInputs ends decoding, with the model and the input names."""

    def read() -> bool:
        compare_inputs(M, iter(["x", "a"]))
        return is_comparing()

    assert with_expected_inputs(lambda model, names: (model, names) == (M, ("x", "a")), read)
    with pytest.raises(UncheckedInputs) as raised:
        with_expected_inputs(lambda _model, _names: False, read)
    assert (M, ("x", "a")) == (raised.value.model, raised.value.names)
    assert not is_comparing()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), None),
        (("b",), None),
        (("b", "a"), None),
        (("", ""), None),
        (("a", "x"), "model 'm' has no input 'x'; its inputs are 'a', 'b'"),
        (("", "", ""), "model 'm' has 2 inputs, the message has 3"),
        (("a", "a", "b"), "model 'm' has 2 inputs, the message has 3"),
    ],
)
def test_find_mismatch_reports_unknown_and_surplus_inputs(
    names: tuple[str, ...], expected: str | None
) -> None:
    """Unknown names and too many inputs are errors; missing inputs are left to the model."""
    found = find_mismatch(M, names, ("a", "b"))
    assert expected == (None if found is None else found.message)
