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
        is_scarce: What *on_scarce* was called with.
        call_bytes: What a request in flight counts beside its bytes: its task, and what the layers
            keep of it until the reply.
        step_bytes: The first reservation for a body of known length, if it is not shorter.
        pool: Returns memory for a large request that a server on this machine can read; None where
            there is none. It counts as any other.
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
        self.is_scarce = False
        self.call_bytes = max(1, min(CALL_BYTES, limit_bytes // _FEWEST_CALLS))
        self._on_scarce = on_scarce
        self._allocated = 0
        self._held_waiting = 0  # by callers that wait for more
        self._margin = limit_bytes // _SHARES
        self._small_bytes = limit_bytes // _SMALL
        self._responses: deque[Waiter] = deque()
        self._response_at = 0.0  # when memory was acquired for one that had waited
        self._moving: dict[Watched, None] = {}
        self._is_settling = False
        self._large_step_bytes = max(STEP_BYTES, min(_LARGE_STEP_BYTES, self._small_bytes))
        self.step_bytes = self._large_step_bytes
        self.pool: Callable[[int], memoryview | None] = no_pool
        self._progress_timer: asyncio.TimerHandle | None = None

    @property
    def used_bytes(self) -> int:
        """The bytes in use."""
        return self.used

    @property
    def calls(self) -> int:
        """How many requests may be in flight, if they have no bytes."""
        return self.limit // self.call_bytes

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

    def try_acquire_arrival(self, size: int, share: Share | None) -> bool:
        """Acquire *size* bytes for a response that arrives; return False if they are not free."""
        return not self._responses and _take(self, size, share, self.limit)

    async def acquire_response(
        self, size: int, share: Share | None, held: int, timeout_s: float | None
    ) -> None:
        """Acquire *size* bytes for a response that arrives, before all requests that wait.

        A response that has *held* bytes already comes before those that have none.

        Raises:
            TimeoutError: They did not become free in time, or because of other such responses.
        """
        if self.try_acquire_arrival(size, share):
            return
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), size, share, held, None)
        waiter.since = loop.time()
        if held:  # one that has begun comes before others
            self._responses.appendleft(waiter)
        else:
            self._responses.append(waiter)
        self.queued += 1
        self._evict_stalled(waiter)
        self._look_soon()
        if timeout_s is not None and not waiter.future.done():
            waiter.timer = loop.call_later(timeout_s, self._end_response, waiter, False)
        try:
            found = await waiter.future
        except BaseException:
            if waiter in self._responses:
                self._end_response(waiter, False)
            elif not waiter.future.cancelled() and waiter.future.result():
                self.release(size, share)
            raise
        finally:
            if waiter.timer is not None:
                waiter.timer.cancel()
        if not found:
            raise TimeoutError

    def _end_response(self, waiter: Waiter, found: bool) -> None:
        """End the wait of a response; *found* if its memory is acquired."""
        self._responses.remove(waiter)
        self.queued -= 1
        if not waiter.future.done():
            waiter.future.set_result(found)

    def _grant(self) -> None:
        while self._responses:
            waiter = self._responses[0]
            if not waiter.future.done():  # otherwise it has left
                if self.used + waiter.size > self.limit:
                    break
                self.used += waiter.size
                if waiter.share is not None:
                    waiter.share.used += waiter.size
                self._response_at = waiter.future.get_loop().time()
            self._end_response(waiter, True)
        super()._grant()

    def _is_small(self, size: int, share: Share) -> bool:
        """Return whether a client uses little, *size* bytes more included."""
        return share.used + size <= self._small_bytes

    def allocated(self, size: int) -> None:
        """Note that a buffer of *size* bytes is allocated next, or freed if it is negative."""
        self._allocated += size
        most = max(self.used, self._allocated)
        if most * (2 * _SCARCE if self.is_scarce else _SCARCE) > self.limit:
            if not self.is_scarce:
                self.is_scarce = True
                self.step_bytes = STEP_BYTES
                self._on_scarce(True)
        elif self.is_scarce:
            self.is_scarce = False
            self.step_bytes = self._large_step_bytes
            self._on_scarce(False)

    def watch(self, reservation: Watched) -> None:
        """Check the progress of *reservation*, and end it if it has none while others wait."""
        self._moving[reservation] = None
        self._look_soon()

    def unwatch(self, reservation: Watched) -> None:
        """Stop checking *reservation*, if it is checked."""
        self._moving.pop(reservation, None)

    def _look_soon(self) -> None:
        if self._progress_timer is None:
            self._progress_timer = asyncio.get_running_loop().call_later(_LOOK_S, self._check)

    def _check(self) -> None:
        """Update the progress of all reservations, and help callers that wait."""
        self._progress_timer = None
        if not self._moving and not self.queued:
            return
        now = asyncio.get_running_loop().time()
        for reservation in self._moving:
            reservation.stalled_s(now)
        if self._responses:
            self._evict_stalled(self._responses[0])
            self._unblock_responses(now)
        waiter = self.next_waiter()
        if waiter is not None:
            self._evict_stalled(waiter)
            if not waiter.future.done() and now - waiter.since >= _PATIENCE_S:
                self._unblock(waiter)
        self._look_soon()

    def _enqueue(self, waiter: Waiter) -> None:
        self._held_waiting += waiter.held
        super()._enqueue(waiter)
        if not waiter.future.done() and self.next_waiter() is not None:
            self._evict_stalled(waiter)
            self._look_soon()

    def _leave(self, waiter: Waiter) -> None:
        super()._leave(waiter)
        self._held_waiting -= waiter.held

    def _expire(self, waiter: Waiter) -> None:
        self._evict_stalled(waiter)
        if waiter.future.done():
            return
        loop = waiter.future.get_loop()
        if waiter.held:
            # The released bytes serve the next waiter: if all expired at once, none would be.
            if self._is_settling:
                waiter.timer = loop.call_later(_SETTLE_S, self._expire, waiter)
                return
            self._is_settling = True
            loop.call_later(_SETTLE_S, self._end_settling)
        super()._expire(waiter)

    def _end_settling(self) -> None:
        self._is_settling = False

    def _evict_stalled(self, waiter: Waiter) -> None:
        """End reservations without progress, the longest first, until *waiter* is served."""
        now = waiter.future.get_loop().time()
        own = waiter.share if waiter.is_blocked_by_share else None
        stalled = [
            each
            for each in self._moving
            if each.size_bytes
            and (own is None or each.share is own)
            and each.stalled_s(now) >= each.stall_timeout_s
        ]
        stalled.sort(key=lambda each: each.stalled_s(now), reverse=True)
        for reservation in stalled:
            reservation.give_way()
            if waiter.future.done():
                return

    def _unblock(self, waiter: Waiter) -> None:
        """Serve *waiter*, which has waited for long, if only messages on their way are in its way.

        A client above its share gives way to one within its own. If callers that wait hold all the
        memory that is needed, they wait for each other: the newest one is refused.
        """
        own = waiter.share
        if own is not None and not waiter.is_blocked_by_share:
            for each in self._moving:  # the one that has been on its way for longest comes first
                share = each.share
                if share is not own and share is not None and share.used > self.share_limit:
                    each.give_way()
                    return
        if self.limit - self._held_waiting < waiter.size:
            holders = [each for each in reversed(self.waiters()) if each.held]
            super()._expire(max(holders, key=lambda each: each.since, default=waiter))

    def _unblock_responses(self, now: float) -> None:
        """Refuse the newest response that waits, if none got memory for a while.

        Each may hold what another one needs: its request, and a part of it that has arrived.
        """
        if self._responses:
            since = max(self._response_at, self._responses[0].since)
            if now - since >= _RESPONSES_PATIENCE_S:
                self._response_at = now
                self._end_response(self._responses[-1], False)


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
