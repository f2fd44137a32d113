"""CutoverController: decides once a second where each cut-over goes on, in the leading process.

That is the supervisor of the workers, or the only process of a gateway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.api.start_error import StartError, reason_of
from gateway.concurrency.background import end_tasks
from gateway.concurrency.own_thread import on_own_thread
from gateway.concurrency.timeouts import is_set_within
from gateway.config.load import ConfigError, LoadedConfig
from gateway.config.models import Config
from gateway.migration import names
from gateway.migration.cutover.files import CutoverFiles, PendingRollback
from gateway.migration.cutover.interfaces import (
    EvidenceKeeper,
    ReplicaReports,
    ServingProcesses,
    StateStore,
)
from gateway.migration.cutover.leader import LeaderCutover
from gateway.migration.cutover.plans import cutover_directory, cutover_plans
from gateway.migration.cutover.replicas import Replicas, own_name
from gateway.migration.cutover.states import IDLE_PHASES, Phase
from gateway.migration.cutover.steps import CutoverPlan
from gateway.migration.evidence.verdicts import Standing
from gateway.migration.settings import MIGRATIONS
from gateway.migration.targets import live_migrations
from gateway.telemetry.families import counter_family, gauge_family

if TYPE_CHECKING:
    from gateway.migration.cutover.kubernetes_replicas import ApiServer, ClusterReplicas

log = structlog.get_logger(__name__)

_INTERVAL_S: Final = 1.0
_GUARD_VALUES: Final = {Standing.HOLDS: 1.0, Standing.UNDECIDED: 0.0, Standing.TRIPS: -1.0}


class CutoverController(Collector):
    """All cut-overs of a gateway.

    The states are read when it is created, so that the serving processes begin with their weights.

    Args:
        loaded: A configuration without errors.
        clock: Seconds since the epoch.
        monotonic: Monotonic seconds; the clock of the event loop by default.
        interval_s: Time between two decisions.

    Raises:
        StartError: A directory of states cannot be used.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        *,
        clock: Callable[[], float] = time.time,  # noqa: TID251  # a time that operators read
        monotonic: Callable[[], float] | None = None,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic or asyncio.get_running_loop().time
        self._interval_s = interval_s
        self._processes: ServingProcesses | None = None
        self._keeper: EvidenceKeeper | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._api_server: ApiServer | None = None
        self._cutovers: dict[str, LeaderCutover] = {}
        try:
            for plan in cutover_plans(loaded.config).values():
                self._cutovers[plan.migration] = self._open(plan, loaded)
        except OSError as error:
            self._close()
            raise StartError(f"state of a cut-over: {reason_of(error)}") from error
        except StartError:
            self._close()
            raise

    def _open(self, plan: CutoverPlan, loaded: LoadedConfig) -> LeaderCutover:
        config = MIGRATIONS.of(loaded.config)[plan.migration].cutover
        coordinate = "none" if config is None else config.coordinate
        store: StateStore
        replicas: ReplicaReports | None = None
        pending: PendingRollback | None = None
        if coordinate == "kubernetes":
            cluster = self._cluster(plan.migration)
            store, replicas = cluster, cluster
            if loaded.config.state is not None:
                pending = PendingRollback(cutover_directory(loaded, plan.migration), plan.migration)
        else:
            directory = cutover_directory(loaded, plan.migration)
            if coordinate == "file":
                replicas = Replicas(directory, plan.migration, own_name(), self._clock)
            store = CutoverFiles(directory, plan.migration)
        return LeaderCutover(
            plan, store, lambda: self._keeper, self._clock, self._monotonic, replicas, pending
        )

    def _cluster(self, migration: str) -> ClusterReplicas:
        """Return the gateways of a cut-over in the cluster of this pod.

        Raises:
            StartError: The client library is missing, or this is no pod with a service account.
        """
        try:
            from gateway.migration.cutover import kubernetes_replicas  # noqa: PLC0415  # optional
        except ImportError as error:
            raise StartError(
                "'coordinate: kubernetes' needs the client library of Kubernetes: "
                f"pip install 'tensor-gateway[kubernetes]': {error}"
            ) from error
        if self._api_server is None:
            self._api_server = kubernetes_replicas.ApiServer(self._monotonic)
        return kubernetes_replicas.ClusterReplicas(
            self._api_server, migration, own_name(), self._clock, self._monotonic
        )

    def weights(self) -> dict[str, tuple[float, int, int]]:
        """Return percentage, epoch and attempt of each migration."""
        return {name: each.weight() for name, each in self._cutovers.items()}

    def start(self, processes: ServingProcesses, keeper: EvidenceKeeper | None) -> None:
        """Begin to decide.

        Args:
            processes: The processes that serve clients.
            keeper: Has the evidence; None if nothing compares replies.
        """
        self._processes, self._keeper = processes, keeper
        for each in self._cutovers.values():
            each.resume_comparisons()
        if self._cutovers:
            self._task = asyncio.create_task(self._run(processes))

    def wake(self) -> None:
        """Decide soon: something has happened in a serving process."""
        self._wake.set()

    async def stop(self) -> None:
        """Write the states, and let other gateways lead; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks(task)
        for each in self._cutovers.values():
            await each.end()
        if self._api_server is not None:
            self._api_server.close()

    def _close(self) -> None:
        for each in self._cutovers.values():
            each.close()
        if self._api_server is not None:
            self._api_server.close()

    async def _run(self, processes: ServingProcesses) -> None:
        while True:
            try:
                await self._check(processes)
            except Exception:  # a bug: the weights stay, and the guards of the workers work
                log.exception("internal error")
            if await is_set_within(self._wake, self._interval_s):
                self._wake.clear()

    async def _check(self, processes: ServingProcesses) -> None:
        before = self.weights()
        reports = await processes.exchange_weights(before)
        for each in list(self._cutovers.values()):
            await each.evaluate(reports)
        if self.weights() != before:
            await processes.exchange_weights(self.weights())

    def document(self, migration: str) -> dict[str, Any] | None:
        """Return where a cut-over stands, as JSON values; None if there is none."""
        found = self._cutovers.get(migration)
        return None if found is None else found.document()

    def moved(self, config: Config) -> Mapping[str, tuple[str, float]]:
        """Return the target and the percentage of each cut-over, by route."""
        return {
            live.route: (live.new_name, self._cutovers[live.name].document()["weight"])
            for live in live_migrations(config)
            if live.name in self._cutovers
        }

    def verdict(self, migration: str) -> tuple[Standing, dict[str, Any]] | None:
        """Return the verdict of all guards for other controllers; None without a cut-over."""
        found = self._cutovers.get(migration)
        return None if found is None else found.verdict()

    async def command(
        self, migration: str, command: str, at_step: int | None = None
    ) -> dict[str, Any]:
        """Do what an operator wants, and return where the cut-over stands then.

        All serving processes that reply in time use the new weight when this returns.

        Raises:
            LookupError: There is no such cut-over.
            CommandRefused: The command does not fit its state.
        """
        found = self._cutovers.get(migration)
        if found is None:
            names = ", ".join(sorted(self._cutovers)) or "none"
            raise LookupError(f"no cut-over of {migration!r}; expected one of {names}")
        await found.command(command, at_step)
        if self._processes is not None:
            await self._processes.exchange_weights(self.weights())
        self.wake()
        return found.document()

    def check(self, loaded: LoadedConfig) -> None:
        """Check that a configuration changes no cut-over that is under way.

        Raises:
            ConfigError: It does; the error has a problem for each.
        """
        plans = cutover_plans(loaded.config)
        problems = [
            loaded.problem(("migrations", name), _changed(name, each))
            for name, each in self._cutovers.items()
            if each.state.phase not in IDLE_PHASES
            and not (each.state.phase is Phase.DONE and name not in plans)
            and (name not in plans or plans[name].digest != each.plan.digest)
        ]
        if problems:
            raise ConfigError(loaded.source, problems)

    async def change(self, loaded: LoadedConfig) -> None:
        """Follow another configuration that `check` has accepted.

        Raises:
            StartError: A directory of states cannot be used.
        """
        plans = cutover_plans(loaded.config)
        for name, each in list(self._cutovers.items()):
            if name not in plans or plans[name].digest != each.plan.digest:
                del self._cutovers[name]
                await each.end()
        try:
            for name, plan in plans.items():
                if name not in self._cutovers:
                    self._cutovers[name] = await on_own_thread(self._open, plan, loaded)
        except OSError as error:
            raise StartError(f"state of a cut-over: {reason_of(error)}") from error
        if self._cutovers and self._task is None and self._processes is not None:
            self._task = asyncio.create_task(self._run(self._processes))
        self.wake()

    def collect(self) -> Iterable[Metric]:
        """Return step, weight, state and guards of each cut-over; nothing if there is none."""
        if not self._cutovers:
            return ()
        step = gauge_family(names.CUTOVER_STEP)
        weight = gauge_family(names.CUTOVER_WEIGHT)
        state = gauge_family(names.CUTOVER_STATE)
        guard = gauge_family(names.CUTOVER_GUARD)
        rollbacks = counter_family(names.CUTOVER_ROLLBACKS)
        for name, each in self._cutovers.items():
            here = each.state_here
            step.add_metric([name], here.step)
            weight.add_metric([name], here.weight)
            for phase in Phase:
                state.add_metric([name, phase.value], float(phase is here.phase))
            for verdict in each.guards():
                guard.add_metric([name, verdict.guard], _GUARD_VALUES[verdict.standing])
            for cause, count in each.trips.items():
                rollbacks.add_metric([name, cause], count)
        return (step, weight, state, guard, rollbacks)


def _changed(name: str, cutover: LeaderCutover) -> str:
    phase = cutover.state.phase
    expected = f"expected 'gateway cutover rollback {name}' first"
    if phase is Phase.DONE:
        expected = "expected no 'cutover' any more, the weights in the route, and a restart"
    return f"the cut-over of {name!r} is {phase.value}: its plan cannot change; {expected}"
