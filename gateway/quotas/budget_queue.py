"""BudgetQueue: calls that wait for room in budgets that others may have, first in, first out.

A call is decided here where its budgets have room, or where it is known that nobody has any. All
others wait, and none overtakes another one that waits for the same budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

Key = tuple[str, ...]
"""The name of a budget, and the values that it is counted by.

The name is that of the quota with its unit and period, since amounts of others are not comparable:
a call that a reload overtakes charges nothing to the budgets of another unit.
"""

_SEPARATOR: Final = " "
"""No name of a quota has it."""

_LEAST_OF_SECONDS: Final = 1e-3
_UNKNOWN_S: Final = 1.0
"""The wait of a refusal where nobody has told how long it takes."""

REFUSAL_S: Final = 1.0
"""After this time a refusal is asked about again: what others held may have come back."""

# Sums of floats differ from the exact ones by less.
TOLERANCE: Final = 1e-9


class Charge(NamedTuple):
    """What a call takes of one budget.

    Attributes:
        amount: 0 where it is charged afterwards; there must then be any room.
        is_shadow: Only counted: the call is made in any case.
    """

    key: Key
    amount: float
    is_shadow: bool = False

    @property
    def need(self) -> float:
        """What the call needs of the budget, which is more than 0."""
        return self.amount or _LEAST_OF_SECONDS


class Shortage(NamedTuple):
    """A budget without room, and the seconds until it has some; 0 if others may have some now."""

    charge: Charge
    wait_s: float


def budget_name(quota: str, unit: str, period: str) -> str:
    """Return the name of the budgets of a quota."""
    return f"{quota}{_SEPARATOR}{unit}/{period}"


def quota_of(key: Key) -> str:
    """Return the name of the quota that a budget is of."""
    return key[0].partition(_SEPARATOR)[0]


def stored_key(key: Key) -> Key:
    """Return the key with which a budget is stored: it has the name of the quota alone."""
    return (quota_of(key), *key[1:])


def has_room(room: float, amount: float) -> bool:
    """Return whether *room* is enough for *amount*; for 0, whether there is any."""
    return room + TOLERANCE >= amount if amount else room > TOLERANCE


class QueuedCharges:
    """A call that waits.

    Attributes:
        charges: What it takes.
        decided: Its shortages, once it is decided.
    """

    __slots__ = ("charges", "decided")

    def __init__(self, charges: Sequence[Charge]) -> None:
        self.charges = charges
        self.decided: asyncio.Future[list[Shortage]] = asyncio.get_running_loop().create_future()


class BudgetQueue:
    """The calls of one process that wait.

    Args:
        shortages: Returns the charges without room here, each with the seconds until there is some;
            0 if others may have some now.
        take: Takes a charge; a negative one is given back.

    Attributes:
        keys: How many calls wait for each budget; empty if no call waits.
    """

    def __init__(
        self,
        shortages: Callable[[Sequence[Charge]], list[Shortage]],
        take: Callable[[Charge], None],
    ) -> None:
        self._shortages = shortages
        self._take = take
        self._calls: list[QueuedCharges] = []
        self.keys: dict[Key, int] = {}

    def charge(self, charges: Sequence[Charge]) -> list[Shortage]:
        """Take all *charges*, or none of them if an enforced one has no room.

        Returns:
            The charges without room. Where others may have some their wait is 0, and nothing is
            taken: the call then waits.
        """
        before = [each for each in charges if each.key in self.keys] if self.keys else ()
        decided = None if before else self._decide(charges)
        return [Shortage(each, 0.0) for each in charges] if decided is None else decided

    def enter(self, charges: Sequence[Charge]) -> QueuedCharges:
        """Let a call wait, behind all others."""
        call = QueuedCharges(charges)
        self._calls.append(call)
        for each in charges:
            self.keys[each.key] = self.keys.get(each.key, 0) + 1
        return call

    def serve(self) -> None:
        """Decide all calls that can be decided, in their order."""
        blocked: set[Key] = set()
        for call in [*self._calls]:
            keys = [each.key for each in call.charges]
            decided = self._decide(call.charges) if blocked.isdisjoint(keys) else None
            if decided is None:
                blocked.update(keys)
            else:
                self._leave(call)
                call.decided.set_result(decided)

    def leave(self, call: QueuedCharges) -> list[Shortage]:
        """Return the shortages of a call that waits no longer; what nobody has told is lacking."""
        if call.decided.done():
            return call.decided.result()
        self._leave(call)
        return self._decide(call.charges, is_last=True) or []

    def abandon(self, call: QueuedCharges) -> None:
        """Forget a call whose client has left; what it has taken is given back."""
        if not call.decided.done():
            self._leave(call)
            return
        short = call.decided.result()
        if all(one.charge.is_shadow for one in short):
            lacking = {one.charge for one in short}
            for each in call.charges:
                if each not in lacking:
                    self._take(each._replace(amount=-each.amount))

    def needs(self) -> dict[Key, list[float]]:
        """Return what waiting calls need of each budget, in their order."""
        found: dict[Key, list[float]] = {}
        for call in self._calls:
            for each in call.charges:
                found.setdefault(each.key, []).append(each.need)
        return found

    def _leave(self, call: QueuedCharges) -> None:
        self._calls.remove(call)
        for each in call.charges:
            self.keys[each.key] -= 1
            if not self.keys[each.key]:
                del self.keys[each.key]

    def _decide(self, charges: Sequence[Charge], *, is_last: bool = False) -> list[Shortage] | None:
        """Take charges, unless an enforced one has no room; None if others may have some."""
        short = self._shortages(charges)
        if is_last:
            short = [Shortage(one.charge, one.wait_s or _UNKNOWN_S) for one in short]
        known = [one for one in short if one.wait_s]
        if any(not one.charge.is_shadow for one in known):
            return known
        if len(known) < len(short):
            return None
        lacking = {one.charge for one in short}
        for each in charges:
            if each not in lacking:
                self._take(each)
        return short
