"""Admission: how much may be in flight at once, in bytes, requests and connections.

A wait is short and queues are bounded: over them the caller is told to come back, which is cheaper
for both sides than an answer that comes too late. Nothing here knows a wire.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.concurrency.limiter import Limiter, LimiterFull, Share, Waiter
from gateway.ir.errors import Overloaded
from gateway.transports.net.sockets import descriptors_short, max_descriptors

if TYPE_CHECKING:
    from gateway.transports.contract import ServerLimits


_SHARES: Final = 4
"""One client has at most one part in so many of what all share."""

FIRST_STEP_BYTES: Final = 256 * 1024
"""What is reserved for a body of which little has come."""

RESPONSE_UNCOUNTED_BYTES: Final = 16 * 1024
"""Responses up to here are not counted while the kernel takes them at once."""


class MemoryBudget(Limiter):
    """Bytes in memory for requests and responses, counted over every listener of the process.

    What is counted has come, or may come without another look: see `Reservation`.  When others have
    to wait, bodies and responses that do not move give way to them.

    Args:
        limit_bytes: For requests; responses, which end what was begun, may exceed it by a quarter.
        share_bytes: For the requests of one client; None for a quarter.
    """

    def __init__(self, limit_bytes: int, share_bytes: int | None = None) -> None:
        super().__init__(
            limit_bytes, share=limit_bytes // _SHARES if share_bytes is None else share_bytes
        )
        self._moving: dict[Reservation, None] = {}
        self._settling = False
        self._looking: asyncio.TimerHandle | None = None

    @property
    def limit_bytes(self) -> int:
        """What requests may use."""
        return self.limit

    @property
    def used_bytes(self) -> int:
        """What is in use."""
        return self.used

    def try_acquire_response(self, size: int, share: Share | None) -> bool:
        """Take *size* bytes for a response, and return whether they were taken."""
        margin = self.limit // _SHARES
        if self.used + size > self.limit + margin:
            return False
        if share is not None:
            if share.used and share.used + size > self.share_limit + margin:
                return False
            share.used += size
        self.used += size
        return True

    def watch(self, reservation: Reservation) -> None:
        """Let *reservation* give way if it does not move."""
        self._moving[reservation] = None
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def unwatch(self, reservation: Reservation) -> None:
        """Let it be; harmless if it was not watched."""
        self._moving.pop(reservation, None)

    def _look(self) -> None:
        """Note what has moved since the last time."""
        self._looking = None
        if self._moving:
            loop = asyncio.get_running_loop()
            now = loop.time()
            for reservation in self._moving:
                reservation.still_s(now)
            self._looking = loop.call_later(_LOOK_S, self._look)

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
            # What it holds goes to the next. Were all told at once, none of them would be served.
            if self._settling:
                waiter.timer = loop.call_later(_SETTLE_S, self._expire, waiter)
                return
            self._settling = True
            loop.call_later(_SETTLE_S, self._settled)
        super()._expire(waiter)

    def _settled(self) -> None:
        self._settling = False

    def _relieve(self, waiter: Waiter) -> None:
        """End what has not moved for a while, stalest first, until *waiter* is served."""
        now = waiter.future.get_loop().time()
        own = waiter.share if waiter.blocked_by_share else None
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
"""A body that has not moved for so long gives way to requests that wait for memory."""

RESPONSE_PATIENCE_S: Final = 1.0
"""So does a response, after a second: its client may be at work with what it has read."""


class Reservation:
    """The bytes of the budget that one request or response holds.

    Args:
        budget: Of the process.
        wait_s: Longest wait for room.
        share: Of the client.

    Attributes:
        size_bytes: What it holds.
        share: Of the client.
        patience_s: How long it may stand still while others wait.
    """

    __slots__ = (
        "_budget",
        "_give_way",
        "_moved",
        "_position",
        "_since",
        "_wait_s",
        "_waits",
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
        self._waits = False
        self.patience_s = BODY_PATIENCE_S

    def try_grow(self, size: int) -> bool:
        """Hold *size* bytes more if there is room and nobody waits; return whether it was so."""
        found = self._budget.try_acquire(size, self.share, held=self.size_bytes)
        self.size_bytes += size * found
        return found

    def try_grow_response(self, size: int) -> bool:
        """Hold *size* bytes more for a response if there is room; return whether there was."""
        found = self._budget.try_acquire_response(size, self.share)
        self.size_bytes += size * found
        return found

    async def grow(self, size: int) -> None:
        """Hold *size* bytes more.

        Raises:
            Overloaded: The budget has no room for them, and got none in time.
        """
        budget = self._budget
        self._waits = True
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
            self._waits = False
        self.size_bytes += size

    def step(self, arrived: int, total: int | None) -> int:
        """Return how much more to hold when *arrived* bytes have come; 0 while there is enough.

        What is held doubles when three quarters of it are used.

        Args:
            arrived: Bytes that have come.
            total: Bytes that come in all, as announced; None where nothing was.
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
        """Give way to others when they wait and *position* stays the same for a while.

        Args:
            position: Bytes that have come, or gone.
            give_way: Ends whatever holds the bytes.
            patience_s: How long *position* may stay the same.
        """
        self.patience_s = patience_s
        self._position = position
        self._give_way = give_way
        self._moved = -1
        self._budget.watch(self)

    def settle(self) -> None:
        """Give way no more: all of it has come."""
        if self._position is not None:
            self._position = self._give_way = None
            self._budget.unwatch(self)

    def still_s(self, now: float) -> float:
        """Return for how long nothing has moved, as far as was looked."""
        if self._position is None or self._waits:
            return 0.0
        moved = self._position()
        if moved != self._moved:
            self._moved, self._since = moved, now
        return now - self._since

    def give_way(self) -> None:
        """Give everything back, because it does not move and others wait."""
        told = self._give_way
        self.close()
        if told is not None:
            told(
                Overloaded(
                    "the client stopped sending or receiving while others waited for memory "
                    "(in_flight_bytes)",
                    limit="in_flight_bytes",
                )
            )

    def another(self) -> Reservation:
        """Return an empty one of the same client."""
        return Reservation(self._budget, self._wait_s, self.share)

    def detach(self) -> int:
        """Return what it holds, which is the caller's to give back from now on."""
        self.settle()
        size, self.size_bytes = self.size_bytes, 0
        return size

    def release(self, size: int) -> None:
        """Give *size* bytes back."""
        if size:
            self.size_bytes -= size
            self._budget.release(size, self.share)

    def close(self) -> None:
        """Give everything back; harmless the second time."""
        self.settle()
        size, self.size_bytes = self.size_bytes, 0
        if size:
            self._budget.release(size, self.share)


def no_memory(size: int) -> Overloaded:
    """Return why a response of *size* bytes is not sent."""
    return Overloaded(
        f"no memory for a response of {size} bytes (in_flight_bytes)", limit="in_flight_bytes"
    )


class ClientShares(NamedTuple):
    """What one client, an address or else a connection, has of what all share.

    Attributes:
        slots: Of the requests in flight of a listener.
        memory: Of the byte budget.
    """

    slots: Share | None
    memory: Share | None


NOBODY: Final = ClientShares(None, None)
"""No client: only the limits of all hold."""


def client_shares(address: str, slots: Limiter, budget: MemoryBudget) -> ClientShares:
    """Return the shares of the clients at *address*; "" is a connection that has none."""
    if not address:
        return ClientShares(Share(), Share())
    return ClientShares(slots.share(address), budget.share(address))


def requests_per_client(limits: ServerLimits) -> int:
    """Return how many of a listener's requests in flight one client may have."""
    if limits.requests_per_address is not None:
        return limits.requests_per_address
    return -(-limits.requests_in_flight // _SHARES)


def request_slots(limits: ServerLimits) -> ConcurrencyLimiter:
    """Return what limits the requests in flight of a listener."""
    return ConcurrencyLimiter(
        "requests_in_flight",
        limits.requests_in_flight,
        limits.requests_queued,
        requests_per_client(limits),
    )


UNLIMITED: Final = MemoryBudget(sys.maxsize)
"""For what counts in no budget."""

CLIENT_MEMORY: ContextVar[Share | None] = ContextVar("client_memory", default=None)
"""The share of the client whose request this task answers: responses of upstreams count there."""


class ConcurrencyLimiter(Limiter):
    """Limits requests in flight, with a bounded queue for more.

    Args:
        name: Of the limit, as in YAML; also named in errors.
        limit: Requests at a time.
        queue: How many may wait.
        share: Requests of one client; None for as many as there are.
    """

    def __init__(self, name: str, limit: int, queue: int, share: int | None = None) -> None:
        super().__init__(limit, queue=queue, share=share)
        self._name = name

    async def wait(self, timeout_s: float | None, share: Share | None = None) -> None:
        """Take a slot, waiting at most *timeout_s* for one; None waits for good.

        Raises:
            Overloaded: There is none, and none came free in time.
        """
        try:
            await self.acquire(1, share, timeout_s=timeout_s)
        except LimiterFull:
            raise self._overloaded(f"{self.queued} are queued") from None
        except TimeoutError:
            raise self._overloaded(f"none ended within {timeout_s} s") from None

    def _overloaded(self, why: str) -> Overloaded:
        own = "" if self.share_limit >= self.limit else f" ({self.share_limit} for one client)"
        return Overloaded(
            f"{self.used} requests are in flight, at most {self.limit}{own} are allowed, "
            f"and {why} ({self._name})",
            limit=self._name,
        )


DESCRIPTORS: Final = "descriptors"
"""Name of the limit on descriptors of the process."""


class ConnectionCount:
    """Counts the connections of one listener, in all and by client address.

    Args:
        limit: Connections at once; 0 for half of the descriptors of the process.
        limit_per_address: Of them from one address; 0 for all of them, or for half of them where
            *limit* is 0 too.
    """

    def __init__(self, limit: int, limit_per_address: int) -> None:
        self._limit = limit or max_descriptors() // 2
        self._limit_per_address = limit_per_address or limit or max(1, self._limit // 2)
        self._of: Counter[str] = Counter()
        self.total = 0

    def exceeded(self, address: str) -> str | None:
        """Return the YAML name of the limit one more from *address* would exceed, or None."""
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
        """Count it no more."""
        self.total -= 1
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]


def client_address(transport: Any, unnamed: str = "") -> str:
    """Return the address a connection counts for; *unnamed* where its client has none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else unnamed


def connection_refusal(
    count: ConnectionCount, transport: Any, address: str, *, reserve: bool = False
) -> Overloaded | None:
    """Return why the connection of *transport* is one too many; None where there is room.

    Args:
        count: Of the listener.
        transport: Of the connection.
        address: That it counts for.
        reserve: It may use the descriptors that are kept in reserve.
    """
    limit = count.exceeded(address)
    if limit is None and not reserve and descriptors_short(transport.get_extra_info("socket")):
        limit = DESCRIPTORS
    if limit is None:
        return None
    return TooManyConnections(
        f"too many connections from {address or 'clients'} (limit {limit})", address, limit
    )


class TooManyConnections(Overloaded):
    """A connection is one too many.

    Args:
        message: As for every `GatewayError`.
        address: Of the client.
        limit: Name of the limit.
    """

    def __init__(self, message: str, address: str, limit: str) -> None:
        super().__init__(message, limit=limit)
        self.address = address
