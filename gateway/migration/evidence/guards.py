"""The guards of a migration: whether each limit of the new server holds, trips, or is undecided.

They are pure: they get one comparison at a time and look at no clock. `compare/statistics.py` has
the tests.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from gateway.migration.compare.replies import has_failed
from gateway.migration.compare.statistics import (
    ChangeDetector,
    confidence_sequence,
    quantile_bounds,
    ratio_bounds,
    sequential_calls_needed,
)
from gateway.migration.compare.summary import percentile
from gateway.migration.evidence.excess_guards import ErrorExcessGuard, NoiseGuard
from gateway.migration.evidence.verdicts import (
    Evidence,
    Guard,
    GuardVerdict,
    Standing,
    integers,
    is_different,
)
from gateway.migration.settings import GuardsConfig

_LATENCY_CALLS: Final = 10_000
_LATENCY_INTERVAL_S: Final = 10.0
# The calls that must keep the limit before a step begins, and the share of slow ones among them.
_LATEST_CALLS: Final = 100
_SLOW_SHARE: Final = 0.01
# The times that a restart continues with; all of them would be 200 KB.
_KEPT_TIMES: Final = 1_000
_P99: Final = 0.99


class Guards:
    """All guards of a migration.

    Args:
        config: The limits; a missing one has no guard.
        has_noise: Whether some calls are put to the old server twice. The limit of mismatches is
            then one of their excess over those of the old server with itself.
    """

    def __init__(self, config: GuardsConfig, *, has_noise: bool = False) -> None:
        self._guards: list[Guard] = []
        self._noise: NoiseGuard | None = None
        limit = config.mismatch_limit
        if limit is not None:
            if has_noise:
                self._noise = NoiseGuard("mismatch.below", limit)
                self._guards.append(self._noise)
            else:
                self._guards.append(_RateGuard("mismatch.below", limit, is_different))
        errors, latency = config.error_limits, config.latency
        if errors is not None and errors.below is not None:
            self._guards.append(_RateGuard("errors.below", errors.below, _is_server_error))
        if errors is not None and errors.above_old is not None:
            self._guards.append(ErrorExcessGuard("errors.above_old", errors.above_old))
        if latency is not None and latency.p99 is not None:
            self._guards.append(_LatencyGuard("latency.p99", latency.p99, _P99Time()))
        if latency is not None and latency.p99_ratio is not None:
            self._guards.append(_LatencyGuard("latency.p99_ratio", latency.p99_ratio, _P99Ratio()))

    def ignore_times(self, problem: str) -> None:
        """Leave the guards of times undecided: *problem* is why they say nothing."""
        for guard in self._guards:
            if isinstance(guard, _LatencyGuard):
                guard.problem = problem

    def add(self, evidence: Evidence) -> None:
        """Add one call to each guard; one that both sides refused unasked says nothing."""
        if evidence.old.is_refused and evidence.new.is_refused:
            return
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


def _is_server_error(evidence: Evidence) -> bool | None:
    return has_failed(evidence.old, evidence.new)


def _last(window: tuple[int, int]) -> str:
    return f"{window[0]} of the last {window[1]}"


class _RateGuard:
    """Holds by a confidence sequence over all calls, and trips by the change detector."""

    def __init__(self, name: str, limit: float, judge: _Judge) -> None:
        self.key = name
        self._limit = limit
        self._judge = judge
        self._bad = 0
        self._total = 0
        self._detector = ChangeDetector(limit)
        # What tripped before a restart: bad ones of the last calls, and the calls.
        self._tripped_earlier: tuple[int, int] | None = None

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
        if self._tripped_earlier is None and self._detector.is_tripped:
            self._tripped_earlier = self._detector.window

    def verdict(self) -> GuardVerdict:
        limit = f"limit {self._limit:.3%}"
        tripped = self._detector.tripped_after
        if self._tripped_earlier is not None:
            text = f"{_last(self._tripped_earlier)}, {limit}; tripped before a restart"
            return GuardVerdict(self.key, Standing.TRIPS, text)
        if tripped is not None:
            text = f"{_last(self._detector.window)}, {limit}; tripped after call {tripped}"
            return GuardVerdict(self.key, Standing.TRIPS, text)
        high = confidence_sequence(self._bad, self._total)[1]
        text = f"{self._bad} of {self._total}, at most {high:.3%}, {limit}"
        if high < self._limit:
            return GuardVerdict(self.key, Standing.HOLDS, text)
        needed = sequential_calls_needed(self._limit)
        if self._total < needed and not self._bad:
            text += f"; {needed} calls without one are needed"
        return GuardVerdict(self.key, Standing.UNDECIDED, text)


class _Quantity(Protocol):
    """What a latency guard bounds."""

    def is_slow(self, times_s: tuple[float, float], limit: float, old_p99: float) -> bool:
        """Return whether a call breaks the limit, given the 99th percentile of the old server."""

    def bounds(self, old: list[float], new: list[float]) -> tuple[float, float]:
        """Return its bounds from the sorted times of both servers."""

    def value(self, old: list[float], new: list[float]) -> float:
        """Return itself; the times are not empty."""

    def text(self, value: float) -> str:
        """Return a value with its unit."""


class _P99Time:
    def is_slow(self, times_s: tuple[float, float], limit: float, _old_p99: float) -> bool:
        return times_s[1] > limit

    def bounds(self, _old: list[float], new: list[float]) -> tuple[float, float]:
        low, high = quantile_bounds(new, _P99)
        return max(0.0, low), high

    def value(self, _old: list[float], new: list[float]) -> float:
        return percentile(new, _P99)

    def text(self, value: float) -> str:
        return "?" if math.isinf(value) else f"{value * 1e3:.4g} ms"


class _P99Ratio:
    def is_slow(self, times_s: tuple[float, float], limit: float, old_p99: float) -> bool:
        # A call that was as slow at the old server is no fault of the new one.
        return times_s[1] > limit * max(old_p99, times_s[0])

    def bounds(self, old: list[float], new: list[float]) -> tuple[float, float]:
        return ratio_bounds(new, old, _P99)

    def value(self, old: list[float], new: list[float]) -> float:
        below = percentile(old, _P99)
        return percentile(new, _P99) / below if below > 0 else math.inf

    def text(self, value: float) -> str:
        return "?" if math.isinf(value) else f"{value:.3g}"


class _LatencyGuard:
    """Trips by the latest calls when they break the limit for 10 s, however many were good before.

    It also trips when the lower bound of all kept calls is above the limit at two looks in a row,
    10 s apart. It holds by the upper bound of all kept calls, but not while the latest hundred
    break the limit: a 99th percentile above the limit is a share of more than 1 % of slow calls.
    """

    def __init__(self, name: str, limit: float, quantity: _Quantity) -> None:
        self.key = name
        self._limit = limit
        self._quantity = quantity
        self._times: deque[tuple[float, float]] = deque(maxlen=_LATENCY_CALLS)
        self._begin_watch()
        self._slow_since_s: float | None = None
        self._next_look_s = -math.inf
        self._was_above = False
        self._has_tripped = False
        # What tripped it; a restart forgets it.
        self._tripped_by = ""
        self.problem = ""

    def add(self, evidence: Evidence) -> None:
        if evidence.times_s is None:
            return
        self._watch(evidence.times_s)
        if evidence.at_s >= self._next_look_s:
            self._next_look_s = evidence.at_s + _LATENCY_INTERVAL_S
            low, _, text = self._look()
            is_above = low > self._limit
            if is_above and self._was_above:
                self._trip(text)
            self._was_above = is_above
        if not (self._is_slow and self._detector.is_tripped):
            self._slow_since_s = None
        elif self._slow_since_s is None:
            self._slow_since_s = evidence.at_s
        elif evidence.at_s - self._slow_since_s >= _LATENCY_INTERVAL_S:
            slow, calls = self._detector.window
            limit = self._quantity.text(self._limit)
            self._trip(f"{slow} of the last {calls} calls are slower than the limit {limit}")

    def _begin_watch(self) -> None:
        """Forget the latest calls."""
        self._latest: deque[bool] = deque(maxlen=_LATEST_CALLS)
        self._detector = ChangeDetector(_SLOW_SHARE, latches=False)
        self._seen, self._old_p99 = 0, 0.0

    def _watch(self, times_s: tuple[float, float]) -> None:
        self._times.append(times_s)
        self._seen += 1
        if not self._seen & (self._seen - 1):  # 1, 2, 4, 8...; each look measures it, too
            self._old_p99 = percentile([old for old, _ in self._times], _P99)
        is_slow = self._quantity.is_slow(times_s, self._limit, self._old_p99)
        self._latest.append(is_slow)
        self._detector.add(is_slow)

    def _trip(self, text: str) -> None:
        if not self._has_tripped:
            self._has_tripped, self._tripped_by = True, text

    @property
    def _is_slow(self) -> bool:
        """Whether the latest calls break the limit."""
        return sum(self._latest) > len(self._latest) * _SLOW_SHARE

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
        tripped, *times = integers(counts, 2 * _KEPT_TIMES + 1)
        pairs = [(old / 1e6, new / 1e6) for old, new in zip(times[::2], times[1::2], strict=True)]
        calls = [*pairs, *self._times]
        self._times.clear()
        self._begin_watch()
        for each in calls:
            self._watch(each)
        self._has_tripped |= bool(tripped)

    def _sorted(self) -> tuple[list[float], list[float]]:
        return sorted(old for old, _ in self._times), sorted(new for _, new in self._times)

    def verdict(self) -> GuardVerdict:
        if self.problem:
            return GuardVerdict(self.key, Standing.UNDECIDED, f"not judged: {self.problem}")
        limit = f"limit {self._quantity.text(self._limit)}"
        if self._has_tripped:
            found = self._tripped_by or f"{limit}; tripped before a restart"
            return GuardVerdict(self.key, Standing.TRIPS, found)
        if not self._times:
            return GuardVerdict(self.key, Standing.UNDECIDED, f"no call, {limit}")
        _, high, found = self._look()
        if self._is_slow:
            slow = f"{sum(self._latest)} of the last {len(self._latest)} calls are slower"
            return GuardVerdict(self.key, Standing.UNDECIDED, f"{found}; {slow}")
        standing = Standing.HOLDS if high < self._limit else Standing.UNDECIDED
        return GuardVerdict(self.key, standing, found)

    def _look(self) -> tuple[float, float, str]:
        """Return the bounds of the quantity in the calls so far, and a text with all of it."""
        old, new = self._sorted()
        self._old_p99 = percentile(old, _P99)
        text = self._quantity.text
        low, high = self._quantity.bounds(old, new)
        found = (
            f"{text(self._quantity.value(old, new))} in {len(new)} calls, "
            f"{text(low)} to {text(high)}, limit {text(self._limit)}"
        )
        return low, high, found
