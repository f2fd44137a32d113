"""LocalErrors: when the calls of one serving process prove that the new target fails."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.ir.errors import ErrorCode
from gateway.migration.evidence.local_errors import LocalErrors
from gateway.migration.settings import ErrorsGuardConfig

BELOW = ErrorsGuardConfig(below=0.01)
BAD = ErrorCode.UNAVAILABLE


def calls_until_trip(errors: LocalErrors, rate: float, seed: int, most: int = 20_000) -> int | None:
    """Return the number of calls after which a target that fails at *rate* trips the guard."""
    bad = np.random.default_rng(seed).random(most) < rate
    for number, is_bad in enumerate(bad, start=1):
        if errors.add_new(BAD if is_bad else None):
            return number
    return None


@pytest.mark.parametrize("good", [0, 100_000])
def test_four_consecutive_failures_trip(good: int) -> None:
    """100 000 good calls before them make no difference."""
    errors = LocalErrors(BELOW)
    for _ in range(good):
        assert not errors.add_new(None)
    assert [False, False, False, True, False] == [errors.add_new(BAD) for _ in range(5)]
    assert errors.tripped is not None
    assert ("errors.below", "4 of the last 4 calls, limit 1.000%") == (
        errors.tripped.guard,
        errors.tripped.evidence,
    )


def test_ten_percent_failures_trip_after_about_eighty_calls() -> None:
    """This is the median of many runs; no run takes more than 400 calls."""
    found = sorted(calls_until_trip(LocalErrors(BELOW), 0.1, seed) or 0 for seed in range(101))
    assert 60 <= found[50] <= 100, found[50]
    assert 0 < found[0] <= found[-1] <= 400, found


def test_a_rate_below_the_limit_never_trips() -> None:
    """0.5 % with a limit of 1 %: 20 runs of 20 000 calls."""
    assert [None] * 20 == [calls_until_trip(LocalErrors(BELOW), 0.005, seed) for seed in range(20)]


def test_client_errors_are_no_failures() -> None:
    """Invalid requests and cancelled calls do not count as failures of the server."""
    errors = LocalErrors(BELOW)
    for _ in range(100):
        assert not errors.add_new(ErrorCode.INVALID_ARGUMENT)
        assert not errors.add_new(ErrorCode.CANCELLED)
    assert (100, 0) == (errors.calls, errors.failures)


def test_more_errors_than_the_old_target_trip() -> None:
    """All codes but cancelled count; the same rate at both targets does not trip."""
    errors = LocalErrors(ErrorsGuardConfig(above_old=0.005))
    assert errors.watches_old
    wrong = ErrorCode.INVALID_ARGUMENT
    for number in range(1000):
        code = wrong if number % 20 == 0 else None
        errors.add_old(code)
        errors.add_old(ErrorCode.CANCELLED)
        assert not errors.add_new(code)
    tripped = [errors.add_new(wrong if number % 5 == 0 else None) for number in range(1000)]
    assert 1 == tripped.count(True)
    assert errors.tripped is not None
    assert "errors.above_old" == errors.tripped.guard
    assert "at old" in errors.tripped.evidence


def test_another_attempt_resets_the_guard() -> None:
    """The counts continue, for the metrics."""
    errors = LocalErrors(BELOW)
    for _ in range(4):
        errors.add_new(BAD)
    errors.begin()
    assert (None, 4, 4) == (errors.tripped, errors.calls, errors.failures)
    assert [False, False, False, True] == [errors.add_new(BAD) for _ in range(4)]
    assert "4 of the last 4 calls, limit 1.000%" == errors.tripped.evidence  # type: ignore[union-attr]


def test_calls_are_only_counted_without_limits() -> None:
    """No number of failures trips."""
    errors = LocalErrors(None)
    assert not any(errors.add_new(BAD) for _ in range(100))
    assert (100, 100, False) == (errors.calls, errors.failures, errors.watches_old)


def test_equal_targets_trip_at_most_once_in_two_hundred_runs() -> None:
    """Both fail 1 % of their calls, the new one has a tenth of them, and the limit is 0.5 %."""
    trips = 0
    for seed in range(200):
        errors = LocalErrors(ErrorsGuardConfig(above_old=0.005))
        random = np.random.default_rng(seed)
        for is_new, is_bad in zip(
            (random.random(10_000) < 0.1).tolist(), (random.random(10_000) < 0.01).tolist(),
            strict=True,
        ):  # fmt: skip
            add = errors.add_new if is_new else errors.add_old
            add(BAD if is_bad else None)
        trips += errors.tripped is not None
    assert trips <= 1


def test_a_single_failed_call_of_one_does_not_trip() -> None:
    """Neither do two, and the third one in a row does; the verdict quotes them."""
    errors = LocalErrors(ErrorsGuardConfig(above_old=0.005))
    assert [False, False, True] == [errors.add_new(BAD) for _ in range(3)]
    assert errors.tripped is not None
    assert (
        "3 of the last 3 calls failed at new, and 0 of 0 at old, limit 0.500%"
        == errors.tripped.evidence
    )


@pytest.mark.parametrize("code", [ErrorCode.INVALID_ARGUMENT, ErrorCode.UNAVAILABLE])
def test_failed_calls_of_any_code_are_unanswered(code: ErrorCode) -> None:
    """Only replies and cancelled calls are not."""
    errors = LocalErrors(None)
    for each in (code, None, ErrorCode.CANCELLED):
        errors.add_new(each)
    assert (2, 1) == (errors.calls, errors.unanswered)
