"""Comparison rules of installed packages, as the comparison of outputs calls them."""

from typing import Any

import structlog

from gateway import registry
from gateway.api.comparison import ComparisonRule, RuleResult
from gateway.ir.tensors.tensor import Tensor
from gateway.telemetry.faults import FAULTS

log = structlog.get_logger(__name__)


def named_rule(name: str) -> ComparisonRule:
    """Return the rule *name* of a package.

    Raises:
        LookupError: It does not exist, or cannot be imported.
    """
    return PackageRule(name, registry.comparison_rule(name))


class PackageRule:
    """A rule whose exceptions count as a difference, and are logged once for each type.

    Args:
        name: The name of its entry point.
        rule: The rule of the package.
    """

    def __init__(self, name: str, rule: ComparisonRule) -> None:
        self._part = f"comparison rule {name!r}"
        self._rule = rule
        self._logged: set[type[BaseException]] = set()

    def compare(self, old: Tensor, new: Tensor, /) -> RuleResult:
        """Compare two outputs; an exception of the rule is a difference."""
        try:
            return _checked(self._rule.compare(old, new))
        except FAULTS as error:
            if type(error) not in self._logged:
                self._logged.add(type(error))
                log.exception("internal error", part=self._part)
            return RuleResult(is_equal=False, reason=f"{self._part}: {type(error).__name__}")


def _checked(found: Any) -> RuleResult:
    if not isinstance(found, RuleResult):
        raise TypeError(f"returned {type(found).__name__}; expected RuleResult")
    return found
