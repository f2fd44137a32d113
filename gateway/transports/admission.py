"""Admission: limits of the bytes, requests and connections in flight, for all carriers.

Waits are short and queues are bounded.  Above the limit the client gets an error at once, which is
cheaper for both sides than a late response.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.concurrency.limiter import QUEUE_TIMEOUT_US, Limiter, LimiterFull, Share, Waiter
from gateway.ir.errors import Overloaded, QueueTimeout
from gateway.telemetry.call_path import queue_group, queue_priority
from gateway.transports.callers import Caller
from gateway.transports.net.sockets import descriptors_short, max_descriptors

if TYPE_CHECKING:
    from gateway.transports.contract import ClientLimits, ServerLimits


_SHARES: Final = 4
"""The divisor of the share of one client."""

_SCARCE: Final = 8
"""The divisor of the part of the budget above which memory is scarce."""

_SMALL: Final = 64
"""A client that uses no more than this part of the budget uses little."""

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
        self._on_scarce = on_scarce
        self._allocated = 0
        self._margin = limit_bytes // _SHARES
        self._small_bytes = limit_bytes // _SMALL
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

    def try_acquire_response(self, size: int, share: Share | None) -> bool:
        """Acquire *size* bytes for a response; return False if they are not available."""
        margin = self._margin
        kept = 0 if share is None or self._is_small(size, share) else margin // _SHARES
        if self.used + size > self.limit + margin - kept:
            return False
        if share is not None:
            if share.used and share.used + size > self.share_limit + margin:
                return False
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
        if self._progress_timer is None:
            self._progress_timer = asyncio.get_running_loop().call_later(
                _LOOK_S, self._update_progress
            )

    def unwatch(self, reservation: Reservation) -> None:
        """Stop checking *reservation*, if it is checked."""
        self._moving.pop(reservation, None)

    def _update_progress(self) -> None:
        """Update the progress of all reservations."""
        self._progress_timer = None
        if self._moving:
            loop = asyncio.get_running_loop()
            now = loop.time()
            for reservation in self._moving:
                reservation.still_s(now)
            self._progress_timer = loop.call_later(_LOOK_S, self._update_progress)

    def _enqueue(self, waiter: Waiter) -> None:
        super()._enqueue(waiter)
        if not waiter.future.done():
            self._relieve(waiter)

    def _expire(self, waiter: Waiter) -> None:
        self._relieve(waiter)
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

    def _relieve(self, waiter: Waiter) -> None:
        """End reservations without progress, the longest first, until *waiter* is served."""
        now = waiter.future.get_loop().time()
        own = waiter.share if waiter.is_blocked_by_share else None
        stalled = [
            each
            for each in self._moving
            if each.size_bytes
            and (own is None or each.share is own)
            and each.still_s(now) >= each.patience_s
        ]
        stalled.sort(key=lambda each: each.still_s(now), reverse=True)
        for reservation in stalled:
            reservation.give_way()
            if waiter.future.done():
                return


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
        wait_s: How long to wait for memory.
        share: The share of the client.

    Attributes:
        size_bytes: How many bytes it holds.
        share: The share of the client.
        patience_s: How long it may be without progress while others wait.
    """

    __slots__ = (
        "_budget",
        "_give_way",
        "_is_waiting",
        "_moved",
        "_position",
        "_since",
        "_wait_s",
        "patience_s",
        "share",
        "size_bytes",
    )

    def __init__(self, budget: MemoryBudget, wait_s: float, share: Share | None = None) -> None:
        self._budget = budget
        self._wait_s = wait_s
        self.share = share
        self.size_bytes = 0
        self._give_way: Callable[[Overloaded], None] | None = None
        self._position: Callable[[], int] | None = None
        self._moved = 0
        self._since = 0.0
        self._is_waiting = False
        self.patience_s = BODY_PATIENCE_S

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
        """
        budget = self._budget
        self._is_waiting = True
        try:
            await budget.acquire(size, self.share, held=self.size_bytes, timeout_s=self._wait_s)
        except TimeoutError:
            raise Overloaded(
                f"no memory for {size} more bytes of this request within {self._wait_s:g} s: "
                f"{budget.used} of {budget.limit} bytes are in use, at most {budget.share_limit} "
                "for one client (in_flight_bytes)",
                limit="in_flight_bytes",
            ) from None
        finally:
            self._is_waiting = False
        self.size_bytes += size

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

    def move_with(
        self,
        position: Callable[[], int],
        give_way: Callable[[Overloaded], None],
        patience_s: float = BODY_PATIENCE_S,
    ) -> None:
        """End this reservation if others wait and *position* stays the same for a while.

        Args:
            position: Returns how many bytes have been received or sent.
            give_way: Ends the request or response.
            patience_s: How long *position* may stay the same.
        """
        self.patience_s = patience_s
        self._position = position
        self._give_way = give_way
        self._moved = -1
        self._budget.watch(self)

    def settle(self) -> None:
        """Stop checking the progress: the message is complete."""
        if self._position is not None:
            self._position = self._give_way = None
            self._budget.unwatch(self)

    def still_s(self, now: float) -> float:
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

    def another(self) -> Reservation:
        """Return an empty reservation of the same client."""
        return Reservation(self._budget, self._wait_s, self.share)

    def allocated(self, size: int) -> None:
        """As `MemoryBudget.allocated`."""
        self._budget.allocated(size)

    def detach(self) -> int:
        """Return the number of bytes, which the caller must release from now on."""
        self.settle()
        size, self.size_bytes = self.size_bytes, 0
        return size

    def release(self, size: int) -> None:
        """Release *size* bytes."""
        if size:
            self.size_bytes -= size
            self._budget.release(size, self.share)

    def close(self) -> None:
        """Release everything. A second call does nothing."""
        self.settle()
        size, self.size_bytes = self.size_bytes, 0
        if size:
            self._budget.release(size, self.share)


def no_memory(size: int) -> Overloaded:
    """Return the error for a response of *size* bytes that is not sent."""
    return Overloaded(
        f"no memory for a response of {size} bytes (in_flight_bytes)", limit="in_flight_bytes"
    )


@dataclass(frozen=True, slots=True)
class ClientShares:
    """The shares of one client, which is an address, or a connection without an address.

    Attributes:
        slots: Of the requests in flight of a listener.
        memory: Of the memory budget.
        caller: The address and the agent of the client.
    """

    slots: Share | None
    memory: Share | None
    caller: Caller


NOBODY: Final = ClientShares(None, None, Caller(""))
"""The shares of no client: only the limits of all clients apply."""


def client_shares(address: str, slots: Limiter, budget: MemoryBudget) -> ClientShares:
    """Return the shares of the clients at *address*; "" means a connection without an address."""
    if not address:
        return ClientShares(Share(), Share(), Caller(""))
    return ClientShares(slots.share(address), budget.share(address), Caller(address))


def requests_per_client(limits: ServerLimits) -> int:
    """Return how many of a listener's requests in flight one client may have."""
    if limits.requests_per_address is not None:
        return limits.requests_per_address
    return -(-limits.requests_in_flight // _SHARES)


def request_slots(limits: ServerLimits) -> ConcurrencyLimiter:
    """Return the limiter of the requests in flight of a listener."""
    return ConcurrencyLimiter(
        "requests_in_flight",
        limits.requests_in_flight,
        limits.requests_queued,
        requests_per_client(limits),
    )


UNLIMITED: Final = MemoryBudget(sys.maxsize)
"""A budget without a limit."""

CLIENT_MEMORY: ContextVar[Share | None] = ContextVar("client_memory", default=None)
"""The memory share of the client whose request this task handles; includes upstream responses."""


class ConcurrencyLimiter(Limiter):
    """Limits requests in flight, with a bounded queue for more.

    Args:
        name: The YAML name of the limit, for errors.
        limit: How many requests may be in flight.
        queue: How many may wait.
        share: How many requests of one client may be in flight; None for no such limit.
        group: As in `Limiter`.
        priority: As in `Limiter`.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        queue: int,
        share: int | None = None,
        group: Callable[[], Hashable] | None = None,
        priority: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(limit, queue=queue, share=share, group=group, priority=priority)
        self._name = name

    async def wait(self, timeout_s: float | None, share: Share | None = None) -> None:
        """Acquire a slot, waiting at most *timeout_s* for one; None waits without a limit.

        Raises:
            QueueTimeout: The queue timeout of the request passed first.
            Overloaded: The queue is full, or no slot became free in time.
        """
        timeout_us = QUEUE_TIMEOUT_US.get()
        own = timeout_us is not None and (timeout_s is None or timeout_us / 1e6 < timeout_s)
        wait_s = timeout_us / 1e6 if timeout_us is not None and own else timeout_s
        try:
            await self.acquire(1, share, timeout_s=wait_s)
        except LimiterFull:
            raise self._overloaded(f"{self.queued} are queued") from None
        except TimeoutError:
            if timeout_us is not None and own:
                queue = f"a request in flight ({self._name})"
                raise QueueTimeout.after(timeout_us, queue, None) from None
            raise self._overloaded(f"none ended within {timeout_s} s") from None

    def _overloaded(self, why: str) -> Overloaded:
        own = "" if self.share_limit >= self.limit else f" ({self.share_limit} for one client)"
        return Overloaded(
            f"{self.used} requests are in flight, at most {self.limit}{own} are allowed, "
            f"and {why} ({self._name})",
            limit=self._name,
        )


def upstream_slots(name: str, limit: int, limits: ClientLimits) -> ConcurrencyLimiter:
    """Return the limiter of the requests in flight to one address of an upstream."""
    group = queue_group if limits.pending_by == "route" else None
    return ConcurrencyLimiter(name, limit, limits.pending, group=group, priority=queue_priority)


DESCRIPTORS: Final = "descriptors"
"""The name of the limit of file descriptors of the process."""


class ConnectionCount:
    """Counts the connections of one listener, in total and by client address.

    Args:
        limit: The limit in total; 0 for half of the descriptors that upstreams leave.
        limit_per_address: The limit for one address; 0 for *limit*, or for half of the total where
            *limit* is 0 too.
        upstream_connections: Largest number of connections to upstreams.
    """

    def __init__(self, limit: int, limit_per_address: int, upstream_connections: int = 0) -> None:
        descriptors = max_descriptors()
        remaining = max(descriptors - upstream_connections, descriptors // 2)
        self._limit = limit or remaining // 2
        self._limit_per_address = limit_per_address or limit or max(1, self._limit // 2)
        self._of: Counter[str] = Counter()
        self.total = 0

    def exceeded(self, address: str) -> str | None:
        """Return the YAML name of the limit that one more from *address* would exceed, or None."""
        if self.total >= self._limit:
            return "connections"
        if self._of[address] >= self._limit_per_address:
            return "connections_per_address"
        return None

    def enter(self, address: str) -> None:
        """Count a connection."""
        self.total += 1
        self._of[address] += 1

    def leave(self, address: str) -> None:
        """Remove a connection from the count."""
        self.total -= 1
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]


def client_address(transport: Any, unnamed: str = "") -> str:
    """Return the address that a connection counts for; *unnamed* if its client has none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else unnamed


def connection_refusal(
    count: ConnectionCount, transport: Any, address: str, *, reserve: bool = False
) -> Overloaded | None:
    """Return the error for a connection above a limit; None if there is room.

    Args:
        count: The connections of the listener.
        transport: The transport of the connection.
        address: The address that it counts for.
        reserve: Whether it may use the descriptors in reserve.
    """
    # First, because connections above the other limits stay open until they have their response.
    if not reserve and descriptors_short(transport.get_extra_info("socket")):
        limit: str | None = DESCRIPTORS
    else:
        limit = count.exceeded(address)
    if limit is None:
        return None
    return TooManyConnections(
        f"too many connections from {address or 'clients'} (limit {limit})", address, limit
    )


class TooManyConnections(Overloaded):
    """A connection exceeds a limit.

    Args:
        message: As for every `GatewayError`.
        address: The address of the client.
        limit: The name of the limit.
    """

    def __init__(self, message: str, address: str, limit: str) -> None:
        super().__init__(message, limit=limit)
        self.address = address
