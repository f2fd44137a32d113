"""Conditions on arrays of numbers, each with the verdict that exact arithmetic gives.

Every condition is computed in FP64 with a bound on its error. Elements within the bound are decided
with fractions, so that no verdict depends on rounding.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.tensors.datatypes import Datatype, bf16_of_fp32, fp32_of_bf16

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_EPSILON: Final = float(np.finfo(np.float64).eps)
# Twice the rounding of the three operations in `atol + rtol * abs(a)`, as a share.
ROUNDING: Final = 8 * _EPSILON
# More than what a product loses when its result is subnormal.
UNDERFLOW: Final = 1e-320
_SIGN64: Final = np.uint64(1 << 63)


def values_of(datatype: Datatype, array: Array) -> Array:
    """Return the elements as float64, or as int64 or uint64 for integers and BOOL."""
    if datatype.is_float:
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            wide = fp32_of_bf16(array) if datatype is Datatype.BF16 else array
            return wide.astype(np.float64)
    return array.astype(np.uint64 if datatype is Datatype.UINT64 else np.int64)


def pairs_of(a: Array, b: Array) -> tuple[Array, Array]:
    """Return values of one dtype: those of uint64 and int64 become Python integers."""
    return (a, b) if a.dtype == b.dtype else (a.astype(object), b.astype(object))


def differences(a: Array, b: Array) -> Array:
    """Return abs(a - b) of each pair from `pairs_of`; exact for integers, as uint64."""
    if a.dtype.kind == "f":
        with np.errstate(invalid="ignore", over="ignore"):
            found: Array = np.abs(a - b)
        return found
    if a.dtype.kind == "O":
        exact: Array = np.abs(a - b)
        return exact
    larger, smaller = np.maximum(a, b), np.minimum(a, b)
    # The difference of two int64 needs 64 bits without a sign: wrapping gives exactly that.
    return larger.view(np.uint64) - smaller.view(np.uint64)


def same_special(a: Array, b: Array, nan_equal: bool) -> tuple[Mask, Mask]:
    """Return which pairs hold NaN or infinity, and which of these pairs agree."""
    if a.dtype.kind != "f":
        none = np.zeros(a.shape, np.bool_)
        return none, none
    special = ~(np.isfinite(a) & np.isfinite(b))
    agree = special & (a == b)
    if nan_equal:
        agree |= np.isnan(a) & np.isnan(b)
    return special, agree


def within_tolerance(a: Array, b: Array, atol: float, rtol: float, nan_equal: bool) -> Mask:
    """Return for which pairs abs(a - b) <= atol + rtol * abs(a) holds exactly.

    Args:
        a: Old values, from `pairs_of`.
        b: New values, of the same shape.
        atol: The absolute tolerance, an exact FP64 number.
        rtol: The relative tolerance, an exact FP64 number.
        nan_equal: Whether NaN agrees with NaN. An infinity agrees with itself only.
    """
    special, agree = same_special(a, b, nan_equal)
    with np.errstate(all="ignore"):
        difference = differences(a, b).astype(np.float64)
        bound = atol + rtol * np.abs(a.astype(np.float64))
        margin = ROUNDING * (difference + bound) + UNDERFLOW
        holds = difference <= bound
        unsure = ~(np.abs(difference - bound) > margin) | ~np.isfinite(margin)
    unsure &= ~special & (a != b)
    holds = np.where(special, agree, holds | (a == b))
    exact_atol, exact_rtol = Fraction(atol), Fraction(rtol)

    def decide(x: Any, y: Any) -> bool:
        old, new = Fraction(x), Fraction(y)
        return abs(old - new) <= exact_atol + exact_rtol * abs(old)

    return _decided(holds, unsure, a, b, decide)


def _decided(
    holds: Mask, unsure: Mask, a: Array, b: Array, decide: Callable[[Any, Any], bool]
) -> Mask:
    """Return *holds* with the *unsure* pairs decided; each different pair is decided once."""
    where = np.flatnonzero(unsure)
    if not len(where):
        return holds
    flat = holds.reshape(-1)
    known: dict[tuple[Any, Any], bool] = {}
    pairs = zip(a.reshape(-1)[where].tolist(), b.reshape(-1)[where].tolist(), strict=True)
    for index, pair in zip(where.tolist(), pairs, strict=True):
        verdict = known.get(pair)
        if verdict is None:
            verdict = known[pair] = decide(*pair)
        flat[index] = verdict
    return flat.reshape(holds.shape)


def ordinals(datatype: Datatype, array: Array) -> npt.NDArray[np.int64]:
    """Return integers in the order of the elements, one apart for neighbours; -0 is +0.

    NaN gives a number beyond the infinities.
    """
    if not datatype.is_float:
        if datatype is Datatype.UINT64:
            return (array.astype(np.uint64) ^ _SIGN64).view(np.int64)
        return array.astype(np.int64)
    bits = datatype.size_bytes * 8
    patterns = np.ascontiguousarray(array).view(f"<u{datatype.size_bytes}")
    magnitude = (patterns & ((1 << (bits - 1)) - 1)).astype(np.int64)
    return np.where(patterns >> (bits - 1) != 0, -magnitude, magnitude)


def narrowed(
    a: Datatype, array_a: Array, b: Datatype, array_b: Array
) -> tuple[Datatype, Array, Array]:
    """Return both arrays of floats in the narrower datatype; values are rounded to it."""
    if a is b:
        return a, array_a, array_b
    if b.size_bytes < a.size_bytes:
        return b, _rounded(a, array_a, b), array_b
    return a, array_a, _rounded(b, array_b, a)


def _rounded(datatype: Datatype, array: Array, narrower: Datatype) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        if narrower is Datatype.BF16:
            return bf16_of_fp32(values_of(datatype, array).astype(np.float32))
        return values_of(datatype, array).astype(narrower.numpy_dtype)


def steps(datatype: Datatype, a: Array, b: Array) -> npt.NDArray[np.uint64]:
    """Return how many representable values lie from each a to b, as uint64."""
    old, new = ordinals(datatype, a), ordinals(datatype, b)
    return np.maximum(old, new).view(np.uint64) - np.minimum(old, new).view(np.uint64)


def cosine_holds(a: Array, b: Array, least: float, nan_equal: bool) -> Mask:
    """Return for which rows the cosine of the two vectors is at least *least*, exactly.

    NaN and infinities must agree element by element and are then left out. Two zero vectors agree;
    a zero vector and another one do not.

    Args:
        a: Old vectors from `values_of`, shape [rows, size].
        b: New vectors, same shape.
        least: The smallest allowed cosine, from -1 to 1.
        nan_equal: Whether NaN agrees with NaN.
    """
    special, agree = same_special(a, b, nan_equal)
    holds = np.asarray(~(special & ~agree).any(axis=1))
    if special.any():
        a, b = np.where(special, 0, a), np.where(special, 0, b)
    if not a.shape[1]:
        return holds
    with np.errstate(all="ignore"):
        x, y = (_scaled(each.astype(np.float64)) for each in (a, b))
        dot, norms = (x * y).sum(axis=1), np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
        margin = (a.shape[1] + 32) * _EPSILON * norms
    a_zero, b_zero = ~a.any(axis=1), ~b.any(axis=1)
    is_zero = a_zero | b_zero
    verdict = np.where(is_zero, a_zero & b_zero, dot >= least * norms)
    unsure = ~is_zero & ~(np.abs(dot - least * norms) > margin)
    for row in np.flatnonzero(unsure & holds).tolist():
        verdict[row] = _exact_cosine(a[row].tolist(), b[row].tolist(), Fraction(least))
    return holds & verdict


def _scaled(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return *vectors* scaled by a power of two so that squares neither overflow nor vanish."""
    exponents = np.frexp(np.abs(vectors).max(axis=1, keepdims=True))[1]
    # In two steps: a single power of two may itself be out of range.
    half = exponents // 2
    scaled: npt.NDArray[np.float64] = np.ldexp(np.ldexp(vectors, -half), half - exponents)
    return scaled


def _exact_cosine(a: list[Any], b: list[Any], least: Fraction) -> bool:
    old, new = list(map(Fraction, a)), list(map(Fraction, b))
    dot = sum((x * y for x, y in zip(old, new, strict=True)), Fraction(0))
    norms = sum((x * x for x in old), Fraction(0)) * sum((y * y for y in new), Fraction(0))
    bound = least * least * norms
    if least >= 0:
        return dot >= 0 and dot * dot >= bound
    return dot >= 0 or dot * dot <= bound


def top_k_holds(
    a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], count: int, order: bool
) -> Mask:
    """Return for which rows the *count* largest elements are the same.

    They are if one set of elements is a choice of the largest in both. Elements that tie for the
    last place are interchangeable.

    Args:
        a: `ordinals` of the old values, shape [rows, size].
        b: `ordinals` of the new values, of the same shape.
        count: At least 1; all elements if it exceeds the size.
        order: Also require that no two elements of the set are in opposite orders.
    """
    size = a.shape[1]
    if not size:
        return np.ones(len(a), np.bool_)
    count = min(count, size)
    a_sure, a_possible = _largest(a, count)
    b_sure, b_possible = _largest(b, count)
    required, possible = a_sure | b_sure, a_possible & b_possible
    holds = np.asarray(~(required & ~possible).any(axis=1))
    holds &= (required.sum(axis=1) <= count) & (possible.sum(axis=1) >= count)
    if order:
        for row in np.flatnonzero(holds).tolist():
            # Elements outside of *required* tie for the last place on both sides.
            chosen = required[row]
            holds[row] = _is_concordant(a[row][chosen], b[row][chosen])
    return holds


def _largest(values: npt.NDArray[np.int64], count: int) -> tuple[Mask, Mask]:
    """Return which elements must be among the *count* largest of their row, and which may be."""
    last = np.partition(values, values.shape[1] - count, axis=1)[:, values.shape[1] - count]
    return values > last[:, None], values >= last[:, None]


def _is_concordant(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> bool:
    """Return whether no pair is in one order in *a* and in the opposite order in *b*."""
    by_a = np.lexsort((b, a))
    return bool((np.diff(b[by_a].astype(object)) >= 0).all())
