"""MemoryBudget: the bytes of requests and responses that a process holds, and who waits.

A request waits for memory until its deadline.  Messages on their way end for it if they make no
progress, or if their client has more than its share.

A large body is received into one buffer of its size, once the memory budget has room for it. A
false length reserves no more than the window of a stream. A buffer of up to 4 MiB comes from the
heap of glibc, which keeps it (`processes/process`). A request of 602 KB then causes no page faults,
instead of about 150. The price is memory: up to a quarter of the budget stays allocated. When
nothing is in flight, a check every 30 s returns free memory to the system. When more than an eighth
of the budget is in use, memory is scarce. Large buffers are then mapped one by one, and leave no
gaps in the heap. Clients that use little of the budget do not wait for those that use much
(`MemoryBudget`).

Shares count only while others wait (`concurrency/limiter.py`). A client above its share gets free
units, but not at once: a few in each turn of the event loop, and only while nobody within a share
waits. So a burst of 1,000 calls of one address neither fails nor keeps the loop from the calls of
others. Memory, requests in flight, and the queues of routes and upstreams work like this. A route's
`share` alone is strict.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from gateway.concurrency.limiter import Limiter
from gateway.concurrency.waiters import Share, Waiter

_SHARES: Final = 4
"""The divisor of the share of one client."""

_SCARCE: Final = 8
"""The divisor of the part of the budget above which memory is scarce."""

STEP_BYTES: Final = 256 * 1024
"""The first reservation for a body of unknown length, or while memory is scarce."""

_LARGE_STEP_BYTES: Final = 1024 * 1024

_SMALL: Final = 64
"""A client that uses no more than this part of the budget uses little."""

CALL_BYTES: Final = 16 * 1024
"""What a request in flight counts beside its bytes, at most."""

_FEWEST_CALLS: Final = 256
"""A small budget has room for so many requests in flight."""

_RESPONSES_PATIENCE_S: Final = 0.2
"""If no response that waits got memory for so long, one is refused."""

_PATIENCE_S: Final = 1.0
"""For so long callers wait for memory before messages on their way are ended for them."""

_SETTLE_S: Final = 0.002
_LOOK_S: Final = 0.1


class Watched(Protocol):
    """A reservation whose message is on its way; see `Reservation`."""

    size_bytes: int
    share: Share | None
    stall_timeout_s: float

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds there was no progress."""

    def give_way(self) -> None:
        """Release everything, and end the message."""


def no_pool(_size: int) -> None:
    """Return None: there is no pool."""


class MemoryBudget(Limiter):
    """Limits the bytes of requests and responses in memory, over all listeners of the process.

    Bytes count when they have arrived, or may arrive without a further check; see `Reservation`.
    While others wait, bodies and responses without progress are ended.

    A quarter above the limit is for those who must not wait for requests: responses, which release
    requests, and clients that use little. The last quarter of it is for the latter alone, so that
    clients that take all they can get do not have others refused.

    Args:
        limit_bytes: For requests.
        share_bytes: For the requests of one client; None for a quarter.
        on_scarce: Called with True when more than an eighth of the memory is in use or allocated,
            and with False when it is less than half of that again.

    Attributes:
        call_bytes: What a request in flight counts beside its bytes: its task, and what the layers
            keep of it until the reply.
        pool: Returns memory for a large request that a server on this machine can read; None where
            there is none. It counts as any other.
        buffers: The buffers that are allocated, whether in use or not.
        responses: The responses that arrive, and wait for memory before all requests.
        messages: The messages on their way, which end for those that wait.
    """

    def __init__(
        self,
        limit_bytes: int,
        share_bytes: int | None = None,
        on_scarce: Callable[[bool], object] = bool,
    ) -> None:
        super().__init__(
            limit_bytes, share=limit_bytes // _SHARES if share_bytes is None else share_bytes
        )
        self.call_bytes = max(1, min(CALL_BYTES, limit_bytes // _FEWEST_CALLS))
        self._margin = limit_bytes // _SHARES
        self._small_bytes = limit_bytes // _SMALL
        self.pool: Callable[[int], memoryview | None] = no_pool
        self._settled_at = 0.0  # until then the memory of a caller that has left serves others
        self.buffers = Buffers(self, on_scarce)
        self.responses = ArrivingResponses(self)
        self.messages = MessagesOnTheirWay(self)

    def try_acquire_response(self, size: int, share: Share | None) -> bool:
        """Acquire *size* bytes for a response; return False if they are not available."""
        margin = self._margin
        kept = 0 if share is None or self._is_small(size, share) else margin // _SHARES
        return _take(self, size, share, self.limit + margin - kept)

    def try_acquire_rest(self, size: int, share: Share | None) -> bool:
        """Acquire *size* bytes beside a message that has arrived, which may exceed the limit.

        Messages that have all memory would wait for each other. Half of what is above the limit is
        left for responses.
        """
        return _take(self, size, share, self.limit + self._margin // 2)

    async def acquire(
        self,
        size: int = 1,
        share: Share | None = None,
        *,
        held: int = 0,
        timeout_s: float | None = None,
        want: object = None,
    ) -> Any:
        """As `Limiter.acquire`; a client that uses little does not wait for others."""
        if (
            share is not None
            and not share.waiting
            and self._is_small(size, share)
            and _take(self, size, share, self.limit + self._margin)
        ):
            return None
        return await super().acquire(size, share, held=held, timeout_s=timeout_s, want=want)

    def _is_small(self, size: int, share: Share) -> bool:
        """Return whether a client uses little, *size* bytes more included."""
        return share.used + size <= self._small_bytes

    def _grant(self) -> None:
        self.responses.serve()
        super()._grant()

    def _enqueue(self, waiter: Waiter) -> None:
        super()._enqueue(waiter)
        if not waiter.future.done() and self.next_waiter() is not None:
            self.messages.make_room(waiter)

    def _expire(self, waiter: Waiter) -> None:
        self.messages.evict_stalled(waiter)
        if waiter.future.done():
            return
        if waiter.held:
            # The released bytes serve the next waiter: if all expired at once, none would be.
            loop = waiter.future.get_loop()
            if loop.time() < self._settled_at:
                waiter.timer = loop.call_later(_SETTLE_S, self._expire, waiter)
                return
            self._settled_at = loop.time() + _SETTLE_S
        self.refuse(waiter)

    def refuse(self, waiter: Waiter) -> None:
        """Tell a caller that its timeout has expired, unless it was served."""
        super()._expire(waiter)


class Buffers:
    """The buffers that are allocated for messages, which may make memory scarce.

    Args:
        budget: The memory budget.
        on_scarce: Called with True when memory becomes scarce, and with False afterwards.

    Attributes:
        is_scarce: What *on_scarce* was called with.
        step_bytes: The first reservation for a body of known length, if it is not shorter.
    """

    def __init__(self, budget: Limiter, on_scarce: Callable[[bool], object]) -> None:
        self._budget = budget
        self._on_scarce = on_scarce
        self._allocated = 0
        self._large_step_bytes = max(STEP_BYTES, min(_LARGE_STEP_BYTES, budget.limit // _SMALL))
        self.step_bytes = self._large_step_bytes
        self.is_scarce = False

    def allocated(self, size: int) -> None:
        """Note that a buffer of *size* bytes is allocated next, or freed if it is negative."""
        self._allocated += size
        most = max(self._budget.used, self._allocated)
        is_scarce = most * (2 * _SCARCE if self.is_scarce else _SCARCE) > self._budget.limit
        if is_scarce != self.is_scarce:
            self.is_scarce = is_scarce
            self.step_bytes = STEP_BYTES if is_scarce else self._large_step_bytes
            self._on_scarce(is_scarce)


class ArrivingResponses:
    """Responses that arrive and wait for memory, before all requests.

    Each may hold what another one needs: its request, and a part of it that has arrived.

    Args:
        budget: The memory budget.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._queue: deque[Waiter] = deque()
        self._served_at = 0.0  # when memory was acquired for one that had waited

    def try_acquire(self, size: int, share: Share | None) -> bool:
        """Acquire *size* bytes for a response that arrives; return False if they are not free."""
        return not self._queue and _take(self._budget, size, share, self._budget.limit)

    async def acquire(
        self, size: int, share: Share | None, held: int, timeout_s: float | None
    ) -> None:
        """Acquire *size* bytes for a response that arrives, before all requests that wait.

        A response that has *held* bytes already comes before those that have none.

        Raises:
            TimeoutError: They did not become free in time, or because of other such responses.
        """
        if self.try_acquire(size, share):
            return
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), size, share, held, None)
        waiter.since = loop.time()
        if held:  # one that has begun comes before others
            self._queue.appendleft(waiter)
        else:
            self._queue.append(waiter)
        self._budget.queued += 1
        self._budget.messages.make_room(waiter)
        if timeout_s is not None and not waiter.future.done():
            waiter.timer = loop.call_later(timeout_s, self._end, waiter, False)
        try:
            found = await waiter.future
        except BaseException:
            if waiter in self._queue:
                self._end(waiter, False)
            elif not waiter.future.cancelled() and waiter.future.result():
                self._budget.release(size, share)
            raise
        finally:
            if waiter.timer is not None:
                waiter.timer.cancel()
        if not found:
            raise TimeoutError

    def serve(self) -> None:
        """Serve the responses that wait, as far as memory is free."""
        while self._queue:
            waiter = self._queue[0]
            if not waiter.future.done():  # otherwise it has left
                if not _take(self._budget, waiter.size, waiter.share, self._budget.limit):
                    return
                self._served_at = waiter.future.get_loop().time()
            self._end(waiter, True)

    def check(self, now: float) -> None:
        """Make room for the first response; refuse the newest one if none was served for long."""
        if self._queue:
            self._budget.messages.evict_stalled(self._queue[0])
        if self._queue:
            since = max(self._served_at, self._queue[0].since)
            if now - since >= _RESPONSES_PATIENCE_S:
                self._served_at = now
                self._end(self._queue[-1], False)

    def _end(self, waiter: Waiter, found: bool) -> None:
        """End the wait of a response; *found* if its memory is acquired."""
        self._queue.remove(waiter)
        self._budget.queued -= 1
        if not waiter.future.done():
            waiter.future.set_result(found)


class MessagesOnTheirWay:
    """Reservations whose messages arrive or are sent, and which end for those that wait.

    Args:
        budget: The memory budget.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._watched: dict[Watched, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, reservation: Watched) -> None:
        """Check the progress of *reservation*, and end it if it has none while others wait."""
        self._watched[reservation] = None
        self._look_soon()

    def unwatch(self, reservation: Watched) -> None:
        """Stop checking *reservation*, if it is checked."""
        self._watched.pop(reservation, None)

    def make_room(self, waiter: Waiter) -> None:
        """End reservations without progress for *waiter*, now and as long as it waits."""
        self.evict_stalled(waiter)
        self._look_soon()

    def evict_stalled(self, waiter: Waiter) -> None:
        """End reservations without progress, the longest first, until *waiter* is served."""
        now = waiter.future.get_loop().time()
        own = waiter.share if waiter.is_blocked_by_share else None
        stalled = [
            each
            for each in self._watched
            if each.size_bytes
            and (own is None or each.share is own)
            and each.stalled_s(now) >= each.stall_timeout_s
        ]
        stalled.sort(key=lambda each: each.stalled_s(now), reverse=True)
        for reservation in stalled:
            reservation.give_way()
            if waiter.future.done():
                return

    def _look_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._check)

    def _check(self) -> None:
        """Update the progress of all reservations, and help callers that wait."""
        self._timer = None
        budget = self._budget
        if not self._watched and not budget.queued:
            return
        now = asyncio.get_running_loop().time()
        for reservation in self._watched:
            reservation.stalled_s(now)
        budget.responses.check(now)
        waiter = budget.next_waiter()
        if waiter is not None:
            self.evict_stalled(waiter)
            if not waiter.future.done() and now - waiter.since >= _PATIENCE_S:
                self._unblock(waiter)
        self._look_soon()

    def _unblock(self, waiter: Waiter) -> None:
        """Serve *waiter*, which has waited for long, if only messages on their way are in its way.

        A client above its share gives way to one within its own. If callers that wait hold all the
        memory that is needed, they wait for each other: the newest one is refused.
        """
        budget, own = self._budget, waiter.share
        if own is not None and not waiter.is_blocked_by_share:
            for each in self._watched:  # the one that has been on its way for longest comes first
                share = each.share
                if share is not own and share is not None and share.used > budget.share_limit:
                    each.give_way()
                    return
        holders = [each for each in reversed(budget.waiters()) if each.held]
        if budget.limit - sum(each.held for each in holders) < waiter.size:
            budget.refuse(max(holders, key=lambda each: each.since, default=waiter))


def _take(budget: Limiter, size: int, share: Share | None, most: int) -> bool:
    """Take *size* bytes, unless more than *most* would be in use; return success."""
    if budget.used + size > most:
        return False
    if share is not None:
        share.used += size
    budget.used += size
    return True


UNLIMITED: Final = MemoryBudget(sys.maxsize)
"""A budget without a limit."""
