"""Who waits for units of a limiter, and in which order: clients with shares, callers, queues."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Any, Final

IN_SHARE, IN_QUEUE, GRANTED, GONE = range(4)
"""The states of a caller: it waits for the share of its client, waits for the limit, has its units,
or has left."""

EXPIRED: Final = object()
"""The result of a caller whose timeout has expired."""


class Share:
    """The part of a limiter that one client uses.

    Attributes:
        used: Units in use, including those of callers that wait for the limit.
        waiting: Callers that wait for the client's own share.
        queued: All callers of the client that wait.
    """

    __slots__ = ("__weakref__", "queued", "used", "waiting")

    def __init__(self) -> None:
        self.used = 0
        self.queued = 0
        self.waiting: deque[Waiter] = deque()


class Waiter:
    """A caller that waits.

    Attributes:
        size: The units that it needs.
        share: The share of its client; None for a caller without one.
        held: Units that it has already, which count in its share.
        want: A requirement for the unit, where units differ.
        group: The group whose turn it uses, where groups take turns.
        priority: Callers of a higher priority are served first.
        since: When it began to wait, on the clock of the loop.
        expired: The result when its timeout has expired.
    """

    __slots__ = (
        "expired",
        "future",
        "group",
        "held",
        "priority",
        "share",
        "since",
        "size",
        "state",
        "timer",
        "want",
    )

    def __init__(
        self, future: asyncio.Future[Any], size: int, share: Share | None, held: int, want: object
    ) -> None:
        self.future = future
        self.size = size
        self.share = share
        self.held = held
        self.want = want
        self.group: Hashable = None
        self.priority = 0
        self.since = 0.0
        self.expired = EXPIRED
        self.state = GONE
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_blocked_by_share(self) -> bool:
        """Whether it waits for its client's share, and not for the limit."""
        return self.state == IN_SHARE


class TurnQueue:
    """Callers that wait, in an order in which their groups take turns.

    It has the methods of a deque that `Limiter` uses.
    """

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[Waiter]] = {}  # the group whose turn it is comes first

    def __iter__(self) -> Iterator[Waiter]:
        return chain.from_iterable(self._groups.values())

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __getitem__(self, _first: int) -> Waiter:
        """Return the caller that is served next."""
        return next(iter(self._groups.values()))[0]

    def append(self, waiter: Waiter) -> None:
        """Add a caller after those of its group."""
        self._groups.setdefault(waiter.group, deque()).append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Remove a caller; if it was the next, its group becomes the last."""
        first = next(iter(self._groups))
        group = self._groups[waiter.group]
        was_next = waiter.group == first and group[0] is waiter
        group.remove(waiter)
        if was_next or not group:
            del self._groups[waiter.group]
            if group:
                self._groups[waiter.group] = group

    def displaceable(self, group: Hashable) -> Waiter | None:
        """Return the newest caller of the largest group, which a caller of *group* may displace.

        The result is None if that group would not stay larger.
        """
        longest = max(self._groups.values(), key=len)
        if len(longest) <= len(self._groups.get(group, ())) + 1:
            return None
        return longest[-1]

    def newest(self) -> Waiter:
        """Return the newest caller of the largest group."""
        return max(self._groups.values(), key=len)[-1]


class PriorityQueue:
    """Callers that wait: those of a higher priority first, among equals groups take turns.

    It has the methods of a deque that `Limiter` uses.
    """

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: dict[int, TurnQueue] = {}  # none of them is empty

    def __iter__(self) -> Iterator[Waiter]:
        return chain.from_iterable(self._levels.values())

    def __bool__(self) -> bool:
        return bool(self._levels)

    def __getitem__(self, _first: int) -> Waiter:
        """Return the caller that is served next."""
        return self._levels[max(self._levels)][0]

    def append(self, waiter: Waiter) -> None:
        """Add a caller after those of its priority and group."""
        self._levels.setdefault(waiter.priority, TurnQueue()).append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Remove a caller."""
        level = self._levels[waiter.priority]
        level.remove(waiter)
        if not level:
            del self._levels[waiter.priority]

    def displaceable(self, group: Hashable, priority: int) -> Waiter | None:
        """Return the caller that one of *group* and *priority* may displace; None for none.

        It is the newest of the largest group of the lowest priority, if that is lower. Otherwise it
        is as in `TurnQueue`.
        """
        lowest = min(self._levels, default=priority)
        if lowest < priority:
            return self._levels[lowest].newest()
        level = self._levels.get(priority)
        return None if level is None else level.displaceable(group)
