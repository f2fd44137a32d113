"""Numbers of a protocol that carries doubles, as integers and booleans: exact, or refused.

`untyped.py` reads all values, and has the place of each in its message.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gateway.ir.tensors.data import UntypedRules
from gateway.ir.tensors.datatypes import Datatype

MOST_EXACT: Final = 1 << 53
"""Every integer up to it is a double, and no other integer becomes that double."""

_BITS: Final = {0: False, 1: True}


class NotExact(Struct, frozen=True):
    """The first element that is none of the datatype.

    Attributes:
        index: Where it stands among the elements.
        expected: What is expected.
    """

    index: int
    expected: str


def reads_doubles(datatype: Datatype, rules: UntypedRules) -> bool:
    """Return whether elements of the datatype are read here first."""
    if datatype is Datatype.BOOL:
        return rules.has_bits
    return datatype.is_integer and (rules.has_whole_floats or rules.has_doubles_only)


def exact_list(flat: list[Any], datatype: Datatype, rules: UntypedRules) -> list[Any] | NotExact:
    """Return elements, those that are whole as integers; other kinds of values are unchanged."""
    if datatype is Datatype.BOOL:
        return [_BITS.get(each, each) if type(each) in (int, float) else each for each in flat]
    kinds = set(map(type, flat))
    if not rules.has_doubles_only and float not in kinds:
        return flat
    found: list[Any] = []
    for index, each in enumerate(flat):
        if type(each) is float and rules.has_whole_floats:
            if not each.is_integer():
                return NotExact(index, f"an integer for {datatype.name}")
            if abs(each) > MOST_EXACT:
                return _too_large(index)
            found.append(int(each))
            continue
        if type(each) is int and rules.has_doubles_only and abs(each) > MOST_EXACT:
            return _too_large(index)
        found.append(each)
    return found


def exact_array(
    values: npt.NDArray[Any], datatype: Datatype, rules: UntypedRules
) -> npt.NDArray[Any] | NotExact:
    """Return 64-bit numbers, those that are whole as integers."""
    if datatype is Datatype.BOOL:
        wrong = (values != 0) & (values != 1)
        found = _first(wrong, "true, false, 0 or 1 for BOOL")
        return values.astype(np.bool_) if found is None else found
    if values.dtype.kind == "f" and rules.has_whole_floats:
        wrong = ~(np.isfinite(values) & (np.floor(values) == values))
        found = _first(wrong, f"an integer for {datatype.name}")
        found = found or _first(np.abs(values) > MOST_EXACT, _expected())
        return values.astype(np.int64) if found is None else found
    if values.dtype.kind != "f" and rules.has_doubles_only and values.size:
        wrong = (values > MOST_EXACT) | (values < -MOST_EXACT)
        return _first(wrong, _expected()) or values
    return values


def _first(wrong: npt.NDArray[np.bool_], expected: str) -> NotExact | None:
    return NotExact(int(np.argmax(wrong)), expected) if wrong.any() else None


def _too_large(index: int) -> NotExact:
    return NotExact(index, _expected())


def _expected() -> str:
    return "an integer of at most 2**53, beyond which doubles are not exact"
