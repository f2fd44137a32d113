"""Compares two tensors by a rule: structure, values, and how far the values are apart.

Tensors are read in chunks, so that a comparison needs little memory besides the tensors.
"""

from __future__ import annotations

import enum
import json
import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy, as_raw
from gateway.migration.compare.float_differences import FloatDifferences
from gateway.migration.compare.numbers import (
    Array,
    Mask,
    cosine_holds,
    differences,
    narrowed,
    ordinals,
    pairs_of,
    same_special,
    steps,
    top_k_holds,
    values_of,
    within_tolerance,
)
from gateway.migration.compare.rules import OutputRule, OutputRules

_CHUNK: Final = 1 << 16
HISTOGRAM_FIRST: Final = -12
HISTOGRAM_LAST: Final = 6
_BINS: Final = HISTOGRAM_LAST - HISTOGRAM_FIRST + 1


class Outcome(enum.Enum):
    """The result of a comparison; `OUTCOMES` of replies has those without two replies."""

    MATCH = "match"
    MISMATCH = "mismatch"
    STRUCTURE = "structure"
    NEW_ERROR = "new_error"
    OLD_ERROR = "old_error"
    BOTH_ERROR = "both_error"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """The gateway itself refused the call on one side at least, whatever a server would say."""


@dataclass(slots=True)
class Errors:
    """How far values are apart; NaN and infinities are left out.

    Attributes:
        count: Pairs of numbers.
        sum_abs: Sum of abs(a - b).
        sum_rel: Sum of abs(a - b) / abs(a) over the pairs with a different from 0.
        relative: Number of these pairs.
        worst: Flat index of the element with the largest absolute difference; -1 for none.
        max_ulp: Largest number of representable values between a and b.
        histogram: Number of pairs by the decimal exponent of abs(a - b), -12 (or less) to 6 (or
            more); equal pairs are in none.
    """

    count: int = 0
    max_abs: float = 0.0
    sum_abs: float = 0.0
    max_rel: float = 0.0
    sum_rel: float = 0.0
    relative: int = 0
    max_ulp: int = 0
    worst: int = -1
    histogram: list[int] = field(default_factory=lambda: [0] * _BINS)

    @property
    def mean_abs(self) -> float:
        """Mean of abs(a - b)."""
        return self.sum_abs / self.count if self.count else 0.0

    def add(self, other: Errors) -> None:
        """Add the errors of another pair of tensors; `worst` stays that of the larger one."""
        if other.worst < 0 and not other.sum_abs:  # equal pairs, which are in no histogram
            self.count += other.count
            self.relative += other.relative
            return
        if other.max_abs > self.max_abs:
            self.worst = other.worst
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_rel = max(self.max_rel, other.max_rel)
        self.max_ulp = max(self.max_ulp, other.max_ulp)
        self.count += other.count
        self.sum_abs += other.sum_abs
        self.sum_rel += other.sum_rel
        self.relative += other.relative
        self.histogram = [x + y for x, y in zip(self.histogram, other.histogram, strict=True)]


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """The comparison of one output.

    Attributes:
        outcome: MATCH, MISMATCH or STRUCTURE.
        reason: The first condition that does not hold; "" for a match.
        errors: None where no numbers were compared.
        rows: Entries of the first axis; 0 where it is not the batch.
        bad_rows: Those in which a condition does not hold.
        reshaped: The shape that clients will get and the old one, where they differ in axes of
            size 1 and the rule allows it; "" for equal shapes.
    """

    outcome: Outcome
    reason: str = ""
    errors: Errors | None = None
    rows: int = 0
    bad_rows: int = 0
    reshaped: str = ""


def compare_tensors(
    old: Tensor, new: Tensor, rules: OutputRules, *, classes: bool = False, batched: bool = False
) -> TensorComparison:
    """Compare an output of two replies.

    Args:
        old: The reference; its name selects the rule.
        new: The other server's output.
        rules: The rules for the model's outputs.
        classes: The elements are classes of the classification extension, "score:index:label".
        batched: The first axis is the batch: also count rows.

    Raises:
        InvalidTensor: The elements do not match the datatype, or are not in memory.
    """
    rule = rules.rule(old.name, _narrower(old.datatype, new.datatype))
    if rule.ignore:
        return TensorComparison(Outcome.MATCH)
    rows = (old.shape or (0,))[0] if batched and old.shape else 0
    if (
        old.datatype is new.datatype
        and old.shape == new.shape
        and old.datatype is not None
        and old.shape is not None
        and (rule.nan == "equal" or not old.datatype.is_float)
        and _equal_bytes(as_raw(old), as_raw(new))
    ):  # most replies: no object of their own takes a fifth of the time
        return _identical(old.datatype is not Datatype.BYTES, math.prod(old.shape), rows)
    if rule.rule is not None:
        result = rule.rule.compare(old, new)
        if not result.is_equal:
            reason = result.reason or "rule: differs"
            return TensorComparison(Outcome.MISMATCH, reason, rows=rows, bad_rows=rows)
        if not rule.has_number_condition:
            return TensorComparison(Outcome.MATCH, rows=rows)
    wrong = _structure(old, new, rule)
    if wrong:
        return TensorComparison(Outcome.STRUCTURE, wrong)
    found = _Comparison(old, new, rule, rows, classes).run()
    shapes = f"{list(new.shape or ())} for {list(old.shape or ())}"
    return found if old.shape == new.shape else replace(found, reshaped=shapes)


@lru_cache(256)
def _identical(has_numbers: bool, count: int, rows: int) -> TensorComparison:
    """Return the comparison of equal tensors; calls share it, so nothing may change it."""
    errors = Errors(count=count) if has_numbers else None
    return TensorComparison(Outcome.MATCH, errors=errors, rows=rows)


_SMALL_BYTES: Final = 4096


def _narrower(old: Datatype | None, new: Datatype | None) -> Datatype | None:
    if old is None or new is None:
        return old or new
    return new if new.size_bytes < old.size_bytes else old


_FAMILIES: Final[tuple[frozenset[Datatype], ...]] = (
    frozenset(each for each in Datatype if each.is_float),
    frozenset(each for each in Datatype if each.is_integer or each is Datatype.BOOL),
)


def _structure(old: Tensor, new: Tensor, rule: OutputRule) -> str:
    """Return what differs in datatype or shape; "" for nothing."""
    if old.datatype is None or new.datatype is None or old.shape is None or new.shape is None:
        return "datatype or shape unknown"
    if old.datatype is not new.datatype:
        same_family = any(old.datatype in family and new.datatype in family for family in _FAMILIES)
        if rule.datatype == "exact" or not same_family:
            return f"datatype {old.datatype.name} against {new.datatype.name}"
    if old.shape != new.shape:
        squeezed = [tuple(axis for axis in each if axis != 1) for each in (old.shape, new.shape)]
        if rule.shape == "exact" or squeezed[0] != squeezed[1]:
            return f"shape {list(old.shape)} against {list(new.shape)}"
    return ""


class _Comparison:
    """The comparison of two tensors of one structure."""

    def __init__(
        self, old: Tensor, new: Tensor, rule: OutputRule, rows: int, classes: bool
    ) -> None:
        assert old.datatype is not None  # noqa: S101  # `_structure` saw both
        assert new.datatype is not None  # noqa: S101
        self._old, self._new, self._rule = old, new, rule
        self._old_datatype, self._new_datatype = old.datatype, new.datatype
        self._rows = rows
        self._classes = classes
        self._reason = ""
        self._bad_rows: set[int] = set()
        self._count = math.prod(old.shape or ())

    def run(self) -> TensorComparison:
        """Return the result."""
        if self._is_identical():
            return _identical(self._old_datatype is not Datatype.BYTES, self._count, self._rows)
        if self._old_datatype is Datatype.BYTES:
            self._compare_items()
            return self._result(None)
        old, new = (as_numpy(each).reshape(-1) for each in (self._old, self._new))
        errors = self._compare_elements(old, new)
        if self._rule.cosine is not None:
            self._compare_vectors(old, new, self._rule.cosine)
        if self._rule.top_k is not None:
            self._compare_top(old, new, self._rule.top_k)
        return self._result(errors)

    def _is_identical(self) -> bool:
        if self._old_datatype is not self._new_datatype:
            return False
        old, new = as_raw(self._old), as_raw(self._new)
        if not _equal_bytes(old, new):
            return False
        if self._rule.nan == "equal" or not self._old_datatype.is_float:
            return True
        flat = as_numpy(self._old).reshape(-1)
        return not any(
            np.isnan(values_of(self._old_datatype, flat[chunk])).any() for chunk in self._chunks()
        )

    def _result(self, errors: Errors | None) -> TensorComparison:
        outcome = Outcome.MISMATCH if self._reason else Outcome.MATCH
        return TensorComparison(outcome, self._reason, errors, self._rows, len(self._bad_rows))

    def _chunks(self) -> Iterator[slice]:
        for start in range(0, self._count, _CHUNK):
            yield slice(start, min(start + _CHUNK, self._count))

    def _fail(self, reason: str, elements: npt.NDArray[Any] | None = None) -> None:
        """Note a condition that does not hold, at the flat indexes *elements*."""
        self._reason = self._reason or reason
        if self._rows and elements is not None:
            self._bad_rows.update((elements // (self._count // self._rows)).tolist())

    def _compare_elements(self, old: Array, new: Array) -> Errors:
        """Apply the conditions on single elements, chunk by chunk."""
        errors = Errors()
        bad: dict[str, list[Array]] = {}
        nan_equal = self._rule.nan == "equal"
        for chunk in self._chunks():
            a, b = old[chunk], new[chunk]
            if self._has_finite_floats(a, b, chunk.start, errors, bad):
                continue
            x, y = pairs_of(values_of(self._old_datatype, a), values_of(self._new_datatype, b))
            apart = self._steps(a, b, x, y)
            _measure(errors, x, y, apart, chunk.start)
            for name, holds in self._element_conditions((a, b), (x, y), apart, nan_equal):
                if not holds.all():
                    bad.setdefault(name, []).append(np.flatnonzero(~holds) + chunk.start)
        if not bad:
            return errors
        allowed = Fraction(self._rule.fraction) * self._count
        for name, indexes in bad.items():
            where = np.concatenate(indexes)
            if name == "exact" or len(where) > allowed:
                self._fail(f"{name}: {len(where)} of {self._count} elements differ", where)
        return errors

    def _has_finite_floats(
        self, a: Array, b: Array, start: int, errors: Errors, bad: dict[str, list[Array]]
    ) -> bool:
        """Apply the conditions to a chunk of finite floats; return False for any other chunk."""
        datatype, rule = self._old_datatype, self._rule
        if datatype is not self._new_datatype or not datatype.is_float:
            return False
        found = FloatDifferences.of(datatype, a, b)
        if found is None:
            return False
        max_steps = found.max_steps()
        _add_differences(errors, found, max_steps, len(a), start)
        wrong: dict[str, Array] = {}
        if rule.exact:
            wrong["exact"] = np.flatnonzero(~self._same_bytes((a, b), (a, b)))
        if rule.has_tolerance:
            wrong["tolerance"] = found.beyond(rule.atol or 0.0, rule.rtol or 0.0)
        if rule.ulp is not None and max_steps > rule.ulp:
            wrong["ulp"] = np.flatnonzero(steps(datatype, a, b) > rule.ulp)
        for name, indexes in wrong.items():
            if len(indexes):
                bad.setdefault(name, []).append(indexes + start)
        return True

    def _steps(self, a: Array, b: Array, x: Array, y: Array) -> Array:
        """Return how many representable values lie between the elements of a chunk."""
        if not self._old_datatype.is_float:
            return differences(x, y)
        return steps(*narrowed(self._old_datatype, a, self._new_datatype, b))

    def _element_conditions(
        self,
        raw: tuple[Array, Array],
        values: tuple[Array, Array],
        apart: Array,
        nan_equal: bool,
    ) -> Iterator[tuple[str, Mask]]:
        """Yield each condition on elements, with the elements of a chunk for which it holds."""
        rule, (x, y) = self._rule, values
        if rule.exact:
            same = self._same_bytes(raw, values)
            yield "exact", same if nan_equal or x.dtype.kind != "f" else same & ~np.isnan(x)
        if rule.has_tolerance:
            yield (
                "tolerance",
                within_tolerance(x, y, rule.atol or 0.0, rule.rtol or 0.0, nan_equal),
            )
        if rule.ulp is not None:
            special, agree = same_special(x, y, nan_equal)
            yield "ulp", np.where(special, agree, apart <= rule.ulp)

    def _same_bytes(self, raw: tuple[Array, Array], values: tuple[Array, Array]) -> Mask:
        if self._old_datatype is not self._new_datatype:
            same: Mask = values[0] == values[1]
            return same
        bits = f"<u{self._old_datatype.size_bytes}"
        equal: Mask = np.ascontiguousarray(raw[0]).view(bits) == np.ascontiguousarray(raw[1]).view(
            bits
        )
        return equal

    def _compare_vectors(self, old: Array, new: Array, least: float) -> None:
        size = (self._old.shape or (1,))[-1]
        holds = self._row_conditions(
            old, new, size, lambda a, b, nan_equal: cosine_holds(a, b, least, nan_equal)
        )
        bad = np.flatnonzero(~holds)
        if len(bad):
            self._fail(f"cosine: {len(bad)} of {len(holds)} vectors below {least}", bad * size)

    def _row_conditions(
        self, old: Array, new: Array, size: int, holds: Callable[[Array, Array, bool], Mask]
    ) -> Mask:
        """Apply a condition to vectors of *size* elements, some rows at a time."""
        rows = self._count // size if size else 0
        found = [np.zeros(0, np.bool_)]
        block = max(1, _CHUNK // max(1, size))
        for start in range(0, rows, block):
            part = slice(start * size, min(start + block, rows) * size)
            a = values_of(self._old_datatype, old[part]).reshape(-1, size)
            b = values_of(self._new_datatype, new[part]).reshape(-1, size)
            found.append(holds(a, b, self._rule.nan == "equal"))
        return np.concatenate(found)

    def _compare_top(self, old: Array, new: Array, count: int) -> None:
        shape = self._old.shape or (1,)
        if not -len(shape) <= self._rule.axis < len(shape):
            self._fail(f"top_k: no axis {self._rule.axis} in shape {list(shape)}")
            return
        size = shape[self._rule.axis]
        arrays = [
            np.moveaxis(each.reshape(shape), self._rule.axis, -1).reshape(-1, size)
            if size
            else each.reshape(0, 1)
            for each in (old, new)
        ]
        bad = 0
        block = max(1, _CHUNK // max(1, size))
        for start in range(0, len(arrays[0]), block):
            a, b = arrays[0][start : start + block], arrays[1][start : start + block]
            holds = self._top_conditions(a, b, count)
            bad += int((~holds).sum())
            if not holds.all() and self._rows and self._rule.axis not in {0, -len(shape)}:
                vectors = len(arrays[0]) // self._rows
                self._bad_rows.update(((np.flatnonzero(~holds) + start) // vectors).tolist())
        if bad:
            self._fail(f"top_k: {bad} of {len(arrays[0])} vectors differ in the {count} largest")

    def _top_conditions(self, a: Array, b: Array, count: int) -> Mask:
        keys = []
        nans = []
        for datatype, array in ((self._old_datatype, a), (self._new_datatype, b)):
            order = ordinals(datatype, array)
            is_nan = np.isnan(values_of(datatype, array))
            keys.append(np.where(is_nan, np.iinfo(np.int64).min, order))
            nans.append(is_nan)
        holds = top_k_holds(keys[0], keys[1], count, self._rule.order)
        differ = nans[0] != nans[1] if self._rule.nan == "equal" else nans[0] | nans[1]
        result: Mask = holds & ~differ.any(axis=1)
        return result

    def _compare_items(self) -> None:
        equal = _same_class if self._classes else _EQUAL_TEXTS[self._rule.text or "exact"]
        pairs = zip(as_items(self._old), as_items(self._new), strict=True)
        bad = [
            index for index, (a, b) in enumerate(pairs) if a != b and not equal(bytes(a), bytes(b))
        ]
        if bad:
            name = "classes" if self._classes else self._rule.text or "exact"
            self._fail(f"{name}: {len(bad)} of {self._count} elements differ", np.array(bad))


def _equal_bytes(old: memoryview, new: memoryview) -> bool:
    if old.nbytes != new.nbytes:
        return False
    if old.nbytes <= _SMALL_BYTES:  # a copy takes 0.3 us, two arrays 2.4 us
        return bytes(old) == bytes(new)
    if bytes(old[:_SMALL_BYTES]) != bytes(new[:_SMALL_BYTES]):  # most different tensors end here
        return False
    return bool(np.array_equal(np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)))


def _add_differences(
    errors: Errors, found: FloatDifferences, max_steps: int, count: int, start: int
) -> None:
    """Add the differences of a chunk of finite floats to *errors*."""
    if found.max_abs > errors.max_abs:
        errors.max_abs, errors.worst = found.max_abs, start + found.worst
    errors.count += count
    errors.sum_abs += found.sum_abs
    errors.sum_rel += found.sum_rel
    errors.relative += found.relative
    errors.max_rel = max(errors.max_rel, found.max_rel)
    errors.max_ulp = max(errors.max_ulp, max_steps)
    for exponent, number in found.decades(HISTOGRAM_FIRST, HISTOGRAM_LAST).items():
        errors.histogram[exponent - HISTOGRAM_FIRST] += number


def _measure(errors: Errors, x: Array, y: Array, apart: Array, start: int) -> None:
    """Add the differences of one chunk to *errors*."""
    finite = np.isfinite(x) & np.isfinite(y) if x.dtype.kind == "f" else np.ones(x.shape, np.bool_)
    distance = differences(x, y).astype(np.float64)
    count = int(finite.sum())
    errors.count += count
    if not count:
        return
    distance = np.where(finite, distance, 0.0)
    magnitude = np.abs(x.astype(np.float64))
    largest = int(distance.argmax())
    if distance[largest] > errors.max_abs:
        errors.max_abs, errors.worst = float(distance[largest]), start + largest
    related = finite & (magnitude > 0)
    with np.errstate(all="ignore"):
        ratio = distance[related] / magnitude[related]
        errors.sum_abs += float(distance.sum())
        errors.sum_rel += float(ratio.sum())
    errors.relative += int(related.sum())
    errors.max_rel = max(errors.max_rel, float(ratio.max(initial=0.0)))
    errors.max_ulp = max(errors.max_ulp, int(apart[finite].max(initial=0)))
    apart_by = distance[distance > 0]
    bins = np.clip(np.floor(np.log10(apart_by)), HISTOGRAM_FIRST, HISTOGRAM_LAST).astype(np.int64)
    for each, number in enumerate(np.bincount(bins - HISTOGRAM_FIRST, minlength=_BINS).tolist()):
        errors.histogram[each] += number


def _normalised(normalise: Callable[[str], str]) -> Callable[[bytes, bytes], bool]:
    def equal(a: bytes, b: bytes) -> bool:
        try:
            return normalise(a.decode()) == normalise(b.decode())
        except (ValueError, RecursionError):  # not UTF-8 or not JSON: the bytes differ
            return False

    return equal


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _canonical_json(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


_EQUAL_TEXTS: Final[Mapping[str, Callable[[bytes, bytes], bool]]] = {
    "exact": lambda _a, _b: False,
    "nfc": _normalised(_nfc),
    "casefold": _normalised(lambda text: _nfc(_nfc(text).casefold())),
    "whitespace": _normalised(lambda text: " ".join(text.split())),
    "json": _normalised(_canonical_json),
}

_SCORE_TOLERANCE: Final = 1e-5


def _same_class(a: bytes, b: bytes) -> bool:
    """Compare two classes: index and label exactly, their scores as FP32."""
    old, _, old_class = a.partition(b":")
    new, _, new_class = b.partition(b":")
    if old_class != new_class:
        return False
    try:
        scores = np.array([float(old), float(new)], np.float32).astype(np.float64)
    except ValueError:
        return False
    tolerances = (_SCORE_TOLERANCE, _SCORE_TOLERANCE)
    return bool(within_tolerance(scores[:1], scores[1:], *tolerances, nan_equal=True)[0])
