"""Admission to memory: the bytes of requests and responses that a process holds, and who waits.

A request waits for memory until its deadline.  Messages on their way end for it if they make no
progress, or if their client has more than its share.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Any, Final

from gateway.api.access import Peer
from gateway.concurrency.limiter import Limiter, LimiterFull, Share, Waiter
from gateway.ir.errors import DeadlineExceeded, Overloaded
from gateway.transports.callers import Caller, IdentifiedCaller

_SHARES: Final = 4
"""The divisor of the share of one client."""

_SCARCE: Final = 8
"""The divisor of the part of the budget above which memory is scarce."""

_SMALL: Final = 64
"""A client that uses no more than this part of the budget uses little."""

CALL_BYTES: Final = 16 * 1024
"""What a request in flight counts beside its bytes, at most."""

_FEWEST_CALLS: Final = 256
"""A small budget has room for so many requests in flight."""

FIRST_STEP_BYTES: Final = 256 * 1024
"""The first reservation for a body."""

RESPONSE_UNCOUNTED_BYTES: Final = 16 * 1024
"""Smaller responses are not counted unless the socket's send buffer is full."""


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
        self._moving: dict[Reservation, None] = {}
        self._is_settling = False
        self._progress_timer: asyncio.TimerHandle | None = None

    @property
    def limit_bytes(self) -> int:
        """The limit for requests."""
        return self.limit

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
        if self.used + size > self.limit + margin - kept:
            return False
        if share is not None:
            share.used += size
        self.used += size
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
        """As `Limiter.acquire`; a client that uses little does not wait for others."""
        if (
            share is not None
            and not share.waiting
            and self._is_small(size, share)
            and self.used + size <= self.limit + self._margin
        ):
            share.used += size
            self.used += size
            return None
        return await super().acquire(size, share, held=held, timeout_s=timeout_s, want=want)

    def try_acquire_arrival(self, size: int, share: Share | None) -> bool:
        """Acquire *size* bytes for a response that arrives; return False if they are not free."""
        if self._responses or self.used + size > self.limit:
            return False
        self.used += size
        if share is not None:
            share.used += size
        return True

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
                self._on_scarce(True)
        elif self.is_scarce:
            self.is_scarce = False
            self._on_scarce(False)

    def watch(self, reservation: Reservation) -> None:
        """Check the progress of *reservation*, and end it if it has none while others wait."""
        self._moving[reservation] = None
        self._look_soon()

    def unwatch(self, reservation: Reservation) -> None:
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
        waiter = self._next_waiter()
        if waiter is not None:
            self._evict_stalled(waiter)
            if not waiter.future.done() and now - waiter.since >= _PATIENCE_S:
                self._unblock(waiter)
        self._look_soon()

    def _next_waiter(self) -> Waiter | None:
        """Return the caller that is served next; None if nobody waits, or units will be lent."""
        if self._is_lending:
            return None
        if self.waiting:
            return self.waiting[0]
        share = next(iter(self._borrowers), None)
        return None if share is None else share.waiting[0]

    def _enqueue(self, waiter: Waiter) -> None:
        self._held_waiting += waiter.held
        super()._enqueue(waiter)
        if not waiter.future.done() and not self._is_lending:
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
            callers = [*self.waiting, *chain(*(share.waiting for share in self._borrowers))]
            holders = [each for each in reversed(callers) if each.held]
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


_RESPONSES_PATIENCE_S: Final = 0.2
"""If no response that waits got memory for so long, one is refused."""

_PATIENCE_S: Final = 1.0
"""For so long callers wait for memory before messages on their way are ended for them."""

_SETTLE_S: Final = 0.002
_LOOK_S: Final = 0.1
BODY_PATIENCE_S: Final = 0.25
"""A body without progress for so long is ended while requests wait for memory."""

RESPONSE_PATIENCE_S: Final = 1.0
"""A response without progress for so long is ended: its client may work on what it has read."""


class Reservation:
    """The bytes of the budget that one request or response holds.

    Args:
        budget: The memory budget.
        wait_s: How long to wait for memory; None for no limit.
        share: The share of the client.
        deadline: Until when to wait, as for `time.monotonic`; None for no limit.

    Attributes:
        size_bytes: How many bytes it holds.
        share: The share of the client.
        stall_timeout_s: How long it may be without progress while others wait.
        waited_s: How long it has waited for memory.
    """

    __slots__ = (
        "_budget",
        "_deadline",
        "_give_way",
        "_is_waiting",
        "_moved",
        "_position",
        "_since",
        "_wait_s",
        "share",
        "size_bytes",
        "stall_timeout_s",
        "waited_s",
    )

    def __init__(
        self,
        budget: MemoryBudget,
        wait_s: float | None,
        share: Share | None = None,
        deadline: float | None = None,
    ) -> None:
        self._budget = budget
        self._wait_s = wait_s
        self._deadline = deadline
        self.share = share
        self.size_bytes = 0
        self._give_way: Callable[[Overloaded], None] | None = None
        self._position: Callable[[], int] | None = None
        self._moved = 0
        self._since = 0.0
        self._is_waiting = False
        self.stall_timeout_s = BODY_PATIENCE_S
        self.waited_s = 0.0

    def try_grow(self, size: int) -> bool:
        """Reserve *size* bytes more, unless others wait or too few are free; return success."""
        found = self._budget.try_acquire(size, self.share, held=self.size_bytes)
        self.size_bytes += size * found
        return found

    def try_grow_response(self, size: int) -> bool:
        """Reserve *size* bytes more for a response, unless too few are free; return success."""
        found = self._budget.try_acquire_response(size, self.share)
        self.size_bytes += size * found
        return found

    async def grow(self, size: int) -> None:
        """Reserve *size* bytes more.

        Raises:
            Overloaded: The bytes are not available, and did not become so in time.
            DeadlineExceeded: They did not become so before the deadline.
        """
        if self.try_grow(size):
            return
        budget, wait_s, deadline = self._budget, self._wait_s, self._deadline
        began = monotonic()
        left_s = math.inf if deadline is None else max(0.0, deadline - began)
        own_s = math.inf if wait_s is None else wait_s
        least_s = min(own_s, left_s)
        self._is_waiting = True
        try:
            await self._acquire(size, None if least_s == math.inf else least_s)
        except (LimiterFull, TimeoutError):
            keys, used = "in_flight_bytes", budget.used
            if self.share is not None and self.share.used + size > budget.share_limit:
                keys += ", in_flight_bytes_per_address"  # others come first
            text = f"{used} of {budget.limit} bytes are in use, and {size} more are needed ({keys})"
            if left_s < own_s and monotonic() >= began + left_s:
                text = f"deadline exceeded while waiting for memory: {text}"
                raise DeadlineExceeded(text, limit="in_flight_bytes") from None
            text = f"no memory for a message: {text}"
            raise Overloaded(text, limit="in_flight_bytes") from None
        finally:
            self._is_waiting = False
            self.waited_s += monotonic() - began
        self.size_bytes += size

    async def _acquire(self, size: int, timeout_s: float | None) -> None:
        await self._budget.acquire(size, self.share, held=self.size_bytes, timeout_s=timeout_s)

    def step(self, arrived: int, total: int | None) -> int:
        """Return how many more bytes to reserve when *arrived* bytes have arrived; 0 for none.

        A reservation doubles when three quarters of it are used.

        Args:
            arrived: The bytes that have arrived.
            total: The announced length; None if there is none.
        """
        size = self.size_bytes
        if 4 * arrived < 3 * size:
            return 0
        ahead = max(FIRST_STEP_BYTES, 2 * size)
        return (ahead if total is None else min(total, ahead)) - size

    def watch_progress(
        self,
        position: Callable[[], int],
        give_way: Callable[[Overloaded], None],
        stall_timeout_s: float = BODY_PATIENCE_S,
    ) -> None:
        """End this reservation if others wait and *position* stays the same for a while.

        Args:
            position: Returns how many bytes have been received or sent.
            give_way: Ends the request or response.
            stall_timeout_s: How long *position* may stay the same.
        """
        self.stall_timeout_s = stall_timeout_s
        self._position = position
        self._give_way = give_way
        self._moved = -1
        self._budget.watch(self)

    def stop_watching(self) -> None:
        """Stop checking the progress: the message is complete."""
        if self._position is not None:
            self._position = self._give_way = None
            self._budget.unwatch(self)

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds there was no progress, as of the last check."""
        if self._position is None or self._is_waiting:
            return 0.0
        moved = self._position()
        if moved != self._moved:
            self._moved, self._since = moved, now
        return now - self._since

    def give_way(self) -> None:
        """Release everything and end the request or response, which has no progress."""
        give_way = self._give_way
        self.close()
        if give_way is not None:
            give_way(
                Overloaded(
                    "the client stopped sending or receiving while others waited for memory "
                    "(in_flight_bytes)",
                    limit="in_flight_bytes",
                )
            )

    def new_for_same_client(self) -> Reservation:
        """Return an empty reservation of the same client."""
        return Reservation(self._budget, self._wait_s, self.share, self._deadline)

    def allocated(self, size: int) -> None:
        """As `MemoryBudget.allocated`."""
        self._budget.allocated(size)

    def detach(self, size: int) -> int:
        """Return *size*, bytes of this reservation that the caller must release from now on."""
        self.size_bytes -= size
        return size

    def release(self, size: int) -> None:
        """Release *size* bytes."""
        if size:
            self.size_bytes -= size
            self._budget.release(size, self.share)

    def close(self) -> None:
        """Release everything. A second call does nothing."""
        self.stop_watching()
        size, self.size_bytes = self.size_bytes, 0
        if size:
            self._budget.release(size, self.share)


class ResponseReservation(Reservation):
    """The bytes of a response that an upstream sends: they come before those of requests."""

    __slots__ = ()

    def try_grow(self, size: int) -> bool:
        """Reserve *size* bytes more, although requests wait, if they are free; return success."""
        found = self._budget.try_acquire_arrival(size, self.share)
        self.size_bytes += size * found
        return found

    async def _acquire(self, size: int, timeout_s: float | None) -> None:
        await self._budget.acquire_response(size, self.share, self.size_bytes, timeout_s)


def no_memory(size: int) -> Overloaded:
    """Return the error for a response of *size* bytes that is not sent."""
    return Overloaded(
        f"no memory for a response of {size} bytes (in_flight_bytes)", limit="in_flight_bytes"
    )


UNLIMITED: Final = MemoryBudget(sys.maxsize)
"""A budget without a limit."""


@dataclass(frozen=True, slots=True)
class ClientShares:
    """The shares of one client, which is an address, or a connection without an address.

    Attributes:
        slots: Of the requests in flight of a listener.
        memory: The client's share of the memory budget.
        caller: The address and the agent of the client.
    """

    slots: Share | None
    memory: Share | None
    caller: Caller


NO_CLIENT_SHARES: Final = ClientShares(None, None, Caller(""))
"""The shares of no client: only the limits of all clients apply."""


def client_shares(
    address: str, slots: Limiter, budget: MemoryBudget, peer: Peer | None = None
) -> ClientShares:
    """Return the shares of the clients at *address*; "" means a connection without an address.

    Args:
        address: Their address.
        slots: The slots of the listener.
        budget: The memory budget of the process.
        peer: The far end of the connection, if its requests name their clients.
    """
    caller = Caller(address) if peer is None else IdentifiedCaller(peer)
    if not address:
        return ClientShares(Share(), Share(), caller)
    return ClientShares(slots.share(address), budget.share(address), caller)
