"""The number of a worker among all workers, and its share of limits that all workers divide."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gateway.protocols.trtis.request_numbers import RequestIds
from gateway.settings.units import AUTO

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """One worker of several, or the only process.

    Attributes:
        number: The worker's number, from 1; 0 for the shadow process.
        count: The number of workers.
        role: Whether the process serves clients, or writes captures (`shadow`).
    """

    number: int = 1
    count: int = 1
    role: Literal["serving", "shadow"] = "serving"

    @property
    def is_single(self) -> bool:
        """Whether this is the only process, which serves the admin pages itself."""
        return self.count == 1

    def share(self, total: int) -> int:
        """Return this worker's part of *total*, at least 1 unless *total* is 0."""
        if total == 0:
            return 0
        return max(1, total // self.count + (self.number <= total % self.count))

    def request_ids(self, clock: Callable[[], int] = time.monotonic_ns) -> RequestIds:
        """Return the request counters of this process; the numbers of all workers differ.

        A worker starts at the microseconds of the machine's clock, so that its numbers also
        differ from those of its earlier processes.
        """
        if self.is_single:
            return RequestIds()
        return RequestIds(clock() // 1000 * self.count + self.number, self.count)


SINGLE_PROCESS = WorkerSlot()


def resolve_workers(configured: int, quota: Path = _QUOTA) -> int:
    """Return the number of processes for `workers` of the configuration on this machine."""
    return available_cores(quota) if configured == AUTO else configured


def available_cores(quota: Path = _QUOTA) -> int:
    """Return how many cores this process may use, by its CPU affinity and its cgroup quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        limit, period = quota.read_text().split()
        return max(1, min(cores, math.ceil(int(limit) / int(period))))
    except (OSError, ValueError):  # no cgroup, or "max"
        return cores
