"""What is sent through every cell of the matrix: values of every datatype, in every kind of shape.

A case's traits say what is special about its values; `refusals.py` goes by them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.ir.tensors.datatypes import Datatype

NAN, INFINITE, NOT_TEXT, FILLED, HUGE = "nan", "infinite", "not text", "filled", "huge"

# Scalar, empty, one, a batch, rank 5, and two lengths of a dimension that varies.
SHAPES = ((), (0,), (2, 0, 3), (1,), (4, 3), (1, 2, 1, 2, 3), (7,), (1, 130))

_INT64_MAX = (1 << 63) - 1
_ORDINARY_TEXT = [b"", b"a", "Zoë 模型 😀".encode(), b"with \x00 \n\t\x1f", b'"\\/', b"x" * 300]


@dataclass(frozen=True, eq=False)
class Case:
    """One tensor.

    Attributes:
        array: Of the datatype's dtype; BF16 as bit patterns.
        special: What some protocol may not be able to carry; "" for nothing.
    """

    name: str
    datatype: Datatype
    array: npt.NDArray[Any]
    special: str = ""

    @functools.cached_property
    def traits(self) -> frozenset[str]:
        """Its special one, whether there is any element, and one beyond 64 bits with a sign."""
        found = {self.special, FILLED} if self.array.size else {self.special}
        if self.datatype is Datatype.UINT64 and (self.array > _INT64_MAX).any():
            found.add(HUGE)
        return frozenset(found)


@functools.cache
def cases(datatype: Datatype) -> tuple[Case, ...]:
    """Return the cases of a datatype, the same ones for all tests."""
    ordinary = _ordinary(datatype)
    found = [
        Case("x".join(map(str, shape)) or "scalar", datatype, _filled(ordinary, shape))
        for shape in SHAPES
    ]
    if datatype is Datatype.BYTES:
        odd = _objects([b"\xff\xfe", b"\x80", b"ok"])
        found.append(Case("not-utf8", datatype, odd.reshape(1, 3), NOT_TEXT))
    if datatype is Datatype.BOOL:
        odd_bytes = np.array([[0, 2, 255, 1]], "u1")
        found.append(Case("odd-bytes", datatype, odd_bytes.view("?")))
    if datatype.is_float:
        found.append(_special("nan", datatype, [1.0, np.nan], NAN))
        found.append(_special("infinities", datatype, [np.inf, 0.5, -np.inf], INFINITE))
    for case in found:
        case.array.setflags(write=False)
    return tuple(found)


def _special(name: str, datatype: Datatype, values: list[float], trait: str) -> Case:
    array = _of_floats(datatype, np.array(values, "<f4"))
    return Case(name, datatype, array.reshape(1, len(values)), trait)


def _ordinary(datatype: Datatype) -> npt.NDArray[Any]:
    """Return values that every form of a datatype has: its ends, its smallest, both zeros."""
    if datatype is Datatype.BYTES:
        return _objects(_ORDINARY_TEXT)
    if datatype is Datatype.BOOL:
        return np.array([True, False, False, True, True], "?")
    dtype = datatype.numpy_dtype
    if datatype.is_integer:
        ends = np.iinfo(dtype)
        near = [ends.min, ends.max, 0, 1, ends.max - 1, ends.min + 1, ends.max // 2 + 1]
        return np.array(near, dtype)
    if datatype is Datatype.BF16:
        # 1, -0, the smallest normal and denormal, the largest, pi.
        return np.array([0x3F80, 0x8000, 0x0080, 0x0001, 0x7F7F, 0x4049], dtype)
    info = np.finfo(dtype)
    floats = [1.0, -0.0, info.tiny, info.smallest_subnormal, info.max, info.min, 0.1, 1 / 3]
    return np.array(floats, dtype)


def _of_floats(datatype: Datatype, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if datatype is Datatype.BF16:
        return (values.view("<u4") >> 16).astype("<u2")
    return values.astype(datatype.numpy_dtype)


def _objects(items: list[bytes]) -> npt.NDArray[Any]:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def _filled(values: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return an array of *shape* with *values* over and over."""
    return np.resize(values, shape)
