"""The comparison of whole results, and the summary of many of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gateway.ir.errors import ErrorCode
from gateway.ir.tensors.tensor import Tensor, array_tensor, items_tensor
from gateway.migration.compare.conditions import parse_fail_if, parse_fail_unless
from gateway.migration.compare.reasons import Reasons, reason_line
from gateway.migration.compare.replies import Result, compare_results
from gateway.migration.compare.rules import IGNORE, OutputRule, OutputRules
from gateway.migration.compare.summary import Summary, percentile
from gateway.migration.compare.tensors import Outcome
from gateway.migration.evidence.guards import Guards
from gateway.migration.evidence.verdicts import evidence_of
from gateway.migration.settings import ErrorsGuardConfig, GuardsConfig

BELOW = ErrorsGuardConfig(below=0.01)


def y(*values: float, name: str = "y") -> Tensor:
    return array_tensor(name, np.array(values, np.float32))


def text(value: bytes) -> Tensor:
    return items_tensor("text", (1,), [value])


def result(*outputs: Tensor) -> Result:
    return Result((outputs,))


def test_outputs_are_paired_by_name() -> None:
    """The order of named outputs does not matter."""
    found = compare_results(
        result(y(1, name="a"), y(2, name="b")),
        result(y(2, name="b"), y(1, name="a")),
        OutputRules(),
    )
    assert found.outcome is Outcome.MATCH
    assert list(found.outputs) == ["a", "b"]


def test_outputs_without_names_are_paired_by_position() -> None:
    """They get the names of the other side, which select the rules."""
    rules = OutputRules(outputs={"b": IGNORE})
    found = compare_results(
        result(y(1, name=""), y(2, name="")), result(y(1, name="a"), y(3, name="b")), rules
    )
    assert {name: each.outcome for name, each in found.outputs.items()} == {"a": Outcome.MATCH}
    nameless = compare_results(result(y(1, name="")), result(y(2, name="")), OutputRules())
    assert nameless.reason == "#0: tolerance: 1 of 1 elements differ"


def test_a_missing_or_extra_output_is_a_structural_difference() -> None:
    """Its rule may ignore it."""
    old, new = result(y(1, name="a"), y(1, name="b")), result(y(1, name="a"), y(1, name="c"))
    found = compare_results(old, new, OutputRules())
    assert found.outcome is Outcome.STRUCTURE
    assert {name: each.reason for name, each in found.outputs.items()} == {
        "a": "",
        "b": "output missing",
        "c": "output not in the old reply",
    }
    rules = OutputRules(outputs={"b": IGNORE, "c": IGNORE})
    assert compare_results(old, new, rules).outcome is Outcome.MATCH


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        (None, ErrorCode.INTERNAL, Outcome.NEW_ERROR),
        (None, ErrorCode.DEADLINE_EXCEEDED, Outcome.TIMEOUT),
        (ErrorCode.INTERNAL, None, Outcome.OLD_ERROR),
        (ErrorCode.INTERNAL, ErrorCode.NOT_FOUND, Outcome.BOTH_ERROR),
        (ErrorCode.NOT_FOUND, ErrorCode.NOT_FOUND, Outcome.MATCH),
    ],
)
def test_errors_are_outcomes(
    old: ErrorCode | None, new: ErrorCode | None, outcome: Outcome
) -> None:
    """Two errors match if they have the same code."""
    assert compare_results(Result(error=old), Result(error=new), OutputRules()).outcome is outcome


def test_texts_of_a_stream_are_joined() -> None:
    """Item boundaries do not matter then."""
    old = Result(((text(b"ab"),), (text(b"c"),)))
    new = Result(((text(b"a"),), (text(b"b"),), (text(b"c"),)))
    assert compare_results(old, new, OutputRules()).outcome is Outcome.MATCH
    assert compare_results(old, new, OutputRules(), streams="items").reason == "2 replies became 3"


def test_numbers_of_a_stream_are_compared_item_by_item() -> None:
    """The errors of all items belong to one output, and the worst item decides."""
    old, new = Result(((y(1),), (y(2),))), Result(((y(1),), (y(4),)))
    found = compare_results(old, new, OutputRules())
    assert found.outcome is Outcome.MISMATCH
    assert found.outputs["y"].errors is not None
    assert (found.outputs["y"].errors.count, found.outputs["y"].errors.max_abs) == (2, 2.0)
    assert compare_results(old, Result(((y(1),),)), OutputRules()).outcome is Outcome.STRUCTURE


@pytest.mark.parametrize("streams", ["join", "items"])
@pytest.mark.parametrize("numbers", [(), (1,), (1, 2, 2), (2, 1)])
def test_a_stream_that_differs_is_a_mismatch_of_its_outputs(
    numbers: tuple[int, ...], streams: str
) -> None:
    """Items that are missing, there twice or in another order count for `mismatch.OUTPUT`."""
    old = Result(((y(1),), (y(2),)))
    new = Result(tuple((y(each),) for each in numbers))
    summary = Summary()
    summary.add("c0", compare_results(old, new, OutputRules(), streams=streams))
    assert summary.counts("mismatch.y") == summary.counts("mismatch") == (1, 1)


def summary_of(bad: int, total: int) -> Summary:
    summary = Summary()
    for number in range(total):
        new = y(2) if number < bad else y(1)
        summary.add(
            f"c{number}", compare_results(result(y(1)), result(new), OutputRules()), (0.1, 0.2)
        )
    return summary


def test_a_summary_counts_calls_and_outputs() -> None:
    """It has rates, the worst call and latencies."""
    summary = summary_of(2, 10)
    summary.missing = 1
    output = summary.outputs["y"]
    assert (output.compared, output.mismatched, output.worst) == (10, 2, "c0")
    assert summary.counts("mismatch") == (2, 10)
    assert summary.counts("mismatch.y") == (2, 10)
    assert summary.counts("mismatch.z") == (0, 0)
    assert summary.counts("missing") == (1, 11)
    assert summary.latency("p99_ratio") == 2.0
    assert summary.document()["outputs"]["y"]["max_abs"] == 1.0


@pytest.mark.parametrize(
    ("condition", "failure"),
    [
        ("mismatch>0.1%", "mismatch 20.00% > 0.10%"),
        ("mismatch.y>0.3", ""),
        ("mismatch.z>0.3", "mismatch.z is unknown (condition mismatch.z>0.3)"),
        ("errors>0", ""),
        ("p99>150ms", "p99 200 ms > 150 ms"),
        ("p99_ratio>1.3", "p99_ratio 2 > 1.3"),
        ("p50_ratio>2", ""),
    ],
)
def test_fail_if_conditions(condition: str, failure: str) -> None:
    """A condition fails above its limit, and without data."""
    assert parse_fail_if(condition).failure(summary_of(2, 10)) == failure


def test_fail_unless_conditions() -> None:
    """Too few calls fail, and the text has the needed number."""
    condition = parse_fail_unless("mismatch<1%@95%")
    assert condition.failure(summary_of(0, 299)) == ""
    assert "299 calls without one are needed" in condition.failure(summary_of(0, 298))
    assert condition.failure(Summary()).startswith(
        "mismatch is not shown to be below 1.000% at 95%"
    )


REFUSED = Result(error=ErrorCode.INVALID_ARGUMENT, is_refused=True)
RESULTS = [
    result(y(1)),
    REFUSED,
    Result(error=ErrorCode.UNAVAILABLE, is_refused=True),
    *(
        Result(error=getattr(ErrorCode, each))
        for each in ("INVALID_ARGUMENT", "NOT_FOUND", "UNAVAILABLE", "CANCELLED")
    ),
]


@pytest.mark.parametrize("old", RESULTS)
@pytest.mark.parametrize("new", RESULTS)
def test_conditions_and_guards_count_the_same_errors(old: Result, new: Result) -> None:
    """Whatever both sides make of a call, both see it as failed, as fine, or as neither."""
    summary, guards = Summary(), Guards(GuardsConfig(mismatch="off", errors=BELOW))
    found = compare_results(old, new, OutputRules())
    summary.add("c", found)
    guards.add(evidence_of(old, new, found, None, 0.0))
    bad, total = summary.counts("errors")
    (verdict,) = guards.verdicts()
    assert verdict.evidence.startswith(f"{bad} of {total}, ")


def test_a_refusal_on_the_new_side_alone_is_a_failure() -> None:
    """It is not one as at the old server, which replied."""
    summary = Summary()
    summary.add("c", compare_results(result(y(1)), REFUSED, OutputRules()))
    assert (summary.failed, summary.failed_alike, summary.refused) == (1, 0, 1)


def test_a_squeezed_comparison_names_the_shape_of_clients() -> None:
    """The comparison passes, and the summary names the shape and the key that restores the old one."""
    summary = Summary()
    column = array_tensor("y", np.ones((1, 1), np.float32))
    rules = OutputRules(OutputRule(shape="squeeze"))
    for number in range(3):
        summary.add(f"c{number}", compare_results(result(y(1)), result(column), rules))
    assert {Outcome.MATCH: 3} == summary.outcomes
    text = summary.document()["outputs"]["y"]["reshaped"]
    assert text.startswith("in 3 calls clients of the new server get shape [1, 1] for [1], which ")
    assert "tensors: {shapes: ...}" in text
    same = Summary()
    same.add("c", compare_results(result(y(1)), result(y(1)), rules))
    assert same.document()["outputs"]["y"]["reshaped"] is None


@pytest.mark.parametrize("new", [ErrorCode.INVALID_ARGUMENT, ErrorCode.DEADLINE_EXCEEDED])
@pytest.mark.parametrize("metric", ["mismatch", "structure", "mismatch.y"])
def test_failed_calls_show_nothing_of_the_replies(new: ErrorCode, metric: str) -> None:
    """300 calls that the new server refuses do not agree: no condition on replies holds."""
    summary = Summary()
    for number in range(300):
        found = compare_results(result(y(1)), Result(error=new), OutputRules())
        summary.add(f"c{number}", found, error="input 'X' has dims [64]")
    assert (300, 0, 300) == (summary.calls, summary.compared, summary.failed)
    assert (0, 0) == summary.counts(metric)
    assert (300, 300) == summary.counts("errors")
    assert "0 of 0 calls" in parse_fail_unless(f"{metric}<1%@95%").failure(summary)
    assert f"{metric} is unknown" in parse_fail_if(f"{metric}>1%").failure(summary)


@pytest.mark.parametrize("code", [ErrorCode.UNAVAILABLE, ErrorCode.INVALID_ARGUMENT])
def test_two_equal_errors_compare_no_replies(code: ErrorCode) -> None:
    """An error of a server counts as one of the new server, and a refused request does not."""
    summary = Summary()
    summary.add("c", compare_results(Result(error=code), Result(error=code), OutputRules()))
    is_servers = code is ErrorCode.UNAVAILABLE
    assert {Outcome.MATCH: 1} == summary.outcomes
    assert (0, 0) == summary.counts("mismatch")
    assert (int(is_servers), 1) == summary.counts("errors")
    assert (1, int(not is_servers)) == (summary.failed, summary.failed_alike)


def test_ignored_outputs_are_not_compared() -> None:
    """Calls whose outputs are all ignored show nothing, and an ignored output has no row."""
    summary = Summary()
    for name in "ab":
        both = result(y(1, name="seen"), y(1, name="a")), result(y(1, name="seen"), y(2, name="a"))
        rules = OutputRules(outputs={"a": IGNORE} if name == "a" else {}, default=OutputRule())
        summary.add(name, compare_results(*both, rules))
    assert {"seen": 2, "a": 1} == {key: each.compared for key, each in summary.outputs.items()}
    nothing = compare_results(result(y(1)), result(y(2)), OutputRules(default=IGNORE))
    assert (Outcome.MATCH, False) == (nothing.outcome, nothing.is_compared)
    summary.add("c", nothing)
    assert (1, 2) == summary.counts("mismatch")


def test_reasons_are_grouped_with_counts_and_examples() -> None:
    """Numbers make no reason of their own; the most frequent reason comes first."""
    summary = Summary()
    refused = compare_results(result(y(1)), Result(error=ErrorCode.INVALID_ARGUMENT), OutputRules())
    for number in range(3):
        summary.add(f"r{number}", refused, error=f"input 'X' has dims [{number + 64}]")
    column = array_tensor("y", np.ones((1, 1), np.float32))
    summary.add("s", compare_results(result(y(1)), result(column), OutputRules()))
    summary.add("m", compare_results(result(y(1)), result(y(2)), OutputRules()))
    assert [
        "3 new_error invalid_argument: input 'X' has dims [64] (call r0)",
        "1 structure: y: shape [1] against [1, 1] (call s)",
    ] == [reason_line(each.document()) for each in summary.reasons]
    assert summary.document()["reasons"][0] == {
        "outcome": "new_error",
        "code": "invalid_argument",
        "count": 3,
        "example": "input 'X' has dims [64]",
        "call": "r0",
    }


def test_the_kinds_of_reasons_are_bounded() -> None:
    """Each call has another text: some reasons are told apart, the others are one."""
    reasons = Reasons()
    for number in range(1000):
        text = "".join(chr(ord("g") + int(digit)) for digit in str(number))
        reasons.add(f"c{number}", Outcome.NEW_ERROR, "internal", text)
    found = reasons.list()
    assert (33, 1000) == (len(found), sum(each.count for each in found))
    assert ("further reasons", 968) == (found[0].example, found[0].count)


@pytest.mark.parametrize("condition", ["mismatch", "speed>1", "p99>3", "mismatch>x", "errors>-1"])
def test_invalid_conditions_are_rejected(condition: str) -> None:
    """A condition that cannot be parsed is a ValueError with its text."""
    with pytest.raises(ValueError, match=condition):
        parse_fail_if(condition)


@pytest.mark.parametrize("condition", ["mismatch<1%", "p99<2ms@95%", "errors<0@95%"])
def test_invalid_bounds_are_rejected(condition: str) -> None:
    """Only rates have a bound, and it needs a confidence."""
    with pytest.raises(ValueError, match=condition):
        parse_fail_unless(condition)


def test_percentile_is_an_element() -> None:
    """It is the nearest rank, without interpolation."""
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.5, 0.99)] == [2.0, 3.0]
    assert math.isclose(percentile([1.0], 0.5), 1.0)


def test_rules_of_a_named_output_replace_the_default() -> None:
    """A looser rule of one output does not affect the others."""
    rules = OutputRules(outputs={"a": OutputRule(atol=2.0)})
    found = compare_results(
        result(y(1, name="a"), y(1, name="b")), result(y(2, name="a"), y(2, name="b")), rules
    )
    assert found.reason == "b: tolerance: 1 of 1 elements differ"


def test_equal_stream_items_do_not_change_shared_results() -> None:
    """Results of equal outputs are shared; those of a stream are summed in a copy."""
    item = (array_tensor("y", np.ones(3, np.float32)),)
    for _ in range(2):
        stream = compare_results(Result((item, item)), Result((item, item)), OutputRules())
        single = compare_results(Result((item,)), Result((item,)), OutputRules())
        for found, count in ((stream, 6), (single, 3)):
            errors = found.outputs["y"].errors
            assert errors is not None
            assert errors.count == count
