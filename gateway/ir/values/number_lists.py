"""Lists of numbers in JSON: their codes, their nesting, and the way from a parser to an array.

`simdjson` keeps a large list as a proxy, whose numbers never become Python objects.
"""

import struct
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import simdjson

from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape

CODES: Final = {
    Datatype.BOOL: "?",
    Datatype.UINT8: "B",
    Datatype.UINT16: "H",
    Datatype.UINT32: "I",
    Datatype.UINT64: "Q",
    Datatype.INT8: "b",
    Datatype.INT16: "h",
    Datatype.INT32: "i",
    Datatype.INT64: "q",
    Datatype.FP16: "e",
    Datatype.FP32: "f",
    Datatype.FP64: "d",
}
_WIDE: Final[dict[str, npt.DTypeLike]] = {"d": "=f8", "u": "=u8", "i": "=i8"}


_NUMBERS: Final = frozenset({int, float})


def packer(datatype: Datatype, count: int) -> Callable[..., bytes]:
    """Return a function that packs *count* numbers or booleans into their wire form."""
    return struct.Struct(f"<{count}{CODES[datatype]}").pack


def nested_shape(value: Any) -> Shape:
    """Return the shape of nested lists by their first items; an array has its own."""
    if isinstance(value, np.ndarray):
        return tuple(value.shape)
    shape = []
    while type(value) is list:
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def nested_numbers(value: Any) -> tuple[Shape, list[Any]] | None:
    """Return shape and elements of regular lists of numbers; None for others, and empty ones."""
    shape = nested_shape(value)
    flat = unnested(value, shape) if shape and 0 not in shape else None
    if flat is None or not _NUMBERS.issuperset(map(type, flat)):
        return None
    return shape, flat


def unnested(data: list[Any], shape: Shape) -> list[Any] | None:
    """Return the elements of lists nested exactly as *shape*; None for other nesting."""
    rows = [data]
    for dim in shape:
        for row in rows:
            if type(row) is not list or len(row) != dim:
                return None
        rows = list(chain.from_iterable(rows))
    return rows


def leaves(value: Any) -> Iterator[Any]:
    """Yield the elements of nested lists of any lengths, in order."""
    if type(value) is not list:
        yield value
        return
    for each in value:
        yield from leaves(each)


def is_nested(data: Any, dims: Shape) -> bool:
    """Return whether each item of *data* is a list of dims[0] items, and so on."""
    if not dims:
        return False
    size, rest = dims[0], dims[1:]
    for item in data:
        if type(item) is not simdjson.Array or len(item) != size:
            return False
        if rest and not is_nested(item, rest):
            return False
    return True


def buffer_of(data: Any, datatype: Datatype) -> npt.NDArray[Any] | None:
    """Return all numbers below *data* with 64 bits; None when one does not fit."""
    code = "d" if datatype.is_float else "u" if datatype is Datatype.UINT64 else "i"
    try:
        return np.frombuffer(data.as_buffer(of_type=code), _WIDE[code])
    except (TypeError, ValueError):
        return None


def narrowed(values: npt.NDArray[Any], datatype: Datatype) -> npt.NDArray[Any] | None:
    """Return *values* in the datatype's own dtype; None when one does not fit."""
    dtype = datatype.numpy_dtype
    if dtype == values.dtype:
        return values
    if datatype.is_integer:
        if values.size:
            limits = np.iinfo(dtype)
            if values.min() < limits.min or values.max() > limits.max:
                return None
        return values.astype(dtype)
    # JSON has no infinity: a cast that yields one shows that a number is too large.
    try:
        with np.errstate(over="raise"):
            return values.astype(dtype)
    except FloatingPointError:
        return None
