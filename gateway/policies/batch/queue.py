"""BatchQueue: pending requests that can form a batch, without clock, event loop and target.

It decides which requests form a batch, and when the batch is full. `Batch` sends it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from gateway.ir.calls import InferRequest, InferResponse
from gateway.policies.access.apart import Apart
from gateway.policies.batch.padding import PaddedSize, width_of

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """The limits and delays of batching.

    Attributes:
        max_batch_size: Maximum rows of a batch; None for the model's maximum, or 64. The model's
            maximum always applies.
        max_delay_s: Maximum time that the first request of a batch waits for others.
        max_bytes: Maximum size of the inputs of a batch.
        preferred_sizes: Numbers of rows that are sent without delay.
        in_flight: Maximum number of concurrent batches at the target.
        apart: Keeps the requests of clients apart; None to merge them.
    """

    max_batch_size: int | None = None
    max_delay_s: float = 0.001
    max_bytes: int = 16 * _MIB
    preferred_sizes: tuple[int, ...] = ()
    in_flight: int = 2
    apart: Apart | None = None


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One caller's request. Times are on the clock of `time.monotonic`.

    Attributes:
        due: Time to send it, even without other requests.
        deadline: When it leaves the queue with an error: the caller's deadline, or the end of its
            queue timeout. Infinite for none.
        reply: The future that the caller awaits.
        avoid: Names of endpoints and targets that earlier attempts of the caller have tried.
        batch: The batch it is part of; None while it is in the queue.
        sent: Time when its batch was sent.
        is_rejected: Whether a target has rejected a batch with it, which may have been received.
    """

    call: InferRequest
    rows: int
    size_bytes: int
    arrived: float
    due: float
    deadline: float
    reply: asyncio.Future[InferResponse]
    avoid: tuple[str, ...] = ()
    batch: DispatchedBatch | None = None
    sent: float | None = None
    is_rejected: bool = False

    def resolve(self, reply: InferResponse) -> None:
        """Return *reply* to the caller, unless it is cancelled."""
        if not self.reply.done():
            self.reply.set_result(reply)

    def reject(self, error: BaseException) -> None:
        """Raise *error* to the caller, unless it is cancelled or has a reply."""
        if not self.reply.done():
            self.reply.set_exception(error)


@dataclass(frozen=True, slots=True, eq=False)
class DispatchedBatch:
    """A call at the target, and its requests."""

    members: Sequence[PendingRequest]
    task: asyncio.Task[None]

    def is_abandoned(self) -> bool:
        """Return whether no caller waits for it."""
        return all(member.reply.done() for member in self.members)


class DispatchSlot:
    """A slot for one batch at the target, released once.

    Args:
        on_release: Called at the release.
    """

    __slots__ = ("_on_release",)

    def __init__(self, on_release: Callable[[], None] | None = None) -> None:
        self._on_release = on_release

    def release(self) -> None:
        """Allow the next batch; may be called twice."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()


@dataclass(slots=True, eq=False)
class BatchQueue:
    """Requests that can be batched together, in order of arrival.

    Attributes:
        key: Their common batch key.
        max_rows: Maximum rows of a batch.
        due: The earliest time to send one of them.
        deadline: Their earliest deadline.
        preferred: Rows of the longest run from the first request that has a preferred size; 0 for
            none.
    """

    key: Hashable
    max_rows: int
    rules: BatchRules
    members: deque[PendingRequest] = field(default_factory=deque)
    rows: int = 0
    size_bytes: int = 0
    due: float = math.inf
    deadline: float = math.inf
    preferred: int = 0

    def add(self, member: PendingRequest) -> None:
        """Append *member*."""
        self.members.append(member)
        self.rows += member.rows
        self.size_bytes += member.size_bytes
        self.due = min(self.due, member.due)
        self.deadline = min(self.deadline, member.deadline)
        if self.rows in self.rules.preferred_sizes and self.rows <= self.max_rows:
            self.preferred = self.rows

    def is_full(self) -> bool:
        """Return whether more requests would not make the next batch larger."""
        enough = self.rows >= self.max_rows or self.size_bytes >= self.rules.max_bytes
        return enough or self.preferred > 0

    def pop_batch(self) -> list[PendingRequest]:
        """Remove and return the first requests that fit into a batch; at least one.

        Rows of very different lengths wait for one of the next batches.
        """
        rows, size_bytes = self.preferred or self.max_rows, self.rules.max_bytes
        batch: list[PendingRequest] = []
        for member in self.members:
            rows -= member.rows
            size_bytes -= member.size_bytes
            if batch and (rows < 0 or size_bytes < 0):
                break
            batch.append(member)
        if batch[0].call.rows is not None and batch[0].call.rows.lengths:
            batch = with_little_padding(batch)
        sent = set(batch)
        self.replace([member for member in self.members if member not in sent])
        return batch

    def pop_expired(self, now: float) -> list[PendingRequest]:
        """Remove and return the requests whose deadline has passed."""
        if self.deadline > now:
            return []
        expired = [member for member in self.members if member.deadline <= now]
        self.replace([member for member in self.members if member.deadline > now])
        return expired

    def replace(self, members: Iterable[PendingRequest]) -> None:
        """Replace the pending requests by *members*."""
        remaining = list(members)
        self.members = deque()
        self.rows = self.size_bytes = self.preferred = 0
        self.due = self.deadline = math.inf
        for member in remaining:
            self.add(member)


def with_little_padding(members: Sequence[PendingRequest]) -> list[PendingRequest]:
    """Return the first of *members*, and those whose rows are of nearly the same length."""
    width = width_of(members[0].call)
    padding = PaddedSize()
    nearest = sorted(members, key=lambda member: abs(width_of(member.call) - width))
    return list(takewhile(lambda member: padding.add(member.call), nearest))
