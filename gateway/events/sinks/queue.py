"""SinkQueue: sends the events of one sink, and tries again what the sink did not take.

An attempt that fails for one event pauses this event. A sink that cannot be reached pauses as a
whole: single attempts then ask whether it is back, and each counts for all events that wait.
"""

import asyncio
import enum
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog
from msgspec import Struct

from gateway.events.books import DropReason
from gateway.events.messages import CALL_BYTES, EventNote
from gateway.shadow.packets import Sender

log = structlog.get_logger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


class SendOutcome(enum.Enum):
    """What became of an attempt to send an event."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    """The sink wants no other attempt."""
    FAILED = "failed"
    """Another attempt may succeed."""
    UNREACHABLE = "unreachable"
    """The sink itself was not reached, so no other event would have been sent either."""


class HeldCall(Struct):
    """A call of which a sink gets events.

    Attributes:
        sender: Where it came from.
        note: The head of its message.
        call: The bytes of the call.
        events: Events without a result.
    """

    sender: Sender
    note: EventNote
    call: bytes
    events: int

    @property
    def nbytes(self) -> int:
        """What the call counts in `outbox_bytes`."""
        return len(self.call) + CALL_BYTES


class QueuedEvent(Struct, eq=False):
    """One event of a call.

    Attributes:
        held: The call.
        kind: Request or response, as a bit.
        at_s: When it came, on the clock of the loop.
        rounds: Failed rounds of the sink until then.
        attempts: Its own failed attempts.
    """

    held: HeldCall
    kind: int
    at_s: float
    rounds: int
    attempts: int = 0


class Sink(Protocol):
    """What events are sent to."""

    async def send(self, events: Sequence[QueuedEvent], /) -> Sequence[tuple[SendOutcome, str]]:
        """Send events; return an outcome for each, and a reason where it was not delivered."""
        ...

    async def close(self) -> None:
        """Close connections; idempotent."""
        ...


class QueueOptions(Struct, frozen=True):
    """How events are sent.

    Attributes:
        attempts: Most attempts for one event.
        concurrency: Most attempts at the same time.
        timeout_s: Longest time of one.
        batch: Most events of one.
        batch_bytes: An attempt begins when so many bytes of calls wait.
        linger_s: Time that an event waits until a batch is full.
    """

    attempts: int = 5
    concurrency: int = 8
    timeout_s: float = 10.0
    batch: int = 1
    batch_bytes: int = 1 << 30
    linger_s: float = 0.0


OnDone = Callable[[HeldCall, DropReason | None], None]
"""Called with each event that has a result: None for delivered, or why it was dropped."""


def pause_s(attempts: int) -> float:
    """Return the pause after a number of failed attempts."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (min(attempts, 16) - 1))


class _ReadyEvents:
    """The events that may be sent now, in order.

    Attributes:
        events: The events.
        nbytes: The bytes of their calls.
    """

    def __init__(self) -> None:
        self.events: deque[QueuedEvent] = deque()
        self.nbytes = 0

    def add(self, event: QueuedEvent, *, is_first: bool = False) -> None:
        """Add an event at the end, or as the first one."""
        (self.events.appendleft if is_first else self.events.append)(event)
        self.nbytes += event.held.nbytes

    def take(self) -> QueuedEvent:
        """Remove the first event."""
        event = self.events.popleft()
        self.nbytes -= event.held.nbytes
        return event

    def replace(self, events: Iterable[QueuedEvent]) -> None:
        """Have these events from now on."""
        self.events = deque(events)
        self.nbytes = sum(each.held.nbytes for each in self.events)


class SinkQueue:
    """The events that wait for one sink.

    Args:
        name: The name of the sink, for books and logs.
        sink: Sends them.
        options: How they are sent.
        on_done: Called once for each event.
    """

    def __init__(self, name: str, sink: Sink, options: QueueOptions, on_done: OnDone) -> None:
        self._name = name
        self._sink = sink
        self._options = options
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._ready = _ReadyEvents()
        self._paused: list[tuple[float, int, QueuedEvent]] = []
        self._numbers = itertools.count()
        self._tasks: dict[asyncio.Task[None], list[QueuedEvent]] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Rounds of attempts that did not reach the sink, and how many there were at its last reply.
        self._rounds = self._rounds_before = 0
        self._probe_at: float | None = None  # while it is not reached
        self._flushed_s = -1.0  # events that came until then wait for no batch
        self._is_failing = False
        self._is_closed = False

    @property
    def is_empty(self) -> bool:
        """Whether no event waits or is being sent."""
        return not (self._ready.events or self._paused or self._tasks)

    def put(self, held: HeldCall, kinds: Sequence[int]) -> None:
        """Send events of a call; never waits and never raises."""
        at_s = self._loop.time()
        for kind in kinds:
            self._ready.add(QueuedEvent(held, kind, at_s, self._rounds))
        self._send_ready()

    def flush(self) -> None:
        """Send what waits for a full batch now."""
        self._flushed_s = self._loop.time()
        self._send_ready()

    def drop_sender(self, sender: Sender) -> None:
        """Drop what waits of a serving process; what is being sent goes on."""
        for event in self._take_all(lambda each: each.held.sender == sender):
            self._on_done(event.held, "shutdown")

    async def close(self) -> None:
        """Drop what waits, and what is being sent; idempotent."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for event in self._take_all(lambda _each: True):
            self._on_done(event.held, "shutdown")
        await self._sink.close()

    def _take_all(self, matches: Callable[[QueuedEvent], bool]) -> list[QueuedEvent]:
        found = [each for each in self._ready.events if matches(each)]
        found += [each for _, _, each in self._paused if matches(each)]
        self._ready.replace(each for each in self._ready.events if not matches(each))
        self._paused = [entry for entry in self._paused if not matches(entry[2])]
        heapq.heapify(self._paused)
        return found

    # -- when to send

    def _send_ready(self) -> None:
        """Start attempts for what is due, and look again when something else is."""
        if self._is_closed:
            return
        now = self._loop.time()
        while self._paused and self._paused[0][0] <= now:
            self._ready.add(heapq.heappop(self._paused)[2])
        while self._ready.events and self._may_send(now):
            count = min(self._options.batch, len(self._ready.events))
            batch = [self._ready.take() for _ in range(count)]
            task = asyncio.create_task(self._attempt(batch, self._rounds))
            self._tasks[task] = batch
        self._set_timer(now)

    def _may_send(self, now: float) -> bool:
        width = self._options.concurrency if self._probe_at is None else 1
        if len(self._tasks) >= width or now < (self._probe_at or 0.0):
            return False
        options = self._options
        if len(self._ready.events) >= options.batch or self._ready.nbytes >= options.batch_bytes:
            return True
        return now >= self._due(self._ready.events[0])

    def _due(self, event: QueuedEvent) -> float:
        """Return when an event is sent even if its batch is not full."""
        is_flushed = event.at_s <= self._flushed_s
        return event.at_s + (0.0 if is_flushed else self._options.linger_s)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [self._paused[0][0]] if self._paused else []
        if self._ready.events and not self._tasks_are_full():
            times.append(max(self._probe_at or 0.0, self._due(self._ready.events[0])))
        if times:
            self._timer = self._loop.call_at(max(now, min(times)), self._send_ready)

    def _tasks_are_full(self) -> bool:
        width = self._options.concurrency if self._probe_at is None else 1
        return len(self._tasks) >= width

    # -- one attempt

    async def _attempt(self, batch: list[QueuedEvent], rounds: int) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # it runs as a task
        try:
            outcomes = await self._outcomes(batch)
        except asyncio.CancelledError:  # by `close`
            del self._tasks[task]
            for event in batch:
                self._on_done(event.held, "shutdown")
            raise
        del self._tasks[task]
        for event, (outcome, reason) in zip(batch, outcomes, strict=True):
            self._end_attempt(event, outcome, reason, rounds)
        self._send_ready()

    async def _outcomes(self, batch: list[QueuedEvent]) -> Sequence[tuple[SendOutcome, str]]:
        try:
            async with asyncio.timeout(self._options.timeout_s):
                return await self._sink.send(batch)
        except TimeoutError:
            reason = f"no reply within {self._options.timeout_s:g} s"
        except Exception as error:  # a defect costs an attempt
            log.exception("events not sent", sink=self._name)
            reason = f"internal error: {type(error).__name__}"
        return [(SendOutcome.FAILED, reason)] * len(batch)

    def _end_attempt(
        self, event: QueuedEvent, outcome: SendOutcome, reason: str, rounds: int
    ) -> None:
        if outcome is SendOutcome.UNREACHABLE:
            self._ready.add(event, is_first=True)
            if rounds == self._rounds:  # others of this round count once
                self._end_round(reason)
            return
        if outcome is SendOutcome.FAILED:
            self._log_failure(reason)
            event.attempts += 1
            if self._tries(event) >= self._options.attempts:
                self._on_done(event.held, "attempts")
                return
            due = self._loop.time() + pause_s(event.attempts)
            heapq.heappush(self._paused, (due, next(self._numbers), event))
            return
        self._rounds_before, self._probe_at = self._rounds, None
        if outcome is SendOutcome.REFUSED:
            self._log_failure(reason)
            self._on_done(event.held, "refused")
            return
        if self._is_failing:
            self._is_failing = False
            log.info("events delivered again", sink=self._name)
        self._on_done(event.held, None)

    def _end_round(self, reason: str) -> None:
        """Count an attempt that did not reach the sink, for all events that wait for it."""
        self._log_failure(reason)
        self._rounds += 1
        self._probe_at = self._loop.time() + pause_s(self._rounds - self._rounds_before)
        kept = []
        for event in self._ready.events:
            if self._tries(event) >= self._options.attempts:
                self._on_done(event.held, "attempts")
            else:
                kept.append(event)
        self._ready.replace(kept)

    def _tries(self, event: QueuedEvent) -> int:
        return event.attempts + self._rounds - max(event.rounds, self._rounds_before)

    def _log_failure(self, reason: str) -> None:
        """Log the first failure after a delivery."""
        if not self._is_failing:
            self._is_failing = True
            log.warning("events not delivered", sink=self._name, reason=reason)
