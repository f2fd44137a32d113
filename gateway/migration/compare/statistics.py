"""What a number of mismatches among a number of calls says about their rate.

Intervals and bounds of counts, the detector of a change, and bounds of quantiles; they know nothing
of tensors.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

_Z: Final = 1.96
_STEPS: Final = 100
_ALPHA: Final = 0.05
_ALTERNATIVES: Final = (2, 5, 10)
_RUN_LENGTH: Final = 1e5
_LARGEST_LOG: Final = 100.0


def wilson_interval(bad: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of the rate that *bad* of *total* calls show.

    Without a call it is 0 to 1.

    Source: Wilson, Journal of the American Statistical Association 22, 1927.
    """
    if not total:
        return 0.0, 1.0
    rate, square = bad / total, _Z * _Z
    middle = rate + square / (2 * total)
    half = _Z * math.sqrt(rate * (1 - rate) / total + square / (4 * total * total))
    scale = 1 + square / total
    low = 0.0 if not bad else max(0.0, (middle - half) / scale)
    high = 1.0 if bad == total else min(1.0, (middle + half) / scale)
    return low, high


def calls_needed(limit: float, confidence: float = 0.95) -> int:
    """Return how many calls without a mismatch show that the rate is below *limit*.

    The calls are looked at once, at the end.

    Source: Hanley and Lippman-Hand, JAMA 249, 1983.
    """
    return math.ceil(math.log(1 - confidence) / math.log1p(-limit))


def sequential_calls_needed(limit: float, alpha: float = _ALPHA) -> int:
    """Return how many calls without a mismatch show that the rate is below *limit*.

    They may be looked at after every call, by `confidence_sequence`.
    """
    low, high = 0, 1
    while _log_martingale(0, high, limit) < -math.log(alpha):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        is_shown = _log_martingale(0, middle, limit) >= -math.log(alpha)
        low, high = (low, middle) if is_shown else (middle, high)
    return high


def upper_bound(bad: int, total: int, confidence: float = 0.95) -> float:
    """Return the one-sided upper bound of the rate, for counts that are looked at once.

    Source: Clopper and Pearson, Biometrika 26, 1934.
    """
    if bad >= total:
        return 1.0
    return _edge(lambda rate: _binomial_cdf(bad, total, rate) <= 1 - confidence, 1.0, bad / total)


def _binomial_cdf(bad: int, total: int, rate: float) -> float:
    """Return the probability of at most *bad* in *total* at *rate*, 0 < rate < 1."""
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    head = math.lgamma(total + 1)
    # The terms fall off quickly below the mean: those below 1e-18 of the last one do not count.
    found, largest = 0.0, -math.inf
    for count in range(bad, -1, -1):
        log_term = head - math.lgamma(count + 1) - math.lgamma(total - count + 1)
        log_term += count * log_rate + (total - count) * log_rest
        largest = max(largest, log_term)
        if log_term < largest - 42 and count < total * rate:
            break
        found += math.exp(log_term)
    return found


def newcombe_interval(
    bad: int,
    total: int,
    bad_2: int,
    total_2: int,
    bounds: Callable[[int, int], tuple[float, float]] = wilson_interval,
) -> tuple[float, float]:
    """Return the 95 % interval of the first rate minus the second one, of independent calls.

    Without calls on a side it is -1 to 1.

    Args:
        bad: Bad calls of the first rate.
        total: All calls of the first rate.
        bad_2: Bad calls of the second rate.
        total_2: All calls of the second rate.
        bounds: The interval of one rate, by its bad calls and all of them.

    Source: Newcombe, Statistics in Medicine 17, 1998, method 10.
    """
    if not total or not total_2:
        return -1.0, 1.0
    rate, rate_2 = bad / total, bad_2 / total_2
    low, high = bounds(bad, total)
    low_2, high_2 = bounds(bad_2, total_2)
    difference = rate - rate_2
    return (
        difference - math.hypot(rate - low, high_2 - rate_2),
        difference + math.hypot(high - rate, rate_2 - low_2),
    )


def confidence_sequence(bad: int, total: int, alpha: float = _ALPHA) -> tuple[float, float]:
    """Return the bounds of the rate that hold at all numbers of calls at once.

    They are for counts that are looked at after every call: the rate is outside of them at any
    time with a probability of at most *alpha*. Without a call they are 0 and 1.

    Source: Robbins, Annals of Mathematical Statistics 41, 1970; Howard et al., Annals of
    Statistics 49, 2021.
    """
    limit = -math.log(alpha)

    def is_out(rate: float) -> bool:
        return _log_martingale(bad, total, rate) >= limit

    rate = bad / total if total else 0.5
    low = _edge(is_out, 0.0, rate) if bad else 0.0
    high = _edge(is_out, 1.0, rate) if bad < total else 1.0
    return low, high


def _edge(is_out: Callable[[float], bool], outside: float, inside: float) -> float:
    """Return the edge between two values, rounded to the outside, by bisection."""
    for _ in range(_STEPS):
        middle = (outside + inside) / 2
        if is_out(middle):
            outside = middle
        else:
            inside = middle
    return outside


def _log_martingale(bad: int, total: int, rate: float) -> float:
    """Return the log of B(k + 1/2, n - k + 1/2) / (B(1/2, 1/2) p^k (1 - p)^(n - k))."""
    if not 0.0 < rate < 1.0:
        return math.inf
    mixture = _log_beta(bad + 0.5, total - bad + 0.5) - _log_beta(0.5, 0.5)
    return mixture - math.log(rate) * bad - math.log1p(-rate) * (total - bad)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


class ChangeDetector:
    """Detects that a rate has risen above a limit, however many calls were good before.

    On average it takes 100 000 calls at the limit itself before it is wrong.

    Args:
        limit: A rate, 0 < limit < 1.
        sums: The sums of an earlier detector with this limit, which it continues.
        latches: Whether nothing changes after the detection; else `is_tripped` follows the calls.

    Attributes:
        tripped_after: Number of calls after which it detected the rise; None for not yet.

    Source: e-detectors of Shin, Ramdas and Rinaldo, NEJSDS 2, 2023.
    """

    def __init__(self, limit: float, sums: Sequence[float] = (), *, latches: bool = True) -> None:
        rates = {limit * factor for factor in _ALTERNATIVES} | {0.5}
        # A limit near or above one half has no such rate above it.
        rates = {rate for rate in rates if limit < rate < 1} or {(1 + limit) / 2}
        self._tests = [_ChangeTest(limit, rate) for rate in sorted(rates)]
        self._is_idle = True
        self._latches = latches
        self._calls = 0
        self.tripped_after: int | None = None
        self.resume(sums)

    @property
    def sums(self) -> tuple[float, ...]:
        """The sums of its tests, and since when each is above 0, to continue with later."""
        tests = self._tests
        counts = ([each.calls for each in tests], [each.bad for each in tests])
        return (*(each.sum for each in tests), *counts[0], *counts[1])

    @property
    def window(self) -> tuple[int, int]:
        """The bad ones among the last calls that show the rise, and the number of these calls.

        Of an earlier version of the gateway, which did not count them, they are 0.
        """
        found = max(self._tests, key=lambda each: each.sum)
        return found.bad, found.calls

    def resume(self, sums: Sequence[float]) -> None:
        """Continue with the sums of an earlier detector with this limit, if they are larger."""
        count = len(self._tests)
        if len(sums) == count:
            sums = (*sums, *(0,) * (2 * count))
        if len(sums) != 3 * count:
            return
        for place, test in enumerate(self._tests):
            if sums[place] > test.sum:
                test.sum = sums[place]
                test.calls, test.bad = round(sums[count + place]), round(sums[2 * count + place])
        self._is_idle = not any(test.sum for test in self._tests)

    @property
    def is_tripped(self) -> bool:
        """Whether the sums show the rise."""
        # Above 700 the exponential function overflows.
        total = sum(math.exp(min(each.sum, _LARGEST_LOG)) for each in self._tests)
        return total >= _RUN_LENGTH * len(self._tests)

    def add(self, is_bad: bool) -> None:
        """Add one call; after the detection, nothing changes."""
        if self.tripped_after is not None:
            return
        self._calls += 1
        if is_bad or not self._is_idle:  # a good call leaves sums of 0 as they are
            self._add(int(is_bad), 1)
            if is_bad and self._latches and self.is_tripped:
                self.tripped_after = self._calls

    def add_many(self, bad: int, total: int) -> None:
        """Add *total* calls of which *bad* are, in an unknown order; then look once."""
        if self.tripped_after is not None or not total:
            return
        self._calls += total
        self._add(bad, total)
        if self.is_tripped:
            self.tripped_after = self._calls

    def _add(self, bad: int, total: int) -> None:
        self._is_idle = True
        for test in self._tests:
            test.add(bad, total)
            self._is_idle &= not test.sum


class _ChangeTest:
    """The sum of the logarithms of likelihood ratios, from its last 0 on.

    Attributes:
        calls: Since then.
        bad: Those that are bad.
    """

    __slots__ = ("_on_bad", "_on_good", "bad", "calls", "sum")

    def __init__(self, limit: float, rate: float) -> None:
        self._on_bad = math.log(rate / limit)
        self._on_good = math.log((1 - rate) / (1 - limit))
        self.sum = 0.0
        self.calls = self.bad = 0

    def add(self, bad: int, total: int) -> None:
        found = self.sum + bad * self._on_bad + (total - bad) * self._on_good
        if found > 0:
            self.sum = found
            self.calls += total
            self.bad += bad
        else:
            self.sum = 0.0
            self.calls = self.bad = 0


def quantile_bounds(
    ordered: Sequence[float], share: float, alpha: float = _ALPHA
) -> tuple[float, float]:
    """Return the bounds of a quantile, whatever the distribution, from the order statistics.

    Args:
        ordered: Values in ascending order.
        share: Of the values at or below the quantile, 0 < share < 1.
        alpha: Probability that the quantile is outside; half of it on each side.

    Returns:
        Two of the values, or -inf or inf where there are too few.
    """
    total = len(ordered)
    low = _least_rank(total, share, alpha / 2)
    high = _least_rank(total, share, 1 - alpha / 2)
    return (
        ordered[low - 1] if low else -math.inf,
        ordered[high] if high < total else math.inf,
    )


def _least_rank(total: int, share: float, probability: float) -> int:
    """Return the least count whose probability to have at most this count is above the given one.

    It is that of *total* calls of which each counts with the probability *share*.
    """
    low, high = -1, total
    while high - low > 1:
        middle = (low + high) // 2
        if _binomial_cdf(middle, total, share) > probability:
            high = middle
        else:
            low = middle
    return high


def ratio_bounds(new: Sequence[float], old: Sequence[float], share: float) -> tuple[float, float]:
    """Return the 95 % bounds of the ratio of two quantiles, of *new* to *old*.

    The values may be paired: each quantile has bounds of 97.5 %, so both are within them.

    Args:
        new: Positive values in ascending order.
        old: Positive values in ascending order, too.
        share: The share of the values below the quantile, above 0 and below 1.

    Returns:
        0 and inf where there are too few values.
    """
    new_low, new_high = quantile_bounds(new, share, _ALPHA / 2)
    old_low, old_high = quantile_bounds(old, share, _ALPHA / 2)
    low = new_low / old_high if new_low > 0 and old_high > 0 else 0.0
    return low, new_high / old_low if old_low > 0 else math.inf
