"""A process's place among those that serve together, and what each gets of what all share."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from gateway.config.units import AUTO

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """One worker of several, or the one process there is.

    Attributes:
        number: Which one, from 1.
        count: How many there are.
    """

    number: int = 1
    count: int = 1

    @property
    def is_alone(self) -> bool:
        """Whether this process serves alone, and answers operators itself."""
        return self.count == 1

    def share(self, total: int) -> int:
        """Return this worker's part of *total*; nobody is left with none where there is any."""
        if total == 0:
            return 0
        return max(1, total // self.count + (self.number <= total % self.count))


SINGLE_PROCESS = WorkerSlot()


def workers_of(configured: int, quota: Path = _QUOTA) -> int:
    """Return how many processes `workers` in the configuration means on this machine."""
    return available_cores(quota) if configured == AUTO else configured


def available_cores(quota: Path = _QUOTA) -> int:
    """Return how many cores this process may use: its affinity, and its cgroup's share of time."""
    cores = len(os.sched_getaffinity(0))
    try:
        granted, period = quota.read_text().split()
        return max(1, min(cores, math.ceil(int(granted) / int(period))))
    except (OSError, ValueError):  # no cgroup, or "max"
        return cores
