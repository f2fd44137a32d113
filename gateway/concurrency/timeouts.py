"""Timeouts of tasks and timers of connections."""

import asyncio
import math
from collections.abc import Callable, Hashable
from itertools import repeat
from time import monotonic
from typing import Any, Final, Protocol, Self

from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.calls import Call
from gateway.ir.errors import DeadlineExceeded

STEP_S: Final = 0.005
"""A deadline on a `TimerWheel` expires up to this many seconds late, never early."""
_EXPIRED: Final = "the timeout of the task has expired"
_NONE: Final = -1
_SWEEP_STEPS: Final = 64
_TURN_S: Final = 1e-6
_TURNS: Final = 20
"""Of the event loop, in which a connection is made that the kernel has accepted."""
_NO_TASK: Final = "a timeout needs a running task"


async def is_set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait up to *timeout_s* seconds for *event*; return whether it is set. None waits for ever."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def is_expiry(error: BaseException) -> bool:
    """Return whether *error* is the cancellation of a task by its `Timeout`."""
    return isinstance(error, asyncio.CancelledError) and error.args == (_EXPIRED,)


def is_timeout(error: BaseException, call: Call[Any], now: float) -> bool:
    """Return whether a deadline ended *call*: a layer above cancels the call at its deadline.

    A stream, and a call whose body is still arriving, have deadlines that they do not carry.
    """
    if not isinstance(error, asyncio.CancelledError):
        return isinstance(error, DeadlineExceeded)
    deadline = call.context.deadline
    if deadline is not None and now >= deadline:
        return True
    body = streaming_body_of(call)
    is_client_late = body is not None and body.remaining_bytes > 0
    return is_expiry(error) and not is_client_late


class Timeout:
    """Ends the block that it guards with TimeoutError, as `asyncio.timeout` does.

    A plain context manager with one timer costs a third of `asyncio.timeout`.

    Args:
        delay_s: Seconds from the entry of the block.
        remaining_s: Called when the time has passed; returns for how many seconds the block may
            still run, or 0.  None ends the block at once.

    Attributes:
        has_expired: The timeout has cancelled the task.
    """

    __slots__ = ("_before", "_delay_s", "_remaining_s", "_task", "_timer", "has_expired")

    def __init__(self, delay_s: float, remaining_s: Callable[[], float] | None = None) -> None:
        self._delay_s = delay_s
        self._remaining_s = remaining_s
        self.has_expired = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError(_NO_TASK)
        self._task = task
        self._before = task.cancelling()
        self._start(self._delay_s)
        return self

    def _start(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, delay_s), self._on_timer)

    def _on_timer(self) -> None:
        remaining_s = 0.0 if self._remaining_s is None else self._remaining_s()
        if remaining_s > 0:
            self._start(remaining_s)
        else:
            self.expire()

    def expire(self) -> None:
        """Cancel the task."""
        self.has_expired = True
        self._task.cancel(_EXPIRED)

    def finish(self, error: BaseException | None) -> bool:
        """Stop the timer, and return whether the timeout caused *error*, which ended the block."""
        self._timer.cancel()
        return self._has_caused(error)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, *_details: object
    ) -> None:
        if self.finish(error):
            raise TimeoutError

    def _has_caused(self, error: BaseException | None) -> bool:
        """Return whether the timeout caused *error*, and forget the task after an error.

        A cancelled task holds its error, whose traceback holds the frame that has this timeout.
        """
        caused = self.has_expired and self._is_cause_of(error)
        if error is not None:
            del self._task
        return caused

    def _is_cause_of(self, error: BaseException | None) -> bool:
        # If somebody else has cancelled the task too, the cancellation must not become a timeout.
        is_only = self._task.uncancel() <= self._before
        return (is_only and type(error) is asyncio.CancelledError) or isinstance(
            error, TimeoutError
        )


def patient_timeout(seconds: float) -> Timeout:
    """Return a timeout that counts no time for which the event loop itself was held up.

    When the time has passed, the loop still gets some turns to read what has arrived: otherwise a
    busy process would blame its peer, whose bytes wait in the kernel.
    """
    turns = repeat(_TURN_S, _TURNS)
    return Timeout(seconds, lambda: next(turns, 0.0))


class TimerTarget(Hashable, Protocol):
    """An object with a deadline on a wheel."""

    def on_timeout(self) -> None:
        """Handle the deadline; the object is no longer on the wheel."""


class TimerStep(set[TimerTarget]):
    """The targets whose deadlines expire together.

    Args:
        number: Its number; the step expires at this multiple of `STEP_S`.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class TimerWheel:
    """Many deadlines on one timer of the event loop.

    Scheduling and cancelling a deadline cost one set operation each.  A timer of the loop for each
    call costs ten times as much, and nearly all of them are cancelled.  A wheel serves the running
    loop.  Deadlines that belong to an earlier loop are dropped.

    Args:
        clock: Monotonic seconds.

    Attributes:
        loop: The loop of the last deadline; None before the first.
    """

    __slots__ = (
        "_clock",
        "_end",
        "_latest",
        "_next",
        "_start",
        "_steps",
        "_sweep_at",
        "_timer",
        "loop",
    )

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.loop: asyncio.AbstractEventLoop | None = None
        self._steps: dict[int, TimerStep] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        # The step of the last deadline, and its time: the next deadline is likely to have the same.
        self._latest = TimerStep(_NONE)
        self._start = self._end = 0.0
        self._sweep_at = _SWEEP_STEPS

    def schedule(self, item: TimerTarget, when: float) -> TimerStep:
        """Call `item.on_timeout` at *when*, unless the item is cancelled.

        Returns:
            The step of the deadline.  Pass it to `cancel`, or discard the item from it, which is
            faster: the wheel drops a step that has become empty a little later.
        """
        if not self._start <= when < self._end:
            self.turn_to(when)
        step = self._latest
        step.add(item)
        return step

    def cancel(self, item: TimerTarget, step: TimerStep) -> None:
        """Remove *item*; harmless after its deadline."""
        step.discard(item)
        # The latest step is kept: the next item is likely there.
        if not step and step is not self._latest:
            self._drop(step)

    def turn_to(self, when: float) -> None:
        """Let further deadlines belong to the step of *when*."""
        number = int(when / STEP_S) + 1
        if not self._latest:
            self._drop(self._latest)
        self._latest = self._steps.get(number) or self._begin(number)
        self._start, self._end = (number - 1) * STEP_S, number * STEP_S

    def _drop(self, step: TimerStep) -> None:
        if self._steps.get(step.number) is step:
            del self._steps[step.number]

    def close(self) -> None:
        """Drop all deadlines."""
        self._steps.clear()
        self._forget_latest()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget_latest(self) -> None:
        self._latest = TimerStep(_NONE)
        self._start = self._end = 0.0

    def _begin(self, number: int) -> TimerStep:
        loop = asyncio.get_running_loop()
        if loop is not self.loop:
            self.close()
            self.loop = loop
        if len(self._steps) >= self._sweep_at:
            self._steps = {each: step for each, step in self._steps.items() if step}
            self._sweep_at = max(_SWEEP_STEPS, 2 * len(self._steps))
        step = self._steps[number] = TimerStep(number)
        if self._timer is None or number < self._next:
            self._arm(loop, number)
        return step

    def _arm(self, loop: asyncio.AbstractEventLoop, step: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = step
        self._timer = loop.call_later(max(0.0, step * STEP_S - self._clock()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = int(self._clock() / STEP_S)
        if self._latest.number <= now:
            self._forget_latest()
        for number in sorted(each for each in self._steps if each <= now):
            for item in list(self._steps.pop(number, ())):  # an item may cancel another one
                item.on_timeout()
        self._rearm()

    def _rearm(self) -> None:
        """Start the timer for the next step, unless an expired item has started it."""
        if self._steps and self._timer is None and self.loop is not None:
            self._arm(self.loop, min(self._steps))


class WheelTimeout(Timeout):
    """A timeout on a timer wheel, which starts when it is made.

    It expires some milliseconds late, at a fraction of a timer's cost.  Its maker calls `finish`
    however the block ends.

    Args:
        wheel: Where the timeout is scheduled.
        deadline: On the wheel's clock.
    """

    __slots__ = ("_step",)

    on_timeout = Timeout.expire

    def __init__(self, wheel: TimerWheel, deadline: float) -> None:
        # `asyncio.current_task()` alone would look for the loop, which is a system call.
        task = asyncio.current_task(wheel.loop) or asyncio.current_task()
        if task is None:
            raise RuntimeError(_NO_TASK)
        self._task = task
        self._before = task.cancelling()
        self.has_expired = False
        self._step = wheel.schedule(self, deadline)

    def finish(self, error: BaseException | None) -> bool:
        """Cancel the entry, and return whether the timeout caused *error*."""
        self._step.discard(self)
        return (error is not None or self.has_expired) and self._has_caused(error)


class RestartableTimer:
    """Calls *on_timeout* once, *delay_s* after it was started, unless it is stopped before.

    Args:
        loop: The event loop of the timer.
        delay_s: Seconds.
        on_timeout: May start the timer again.

    Attributes:
        is_armed: The timer is running.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, delay_s: float, on_timeout: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._on_timeout = on_timeout
        self._since = 0.0
        self._latest = math.inf
        self._handle: asyncio.TimerHandle | None = None
        self.is_armed = False

    def start(self) -> None:
        """Start the timer; a timer that runs is not restarted."""
        if self._handle is None:
            self.restart()

    def restart(self) -> None:
        """Let the time begin now. A timer that runs goes on: one does for many pauses."""
        self._since = self._loop.time()
        if self._handle is None:
            self._handle = self._loop.call_later(self._delay_s, self._expire)
            self.is_armed = True

    def end_after(self, delay_s: float, most_s: float) -> None:
        """Start with another delay, which `restart` prolongs up to *most_s* seconds from now."""
        self.stop()
        self._delay_s = delay_s
        self.restart()
        self._latest = self._since + most_s

    def stop(self) -> None:
        """Stop the timer; harmless when it does not run."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self.is_armed = False

    def close(self) -> None:
        """Stop the timer for good, and drop the reference to *on_timeout*."""
        self.stop()
        self._on_timeout = _do_nothing

    def _expire(self) -> None:
        left_s = min(self._since + self._delay_s, self._latest) - self._loop.time()
        if left_s > 0:
            self._handle = self._loop.call_later(left_s, self._expire)
            return
        self._handle = None
        self.is_armed = False
        self._on_timeout()


def _do_nothing() -> None: ...
