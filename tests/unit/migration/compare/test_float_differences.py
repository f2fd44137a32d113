"""The differences of finite floats against fractions, and against the way of other elements."""

from __future__ import annotations

import math
from dataclasses import asdict
from fractions import Fraction

import numpy as np
import pytest

from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_numpy, raw_tensor
from gateway.migration.compare.float_differences import FloatDifferences
from gateway.migration.compare.rules import OutputRule, OutputRules
from gateway.migration.compare.tensors import compare_tensors
from tests.unit.migration.compare import oracle

FLOATS = [each for each in Datatype if each.is_float]
PAIRS = 1200
LARGEST = 1e300
"""Sums of larger numbers overflow."""


def tensor_of(datatype: Datatype, bits: np.ndarray) -> Tensor:
    raw = bits.astype(f"<u{datatype.size_bytes}")
    return raw_tensor("y", datatype, raw.shape, memoryview(raw.tobytes()))


def finite_bits(datatype: Datatype, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return hard, random, equal and close pairs without NaN and infinities."""
    a, b = oracle.random_bits(datatype, PAIRS, np.random.default_rng(seed))
    is_finite = [
        all(abs(oracle.value(datatype, bits)) < LARGEST for bits in pair)
        for pair in zip(a.tolist(), b.tolist(), strict=True)
    ]
    return a[is_finite], b[is_finite]


def values_of(datatype: Datatype, bits: tuple[np.ndarray, np.ndarray]) -> list[tuple[float, float]]:
    pairs = zip(bits[0].tolist(), bits[1].tolist(), strict=True)
    return [(oracle.value(datatype, a), oracle.value(datatype, b)) for a, b in pairs]


def differences_of(datatype: Datatype, bits: tuple[np.ndarray, np.ndarray]) -> FloatDifferences:
    found = FloatDifferences.of(
        datatype, *(as_numpy(tensor_of(datatype, each)).reshape(-1) for each in bits)
    )
    assert found is not None
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("datatype", FLOATS, ids=lambda each: each.name)
def test_tolerances_are_exact(datatype: Datatype) -> None:
    """The oracle uses fractions; differences of pairs and their neighbours are tolerances, too."""
    bits = finite_bits(datatype, 1)
    values = values_of(datatype, bits)
    tolerances = [(0.0, 0.0), (1e-5, 1e-5), (0.0, 1e-3), (1.0, 0.0), (0.1, 0.7), (1e-300, 2**-53)]
    for a, b in values[:5]:
        difference = abs(a - b)
        tolerances += [(difference, 0.0), (math.nextafter(difference, 0), 0.0)]
        if a:
            ratio = difference / abs(a)
            if math.isfinite(ratio):
                tolerances += [(0.0, ratio), (0.0, math.nextafter(ratio, 0))]
    for atol, rtol in tolerances:
        expected = [
            index for index, (a, b) in enumerate(values) if not oracle.tolerance(a, b, atol, rtol)
        ]
        assert expected == differences_of(datatype, bits).beyond(atol, rtol).tolist(), (atol, rtol)


@pytest.mark.parametrize("datatype", FLOATS, ids=lambda each: each.name)
def test_the_figures_match_fractions(datatype: Datatype) -> None:
    """Largest and summed differences, steps and decades cover equal and different signs."""
    for seed in range(3):
        bits = finite_bits(datatype, seed)
        values = [(Fraction(a), Fraction(b)) for a, b in values_of(datatype, bits)]
        found = differences_of(datatype, bits)
        distances = [abs(a - b) for a, b in values]
        assert found.max_abs == pytest.approx(float(max(distances)), rel=1e-15)
        assert distances[found.worst] == pytest.approx(max(distances), rel=1e-15)
        assert found.sum_abs == pytest.approx(float(sum(distances)), rel=1e-12)
        assert found.relative == sum(a != 0 for a, _ in values)
        ratios = [
            distance / abs(a) for distance, (a, _) in zip(distances, values, strict=True) if a
        ]
        if max(ratios) < LARGEST:
            assert found.max_rel == pytest.approx(float(max(ratios)), rel=1e-12)
            assert found.sum_rel == pytest.approx(float(sum(ratios)), rel=1e-12)
        pairs = zip(bits[0].tolist(), bits[1].tolist(), strict=True)
        assert found.max_steps() == max(oracle.step_count(datatype, a, b) for a, b in pairs)
        for some in ([index for index, (a, b) in enumerate(values) if a * b > 0], [0]):
            few = bits[0][some], bits[1][some]
            pairs = zip(few[0].tolist(), few[1].tolist(), strict=True)
            expected = max(oracle.step_count(datatype, a, b) for a, b in pairs)
            assert differences_of(datatype, few).max_steps() == expected
        decades: dict[int, int] = {}
        for distance in (Fraction(float(each)) for each in distances if each):  # as FP64 has it
            exponent = -12
            while exponent < 6 and distance >= Fraction(10) ** (exponent + 1):
                exponent += 1
            decades[exponent] = decades.get(exponent, 0) + 1
        assert decades == {key: count for key, count in found.decades(-12, 6).items() if count}


@pytest.mark.parametrize("datatype", FLOATS, ids=lambda each: each.name)
def test_a_chunk_with_nan_has_the_same_result(datatype: Datatype) -> None:
    """NaN in both tensors uses the general path, and changes only the number of elements."""
    nan = {2: 0x7E00, 4: 0x7FC00000, 8: 0x7FF8000000000000}[datatype.size_bytes]
    nan = 0x7FC0 if datatype is Datatype.BF16 else nan
    a, b = finite_bits(datatype, 5)
    with_nan = [np.append(each, np.uint64(nan)) for each in (a, b)]
    assert (
        FloatDifferences.of(
            datatype, *(as_numpy(tensor_of(datatype, each)).reshape(-1) for each in with_nan)
        )
        is None
    )
    for rule in (OutputRule(atol=1e-3, rtol=1e-3), OutputRule(ulp=2), OutputRule(exact=True)):
        rules = OutputRules(outputs={"y": rule})
        plain, other = (
            compare_tensors(tensor_of(datatype, x), tensor_of(datatype, y), rules)
            for x, y in ((a, b), with_nan)
        )
        assert plain.outcome is other.outcome
        assert plain.reason.partition(" of ")[0] == other.reason.partition(" of ")[0]
        assert plain.errors is not None
        assert other.errors is not None
        expected = {**asdict(other.errors), "sum_abs": 0, "sum_rel": 0, "max_rel": 0}
        assert {**asdict(plain.errors), "sum_abs": 0, "sum_rel": 0, "max_rel": 0} == expected
        assert plain.errors.sum_abs == pytest.approx(other.errors.sum_abs, rel=1e-12)
        assert plain.errors.sum_rel == pytest.approx(other.errors.sum_rel, rel=1e-12)
        assert plain.errors.max_rel == other.errors.max_rel


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.7e308])
def test_chunks_with_special_values_use_the_general_path(value: float) -> None:
    """NaN, infinities and differences beyond FP64 have no figures in the fast path."""
    old = np.array([1.0, 1.7e308, 2.0])
    assert FloatDifferences.of(Datatype.FP64, old, np.array([1.0, value, 2.0])) is None
    assert FloatDifferences.of(Datatype.FP64, np.array([1.0, value, 2.0]), old) is None
