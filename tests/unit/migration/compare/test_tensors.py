"""The comparison of tensors against fractions, for every datatype and every condition."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, items_tensor, raw_tensor
from gateway.migration.compare.rules import EXACT, IGNORE, Normalisation, OutputRule, OutputRules
from gateway.migration.compare.tensors import Outcome, TensorComparison, compare_tensors
from tests.unit.migration.compare import oracle

FIXED = [each for each in Datatype if each is not Datatype.BYTES]
# The specification asks for a million pairs of each datatype: COMPARE_PAIRS=1000000.
PAIRS = int(os.environ.get("COMPARE_PAIRS", "3000"))

# Sums such as atol + rtol * abs(a) that FP64 rounds to the wrong side.
TOLERANCES = [(0.0, 0.0), (1e-5, 1e-5), (0.0, 1e-3), (1.0, 0.0), (0.1, 0.7), (1e-300, 2**-53)]


Bits = tuple[np.ndarray, np.ndarray]


def tensor_of(datatype: Datatype, bits: np.ndarray, shape: tuple[int, ...] | None = None) -> Tensor:
    raw = bits.astype(f"<u{datatype.size_bytes}")
    return raw_tensor("y", datatype, shape or raw.shape, memoryview(raw.tobytes()))


def fp32(*values: float) -> Tensor:
    return array_tensor("y", np.array(values, np.float32))


def compared(old: Tensor, new: Tensor, rule: OutputRule) -> TensorComparison:
    return compare_tensors(old, new, OutputRules(outputs={"y": rule}), batched=True)


def bad_elements(datatype: Datatype, a: np.ndarray, b: np.ndarray, rule: OutputRule) -> int:
    """Return the number of different elements; each is a separate row."""
    found = compared(tensor_of(datatype, a), tensor_of(datatype, b), rule)
    assert (found.outcome is Outcome.MISMATCH) == (found.bad_rows > 0)
    return found.bad_rows


def assert_same_verdicts(
    datatype: Datatype, rule: OutputRule, expected: list[bool], bits: Bits
) -> None:
    """Compare the number of bad elements, and where it differs find the first wrong verdict."""
    a, b = bits
    if bad_elements(datatype, a, b, rule) == expected.count(False):
        return
    for index, verdict in enumerate(expected):
        found = bad_elements(datatype, a[index : index + 1], b[index : index + 1], rule) == 0
        assert found == verdict, (rule, hex(a[index]), hex(b[index]))


@pytest.mark.timeout(0 if PAIRS > 10_000 else 60)
@pytest.mark.parametrize("datatype", FIXED, ids=lambda each: each.name)
def test_tolerances_are_exact(datatype: Datatype) -> None:
    """Fractions decide abs(a-b) <= atol + rtol*abs(a), for hard and random values."""
    generator = np.random.default_rng(1)
    for atol, rtol in TOLERANCES:
        bits = oracle.random_bits(datatype, PAIRS // len(TOLERANCES), generator)
        pairs = zip(bits[0].tolist(), bits[1].tolist(), strict=True)
        values = [(oracle.value(datatype, a), oracle.value(datatype, b)) for a, b in pairs]
        for nan in ("equal", "differ"):
            rule = OutputRule(atol=atol, rtol=rtol, nan=nan)
            expected = [oracle.tolerance(a, b, atol, rtol, nan == "equal") for a, b in values]
            assert_same_verdicts(datatype, rule, expected, bits)


@pytest.mark.timeout(0 if PAIRS > 10_000 else 60)
@pytest.mark.parametrize("datatype", FIXED, ids=lambda each: each.name)
def test_ulp_counts_representable_values(datatype: Datatype) -> None:
    """The steps from a to b are counted in patterns; -0 is +0, and infinity is no neighbour."""
    bits = oracle.random_bits(datatype, PAIRS, np.random.default_rng(2))
    for limit in (0, 1, 3):
        expected = []
        for a, b in zip(bits[0].tolist(), bits[1].tolist(), strict=True):
            x, y = oracle.value(datatype, a), oracle.value(datatype, b)
            special = oracle.special_agrees(x, y, nan_equal=True)
            steps = special is None and oracle.step_count(datatype, a, b) <= limit
            expected.append(steps if special is None else special)
        assert_same_verdicts(datatype, OutputRule(ulp=limit), expected, bits)


@pytest.mark.parametrize("datatype", FIXED, ids=lambda each: each.name)
def test_exact_compares_bytes(datatype: Datatype) -> None:
    """-0 is not +0, and a NaN equals only the NaN with the same bits."""
    bits = oracle.random_bits(datatype, PAIRS, np.random.default_rng(3))
    assert_same_verdicts(datatype, EXACT, (bits[0] == bits[1]).tolist(), bits)


vectors = st.integers(1, 6).flatmap(
    lambda size: st.tuples(
        *[st.lists(st.integers(-3, 3).map(float), min_size=size, max_size=size)] * 2
    )
)
wild = st.floats(allow_nan=False, allow_infinity=False)
wild_vectors = st.integers(1, 6).flatmap(
    lambda size: st.tuples(*[st.lists(wild, min_size=size, max_size=size)] * 2)
)


@given(vectors | wild_vectors, st.sampled_from([-1.0, -0.5, 0.0, 0.5, 0.6, 0.8, 0.999, 1.0]))
def test_cosine_is_exact(pair: tuple[list[float], list[float]], least: float) -> None:
    """Huge, tiny and zero elements are compared exactly, too."""
    old, new = (array_tensor("y", np.array([each])) for each in pair)
    found = compared(old, new, OutputRule(cosine=least)).outcome is Outcome.MATCH
    assert oracle.cosine(*pair, least) == found


@given(vectors, st.integers(1, 7), st.booleans())
def test_top_k_matches_with_a_common_set(
    pair: tuple[list[float], list[float]], count: int, order: bool
) -> None:
    """One set is the k largest on both sides; ties for the last rank may swap."""
    old, new = (array_tensor("y", np.array([each])) for each in pair)
    found = compared(old, new, OutputRule(top_k=count, order=order)).outcome is Outcome.MATCH
    assert oracle.top_k(*pair, count, order) == found


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4),
    st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4),
)
def test_top_k_of_large_integers_is_exact(old: list[int], new: list[int]) -> None:
    """UINT64 is ordered as integers; FP64 would merge neighbours."""
    a, b = (array_tensor("y", np.array([each], np.uint64)) for each in (old, new))
    found = compared(a, b, OutputRule(top_k=2)).outcome is Outcome.MATCH
    assert oracle.top_k(old, new, 2, order=False) == found


def test_top_k_supports_other_axes() -> None:
    """`axis` selects the vectors."""
    old = array_tensor("y", np.array([[1.0, 9.0], [2.0, 3.0]]))
    new = array_tensor("y", np.array([[1.0, 2.0], [2.0, 9.0]]))
    assert compared(old, new, OutputRule(top_k=1, axis=0)).outcome is Outcome.MISMATCH
    assert compared(old, new, OutputRule(top_k=1)).outcome is Outcome.MATCH
    assert (
        compared(old, new, OutputRule(top_k=1, axis=2)).reason == "top_k: no axis 2 in shape [2, 2]"
    )


@pytest.mark.parametrize(
    "rule", [OutputRule(cosine=0.9), OutputRule(top_k=1), OutputRule(atol=1.0), OutputRule(ulp=1)]
)
def test_nan_never_matches_a_number(rule: OutputRule) -> None:
    """NaN matches NaN in the same position, unless `nan: differ`."""
    assert compared(fp32(1, math.nan, 3), fp32(1, 2, 3), rule).outcome is Outcome.MISMATCH
    both = fp32(1, math.nan, 3.0)
    assert compared(both, both, rule).outcome is Outcome.MATCH
    strict = OutputRule(
        cosine=rule.cosine, top_k=rule.top_k, atol=rule.atol, ulp=rule.ulp, nan="differ"
    )
    assert compared(both, both, strict).outcome is Outcome.MISMATCH


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3)])
@pytest.mark.parametrize(
    "rule",
    [EXACT, OutputRule(atol=0.1), OutputRule(ulp=0), OutputRule(cosine=1.0), OutputRule(top_k=2)],
    ids=str,
)
def test_rank_0_and_empty_tensors_match(shape: tuple[int, ...], rule: OutputRule) -> None:
    """A tensor equals itself, whatever its rank, and in a wider datatype."""
    old = array_tensor("y", np.ones(shape, np.float32))
    assert compared(old, old, rule).outcome is Outcome.MATCH
    wide = OutputRule(
        atol=rule.atol, ulp=rule.ulp, cosine=rule.cosine, top_k=rule.top_k, datatype="widen"
    )
    new = array_tensor("y", np.ones(shape, np.float64))
    assert compared(old, new, wide).outcome is Outcome.MATCH


def test_fraction_allows_a_share_of_the_elements() -> None:
    """`fraction: 0.5` permits 2 of 4 elements, not 3."""
    old, rule = fp32(0, 0, 0, 0), OutputRule(atol=0.5, fraction=0.5)
    assert compared(old, fp32(1, 1, 0, 0), rule).outcome is Outcome.MATCH
    found = compared(old, fp32(1, 1, 1, 0), rule)
    assert found.outcome is Outcome.MISMATCH
    assert found.reason == "tolerance: 3 of 4 elements differ"


def test_structure_is_datatype_and_shape() -> None:
    """Another datatype or shape is a structural difference, unless the rule permits it."""
    old, wide = fp32(1, 2), array_tensor("y", np.array([1.0, 2.0]))
    assert compared(old, wide, OutputRule()).reason == "datatype FP32 against FP64"
    assert compared(old, wide, OutputRule(datatype="widen")).outcome is Outcome.MATCH
    whole = array_tensor("y", np.array([1, 2], np.int32))
    assert compared(old, whole, OutputRule(datatype="widen")).outcome is Outcome.STRUCTURE
    column = array_tensor("y", np.array([[1], [2]], np.float32))
    assert compared(old, column, OutputRule()).reason == "shape [2] against [2, 1]"
    squeezed = compared(old, column, OutputRule(shape="squeeze"))
    assert (Outcome.MATCH, "[2, 1] for [2]") == (squeezed.outcome, squeezed.reshaped)
    assert "" == compared(old, old, OutputRule(shape="squeeze")).reshaped


@pytest.mark.parametrize("sign", [1, -1])
def test_widened_integers_are_exact(sign: int) -> None:
    """UINT64 and INT64 are compared as integers, beyond the range of either."""
    old = array_tensor("y", np.array([2**63], np.uint64))
    new = array_tensor("y", np.array([sign * (2**63 - 1)], np.int64))
    rule = OutputRule(atol=1.0, datatype="widen")
    assert (compared(old, new, rule).outcome is Outcome.MATCH) == (sign == 1)


@pytest.mark.parametrize(
    ("datatype", "holds", "fails"),
    [
        ("FP64", 1.00001, 1.0001),
        ("FP32", 1.00001, 1.0001),
        ("FP16", 1.002, 1.01),
        ("INT32", 1, 2),
    ],
)
def test_default_tolerances_depend_on_the_datatype(
    datatype: str, holds: float, fails: float
) -> None:
    """Floats have a tolerance, and integers are exact whatever the default rule."""
    dtype = Datatype[datatype].numpy_dtype
    for rules in (OutputRules(), OutputRules(OutputRule(nan="differ"))):
        tensors = [array_tensor("y", np.array([each], dtype)) for each in (1, holds, fails)]
        assert compare_tensors(tensors[0], tensors[1], rules).outcome is Outcome.MATCH
        assert compare_tensors(tensors[0], tensors[2], rules).outcome is Outcome.MISMATCH
    one, two = (array_tensor("y", np.array([each])) for each in (1, 2))
    assert compare_tensors(one, two, OutputRules(OutputRule(atol=5.0))).outcome is Outcome.MISMATCH


@pytest.mark.parametrize(
    ("text", "a", "b"),
    [
        ("nfc", "é", "e\u0301"),
        ("casefold", "STRASSE", "straße"),
        ("whitespace", " a\t b\n", "a b"),
        ("json", '{"a": 1, "b": [2]}', '{"b":[2],"a":1}'),
    ],
)
def test_texts_are_normalised(text: Normalisation, a: str, b: str) -> None:
    """Texts are equal after the normalisation, and differ without it."""
    old, new = (items_tensor("y", (1,), [each.encode()]) for each in (a, b))
    assert compared(old, new, OutputRule(text=text)).outcome is Outcome.MATCH
    assert compared(old, new, EXACT).outcome is Outcome.MISMATCH
    other = items_tensor("y", (1,), [b"\xff"])
    assert compared(old, other, OutputRule(text=text)).outcome is Outcome.MISMATCH
    assert compared(other, other, OutputRule(text=text)).outcome is Outcome.MATCH


def test_json_true_differs_from_one() -> None:
    """JSON values are compared with their types."""
    old, new = (items_tensor("y", (1,), [each]) for each in (b"[true]", b"[1]"))
    assert compared(old, new, OutputRule(text="json")).outcome is Outcome.MISMATCH


def test_classes_compare_scores_as_fp32() -> None:
    """Index and label are exact, and the score has the tolerance of FP32."""
    old, near, far, other = (
        items_tensor("y", (1,), [each])
        for each in (b"0.900000:3:cat", b"0.900001:3:cat", b"0.91:3:cat", b"0.9:2:cat")
    )
    found = [
        compare_tensors(old, each, OutputRules(), classes=True).outcome
        for each in (near, far, other)
    ]
    assert found == [Outcome.MATCH, Outcome.MISMATCH, Outcome.MISMATCH]


def test_ignored_outputs_match() -> None:
    """`ignore` compares nothing, not even the structure."""
    assert compared(fp32(1), items_tensor("y", (1,), [b"x"]), IGNORE).outcome is Outcome.MATCH


def test_a_default_with_text_keeps_integers_exact() -> None:
    """`text` is for BYTES, and the tolerance of the same rule for floats."""
    rules = OutputRules(OutputRule(atol=5.0, text="casefold"))
    one, two = (array_tensor("y", np.array([each])) for each in (1, 2))
    assert compare_tensors(one, two, rules).outcome is Outcome.MISMATCH
    assert compare_tensors(fp32(1), fp32(2), rules).outcome is Outcome.MATCH
    texts = [items_tensor("y", (1,), [each]) for each in (b"a", b"A")]
    assert compare_tensors(texts[0], texts[1], rules).outcome is Outcome.MATCH


def test_default_ignore_applies_to_all_datatypes() -> None:
    """Only outputs with their own rule are compared."""
    rules = OutputRules(IGNORE, {"y": OutputRule()})
    for old, new in ((b"a", b"b"), (1, 2), (1.0, 2.0)):
        arrays = [
            items_tensor("x", (1,), [each])
            if isinstance(each, bytes)
            else array_tensor("x", np.array([each]))
            for each in (old, new)
        ]
        assert compare_tensors(arrays[0], arrays[1], rules).outcome is Outcome.MATCH
    assert compare_tensors(fp32(1), fp32(2), rules).outcome is Outcome.MISMATCH


def test_errors_are_measured_across_chunks() -> None:
    """Largest and mean error, worst element and histogram cover all chunks of a large tensor."""
    old = np.ones(200_000, np.float32)
    new = old.copy()
    new[150_000], new[3] = 1.5, 1.25
    found = compared(array_tensor("y", old), array_tensor("y", new), OutputRule(atol=0.1))
    errors = found.errors
    assert errors is not None
    assert (errors.max_abs, errors.worst, errors.count) == (0.5, 150_000, 200_000)
    assert errors.mean_abs == pytest.approx(0.75 / 200_000)
    assert errors.max_ulp == 1 << 22
    assert sum(errors.histogram) == 2
    assert found.reason == "tolerance: 2 of 200000 elements differ"


def test_different_rows_of_a_batch_are_counted() -> None:
    """Rows with a different element are counted, for elements and for vectors."""
    old = array_tensor("y", np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    new = array_tensor("y", np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    for rule in (OutputRule(atol=0.1), OutputRule(cosine=0.9), OutputRule(top_k=1)):
        found = compared(old, new, rule)
        assert (found.rows, found.bad_rows) == (3, 2)


@pytest.mark.parametrize(
    "keys", [{"atol": -1.0}, {"rtol": math.inf}, {"fraction": 1.0}, {"cosine": 2.0}, {"top_k": 0}]
)
def test_rules_out_of_range_are_rejected(keys: dict[str, Any]) -> None:
    """The error has the key of the rule."""
    with pytest.raises(ValueError, match=next(iter(keys))):
        OutputRule(**keys)


def test_the_rule_of_an_output_follows_its_datatype() -> None:
    """An output whose datatype changes between calls gets the rule of each datatype."""
    rules = OutputRules(default=OutputRule(atol=0.5))
    for _ in range(2):
        for datatype, is_exact in ((Datatype.FP32, False), (Datatype.INT32, True), (None, True)):
            assert rules.rule("y", datatype).exact == is_exact
    assert rules == OutputRules(default=OutputRule(atol=0.5))
