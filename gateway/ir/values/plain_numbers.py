"""JSON numbers that need no second look, as most are: one list, or lists of one length.

`untyped.py` has all others, and every error.
"""

import struct
from itertools import chain
from typing import Any, Final

from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.data import RawData, UntypedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor
from gateway.ir.values.nearest import may_lie_between
from gateway.ir.values.number_lists import CODES, packer
from gateway.ir.work import JSON_NUMBER, LIST, charge

_TABLE: Final = 2
_INT, _FLOAT, _BOOL = frozenset({int}), frozenset({int, float}), frozenset({bool})


def plain_numbers(
    name: str, data: UntypedData, declared: TensorMetadata, datatype: Datatype
) -> Tensor | None:
    """Return the tensor of a list of numbers, or None where it needs a check or is wrong.

    Args:
        name: Name of the tensor.
        data: The value of one tensor, a list.
        declared: What the model declares.
        datatype: The datatype that it declares.
    """
    value, expected, rules = data.value, declared.shape, data.rules
    is_strict = (
        not rules.has_nonfinite
        if datatype.is_float
        else rules.has_doubles_only and datatype.is_integer
    )
    if expected is None or not value or rules.has_texts or is_strict or datatype not in CODES:
        return None
    shape, flat = _flat(value, len(expected))
    if len(shape) != len(expected):
        return None
    for size, dim in zip(shape, expected, strict=True):
        if dim not in (-1, size):
            return None
    charge(len(value) * LIST + len(flat) * JSON_NUMBER)
    allowed = _INT if datatype.is_integer else _FLOAT if datatype.is_float else _BOOL
    if not allowed.issuperset(map(type, flat)):
        return None
    try:
        packed = packer(datatype, len(flat))(*flat)
        if not datatype.is_float or not may_lie_between(flat, datatype):
            return Tensor(name, datatype, shape, RawData(memoryview(packed)))
    except (struct.error, OverflowError):
        pass  # `untyped.py` has the error
    return None


def _flat(value: list[Any], rank: int) -> tuple[Shape, list[Any]]:
    """Return shape and elements; the shape () for lists that are nested in another way."""
    if rank != _TABLE:
        return (len(value),), value
    first = value[0]
    if type(first) is not list:
        return (), value
    width = len(first)
    for row in value:
        if type(row) is not list or len(row) != width:
            return (), value
    return (len(value), width), first if len(value) == 1 else list(chain.from_iterable(value))
