"""Leases: the budgets of one machine, divided among its processes.

The leading process has the budgets. A serving process takes calls against what it holds of them, so
that no call waits while there is enough. When it holds too little it gives notice, and the leader
makes a round. It asks every process what was spent and what is needed. Where too little is left, it
takes back what the others hold. Then it gives each process what its calls need, one call after the
other, and a part of the rest.

What is held counts as taken, so accepted calls never exceed a budget. Each process also counts what
it has spent in memory that outlives it: the rest of what a process held that died goes back.

Counts in messages are those since the begin of the window, so that a lost message does no harm.
Leases of rates end each hour, so that those of clients who left are forgotten.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gateway.concurrency.background import end_tasks, start_background
from gateway.concurrency.timeouts import is_set_within
from gateway.quotas.budget_queue import (
    REFUSAL_S,
    TOLERANCE,
    BudgetQueue,
    Charge,
    Key,
    Shortage,
    has_room,
)
from gateway.quotas.budgets import (
    PERIOD_S,
    REAL_CLOCKS,
    Ask,
    Budget,
    Budgets,
    BudgetState,
    Clocks,
    Limit,
    ask_nobody,
    window_end,
)

MOST_COUNTS: Final = 1 << 16
"""The most leases of a process, whose counts outlive it; further budgets of a quota share one."""

_RENEWED: Final = "hour"
"""The period after which leases of rates end, and ended ones are forgotten."""

_WAIT_S: Final = 1.0
"""How long a call waits for the leader, besides the store."""

_NOTICE_S: Final = 0.1
"""A call that waits gives notice again after this time: the process may have missed a round."""

_LOW: Final = 0.5
_PARTS: Final = 2

Document = Mapping[str, Any]


class Grant(NamedTuple):
    """What the leader tells a process about one budget.

    Attributes:
        key: The key of the budget, as a list in a message.
        amount: More for the process.
        ends: When it expires, in seconds since 1970; 0 for never.
        wait_s: The seconds until there is room for what was refused; 0 if nothing was, or if the
            store may have it.
        refused: The least amount that a call needs and did not get; 0 for none.
        elsewhere: What is left at the leader and at other processes.
        place: Where the process counts what it spends; -1 for nowhere.
    """

    key: Sequence[str]
    amount: float
    ends: float = 0.0
    wait_s: float = 0.0
    refused: float = 0.0
    elsewhere: float = 0.0
    place: int = -1


@dataclass(slots=True)
class _Lease:
    """What a process holds of one budget.

    Attributes:
        key: The key of the budget.
        left: Not yet spent; below 0 for seconds that were not covered.
        granted: The last grant.
        spent: In the window.
        returned: In the window.
        ends: When it expires, in seconds since 1970; 0 before the first grant.
        empty_until: Until when nobody has the amount `refused`, on the monotonic clock.
        refused: The least amount that was refused.
        told_at: When that was told, on the monotonic clock.
        elsewhere: What others had left at the last grant.
        place: Where `spent` is counted; -1 for nowhere.
    """

    key: Key
    left: float = 0.0
    granted: float = 0.0
    spent: float = 0.0
    returned: float = 0.0
    ends: float = 0.0
    empty_until: float = 0.0
    refused: float = 0.0
    told_at: float = 0.0
    elsewhere: float = 0.0
    place: int = -1

    def begin(self, ends: float) -> None:
        """Begin a window with nothing."""
        self.left = self.granted = self.spent = self.returned = 0.0
        self.empty_until = self.elsewhere = 0.0
        self.ends = ends
        self.place = -1  # another lease may have it by now


class LeasedAccounts:
    """Charges what a process holds of the budgets.

    Args:
        limits: By the name of the budgets.
        notify: Lets the leader make a round.
        clocks: The clocks.
        pid: The number of the process, by which the leader knows it.
        counts: Memory that outlives the process; None for none.
        memory: The name of that memory.
        store_s: How long the store of the leader may take for an answer.

    Attributes:
        most: The most leases; the further budgets of a quota share one.
    """

    def __init__(
        self,
        limits: Mapping[str, Limit],
        notify: Callable[[], None],
        clocks: Clocks = REAL_CLOCKS,
        pid: int | None = None,
        *,
        counts: memoryview[float] | None = None,
        memory: str = "",
        store_s: float = 0.0,
    ) -> None:
        self.most = MOST_COUNTS
        self._kept_until = 0.0
        self._lapse_at = 0.0
        self._limits = dict(limits)
        self._notify = notify
        self._clocks = clocks
        self._pid = str(os.getpid() if pid is None else pid)
        self._counts = counts
        self._memory = memory
        self.store_s = store_s
        self._leases: dict[Key, _Lease] = {}
        self._low: set[Key] = set()
        # Those whose counts the leader may not know.
        self._changed: set[Key] = set()
        self._reported: set[Key] = set()
        self._queue = BudgetQueue(self._shortages, self._take)

    def change(self, limits: Mapping[str, Limit]) -> None:
        """Follow other limits; the leader takes back what is held of those that have changed."""
        self._limits = dict(limits)
        self._leases = {key: one for key, one in self._leases.items() if key[0] in limits}
        self._queue.serve()

    def charge(self, charges: Sequence[Charge]) -> list[Shortage]:
        """Take all *charges*, or none of them if one that is enforced has no room.

        Returns:
            The charges without room. Where other processes may have some their wait is 0, and
            nothing is taken.
        """
        return self._queue.charge(charges)

    async def wait(self, charges: Sequence[Charge]) -> list[Shortage]:
        """Return what `charge` returns, after rounds of the leader if that takes not too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WAIT_S + 2 * self.store_s
        call = self._queue.enter(charges)
        try:
            while not call.decided.done() and (rest_s := deadline - loop.time()) > 0:
                self._notify()
                await asyncio.wait({call.decided}, timeout=min(rest_s, _NOTICE_S))
        except BaseException:
            self._queue.abandon(call)
            raise
        return self._queue.leave(call)

    def _shortages(self, charges: Sequence[Charge]) -> list[Shortage]:
        self._lapse()
        found = [(each, self._lease(each.key)) for each in charges if each.key[0] in self._limits]
        return [
            Shortage(each, self._wait_s(each, lease))
            for each, lease in found
            if not has_room(lease.left, each.amount)
        ]

    def _wait_s(self, charge: Charge, lease: _Lease) -> float:
        """Return the seconds until there is room for a charge; 0 if others may have some now."""
        now = self._clocks.monotonic()
        wait_s = lease.empty_until - now
        is_old = now - lease.told_at >= REFUSAL_S
        if wait_s <= 0 or is_old or has_room(lease.left + lease.elsewhere, charge.amount):
            return 0.0
        rate = self._limits[charge.key[0]].rate
        return wait_s + (max(0.0, charge.amount - lease.refused) / rate if rate else 0.0)

    def _take(self, charge: Charge) -> None:
        self.take(charge.key, charge.amount)

    def take(self, key: Key, amount: float) -> None:
        """Take an amount, even if it is not held: seconds are known only after the call."""
        if key[0] not in self._limits:
            return
        lease = self._lease(key)
        self._spend(lease, amount)
        if lease.left < lease.granted * _LOW and lease.key not in self._low:
            self._want(lease)

    def _spend(self, lease: _Lease, amount: float) -> None:
        lease.left -= amount
        lease.spent += amount
        if self._counts is not None and lease.place >= 0:
            self._counts[lease.place] = lease.spent
        self._changed.add(lease.key)

    def give(self, key: Key, amount: float, since: float) -> None:
        """Give back the charge of a call that reached no target, made *since* then (UTC)."""
        lease = self._leases.get(key) or self._leases.get(key[:1])
        if lease is None:
            return
        begun = lease.ends - self._window_s(key)
        if not lease.ends or (since >= begun and self._clocks.utc() < lease.ends):
            self._spend(lease, -amount)

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
        self._lapse()
        if "grants" in document:
            self._lapse_at = document["lapse_at"]
            self._receive(document["grants"].get(self._pid, ()))
            return {}
        if "recall" in document:
            keys = [tuple(key) for key in document["recall"]]
            return {"returned": [self._hand_back(key) for key in keys if key in self._leases]}
        if "changed" in document:
            keys = [key for key in self._leases if key[0] in document["changed"]]
            for key in keys:
                self._leases[key].empty_until = self._leases[key].elsewhere = 0.0
            return {"returned": [self._hand_back(key) for key in keys]}
        self._reported |= self._changed
        self._changed = set()
        needs: dict[Key, tuple[list[float], _Lease]] = {}
        for key, amounts in self._queue.needs().items():
            lease = self._lease(key)
            needs.setdefault(lease.key, ([], lease))[0].extend(amounts)
        low, self._low = self._low, set()
        reported = {key: self._leases[key] for key in self._reported if key in self._leases}
        return {
            "memory": self._memory,
            "spent": [self._counts_of(key, lease) for key, lease in reported.items()],
            "needs": [[list(key), amounts, one.left] for key, (amounts, one) in needs.items()],
            "wants": [[list(key), self._wanted(key)] for key in low | needs.keys()],
        }

    def _lapse(self) -> None:
        """Hand back what others may spend now: the leader has not heard of the store for long."""
        if self._lapse_at and self._clocks.monotonic() >= self._lapse_at:
            self._lapse_at = 0.0
            for key, lease in self._leases.items():
                if lease.left > 0:
                    self._hand_back(key)

    def _receive(self, grants: Sequence[Sequence[Any]]) -> None:
        monotonic = self._clocks.monotonic()
        self._reported = set()
        for each in map(Grant._make, grants):
            lease = self._lease(tuple(each.key))
            if lease.ends and each.ends != lease.ends:
                lease.begin(each.ends)
            lease.ends = each.ends
            lease.left += each.amount
            lease.granted = max(each.amount, lease.left)
            lease.place = each.place
            self._spend(lease, 0.0)
            lease.empty_until = monotonic + each.wait_s if each.wait_s else 0.0
            lease.refused, lease.elsewhere = each.refused, each.elsewhere
            lease.told_at = monotonic
        self._queue.serve()

    def _hand_back(self, key: Key) -> list[Any]:
        lease = self._leases[key]
        unused = max(0.0, lease.left)
        lease.left -= unused
        lease.returned += unused
        lease.granted = 0.0
        self._changed.add(key)
        return self._counts_of(key, lease)

    def _counts_of(self, key: Key, lease: _Lease) -> list[Any]:
        """Return what the leader is told of a lease; a debt is the leader's from now on."""
        lease.left = max(0.0, lease.left)
        return [list(key), lease.spent, lease.returned, lease.ends]

    def _lease(self, key: Key) -> _Lease:
        lease = self._leases.get(key)
        if lease is None:
            if len(self._leases) >= self.most and not self._drop_ended():
                key = key[:1]  # no client, model or label has it
            lease = self._leases.setdefault(key, _Lease(key))
        if lease.ends and self._clocks.utc() >= lease.ends:
            lease.begin(0.0)
            self._spend(lease, 0.0)
        return lease

    def _drop_ended(self) -> bool:
        """Forget leases that have ended; return whether there is room for another one."""
        utc = self._clocks.utc()
        if utc >= self._kept_until:  # none ends before that
            self._kept_until = window_end(_RENEWED, utc)
            waiting = {*self._queue.keys, *self._changed}
            for key, lease in list(self._leases.items()):
                if lease.ends and utc >= lease.ends and key not in waiting:
                    del self._leases[key]
        return len(self._leases) < self.most

    def _want(self, lease: _Lease) -> None:
        if lease.empty_until <= self._clocks.monotonic():
            self._low.add(lease.key)
            self._notify()

    def _wanted(self, key: Key) -> float:
        """Return how much more than it needs a process wants: twice the last grant."""
        return max(1.0, 2 * self._lease(key).granted)

    def _window_s(self, key: Key) -> float:
        limit = self._limits[key[0]]
        return PERIOD_S[_RENEWED] if limit.is_rate else limit.window_s(self._clocks.utc())


@dataclass(slots=True)
class _Held:
    """What a process holds of one budget, as the leader knows it.

    Attributes:
        granted: In the window, with debts that the leader took over.
        spent: In the window, by the last report.
        returned: In the window, by the last report.
        ends: When the window ends.
        place: Where the process counts what it spends; -1 for nowhere.
    """

    place: int
    granted: float = 0.0
    spent: float = 0.0
    returned: float = 0.0
    ends: float = 0.0

    @property
    def open(self) -> float:
        """What may still be spent; below 0 for a debt."""
        return self.granted - self.spent - self.returned


@dataclass(slots=True)
class _LeasingProcess:
    """A process, as the leader knows it.

    Attributes:
        held: What it holds, by the key of the budget.
        memory: The name of the memory where it counts what it spends.
        replied: Whether it replied to the last report.
        places: How many places for counts were used.
        free: Places of leases that have ended.
    """

    held: dict[Key, _Held]
    memory: str = ""
    replied: bool = True
    places: int = 0
    free: list[int] = field(default_factory=list)

    def new_place(self) -> int:
        """Return where another lease is counted; -1 for nowhere."""
        if self.free:
            return self.free.pop()
        if self.places >= MOST_COUNTS:
            return -1
        self.places += 1
        return self.places - 1

    def drop(self, key: Key) -> None:
        """Forget what it holds of a budget."""
        held = self.held.pop(key)
        if held.place >= 0:
            self.free.append(held.place)


class QuotaLeader:
    """Divides budgets among the processes of a machine.

    Args:
        budgets: The budgets.
        exchange: Sends a document to every process, and returns the replies by its pid.
        count: The number of processes.
        ask: Asks the store of replicas.

    Attributes:
        counts: What processes have spent, by the name of the memory where they count it.
        on_answer: Called when the store has answered.
    """

    def __init__(
        self,
        budgets: Budgets,
        exchange: Callable[[Document], Awaitable[Mapping[str, Document | None]]],
        count: int,
        ask: Ask = ask_nobody,
    ) -> None:
        self.budgets = budgets
        self.counts: dict[str, memoryview[float]] = {}
        self.on_answer: Callable[[], None] = lambda: None
        self._exchange = exchange
        self._count = count
        self._ask = ask
        self._processes: dict[str, _LeasingProcess] = {}
        self._questions: set[asyncio.Task[None]] = set()
        self._kept_until = 0.0
        self._round = asyncio.Lock()
        # The names of budgets of which a process may hold something by an earlier limit.
        self._changed: set[str] = set()

    async def change(self, names: AbstractSet[str]) -> None:
        """Take back what processes hold of budgets whose limits have changed, or that are removed.

        Args:
            names: The names of the budgets.
        """
        self._changed |= names
        await self.make_round()

    async def make_round(self) -> None:
        """Ask all processes what they spent and need, and divide what is left."""
        async with self._round:
            self._drop_ended()
            if self._changed:
                await self._take_back_changed()
            await self._divide_rest()

    async def _take_back_changed(self) -> None:
        """Take back what processes hold of budgets that have changed; again if one is silent."""
        for process in self._processes.values():
            for key in [key for key in process.held if self.budgets.find(key) is None]:
                process.drop(key)
        replies = await self._exchange({"changed": sorted(self._changed)})
        self._settle_returns(replies)
        if None not in replies.values():
            self._changed.clear()

    async def _divide_rest(self) -> None:
        reports = await self._exchange({"report": True})
        self.take_back({*reports})
        needs: dict[Key, dict[str, _Need]] = {}
        wants: dict[Key, dict[str, float]] = {}
        for pid, report in reports.items():
            process = self._processes.setdefault(pid, _LeasingProcess({}))
            process.replied = report is not None
            if report is None:
                continue
            process.memory = report["memory"]
            for key, spent, returned, ends in report["spent"]:
                self._settle(process, tuple(key), spent, returned, ends)
            for key, amounts, left in report["needs"]:
                needs.setdefault(tuple(key), {})[pid] = _Need(amounts, left)
            for key, amount in report["wants"]:
                wants.setdefault(tuple(key), {})[pid] = amount
        await self._recall([key for key, each in needs.items() if self._is_short(key, each)], needs)
        grants: dict[str, list[Grant]] = {
            pid: [] for pid, report in reports.items() if report is not None
        }
        lacking: dict[Key, float] = {}
        for key in {**needs, **wants}:
            shortage = self._divide(key, needs.get(key, {}), wants.get(key, {}), grants)
            if shortage:
                lacking[key] = shortage
        if lacking:
            question = self._ask_store(lacking)
            start_background(question, "needs of quotas", self._questions)
        sent = {pid: [*map(list, each)] for pid, each in grants.items()}
        await self._exchange({"grants": sent, "lapse_at": self.budgets.lapse_at})

    async def _ask_store(self, lacking: Mapping[Key, float]) -> None:
        """Ask for what calls lack; another round divides the answer."""
        await self._ask(lacking)
        self.on_answer()

    def _is_short(self, key: Key, needs: Mapping[str, _Need]) -> bool:
        """Return whether calls lack what processes hold."""
        budget = self.budgets.find(key)
        if budget is None or budget.room() + TOLERANCE >= sum(each.lack for each in needs.values()):
            return False
        return self._held(key) > 0

    def _held(self, key: Key) -> float:
        """Return what the processes that reply hold of a budget."""
        replying = [each.held.get(key) for each in self._processes.values() if each.replied]
        return sum(max(0.0, held.open) for held in replying if held is not None)

    async def _recall(self, keys: Sequence[Key], needs: Mapping[Key, dict[str, _Need]]) -> None:
        """Take back what processes hold of *keys* and have not spent."""
        if not keys:
            return
        replies = await self._exchange({"recall": [list(key) for key in keys]})
        for pid, key in self._settle_returns(replies):
            need = needs[key].get(pid)
            if need is not None:
                needs[key][pid] = need._replace(left=0.0)

    def _settle_returns(self, replies: Mapping[str, Document | None]) -> list[tuple[str, Key]]:
        """Count what processes have returned; return which process has returned which budget."""
        found = []
        for pid, reply in replies.items():
            process = self._processes.get(pid)
            if reply is None or process is None:
                continue
            for key, spent, returned, ends in reply["returned"]:
                self._settle(process, tuple(key), spent, returned, ends)
                found.append((pid, tuple(key)))
        return found

    def _divide(
        self,
        key: Key,
        needs: Mapping[str, _Need],
        wants: Mapping[str, float],
        grants: Mapping[str, list[Grant]],
    ) -> float:
        """Grant what calls need as far as there is room, and then a part of what is wanted.

        Returns:
            What calls lack and the store may have.
        """
        budget = self.budgets.find(key)
        if budget is None:  # a reload has just removed the quota
            for pid, need in needs.items():
                grants[pid].append(Grant(key, need.lack))
            return 0.0
        is_whole = budget.limit.unit == "calls"
        given = dict.fromkeys({**wants, **needs}, 0.0)
        refused: dict[str, list[float]] = {}
        for pid, need in needs.items():
            given[pid], refused[pid] = need.split(max(0.0, budget.room()))
            self._hold(pid, key, given[pid], budget)
        for pid, amount in wants.items():
            part = min(amount, max(0.0, budget.room()) / (_PARTS * self._count))
            part = float(math.floor(part)) if is_whole else part
            self._hold(pid, key, part, budget)
            given[pid] += part
        shortage = 0.0
        for pid, amount in given.items():
            least = min(refused.get(pid, ()), default=0.0)
            wait_s = budget.wait_s(least) if least else 0.0
            if least and not wait_s:
                shortage += sum(refused[pid])
            held = self._processes[pid].held.get(key)
            own, place = (0.0, -1) if held is None else (max(0.0, held.open), held.place)
            elsewhere = max(0.0, budget.room()) + self._held(key) - own
            ends = self._ends(budget)
            grants[pid].append(Grant(key, amount, ends, wait_s, least, elsewhere, place))
        return shortage

    def _hold(self, pid: str, key: Key, amount: float, budget: Budget) -> None:
        if amount <= 0:
            return
        budget.take(amount)
        budget.held += amount
        held = self._of_window(self._processes[pid], key, budget)
        held.granted += amount

    def _of_window(self, process: _LeasingProcess, key: Key, budget: Budget) -> _Held:
        """Return what a process holds of the current window."""
        held, ends = process.held.get(key), self._ends(budget)
        if held is None:
            held = process.held[key] = _Held(process.new_place(), ends=ends)
        elif held.ends != ends:
            _release(held, budget)
            held = process.held[key] = _Held(held.place, ends=ends)
        return held

    def _ends(self, budget: Budget) -> float:
        """Return when the leases of a budget end, in seconds since 1970."""
        return budget.ends or window_end(_RENEWED, self.budgets.utc())

    def _drop_ended(self) -> None:
        """Forget leases that have ended."""
        utc = self.budgets.utc()
        if utc < self._kept_until:
            return
        self._kept_until = window_end(_RENEWED, utc)
        for process in self._processes.values():
            for key, held in list(process.held.items()):
                if utc < held.ends:
                    continue
                process.drop(key)
                budget = self.budgets.find(key)
                if budget is not None:
                    _release(held, budget)

    def _settle(
        self, process: _LeasingProcess, key: Key, spent: float, returned: float, ends: float
    ) -> None:
        """Count what a process has spent of what it held, or more, and what it has returned."""
        budget = self.budgets.find(key)
        if budget is None:
            return
        budget.room()
        if ends and self._ends(budget) != ends:
            return  # of a window that has ended
        held = self._of_window(process, key, budget)
        before, back = held.open, returned - held.returned
        held.spent, held.returned = spent, returned
        budget.held = max(0.0, budget.held + max(0.0, held.open) - before)
        if back > 0:
            budget.give(back)
        if held.open < 0:
            budget.take(-held.open)
            held.granted -= held.open

    def unreported(self, key: Key) -> float:
        """Return what processes have spent of a budget since their last reports."""
        spent = 0.0
        for process in self._processes.values():
            held, counts = process.held.get(key), self.counts.get(process.memory)
            if held is not None and counts is not None and held.place >= 0:
                spent += min(max(0.0, counts[held.place] - held.spent), max(0.0, held.open))
        return spent

    def take_back(self, alive: set[str]) -> None:
        """Take back what processes held that have ended, but for what they spent."""
        for pid in [pid for pid in self._processes if pid not in alive]:
            process = self._processes.pop(pid)
            counts = self.counts.pop(process.memory, None)
            for key, held in process.held.items():
                most = held.granted - held.returned
                spent = most if counts is None or held.place < 0 else counts[held.place]
                spent = min(most, spent)  # a grant on its way did not begin its window
                self._settle(process, key, spent, held.granted - spent, held.ends)


def _release(held: _Held, budget: Budget) -> None:
    """Note that an ended lease holds nothing; a window that has ended knows."""
    if not budget.ends:
        budget.held = max(0.0, budget.held - max(0.0, held.open))


class _Need(NamedTuple):
    """What the calls of a process need that wait, in their order, and what it holds."""

    amounts: Sequence[float]
    left: float

    @property
    def lack(self) -> float:
        """What they need beyond what the process holds."""
        return max(0.0, sum(self.amounts) - max(0.0, self.left))

    def split(self, room: float) -> tuple[float, list[float]]:
        """Return what to grant of *room*, and the amounts of the calls for which it is too small.

        What is granted is enough for whole calls; the first come first.
        """
        have, granted, refused = max(0.0, self.left), 0.0, []
        for amount in self.amounts:
            lack = max(0.0, amount - have)
            if lack <= room - granted + TOLERANCE:
                granted += lack
                have = max(0.0, have - amount)
            else:
                refused.append(amount)
        return min(granted, room), refused


class Rounds:
    """Makes rounds of a leader, one at a time, while processes give notice.

    Args:
        leader: Makes them.
        idle_s: The longest time between two rounds.
    """

    def __init__(self, leader: QuotaLeader, *, idle_s: float = 1.0) -> None:
        self._leader = leader
        self._idle_s = idle_s
        self._noticed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = start_background(self._run(), "rounds of quotas")

    def notice(self) -> None:
        """Make a round soon."""
        self._noticed.set()

    async def stop(self) -> None:
        """End; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks(task)

    async def _run(self) -> None:
        while True:
            idle_s = self._idle_s if any(self._leader.budgets) else None
            await is_set_within(self._noticed, idle_s)
            self._noticed.clear()
            await self._leader.make_round()
