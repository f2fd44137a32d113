"""Reservation: the bytes of the memory budget that one request or response holds while it moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import Final

from gateway.concurrency.limiter import LimiterFull
from gateway.concurrency.waiters import Share
from gateway.ir.errors import DeadlineExceeded, Overloaded, TooLarge
from gateway.transports.memory_budget import STEP_BYTES, MemoryBudget

RESPONSE_UNCOUNTED_BYTES: Final = 16 * 1024
"""Smaller responses are not counted unless the socket's send buffer is full."""

RESPONSE_OVERHEAD_BYTES: Final = 512
"""What a response that waits counts beside its bytes: the objects that it consists of."""

BODY_PATIENCE_S: Final = 0.25
"""A body without progress for so long is ended while requests wait for memory."""

BUILD_WAIT_S: Final = 10.0
"""For so long a message waits for memory to be read or written."""

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

    def try_grow_rest(self, size: int) -> bool:
        """Reserve *size* bytes beside a message that has arrived; return success."""
        if not self.size_bytes or size > self._budget.call_bytes:
            return False
        found = self._budget.try_acquire_rest(size, self.share)
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

        A reservation doubles when three quarters of it are used. The first one is for the whole of
        a usual body, because each step costs a read, or a window that its client waits for.

        Args:
            arrived: The bytes that have arrived.
            total: The announced length; None if there is none.
        """
        size = self.size_bytes
        if 4 * arrived < 3 * size:
            return 0
        if total is None:
            return max(STEP_BYTES, 2 * size) - size
        return min(total, max(self._budget.buffers.step_bytes, 2 * size)) - size

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
        self._budget.messages.watch(self)

    def stop_watching(self) -> None:
        """Stop checking the progress: the message is complete."""
        if self._position is not None:
            self._position = self._give_way = None
            self._budget.messages.unwatch(self)

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

    def pooled(self, size: int) -> memoryview | None:
        """Return memory of `MemoryBudget.pool`."""
        return self._budget.pool(size)

    def allocated(self, size: int) -> None:
        """As `Buffers.allocated`."""
        self._budget.buffers.allocated(size)

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
        found = self._budget.responses.try_acquire(size, self.share)
        self.size_bytes += size * found
        return found

    async def _acquire(self, size: int, timeout_s: float | None) -> None:
        await self._budget.responses.acquire(size, self.share, self.size_bytes, timeout_s)


class BuildReservation(Reservation):
    """The memory that is built from a message beyond its share; see `gateway.ir.work.reserve`."""

    __slots__ = ()

    async def grow(self, size: int) -> None:
        """As `Reservation.grow`, with the part of the budget that is kept for responses.

        Messages that have all memory would wait for each other.

        Raises:
            TooLarge: It would have more than half of the budget, which others need, too.
        """
        most = self._most
        if self.size_bytes + size > most:
            text = f"reading the message needs {self.size_bytes + size} bytes of memory, at most "
            text += f"{most} are for one message, half of the budget (in_flight_bytes)"
            raise TooLarge(text, limit="in_flight_bytes")
        if not self.try_grow_response(size):
            await super().grow(size)

    def try_grow(self, size: int) -> bool:
        """As `Reservation.try_grow`, within the part of the budget that is for one message."""
        return self.size_bytes + size <= self._most and super().try_grow(size)

    @property
    def _most(self) -> int:
        return self._budget.limit // 2


def no_memory(size: int) -> Overloaded:
    """Return the error for a response of *size* bytes that is not sent."""
    return Overloaded(
        f"no memory for a response of {size} bytes (in_flight_bytes)", limit="in_flight_bytes"
    )
