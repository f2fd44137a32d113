"""Slots: limits of the requests in flight, with a queue for more, for all carriers.

A request waits until its deadline if it has to, and queues are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from time import monotonic
from typing import TYPE_CHECKING, Final

from gateway.concurrency.call_queue import CallQueue
from gateway.concurrency.limiter import QUEUE_TIMEOUT_US, Limiter
from gateway.concurrency.waiters import Share
from gateway.ir.errors import DeadlineExceeded, Overloaded
from gateway.telemetry.call_path import queue_priority, queue_turn

if TYPE_CHECKING:
    from gateway.transports.contract import ClientLimits, ServerLimits
    from gateway.transports.memory_budget import MemoryBudget


_SHARES: Final = 4
"""The divisor of the share of one client."""

_EARLY_S: Final = 0.005
"""So long before its deadline a request leaves a queue, to say why before its timeout ends it."""

_REQUESTS_PER_CLIENT: Final = 64
"""The share of one client where only memory limits the requests in flight."""


def requests_in_flight(limits: ServerLimits, budget: MemoryBudget) -> int:
    """Return how many requests of a listener may be in flight."""
    return limits.requests_in_flight or budget.limit // budget.call_bytes


def requests_per_client(limits: ServerLimits) -> int:
    """Return how many of a listener's requests in flight no other client delays."""
    if limits.requests_per_address is not None:
        return limits.requests_per_address
    if limits.requests_in_flight is None:
        return _REQUESTS_PER_CLIENT
    return -(-limits.requests_in_flight // _SHARES)


def request_slots(limits: ServerLimits, budget: MemoryBudget) -> ConcurrencyLimiter:
    """Return the limiter of the requests in flight of a listener."""
    return ConcurrencyLimiter(
        "requests_in_flight",
        requests_in_flight(limits, budget),
        limits.requests_queued,
        requests_per_client(limits),
        keys=LISTENER_KEYS,
    )


LISTENER_KEYS: Final = "limits.requests_in_flight, limits.requests_queued"
"""The keys that let a listener take more requests."""


class ConcurrencyLimiter(Limiter):
    """Limits requests in flight, with a bounded queue for more.

    Args:
        name: The YAML name of the limit, for metrics.
        limit: How many requests may be in flight.
        queue: How many may wait.
        share: How many requests of one client no other client delays; None for all.
        keys: The YAML keys of the limit and of its queue, for errors; *name* by default.
        upstream: The address that the requests go to, for errors.
        group: Returns the group of the current caller; None for no groups.
        priority: Returns the priority of the current caller, among groups.
    """

    def __init__(  # noqa: PLR0913  # most by name
        self,
        name: str,
        limit: int,
        queue: int,
        share: int | None = None,
        *,
        keys: str = "",
        upstream: str = "",
        group: Callable[[], Hashable] | None = None,
        priority: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(limit, queue=queue, share=share, group=group, priority=priority)
        self._name = name
        self._keys = keys or name
        self._upstream = upstream

    async def wait(
        self, timeout_s: float | None, share: Share | None = None, *, deadline: float | None = None
    ) -> None:
        """Acquire a slot, waiting at most *timeout_s* and until *deadline*; None for no bound.

        Raises:
            QueueTimeout: The queue timeout of the request passed first.
            Overloaded: The queue is full, or no slot became free within *timeout_s*.
            DeadlineExceeded: The deadline passed first.
        """
        left_s = math.inf
        if deadline is not None:
            left_s = max(0.0, deadline - monotonic() - _EARLY_S)
        queue = CallQueue(
            f"a request in flight ({self._name})",
            timeout_us=QUEUE_TIMEOUT_US.get(),
            longest_s=timeout_s,
            left_s=left_s,
        )
        await queue.acquire(
            self,
            share,
            # Those that get a slot in the next turns of the loop count as in flight.
            full=lambda: self._overloaded(f"{max(0, self.used + self.queued - self.limit)} wait"),
            too_long=lambda: self._overloaded(f"none ended within {timeout_s:g} s"),
            too_late=lambda: DeadlineExceeded(
                f"deadline exceeded in a queue: {self._situation()} ({self._keys})",
                limit=self._name,
            ),
        )

    def _situation(self) -> str:
        where = f" to {self._upstream}" if self._upstream else ""
        used = min(self.limit, self.used + self.queued)
        return f"{used} requests{where} are in flight, at most {self.limit} are allowed"

    def _overloaded(self, why: str) -> Overloaded:
        return Overloaded(f"{self._situation()}, and {why} ({self._keys})", limit=self._name)


CONNECTION_KEYS: Final = "limits.connections, limits.in_flight"
"""The keys of the requests in flight where each needs a connection."""


def upstream_slots(
    name: str, limit: int, limits: ClientLimits, upstream: str, keys: str = "limits.in_flight"
) -> ConcurrencyLimiter:
    """Return the limiter of the requests in flight to one address of an upstream.

    Args:
        name: The YAML name of the limit, for metrics.
        limit: How many requests may be in flight.
        limits: The limits of the upstream.
        upstream: The address, for errors.
        keys: The YAML keys of the limit.
    """
    return ConcurrencyLimiter(
        name,
        limit,
        limits.pending,
        keys=f"{keys}, limits.pending of the upstream",
        upstream=upstream,
        group=queue_turn if limits.pending_by == "route" else None,
        priority=queue_priority,
    )
