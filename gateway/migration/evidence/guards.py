"""The guards of a migration: whether each limit of the new server holds, trips, or is undecided.

They are pure: they get one comparison at a time and look at no clock. `compare/statistics.py` has
the tests.
"""

import enum
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msgspec import Struct

from gateway.ir.errors import ErrorCode
from gateway.migration.compare.conditions import Condition
from gateway.migration.compare.replies import SERVER_ERRORS, Comparison, Result
from gateway.migration.compare.statistics import (
    ChangeDetector,
    confidence_sequence,
    newcombe_interval,
    quantile_bounds,
    ratio_bounds,
    sequential_calls_needed,
)
from gateway.migration.compare.summary import Summary, percentile
from gateway.migration.compare.tensors import Outcome
from gateway.migration.settings import GuardsConfig

_EXCESS_CALLS: Final = 1_000
_LATENCY_CALLS: Final = 10_000
_LATENCY_INTERVAL_S: Final = 10.0
# The times that a restart continues with; all of them would be 200 KB.
_KEPT_TIMES: Final = 1_000
_P99: Final = 0.99


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
        outcome: Of their comparison.
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


class Guards:
    """All guards of a migration.

    Args:
        config: The limits; a missing one has no guard.
        has_noise: Whether some calls are put to the old server twice. The limit of mismatches is
            then one of their excess over those of the old server with itself.
    """

    def __init__(self, config: GuardsConfig, *, has_noise: bool = False) -> None:
        self._guards: list[Guard] = []
        self._noise: _NoiseGuard | None = None
        if config.mismatch is not None:
            limit = config.mismatch.below
            if has_noise:
                self._noise = _NoiseGuard("mismatch.below", limit)
                self._guards.append(self._noise)
            else:
                self._guards.append(_RateGuard("mismatch.below", limit, _is_different))
        errors, latency = config.error_limits, config.latency
        if errors is not None and errors.below is not None:
            self._guards.append(_RateGuard("errors.below", errors.below, _is_server_error))
        if errors is not None and errors.above_old is not None:
            self._guards.append(_ExcessGuard("errors.above_old", errors.above_old))
        if latency is not None and latency.p99 is not None:
            self._guards.append(_LatencyGuard("latency.p99", latency.p99, _P99Time()))
        if latency is not None and latency.p99_ratio is not None:
            self._guards.append(_LatencyGuard("latency.p99_ratio", latency.p99_ratio, _P99Ratio()))

    def add(self, evidence: Evidence) -> None:
        """Add one call to each guard."""
        for guard in self._guards:
            guard.add(evidence)

    def add_noise(self, is_bad: bool) -> None:
        """Add one call that the old server got twice: whether its own replies differ."""
        if self._noise is not None:
            self._noise.add_noise(is_bad)

    def verdicts(self) -> list[GuardVerdict]:
        """Return the verdict of each guard, in the order of the configuration."""
        return [guard.verdict() for guard in self._guards]

    def counts(self) -> dict[str, list[float]]:
        """Return what each guard continues with later, at most some ten kilobytes of JSON."""
        return {guard.key: guard.counts() for guard in self._guards}

    def resume(self, counts: Mapping[str, Sequence[float]]) -> list[str]:
        """Add what `counts` returned earlier, for the same limits.

        Returns:
            The keys of the guards whose counts are damaged; these guards go on without them.
        """
        damaged = []
        for guard in self._guards:
            try:
                guard.resume(counts.get(guard.key, ()))
            except ValueError:
                damaged.append(guard.key)
        return damaged


_Judge = Callable[[Evidence], bool | None]
"""Returns whether a call is bad; None for one that says nothing about the limit."""


def _is_different(evidence: Evidence) -> bool | None:
    if not evidence.is_compared:
        return None
    return evidence.outcome in {Outcome.MISMATCH, Outcome.STRUCTURE}


def _is_server_error(evidence: Evidence) -> bool | None:
    if evidence.new.error is ErrorCode.CANCELLED:
        return None
    if evidence.outcome in {Outcome.NEW_ERROR, Outcome.TIMEOUT}:
        return True
    return evidence.new.error in SERVER_ERRORS


def _failures(evidence: Evidence) -> tuple[bool, bool] | None:
    """Return whether the old and the new server failed; None if a client left."""
    errors = evidence.old.error, evidence.new.error
    if ErrorCode.CANCELLED in errors:
        return None
    return errors[0] is not None, errors[1] is not None


class _RateGuard:
    """Holds by a confidence sequence over all calls, and trips by the change detector."""

    def __init__(self, name: str, limit: float, judge: _Judge) -> None:
        self.key = name
        self._limit = limit
        self._judge = judge
        self._bad = 0
        self._total = 0
        self._detector = ChangeDetector(limit)
        self._tripped_earlier = False

    def add(self, evidence: Evidence) -> None:
        is_bad = self._judge(evidence)
        if is_bad is None:
            return
        self._bad += is_bad
        self._total += 1
        self._detector.add(is_bad)

    def counts(self) -> list[float]:
        return [self._total, self._bad, *self._detector.sums]

    def resume(self, counts: Sequence[float]) -> None:
        if not counts:
            return
        total, bad, *sums = counts
        self._total += round(total)
        self._bad += round(bad)
        self._detector.resume(sums)
        self._tripped_earlier |= self._detector.is_tripped

    def verdict(self) -> GuardVerdict:
        high = confidence_sequence(self._bad, self._total)[1]
        text = f"{self._bad} of {self._total}, at most {high:.3%}, limit {self._limit:.3%}"
        tripped = self._detector.tripped_after
        if tripped is not None:
            return GuardVerdict(self.key, Standing.TRIPS, f"{text}; tripped after call {tripped}")
        if self._tripped_earlier:
            return GuardVerdict(self.key, Standing.TRIPS, f"{text}; tripped before a restart")
        if high < self._limit:
            return GuardVerdict(self.key, Standing.HOLDS, text)
        needed = sequential_calls_needed(self._limit)
        if self._total < needed and not self._bad:
            text += f"; {needed} calls without one are needed"
        return GuardVerdict(self.key, Standing.UNDECIDED, text)


class _ExcessGuard:
    """Compares the errors of both servers in the last calls."""

    def __init__(self, name: str, limit: float) -> None:
        self.key = name
        self._limit = limit
        self._calls: deque[tuple[bool, bool]] = deque(maxlen=_EXCESS_CALLS)
        self._old = 0
        self._new = 0
        self._total = 0
        self._tripped_after: int | None = None

    def add(self, evidence: Evidence) -> None:
        failures = _failures(evidence)
        if failures is None:
            return
        if len(self._calls) == _EXCESS_CALLS:
            old, new = self._calls[0]
            self._old -= old
            self._new -= new
        old, new = failures
        self._calls.append((old, new))
        self._old += old
        self._new += new
        self._total += 1
        if new and self._tripped_after is None and self._interval()[0] > self._limit:
            self._tripped_after = self._total

    def counts(self) -> list[float]:
        calls = (old + 2 * new for old, new in self._calls)
        return [self._total, self._tripped_after or 0, *calls]

    def resume(self, counts: Sequence[float]) -> None:
        if not counts:
            return
        total, tripped_after, *codes = _integers(counts, _EXCESS_CALLS + 2)
        if any(code > 3 for code in codes):  # noqa: PLR2004  # both failed
            raise ValueError("a call has two results")
        earlier = [(bool(code & 1), bool(code & 2)) for code in codes]
        self._calls.extendleft(earlier[::-1][: _EXCESS_CALLS - len(self._calls)])
        self._old = sum(old for old, _ in self._calls)
        self._new = sum(new for _, new in self._calls)
        self._tripped_after = _earliest(tripped_after, self._tripped_after, total)
        self._total += total

    def _interval(self) -> tuple[float, float]:
        count = len(self._calls)
        return newcombe_interval(self._new, count, self._old, count)

    def verdict(self) -> GuardVerdict:
        low, high = self._interval()
        text = (
            f"{self._new} at new and {self._old} at old in the last {len(self._calls)} calls, "
            f"{low:.3%} to {high:.3%} more, limit {self._limit:.3%}"
        )
        if self._tripped_after is not None:
            text += f"; tripped after call {self._tripped_after}"
            return GuardVerdict(self.key, Standing.TRIPS, text)
        standing = Standing.HOLDS if high < self._limit else Standing.UNDECIDED
        return GuardVerdict(self.key, standing, text)


class _RecentRate:
    """How many of the last calls are bad."""

    def __init__(self) -> None:
        self._calls: deque[bool] = deque(maxlen=_EXCESS_CALLS)
        self.bad = 0

    @property
    def total(self) -> int:
        return len(self._calls)

    def add(self, is_bad: bool) -> None:
        if len(self._calls) == _EXCESS_CALLS:
            self.bad -= self._calls[0]
        self._calls.append(is_bad)
        self.bad += is_bad

    def calls(self) -> list[int]:
        return [int(is_bad) for is_bad in self._calls]

    def resume(self, earlier: Sequence[int]) -> None:
        calls = [bool(each) for each in earlier]
        self._calls.extendleft(calls[::-1][: _EXCESS_CALLS - len(self._calls)])
        self.bad = sum(self._calls)


class _NoiseGuard:
    """Compares the mismatches of the last calls with those of the old server with itself."""

    def __init__(self, name: str, limit: float) -> None:
        self.key = f"{name} with noise"
        self._name = name
        self._limit = limit
        self._found = _RecentRate()
        self._noise = _RecentRate()
        self._total = 0
        self._tripped_after: int | None = None

    def add(self, evidence: Evidence) -> None:
        is_bad = _is_different(evidence)
        if is_bad is None:
            return
        self._found.add(is_bad)
        self._total += 1
        if is_bad and self._tripped_after is None and self._interval()[0] > self._limit:
            self._tripped_after = self._total

    def add_noise(self, is_bad: bool) -> None:
        self._noise.add(is_bad)

    def counts(self) -> list[float]:
        found, noise = self._found.calls(), self._noise.calls()
        return [self._total, self._tripped_after or 0, len(found), *found, *noise]

    def resume(self, counts: Sequence[float]) -> None:
        if not counts:
            return
        total, tripped_after, found, *calls = _integers(counts, 2 * _EXCESS_CALLS + 3)
        self._found.resume(calls[:found])
        self._noise.resume(calls[found:])
        self._tripped_after = _earliest(tripped_after, self._tripped_after, total)
        self._total += total

    def _interval(self) -> tuple[float, float]:
        found, noise = self._found, self._noise
        return newcombe_interval(found.bad, found.total, noise.bad, noise.total)

    def verdict(self) -> GuardVerdict:
        low, high = self._interval()
        text = (
            f"{self._found.bad} of the last {self._found.total} differ, and {self._noise.bad} of "
            f"{self._noise.total} of the old server with itself, {low:.3%} to {high:.3%} more, "
            f"limit {self._limit:.3%}"
        )
        if self._tripped_after is not None:
            text += f"; tripped after call {self._tripped_after}"
            return GuardVerdict(self._name, Standing.TRIPS, text)
        standing = Standing.HOLDS if high < self._limit else Standing.UNDECIDED
        return GuardVerdict(self._name, standing, text)


def _integers(counts: Sequence[float], largest_count: int) -> list[int]:
    """Return counts as integers.

    Raises:
        ValueError: There are more of them than *largest_count*, or one is negative.
    """
    if len(counts) > largest_count or not all(0 <= each < math.inf for each in counts):
        raise ValueError(f"{len(counts)} counts; expected {largest_count}, none of them negative")
    return [round(each) for each in counts]


def _earliest(before: int, now: int | None, total: int) -> int | None:
    """Return the call after which a guard tripped, of those before a restart and those since."""
    return before or (None if now is None else total + now)


class _Quantity(Protocol):
    """What a latency guard bounds."""

    def bounds(self, old: list[float], new: list[float]) -> tuple[float, float]:
        """Return its bounds from the sorted times of both servers."""

    def value(self, old: list[float], new: list[float]) -> float:
        """Return itself; the times are not empty."""

    def text(self, value: float) -> str:
        """Return a value with its unit."""


class _P99Time:
    def bounds(self, _old: list[float], new: list[float]) -> tuple[float, float]:
        low, high = quantile_bounds(new, _P99)
        return max(0.0, low), high

    def value(self, _old: list[float], new: list[float]) -> float:
        return percentile(new, _P99)

    def text(self, value: float) -> str:
        return "?" if math.isinf(value) else f"{value * 1e3:.4g} ms"


class _P99Ratio:
    def bounds(self, old: list[float], new: list[float]) -> tuple[float, float]:
        return ratio_bounds(new, old, _P99)

    def value(self, old: list[float], new: list[float]) -> float:
        below = percentile(old, _P99)
        return percentile(new, _P99) / below if below > 0 else math.inf

    def text(self, value: float) -> str:
        return "?" if math.isinf(value) else f"{value:.3g}"


class _LatencyGuard:
    """Trips when the lower bound is above the limit at two looks in a row, 10 s apart."""

    def __init__(self, name: str, limit: float, quantity: _Quantity) -> None:
        self.key = name
        self._limit = limit
        self._quantity = quantity
        self._times: deque[tuple[float, float]] = deque(maxlen=_LATENCY_CALLS)
        self._next_look_s = -math.inf
        self._was_above = False
        self._has_tripped = False

    def add(self, evidence: Evidence) -> None:
        if evidence.times_s is None:
            return
        self._times.append(evidence.times_s)
        if evidence.at_s >= self._next_look_s:
            self._next_look_s = evidence.at_s + _LATENCY_INTERVAL_S
            is_above = self._quantity.bounds(*self._sorted())[0] > self._limit
            self._has_tripped |= is_above and self._was_above
            self._was_above = is_above

    def counts(self) -> list[float]:
        """Return whether it has tripped, and the last times in microseconds.

        What the last look saw is not kept, because clocks may begin anew: after a restart the
        guard looks at the first call, and trips 10 s later at the earliest.
        """
        last = list(self._times)[-_KEPT_TIMES:]
        return [int(self._has_tripped), *(round(each * 1e6) for pair in last for each in pair)]

    def resume(self, counts: Sequence[float]) -> None:
        if not counts:
            return
        tripped, *times = _integers(counts, 2 * _KEPT_TIMES + 1)
        pairs = [(old / 1e6, new / 1e6) for old, new in zip(times[::2], times[1::2], strict=True)]
        self._times.extendleft(pairs[::-1][: _LATENCY_CALLS - len(self._times)])
        self._has_tripped |= bool(tripped)

    def _sorted(self) -> tuple[list[float], list[float]]:
        return sorted(old for old, _ in self._times), sorted(new for _, new in self._times)

    def verdict(self) -> GuardVerdict:
        old, new = self._sorted()
        text = self._quantity.text
        if not new:
            return GuardVerdict(self.key, Standing.UNDECIDED, f"no call, limit {text(self._limit)}")
        low, high = self._quantity.bounds(old, new)
        found = (
            f"{text(self._quantity.value(old, new))} in {len(new)} calls, "
            f"{text(low)} to {text(high)}, limit {text(self._limit)}"
        )
        if self._has_tripped:
            return GuardVerdict(self.key, Standing.TRIPS, found)
        standing = Standing.HOLDS if high < self._limit else Standing.UNDECIDED
        return GuardVerdict(self.key, standing, found)


def unjudged_calls(
    summary: Summary, conditions: Sequence[Condition], guards: Sequence[GuardVerdict]
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
    if summary.unreadable:
        found.append(f"{summary.unreadable} calls have replies that cannot be compared")
    return found


def verdict_text(
    failures: Sequence[str],
    guards: Sequence[GuardVerdict],
    *,
    has_conditions: bool,
    unjudged: Sequence[str] = (),
) -> str:
    """Return the verdict on a comparison: failed with the reasons, undecided, passed or none.

    Args:
        failures: Of the conditions that do not hold.
        guards: A guard that trips is a failure, too.
        has_conditions: Whether there are conditions; without any and without guards it is "none".
        unjudged: Of `unjudged_calls`.
    """
    tripped = [f"{each.guard} trips" for each in guards if each.standing is Standing.TRIPS]
    undecided = [each.guard for each in guards if each.standing is Standing.UNDECIDED]
    if failures or tripped:
        return f"failed, {'; '.join([*failures, *tripped])}"
    if undecided or unjudged:
        return f"undecided, {', '.join([*undecided, *unjudged])}"
    return "passed" if has_conditions or guards else "none (no --fail-if and no guard)"
