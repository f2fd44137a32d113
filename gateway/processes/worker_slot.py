"""The number of a worker among all workers, and its share of limits that all workers divide."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gateway.api.protocol import Options, ProtocolSpec
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


SINGLE_PROCESS = WorkerSlot()


class ProcessOptions:
    """The options of protocols that all listeners of one process share.

    Args:
        slot: The process among all workers.
    """

    def __init__(self, slot: WorkerSlot = SINGLE_PROCESS) -> None:
        self._slot = slot
        self._made: dict[str, Options] = {}

    def of_protocol(self, spec: ProtocolSpec) -> Options:
        """Return the options of a protocol, the same objects each time."""
        if spec.name not in self._made:
            self._made[spec.name] = spec.process_options(self._slot.number, self._slot.count)
        return self._made[spec.name]


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
