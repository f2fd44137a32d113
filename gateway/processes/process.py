"""The process: its memory allocator, garbage collector and thread switching, and its usage.

By default glibc maps and unmaps every buffer above 128 KiB, and the kernel zeroes each page: 147
page faults for a tensor of 602,112 bytes, which cost more time than its translation.
The memory budget of requests is in `transports.memory_budget`.

Source: mallopt(3).
"""

import asyncio
import contextlib
import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gateway.frontend.load_report import Load
from gateway.policies.limits.shed_load import resident_bytes
from gateway.processes.worker_slot import WorkerSlot, available_cores
from gateway.settings.units import parse_size
from gateway.telemetry import names
from gateway.telemetry.metrics import Metrics

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_MIB = 1 << 20
# Larger ones leave gaps in the heap that the next one, of another size, does not fit into: 200
# requests and responses of 16 MiB then took 2.0 to 2.5 budgets of memory; with this bound 1.3.
_LARGEST_HEAP_BUFFER = 4 * _MIB
_GROWTH = 16 * _MIB
_KEPT = _MIB
_KEPT_SMALL = 128 * 1024  # the default of glibc
_GC_THRESHOLD = 5_000
_PERIOD_S = 0.5
CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
"""The memory limit of the container, in bytes, or "max"."""


def keep_large_buffers(free_bytes: int) -> bool:
    """Allocate large buffers from the heap, and keep up to *free_bytes* of it free for reuse.

    Do nothing and return False if a `MALLOC_...` environment variable is set, or without glibc.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return False
    results = [
        mallopt(_MMAP_THRESHOLD, _LARGEST_HEAP_BUFFER),
        mallopt(_TRIM_THRESHOLD, free_bytes),
        mallopt(_TOP_PAD, _GROWTH),
    ]
    return all(results)


def _mallopt() -> Callable[[int, int], int] | None:
    """Return what sets the options of the allocator; None if the environment sets them."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return None
    return getattr(ctypes.CDLL(None), "mallopt", None)


class MemoryTrimmer:
    """Returns free memory to the system: periodically while no request is in flight, or is scarce.

    `keep_large_buffers` also keeps the free memory between live buffers, which grows with every
    burst of requests. One trim takes 1 to 2 ms.

    Python's cache of type attributes holds up to 4,096 names, many of them short strings that C
    code made during a request. Each keeps an arena of 1 MiB, so an idle process empties the cache
    first: of 37 MiB for 9,000 HTTP connections, it then keeps 15 to 25 after they have closed.

    Args:
        is_idle: Returns whether no request is in flight.
        interval_s: Time between two trims.
        scarce_interval_s: Time between two trims while memory is scarce.
    """

    def __init__(
        self,
        is_idle: Callable[[], bool],
        interval_s: float = 30.0,
        scarce_interval_s: float = 0.1,
    ) -> None:
        self._is_idle = is_idle
        self._interval_s = interval_s
        self._scarce_interval_s = scarce_interval_s
        self._is_scarce = False
        self._trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._mallopt = _mallopt()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer; do nothing without glibc."""
        if self._trim is not None:
            loop = asyncio.get_running_loop()
            interval_s = self._scarce_interval_s if self._is_scarce else self._interval_s
            self._timer = loop.call_later(interval_s, self._on_timer)

    def stop(self) -> None:
        """Cancel the timer; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_scarce(self, is_scarce: bool) -> None:
        """Map each large buffer while memory is scarce, so that it is returned when it is freed.

        Requests that arrive slowly otherwise leave gaps in the heap: 160 bodies of 1.5 MB took 2.5
        budgets of memory.
        """
        self._is_scarce = is_scarce
        if self._mallopt is not None:
            self._mallopt(_MMAP_THRESHOLD, _KEPT_SMALL if is_scarce else _LARGEST_HEAP_BUFFER)
        if self._timer is not None:
            self.stop()
            self.start()

    def _on_timer(self) -> None:
        if self._trim is not None and (self._is_scarce or self._is_idle()):
            if not self._is_scarce:
                _clear_type_cache()
            self._trim(_KEPT)
        self.start()


_clear_type_cache: Callable[[], None] = getattr(
    sys,
    "_clear_internal_caches",  # since Python 3.13
    sys._clear_type_cache,  # noqa: SLF001  # it has no public name
)


def freeze_startup_objects() -> None:
    """Exclude all objects that exist now from garbage collection, and collect less often.

    A full collection visits every object: 40 ms for the modules alone, in which no call proceeds.
    Calls leave almost no reference cycles; with the default threshold the collector took 3 % of
    the time of small requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


_SWITCH_INTERVAL_S = 0.0005


def shorten_switch_interval() -> None:
    """Let threads of this process switch after half a millisecond instead of 5 ms."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def memory_bound(text: str, slot: WorkerSlot) -> int:
    """Return a size in bytes; a percentage is one of this worker's share of the memory limit.

    Args:
        text: A size, such as "4GiB", or a percentage, such as "90%".
        slot: The number of this process among all workers.
    """
    if not text.endswith("%"):
        return parse_size(text)
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
        limit = min(limit, int(CGROUP_MEMORY.read_text()))
    return slot.share(limit * int(text[:-1]) // 100)


class ProcessUsage:
    """Measures the process when somebody asks, at most twice a second.

    Args:
        slot: The number of this process among all workers, which share the machine.
        queued: Returns the inferences that wait.
        clock: Monotonic seconds.
        cpu: Seconds of CPU that the process has used.
    """

    def __init__(
        self,
        slot: WorkerSlot,
        queued: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._cores = available_cores() / slot.count
        self._memory = memory_bound("100%", slot)
        self._queued = queued
        self._clock = clock
        self._cpu = cpu
        self._measured = clock(), cpu()
        self._used = 0.0

    def __call__(self) -> Load:
        """Return the load; that of the CPU since the measurement before the last one."""
        then, before = self._measured
        now = self._clock()
        if now - then >= _PERIOD_S:
            used = self._cpu()
            self._used = (used - before) / (now - then) / self._cores
            self._measured = now, used
        memory = resident_bytes() / self._memory
        return Load(self._used, memory, {"queue": self._queued()})


def process_usage(slot: WorkerSlot, metrics: Metrics) -> ProcessUsage:
    """Return the usage of this process, whose queues are those of its routes."""
    return ProcessUsage(slot, partial(metrics.gauges.total, names.ROUTE_QUEUED))
