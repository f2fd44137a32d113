"""The excess of one rate over another: no false trips by many looks, and quick true ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gateway.migration.compare.excess import (
    Excess,
    ExcessDetector,
    excess_bounds,
    log_likelihood_ratio,
)
from gateway.migration.compare.statistics import sequential_calls_needed

RUNS = 200


def calls_until_trip(
    rates: tuple[float, float],
    limit: float,
    calls: int,
    seed: int,
    *,
    share: float | None = None,
    before: ExcessDetector | None = None,
) -> int | None:
    """Return the calls of the new server until a detector trips; None if it does not.

    Args:
        rates: Of failed calls at the old and at the new server.
        limit: Of the excess.
        calls: Number of calls to the new server.
        seed: Of the calls.
        share: Of the calls that the new server gets; None if both get each call.
        before: The detector of earlier calls.
    """
    detector = ExcessDetector(limit) if before is None else before
    random = np.random.default_rng(seed)
    old, new = ((random.random(calls) < rate).tolist() for rate in rates)
    others = np.zeros(calls, int) if share is None else random.geometric(share, calls) - 1
    of_old = iter((random.random(int(others.sum())) < rates[0]).tolist())
    for number in range(calls):
        if share is None:
            detector.add_second(old[number] and not new[number])
            detector.add(new[number] and not old[number])
        else:
            for is_bad in itertools.islice(of_old, int(others[number])):
                detector.add_second(is_bad)
            detector.add(new[number])
        if detector.found is not None:
            return number + 1
    return None


@pytest.mark.parametrize(("rate", "limit"), [(0.001, 0.005), (0.04, 0.2), (0.01, 0.005)])
@pytest.mark.parametrize("share", [None, 0.1, 0.5])
def test_equal_servers_have_no_excess(rate: float, limit: float, share: float | None) -> None:
    """Of 200 runs of 2 000 calls at most one trips, also with a limit below the rate itself."""
    calls = 2_000 if share != 0.1 else 500
    found = [
        calls_until_trip((rate, rate), limit, calls, seed, share=share) for seed in range(RUNS)
    ]
    assert RUNS - found.count(None) <= 1


@pytest.mark.parametrize("limit", [0.005, 0.01, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("share", [None, 0.1, 0.5])
def test_a_server_that_fails_half_of_its_calls_trips_soon(
    limit: float, share: float | None
) -> None:
    """The median is at most ten calls, from the first call on."""
    found = [calls_until_trip((0.0, 0.5), limit, 200, seed, share=share) for seed in range(101)]
    assert None not in found
    assert 3 <= sorted(each for each in found if each is not None)[50] <= 10


@pytest.mark.parametrize("good", [0, 10, 1_000])
@pytest.mark.parametrize("limit", [0.005, 0.02, 0.05, 0.1])
def test_every_second_failed_call_trips_within_ten(good: int, limit: float) -> None:
    """Any number of good calls may precede them."""
    detector = ExcessDetector(limit)
    for number in range(good + 11):
        detector.add_second(False)
        detector.add(number >= good and number % 2 == 0)
    assert detector.tripped_after is not None
    assert good < detector.tripped_after <= good + 11


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_failed_calls_do_not_trip(count: int) -> None:
    """They say too little, whatever the limit is."""
    detector = ExcessDetector(0.001)
    for number in range(1_000):
        detector.add_second(False)
        detector.add(number < count)
    assert detector.found is None


def test_a_rise_at_both_servers_is_no_excess() -> None:
    """Both fail 30 % of their calls after a thousand good ones: 2 of 100 runs trip, at most."""
    trips = 0
    for seed in range(100):
        detector = ExcessDetector(0.05)
        for _ in range(1_000):
            detector.add_second(False)
            detector.add(False)
        found = calls_until_trip((0.3, 0.3), 0.05, 200, seed, share=0.2, before=detector)
        trips += found is not None
    assert trips <= 2


def test_the_second_rate_may_be_unknown() -> None:
    """Nothing is assumed of noise: without a call of it, no number of failures trips."""
    detector = ExcessDetector(0.01, assumes_good=False)
    for _ in range(100):
        detector.add(True)
    assert detector.found is None
    for _ in range(10):
        detector.add_second(False)
    detector.add(True)
    assert Excess(10, 10, 0, 10) == detector.found


def test_a_detector_that_has_tripped_stays_so() -> None:
    """It keeps the calls by which it has tripped."""
    detector = ExcessDetector(0.01)
    for _ in range(5):
        detector.add(True)
    found = detector.found, detector.tripped_after
    assert (Excess(3, 3, 0, 0), 3) == found
    for _ in range(2_000):
        detector.add(False)
    assert found == (detector.found, detector.tripped_after)


def test_the_bounds_are_those_of_repeated_looks() -> None:
    """Without a failure, an excess needs as many calls as a rate."""
    needed = sequential_calls_needed(0.01)
    assert excess_bounds(0, needed, 0, needed)[1] < 0.01 <= excess_bounds(0, needed - 1, 0, 700)[1]
    low, high = excess_bounds(20, 100, 10, 100)
    assert low < 0.0
    assert high > 0.2
    assert (-1.0, 1.0) == excess_bounds(0, 0, 1, 1) == excess_bounds(1, 1, 0, 0)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((5, 10, 0, 10), 4.2), ((1, 10, 1, 10), 0.0), ((1, 1, 0, 0), 0.0), ((10, 10, 10, 10), 0.0)],
)
def test_the_likelihood_ratio_compares_excesses(
    counts: tuple[int, int, int, int], expected: float
) -> None:
    """It is 0 for counts without an excess, or without a call of one side."""
    assert log_likelihood_ratio(*counts, 0.005) == pytest.approx(expected, abs=0.05)
