"""ComparisonRule: decides whether an output of two servers is equal."""

from typing import Protocol

from msgspec import Struct

from gateway.ir.tensors.tensor import Tensor


class RuleResult(Struct, frozen=True):
    """The result of a comparison.

    Attributes:
        is_equal: Whether the outputs count as equal.
        reason: What differs, for reports; "" where nothing does.
    """

    is_equal: bool
    reason: str = ""


class ComparisonRule(Protocol):
    """The value of `rule` of a compared output names one.

    It is found by an entry point of `gateway.comparison_rules`. It is pure: it does no I/O.
    """

    def compare(self, old: Tensor, new: Tensor, /) -> RuleResult:
        """Compare an output of the old server with that of the new one."""
