"""Time that a test must not count against the gateway: of other work, and of the garbage collector."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_STEAL: Final = 8  # the column of /proc/stat
_USUAL_S: Final = 0.018  # what the work of `slowness` takes on the machine for which limits are
_DELAYED: Final = 1  # the column of /proc/PID/schedstat, in nanoseconds


@contextmanager
def within_processor_s(limit_s: float) -> Iterator[None]:
    """Fail if this thread takes more than *limit_s* seconds of a processor for what the block does.

    The collector is off meanwhile: a collection takes the time of what earlier tests left.
    """
    gc.disable()
    started = time.thread_time()
    try:
        yield
    finally:
        gc.enable()
        took_s = time.thread_time() - started
        assert took_s < limit_s, f"took {took_s:.3f} s of a processor, more than {limit_s} s"


def delayed_s(*processes: int) -> float:
    """Return for how long threads were ready to run while others ran; compare two of these.

    It is the sum over the threads of *processes* and of this one, whose threads wait for each other,
    and what other virtual machines took of this one's processors.
    """
    total = 0
    for process in {os.getpid(), *processes}:
        with suppress(FileNotFoundError):  # it has ended
            total += sum(map(_delayed_ns, Path(f"/proc/{process}/task").iterdir()))
    return total / 1e9 + stolen_s()


def slowness() -> float:
    """Return how many times as long as usual the same work takes now, 1.0 at least.

    Other processes share caches, memory and clock rates, and machines of CI are slower. So it
    makes objects, as messages do.
    """
    started = time.process_time()
    for _ in range(3):
        made = [str(each).encode() for each in range(60_000)]
        sum(map(len, made))
    return max(1.0, (time.process_time() - started) / _USUAL_S)


def stolen_s() -> float:
    """Return for how long other virtual machines had this one's processors, since its start."""
    with Path("/proc/stat").open() as lines:
        return int(next(lines).split()[_STEAL]) / _TICKS_PER_S


def _delayed_ns(task: Path) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
        return int((task / "schedstat").read_text().split()[_DELAYED])
    return 0
