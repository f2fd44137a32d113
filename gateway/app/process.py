"""How the process treats its memory: large buffers are kept, and what stays is left alone.

glibc maps each buffer above 128 KiB anew and unmaps it afterwards, and the kernel then zeroes it
page by page: 147 page faults for a tensor of 602,112 bytes, more than its translation costs.
Not here: how much may be in flight (`transports.admission`).

Source: mallopt(3); PERFORMANCE, section B3.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import Callable

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_MIB = 1 << 20
_LARGEST_KEPT = 64 * _MIB
_GROWTH = 16 * _MIB
_YOUNG = 5_000


def keep_large_buffers(kept_bytes: int) -> bool:
    """Let glibc take large buffers from its heap, and keep up to *kept_bytes* at its end unused.

    Does nothing where an operator has set a `MALLOC_...` variable, or where there is no glibc.

    Returns:
        Whether it was done.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    done = [
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT),
        mallopt(_TRIM_THRESHOLD, kept_bytes),
        mallopt(_TOP_PAD, _GROWTH),
    ]
    return all(done)


class MemoryTrimmer:
    """Gives free memory back to the system from time to time, while nothing is in flight.

    What `keep_large_buffers` keeps is meant for the next request; what lies free between buffers
    that live is kept as well, and grows with every burst. It takes a millisecond or two.

    Args:
        idle: Tells whether nothing is in flight.
        every_s: Between two looks.
    """

    def __init__(self, idle: Callable[[], bool], every_s: float = 30.0) -> None:
        self._idle = idle
        self._every_s = every_s
        self._trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; does nothing where there is no glibc."""
        if self._trim is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._every_s, self._look)

    def stop(self) -> None:
        """End; harmless the second time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._trim is not None and self._idle():
            self._trim(_GROWTH)
        self.start()


def freeze_startup_objects() -> None:
    """Spare the garbage collector all that was made so far: it lives as long as the process.

    A full collection looks at every object there is: 40 ms for the modules alone, in which no call
    is answered. What calls leave behind is nearly all gone without a collector, so it looks less
    often: at its usual pace it took 3 % of the time of small requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)


_SWITCH_S = 0.0005


def shorten_switch_interval() -> None:
    """Let no thread of this process wait longer than half a millisecond for another."""
    sys.setswitchinterval(_SWITCH_S)
