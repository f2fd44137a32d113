"""When a worker that died comes back, and when it is given up."""

from __future__ import annotations

from gateway.app.processes.restart_policy import RestartBackoff, RestartPolicy

POLICY = RestartPolicy(first_wait_s=0.5, factor=2.0, max_wait_s=3.0, stable_s=30.0, max_failures=6)


def test_waits_grow_to_a_bound() -> None:
    """Each death in a row is waited for longer, up to the longest wait; then it is given up."""
    backoff = RestartBackoff(POLICY)
    waits = [backoff.next_wait(served_s=1.0, is_clean=False) for _ in range(6)]
    assert [0.5, 1.0, 2.0, 3.0, 3.0, None] == waits


def test_one_that_served_well_begins_anew() -> None:
    """Deaths before a worker has served for a while are forgotten."""
    backoff = RestartBackoff(POLICY)
    for _ in range(5):
        backoff.next_wait(served_s=0.0, is_clean=False)
    assert 0.5 == backoff.next_wait(served_s=30.0, is_clean=False)
    assert 1.0 == backoff.next_wait(served_s=29.0, is_clean=False)


def test_one_that_was_told_to_leave_comes_back_at_once() -> None:
    """An operator may replace a worker as often as wanted."""
    backoff = RestartBackoff(POLICY)
    assert [0.0] * 10 == [backoff.next_wait(served_s=1.0, is_clean=True) for _ in range(10)]


def test_one_that_leaves_at_once_again_and_again_is_given_up() -> None:
    """Leaving in good order without having served is no better than dying."""
    backoff = RestartBackoff(POLICY)
    waits = [backoff.next_wait(served_s=0.1, is_clean=True) for _ in range(6)]
    assert [0.5, 1.0, 2.0, 3.0, 3.0, None] == waits


def test_patience_is_half_a_minute() -> None:
    """With the usual numbers a worker that never starts is given up after about half a minute."""
    backoff = RestartBackoff(RestartPolicy())
    waits = []
    while (wait_s := backoff.next_wait(served_s=0.0, is_clean=False)) is not None:
        waits.append(wait_s)
    assert 10 <= sum(waits) <= 30
