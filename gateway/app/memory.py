"""How the process treats its memory: large buffers are kept, and what stays is left alone.

glibc maps each buffer above 128 KiB anew and unmaps it afterwards, and the kernel then zeroes it
page by page: 147 page faults for a tensor of 602,112 bytes, more than its translation costs.
Not here: how much may be in flight (`transports.admission`).

Source: mallopt(3); PERFORMANCE, section B3.
"""

from __future__ import annotations

import ctypes
import gc
import os

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


def leave_what_stays() -> None:
    """Spare the garbage collector all that was made so far: it lives as long as the process.

    A full collection looks at every object there is: 40 ms for the modules alone, in which no call
    is answered. What calls leave behind is nearly all gone without a collector, so it looks less
    often: at its usual pace it took 3 % of the time of small requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
