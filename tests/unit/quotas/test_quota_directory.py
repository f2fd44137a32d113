"""The budgets of two gateways in one file: shared, taken over, and never spent twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.api.start_error import StartError
from gateway.config.load import load_text
from gateway.quotas.budget_queue import Charge, Key, budget_name
from gateway.quotas.budgets import Budgets, Clocks, Limit, LocalAccounts
from gateway.quotas.directory import QuotaDirectory
from gateway.quotas.parts import StoredBudgets
from gateway.quotas.pools import LEASE_S, TERM_S, PoolLeases

KEY: Key = ("q", "a|b", "")
NOON_S = 12 * 3600.0
CONFIG = {
    "version": "1",
    "listeners": [{"name": "main", "http": "127.0.0.1:0"}],
    "models": {"m": {"backend": "python", "options": {"callable": "a:b"}}},
    "quotas": {"q": {"limit": "1000/month"}},
    "state": {"directory": "state"},
}


class Gateway:
    """A gateway whose budgets are in a file."""

    def __init__(self, path: Path, name: str, clocks: Clocks, limit: Limit) -> None:
        self.name = name
        self.directory = QuotaDirectory(path, clocks.utc)
        self.leases = PoolLeases(1, clocks)
        self.accounts = LocalAccounts(Budgets({"q": limit}, clocks, self.leases), clocks)
        self.accounts.ask = self._ask

    async def _ask(self, needs: Mapping[Key, float]) -> None:
        for key, amount in needs.items():
            self.leases.need(key, amount)
        self.ask()

    def ask(self, *, everything: bool = False) -> None:
        """Ask the file; return all leases first if the gateway ends."""
        asked_at = self.leases.monotonic()
        self.leases.lapse()
        if not everything:
            self.leases.refresh()
        found = self.leases.returns(everything=True) if everything else self.leases.questions()
        for question, answer in zip(found, self.directory.answers(self.name, found), strict=True):
            self.leases.receive(question, answer)
        self.leases.renew(asked_at)

    async def admits(self, amount: float = 1) -> bool:
        """Make a call; return whether it is admitted."""
        charges = [Charge(KEY, amount)]
        short = self.accounts.charge(charges)
        if short and any(not one.wait_s for one in short):
            short = await self.accounts.wait(charges)
        return not short


class Time:
    """Both clocks, moved by the test."""

    def __init__(self) -> None:
        self.now = NOON_S
        self.clocks = Clocks(lambda: self.now, lambda: self.now)


@pytest.fixture
def time() -> Time:
    """Return the clocks."""
    return Time()


@pytest.mark.parametrize(
    "limit",
    [
        Limit(amount=300, period="day"),
        Limit(amount=300, period="hour", unit="bytes"),
        Limit(amount=300, period="min", burst=300),
    ],
    ids=str,
)
@pytest.mark.parametrize("ends", [True, False])
async def test_two_gateways_spend_one_budget(
    tmp_path: Path, time: Time, limit: Limit, ends: bool
) -> None:
    """The next one gets what the former returned; one that was killed keeps a sixteenth at most."""
    path = tmp_path / "quotas.db"
    former = Gateway(path, "one", time.clocks, limit)
    count = sum([await former.admits() for _ in range(50)])
    following = Gateway(path, "two", time.clocks, limit)
    count += sum([await each.admits() for _ in range(50) for each in (former, following)])
    if ends:
        former.ask(everything=True)
    await former.directory.aclose()
    for _ in range(300):
        count += await following.admits()
    assert (300 if ends else 300 - 300 / 16) <= count <= 300


def without_stop(made: Gateway) -> None:
    """End a gateway as `kill -9` does: it returns nothing."""
    made.directory._database.close()


@pytest.mark.parametrize("unit", ["calls", "bytes"])
async def test_what_a_killed_gateway_held_comes_back(tmp_path: Path, time: Time, unit: str) -> None:
    """A lease that nobody renews expires, and what was spent of it stays spent."""
    limit, path = Limit(amount=300, period="day", unit=unit), tmp_path / "quotas.db"
    count = 0
    for name in ("one", "two", "three"):
        killed = Gateway(path, name, time.clocks, limit)
        count += sum([await killed.admits() for _ in range(10)])
        killed.leases.refresh()
        killed.ask()
        without_stop(killed)
    following = Gateway(path, "next", time.clocks, limit)
    for _ in range(14):
        count += await following.admits()
        time.now += 1
        following.ask()
    count += sum([await following.admits() for _ in range(300)])
    assert 300 == count


async def test_a_gateway_that_was_only_silent_spends_nothing_twice(
    tmp_path: Path, time: Time
) -> None:
    """Its lease has lapsed before others may have it, and is not there when it asks again."""
    limit, path = Limit(amount=300, period="day"), tmp_path / "quotas.db"
    silent, other = (Gateway(path, name, time.clocks, limit) for name in ("one", "two"))
    count = sum([await silent.admits() for _ in range(10)])
    silent.ask()
    for _ in range(14):
        count += await other.admits()
        time.now += 1
        other.ask()
    count += sum([await other.admits() for _ in range(400)])
    assert 300 == count
    assert silent.accounts.charge([Charge(KEY, 1)])
    silent.ask()
    assert 0 == sum([await each.admits() for each in (silent, other) * 10])


async def test_a_lease_lapses_before_the_store_takes_it_back(tmp_path: Path, time: Time) -> None:
    """Until shortly before that it may be spent, also while the store does not reply."""
    made = Gateway(tmp_path / "q.db", "one", time.clocks, Limit(amount=300, period="day"))
    assert await made.admits()
    made.ask()
    time.now += TERM_S - 0.1
    assert [] == made.accounts.charge([Charge(KEY, 1)])
    time.now += 0.1
    assert made.accounts.charge([Charge(KEY, 1)])
    assert TERM_S < LEASE_S
    assert await made.admits()  # the store replies


async def test_gateways_that_have_more_than_there_is_give_it_back(
    tmp_path: Path, time: Time
) -> None:
    """A gateway was cut off alone, and what it has left of its share was granted to another one."""
    limit, path = Limit(amount=300, period="day"), tmp_path / "quotas.db"
    silent, other = (Gateway(path, name, time.clocks, limit) for name in ("one", "two"))
    assert await silent.admits()
    silent.leases.refresh()
    silent.ask()
    silent.leases.go_on_alone()
    count = 0
    for _ in range(14):
        count += await other.admits()
        time.now += 1
        other.ask()
    count += sum([await other.admits() for _ in range(400)])
    spent = sum(not silent.accounts.charge([Charge(KEY, 1)]) for _ in range(5))
    assert (299, 5) == (count, spent)
    silent.leases.is_up = True
    silent.ask()
    assert 0 == sum([await each.admits() for each in (silent, other) * 200])


async def test_gateways_that_were_all_silent_keep_their_leases(tmp_path: Path, time: Time) -> None:
    """The file was away, or the machine slept: the first to ask takes nothing from the others."""
    limit, path = Limit(amount=300, period="day"), tmp_path / "quotas.db"
    made = [Gateway(path, name, time.clocks, limit) for name in ("one", "two")]
    count = sum([await each.admits() for each in made])
    time.now += 3600
    count += sum([await made[0].admits() for _ in range(300)])
    count += sum([await made[1].admits() for _ in range(300)])
    count += sum([await made[0].admits() for _ in range(300)])
    assert 300 - 300 / 16 <= count <= 300


async def test_a_new_window_is_whole(tmp_path: Path, time: Time) -> None:
    """Counts of a window end with it."""
    made = Gateway(tmp_path / "quotas.db", "one", time.clocks, Limit(amount=5, period="hour"))
    assert 5 == sum([await made.admits() for _ in range(9)])
    time.now += 3600
    assert 5 == sum([await made.admits() for _ in range(9)])


async def test_it_begins_with_the_counts_of_a_gateway_that_did_not_hand_over(
    tmp_path: Path, time: Time
) -> None:
    """What `quotas.json` counts of the day is spent, once, however often gateways start."""
    saved = [[list(KEY), 3.0, 86400.0]]
    (tmp_path / "quotas.json").write_text(json.dumps(saved))
    limit = Limit(amount=5, period="day")
    made = [Gateway(tmp_path / "quotas.db", str(each), time.clocks, limit) for each in range(2)]
    assert 2 == sum([await each.admits() for _ in range(5) for each in made])


async def test_turning_hand_over_off_or_on_lost_the_counts(tmp_path: Path) -> None:
    """Each gateway begins with the counts of the one before it, whichever file has them."""
    amounts = []
    for hand_over in (True, False, False, True, True, False):
        config = {**CONFIG, "lifecycle": {"hand_over": hand_over}}
        stored = StoredBudgets(load_text(json.dumps(config), directory=tmp_path))
        await stored.start()
        accounts = LocalAccounts(stored.budgets, ask=stored.ask)
        charges = [Charge((budget_name("q", "calls", "month"), "a"), 7)]
        short = accounts.charge(charges)
        assert not (short and await accounts.wait(charges))
        [found] = stored.documents()
        amounts.append(found["used"])
        await stored.stop()
    assert [7, 14, 21, 28, 35, 42] == amounts


@pytest.mark.parametrize("content", [b"no database" * 100, None])
def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, content: bytes | None) -> None:
    """The error names the file and the setting."""
    file = tmp_path / "state" / "quotas.db"
    file.parent.mkdir()
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    config = {**CONFIG, "lifecycle": {"hand_over": True}}
    loaded = load_text(json.dumps(config), directory=tmp_path)
    with pytest.raises(StartError, match=r"quotas\.db.*'state\.directory'"):
        StoredBudgets(loaded)
