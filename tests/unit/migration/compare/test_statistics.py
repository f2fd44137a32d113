"""Intervals, bounds and the change detector, against figures and by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from statistics import fmean
from typing import Final

import numpy as np
import pytest

from gateway.migration.compare.statistics import (
    ChangeDetector,
    calls_needed,
    confidence_sequence,
    newcombe_interval,
    quantile_bounds,
    ratio_bounds,
    sequential_calls_needed,
    upper_bound,
    wilson_interval,
)

LIMIT: Final = 0.01


def calls_until_trip(is_bad: Callable[[int], bool], *, good: int = 0, limit: float = LIMIT) -> int:
    """Return the number of calls after *good* ones until the detector trips."""
    detector = ChangeDetector(limit)
    for _ in range(good):
        detector.add(False)
    number = 0
    while detector.tripped_after is None:
        detector.add(is_bad(number))
        number += 1
    assert detector.tripped_after == good + number
    return number


def test_intervals_match_the_specification() -> None:
    """Its figures cover the rule of three, and any number of checks."""
    limits = (0.01, 0.001, 0.0001)
    assert [calls_needed(each) for each in limits] == [299, 2995, 29956]
    assert [sequential_calls_needed(each) for each in limits] == [680, 8062, 92_872]
    for calls, limit in zip((680, 8062, 92_872), limits, strict=True):
        assert confidence_sequence(0, calls)[1] <= limit < confidence_sequence(0, calls - 1)[1]
    assert wilson_interval(8, 450) == pytest.approx((0.0090, 0.0347), abs=5e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    # 1 - 0.05 ** (1 / 10), and the quantile of the beta distribution.
    assert upper_bound(0, 10) == pytest.approx(1 - 0.05**0.1)
    assert upper_bound(3, 20_000) == pytest.approx(0.0003876367557880956)
    assert upper_bound(2, 2) == 1.0


@pytest.mark.parametrize(
    ("counts", "interval"),
    [
        ((56, 70, 48, 80), (0.0524, 0.3339)),
        ((9, 10, 3, 10), (0.1705, 0.8090)),
        ((5, 56, 0, 29), (-0.0381, 0.1926)),
        ((0, 10, 0, 20), (-0.1611, 0.2775)),
        ((0, 10, 0, 10), (-0.2775, 0.2775)),
        ((10, 10, 0, 20), (0.6791, 1.0)),
        ((10, 10, 0, 10), (0.6075, 1.0)),
    ],
    ids=str,
)
def test_newcombe_intervals_match_the_paper(
    counts: tuple[int, int, int, int], interval: tuple[float, float]
) -> None:
    """The examples of the paper are for method 10; exchanged sides negate the interval."""
    low, high = newcombe_interval(*counts)
    assert (low, high) == pytest.approx(interval, abs=6e-5)
    swapped = newcombe_interval(*counts[2:], *counts[:2])
    assert swapped == pytest.approx((-high, -low))


def test_bounds_without_calls_exclude_nothing() -> None:
    """Each interval is the widest one."""
    assert newcombe_interval(0, 0, 1, 2) == newcombe_interval(1, 2, 0, 0) == (-1.0, 1.0)
    assert confidence_sequence(0, 0) == (0.0, 1.0)
    assert quantile_bounds([], 0.5) == (-math.inf, math.inf)
    assert ratio_bounds([], [], 0.5) == (0.0, math.inf)


def test_the_confidence_sequence_is_symmetric() -> None:
    """The bounds of good calls mirror those of bad calls."""
    low, high = confidence_sequence(3, 50)
    assert 0 < low < 3 / 50 < high < 1
    assert confidence_sequence(47, 50) == pytest.approx((1 - high, 1 - low))
    assert confidence_sequence(2, 2)[1] == 1.0


@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_the_confidence_sequence_holds_at_all_times(rate: float) -> None:
    """At most 5 % of the runs exclude the rate at any of 120 checks."""
    bounds = cache(confidence_sequence)
    runs, looks = 1_000, 120
    bad = np.cumsum(np.random.default_rng(7).random((runs, looks)) < rate, axis=1).tolist()

    def excludes(count: int, total: int) -> bool:
        low, high = bounds(count, total)
        return not low <= rate <= high

    wrong = sum(
        any(excludes(count, total) for total, count in enumerate(run, start=1)) for run in bad
    )
    assert 0 < wrong <= 0.05 * runs


def test_the_detector_trips_as_specified() -> None:
    """At a limit of 1 %: 4 calls if all fail, 7 if every second one fails."""
    assert calls_until_trip(lambda _: True) == 4
    assert calls_until_trip(lambda number: not number % 2) == 7


@pytest.mark.parametrize(("rate", "calls"), [(0.1, 84), (0.05, 273)])
def test_the_detector_trips_soon_at_a_higher_rate(rate: float, calls: int) -> None:
    """The mean of 200 runs is the figure of the specification, within 15 %."""
    random = np.random.default_rng(11)
    found = [calls_until_trip(lambda _: bool(random.random() < rate)) for _ in range(200)]
    assert fmean(found) == pytest.approx(calls, rel=0.15)


def test_a_long_good_run_does_not_delay_the_trip() -> None:
    """The sum over all calls permits 1 177 failures, the detector 4."""
    assert calls_until_trip(lambda _: True, good=100_000) == 4
    lows = [confidence_sequence(bad, 100_000 + bad, 0.001)[0] for bad in (1176, 1177)]
    assert lows[0] < LIMIT <= lows[1]


@pytest.mark.timeout(120)
def test_half_the_limit_never_trips() -> None:
    """0.5 % with a limit of 1 % does not trip in 20 runs of 20 000 calls."""
    random = np.random.default_rng(3)
    for _ in range(20):
        detector = ChangeDetector(LIMIT)
        for is_bad in (random.random(20_000) < LIMIT / 2).tolist():
            detector.add(is_bad)
        assert detector.tripped_after is None


def test_false_alarms_at_the_limit_are_rare() -> None:
    """At the limit itself, a tenth of the mean time between alarms has few of them."""
    random = np.random.default_rng(5)
    alarms = 0
    for _ in range(20):
        detector = ChangeDetector(0.1)
        for is_bad in (random.random(10_000) < 0.1).tolist():
            detector.add(is_bad)
        alarms += detector.tripped_after is not None
    assert alarms <= 2


@pytest.mark.parametrize("limit", [0.4, 0.5, 0.99])
def test_limits_of_one_half_and_more_also_trip(limit: float) -> None:
    """A rate above any limit is detected, although one half is not above it."""
    assert calls_until_trip(lambda _: True, limit=limit) < 3_000


def test_bounds_of_a_quantile_are_order_statistics() -> None:
    """The median of 10 values is between the 2nd and the 9th; 5 values are too few."""
    assert quantile_bounds(range(1, 11), 0.5) == (2, 9)
    assert quantile_bounds(range(1, 7), 0.5) == (1, 6)
    assert quantile_bounds(range(1, 6), 0.5) == (-math.inf, math.inf)
    # P(at most 194 of 200) = 0.016 and P(at most 195 of 200) = 0.052, at 99 %.
    assert quantile_bounds(range(1, 201), 0.99) == (195, math.inf)
    assert quantile_bounds(range(1, 1_000_001), 0.99) == (989_805, 990_196)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_quantile_bounds_cover_the_quantile(share: float) -> None:
    """At most 5 % of the runs exclude the quantile of a skewed distribution."""
    random = np.random.default_rng(13)
    true = -math.log(1 - share)
    wrong = 0
    for _ in range(500):
        low, high = quantile_bounds(sorted(random.exponential(size=80).tolist()), share)
        wrong += not low <= true <= high
    assert wrong <= 0.05 * 500


def test_ratio_bounds_contain_the_ratio() -> None:
    """Twice the time on every call is a ratio of 2; equal values have no width."""
    old = sorted(np.random.default_rng(17).exponential(size=2_000).tolist())
    low, high = ratio_bounds([2 * each for each in old], old, 0.5)
    assert 1.7 < low < 2 < high < 2.4
    assert ratio_bounds([3.0] * 100, [2.0] * 100, 0.5) == (1.5, 1.5)
    assert ratio_bounds([3.0] * 100, [2.0] * 100, 0.99) == (0.0, math.inf)
