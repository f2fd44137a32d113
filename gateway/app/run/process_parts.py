"""ProcessParts: the objects of a process, which all service graphs and listeners use."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gateway.app.build.parts import ServingParts
from gateway.app.chains.tracing import Tracing
from gateway.policies.hand_over.pool import RegionPool
from gateway.policies.limits.shed_load import ProcessLoad
from gateway.policies.observe import Recorder
from gateway.policies.shared_memory.forwarded import ForwardedRegions
from gateway.policies.shared_memory.regions import Regions
from gateway.processes.worker_slot import WorkerSlot
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.log.call_log import CallLog
from gateway.telemetry.metrics import Metrics
from gateway.transports.memory_budget import MemoryBudget


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """The objects of the process, which every graph and every listener uses.

    Attributes:
        record: Called with the record of each call.
        call_log: Writes the line of each call.
        regions: Shared memory that clients registered with the gateway.
        forwarded: Shared memory that clients registered with upstreams.
        load: The load of the process.
        obstacle: Returns why the process is not ready whatever its routes are; "" for no reason.
        new_path: Makes the record of a call's path.
        tracing: Makes spans; None for no spans.
        parts: The parts of extensions.
        pool: Shared memory in which large tensors are handed over to servers; empty by default.
    """

    metrics: Metrics
    budget: MemoryBudget
    slot: WorkerSlot
    record: Recorder
    call_log: CallLog
    regions: Regions
    forwarded: ForwardedRegions
    load: ProcessLoad
    obstacle: Callable[[], str] = str
    new_path: Callable[..., CallPath] = CallPath
    tracing: Tracing | None = None
    parts: ServingParts = field(default_factory=ServingParts)
    pool: RegionPool = field(default_factory=partial(RegionPool, 0))
