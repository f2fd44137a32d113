"""Pools: the part of a budget that this gateway holds, where replicas share budgets in a store.

`PoolLeases` decides what to ask of the store, and what replies and failures mean. It does no I/O:
`gateway.quotas.store` moves the questions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gateway.quotas.budget_queue import REFUSAL_S, TOLERANCE, Key
from gateway.quotas.budgets import REAL_CLOCKS, Clocks, Limit, window_end

_AHEAD_S: Final = 0.1
"""A pool of a rate holds what is used in this time."""

_PARTS: Final = 8
"""A pool of a window asks for this part of what is left, by the number of replicas."""

_IDLE_S: Final = 1.0
_IN_USE_S: Final = 60.0
_QUIET_S: Final = 1.2
_LEAST_WAIT_S: Final = 0.05
_AWAY_S: Final = 1.0
_SHARE_STEP: Final = 0.005
_RENEW_S: Final = 2.0
"""What processes hold of a pool that nobody uses is told to the store again after this time."""

LEASE_S: Final = 10.0
"""A store takes back what a gateway held and had not spent that tells nothing for this time."""

TERM_S: Final = LEASE_S - _RENEW_S - 1.5
"""A gateway spends no lease once its last reply from the store is older: before the store takes it
back, with a margin for clocks, and although a lease is told every `_RENEW_S` only."""

SILENCE_S: Final = 2.0
"""Where no gateway asks for longer, the store was away, and all of them have `LEASE_S` again."""


class Pool:
    """What this gateway holds of one budget.

    Attributes:
        left: Not yet spent.
        held: What processes hold of it and have not spent.
        ends: When the window ends on the clock of the store, in seconds since 1970; 0 for rates.
        total: Everything granted in the window, less what was returned.
        elsewhere: What the store had left at the last reply.
        empty_until: Until when the store has nothing, on the monotonic clock.
        used_at: The time of the last use, on the monotonic clock.
        needs: What calls need at the moment beyond what is held.
        is_known: Whether the store has told about it.
        share: What this gateway may spend of the rest of the window while the store is away; None
            for its part of the rest, where the store has not told.
        was_alone: Whether it grew without the store.
        shared: What it got of its share, without the store.
        lapsing: What processes hold of it that has lapsed, and goes when they give it back.
    """

    __slots__ = (
        "_owner",
        "at",
        "elsewhere",
        "empty_until",
        "ends",
        "held",
        "is_known",
        "is_shared_out",
        "lapsing",
        "left",
        "limit",
        "needs",
        "share",
        "shared",
        "spent",
        "total",
        "used_at",
        "was_alone",
    )

    def __init__(self, limit: Limit, owner: PoolLeases) -> None:
        self._owner = owner
        self.limit = limit
        self.left = self.held = self.total = self.spent = self.needs = 0.0
        self.shared = self.lapsing = 0.0
        self.elsewhere = limit.capacity
        self.empty_until = 0.0
        self.ends = 0.0 if limit.is_rate else window_end(limit.period, owner.utc())
        self.at = self.used_at = owner.monotonic()
        self.is_known = self.is_shared_out = self.was_alone = False
        self.share: float | None = None

    def room(self) -> float:
        """Return what is left here now."""
        if self.ends and self._owner.utc() >= self.ends:
            self.ends = window_end(self.limit.period, self._owner.utc())
            self.left = self.held = self.total = self.spent = 0.0
            self.shared = self.lapsing = 0.0
            self.elsewhere, self.empty_until = self.limit.amount, 0.0
            self.share, self.is_shared_out = None, False
        if not self._owner.is_up:
            self._owner.go_on_alone_with(self)
        if self.ends and self._owner.has_lapsed():
            self.drop(self.left + self.held - self.lapsing - self.shared)
        return self.left

    def drop(self, amount: float) -> None:
        """Forget what others may spend now: what is left here, then what processes give back."""
        if amount > TOLERANCE:
            here = max(0.0, min(amount, self.left))
            self.left -= here
            self.total -= here
            self.lapsing += max(0.0, min(amount - here, self.held - self.lapsing))

    def charge(self, amount: float) -> bool:
        """Take an amount if there is room for it; return whether there was."""
        if self.room() < amount:
            return False
        self.take(amount)
        return True

    def allowance(self) -> tuple[float, float]:
        """Return what is left here and in the store, and the seconds until all of it is."""
        left = self.room()
        return left + self.elsewhere, self.reset_s()

    def take(self, amount: float) -> None:
        """Take an amount, even if there is no room for it."""
        self.left -= amount
        self.spent += amount
        self.used_at = self._owner.monotonic()
        self._owner.note_use(self)

    def give(self, amount: float, _since: float = 0.0) -> None:
        """Give back what was taken."""
        lapsed = min(self.lapsing, amount)
        self.lapsing -= lapsed
        self.total -= lapsed
        self.left += amount - lapsed
        self.spent -= amount

    def change(self, limit: Limit) -> None:
        """Follow another limit for the same period; what is beyond it goes back to the store."""
        if limit == self.limit:
            return
        self.room()
        self.elsewhere = max(0.0, self.elsewhere + limit.capacity - self.limit.capacity)
        self.limit, self.empty_until = limit, 0.0
        if self.share is not None:
            self.share = min(self.share, self.elsewhere)
        if self.ends:
            self.drop(self.spent + self.left - limit.amount)
        else:
            self.left = min(self.left, limit.capacity)
        self._owner.ask_about(self)

    def wait_s(self, amount: float) -> float:
        """Return the seconds until there may be room for an amount; 0 if the store may have it."""
        left, owner = self.room(), self._owner
        if left >= amount:
            return 0.0
        if owner.is_up:
            now = owner.monotonic()
            return max(0.0, owner.quiet_until - now, self.refused_until(now) - now)
        rate = self.limit.rate
        return max(_LEAST_WAIT_S, (amount - left) * owner.replicas / rate) if rate else _AWAY_S

    def refused_until(self, now: float) -> float:
        """Return until when the store has nothing, as far as it has told lately; else 0."""
        return self.empty_until if now - self.at < REFUSAL_S else 0.0

    def reset_s(self) -> float:
        """Return the seconds until the window ends, or until the bucket is full."""
        if self.ends:
            return max(0.0, self.ends - self._owner.utc())
        return max(0.0, self.limit.capacity - self.left - self.elsewhere) / self.limit.rate

    def used(self) -> float:
        """Return what this gateway has spent in the window."""
        self.room()
        return max(0.0, self.spent - self.held)

    def is_unused(self) -> bool:
        """Return whether nothing of it was used for long."""
        idle = self._owner.monotonic() - self.used_at > 10 * _IDLE_S
        return idle and not self.ends and not self.held

    def adopt(self, used: float, held: float) -> None:
        """Continue with the counts of a budget without a store, which the store gets."""
        self.held, self.was_alone = held, True
        self.spent = self.total = used + held

    def low(self) -> float:
        """Return the amount below which it asks for more."""
        return self.wanted() / 2

    def wanted(self) -> float:
        """Return how much it wants to hold."""
        limit, replicas = self.limit, self._owner.replicas
        if limit.is_rate:
            ahead = min(limit.capacity, max(1.0, limit.rate * _AHEAD_S))
        else:
            ahead = max(0.0, self.elsewhere) / (_PARTS * replicas)
        if limit.unit == "calls":
            ahead = float(math.floor(ahead)) if self.elsewhere >= replicas else 0.0
        return max(ahead, 0.0)


class LeaseRequest(NamedTuple):
    """What the store is asked about one budget.

    Attributes:
        key: The key of the budget.
        limit: The limit of the budget.
        ends: When the window ends; 0 for rates.
        mine: Everything granted to this gateway in the window, less what it returned.
        returned: What it returns now.
        spent: What it has spent of the window.
        need: What calls need.
        want: What it asks for, the need included.
        is_known: Whether the store has told about the budget before.
        share: What this gateway may spend while the store is away; below 0 if it wants no share.
        was_alone: Whether a bucket was filled without the store.
    """

    key: Key
    limit: Limit
    ends: float
    mine: float
    returned: float
    spent: float
    need: float
    want: float
    is_known: bool
    share: float
    was_alone: bool


class LeaseReply(NamedTuple):
    """What the store says about one budget.

    Attributes:
        granted: More for this gateway.
        left: What the store has left; below 0 where gateways have more than there is.
        utc: The time of the store, in seconds since 1970.
        replicas: How many gateways ask it.
        wait_s: The seconds until it has some again, where it granted less than was needed.
        is_short: Whether another gateway lacks what this one may hold.
        share: What this gateway may spend of the window while the store is away.
    """

    granted: float
    left: float
    utc: float
    replicas: int
    wait_s: float
    is_short: bool
    share: float = 0.0


class PoolLeases:
    """All pools of a gateway.

    Args:
        replicas: How many gateways there are while the store has told nothing.
        clocks: The clocks of this machine.

    Attributes:
        is_up: Whether the store replies.
        quiet_until: Until when nothing is taken from the store, on the monotonic clock.
        lapses_at: When leases of windows lapse unless the store replies, on the monotonic clock.
    """

    def __init__(self, replicas: int = 1, clocks: Clocks = REAL_CLOCKS) -> None:
        self.replicas = max(1, replicas)
        self.is_up = True
        self._clocks = clocks
        self._offset_s = 0.0
        self.quiet_until = 0.0
        self.lapses_at = clocks.monotonic() + TERM_S
        self._low: dict[Key, Pool] = {}
        self._pools: dict[Key, Pool] = {}
        self._keys: dict[int, Key] = {}

    def utc(self) -> float:
        """Return the time of the store."""
        return self._clocks.utc() + self._offset_s

    def monotonic(self) -> float:
        """Return the monotonic time of this machine."""
        return self._clocks.monotonic()

    @property
    def lapse_at(self) -> float:
        """When what processes hold lapses, on the monotonic clock; 0 for never.

        Once leases have lapsed without the store, all that they hold is of shares.
        """
        return self.lapses_at if self.is_up or not self.has_lapsed() else 0.0

    def has_lapsed(self) -> bool:
        """Return whether the store may have taken back what it has granted."""
        return self._clocks.monotonic() >= self.lapses_at

    def lapse(self) -> None:
        """Let leases lapse for which it is time, before the store is asked again."""
        if self.has_lapsed():
            for pool in self._pools.values():
                pool.room()

    def renew(self, asked_at: float) -> None:
        """Note that the store has replied to a question of a time on the monotonic clock."""
        self.lapses_at = asked_at + TERM_S

    def open(self, key: Key, limit: Limit) -> Pool:
        """Return a new pool."""
        pool = self._pools[key] = Pool(limit, self)
        self._keys[id(pool)] = key
        self._low[key] = pool
        return pool

    def close(self, key: Key) -> None:
        """Forget a pool."""
        pool = self._pools.pop(key, None)
        self._low.pop(key, None)
        if pool is not None:
            self._keys.pop(id(pool), None)

    def note_use(self, pool: Pool) -> None:
        """Note that a pool was used, so that it asks for more in time."""
        if pool.left < pool.low() or not self.is_up:
            self.ask_about(pool)

    def ask_about(self, pool: Pool) -> None:
        """Let a pool ask."""
        key = self._keys.get(id(pool))
        if key is not None:
            self._low[key] = pool

    def need(self, key: Key, amount: float) -> None:
        """Note that calls need more of a pool than it has."""
        pool, now = self._pools.get(key), self.monotonic()
        if pool is not None and pool.refused_until(now) <= now:
            pool.needs = max(pool.needs, amount)
            pool.used_at = now
            self._low[key] = pool

    @property
    def has_questions(self) -> bool:
        """Whether a pool wants something."""
        return bool(self._low)

    def questions(self) -> list[LeaseRequest]:
        """Return what to ask the store now; each pool is asked for once."""
        low, self._low = self._low, {}
        return [self._question(key, pool, 0.0) for key, pool in low.items()]

    def returns(self, *, everything: bool = False) -> list[LeaseRequest]:
        """Return what goes back to the store: leases that nobody has used for a while.

        Args:
            everything: Return all leases and shares, because this gateway ends.
        """
        now = self.monotonic()
        found = []
        for key, pool in self._pools.items():
            if everything:
                pool.used_at = now - _IN_USE_S
            left, idle = pool.room(), now - pool.used_at > _IDLE_S
            if (idle and left > TOLERANCE) or (everything and pool.share is not None):
                found.append(self._question(key, pool, max(0.0, left)))
        return found

    def _question(self, key: Key, pool: Pool, returned: float) -> LeaseRequest:
        pool.room()
        now = self.monotonic()
        if returned:
            pool.left -= returned
        need, pool.needs = pool.needs, 0.0
        missing = max(0.0, need - max(0.0, pool.left))
        want = max(missing, pool.wanted() - pool.left)
        is_unused = now - pool.used_at >= _IN_USE_S
        if returned or is_unused or now < self.quiet_until:
            missing = want = 0.0
        if is_unused:
            pool.share = None
        mine = pool.total
        pool.total -= returned
        return LeaseRequest(
            key=key,
            limit=pool.limit,
            ends=pool.ends,
            mine=mine,
            returned=returned,
            spent=max(0.0, pool.spent - pool.held),
            need=missing,
            want=want,
            is_known=pool.is_known,
            share=-1.0 if is_unused else pool.share or 0.0,
            was_alone=pool.was_alone,
        )

    def hear(self, utc: float, replicas: int) -> None:
        """Note the time of the store, and how many gateways ask it."""
        self._offset_s = utc - self._clocks.utc()
        self.replicas = max(1, replicas)

    def receive(self, question: LeaseRequest, answer: LeaseReply) -> None:
        """Add what the store granted."""
        self.hear(answer.utc, answer.replicas)
        pool = self._pools.get(question.key)
        if pool is None:
            return
        pool.room()
        if pool.ends != question.ends:
            return
        pool.left += answer.granted
        pool.total += answer.granted
        pool.elsewhere = max(0.0, answer.left)
        if answer.left < -TOLERANCE:
            pool.drop(-answer.left)
            self._low[question.key] = pool
        pool.is_known = True
        pool.was_alone = False
        if question.share >= 0:
            pool.share = answer.share
            if question.share - answer.share > _SHARE_STEP * pool.limit.amount:
                self._low[question.key] = pool  # until it is told, the store keeps the larger one
        pool.at = self.monotonic()
        is_partial = answer.granted + TOLERANCE < question.need
        wait_s = max(_LEAST_WAIT_S, answer.wait_s)
        pool.empty_until = self.monotonic() + wait_s if is_partial else 0.0
        if answer.is_short and not is_partial:
            self._low[question.key] = pool
            pool.used_at = min(pool.used_at, self.monotonic() - 2 * _IDLE_S)

    def fail(self, questions: Iterable[LeaseRequest]) -> None:
        """Let pools that asked in vain ask again; what they returned is still theirs."""
        for question in questions:
            pool = self._pools.get(question.key)
            if pool is None:
                continue
            pool.needs = max(pool.needs, question.need)
            self._low[question.key] = pool
            if pool.ends == question.ends:
                pool.left += question.returned
                pool.total += question.returned

    def go_on_alone(self) -> None:
        """Note that the store is away: this gateway spends its part of each budget."""
        self.is_up = False
        for pool in self._pools.values():
            pool.empty_until = 0.0
            pool.room()

    def go_on_alone_with(self, pool: Pool) -> None:
        """Grant a pool the part of this gateway."""
        limit = pool.limit
        if pool.ends:
            if not pool.is_shared_out:
                self._spend_share(pool)
            return
        now, most = self.monotonic(), max(1.0, limit.capacity / self.replicas)
        is_new = not pool.is_known and not pool.was_alone
        more = most if is_new else (now - pool.at) * limit.rate / self.replicas
        pool.left += max(0.0, min(most - pool.left, more))
        pool.was_alone = True
        pool.at = now

    def _spend_share(self, pool: Pool) -> None:
        """Let this gateway spend its share of a window."""
        share, pool.share = pool.share, None
        if share is None:
            share = pool.elsewhere / self.replicas
            share = float(math.floor(share)) if pool.limit.unit == "calls" else share
        pool.left += share
        pool.total += share
        pool.shared = share
        pool.elsewhere -= share
        pool.is_shared_out = True

    def ask_again(self) -> None:
        """Let every pool ask: the store may be back, and may have lost its data."""
        self._low.update(self._pools)

    def refresh(self) -> None:
        """Let the pools in use ask, and those that are not: they give a share back, or renew."""
        now = self.monotonic()
        self._low.update(
            {
                key: pool
                for key, pool in self._pools.items()
                if now - pool.used_at < _IN_USE_S
                or pool.share is not None
                or (pool.held > 0 and pool.ends and now - pool.at > _RENEW_S)
            }
        )

    def come_back(self) -> None:
        """Note that the store replies again, and take nothing until all gateways have told it.

        They have spent while it was away.
        """
        self.is_up = True
        self.quiet_until = self.monotonic() + _QUIET_S
        for pool in self._pools.values():
            pool.is_shared_out = False
            pool.shared = 0.0

    def __iter__(self) -> Iterator[tuple[Key, Pool]]:
        """Iterate over all pools with their keys."""
        yield from self._pools.items()
