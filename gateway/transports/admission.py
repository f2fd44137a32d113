"""Admission: how much may be in flight at once, in bytes, requests and connections.

A wait is short and queues are bounded: over them the caller is told to come back, which is cheaper
for both sides than an answer that comes too late. Nothing here knows a wire.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any, Final

from gateway.ir.errors import Overloaded
from gateway.transports.net.sockets import descriptors_short, max_descriptors


class MemoryBudget:
    """Bytes in flight, counted over every listener of the process.

    Server transports reserve what a body declares, or what has arrived of it, before they hold it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def reserve(self, size: int) -> bool:
        """Take *size* bytes and return True, or take nothing and return False."""
        if self.used_bytes + size > self.limit_bytes:
            return False
        self.used_bytes += size
        return True

    def take(self, size: int) -> bool:
        """Reserve *size* bytes if there is room and nobody waits; return whether it was done."""
        used = self.used_bytes + size
        if self._waiting or used > self.limit_bytes:
            return False
        self.used_bytes = used
        return True

    def release(self, size: int) -> None:
        """Give *size* bytes back; whoever waits longest is served first."""
        self.used_bytes -= size
        if self._waiting:
            self._grant()

    async def acquire(self, size: int, wait_s: float) -> None:
        """Take *size* bytes, waiting at most *wait_s* for others to give theirs back.

        Raises:
            Overloaded: They did not.
        """
        if self.take(size):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        try:
            async with asyncio.timeout(wait_s):
                await granted
        except TimeoutError:
            if granted.done() and not granted.cancelled():
                return
            raise Overloaded(
                f"{self.used_bytes} bytes are in flight, {size} more were asked for and at most "
                f"{self.limit_bytes} are allowed",
                limit="in_flight_bytes",
            ) from None
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size)
            raise
        finally:
            if granted.cancelled():
                self._waiting.remove((size, granted))
                self._grant()

    def _grant(self) -> None:
        while self._waiting and self.reserve(self._waiting[0][0]):
            self._waiting.popleft()[1].set_result(None)


class Reservation:
    """The share of a budget that one exchange holds."""

    def __init__(self, budget: MemoryBudget, wait_s: float) -> None:
        self._budget = budget
        self._wait_s = wait_s
        self.size_bytes = 0

    def take(self, size: int) -> bool:
        """Hold *size* bytes more if there is room now, and return whether there was."""
        found = self._budget.reserve(size)
        self.size_bytes += size * found
        return found

    async def grow(self, size: int) -> None:
        """Hold *size* bytes more.

        Raises:
            Overloaded: The budget has no room for them, and got none in time.
        """
        if not self.take_in_turn(size):
            await self._budget.acquire(size, self._wait_s)
            self.size_bytes += size

    def take_in_turn(self, size: int) -> bool:
        """Hold *size* bytes more if there is room and nobody waits; return whether it was so."""
        found = self._budget.take(size)
        self.size_bytes += size * found
        return found

    def close(self) -> None:
        """Give everything back; harmless the second time."""
        size, self.size_bytes = self.size_bytes, 0
        if size:
            self._budget.release(size)


class ConcurrencyLimiter:
    """Places for requests in flight, and a bounded queue for them.

    Args:
        name: Of the limit, as in YAML; also named in errors.
        limit: Places.
        queue: How many may wait for one.
    """

    def __init__(self, name: str, limit: int, queue: int) -> None:
        self._name = name
        self._limit = limit
        self._queue = queue
        self.used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Take a place if one is free, and return whether it was."""
        free = self.used < self._limit
        self.used += free
        return free

    async def acquire(self, wait_s: float | None) -> None:
        """Take a place, waiting at most *wait_s* for one; None waits for good.

        Raises:
            Overloaded: There is none, and none came free in time.
        """
        if self.try_acquire():
            return
        if len(self._waiting) >= self._queue:
            raise self._overloaded(f"{len(self._waiting)} more wait")
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        try:
            async with asyncio.timeout(wait_s):
                await granted
        except TimeoutError:
            if granted.done() and not granted.cancelled():
                return
            raise self._overloaded(f"none ended within {wait_s} s") from None
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release()
            raise
        finally:
            if granted in self._waiting:
                self._waiting.remove(granted)

    def release(self) -> None:
        """Give a place back, to whoever waits longest."""
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)
                return
        self.used -= 1

    def _overloaded(self, why: str) -> Overloaded:
        return Overloaded(
            f"{self.used} requests are in flight, at most {self._limit} are allowed, and {why}",
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
