"""Leases: the budgets of one machine, divided among its processes.

The leading process has the budgets. A serving process takes calls against what it holds of them, so
that no call waits while there is enough. When it holds too little it gives notice, and the leader
makes a round. It asks every process what was spent and what is needed. Where too little is left, it
takes back what the others hold. Then it gives each process what it needs, and a part of the rest.

What is held counts as taken, so accepted calls never exceed a budget, even if a process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.policies.access.quotas.budgets import (
    REAL_CLOCKS,
    Budget,
    Budgets,
    BudgetState,
    Charge,
    Clocks,
    Key,
    Limit,
    Shortage,
    has_room,
)

_WAIT_S: Final = 0.25
"""How long a call waits for a round."""

_LEAST_OF_SECONDS: Final = 1e-3
_LOW: Final = 0.5
_PARTS: Final = 2

Document = Mapping[str, Any]


@dataclass(slots=True)
class _Lease:
    """What a process holds of one budget.

    Attributes:
        left: Not yet spent; below 0 for seconds that were not covered.
        granted: The last grant.
        spent: Since the last report.
        ends: When it expires, in seconds since 1970; 0 for never.
        empty_until: Until when the leader has nothing, on the monotonic clock.
        elsewhere: What was left at the leader at the last grant.
    """

    left: float = 0.0
    granted: float = 0.0
    spent: float = 0.0
    ends: float = 0.0
    empty_until: float = 0.0
    elsewhere: float = 0.0


class LeasedAccounts:
    """Charges what a process holds of the budgets.

    Args:
        limits: By the name of the quota.
        notify: Lets the leader make a round.
        clocks: The clocks.
        pid: The number of the process, by which the leader knows it.
    """

    def __init__(
        self,
        limits: Mapping[str, Limit],
        notify: Callable[[], None],
        clocks: Clocks = REAL_CLOCKS,
        pid: int | None = None,
    ) -> None:
        self._limits = dict(limits)
        self._notify = notify
        self._clocks = clocks
        self._pid = str(os.getpid() if pid is None else pid)
        self._leases: dict[Key, _Lease] = {}
        self._needs: dict[Key, float] = {}
        self._low: set[Key] = set()
        # Set by the grants of the round that asks for the needs so far; the next round has another.
        self._round = asyncio.Event()
        self._ended = self._round

    def change(self, limits: Mapping[str, Limit]) -> None:
        """Follow other limits."""
        self._limits = dict(limits)
        self._leases = {key: one for key, one in self._leases.items() if key[0] in limits}

    def charge(self, charges: Sequence[Charge]) -> list[Shortage]:
        """Take all *charges*, or none of them if one that is enforced has no room here.

        Returns:
            The charges without room. Their wait is 0 if other processes may have some.
        """
        found = [(each, self._lease(each.key)) for each in charges if each.key[0] in self._limits]
        short = [
            Shortage(each, max(0.0, lease.empty_until - self._clocks.monotonic()))
            for each, lease in found
            if not has_room(lease.left, each.amount)
        ]
        if short and not all(one.charge.is_shadow for one in short):
            return short
        lacking = {one.charge for one in short}
        for each, lease in found:
            if each not in lacking:
                lease.left -= each.amount
                lease.spent += each.amount
            if lease.left < lease.granted * _LOW and each.key not in self._low:
                self._want(each.key, lease)
        return short

    async def wait(self, charges: Sequence[Charge]) -> list[Shortage]:
        """Return what `charge` returns, after rounds of the leader if that takes not too long."""
        deadline = asyncio.get_running_loop().time() + _WAIT_S
        while True:
            short = self.charge(charges)
            lacking = [one.charge for one in short if not one.wait_s]
            if not lacking or (short and any(one.wait_s for one in short)):
                return short
            if all(one.charge.is_shadow for one in short):
                return short
            timeout_s = deadline - asyncio.get_running_loop().time()
            if timeout_s <= 0:
                return [Shortage(one.charge, one.wait_s or 1.0) for one in short]
            for each in lacking:
                needed = each.amount or _LEAST_OF_SECONDS
                self._needs[each.key] = self._needs.get(each.key, 0.0) + needed
            waited = self._round
            self._notify()
            try:
                async with asyncio.timeout(timeout_s):
                    await waited.wait()
            except TimeoutError:
                for each in lacking:
                    self._needs.pop(each.key, None)

    def take(self, key: Key, amount: float) -> None:
        """Take an amount that is known only after the call."""
        if key[0] in self._limits:
            lease = self._lease(key)
            lease.left -= amount
            lease.spent += amount

    def give(self, key: Key, amount: float, since: float) -> None:
        """Give back the charge of a call that reached no target, made *since* then (UTC)."""
        lease = self._leases.get(key)
        if lease is not None and (not lease.ends or since >= lease.ends - self._window_s(key)):
            lease.left += amount
            lease.spent -= amount

    def state(self, key: Key) -> BudgetState | None:
        """Return an estimate of what a client is told of a budget."""
        limit = self._limits.get(key[0])
        if limit is None:
            return None
        lease, utc = self._lease(key), self._clocks.utc()
        left = max(0.0, lease.left + lease.elsewhere)
        if limit.is_rate:
            reset_s = max(0.0, limit.capacity - left) / limit.rate
        else:
            reset_s = max(0.0, lease.ends - utc)
        return BudgetState(limit, left, reset_s, limit.window_s(utc))

    def exchange(self, document: Document) -> dict[str, Any]:
        """Reply to the leader: report, hand back, or receive grants."""
        if "grants" in document:
            self._receive(document["grants"].get(self._pid, ()))
            return {}
        if "recall" in document:
            keys = [tuple(key) for key in document["recall"]]
            return {"returned": [self._hand_back(key) for key in keys if key in self._leases]}
        needs, self._needs = self._needs, {}
        low, self._low = self._low, set()
        self._round, ended = asyncio.Event(), self._round
        self._ended = ended
        return {
            "spent": [
                [list(key), self._spent_of(lease), lease.ends]
                for key, lease in self._leases.items()
                if lease.spent
            ],
            "needs": [[list(key), self._missing(key, amount)] for key, amount in needs.items()],
            "wants": [[list(key), self._wanted(key)] for key in low | needs.keys()],
        }

    def _receive(self, grants: Sequence[Sequence[Any]]) -> None:
        monotonic = self._clocks.monotonic()
        for key, amount, ends, wait_s, elsewhere in grants:
            lease = self._lease(tuple(key))
            if ends != lease.ends:
                lease.left, lease.spent = 0.0, 0.0
            lease.left += amount
            lease.granted = max(amount, lease.left)
            lease.ends = ends
            lease.empty_until = monotonic + wait_s if wait_s else 0.0
            lease.elsewhere = elsewhere
        self._ended.set()

    def _hand_back(self, key: Key) -> list[Any]:
        lease = self._leases[key]
        unused = max(0.0, lease.left)
        lease.left -= unused
        lease.granted = 0.0
        return [list(key), unused, self._spent_of(lease), lease.ends]

    def _spent_of(self, lease: _Lease) -> float:
        spent, lease.spent = lease.spent, 0.0
        return spent

    def _missing(self, key: Key, amount: float) -> float:
        """Return how much of a needed amount is not held; a debt is the leader's from now on."""
        lease = self._lease(key)
        lease.left = max(0.0, lease.left)
        return max(_LEAST_OF_SECONDS, amount - lease.left)

    def _lease(self, key: Key) -> _Lease:
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = _Lease()
        elif lease.ends and self._clocks.utc() >= lease.ends:
            lease.left = lease.granted = lease.spent = lease.ends = lease.empty_until = 0.0
        return lease

    def _want(self, key: Key, lease: _Lease) -> None:
        if lease.empty_until <= self._clocks.monotonic():
            self._low.add(key)
            self._notify()

    def _wanted(self, key: Key) -> float:
        """Return how much more than it needs a process wants: twice the last grant."""
        return max(1.0, 2 * self._lease(key).granted)

    def _window_s(self, key: Key) -> float:
        return self._limits[key[0]].window_s(self._clocks.utc())

    def used(self) -> Iterator[tuple[Key, float]]:
        """Yield nothing: the leader knows what is used."""
        yield from ()


class QuotaLeader:
    """Divides budgets among the processes of a machine.

    Args:
        budgets: The budgets.
        exchange: Sends a document to every process, and returns the replies by its pid.
        count: The number of processes.
    """

    def __init__(
        self,
        budgets: Budgets,
        exchange: Callable[[Document], Awaitable[Mapping[str, Document | None]]],
        count: int,
    ) -> None:
        self.budgets = budgets
        self._exchange = exchange
        self._count = count
        self._held: dict[str, dict[Key, float]] = {}

    async def make_round(self) -> None:
        """Ask all processes what they spent and need, and divide what is left."""
        reports = await self._exchange({"report": True})
        self._forget({*reports})
        needs: dict[Key, dict[str, float]] = {}
        wants: dict[Key, dict[str, float]] = {}
        for pid, report in reports.items():
            if report is None:
                continue
            for key, spent, ends in report.get("spent", ()):
                self._settle(pid, tuple(key), spent, ends)
            for key, amount in report.get("needs", ()):
                needs.setdefault(tuple(key), {})[pid] = amount
            for key, amount in report.get("wants", ()):
                wants.setdefault(tuple(key), {})[pid] = amount
        await self._recall([key for key, each in needs.items() if self._is_short(key, each)])
        grants: dict[str, list[list[Any]]] = {pid: [] for pid in reports}
        for key in {**wants, **needs}:
            self._divide(key, needs.get(key, {}), wants.get(key, {}), grants)
        await self._exchange({"grants": grants})

    def _is_short(self, key: Key, needs: Mapping[str, float]) -> bool:
        budget = self.budgets.find(key)
        if budget is None or budget.room() >= sum(needs.values()):
            return False
        return any(pid not in needs and held.get(key, 0.0) > 0 for pid, held in self._held.items())

    async def _recall(self, keys: Sequence[Key]) -> None:
        """Take back what processes hold of *keys* and have not spent."""
        if not keys:
            return
        replies = await self._exchange({"recall": [list(key) for key in keys]})
        for pid, reply in replies.items():
            for key, unused, spent, ends in () if reply is None else reply.get("returned", ()):
                self._settle(pid, tuple(key), spent, ends)
                self._return(pid, tuple(key), unused, ends)

    def _divide(
        self,
        key: Key,
        needs: Mapping[str, float],
        wants: Mapping[str, float],
        grants: dict[str, list[list[Any]]],
    ) -> None:
        """Grant what is needed as far as there is room, and then a part of what is wanted."""
        budget = self.budgets.find(key)
        if budget is None:  # a reload has just removed the quota
            for pid, amount in needs.items():
                grants[pid].append([list(key), amount, 0.0, 0.0, 0.0])
            return
        is_whole = budget.limit.unit == "calls"
        given = dict.fromkeys({**wants, **needs}, 0.0)
        for pid, amount in needs.items():
            most = max(0.0, budget.room())
            part = min(amount, most + 1e-9)
            part = float(math.floor(part)) if is_whole else part
            self._hold(pid, key, part, budget)
            given[pid] += part
        for pid, amount in wants.items():
            part = min(amount, max(0.0, budget.room()) / (_PARTS * self._count))
            part = float(math.floor(part)) if is_whole else part
            self._hold(pid, key, part, budget)
            given[pid] += part
        least = 1.0 if is_whole else _LEAST_OF_SECONDS
        for pid, amount in given.items():
            wait_s = budget.wait_s(least) if amount < needs.get(pid, 0.0) - 1e-9 else 0.0
            grants[pid].append([list(key), amount, budget.ends, wait_s, max(0.0, budget.room())])

    def _hold(self, pid: str, key: Key, amount: float, budget: Budget) -> None:
        if amount > 0:
            budget.take(amount)
            budget.held += amount
            held = self._held.setdefault(pid, {})
            held[key] = held.get(key, 0.0) + amount

    def _settle(self, pid: str, key: Key, spent: float, ends: float) -> None:
        """Count what a process spent of what it holds, or more."""
        budget = self.budgets.find(key)
        if budget is None:
            return
        budget.room()
        if budget.ends != ends:
            return  # of a window that has ended
        covered = min(spent, self._release(pid, key, spent))
        budget.held = max(0.0, budget.held - covered)
        if spent > covered:
            budget.take(spent - covered)

    def _return(self, pid: str, key: Key, unused: float, ends: float) -> None:
        budget = self.budgets.find(key)
        if budget is None:
            return
        budget.room()
        if budget.ends != ends:
            return
        back = min(unused, self._release(pid, key, unused))
        budget.held = max(0.0, budget.held - back)
        budget.give(back)

    def _release(self, pid: str, key: Key, amount: float) -> float:
        """Hold less for a process; return by how much."""
        held = self._held.get(pid, {})
        found = held.get(key, 0.0)
        if amount >= found:
            held.pop(key, None)
            return found
        held[key] = found - amount
        return amount

    def _forget(self, pids: set[str]) -> None:
        """Count what processes held that no longer exist as spent."""
        for pid in [pid for pid in self._held if pid not in pids]:
            for key, amount in self._held.pop(pid).items():
                budget = self.budgets.find(key)
                if budget is not None:
                    budget.held = max(0.0, budget.held - amount)


class Rounds:
    """Makes rounds of a leader, one at a time, while processes give notice.

    Args:
        leader: Makes them.
        on_round: Called after each.
        idle_s: The longest time between two rounds.
    """

    def __init__(
        self, leader: QuotaLeader, on_round: Callable[[], None], *, idle_s: float = 1.0
    ) -> None:
        self._leader = leader
        self._on_round = on_round
        self._idle_s = idle_s
        self._noticed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run())

    def notice(self) -> None:
        """Make a round soon."""
        self._noticed.set()

    async def stop(self) -> None:
        """End; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            idle_s = self._idle_s if any(self._leader.budgets) else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(idle_s):
                    await self._noticed.wait()
            self._noticed.clear()
            await self._leader.make_round()
            self._on_round()
