"""Budgets divided among processes: never exceeded, also when processes die, and used up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from gateway.quotas.budget_queue import REFUSAL_S, Charge
from gateway.quotas.budgets import Budgets, Clocks, Limit
from gateway.quotas.leases import (
    MOST_COUNTS,
    LeasedAccounts,
    QuotaLeader,
    Rounds,
)
from gateway.quotas.pools import TERM_S, LeaseReply, PoolLeases

KEY = ("q", "fraud")
CALL = [Charge(KEY, 1)]


class Machine:
    """A leader and its processes on one clock; documents take a turn of the loop."""

    def __init__(
        self, count: int, most: int = MOST_COUNTS, *, is_stored: bool = False, **limits: Limit
    ) -> None:
        self.most = most
        self.now = 1000.0
        self.clocks = Clocks(lambda: self.now, lambda: self.now)
        self.limits = limits
        self.pools = PoolLeases(1, self.clocks)
        self.budgets = Budgets(limits, self.clocks, self.pools if is_stored else None)
        self.pids = iter(range(1, 1000))
        self.processes: dict[str, LeasedAccounts] = {}
        self.silent: set[str] = set()
        self.leader = QuotaLeader(self.budgets, self.exchange, count)
        self.rounds = Rounds(self.leader)
        self.leader.on_answer = self.rounds.notice
        for _ in range(count):
            self.start_process()
        self.rounds.start()

    def start_process(self) -> str:
        pid = next(self.pids)
        memory = str(pid)
        self.leader.counts[memory] = counts = memoryview(bytearray(8 * MOST_COUNTS)).cast("d")
        made = LeasedAccounts(
            self.limits,
            self._notice,
            self.clocks,
            pid,
            counts=counts,
            memory=memory,
        )
        made.most = self.most
        self.processes[str(pid)] = made
        return str(pid)

    def _notice(self) -> None:
        self.rounds.notice()

    async def exchange(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        return {
            pid: None if pid in self.silent else self._sent(each.exchange(self._sent(document)))
            for pid, each in list(self.processes.items())
        }

    def _sent(self, document: Mapping[str, Any]) -> Any:
        """Return a document as the other process receives it."""
        return orjson.loads(orjson.dumps(document))


async def admitted(accounts: LeasedAccounts, charges: list[Charge] = CALL) -> bool:
    """Return whether a call is admitted, as the layer asks."""
    short = accounts.charge(charges)
    if short and any(not one.wait_s for one in short):
        short = await accounts.wait(charges)
    return not short


async def test_processes_use_a_budget_up_and_no_more() -> None:
    """Of 1,000 calls a day exactly 1,000 are admitted, however they arrive at four processes."""
    machine = Machine(4, q=Limit(amount=1000, period="day"))
    chance = random.Random(7)  # noqa: S311  # no secret
    processes = list(machine.processes.values())
    weights = [8, 4, 2, 1]

    async def client() -> int:
        count = 0
        for _ in range(80):
            count += await admitted(chance.choices(processes, weights)[0])
        return count

    counts = await asyncio.gather(*(client() for _ in range(20)))
    assert sum(counts) == 1000
    await machine.rounds.stop()


async def test_what_an_idle_process_holds_is_taken_back() -> None:
    """One process gets the whole budget, although the other got a part of it first."""
    machine = Machine(2, q=Limit(amount=100, period="day"))
    first, second = machine.processes.values()
    used = [await admitted(first) for _ in range(5)]
    used += [await admitted(second) for _ in range(150)]
    assert used.count(True) == 100
    await machine.rounds.stop()


@pytest.mark.parametrize(
    ("unit", "period"),
    [(unit, period) for unit in ("calls", "bytes") for period in ("day", "month")],
)
@pytest.mark.parametrize("is_counted", [True, False])
async def test_leases_of_dead_processes_return_except_for_spending(
    is_counted: bool, unit: str, period: str
) -> None:
    """Of 1,000 units exactly 1,000 are spent, whichever process dies when; without counts no more."""
    machine = Machine(2, q=Limit(amount=1000, period=period, unit=unit))
    chance = random.Random(11)  # noqa: S311  # no secret
    count = 0
    for _ in range(6):
        for _ in range(chance.randrange(1, 9)):
            call = [Charge(KEY, chance.randrange(1, 20) if unit == "bytes" else 1)]
            count += int(call[0].amount) * await admitted(
                chance.choice(list(machine.processes.values())), call
            )
        if not is_counted:
            machine.leader.counts.clear()
        del machine.processes[chance.choice(list(machine.processes))]
        machine.start_process()
    for _ in range(1000):
        count += await admitted(chance.choice(list(machine.processes.values())))
    assert count == 1000 if is_counted else 300 <= count < 1000
    await machine.rounds.stop()


@pytest.mark.parametrize("silent", ["store", "leader", "process"])
async def test_processes_spent_what_the_store_had_taken_back(silent: str) -> None:
    """What they hold lapses with the lease of the gateway, and what they give back is told."""
    machine = Machine(2, is_stored=True, q=Limit(amount=100, period="day"))

    def reported(granted: float) -> float:
        """Let the store reply to a question; return what it is told that the gateway has."""
        machine.pools.lapse()
        machine.pools.refresh()
        [question] = machine.pools.questions()
        reply = LeaseReply(granted, 100 - question.mine - granted, machine.now, 1, 0.0, False)
        machine.pools.receive(question, reply)
        machine.pools.renew(machine.now)
        return question.mine

    pid, process = next(iter(machine.processes.items()))
    machine.budgets.find(KEY)
    reported(50)
    assert await admitted(process)
    assert 0 < process._lease(KEY).left < 50
    await machine.rounds.stop()
    if silent == "process":
        machine.silent.add(pid)
    machine.now += TERM_S - 0.1
    assert [] == process.charge(CALL)
    if silent != "store":
        reported(0)
    if silent == "process":
        await machine.leader.make_round()
    machine.now += 0.1
    assert process.charge(CALL)
    machine.silent.clear()
    await machine.leader.make_round()
    has = 50 if silent != "store" else 2  # the store has taken the rest back
    assert has == reported(5)
    machine.rounds.start()
    count = sum([await admitted(process) for _ in range(has + 4)])
    assert (has + 3, has + 5) == (count, reported(0))
    await machine.rounds.stop()


async def test_a_refusal_did_not_last_until_the_end_of_the_window() -> None:
    """What a process held that hangs and is killed then is there for the others."""
    machine = Machine(2, q=Limit(amount=100, period="day"))
    hung, other = machine.processes
    assert await admitted(machine.processes[hung], [Charge(KEY, 30)])
    machine.silent.add(hung)
    used = sum([await admitted(machine.processes[other]) for _ in range(120)])
    assert used < 70
    machine.silent.clear()
    del machine.processes[hung]
    assert not await admitted(machine.processes[other])
    machine.now += REFUSAL_S
    used += sum([await admitted(machine.processes[other]) for _ in range(120)])
    assert used == 70
    await machine.rounds.stop()


@pytest.mark.parametrize("period", ["min", "hour", "day"])
async def test_the_leases_of_made_up_names_are_bounded(period: str) -> None:
    """Budgets beyond the bound share one, and after a window there is room for other ones."""
    machine = Machine(2, most=8, q=Limit(amount=1000, period=period, burst=None))
    first = next(iter(machine.processes.values()))
    for _ in range(30):
        for number in range(100):
            await admitted(first, [Charge(("q", f"{machine.now}-{number}"), 1)])
        assert len(first._leases) <= 9
        assert all(len(each.held) <= 18 for each in machine.leader._processes.values())
        machine.now += 86400
    known = Charge(("q", "known"), 1)
    await admitted(first, [known])
    assert known.key in first._leases
    leases = first._leases.values()
    places = [each.place for each in leases if each.place >= 0 and machine.now < each.ends]
    assert len(places) == len({*places})
    await machine.rounds.stop()


async def test_a_lease_of_a_rate_that_ends_takes_no_room() -> None:
    """What a process held of a bucket and never spent is there again an hour later."""
    machine = Machine(2, q=Limit(amount=600, period="min", burst=100))
    first, second = machine.processes.values()
    assert await admitted(first)
    machine.now += 3600
    assert 100 == sum([await admitted(second) for _ in range(200)])
    machine.now += 3600
    assert await admitted(first, [Charge(KEY, 100)])
    await machine.rounds.stop()


async def test_shadow_and_enforced_quotas_do_not_disturb_each_other() -> None:
    """A used-up shadow quota lets no call be refused, and nothing is charged twice."""
    machine = Machine(2, s=Limit(amount=3, period="day"), q=Limit(amount=8, period="day"))
    both = [Charge(("s", "a"), 1, is_shadow=True), Charge(("q", "a"), 1)]
    refused = 0
    counts = Counter[str]()
    for number in range(12):
        each = list(machine.processes.values())[number % 2]
        short = each.charge(both)
        if any(not one.wait_s for one in short):
            short = await each.wait(both)
        counts.update(one.charge.key[0] for one in short)
        refused += any(not one.charge.is_shadow for one in short)
    assert (4, 4) == (refused, counts["q"])
    assert 5 <= counts["s"] <= 9
    await machine.rounds.stop()


async def test_a_silent_process_keeps_what_it_holds() -> None:
    """It may still spend it, so that nobody else gets it."""
    machine = Machine(2, q=Limit(amount=40, period="day"))
    (pid, silent), (_, other) = machine.processes.items()
    count = sum([await admitted(silent) for _ in range(10)])
    machine.silent.add(pid)
    count += sum([await admitted(other) for _ in range(60)])
    count += sum(not silent.charge(CALL) for _ in range(60))
    assert count <= 40
    await machine.rounds.stop()


async def test_a_rate_holds_over_processes() -> None:
    """In 10 s two processes admit the burst and ten seconds of the rate, and no more."""
    machine = Machine(2, q=Limit(amount=20, period="s", burst=40))
    count = 0
    for _ in range(1000):
        machine.now += 0.01
        for each in machine.processes.values():
            count += await admitted(each)
    assert 237 <= count <= 240
    await machine.rounds.stop()


async def test_a_window_that_ends_takes_the_leases_with_it() -> None:
    """What is held of one day cannot be spent on the next."""
    machine = Machine(2, q=Limit(amount=10, period="day"))
    first, second = machine.processes.values()
    assert await admitted(first)
    machine.now += 86400
    count = sum([await admitted(each) for _ in range(20) for each in (first, second)])
    assert count == 10
    await machine.rounds.stop()


async def test_seconds_are_counted_over_processes() -> None:
    """Each process may begin calls while there is time left, and no process after that."""
    machine = Machine(2, q=Limit(amount=10, period="hour", unit="seconds"))
    first, second = machine.processes.values()
    charges = [Charge(KEY, 0)]
    count = 0
    for _ in range(20):
        for each in (first, second):
            if await admitted(each, charges):
                count += 1
                each.take(KEY, 1.0)
    assert count in {10, 11, 12}
    await machine.rounds.stop()


async def test_a_refusal_has_the_wait_for_room() -> None:
    """Without any room the wait is that of the window, and no further round is made."""
    machine = Machine(2, q=Limit(amount=1, period="day"))
    first, second = machine.processes.values()
    assert await admitted(first)
    [short] = await second.wait(CALL)
    assert short.wait_s == pytest.approx(86400 - 1000)
    assert second.charge(CALL)[0].wait_s
    await machine.rounds.stop()


async def test_a_process_that_was_silent_kept_its_lease_of_an_earlier_limit() -> None:
    """Of a limit lowered from 100 to 10 nothing more is admitted where 20 calls were before."""
    machine = Machine(2, q=Limit(amount=100, period="day"))
    first, second = machine.processes.values()
    assert 20 == sum([await admitted(each) for each in (first, second) * 10])
    machine.silent.add("2")
    lowered = {"q": Limit(amount=10, period="day")}
    machine.budgets.change(lowered)
    for process in (first, second):
        process.change(lowered)
    await machine.leader.change({"q"})
    assert not await admitted(first)
    machine.silent.clear()
    await machine.leader.make_round()
    assert not any([await admitted(each) for each in (first, second) * 5])
    await machine.rounds.stop()


async def test_a_quota_that_was_added_again_had_the_leases_of_the_earlier_one() -> None:
    """Of 100 calls a day 100 are admitted after the quota was removed and added again."""
    limits = {"q": Limit(amount=100, period="day")}
    machine = Machine(2, q=limits["q"])
    processes = list(machine.processes.values())
    assert 20 == sum([await admitted(each) for each in processes * 10])
    for changed in ({}, limits):
        for process in processes:
            process.change(changed)
        machine.budgets.change(changed)
        await machine.leader.change(set() if changed else {"q"})
    assert 100 == sum([await admitted(each) for each in processes * 60])
    await machine.rounds.stop()
