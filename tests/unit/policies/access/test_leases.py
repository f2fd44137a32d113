"""Budgets divided among processes: never exceeded, also when processes die, and used up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.policies.access.quotas.budgets import Budgets, Charge, Clocks, Limit
from gateway.policies.access.quotas.leases import LeasedAccounts, QuotaLeader, Rounds

KEY = ("q", "fraud")
CALL = [Charge(KEY, 1)]


class Machine:
    """A leader and its processes on one clock; documents take a turn of the loop."""

    def __init__(self, count: int, **limits: Limit) -> None:
        self.now = 1000.0
        self.clocks = Clocks(lambda: self.now, lambda: self.now)
        self.limits = limits
        self.budgets = Budgets(limits, self.clocks)
        self.pids = iter(range(1, 1000))
        self.processes: dict[str, LeasedAccounts] = {}
        self.silent: set[str] = set()
        self.leader = QuotaLeader(self.budgets, self.exchange, count)
        self.rounds = Rounds(self.leader, lambda: None)
        for _ in range(count):
            self.start_process()
        self.rounds.start()

    def start_process(self) -> str:
        pid = next(self.pids)
        made = LeasedAccounts(self.limits, self._notice, self.clocks, pid)
        self.processes[str(pid)] = made
        return str(pid)

    def _notice(self) -> None:
        self.rounds.notice()

    async def exchange(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        return {
            pid: None if pid in self.silent else each.exchange(document)
            for pid, each in list(self.processes.items())
        }


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


async def test_a_process_that_dies_takes_what_it_held_with_it() -> None:
    """Its calls may have been made: nothing of them is granted again, and a new one goes on."""
    machine = Machine(2, q=Limit(amount=100, period="day"))
    pid = next(iter(machine.processes))
    count = sum([await admitted(machine.processes[pid]) for _ in range(30)])
    del machine.processes[pid]
    machine.start_process()
    for each in list(machine.processes.values()):
        for _ in range(100):
            count += await admitted(each)
    assert count <= 100
    assert count >= 50
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
