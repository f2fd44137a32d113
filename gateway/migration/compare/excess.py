"""Whether one rate exceeds another one by more than a limit, looked at after every call.

Both rates are unknown. `excess_bounds` says what all calls show, and `ExcessDetector` watches the
latest ones.
"""

import math
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gateway.migration.compare.statistics import confidence_sequence, newcombe_interval

WINDOW: Final = 1_000
"""Calls that a detector looks back at, at most."""

_WINDOWS: Final = (10, 20, 50, 100, 200, 500, WINDOW)
# Found by simulation, as in `tests/unit/migration/compare/test_excess.py`: equal servers are not
# taken for different ones, and a server that fails half of its calls is found within ten.
_THRESHOLD: Final = 7.4
_GROWTH: Final = 0.5
_GROWTH_CALLS: Final = 100
# A failed call says less against a larger limit, and a larger one is exceeded by chance less often:
# the threshold does not grow with the calls from 5 % on, and is the least one from 10 % on.
_NO_GROWTH_LIMIT: Final = 0.05
_LEAST_THRESHOLD: Final = 5.0
# A second rate that is not low is exceeded by chance in more windows.
_NOISE_GROWTH_CALLS: Final = 20
_CONTEMPORARY_THRESHOLD: Final = 2.0
_LEAST_FAILURES: Final = 3
_ASSUMED_GOOD: Final = 50
_STEPS: Final = 40


def excess_bounds(bad: int, total: int, bad_2: int, total_2: int) -> tuple[float, float]:
    """Return the bounds of the first rate minus the second one, at all numbers of calls at once.

    They are the confidence sequences of both rates, joined as Newcombe joins two intervals.
    Without calls on a side they are -1 and 1.
    """
    return newcombe_interval(bad, total, bad_2, total_2, confidence_sequence)


@dataclass(frozen=True, slots=True)
class Excess:
    """The calls by which a detector has found an excess.

    Attributes:
        bad: Bad ones of the last calls of the first rate.
        total: These calls.
        bad_2: Bad ones of the last calls of the second rate.
        total_2: The calls of the second rate that were known.
    """

    bad: int
    total: int
    bad_2: int
    total_2: int


class ExcessDetector:
    """Detects that the first of two rates exceeds the second one by more than a limit.

    For windows of the last 10 to 1 000 calls it compares the likelihood of what was seen with the
    largest one under an excess of at most the limit. The threshold for small limits grows with the
    logarithm of the number of calls, because the detector looks after every call.

    A window has the calls of the second rate since it began. Where these are fewer than its own
    calls, earlier ones count too, but a rise of both rates at once is no excess: the calls since
    the window began must show some of it themselves.

    Args:
        limit: Of the excess, 0 < limit < 1.
        calls: Of the first rate, before those that are added.
        assumes_good: Whether the second rate is taken for low until 50 calls of it are known.

    Attributes:
        found: The calls by which it has tripped; None for not yet.
        tripped_after: The number of calls of the first rate until then; None for not yet.

    Source: Lai, Journal of the Royal Statistical Society B 57, 1995 (window-limited generalised
    likelihood ratio).
    """

    def __init__(self, limit: float, *, calls: int = 0, assumes_good: bool = True) -> None:
        self._limit = limit
        self._growth = _GROWTH * max(0.0, 1 - limit / _NO_GROWTH_LIMIT)
        part = min(max(0.0, limit / _NO_GROWTH_LIMIT - 1), 1.0)
        self._threshold = _THRESHOLD - part * (_THRESHOLD - _LEAST_THRESHOLD)
        self._assumed_good = _ASSUMED_GOOD if assumes_good else 0
        # After each call of the first rate: calls and bad ones of the second, bad ones of the
        # first.
        self._totals: deque[tuple[int, int, int]] = deque([(0, 0, 0)], maxlen=WINDOW + 1)
        self._last_2: deque[bool] = deque(maxlen=WINDOW)
        self._bad, self._bad_2, self._total_2 = 0, 0, 0
        self._total = calls
        self.found: Excess | None = None
        self.tripped_after: int | None = None

    def add(self, is_bad: bool) -> None:
        """Add a call of the first rate; after the detection, nothing changes."""
        if self.found is not None:
            return
        self._total += 1
        self._bad += is_bad
        self._totals.append((self._total_2, self._bad_2, self._bad))
        if is_bad:
            self.found = self._check()
            self.tripped_after = None if self.found is None else self._total

    def add_second(self, is_bad: bool) -> None:
        """Add a call of the second rate."""
        self._total_2 += 1
        self._bad_2 += is_bad
        self._last_2.append(is_bad)

    def _check(self) -> Excess | None:
        threshold = self._threshold + self._growth * math.log1p(self._total / _GROWTH_CALLS)
        if not self._assumed_good:
            threshold += math.log1p(self._total / _NOISE_GROWTH_CALLS)
        known = len(self._totals) - 1
        for window in _WINDOWS:
            total = min(window, known)
            found = self._excess(total, threshold)
            if found is not None or total == known:
                return found
        return None

    def _excess(self, total: int, threshold: float) -> Excess | None:
        """Return the excess in the last *total* calls; None if they show none."""
        total_2, bad_2, bad = self._totals[-1 - total]
        bad = self._bad - bad
        total_2, bad_2 = self._total_2 - total_2, self._bad_2 - bad_2
        limit = self._limit
        if bad < _LEAST_FAILURES or bad <= limit * total:
            return None
        ratio = log_likelihood_ratio(bad, total, bad_2, total_2, limit)
        # With few calls of the second rate nobody can know whether both rates rose.
        if total_2 * 4 >= total and ratio < _CONTEMPORARY_THRESHOLD:
            return None
        wanted = max(total, self._assumed_good)
        if total_2 < wanted:
            known = min(wanted, len(self._last_2))
            bad_2 = sum(islice(reversed(self._last_2), known))
            assumed = max(known, self._assumed_good)
            ratio = log_likelihood_ratio(bad, total, bad_2, assumed, limit)
            total_2 = known
        return Excess(bad, total, bad_2, total_2) if ratio >= threshold else None


def log_likelihood_ratio(bad: int, total: int, bad_2: int, total_2: int, limit: float) -> float:
    """Return by how much an excess of more than *limit* is likelier than a lower one.

    It is the logarithm of the ratio of the largest likelihoods; 0 if the counts show no such
    excess, or if one side has no calls.
    """
    if not total or not total_2:
        return 0.0
    rate, rate_2 = bad / total, bad_2 / total_2
    if rate - rate_2 <= limit:
        return 0.0
    # The likeliest second rate under an excess of `limit`, by bisection of the derivative.
    low, high = 0.0, 1.0 - limit
    for _ in range(_STEPS):
        middle = (low + high) / 2
        slope = bad_2 / middle - (total_2 - bad_2) / (1 - middle)
        slope += bad / (middle + limit) - (total - bad) / (1 - middle - limit)
        low, high = (middle, high) if slope > 0 else (low, middle)
    return (
        _log_likelihood(bad, total, rate)
        + _log_likelihood(bad_2, total_2, rate_2)
        - _log_likelihood(bad, total, low + limit)
        - _log_likelihood(bad_2, total_2, low)
    )


def _log_likelihood(bad: int, total: int, rate: float) -> float:
    found = bad * math.log(rate) if bad else 0.0
    return found + ((total - bad) * math.log1p(-rate) if bad < total else 0.0)
