"""ProcessUsage: the CPU, the memory and the queues of this process, for load reports."""

import time
from collections.abc import Callable
from functools import partial

from gateway.app.run.process import memory_bound
from gateway.app.run.worker_slot import WorkerSlot, available_cores
from gateway.frontend.load_report import Load
from gateway.policies.limits.shed_load import resident_bytes
from gateway.telemetry import names
from gateway.telemetry.metrics import Metrics

_PERIOD_S = 0.5


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
