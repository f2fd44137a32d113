"""Requests that wait to go together, and which of them do. No clock, no loop, no target.

`Batch` asks and answers; here is how many fit, what is full, and who has waited long enough.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from gateway.ir.calls import InferRequest, InferResponse

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """When requests are joined, and how many.

    Attributes:
        max_batch_size: Most rows of a joined call; None for what the model says, or 64. It is never
            more than the model says.
        max_delay_s: How long the first request of a batch waits for others.
        max_bytes: Most bytes of the inputs of a joined call.
        preferred_sizes: Numbers of rows that go at once, without waiting for more.
        in_flight: Joined calls at the target at a time; meanwhile requests gather.
    """

    max_batch_size: int | None = None
    max_delay_s: float = 0.001
    max_bytes: int = 16 * _MIB
    preferred_sizes: tuple[int, ...] = ()
    in_flight: int = 2


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One caller's request.

    Attributes:
        due: When it goes even if nobody joins it; on the clock of `time.monotonic`, as all times.
        deadline: Infinite for none.
        answer: What the caller waits for.
        asked: The call it has become part of; None while it waits.
    """

    call: InferRequest
    rows: int
    size_bytes: int
    arrived: float
    due: float
    deadline: float
    answer: asyncio.Future[InferResponse]
    asked: DispatchedBatch | None = None

    def resolve(self, answer: InferResponse) -> None:
        """Answer the caller, unless it has left."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def reject(self, error: BaseException) -> None:
        """Raise *error* to the caller, unless it has left or is answered."""
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(frozen=True, slots=True, eq=False)
class DispatchedBatch:
    """A call at the target, and those who wait for it."""

    members: Sequence[PendingRequest]
    task: asyncio.Task[None]

    def left(self) -> bool:
        """Return whether nobody waits any more."""
        return all(member.answer.done() for member in self.members)


class DispatchSlot:
    """One of the calls that may be in hand; it ends once.

    Args:
        ended: Called at the end.
    """

    __slots__ = ("_ended",)

    def __init__(self, ended: Callable[[], None] | None = None) -> None:
        self._ended = ended

    def end(self) -> None:
        """Let the next call go; harmless the second time."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


@dataclass(slots=True, eq=False)
class BatchQueue:
    """Requests that can be joined with one another, in the order they came.

    Attributes:
        key: What they have in common.
        most: Rows that fit into one call.
        due: When the most impatient of them goes.
        deadline: The earliest of theirs.
        preferred: Rows of the longest run from the first that is of a preferred size; 0 for none.
    """

    key: Hashable
    most: int
    rules: BatchRules
    members: deque[PendingRequest] = field(default_factory=deque)
    rows: int = 0
    size_bytes: int = 0
    due: float = math.inf
    deadline: float = math.inf
    preferred: int = 0

    def add(self, member: PendingRequest) -> None:
        """Let *member* wait with the others."""
        self.members.append(member)
        self.rows += member.rows
        self.size_bytes += member.size_bytes
        self.due = min(self.due, member.due)
        self.deadline = min(self.deadline, member.deadline)
        if self.rows in self.rules.preferred_sizes and self.rows <= self.most:
            self.preferred = self.rows

    def full(self) -> bool:
        """Return whether nothing is gained by waiting."""
        enough = self.rows >= self.most or self.size_bytes >= self.rules.max_bytes
        return enough or self.preferred > 0

    def pop_batch(self) -> list[PendingRequest]:
        """Take those who go together: from the first on, as many as fit; at least one."""
        room, room_bytes = self.preferred or self.most, self.rules.max_bytes
        taken: list[PendingRequest] = []
        while self.members:
            member = self.members[0]
            room -= member.rows
            room_bytes -= member.size_bytes
            if taken and (room < 0 or room_bytes < 0):
                break
            taken.append(self.members.popleft())
        self.replace(self.members)
        return taken

    def pop_expired(self, now: float) -> list[PendingRequest]:
        """Take those whose deadline has passed."""
        if self.deadline > now:
            return []
        late = [member for member in self.members if member.deadline <= now]
        self.replace([member for member in self.members if member.deadline > now])
        return late

    def replace(self, members: Iterable[PendingRequest]) -> None:
        """Let only *members* wait on."""
        left = list(members)
        self.members = deque()
        self.rows = self.size_bytes = self.preferred = 0
        self.due = self.deadline = math.inf
        for member in left:
            self.add(member)
