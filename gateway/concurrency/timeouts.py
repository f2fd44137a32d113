"""Timeouts of tasks and timers of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from gateway.concurrency.timer_wheel import TimerWheel

_NO_TASK: Final = "a timeout needs a running task"


class Timeout:
    """Ends the block that it guards with TimeoutError, as `asyncio.timeout` does.

    A plain context manager with one timer costs a third of `asyncio.timeout`.

    Args:
        delay_s: Seconds from the entry of the block.
        remaining_s: Called when the time has passed; returns for how many seconds the block may
            still run, or 0.  None ends the block at once.

    Attributes:
        expired: The timeout has cancelled the task.
    """

    __slots__ = ("_before", "_delay_s", "_remaining_s", "_task", "_timer", "expired")

    def __init__(self, delay_s: float, remaining_s: Callable[[], float] | None = None) -> None:
        self._delay_s = delay_s
        self._remaining_s = remaining_s
        self.expired = False

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
        self.expired = True
        self._task.cancel()

    def finish(self, error: BaseException | None) -> bool:
        """Stop the timer, and return whether the timeout caused *error*, which ended the block."""
        self._timer.cancel()
        return self.expired and self._is_cause_of(error)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, *_details: object
    ) -> None:
        if self.finish(error):
            raise TimeoutError

    def _is_cause_of(self, error: BaseException | None) -> bool:
        # If somebody else has cancelled the task too, the cancellation must not become a timeout.
        is_only = self._task.uncancel() <= self._before
        return (is_only and type(error) is asyncio.CancelledError) or isinstance(
            error, TimeoutError
        )


class WheelTimeout(Timeout):
    """A timeout on a timer wheel, which starts when it is made.

    It expires some milliseconds late, at a fraction of a timer's cost.  Its maker calls `finish`
    however the block ends.

    Args:
        wheel: Where the timeout is scheduled.
        deadline: On the wheel's clock.
    """

    __slots__ = ("_step", "_wheel")

    on_timeout = Timeout.expire

    def __init__(self, wheel: TimerWheel, deadline: float) -> None:
        # `asyncio.current_task()` alone would look for the loop, which is a system call.
        task = asyncio.current_task(wheel.loop) or asyncio.current_task()
        if task is None:
            raise RuntimeError(_NO_TASK)
        self._task = task
        self._before = task.cancelling()
        self.expired = False
        self._wheel = wheel
        self._step = wheel.schedule(self, deadline)

    def finish(self, error: BaseException | None) -> bool:
        """Cancel the entry, and return whether the timeout caused *error*."""
        self._wheel.cancel(self, self._step)
        return self.expired and self._is_cause_of(error)


class RestartableTimer:
    """Calls *on_timeout* once, *delay_s* after it was started, unless it is stopped before.

    Args:
        loop: The event loop of the timer.
        delay_s: Seconds.
        on_timeout: May start the timer again.

    Attributes:
        armed: The timer is running.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, delay_s: float, on_timeout: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._on_timeout = on_timeout
        self._handle: asyncio.TimerHandle | None = None
        self.armed = False

    def start(self) -> None:
        """Start the timer; a timer that runs is not restarted."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._delay_s, self._expire)
            self.armed = True

    def stop(self) -> None:
        """Stop the timer; harmless when it does not run."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self.armed = False

    def close(self) -> None:
        """Stop the timer for good, and drop the reference to *on_timeout*."""
        self.stop()
        self._on_timeout = _do_nothing

    def _expire(self) -> None:
        self._handle = None
        self.armed = False
        self._on_timeout()


def _do_nothing() -> None: ...
