"""Verdicts of the comparison by fractions, element by element, and values that are hard to judge.

Written from the table of the specification alone; it shares no code with `gateway.migration.compare`.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from gateway.ir.tensors.datatypes import Datatype

Number = int | float


def value(datatype: Datatype, bits: int) -> Number:
    """Return the number of a bit pattern."""
    size = datatype.size_bytes
    if datatype is Datatype.BF16:
        return float(struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0])
    if datatype.is_float:
        code = {2: "<e", 4: "<f", 8: "<d"}[size]
        return float(struct.unpack(code, bits.to_bytes(size, "little"))[0])
    signed = datatype.name.startswith("INT")
    return int.from_bytes(bits.to_bytes(size, "little"), "little", signed=signed)


def special_agrees(a: Number, b: Number, nan_equal: bool) -> bool | None:
    """Return the verdict of a pair with NaN or infinity; None for two finite numbers."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b) and nan_equal
    if math.isinf(a) or math.isinf(b):
        return a == b
    return None


def tolerance(a: Number, b: Number, atol: float, rtol: float, nan_equal: bool = True) -> bool:
    special = special_agrees(a, b, nan_equal)
    if special is not None:
        return special
    old, new = Fraction(a), Fraction(b)
    return abs(old - new) <= Fraction(atol) + Fraction(rtol) * abs(old)


def step_count(datatype: Datatype, a_bits: int, b_bits: int) -> int:
    """Return how many values lie from one finite pattern to another, by counting patterns."""
    if not datatype.is_float:
        return abs(int(value(datatype, a_bits)) - int(value(datatype, b_bits)))
    sign = 1 << (datatype.size_bytes * 8 - 1)
    places = [-(bits - sign) if bits & sign else bits for bits in (a_bits, b_bits)]
    return abs(places[0] - places[1])


def cosine(a: Sequence[Number], b: Sequence[Number], least: float) -> bool:
    if not any(a) or not any(b):
        return not any(a) and not any(b)
    x, y = [Fraction(each) for each in a], [Fraction(each) for each in b]
    dot = sum((p * q for p, q in zip(x, y, strict=True)), Fraction(0))
    squares = sum(p * p for p in x) * sum(q * q for q in y)
    # The sign of dot - least * sqrt(squares), without a root.
    bound = Fraction(least)
    left, right = dot * abs(dot), bound * abs(bound) * squares
    return left >= right


def top_k(a: Sequence[Number], b: Sequence[Number], count: int, order: bool) -> bool:
    """Try every set of the largest elements that is valid on both sides."""
    count = min(count, len(a))
    for subset in itertools.combinations(range(len(a)), count):
        rest = [each for each in range(len(a)) if each not in subset]
        if any(side[i] < side[j] for side in (a, b) for i in subset for j in rest):
            continue
        if not order or not any(a[i] > a[j] and b[i] < b[j] for i in subset for j in subset):
            return True
    return False


_HARD_BITS = {
    Datatype.BOOL: (0, 1),
    Datatype.FP64: (
        0,
        1,
        2,
        1 << 63,
        (1 << 63) + 1,
        0x7FF0000000000000,
        0xFFF0000000000000,
        0x7FEFFFFFFFFFFFFF,
        0xFFEFFFFFFFFFFFFF,
        0x7FF8000000000000,
        0x7FF8000000000001,
        0x0010000000000000,
        0x000FFFFFFFFFFFFF,
        0x3FF0000000000000,
        0x3FF0000000000001,
        0x4340000000000000,
        0x4340000000000001,
    ),
    Datatype.FP32: (
        0,
        1,
        1 << 31,
        0x80000001,
        0x7F800000,
        0xFF800000,
        0x7F7FFFFF,
        0xFF7FFFFF,
        0x7FC00000,
        0x7FC00001,
        0x00800000,
        0x007FFFFF,
        0x3F800000,
        0x3F800001,
    ),
    Datatype.FP16: (0, 1, 1 << 15, 0x8001, 0x7C00, 0xFC00, 0x7BFF, 0xFBFF, 0x7E00, 0x3C00, 0x3C01),
    Datatype.BF16: (0, 1, 1 << 15, 0x8001, 0x7F80, 0xFF80, 0x7F7F, 0xFF7F, 0x7FC0, 0x3F80, 0x3F81),
}


def hard_bits(datatype: Datatype) -> tuple[int, ...]:
    """Return patterns for which FP64 arithmetic is inexact."""
    found = _HARD_BITS.get(datatype)
    if found is not None:
        return found
    bits = datatype.size_bytes * 8
    top = (1 << bits) - 1
    values = {0, 1, 2, top, top - 1, top >> 1, (top >> 1) + 1, (top >> 1) - 1}
    if bits == 64:
        values |= {(1 << 53) - 1, 1 << 53, (1 << 53) + 1, (1 << 53) + 2}
    return tuple(sorted(values))


def random_bits(
    datatype: Datatype, count: int, generator: np.random.Generator
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return *count* pairs of patterns: hard, random, equal, and close ones."""
    bits = datatype.size_bytes * 8
    hard = np.array(hard_bits(datatype), np.uint64)
    top = 1 if datatype is Datatype.BOOL else (1 << bits) - 1

    def draw() -> npt.NDArray[np.uint64]:
        anything = generator.integers(0, top, count, np.uint64, endpoint=True)
        return np.where(generator.random(count) < 0.3, generator.choice(hard, count), anything)

    a = draw()
    near = (a + generator.integers(0, 4, count, np.uint64)) & np.uint64(top)
    kind = generator.random(count)
    return a, np.where(kind < 0.2, a, np.where(kind < 0.6, near, draw()))
