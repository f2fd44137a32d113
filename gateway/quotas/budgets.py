"""Budgets: what is left of each quota, for each client, model or whatever it is counted by.

Limits for seconds and minutes are token buckets on a monotonic clock. Those for hours, days and
months count calendar windows in UTC. This module does no I/O, and reads clocks that it is given.
"""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct

from gateway.quotas.budget_queue import (
    TOLERANCE,
    BudgetQueue,
    Charge,
    Key,
    Shortage,
    has_room,
    quota_of,
    stored_key,
)

PERIOD_S: Final = {"s": 1.0, "min": 60.0, "hour": 3600.0, "day": 86400.0}
"""The seconds of each period but a month."""

_PERIODS: Final = {period: int(seconds) for period, seconds in PERIOD_S.items()}
MONTH: Final = "month"
_RATES: Final = frozenset({"s", "min"})
_MAX_BUDGETS: Final = 10_000
_MOST_QUESTIONS: Final = 3
"""How often a call asks the store, whose answer to one call may be used up by calls before it."""

Clock = Callable[[], float]


class Clocks(NamedTuple):
    """The clocks of budgets.

    Attributes:
        monotonic: Seconds that only go on, for rates.
        utc: Seconds since 1970, for calendar windows.
    """

    monotonic: Clock = time.monotonic
    utc: Clock = time.time  # noqa: TID251  # calendar windows are those of UTC


REAL_CLOCKS: Final = Clocks()


@dataclass(frozen=True, kw_only=True)
class Limit:
    """How much of what a quota allows in which time.

    Attributes:
        amount: In each period.
        period: "s", "min", "hour", "day" or "month".
        burst: Of rates: what may come at once; None for the amount of one second, at least 1.
        unit: "calls", "elements", "bytes" or "seconds".
        rate: Of rates: the amount of one second; else 0.
        capacity: The most that one call may take.
        fixed_s: The seconds of the period; 0 for a month.
    """

    amount: float
    period: str
    burst: float | None = None
    unit: str = "calls"
    # Each call reads them.
    rate: float = field(init=False, repr=False, compare=False, default=0.0)
    capacity: float = field(init=False, repr=False, compare=False, default=0.0)
    fixed_s: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Compute what follows from the other fields."""
        rate, capacity = 0.0, self.amount
        if self.is_rate:
            rate = self.amount / PERIOD_S[self.period]
            capacity = self.burst if self.burst is not None else max(1.0, rate)
        object.__setattr__(self, "rate", rate)
        object.__setattr__(self, "capacity", capacity)
        object.__setattr__(self, "fixed_s", _PERIODS.get(self.period, 0))

    @property
    def is_rate(self) -> bool:
        """Whether it is a rate, and not a calendar window."""
        return self.period in _RATES

    def window_s(self, utc: float) -> int:
        """Return the length of the period at a time, in seconds."""
        if self.fixed_s:
            return self.fixed_s
        at = datetime.fromtimestamp(utc, UTC)
        return calendar.monthrange(at.year, at.month)[1] * 86400


def window_end(period: str, utc: float) -> float:
    """Return the end of the calendar window that contains a time, in seconds since 1970."""
    if period != MONTH:
        seconds = PERIOD_S[period]
        return (utc // seconds + 1) * seconds
    at = datetime.fromtimestamp(utc, UTC)
    year, month = (at.year + 1, 1) if at.month == 12 else (at.year, at.month + 1)  # noqa: PLR2004
    return datetime(year, month, 1, tzinfo=UTC).timestamp()


class Bucket:
    """A token bucket.

    Attributes:
        held: What processes hold of it and have not spent, as far as this one knows.
        ends: When what is held expires; 0 for never.
    """

    __slots__ = ("_at", "_clock", "_tokens", "held", "limit")
    ends = 0.0

    def __init__(self, limit: Limit, clocks: Clocks) -> None:
        self.limit = limit
        self._clock = clocks.monotonic
        self._tokens = limit.capacity
        self._at = self._clock()
        self.held = 0.0

    def room(self) -> float:
        """Return what is left now."""
        now = self._clock()
        limit = self.limit
        most = limit.capacity - self.held
        if self._tokens < most:
            self._tokens = min(most, self._tokens + (now - self._at) * limit.rate)
        self._at = now
        return self._tokens

    def charge(self, amount: float) -> bool:
        """Take an amount if there is room for it; return whether there was."""
        if self.room() < amount:
            return False
        self._tokens -= amount
        return True

    def allowance(self) -> tuple[float, float]:
        """Return what is left now, and the seconds until the bucket is full."""
        left = self.room()
        return left, self.reset_s()

    def take(self, amount: float) -> None:
        """Take an amount, even if there is no room for it."""
        self._tokens -= amount

    def give(self, amount: float, _since: float = 0.0) -> None:
        """Give back what was taken."""
        self._tokens = min(self.limit.capacity - self.held, self._tokens + amount)

    def change(self, limit: Limit) -> None:
        """Follow another limit for the same period."""
        self.room()
        self.limit = limit
        self._tokens = min(self._tokens, limit.capacity - self.held)

    def wait_s(self, amount: float) -> float:
        """Return the seconds until there is room for an amount, if nobody else takes it."""
        return max(0.0, (amount - self.room()) / self.limit.rate)

    def reset_s(self) -> float:
        """Return the seconds from the last `room` until the bucket is full."""
        return max(0.0, (self.limit.capacity - self._tokens) / self.limit.rate)

    def used(self) -> float:
        """Return what is taken and not yet available again."""
        return self.limit.capacity - self.room() - self.held

    def is_unused(self) -> bool:
        """Return whether it is as a new one is."""
        return self.used() <= TOLERANCE and not self.held

    def adopt(self, used: float, held: float) -> None:
        """Continue with the counts of another budget."""
        self.held = held
        self._tokens = max(0.0, self.limit.capacity - used - held)


class Window:
    """What was used in the current calendar window.

    Attributes:
        held: What processes hold of it and have not spent; it counts as used.
        ends: When the window ends, in seconds since 1970.
    """

    __slots__ = ("_begun", "_clock", "_used", "ends", "held", "limit")

    def __init__(self, limit: Limit, clocks: Clocks) -> None:
        self.limit = limit
        self._clock = clocks.utc
        self._used = 0.0
        self.held = 0.0
        self._begun = 0.0
        self.ends = window_end(limit.period, self._clock())

    def room(self) -> float:
        """Return what is left now."""
        now = self._clock()
        if now >= self.ends:
            self._begun = now
            self.ends = window_end(self.limit.period, now)
            self._used = self.held = 0.0
        return self.limit.amount - self._used

    def charge(self, amount: float) -> bool:
        """Take an amount if there is room for it; return whether there was."""
        if self._clock() >= self.ends:
            self.room()
        if self.limit.amount - self._used < amount:
            return False
        self._used += amount
        return True

    def allowance(self) -> tuple[float, float]:
        """Return what is left now, and the seconds until the window ends."""
        now = self._clock()
        if now >= self.ends:
            self.room()
        return self.limit.amount - self._used, self.ends - now

    def take(self, amount: float) -> None:
        """Take an amount, even if there is no room for it."""
        self._used += amount

    def give(self, amount: float, since: float = math.inf) -> None:
        """Give back what was taken at a time of this window; of an earlier one nothing."""
        if since >= self._begun:
            self._used = max(0.0, self._used - amount)

    def change(self, limit: Limit) -> None:
        """Follow another limit for the same period."""
        self.limit = limit

    def wait_s(self, amount: float) -> float:
        """Return the seconds until there is room for an amount."""
        return 0.0 if self.room() >= amount else max(0.0, self.ends - self._clock())

    def reset_s(self) -> float:
        """Return the seconds until the window ends."""
        now = self._clock()
        if now >= self.ends:
            self.room()
        return self.ends - now

    def used(self) -> float:
        """Return what is used in the window."""
        self.room()
        return self._used - self.held

    def is_unused(self) -> bool:
        """Return whether it is as a new one is."""
        self.room()
        return self._used <= TOLERANCE

    def restore(self, used: float, ends: float) -> None:
        """Continue with the count of an earlier process, if its window has not ended."""
        if ends == self.ends:
            self._used = max(self._used, used)

    def adopt(self, used: float, held: float) -> None:
        """Continue with the counts of another budget, in the same window."""
        self.held = held
        self._used = used + held


class Budget(Protocol):
    """What is left of a quota for one key: a `Bucket`, a `Window`, or a `Pool` of a store."""

    limit: Limit
    held: float
    ends: float

    def room(self) -> float:
        """Return what is left now."""
        ...

    def charge(self, amount: float, /) -> bool:
        """Take an amount if there is room for it; return whether there was."""
        ...

    def allowance(self) -> tuple[float, float]:
        """Return what is left now, and the seconds until the budget is whole again."""
        ...

    def take(self, amount: float, /) -> None:
        """Take an amount, even if there is no room for it."""
        ...

    def give(self, amount: float, since: float = ..., /) -> None:
        """Give back what was taken."""
        ...

    def change(self, limit: Limit, /) -> None:
        """Follow another limit for the same period."""
        ...

    def wait_s(self, amount: float, /) -> float:
        """Return the seconds until there is room for an amount."""
        ...

    def reset_s(self) -> float:
        """Return the seconds from the last `room` until the budget is whole again."""
        ...

    def used(self) -> float:
        """Return what is used."""
        ...

    def is_unused(self) -> bool:
        """Return whether it is as a new one is."""
        ...

    def adopt(self, used: float, held: float, /) -> None:
        """Continue with the counts of another budget, in the same window."""
        ...


class Pools(Protocol):
    """The budgets that replicas share in a store; see `pools.PoolLeases`."""

    @property
    def lapse_at(self) -> float:
        """When what processes hold lapses, on the monotonic clock; 0 for never."""
        ...

    def open(self, key: Key, limit: Limit, /) -> Budget:
        """Return a new pool."""
        ...

    def close(self, key: Key, /) -> None:
        """Forget a pool."""
        ...


Ask = Callable[[Mapping[Key, float]], Awaitable[None]]
"""Asks the store for what calls need, and waits for a moment."""


async def ask_nobody(_needs: Mapping[Key, float]) -> None:
    """Ask no store."""


class Budgets:
    """The budgets of all quotas.

    Args:
        limits: By the name of the budgets.
        clocks: The clocks.
        pools: Has the budgets instead, if replicas share them; None for no store.

    Attributes:
        known: The budgets that calls have, by their keys; `find` returns further ones.
        utc: Seconds since 1970.
    """

    def __init__(
        self,
        limits: Mapping[str, Limit],
        clocks: Clocks = REAL_CLOCKS,
        pools: Pools | None = None,
    ) -> None:
        self._clocks = clocks
        self._pools = pools
        self._limits = dict(limits)
        self.utc = clocks.utc
        self._budgets: dict[str, dict[Key, Budget]] = {name: {} for name in limits}
        # Those that `find` has returned for their own keys: each call looks one up.
        self.known: dict[Key, Budget] = {}

    def change(self, limits: Mapping[str, Limit]) -> None:
        """Follow other limits; what was used of those that stay is still used."""
        removed = [each for name in self._limits.keys() - limits for each in self._budgets[name]]
        if self._pools is not None:
            for key in removed:
                self._pools.close(key)
        self.known.clear()
        self._limits = dict(limits)
        self._budgets = {name: self._budgets.get(name, {}) for name in limits}
        for name, limit in limits.items():
            for budget in self._budgets[name].values():
                budget.change(limit)

    def move(self, pools: Pools | None) -> None:
        """Have the budgets in a store, or without one; what was used of them is still used."""
        self._pools = pools
        self.known.clear()
        for budgets in self._budgets.values():
            for key, old in budgets.items():
                old.room()  # of the current window
                new = budgets[key] = self._open(key, old.limit)
                new.adopt(old.used(), old.held)

    @property
    def lapse_at(self) -> float:
        """When what processes hold lapses, on the monotonic clock; 0 for never."""
        return 0.0 if self._pools is None else self._pools.lapse_at

    def __iter__(self) -> Iterator[tuple[Key, Budget]]:
        """Iterate over all budgets with their keys."""
        for budgets in self._budgets.values():
            yield from budgets.items()

    def find(self, key: Key) -> Budget | None:
        """Return the budget of *key*; None if there is none of its name any more.

        Of more than 10,000 at a time further ones share one.
        """
        budgets = self._budgets.get(key[0])
        if budgets is None:
            return None
        found = budgets.get(key)
        if found is None:
            found = self._new(key, budgets)
        if key in budgets:  # else it is the one that the keys beyond the bound share
            self.known[key] = found
        return found

    def _new(self, key: Key, budgets: dict[Key, Budget]) -> Budget:
        """Return a budget for a new key."""
        if len(budgets) >= _MAX_BUDGETS:
            self._drop_unused(budgets)
        if len(budgets) >= _MAX_BUDGETS:
            key = key[:1]  # no client, model or label has it
            shared = budgets.get(key)
            if shared is not None:
                return shared
        found = budgets[key] = self._open(key, self._limits[key[0]])
        return found

    def _open(self, key: Key, limit: Limit) -> Budget:
        if self._pools is not None:
            return self._pools.open(key, limit)
        return Bucket(limit, self._clocks) if limit.is_rate else Window(limit, self._clocks)

    def _drop_unused(self, budgets: dict[Key, Budget]) -> None:
        for key in [key for key, budget in budgets.items() if budget.is_unused()]:
            del budgets[key]
            self.known.pop(key, None)
            if self._pools is not None:
                self._pools.close(key)

    def saved(self) -> list[list[Any]]:
        """Return the counts of calendar windows, as JSON values."""
        return [
            [list(stored_key(key)), budget.used() + budget.held, budget.ends]
            for key, budget in self
            if isinstance(budget, Window) and not budget.is_unused()
        ]

    def restore(self, saved: Iterable[Sequence[Any]]) -> None:
        """Continue with counts that `saved` returned in an earlier process."""
        names = {quota_of((name,)): name for name in self._limits}
        for (quota, *values), used, ends in saved:
            budget = self.find((names.get(quota, quota), *values))
            if isinstance(budget, Window):
                budget.restore(float(used), float(ends))


class BudgetState(Struct, frozen=True):
    """What a client is told of a budget."""

    limit: Limit
    left: float
    reset_s: float
    window_s: int


@dataclass(slots=True)
class LocalAccounts:
    """Charges budgets that this process alone has.

    Attributes:
        budgets: The budgets.
        clocks: The clocks.
        ask: Asks the store of replicas.
        queue: The calls that wait for the store.
    """

    budgets: Budgets
    clocks: Clocks = REAL_CLOCKS
    ask: Ask = ask_nobody
    queue: BudgetQueue = field(init=False)

    def __post_init__(self) -> None:
        """Make the queue."""
        self.queue = BudgetQueue(self._shortages, lambda each: self.take(each.key, each.amount))

    def charge(self, charges: Sequence[Charge]) -> list[Shortage]:
        """Take all *charges*, or none of them if one that is enforced has no room.

        Returns:
            The charges without room; those that are only counted are among them. Where the store
            may have some their wait is 0, and nothing is taken.
        """
        # On the path of every call: half the time of the lists of the queue.
        if len(charges) == 1 and not self.queue.keys:
            key, amount, _ = charges[0]
            only = self.budgets.known.get(key) or self.budgets.find(key)
            if only is None or (amount > 0 and only.charge(amount)):
                return []
        return self.queue.charge(charges)

    async def wait(self, charges: Sequence[Charge]) -> list[Shortage]:
        """Return what `charge` returns, after asking the store of replicas, if there is one."""
        call = self.queue.enter(charges)
        try:
            for _ in range(_MOST_QUESTIONS):
                self.queue.serve()
                if call.decided.done():
                    break
                needs = self.queue.needs()
                await self.ask({key: sum(amounts) for key, amounts in needs.items()})
            self.queue.serve()
        except BaseException:
            self.queue.abandon(call)
            raise
        return self.queue.leave(call)

    def _shortages(self, charges: Sequence[Charge]) -> list[Shortage]:
        found = [(each, self.budgets.find(each.key)) for each in charges]
        return [
            Shortage(each, budget.wait_s(each.amount or TOLERANCE))
            for each, budget in found
            if budget is not None and not has_room(budget.room(), each.amount)
        ]

    def take(self, key: Key, amount: float) -> None:
        """Take an amount that is known only after the call."""
        budget = self.budgets.find(key)
        if budget is not None:
            budget.take(amount)

    def give(self, key: Key, amount: float, since: float) -> None:
        """Give back the charge of a call that reached no target, made *since* then (UTC)."""
        budget = self.budgets.find(key)
        if budget is not None:
            budget.room()
            budget.give(amount, since)

    def state(self, key: Key) -> BudgetState | None:
        """Return what a client is told of a budget."""
        budget = self.budgets.known.get(key) or self.budgets.find(key)
        if budget is None:
            return None
        limit = budget.limit
        left, reset_s = budget.allowance()
        window_s = limit.fixed_s or limit.window_s(self.clocks.utc())
        return BudgetState(limit, max(0.0, left), reset_s, window_s)
