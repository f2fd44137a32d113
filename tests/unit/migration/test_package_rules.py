"""Comparison rules of packages: what they decide, and what their exceptions cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from gateway.api.comparison import RuleResult
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy, raw_tensor
from gateway.migration.compare.output_rules import rules_of
from gateway.migration.compare.rules import OutputRule, OutputRules
from gateway.migration.compare.tensors import Outcome, compare_tensors
from gateway.migration.package_rules import PackageRule
from gateway.migration.settings import CompareConfig


class SameFirst:
    """Compares the first elements only, and notes its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def compare(self, old: Tensor, new: Tensor, /) -> RuleResult:
        self.calls += 1
        return RuleResult(bool(as_numpy(old)[0] == as_numpy(new)[0]), "the first element")


class Raising:
    def __init__(self, result: Any = None) -> None:
        self._result = result

    def compare(self, old: Tensor, new: Tensor, /) -> RuleResult:
        if self._result is None:
            raise ZeroDivisionError
        found: RuleResult = self._result
        return found


def raw(*values: float) -> Tensor:
    view = memoryview(np.array(values, np.float32).tobytes())
    return raw_tensor("y", Datatype.FP32, (len(values),), view)


@pytest.mark.parametrize(
    ("new", "others", "outcome", "reason"),
    [
        (raw(1, 3, 4), {}, Outcome.MATCH, ""),
        (raw(2, 2), {}, Outcome.MISMATCH, "the first element"),
        (raw(1, 3), {"atol": 1.0}, Outcome.MATCH, ""),
        (raw(1, 4), {"atol": 1.0}, Outcome.MISMATCH, "tolerance: 1 of 2 elements differ"),
        (raw(1, 2, 3), {"atol": 1.0}, Outcome.STRUCTURE, "shape [2] against [3]"),
    ],
)
def test_a_rule_is_one_of_the_conditions(
    new: Tensor, others: dict[str, float], outcome: Outcome, reason: str
) -> None:
    """Alone it decides about shapes too; other conditions must hold as well."""
    rules = OutputRules(outputs={"y": OutputRule(rule=SameFirst(), **others)})  # type: ignore[arg-type]  # numbers
    found = compare_tensors(raw(1, 2), new, rules)
    assert (outcome, reason) == (found.outcome, found.reason)


def test_equal_tensors_pass_without_the_rule() -> None:
    """Most replies are equal, and cost no call of the package."""
    rule = SameFirst()
    compare_tensors(raw(1), raw(1), OutputRules(outputs={"y": OutputRule(rule=rule)}))
    assert 0 == rule.calls


def test_a_rule_of_the_default_holds_for_all_outputs() -> None:
    """The default compares integers by the rule too, where a tolerance would not apply."""
    rules = OutputRules(OutputRule(rule=PackageRule("r", Raising(RuleResult(is_equal=True)))))
    old, new = (array_tensor("y", np.array([each], np.int64)) for each in (1, 2))
    assert Outcome.MATCH is compare_tensors(old, new, rules).outcome


@pytest.mark.parametrize("result", [None, "yes"])
def test_a_rule_that_fails_is_a_difference(result: Any) -> None:
    """The reason and the log name the rule; the same exception is logged once."""
    rule = PackageRule("broken", Raising(result))
    with capture_logs() as lines:
        found = [rule.compare(raw(1), raw(2)) for _ in range(2)]
    kind = "ZeroDivisionError" if result is None else "TypeError"
    assert [RuleResult(is_equal=False, reason=f"comparison rule 'broken': {kind}")] * 2 == found
    assert ["comparison rule 'broken'"] == [line["part"] for line in lines]


def test_the_configuration_names_a_rule() -> None:
    """`rule` of an output is looked up by its name, with the other conditions."""
    rule = SameFirst()
    config = CompareConfig.model_validate({"outputs": {"y": {"rule": "first", "atol": 0.5}}})
    found = rules_of(config, {"first": rule}.__getitem__).outputs["y"]
    assert (rule, 0.5) == (found.rule, found.atol)
