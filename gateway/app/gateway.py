"""The gateway of one process: built from a configuration, started, drained, stopped."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from types import MappingProxyType

import structlog
from prometheus_client.core import Metric

from gateway import __version__
from gateway.app.admin import PAGE_DRAIN_S, start_pages
from gateway.app.admin_api.api import AdminApi, AdminSources, CutoverSource
from gateway.app.announce import log_addresses, log_models
from gateway.app.check import check
from gateway.app.control import Control
from gateway.app.errors import REASONS, StartError, reason_of
from gateway.app.export import open_export
from gateway.app.listeners import SharedResources, build_listener, log_extensions
from gateway.app.migration.shifts import NO_WEIGHTS, ServingShifts, ShiftWeights
from gateway.app.process import CGROUP_MEMORY, MemoryTrimmer
from gateway.app.recording import StockKeeper
from gateway.app.retirement import EarlierSequences, Retirements
from gateway.app.service_graph import ProcessParts, ServiceGraph
from gateway.app.shadow.client import ShadowClient
from gateway.app.shadow.keeper import EvidenceDocuments, ShadowKeeper, shadow_channels
from gateway.app.status import Document, gauge_entries
from gateway.app.upstreams import max_connections
from gateway.app.worker_slot import SINGLE_PROCESS, WorkerSlot
from gateway.config.load import ConfigError, LoadedConfig
from gateway.config.models import Config
from gateway.policies.limits.shed_load import ProcessLoad
from gateway.policies.observe import Recorder
from gateway.policies.shared_memory.forwarded import ForwardedRegions
from gateway.policies.shared_memory.regions import Regions
from gateway.routing.finish_sequences import FinishSequences
from gateway.service import Service
from gateway.telemetry import log as logs
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.call_log import CallLog
from gateway.telemetry.call_path import CallPath, inherited_path
from gateway.telemetry.loop_lag import LoopLag
from gateway.telemetry.metrics import Metrics
from gateway.transports.admission import MemoryBudget
from gateway.transports.contract import Server

log = structlog.get_logger(__name__)

_MIB = 1 << 20
_BUDGET_BYTES = 512 * _MIB
_CGROUP_SHARE = 0.4


class Gateway:
    """All listeners, routes, upstreams and models of one process.

    Args:
        loaded: A configuration that matches the schema.
        slot: The number of this process among all workers, which share its addresses.
        sockets: Unix sockets that the workers share, by address.
        drained: Endpoints that get no calls, as "UPSTREAM/ENDPOINT".
        shadow: The sockets to the shadow process, by channel, if the configuration needs one; the
            only process of a gateway starts it itself.
        weights: Where the cut-overs of migrations stand.
        on_trip: Called when a guard of a cut-over trips in this process.

    Attributes:
        shifts: The cut-overs in this process.

    Raises:
        ConfigError: The configuration has an error that the schema does not find.
        StartError: A file, an option or an address is invalid.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        slot: WorkerSlot = SINGLE_PROCESS,
        sockets: Mapping[str, socket.socket] = MappingProxyType({}),
        drained: AbstractSet[str] = frozenset(),
        shadow: Mapping[str, socket.socket] = MappingProxyType({}),
        weights: ShiftWeights = NO_WEIGHTS,
        on_trip: Callable[[], None] = lambda: None,
    ) -> None:
        problems = check(loaded)
        if problems:
            raise ConfigError(loaded.source, problems)
        config = loaded.config
        self._slot = slot
        self._sockets = sockets
        self.metrics = Metrics(
            __version__,
            series=config.telemetry.metrics.series,
            triton="triton" in config.telemetry.metrics.compat,
        )
        self._is_stopping = False
        self._has_started = asyncio.Event()
        self._started = datetime.now(UTC)
        self._retirements = Retirements(self._forget_endpoints)
        self._shadow_sockets = shadow
        self.shifts = ServingShifts(weights, on_trip)
        try:
            self._build(loaded)
            self._graph.drain_endpoints(drained)
        except REASONS as error:
            raise StartError(reason_of(error)) from error

    def _build(self, loaded: LoadedConfig) -> None:
        config = loaded.config
        self._call_log = CallLog()
        self._configure_call_log(loaded)
        self._trimmer = MemoryTrimmer(lambda: not self._budget.used_bytes)
        self._budget = MemoryBudget(
            memory_budget(config, self._slot),
            config.in_flight_bytes_per_address,
            self._trimmer.on_scarce,
        )
        self._load = ProcessLoad()
        self._regions = Regions(config.shared_regions)
        self._stock_keeper = StockKeeper.of(loaded, self._slot.number)
        otlp = config.telemetry.otlp
        # The supervisor has the metrics of all workers.
        self._export = open_export(otlp, metrics=otlp.metrics and self._slot.is_single)
        new_path: Callable[..., CallPath] = CallPath
        record: Recorder = self.metrics.call
        if self._export is not None:
            new_path = self._export.new_path
            record = self._export.recorder(record, self.metrics.exemplify)
        self._shadow = self._connect_shadow(loaded, new_path)
        tap = None if self._shadow is None else self._shadow.tap
        self._process = ProcessParts(
            metrics=self.metrics,
            budget=self._budget,
            slot=self._slot,
            record=record,
            call_log=self._call_log,
            trends=self.metrics.trends.read,
            regions=self._regions,
            forwarded=ForwardedRegions(config.shared_regions, is_shared=not self._slot.is_single),
            load=self._load,
            stock=None if self._stock_keeper is None else self._stock_keeper.stock.count,
            new_path=(new_path if tap is None else partial(inherited_path, new_path=new_path)),
            tracing=None if self._export is None else self._export.tracing,
            shifts=self.shifts,
            mirrors={} if self._shadow is None else self._shadow.mirrors,
        )
        self._graph = ServiceGraph(loaded, self._process)
        # What the listeners call: the entries of the graph, except after a reload.
        self._entries = self._graph.entries
        self.metrics.watch(
            "gateway_in_flight_bytes",
            "Bytes of the memory budget in use by requests and responses.",
            lambda: self._budget.used_bytes,
        )
        self.metrics.watch(
            "gateway_in_flight_bytes_limit",
            "Size of the memory budget in bytes.",
            lambda: self._budget.limit_bytes,
        )
        self.metrics.watch_config(lambda: {"sha256": self._graph.loaded.sha256})
        self._loop_lag = LoopLag(self._measure_load)
        shared = SharedResources(
            metrics=self.metrics,
            call_log=self._call_log,
            budget=self._budget,
            directory=loaded.directory,
            can_cut_through=any(each.transport == "native" for each in config.upstreams.values()),
            upstream_connections=max_connections(config.upstreams.values()),
            reuse_port=config.lifecycle.hand_over or not self._slot.is_single,
            should_replace=config.lifecycle.hand_over,
            sockets=self._sockets,
            request_ids=self._slot.request_ids(),
            tap=tap,
            tracing=self._process.tracing,
        )
        self._listeners = [
            build_listener(listener, self._entries[listener.name], self.ready, shared)
            for listener in config.listeners
        ]
        self._data_servers: dict[str, Server] = {}
        for built in self._listeners:
            self._data_servers |= built.servers
        self._admin_servers: dict[str, Server] = {}

    def _connect_shadow(
        self, loaded: LoadedConfig, new_path: Callable[[], CallPath]
    ) -> ShadowClient | None:
        """Return the connection to the shadow process; None if the configuration needs none."""
        if not shadow_channels(loaded):
            return None
        keeper, sockets = None, self._shadow_sockets
        if not sockets:
            keeper = ShadowKeeper(loaded, self._slot.count)
            self.metrics.registry.register(keeper)
            sockets = keeper.serving_ends(self._slot.number)
        return ShadowClient(loaded, sockets, keeper, self.metrics, new_path)

    @property
    def shadow_keeper(self) -> ShadowKeeper | None:
        """The keeper of the shadow process; None if none runs, or if the supervisor has it."""
        return None if self._shadow is None else self._shadow.keeper

    @property
    def service(self) -> Service:
        """The entry of calls without a listener: no default model, no shared memory."""
        return self._graph.entries[""].service

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses it listens on, by name: "main.http", "main.grpc", "admin", "metrics"."""
        listening = self._servers if self._has_started.is_set() else self._admin_servers
        return {name: server.address for name, server in listening.items()}

    @property
    def _servers(self) -> dict[str, Server]:
        return self._data_servers | self._admin_servers

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page, and its content type."""
        return self.metrics.page(accept)

    async def families(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self.metrics.registry.collect()

    async def status(self) -> Document:
        """Return the status of the process, as GET /status shows it."""
        ready = await self.ready()
        reason = "" if ready else self._not_ready_reason()
        return {
            "version": __version__,
            "ready": ready,
            "reason": reason,
            "started": self._started.isoformat(timespec="seconds"),
            "listeners": self.addresses,
            **self._graph.status(),
            "limits": {
                "in_flight_bytes": self._budget.used_bytes,
                "in_flight_bytes_limit": self._budget.limit_bytes,
                **gauge_entries(self.metrics.gauges),
            },
            "warnings": logs.recent_warnings(),
        }

    def _not_ready_reason(self) -> str:
        is_starting = not (self._has_started.is_set() or self._is_stopping)
        return "starting" if is_starting else self._graph.server.not_ready_reason()

    def _api(self, control: Control | None, cutovers: CutoverSource | None) -> AdminApi | None:
        if control is None:
            return None
        keeper = self.shadow_keeper
        evidence = None if keeper is None else EvidenceDocuments(keeper)
        sources = AdminSources(self.status, self.families, control, evidence, cutovers)
        return AdminApi(sources, control.access)

    async def ready(self) -> bool:
        """Return whether the gateway accepts inference requests."""
        return self._has_started.is_set() and self._graph.server.ready()

    async def start(
        self, control: Control | None = None, cutovers: CutoverSource | None = None
    ) -> None:
        """Open the admin pages, load the models, start the probes of the upstreams, and listen.

        Args:
            control: Handles the admin pages about the configuration; None for no such pages.
            cutovers: Decides about cut-overs; None for none.

        Raises:
            StartError: A model cannot be loaded, or an address is not available.
        """
        try:
            # Another gateway still has the port that a hand-over shares, and is ready.
            opens_pages_first = not self._graph.config.lifecycle.hand_over
            if opens_pages_first:
                await self._start_pages(control, cutovers)
            if self._shadow is not None:
                await self._shadow.start()
            if self._stock_keeper is not None:
                self._stock_keeper.start()
            await self._graph.start()
            for server in self._data_servers.values():
                await server.start()
            self._trimmer.start()
            self._loop_lag.start()
            if self._export is not None:
                self._export.start_metrics(self.families)
            if not opens_pages_first:
                await self._start_pages(control, cutovers)
        except StartError:
            await self._close()
            raise
        except REASONS as error:
            await self._close()
            raise StartError(reason_of(error)) from error
        self._has_started.set()
        if self._slot.is_single:
            log_extensions(self._graph.config.listeners)
            log_addresses(self.addresses)
            log.info("started", version=__version__, **self.addresses)

    async def _start_pages(self, control: Control | None, cutovers: CutoverSource | None) -> None:
        if not self._slot.is_single:  # the supervisor has the pages
            return
        self._admin_servers = await start_pages(
            self._graph.config.admin,
            self.page,
            self.ready,
            control,
            self.status,
            self._api(control, cutovers),
            reuse_port=self._graph.config.lifecycle.hand_over,
        )

    async def announce(self) -> None:
        """Log the models that clients can reach, and a command to try."""
        graph = self._graph
        await log_models(graph.server, graph.config.listeners, self.addresses)

    async def stop(self, pre_stop_s: float | None = None, drain_s: float | None = None) -> None:
        """Report not ready, wait, finish the calls in flight, and close; idempotent.

        Args:
            pre_stop_s: Time to report not ready before draining; `lifecycle.pre_stop` by default.
            drain_s: Longest time to wait for calls in flight; `lifecycle.drain` by default.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        lifecycle = self._graph.config.lifecycle
        self._graph.server.drain()
        if self._slot.is_single:
            log.info("not ready", reason="stopping")
        for server in self._data_servers.values():
            server.announce_close()
        pre_stop = asyncio.sleep(lifecycle.pre_stop if pre_stop_s is None else pre_stop_s)
        pages = self._admin_servers.values() if lifecycle.hand_over else ()
        await asyncio.gather(pre_stop, *(page.drain(PAGE_DRAIN_S) for page in pages))
        drain = lifecycle.drain if drain_s is None else drain_s
        end = monotonic() + drain
        await asyncio.gather(*(server.drain(drain) for server in self._data_servers.values()))
        await self._graph.drain(max(0.0, end - monotonic()))
        await self._retirements.finish(max(0.0, end - monotonic()))
        await self._close()
        if self._slot.is_single:  # the supervisor logs this for its workers
            log.info("stopped")

    async def reload(
        self, loaded: LoadedConfig, drained: AbstractSet[str] = frozenset()
    ) -> dict[str, list[str]]:
        """Replace the configuration of everything but the listeners; return what changed.

        Calls that begin from now on use the new configuration. Calls in progress finish with the
        old one. The method waits a second for them; the rest has until `lifecycle.drain`.

        Args:
            loaded: A configuration without errors, with the same listeners.
            drained: Endpoints that get no new calls, as "UPSTREAM/ENDPOINT".

        Raises:
            StartError: A file, an option or a model is invalid. Nothing has changed.
        """
        await self._has_started.wait()
        try:
            graph = ServiceGraph(loaded, self._process, self._graph)
            try:
                await graph.start()
                if self._is_stopping:
                    raise ValueError("the gateway is stopping")  # noqa: TRY301  # as any reason
            except BaseException:
                await graph.close(self._graph.parts)
                raise
        except REASONS as error:
            raise StartError(reason_of(error)) from error
        graph.drain_endpoints(drained)
        if self._shadow is not None:
            self._shadow.change(loaded)
        await self._replace_graph(graph)
        return graph.parts.changes()

    async def _replace_graph(self, graph: ServiceGraph) -> None:
        old, self._graph = self._graph, graph
        finishing: dict[str, FinishSequences] = {}
        sequences = None
        is_any_open = old.open_sequences(graph.parts)
        if is_any_open is not None:
            finishing = {
                name: FinishSequences(entry.service, self._entries[name].service)
                for name, entry in graph.entries.items()
            }
            sequences = EarlierSequences(is_any_open, partial(self._finish, graph, finishing))
        self._connect(graph, finishing)
        level = graph.config.telemetry.log.level
        if level != old.config.telemetry.log.level:
            logs.set_level(level)
        if graph.config.telemetry.log != old.config.telemetry.log:
            try:
                self._configure_call_log(graph.loaded)
            except OSError as error:
                log.error("access log not opened", reason=reason_of(error))  # noqa: TRY400
        ended = self._retirements.retire(old, graph, old.config.lifecycle.drain, sequences)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONFIRM_S):
                await ended.wait()

    def _configure_call_log(self, loaded: LoadedConfig) -> None:
        settings = loaded.config.telemetry.log
        access = None
        if settings.access is not None:
            access = AccessLog(loaded.directory / settings.access.path, settings.access.format)
        self._call_log.configure(self._slot.share(settings.calls_per_second), access)

    def _connect(self, graph: ServiceGraph, finishing: Mapping[str, FinishSequences]) -> None:
        """Send new calls to *graph*; *finishing* decides about those of sequences, by listener."""
        self._entries = {
            name: replace(entry, service=finishing.get(name, entry.service))
            for name, entry in graph.entries.items()
        }
        for listener in self._listeners:
            listener.connect(self._entries)

    def _finish(self, graph: ServiceGraph, finishing: Mapping[str, FinishSequences]) -> None:
        """Send all calls to *graph*, unless another one has replaced it."""
        for each in finishing.values():
            each.end()
        if self._graph is graph:
            self._connect(graph, {})

    def _forget_endpoints(self, closed: ServiceGraph) -> None:
        for upstream, endpoint in closed.endpoints() - self._graph.endpoints():
            self.metrics.forget_endpoint(upstream, endpoint)

    def _measure_load(self, lag_s: float) -> None:
        self.metrics.loop_lag.observe(lag_s)
        self._load.measure(lag_s)

    async def _close(self) -> None:
        for server in self._servers.values():
            await server.stop()
        await self._retirements.finish(0)
        await self._graph.close()
        if self._shadow is not None:
            await self._shadow.close()
        if self._stock_keeper is not None:
            await self._stock_keeper.close()
        self._regions.close()
        self._trimmer.stop()
        self._loop_lag.stop()
        self._call_log.close()
        if self._export is not None:
            await self._export.close()


# A reload waits for the calls in progress for this time, before it is confirmed.
_CONFIRM_S = 1.0


def memory_budget(config: Config, slot: WorkerSlot = SINGLE_PROCESS) -> int:
    """Return the memory budget of a worker in bytes."""
    return config.in_flight_bytes or default_budget(slot)


def default_budget(slot: WorkerSlot = SINGLE_PROCESS) -> int:
    """Return a worker's share of 512 MiB, or of 40% of the cgroup's memory if that is less."""
    total = _BUDGET_BYTES
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(int(CGROUP_MEMORY.read_text()) * _CGROUP_SHARE))
    return slot.share(total)
