"""Budgets in virtual time: rates and calendar windows, and what is given back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.budget_queue import Charge, Key
from gateway.quotas.budgets import (
    Budgets,
    Clocks,
    Limit,
    LocalAccounts,
    window_end,
)
from gateway.quotas.pools import LeaseReply, PoolLeases


class Time:
    """Both clocks, moved by the test."""

    def __init__(self, utc: float = 0.0) -> None:
        self.now = utc

    @property
    def clocks(self) -> Clocks:
        """Return the clocks."""
        return Clocks(lambda: self.now, lambda: self.now)


KEY: Key = ("q", "fraud")


def accounts(time: Time, **limits: Limit) -> LocalAccounts:
    """Return accounts with the budgets of *limits*."""
    return LocalAccounts(Budgets(limits, time.clocks), time.clocks)


def test_a_rate_admits_its_burst_and_then_its_pace() -> None:
    """40 calls at once, then 20 in a second; a refusal tells when the next one fits."""
    time = Time(1000.0)
    made = accounts(time, q=Limit(amount=20, period="s", burst=40))
    admitted = sum(not made.charge([Charge(KEY, 1)]) for _ in range(100))
    assert admitted == 40
    [short] = made.charge([Charge(KEY, 1)])
    assert short.wait_s == pytest.approx(0.05)
    time.now += 1.0
    assert sum(not made.charge([Charge(KEY, 1)]) for _ in range(100)) == 20


@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=60))
def test_no_stretch_of_time_has_more_than_burst_and_rate(steps: list[float]) -> None:
    """Between any two admitted calls there are at most burst + rate * time."""
    time = Time()
    made = accounts(time, q=Limit(amount=10, period="s", burst=3))
    times = []
    for step in steps:
        time.now += step
        if not made.charge([Charge(KEY, 1)]):
            times.append(time.now)
    for first, start in enumerate(times):
        for last in range(first, len(times)):
            assert last - first + 1 <= 3 + 10 * (times[last] - start) + 1e-6


@pytest.mark.parametrize(
    ("period", "at", "end"),
    [
        ("hour", "2026-11-26T05:59:59", "2026-11-26T06:00:00"),
        ("day", "2026-11-26T00:00:00", "2026-11-27T00:00:00"),
        ("month", "2026-12-31T23:59:59", "2027-01-01T00:00:00"),
        ("month", "2024-02-10T00:00:00", "2024-03-01T00:00:00"),
    ],
)
def test_windows_end_with_the_calendar(period: str, at: str, end: str) -> None:
    """Hours, days and months are those of UTC."""

    def seconds(text: str) -> float:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()

    assert seconds(end) == window_end(period, seconds(at))


def test_each_window_starts_at_zero() -> None:
    """What was used of one day does not count on the next; the wait ends with the day."""
    time = Time(86400.0 * 3 - 10)
    made = accounts(time, q=Limit(amount=2, period="day"))
    assert [] == made.charge([Charge(KEY, 1)]) == made.charge([Charge(KEY, 1)])
    assert made.charge([Charge(KEY, 1)])[0].wait_s == 10
    time.now += 10
    assert [] == made.charge([Charge(KEY, 1)])


def test_all_budgets_have_room_or_none_is_charged() -> None:
    """A call that one budget refuses takes nothing of the others; shadow ones refuse nothing."""
    time = Time(1.0)
    day, rate = Limit(amount=5, period="day"), Limit(amount=1, period="s")
    made = accounts(time, day=day, rate=rate)
    both = [Charge(("day", "a"), 1), Charge(("rate", "a"), 1)]
    assert [] == made.charge(both)
    assert ["rate"] == [short.charge.key[0] for short in made.charge(both)]
    assert dict(made.budgets)["day", "a"].used() == 1
    shadow = [both[0], Charge(("rate", "a"), 1, is_shadow=True)]
    assert ["rate"] == [short.charge.key[0] for short in made.charge(shadow)]
    assert dict(made.budgets)["day", "a"].used() == 2


def test_charges_can_follow_the_call_and_be_returned() -> None:
    """Seconds are taken afterwards, even beyond the budget; a call without a target costs none."""
    time = Time(1.0)
    made = accounts(time, q=Limit(amount=10, period="hour", unit="seconds"))
    assert [] == made.charge([Charge(KEY, 0)])
    made.take(KEY, 12)
    assert made.charge([Charge(KEY, 0)])
    made.give(KEY, 12, time.now)
    assert [] == made.charge([Charge(KEY, 0)])


def test_counts_survive_a_restart_within_their_window() -> None:
    """Saved counts are those of the same window; an older one has ended."""
    time = Time(86400.0)
    day = Limit(amount=2, period="day")
    made = accounts(time, q=day)
    made.charge([Charge(KEY, 1)])
    saved = made.budgets.saved()
    again = accounts(time, q=day)
    again.budgets.restore(saved)
    assert [] == again.charge([Charge(KEY, 1)])
    assert again.charge([Charge(KEY, 1)])
    time.now += 86400
    later = accounts(time, q=day)
    later.budgets.restore(saved)
    assert [] == later.charge([Charge(KEY, 2)])


def test_a_changed_limit_keeps_what_was_used() -> None:
    """After a reload, what was used of a day still counts; a quota that left refuses nothing."""
    time = Time(1.0)
    day = Limit(amount=1, period="day")
    made = accounts(time, q=day, r=day)
    made.charge([Charge(KEY, 1), Charge(("r",), 1)])
    made.budgets.change({"q": Limit(amount=2, period="day"), "r": day})
    assert [] == made.charge([Charge(KEY, 1)])
    assert made.charge([Charge(KEY, 1)])
    assert made.charge([Charge(("r",), 1)])
    made.budgets.change({})
    assert [] == made.charge([Charge(KEY, 1)])


@pytest.mark.parametrize("period", ["day", "s"])
def test_budgets_that_move_keep_what_was_used(period: str) -> None:
    """Into a store, which gets the counts, and back: nothing is spent twice."""
    time = Time(1000.0)
    leases = PoolLeases(1, time.clocks)
    budgets = Budgets({"q": Limit(amount=10, period=period)}, time.clocks)
    made = LocalAccounts(budgets, time.clocks)
    assert [] == made.charge([Charge(KEY, 4)])
    budgets.move(leases)
    assert made.charge([Charge(KEY, 1)])  # the store has granted nothing yet
    [question] = leases.questions()
    if period == "day":
        assert (4.0, 4.0) == (question.mine, dict(budgets)[KEY].used())
    else:
        assert question.was_alone  # so that the store fills no bucket
    leases.receive(question, LeaseReply(2.0, 4.0, time.now, 1, 0.0, False))
    assert [] == made.charge([Charge(KEY, 2)])
    budgets.move(None)
    assert not made.charge([Charge(KEY, 4)])
    assert made.charge([Charge(KEY, 1)])


@pytest.mark.parametrize("reply_is_lost", [False, True])
def test_a_share_is_spent_once_without_the_store(reply_is_lost: bool) -> None:
    """It is what the store told last, and the store learns of it when it is back."""
    time = Time(1000.0)
    leases = PoolLeases(2, time.clocks)
    made = LocalAccounts(
        Budgets({"q": Limit(amount=100, period="day")}, time.clocks, leases), time.clocks
    )
    made.charge([Charge(KEY, 1)])
    leases.receive(leases.questions()[0], LeaseReply(6.0, 94.0, time.now, 2, 0.0, False, 40.0))
    leases.refresh()
    questions = leases.questions()
    assert 40.0 == questions[0].share
    if reply_is_lost:
        leases.fail(questions)
    leases.is_up = False
    for _ in range(3):
        leases.go_on_alone()
        time.now += 0.5
    admitted = sum(not made.charge([Charge(KEY, 1)]) for _ in range(100))
    assert 46 == admitted
    leases.come_back()
    leases.ask_again()
    [question] = leases.questions()
    assert (46.0, 0.0, 0.0) == (question.mine, question.share, question.want)


def test_an_unused_pool_has_no_share() -> None:
    """So that others can spend it; a gateway that ends gives all of its shares back."""
    time = Time(1000.0)
    leases = PoolLeases(2, time.clocks)
    made = LocalAccounts(
        Budgets({"q": Limit(amount=100, period="day")}, time.clocks, leases), time.clocks
    )
    made.charge([Charge(KEY, 1)])
    for is_end in (False, True):
        leases.need(KEY, 1)
        [need] = leases.questions()
        assert 1.0 == need.need
        leases.receive(need, LeaseReply(1.0, 94.0, time.now, 2, 0.0, False, 40.0))
        made.charge([Charge(KEY, 1)])
        if is_end:
            [question] = leases.returns(everything=True)
        else:
            time.now += 61
            leases.refresh()
            [question] = leases.questions()
        assert question.share < 0
        assert (0.0, 0.0) == (question.want, question.need)
        leases.receive(question, LeaseReply(0.0, 94.0, time.now, 2, 0.0, False, 0.0))
    leases.refresh()
    assert 0 == sum(question.share >= 0 for question in leases.questions())
