"""One bounded first-in, first-out limiter: so many units at a time, and a short queue for the rest.

Requests in flight, bytes in memory, inferences of a route and instances of a model are all limited
by it.  What a unit is, and what a refusal says, its users know.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Hashable
from typing import Any, Final
from weakref import WeakValueDictionary

_IN_SHARE, _IN_QUEUE, _GRANTED, _GONE = range(4)
_EXPIRED: Final = object()


class LimiterFull(Exception):  # a state, which every user words as its own error
    """As many callers wait as may."""


class Share:
    """What one client holds of a limiter.

    Attributes:
        used: Units that it holds, or that its callers in the limiter's queue will hold.
        waiting: Callers that the client's own share makes wait.
        queued: All of its callers that wait.
    """

    __slots__ = ("__weakref__", "queued", "used", "waiting")

    def __init__(self) -> None:
        self.used = 0
        self.queued = 0
        self.waiting: deque[Waiter] = deque()


class Waiter:
    """A caller that waits.

    Attributes:
        size: Units that it asks for.
        share: Of its client; None for a caller without one.
        held: Units that it holds already, which count in its share.
        want: What it wants, where units differ.
    """

    __slots__ = ("future", "held", "share", "size", "state", "timer", "want")

    def __init__(
        self, future: asyncio.Future[Any], size: int, share: Share | None, held: int, want: object
    ) -> None:
        self.future = future
        self.size = size
        self.share = share
        self.held = held
        self.want = want
        self.state = _GONE
        self.timer: asyncio.TimerHandle | None = None

    @property
    def blocked_by_share(self) -> bool:
        """Whether it waits for its client's share, and not for the limit."""
        return self.state == _IN_SHARE


class Limiter:
    """Limits units in use.

    Callers that have to wait are served in the order they came.  A caller whose client has used its
    share waits for that client alone: it holds up nobody else.

    Args:
        limit: Units in use at a time.
        queue: Callers that may wait.
        share: Units that one client may hold; None for as many as there are.  A caller whose client
            holds nothing beside it may hold more.

    Attributes:
        limit: As given.
        share_limit: As given.
        used: Units in use.
        queued: Callers that wait.
        waiting: Those of them that wait for the limit, and not for their client's share.
    """

    def __init__(self, limit: int, *, queue: int = sys.maxsize, share: int | None = None) -> None:
        self.limit = limit
        self.share_limit = limit if share is None else share
        self._queue = queue
        self._share_queue = queue if share is None else max(1, queue * share // max(1, limit))
        self.used = 0
        self.queued = 0
        self.waiting: deque[Waiter] = deque()
        self._shares: WeakValueDictionary[Hashable, Share] = WeakValueDictionary()

    def share(self, client: Hashable) -> Share:
        """Return the share of a client, which all its connections have in common."""
        found = self._shares.get(client)
        if found is None:
            found = self._shares[client] = Share()
        return found

    def try_acquire(
        self, size: int = 1, share: Share | None = None, *, held: int = 0, skip_queue: bool = False
    ) -> bool:
        """Take *size* units if nobody waits for them; return whether they were taken.

        Args:
            size: Units.
            share: Of the client.
            held: Units of the client's that the caller holds already.
            skip_queue: Take them also when others wait.
        """
        used = self.used + size
        if used > self.limit or (self.waiting and not skip_queue):
            return False
        if share is not None:
            if (share.waiting and not skip_queue) or not self._fits(share, size, held):
                return False
            share.used += size
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
        """Take *size* units, and wait for them where need be; return what `_grant` gives.

        Args:
            size: Units.
            share: Of the client.
            held: Units of the client's that the caller holds already.
            timeout_s: Longest wait; None for no limit.
            want: What the caller wants, where units differ.

        Raises:
            LimiterFull: As many wait as may.
            TimeoutError: The units did not become free in time.
        """
        if want is None and self.try_acquire(size, share, held=held):
            return None
        if self.queued >= self._queue or (share is not None and share.queued >= self._share_queue):
            raise LimiterFull
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), size, share, held, want)
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
        if found is _EXPIRED:
            raise TimeoutError
        return found

    def release(self, size: int = 1, share: Share | None = None) -> None:
        """Give units back; who waits longest is served first."""
        self.used -= size
        if share is not None:
            share.used -= size
            if share.waiting:
                self._advance(share)
        if self.waiting:
            self._grant()

    # -- the queue

    def _fits(self, share: Share, size: int, held: int) -> bool:
        """Return whether a client may hold *size* units more."""
        return share.used + size <= self.share_limit or share.used <= held

    def _enqueue(self, waiter: Waiter) -> None:
        share = waiter.share
        self.queued += 1
        if share is None:
            waiter.state = _IN_QUEUE
            self.waiting.append(waiter)
        else:
            share.queued += 1
            waiter.state = _IN_SHARE
            share.waiting.append(waiter)
            self._advance(share)
        self._grant()

    def _advance(self, share: Share) -> None:
        """Let callers that waited for their client's share wait for the limit."""
        while share.waiting:
            waiter = share.waiting[0]
            if not self._fits(share, waiter.size, waiter.held):
                return
            share.waiting.popleft()
            share.used += waiter.size
            waiter.state = _IN_QUEUE
            self.waiting.append(waiter)

    def _grant(self) -> None:
        """Serve those who wait, as far as there are units."""
        while self.waiting and self.used + self.waiting[0].size <= self.limit:
            self._serve(self.waiting[0])

    def _serve(self, waiter: Waiter, found: object = None) -> None:
        """Give a caller its units, or pass over one that has left."""
        if waiter.future.done():
            self._withdraw(waiter)
            return
        self.used += waiter.size
        self._leave(waiter)
        waiter.state = _GRANTED
        waiter.future.set_result(found)

    def _leave(self, waiter: Waiter) -> None:
        """Take a caller out of its queue; what its share counts for it stays."""
        share = waiter.share
        if waiter.state == _IN_SHARE and share is not None:
            share.waiting.remove(waiter)
        else:
            self.waiting.remove(waiter)
        self.queued -= 1
        if share is not None:
            share.queued -= 1

    def _withdraw(self, waiter: Waiter) -> None:
        """Forget a caller that waits no more; harmless the second time."""
        state, share = waiter.state, waiter.share
        if state == _GONE:
            return
        if state == _GRANTED:  # it was served, and left in the same moment
            waiter.state = _GONE
            self._return(waiter)
            return
        self._leave(waiter)
        waiter.state = _GONE
        if share is not None:
            if state == _IN_QUEUE:
                share.used -= waiter.size
            self._advance(share)
        self._grant()

    def _return(self, waiter: Waiter) -> None:
        """Take back what a caller was given that had left."""
        self.release(waiter.size, waiter.share)

    def _expire(self, waiter: Waiter) -> None:
        """Let a caller know that its time is over, unless it was served."""
        if not waiter.future.done():
            self._withdraw(waiter)
            waiter.future.set_result(_EXPIRED)
