"""For how long processes had no processor: time that a test must not count against the gateway."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_STEAL: Final = 8  # the column of /proc/stat
_DELAYED: Final = 1  # the column of /proc/PID/schedstat, in nanoseconds


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


def stolen_s() -> float:
    """Return for how long other virtual machines had this one's processors, since its start."""
    with Path("/proc/stat").open() as lines:
        return int(next(lines).split()[_STEAL]) / _TICKS_PER_S


def _delayed_ns(task: Path) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
        return int((task / "schedstat").read_text().split()[_DELAYED])
    return 0
