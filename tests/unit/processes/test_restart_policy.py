"""When a dead worker is restarted, and when the supervisor gives up."""

from __future__ import annotations

from gateway.processes.restart_policy import RestartBackoff, RestartPolicy

POLICY = RestartPolicy(first_wait_s=0.5, factor=2.0, max_wait_s=3.0, stable_s=30.0, max_failures=6)


def test_waits_grow_up_to_the_maximum() -> None:
    """Each consecutive failure waits longer, up to the maximum; the last one gives up."""
    backoff = RestartBackoff(POLICY)
    waits = [backoff.next_wait(served_s=1.0, is_clean=False) for _ in range(6)]
    assert [0.5, 1.0, 2.0, 3.0, 3.0, None] == waits


def test_a_stable_worker_resets_the_backoff() -> None:
    """Failures before a stable run are forgotten."""
    backoff = RestartBackoff(POLICY)
    for _ in range(5):
        backoff.next_wait(served_s=0.0, is_clean=False)
    assert 0.5 == backoff.next_wait(served_s=30.0, is_clean=False)
    assert 1.0 == backoff.next_wait(served_s=29.0, is_clean=False)


def test_clean_exits_restart_at_once() -> None:
    """An operator may replace a worker as often as needed."""
    backoff = RestartBackoff(POLICY)
    assert [0.0] * 10 == [backoff.next_wait(served_s=1.0, is_clean=True) for _ in range(10)]


def test_repeated_short_clean_exits_give_up() -> None:
    """A clean exit without serving counts as a failure."""
    backoff = RestartBackoff(POLICY)
    waits = [backoff.next_wait(served_s=0.1, is_clean=True) for _ in range(6)]
    assert [0.5, 1.0, 2.0, 3.0, 3.0, None] == waits


def test_defaults_give_up_after_half_a_minute() -> None:
    """A worker that never starts is abandoned after 10 to 30 seconds of waits."""
    backoff = RestartBackoff(RestartPolicy())
    waits = []
    while (wait_s := backoff.next_wait(served_s=0.0, is_clean=False)) is not None:
        waits.append(wait_s)
    assert 10 <= sum(waits) <= 30
