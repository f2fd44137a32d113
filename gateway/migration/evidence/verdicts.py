"""What guards get, and what they say: evidence of one call, and the verdict on a limit.

The guards themselves are in `guards.py` and `excess_guards.py`.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

from gateway.migration.compare.conditions import Condition
from gateway.migration.compare.replies import Comparison, Result
from gateway.migration.compare.summary import Summary
from gateway.migration.compare.tensors import Outcome


class Standing(enum.Enum):
    """What the calls so far say of a limit."""

    HOLDS = "holds"
    TRIPS = "trips"
    UNDECIDED = "undecided"


class Evidence(Struct, frozen=True):
    """One call that both servers were asked.

    Attributes:
        old: Result of the old server.
        new: Result of the new server.
        outcome: The outcome of their comparison.
        times_s: Seconds at the old and at the new server; None unless both replied.
        at_s: Time of the call, of any clock that does not go back by much.
        is_compared: Whether any output of two replies was compared.
    """

    old: Result
    new: Result
    outcome: Outcome
    times_s: tuple[float, float] | None
    at_s: float
    is_compared: bool = True


def evidence_of(
    old: Result,
    new: Result,
    comparison: Comparison,
    times_s: tuple[float, float] | None,
    at_s: float,
) -> Evidence:
    """Return the evidence of one comparison; times of failed calls do not count."""
    replied = old.error is None and new.error is None
    times_s = times_s if replied else None
    is_compared = replied and comparison.is_compared
    return Evidence(old, new, comparison.outcome, times_s, at_s, is_compared)


def uncompared_evidence(at_s: float) -> Evidence:
    """Return the evidence of a call that the new server answered, and whose replies say nothing.

    Guards of errors count it, as the conditions on errors do.
    """
    return Evidence(Result(), Result(), Outcome.MATCH, None, at_s, is_compared=False)


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """The verdict of one limit.

    Attributes:
        guard: Its key in the configuration, such as "errors.below".
        evidence: Counts and bounds, for people.
    """

    guard: str
    standing: Standing
    evidence: str

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {
            "guard": self.guard,
            "verdict": self.standing.value,
            "evidence": self.evidence,
        }


class Guard(Protocol):
    """One limit; once it has tripped, it stays so.

    Attributes:
        key: Names its form of counts.
    """

    @property
    def key(self) -> str: ...  # noqa: D102

    def add(self, evidence: Evidence) -> None:
        """Add one call."""

    def verdict(self) -> GuardVerdict:
        """Return what the calls so far show."""

    def counts(self) -> list[float]:
        """Return what `resume` continues with, at most some thousand numbers."""

    def resume(self, counts: Sequence[float]) -> None:
        """Add what `counts` of an earlier guard with this key and limit returned.

        Raises:
            ValueError: It cannot have returned that.
        """


def is_different(evidence: Evidence) -> bool | None:
    """Return whether two replies differ; None if no replies were compared."""
    if not evidence.is_compared:
        return None
    return evidence.outcome in {Outcome.MISMATCH, Outcome.STRUCTURE}


def integers(counts: Sequence[float], largest_count: int) -> list[int]:
    """Return the counts of a guard as integers.

    Raises:
        ValueError: There are more of them than *largest_count*, or one is negative.
    """
    if len(counts) > largest_count or not all(0 <= each < math.inf for each in counts):
        raise ValueError(f"{len(counts)} counts; expected {largest_count}, none of them negative")
    return [round(each) for each in counts]


def unjudged_calls(
    summary: Summary, conditions: Sequence[Condition], guards: Sequence[GuardVerdict] = ()
) -> list[str]:
    """Return what went wrong with calls that no condition and no guard judges.

    A comparison with such calls has not passed, whatever its replies show.
    """
    found = []
    failed, total = summary.counts("errors")
    judges = [*(each.metric for each in conditions), *(each.guard for each in guards)]
    if failed and not any(name.partition(".")[0] == "errors" for name in judges):
        found.append(
            f"{failed} of {total} calls failed at the new server, and nothing judges errors; "
            "expected a condition such as errors>1%"
        )
    if summary.refused and not any(name.partition(".")[0] == "refused" for name in judges):
        found.append(
            f"{summary.refused} of {summary.calls} calls were refused by the gateway, and nothing "
            "judges that; expected a condition such as refused>0"
        )
    if summary.unreadable:
        found.append(f"{summary.unreadable} calls have replies that cannot be compared")
    return found


def unjudged_mismatches(
    summary: Summary, conditions: Sequence[Condition], guards: Sequence[GuardVerdict] = ()
) -> str:
    """Return how many replies differ if no condition and no guard judges that; else ""."""
    bad, total = summary.counts("mismatch")
    judges = [*(each.metric for each in conditions), *(each.guard for each in guards)]
    if not bad or any(name.partition(".")[0] in {"mismatch", "structure"} for name in judges):
        return ""
    return (
        f"{bad} of {total} compared replies DIFFER, and nothing judges that; expected a condition "
        "such as mismatch>1%"
    )


def verdict_text(
    failures: Sequence[str],
    guards: Sequence[GuardVerdict],
    *,
    has_conditions: bool,
    unjudged: Sequence[str] = (),
    mismatches: str = "",
) -> str:
    """Return the verdict on a comparison: failed with the reasons, undecided, passed or none.

    Args:
        failures: Of the conditions that do not hold.
        guards: A guard that trips is a failure, too.
        has_conditions: Whether there are conditions; without any and without guards it is "none".
        unjudged: The texts that `unjudged_calls` returned.
        mismatches: The text that `unjudged_mismatches` returned; it follows a verdict that no
            mismatch could change.
    """
    tripped = [f"{each.guard} trips" for each in guards if each.standing is Standing.TRIPS]
    undecided = [each.guard for each in guards if each.standing is Standing.UNDECIDED]
    if failures or tripped:
        return f"failed, {'; '.join([*failures, *tripped])}"
    if undecided or unjudged:
        return f"undecided, {', '.join([*undecided, *unjudged])}"
    text = "passed" if has_conditions or guards else "none (no --fail-if and no guard)"
    return f"{text}, BUT {mismatches}" if mismatches else text
