"""Limiter: a bounded first-in, first-out limiter of units in use, with a short queue.

It limits requests in flight, bytes in memory, inferences of a route and instances of a model.  Its
users define a unit, and the error for a full limiter.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from itertools import chain
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from gateway.accelerator import accelerated
from gateway.concurrency.waiters import (
    EXPIRED,
    GONE,
    GRANTED,
    IN_QUEUE,
    IN_SHARE,
    PriorityQueue,
    Share,
    Waiter,
)

_LATE: Final = object()
_DISPLACED: Final = object()


QUEUE_TIMEOUT_US: Final[ContextVar[int | None]] = ContextVar("queue_timeout_us", default=None)
"""Longest wait in the queue of an upstream, as the request that this task handles wants it."""

# On the path of every call: to look up a method of an imported name takes 400 instructions.
queue_timeout_us: Final[Callable[[], int | None]] = QUEUE_TIMEOUT_US.get
"""Returns that wait."""

WAITED_S: Final[ContextVar[float]] = ContextVar("waited_s", default=0.0)
"""How long the request that this task handles has waited in queues before its route.

The route counts it in its timeout, and sets it back to 0.
"""

waited_s: Final[Callable[[], float]] = WAITED_S.get
"""Returns that time."""

_SHARES: Final = 4
"""What the share of a client is a part of, where there is no limit of all."""

LENT_AT_ONCE: Final = 8
"""How many callers above their share are served in one turn of the loop, so that those of other
clients, whose requests arrive meanwhile, are served between them."""


class LimiterFull(Exception):  # users turn it into their own errors
    """The queue is full."""


class QueueLate(TimeoutError):  # as `LimiterFull`
    """The queue was late, and the caller waited longer than its target."""


class ControlledDelay(NamedTuple):
    """When a queue is late: it has not been empty for an interval.

    A caller that has waited longer than the target is then dropped, the oldest first: its client
    may have given up, and those behind it need not wait as long.

    Attributes:
        target_s: How long a caller may wait in a queue that is late.
        interval_s: How long a queue may have callers before it is late.

    Sources: Nichols and Jacobson, "Controlling Queue Delay"; Maurer, "Fail at Scale".
    """

    target_s: float
    interval_s: float


CLIENT_MEMORY: Final[ContextVar[Share | None]] = ContextVar("client_memory", default=None)
"""The memory share of the client whose request this task handles; includes upstream responses."""


class Limiter:
    """Limits units in use.

    Waiting callers are served in the order of their arrival.  A caller whose client has used up its
    share does not block others: it waits behind them.  It is served while units are free and
    nobody within its share waits, a few in each turn of the loop.  Such clients take turns.

    Args:
        limit: Units in use at a time.
        queue: How many callers may wait.  In a full queue, a caller displaces the newest one of the
            client that has the most of those above their share.
        share: Units of one client that no other client delays; None for all.
        is_strict: Whether a client never has more than its share, and never more than such a part
            of the queue.  A caller whose client uses nothing else may exceed it.
        group: Returns the group of the current caller.  Groups then take turns, and in a full queue
            a caller of a small group displaces the newest one of the largest.  It is called only
            for callers that wait.  None serves all callers in the order of their arrival.
        priority: Returns the priority of the current caller, where there are groups.
        delay: When callers are dropped because the queue is late; None for never.

    Attributes:
        limit: Units that may be in use at a time.
        share_limit: Units of one client that no other client delays.
        used: Units in use.
        queued: Callers that wait.
        waiting: Callers that wait for the limit, and not for their client's share.
    """

    # The compiled methods find these at their offsets; a subclass has a dictionary for its own.
    __slots__ = (
        "__weakref__",
        "_borrowers",
        "_busy_since",
        "_delay",
        "_group",
        "_is_lending",
        "_is_strict",
        "_priority",
        "_queue",
        "_share_queue",
        "_shares",
        "limit",
        "queued",
        "share_limit",
        "used",
        "waiting",
    )

    def __init__(
        self,
        limit: int,
        *,
        queue: int = sys.maxsize,
        share: int | None = None,
        is_strict: bool = False,
        group: Callable[[], Hashable] | None = None,
        priority: Callable[[], int] | None = None,
        delay: ControlledDelay | None = None,
    ) -> None:
        self.limit = limit
        self.share_limit = limit if share is None else share
        self._queue = queue
        self._share_queue = sys.maxsize
        if share is not None and is_strict:
            whole = _SHARES * share if limit == sys.maxsize else max(1, limit)
            self._share_queue = max(1, queue * share // whole)
        self._is_strict = is_strict
        # Clients with callers above their share, in the order of their turns.
        self._borrowers: dict[Share, None] = {}
        self._is_lending = False
        self.used = 0
        self.queued = 0
        self._group = group
        self._priority = priority
        self._delay = delay
        self._busy_since = 0.0
        self.waiting: deque[Waiter] | PriorityQueue = deque() if group is None else PriorityQueue()
        self._shares: WeakValueDictionary[Hashable, Share] = WeakValueDictionary()

    def share(self, client: Hashable) -> Share:
        """Return the share of a client, which all its connections have in common."""
        found = self._shares.get(client)
        if found is None:
            found = self._shares[client] = Share()
        return found

    @accelerated
    def try_acquire(
        self, size: int = 1, share: Share | None = None, held: int = 0, skip_queue: bool = False
    ) -> bool:
        """Acquire *size* units, unless others wait or too few are free; return success.

        It fails for a client that would exceed its share: `acquire` may serve it later.

        Args:
            size: Units.
            share: The share of the client.
            held: Units that the caller has already.
            skip_queue: Whether to acquire them even if others wait.
        """
        used = self.used + size
        if used > self.limit or (self.queued and self.waiting and not skip_queue):
            return False
        if share is not None:
            of_client = share.used + size
            if (of_client > self.share_limit and share.used > held) or (
                share.waiting and not skip_queue
            ):
                return False
            share.used = of_client
        self.used = used
        return True

    async def acquire(
        self,
        size: int = 1,
        share: Share | None = None,
        *,
        held: int = 0,
        timeout_s: float | None = None,
        want: object = None,
    ) -> Any:
        """Acquire *size* units, waiting if necessary; return the result of `_grant`.

        Args:
            size: Units.
            share: The share of the client.
            held: Units that the caller has already.
            timeout_s: How long to wait; None for no limit.
            want: A requirement for the unit, where units differ.

        Raises:
            LimiterFull: The queue is full.
            QueueLate: The queue is late.
            TimeoutError: The units did not become free in time.
        """
        if want is None and self.try_acquire(size, share, held=held):
            return None
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), size, share, held, want)
        waiter.since = loop.time()
        timeout_s = self._admit(waiter, timeout_s)
        self._enqueue(waiter)
        if timeout_s is not None and not waiter.future.done():
            waiter.timer = loop.call_later(timeout_s, self._expire, waiter)
        try:
            found = await waiter.future
        except BaseException:
            self._withdraw(waiter)
            raise
        finally:
            if waiter.timer is not None:
                waiter.timer.cancel()
        if found is EXPIRED:
            raise TimeoutError
        if found is _LATE:
            raise QueueLate
        if found is _DISPLACED:
            raise LimiterFull
        return found

    @accelerated
    def release(self, size: int = 1, share: Share | None = None) -> None:
        """Release units, which serves the next callers."""
        self.used -= size
        if share is not None:
            share.used -= size
            if share.waiting:
                self._advance(share)
        if self.queued:
            self._grant()

    def resize(self, limit: int) -> None:
        """Change the limit; what is in use above it stays in use."""
        self.limit = self.share_limit = limit
        self._grant()

    def drop_waiting(self) -> None:
        """Drop all callers that wait for the limit: each raises LimiterFull."""
        for waiter in list(self.waiting):
            self._forget(waiter)
            if not waiter.future.done():
                waiter.future.set_result(_DISPLACED)

    def next_waiter(self) -> Waiter | None:
        """Return the caller that is served next; None if nobody waits, or units will be lent."""
        if self._is_lending:
            return None
        if self.waiting:
            return self.waiting[0]
        share = next(iter(self._borrowers), None)
        return None if share is None else share.waiting[0]

    def waiters(self) -> list[Waiter]:
        """Return the callers that wait for the limit, and then those that units may be lent to."""
        return [*self.waiting, *chain(*(share.waiting for share in self._borrowers))]

    # -- the queue

    def _admit(self, waiter: Waiter, timeout_s: float | None) -> float | None:
        """Let a caller join the queue, or raise LimiterFull; return how long it may wait."""
        if self._group is not None:
            waiter.group = self._group()
        if self._priority is not None:
            waiter.priority = self._priority()
        share, delay = waiter.share, self._delay
        if share is not None and share.queued >= self._share_queue:
            raise LimiterFull
        # Those that units will be lent to in the next turns of the loop need no place in the queue.
        lent = 0 if self._is_strict else max(0, self.limit - self.used)
        if self.queued - lent >= self._queue and not self._displace(waiter):
            raise LimiterFull
        if delay is None or not self._is_late(delay, waiter.since):
            return timeout_s
        if timeout_s is not None and timeout_s <= delay.target_s:
            return timeout_s
        waiter.expired = _LATE
        return delay.target_s

    def _displace(self, waiter: Waiter) -> bool:
        """Make room in a full queue for a caller; return whether there is some."""
        queue = self.waiting
        found = None
        if self._borrowers:
            busiest = max(self._borrowers, key=lambda share: share.queued)
            if busiest.queued > (0 if waiter.share is None else waiter.share.queued) + 1:
                found = busiest.waiting[-1]
        elif isinstance(queue, PriorityQueue):
            found = queue.displaceable(waiter.group, waiter.priority)
        if found is None:
            return False
        self._withdraw(found)
        if not found.future.done():
            found.future.set_result(_DISPLACED)
        return True

    def _fits(self, share: Share, size: int, held: int) -> bool:
        """Return whether a client may hold *size* units more."""
        return share.used + size <= self.share_limit or share.used <= held

    def _enqueue(self, waiter: Waiter) -> None:
        share = waiter.share
        if not self.queued:
            self._busy_since = waiter.since
        self.queued += 1
        if share is None:
            waiter.state = IN_QUEUE
            self.waiting.append(waiter)
        else:
            share.queued += 1
            waiter.state = IN_SHARE
            share.waiting.append(waiter)
            if not self._is_strict:
                self._borrowers[share] = None
            self._advance(share)
        self._grant()

    def _advance(self, share: Share) -> None:
        """Move callers from the queue of their client's share to the queue of the limit."""
        while share.waiting:
            waiter = share.waiting[0]
            if not self._fits(share, waiter.size, waiter.held):
                return
            share.waiting.popleft()
            share.used += waiter.size
            waiter.state = IN_QUEUE
            self.waiting.append(waiter)
        self._borrowers.pop(share, None)

    def _grant(self) -> None:
        """Serve the callers that wait, as far as units are free."""
        if self._delay is not None:
            self._drop_late(self._delay)
        while self.waiting and self.used + self.waiting[0].size <= self.limit:
            self._serve(self.waiting[0])
        if self._borrowers and not self._is_lending:
            self._lend_soon()

    def _lend_soon(self) -> None:
        """Lend units in the next turn of the loop, if they are free."""
        waiter = self._next_borrower()
        if waiter is not None:
            self._is_lending = True
            waiter.future.get_loop().call_soon(self._lend)

    def _next_borrower(self) -> Waiter | None:
        """Return the caller above its client's share that is served next; None for none now."""
        share = next(iter(self._borrowers), None)
        if share is None or self.waiting or self.used + share.waiting[0].size > self.limit:
            return None
        return share.waiting[0]

    def _lend(self) -> None:
        """Serve some callers above their shares, while nobody waits who is within its own."""
        self._is_lending = False
        for _ in range(LENT_AT_ONCE):
            waiter = self._next_borrower()
            if waiter is None:
                break
            share = waiter.share
            assert share is not None  # noqa: S101  # it is in the queue of its share
            del self._borrowers[share]
            if len(share.waiting) > 1:
                self._borrowers[share] = None
            self._serve(waiter)
        self._grant()

    def _is_late(self, delay: ControlledDelay, now: float) -> bool:
        return self.queued > 0 and now - self._busy_since >= delay.interval_s

    def _drop_late(self, delay: ControlledDelay) -> None:
        """Drop the callers whose turn it is, and who have waited for too long; keep the last."""
        now = asyncio.get_running_loop().time()
        while self.queued > 1 and self.waiting and self._is_late(delay, now):
            waiter = self.waiting[0]
            if self.used + waiter.size > self.limit or now - waiter.since <= delay.target_s:
                return
            self._forget(waiter)
            if not waiter.future.done():
                waiter.future.set_result(_LATE)

    def _serve(self, waiter: Waiter, found: object = None) -> None:
        """Grant a caller its units, or remove one that has left. The caller goes on with the next.

        Thousands may leave in one moment, so this does not serve the next one itself.
        """
        if waiter.future.done():
            self._forget(waiter)
            return
        self.used += waiter.size
        if waiter.state == IN_SHARE and waiter.share is not None:
            waiter.share.used += waiter.size
        self._leave(waiter)
        waiter.state = GRANTED
        waiter.future.set_result(found)

    def _leave(self, waiter: Waiter) -> None:
        """Take a caller out of its queue; what its share counts for it stays."""
        share = waiter.share
        if waiter.state == IN_SHARE and share is not None:
            share.waiting.remove(waiter)
        else:
            self.waiting.remove(waiter)
        self.queued -= 1
        if share is not None:
            share.queued -= 1

    def _withdraw(self, waiter: Waiter) -> None:
        """Forget a caller that no longer waits; harmless the second time."""
        if waiter.state == GONE:
            return
        if waiter.state == GRANTED:  # it was served, and left in the same moment
            waiter.state = GONE
            self._return(waiter)
            return
        self._forget(waiter)
        self._grant()

    def _forget(self, waiter: Waiter) -> None:
        """Take a caller that was not served out of its queue."""
        state, share = waiter.state, waiter.share
        self._leave(waiter)
        waiter.state = GONE
        if share is not None:
            if state == IN_QUEUE:
                share.used -= waiter.size
            self._advance(share)

    def _return(self, waiter: Waiter) -> None:
        """Take back what a caller was given that had left."""
        self.release(waiter.size, waiter.share)

    def _expire(self, waiter: Waiter) -> None:
        """Tell a caller that its timeout has expired, unless it was served."""
        if not waiter.future.done():
            self._withdraw(waiter)
            waiter.future.set_result(waiter.expired)
