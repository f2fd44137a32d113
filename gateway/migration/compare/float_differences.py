"""FloatDifferences: how far two chunks of finite floats are apart, in few passes over the elements.

`numbers.py` has the same arithmetic for every datatype, and for NaN and infinities. Here each array
is used again for the next result, so that a chunk stays in the cache of a core.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.tensors.datatypes import Datatype, fp32_of_bf16
from gateway.migration.compare.numbers import (
    ROUNDING,
    UNDERFLOW,
    Array,
    steps,
    values_of,
    within_tolerance,
)

_SMALLEST_RTOL: Final = 1e-290
_NONE: Final = np.zeros(0, np.int64)
_FEW: Final = 64


class FloatDifferences:
    """The differences of two chunks, none of which has NaN or an infinity.

    Args:
        datatype: The datatype of both chunks.
        old: The old elements, one axis.
        new: The new elements, of the same size, at least one.

    Attributes:
        max_abs: Largest abs(a - b).
        worst: Index of the first element with it.
        sum_abs: Sum of abs(a - b).
        max_rel: Largest abs(a - b) / abs(a) of the elements with a different from 0.
        sum_rel: Sum of the same.
        relative: Number of these elements.
    """

    def __init__(self, datatype: Datatype, old: Array, new: Array) -> None:
        self._datatype, self._old, self._new = datatype, old, new
        magnitude, other = _wide(datatype, old), _wide(datatype, new)
        distance = np.subtract(magnitude, other)
        self._distance = np.abs(distance, out=distance)
        self.worst = int(distance.argmax())
        self.max_abs = float(distance[self.worst])
        self.sum_abs = float(np.add.reduce(distance))
        self._magnitude = np.abs(magnitude, out=magnitude)
        ratio = np.divide(distance, magnitude, out=other)
        self.relative = len(ratio)
        self._has_only_relative = True
        self.max_rel = float(np.maximum.reduce(ratio))
        if not math.isfinite(self.max_rel):  # of 0, or of a subnormal number
            is_zero = magnitude == 0
            ratio[is_zero] = 0.0
            self.relative -= int(np.count_nonzero(is_zero))
            self._has_only_relative = not distance[is_zero].any()
            self.max_rel = float(np.maximum.reduce(ratio))
        self.sum_rel = float(np.add.reduce(ratio))

    @classmethod
    def of(cls, datatype: Datatype, old: Array, new: Array) -> FloatDifferences | None:
        """Return the differences; None if NaN, an infinity or an overflow is among them."""
        with np.errstate(all="ignore"):
            found = cls(datatype, old, new)
        return found if math.isfinite(found.sum_abs) else None

    def max_steps(self) -> int:
        """Return the largest number of representable values between two elements."""
        bits = f"<i{self._datatype.size_bytes}"
        a = np.ascontiguousarray(self._old).view(bits)
        b = np.ascontiguousarray(self._new).view(bits)
        across = np.bitwise_xor(a, b)
        if np.minimum.reduce(across) >= 0:  # equal signs: patterns in the order of the magnitudes
            apart = np.subtract(a, b, out=across)
            return max(int(np.maximum.reduce(apart)), -int(np.minimum.reduce(apart)))
        is_across = across < 0
        apart = np.subtract(a, b, out=across)
        apart[is_across] = 0
        far = steps(self._datatype, self._old[is_across], self._new[is_across])
        return max(int(apart.max()), -int(apart.min()), int(far.max()))

    def decades(self, first: int, last: int) -> dict[int, int]:
        """Return the number of elements that differ by the decimal exponent of the difference.

        Args:
            first: Smaller exponents count as this one.
            last: Larger exponents count as this one.
        """
        if len(self._distance) <= _FEW:
            return self._decades_of_few(first, last)
        found: dict[int, int] = {}
        before, total = 0, int(np.count_nonzero(self._distance > 0))
        for exponent in range(last, first, -1):
            if before == total:
                return found
            if self.max_abs >= 10.0**exponent:
                at_least = int(np.count_nonzero(self._distance >= 10.0**exponent))
                found[exponent] = at_least - before
                before = at_least
        found[first] = total - before
        return found

    def _decades_of_few(self, first: int, last: int) -> dict[int, int]:
        """Return the same, one element after the other."""
        limits = _limits(first, last)
        found: dict[int, int] = {}
        for distance in self._distance.tolist():
            if distance > 0:
                exponent = first + bisect_right(limits, distance)
                found[exponent] = found.get(exponent, 0) + 1
        return found

    def beyond(self, atol: float, rtol: float) -> npt.NDArray[np.int64]:
        """Return the indexes for which abs(a - b) <= atol + rtol * abs(a) does not hold, exactly.

        It may be called once: it overwrites the magnitudes.
        """
        if self.max_abs * (1 + ROUNDING) + UNDERFLOW <= atol:
            return _NONE
        is_relative = self._has_only_relative and rtol > _SMALLEST_RTOL
        if is_relative and self.max_rel * (1 + ROUNDING) <= rtol:
            return _NONE
        with np.errstate(all="ignore"):
            bound = np.multiply(self._magnitude, rtol, out=self._magnitude)
            bound += atol
            bound *= 1 - 4 * ROUNDING
            bound -= 2 * UNDERFLOW
            unsure = np.flatnonzero(~(self._distance <= bound))
            if not len(unsure):
                return _NONE
            high = bound[unsure] * (1 + 16 * ROUNDING) + 8 * UNDERFLOW
            is_beyond: npt.NDArray[Any] = self._distance[unsure] > high
        close = np.flatnonzero(~is_beyond)
        if len(close):
            places = unsure[close]
            x, y = (values_of(self._datatype, each[places]) for each in (self._old, self._new))
            is_beyond[close] = ~within_tolerance(x, y, atol, rtol, nan_equal=True)
        beyond: npt.NDArray[np.int64] = unsure[is_beyond]
        return beyond


def _wide(datatype: Datatype, array: Array) -> Array:
    """Return floats as float64, without a context of its own for signalling NaN."""
    wide = fp32_of_bf16(array) if datatype is Datatype.BF16 else array
    return wide.astype(np.float64)


@lru_cache(16)
def _limits(first: int, last: int) -> list[float]:
    return [10.0**exponent for exponent in range(first + 1, last + 1)]
