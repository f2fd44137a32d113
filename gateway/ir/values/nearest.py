"""Decimals as values of the floats that are narrower than FP64: rounded once, to the nearest.

A parser rounds a decimal to FP64. Where the result lies exactly between two values of FP32, FP16 or
BF16, only the text tells which one is nearer. Such numbers are rare. A message that has one is read
again with `loads_to_odd`, whose values are rounded correctly to any narrower float.

Source: docs/protocols/rows.md, "2. Values"; Boldo and Melquiond, "Emulation of a FMA and Correctly
Rounded Sums: Proved Algorithms Using Rounding to Odd".
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.values.json_objects import reserve_objects
from gateway.ir.work import OBJECT_BYTE, charge

# The bits of a double behind the fraction of a datatype, and its smallest normal value.
_NARROW: Final = {
    Datatype.FP32: (29, 2.0**-126),
    Datatype.FP16: (42, 2.0**-14),
    Datatype.BF16: (45, 2.0**-126),
}
_PIECE: Final = 1 << 16
_DOUBLE: Final = Struct("<d")
_BITS: Final = Struct("<Q")
# A byte of a text that is read to odd costs as much as this many bytes of another text.
_TIMES: Final = 4
# Shorter integers are doubles, and shorter decimals without an exponent have doubles of their own.
_EXACT_DIGITS: Final = 15
_LONG_NUMBER: Final = re.compile(rb"[0-9.]{17}|[0-9.][eE]")


def may_lie_between(values: npt.ArrayLike, datatype: Datatype) -> bool:
    """Return whether a double may lie exactly between two values of a narrower float.

    Args:
        values: Numbers that doubles can hold.
        datatype: FP16, BF16 or FP32; False for any other.
    """
    if datatype not in _NARROW:
        return False
    # Some at a time: the steps of a long array take several times its memory.
    doubles = np.asarray(values, np.float64).reshape(-1)
    return any(
        bool(lies_between(doubles[at : at + _PIECE], datatype).any())
        for at in range(0, doubles.size, _PIECE)
    )


def lies_between(values: npt.ArrayLike, datatype: Datatype) -> npt.NDArray[np.bool_]:
    """Return for each double whether it may lie exactly between two values of a narrower float."""
    doubles = np.asarray(values, np.float64)
    found = _NARROW.get(datatype)
    if found is None:
        return np.zeros(doubles.shape, np.bool_)
    width, least = found
    is_half = (doubles.view(np.uint64) & ((1 << width) - 1)) == 1 << (width - 1)
    # The fraction of smaller numbers is shorter.
    sizes = np.abs(doubles)
    return np.asarray(is_half | ((sizes < least) & (sizes > 0)))


def to_odd(text: str) -> float:
    """Return the double next to a decimal: of the two around it, the one whose last bit is 1.

    Raises:
        ValueError: It is no number.
    """
    value = float(text)
    if not math.isfinite(value) or _BITS.unpack(_DOUBLE.pack(value))[0] & 1:
        return value
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits: the value is 0
        return value
    if exact == Decimal(value):
        return value
    return math.nextafter(value, math.inf if exact > Decimal(value) else -math.inf)


def loads_to_odd(text: bytes | memoryview | str) -> Any:
    """Return the JSON value that *text* begins with, its decimals as `to_odd` returns them.

    It is for texts that a parser has read: those with NaN and infinities, too.
    """
    charge(len(text) * OBJECT_BYTE * _TIMES)
    if not isinstance(text, str):  # those that are have been checked
        reserve_objects(text)
    decoder = json.JSONDecoder(parse_float=to_odd, parse_int=_integer)
    source = text if isinstance(text, str) else str(text, "utf-8-sig")
    return decoder.raw_decode(source.lstrip(" \t\r\n"))[0]


class Reread:
    """Reads a value again from the text of its message, its decimals as `to_odd` returns them.

    Args:
        text: The whole text.
        read: Returns the value.
    """

    def __init__(self, text: bytes | memoryview, read: Callable[[], Any]) -> None:
        self._text = text
        self._read = read

    def __call__(self) -> Any:
        """Return the value."""
        return self._read()

    def then(self, part: Callable[[Any], Any]) -> "Reread":
        """Return what reads a part of the value."""
        return Reread(self._text, lambda: part(self._read()))

    @property
    def has_long_numbers(self) -> bool:
        """Whether a decimal may be no integer, though its double is one."""
        return _LONG_NUMBER.search(self._text) is not None


class DecimalMembers(dict[str, Any]):
    """Members of an object of JSON whose datatypes are unknown, and what reads them again.

    Args:
        members: Their values.
        reread: Returns all members, their decimals as `to_odd` returns them.
    """

    __slots__ = ("_reread",)

    def __init__(self, members: Mapping[str, Any], reread: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__(members)
        self._reread = reread

    def to_odd(self, name: str) -> Any:
        """Return a member with its decimals as `to_odd` returns them."""
        return self._reread()[name]


def renamed_members(members: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return members with other names, by their own; those without one keep theirs."""
    found = {names.get(name, name): value for name, value in members.items()}
    if not isinstance(members, DecimalMembers):
        return found
    own = {names.get(name, name): name for name in members}
    return DecimalMembers(found, lambda: {name: members.to_odd(each) for name, each in own.items()})


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= _EXACT_DIGITS else to_odd(text)
