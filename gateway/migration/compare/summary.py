"""Adds up the comparisons of many calls: counts, rates, errors of each output, times.

Requests are counted, not rows: the rows of a batch are not independent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.migration.compare.reasons import Reason, Reasons
from gateway.migration.compare.replies import Comparison
from gateway.migration.compare.statistics import confidence_sequence
from gateway.migration.compare.tensors import Errors, Outcome, TensorComparison


@dataclass(slots=True)
class OutputSummary:
    """The comparisons of one output.

    Attributes:
        compared: Calls in which both replies have it with one structure, or should have.
        mismatched: Those in which it differs, in values or structure.
        worst: Id of the call with the largest absolute error, or else the first that differs.
        reshaped: Calls that agree in shape by `shape: squeeze` alone.
        example: The shapes of the first of them.
    """

    compared: int = 0
    mismatched: int = 0
    errors: Errors | None = None
    rows: int = 0
    bad_rows: int = 0
    worst: str = ""
    reshaped: int = 0
    example: str = ""
    _worst_error: float = -1.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the rate of mismatches, by the confidence sequence of guards."""
        return confidence_sequence(self.mismatched, self.compared)

    def rate_texts(self) -> tuple[str, str, str, str]:
        """Return the calls compared, those that differ, their rate and its interval, as text."""
        low, high = self.interval
        rate = f"{self.mismatched / self.compared:.2%}" if self.compared else "-"
        return str(self.compared), str(self.mismatched), rate, f"{low * 100:.3f}-{high:.3%}"

    @property
    def shape_text(self) -> str:
        """What clients will see of shapes that `shape: squeeze` allows; "" for nothing."""
        if not self.reshaped:
            return ""
        return (
            f"in {self.reshaped} calls clients of the new server get shape {self.example}, which "
            "`shape: squeeze` allows; `tensors: {shapes: ...}` of the target restores the old one"
        )

    def add(self, call_id: str, found: TensorComparison) -> None:
        """Add the comparison of one call."""
        self.compared += 1
        self.rows += found.rows
        self.bad_rows += found.bad_rows
        is_bad = found.outcome is not Outcome.MATCH
        self.mismatched += is_bad
        self.reshaped += bool(found.reshaped)
        self.example = self.example or found.reshaped
        error = found.errors.max_abs if found.errors is not None else 0.0
        if is_bad and error > self._worst_error:
            self.worst, self._worst_error = call_id, error
        if found.errors is not None:
            self.errors = self.errors or Errors()
            self.errors.add(found.errors)


@dataclass(slots=True)
class Summary:
    """The comparisons of all calls.

    Attributes:
        outcomes: Number of calls by outcome.
        compared: Calls in which any output of two replies was compared.
        failed: Calls that failed at the new server.
        failed_alike: Those of them that the old one refused, too.
        silent: Calls whose client left, or that the gateway refused on both sides; they say nothing
            of errors.
        uncompared: Calls with a reply of the new server, but nothing to compare it with.
        unreadable: Calls with replies that cannot be compared.
        missing: Calls of one side without a counterpart.
        forwarded: Calls that the gateway has not read, so that only their messages are known.
        outputs: By name.
        times_problem: Why the times of both servers are not comparable; "" if they are.
        old_s: Seconds of each call at the old server.
        new_s: Seconds of the same calls at the new server.
    """

    outcomes: dict[Outcome, int] = field(default_factory=dict)
    compared: int = 0
    failed: int = 0
    failed_alike: int = 0
    silent: int = 0
    uncompared: int = 0
    unreadable: int = 0
    missing: int = 0
    forwarded: int = 0
    outputs: dict[str, OutputSummary] = field(default_factory=dict)
    old_s: list[float] = field(default_factory=list)
    new_s: list[float] = field(default_factory=list)
    times_problem: str = ""
    _reasons: Reasons = field(default_factory=Reasons)

    @property
    def calls(self) -> int:
        """Number of calls with both results."""
        return sum(self.outcomes.values())

    @property
    def refused(self) -> int:
        """Number of calls that the gateway itself refused."""
        return self.outcomes.get(Outcome.REFUSED, 0)

    @property
    def reasons(self) -> Sequence[Reason]:
        """Why calls failed, or have another structure; the most frequent reasons first."""
        return self._reasons.list()

    def add(
        self,
        call_id: str,
        comparison: Comparison,
        times: tuple[float, float] | None = None,
        error: str = "",
    ) -> None:
        """Add one call.

        Args:
            call_id: Shown for the worst call of an output.
            comparison: The comparison of its two results.
            times: Seconds at the old and at the new server; None if one is unknown.
            error: The text of the error that ended it.
        """
        self.outcomes[comparison.outcome] = self.outcomes.get(comparison.outcome, 0) + 1
        self.compared += comparison.is_compared
        is_silent = comparison.has_failed is None
        is_error = comparison.error is not None and not is_silent
        self.silent += is_silent
        self.failed += is_error
        self.failed_alike += is_error and not comparison.has_failed
        self._reasons.add_comparison(call_id, comparison, error)
        for name, found in comparison.outputs.items():
            self.outputs.setdefault(name, OutputSummary()).add(call_id, found)
        if times is not None:
            self.old_s.append(times[0])
            self.new_s.append(times[1])

    def counts(self, metric: str) -> tuple[int, int]:
        """Return how many calls are bad by a rate of `conditions.RATES`, and of how many."""
        total = self.calls
        if metric.startswith("mismatch."):
            output = self.outputs.get(metric.removeprefix("mismatch."))
            return (output.mismatched, output.compared) if output is not None else (0, 0)
        if metric == "missing":
            return self.missing, total + self.missing
        if metric == "refused":
            return self.refused, total
        if metric == "errors":
            calls = total + self.uncompared + self.unreadable
            return self.failed - self.failed_alike, calls - self.silent
        structure = self.outcomes.get(Outcome.STRUCTURE, 0)
        if metric == "structure":
            return structure, self.compared
        return structure + self.outcomes.get(Outcome.MISMATCH, 0), self.compared

    def latency(self, metric: str) -> float | None:
        """Return "p99" of the new server in seconds, or a ratio of new to old; None if unknown."""
        if not self.new_s or (self.times_problem and metric != "p99"):
            return None
        share = 0.5 if metric == "p50_ratio" else 0.99
        new = percentile(self.new_s, share)
        if metric == "p99":
            return new
        old = percentile(self.old_s, share)
        return new / old if old > 0 else None

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "calls": self.calls,
            "compared": self.compared,
            "failed": self.failed,
            "failed_alike": self.failed_alike,
            "reasons": [each.document() for each in self.reasons],
            "missing": self.missing,
            "forwarded": self.forwarded,
            "refused": self.refused,
            "outcomes": {each.value: self.outcomes.get(each, 0) for each in Outcome},
            "outputs": {name: _output_document(each) for name, each in self.outputs.items()},
            "latency": {
                "p99_s": self.latency("p99"),
                "p50_ratio": self.latency("p50_ratio"),
                "p99_ratio": self.latency("p99_ratio"),
                "not_judged": self.times_problem or None,
            },
        }


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least value that at least *share* of *values*, not empty, do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _output_document(output: OutputSummary) -> dict[str, Any]:
    document: dict[str, Any] = {
        "compared": output.compared,
        "mismatched": output.mismatched,
        "rate": output.mismatched / output.compared if output.compared else None,
        "interval": list(output.interval),
        "worst_call": output.worst or None,
        "reshaped": output.shape_text or None,
    }
    if output.rows:
        document |= {"rows": output.rows, "bad_rows": output.bad_rows}
    errors = output.errors
    if errors is not None:
        document |= {
            "max_abs": finite(errors.max_abs),
            "mean_abs": finite(errors.mean_abs),
            "max_rel": finite(errors.max_rel),
            "mean_rel": finite(errors.sum_rel / errors.relative if errors.relative else 0.0),
            "max_ulp": errors.max_ulp,
            "histogram_log10_abs": errors.histogram,
        }
    return document


def finite(value: float) -> float | None:
    """Return *value*; None for the infinity of an overflow, which JSON cannot represent."""
    return value if math.isfinite(value) else None
