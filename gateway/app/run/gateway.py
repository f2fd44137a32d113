"""The gateway of one process: built from a configuration, started, drained, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client.core import Metric

from gateway import __version__
from gateway.api.access import Authenticator
from gateway.api.start_error import REASONS, RELOAD_LATE, StartError, reason_of
from gateway.app.admin.running import RunningGateway
from gateway.app.admin.server import PAGE_DRAIN_S, PagesServer, start_pages
from gateway.app.admin.status.document import Document, gauge_entries
from gateway.app.build.parts import NO_SETUPS, LeadingParts, ServingParts, Setups
from gateway.app.build.service_graph import ServiceGraph
from gateway.app.check.check import check
from gateway.app.check.unused_addresses import log_unused_addresses
from gateway.app.listen.listeners import SharedResources, build_listener
from gateway.app.listen.metrics_page import Page
from gateway.app.run.announce import log_models, log_started
from gateway.app.run.config_watch import HeaderWatch, has_header_files, with_renewed_headers
from gateway.app.run.export import open_export
from gateway.app.run.process_parts import ProcessParts
from gateway.app.run.reload import Reloader
from gateway.app.run.retirement import EarlierSequences, Retirements
from gateway.concurrency.background import start_background
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.concurrency.offload import limit_memory
from gateway.concurrency.timeouts import is_set_within
from gateway.config.admin import admin_tls
from gateway.config.load import ConfigError, LoadedConfig
from gateway.config.models import Config
from gateway.policies.hand_over.pool import RegionPool, remove_leftovers
from gateway.policies.limits.shed_load import ProcessLoad
from gateway.policies.observe import Recorder
from gateway.policies.shared_memory.forwarded import ForwardedRegions
from gateway.policies.shared_memory.layer import SHARED_REGIONS
from gateway.policies.shared_memory.regions import Regions
from gateway.processes.process import CGROUP_MEMORY, MemoryTrimmer, memory_bound, process_usage
from gateway.processes.worker_slot import SINGLE_PROCESS, ProcessOptions, WorkerSlot
from gateway.routing.sequence_affinity import FinishSequences
from gateway.service import Service
from gateway.telemetry import names
from gateway.telemetry.call_path import CallPath, inherited_path
from gateway.telemetry.exposition import write_page
from gateway.telemetry.gauges import LoopLag
from gateway.telemetry.log import error_texts, logs
from gateway.telemetry.log.access_log import AccessLog
from gateway.telemetry.log.call_log import CallLog
from gateway.telemetry.log.lost_lines import LostLines
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.usage.triton_names import TritonNames
from gateway.transports.contract import Server
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.net.certificates import Certificates
from gateway.transports.net.tls_files import TlsFiles
from gateway.transports.reservation import BUILD_WAIT_S, BuildReservation

if TYPE_CHECKING:
    from gateway.app.run.server_counts import ServerCounts
    from gateway.telemetry.usage.model_counts import ModelCounts

log = structlog.get_logger(__name__)

_CLOSE_S: Final = 10.0

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
        setups: What the leading process gives the parts of extensions.
        notify: Called with the name of an extension whose leading part is to decide soon.
        page: Returns the metrics page of all processes; None if this is the only one.

    Attributes:
        parts: The parts of extensions in this process.
        names_checked: Looks for names with several addresses, from the start on; None in a worker.

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
        setups: Setups = NO_SETUPS,
        notify: Callable[[str], None] = lambda _name: None,
        page: Page | None = None,
    ) -> None:
        problems = check(loaded)
        if problems:
            raise ConfigError(loaded.source, problems)
        config = loaded.config
        self._slot = slot
        self._sockets = sockets
        self._page = page or self.page
        self.metrics = Metrics(
            __version__,
            series=config.telemetry.metrics.series,
            triton="triton" in config.telemetry.metrics.compat,
        )
        self._is_stopping = False
        self._has_started = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._drained = drained
        self._header_watch = HeaderWatch(self.renew_headers)
        self._leading: LeadingParts | None = None
        self._started = datetime.now(UTC)
        self._retirements = Retirements(self._forget_endpoints)
        try:
            self._build(loaded, setups, notify)
            self._graph.drain_endpoints(drained)
        except REASONS as error:
            raise StartError(reason_of(error)) from error

    def _build(self, loaded: LoadedConfig, setups: Setups, notify: Callable[[str], None]) -> None:
        config = loaded.config
        self._call_log = CallLog()
        self._configure_call_log(loaded)
        self._trimmer = MemoryTrimmer(lambda: not self._budget.used)
        self._budget = MemoryBudget(
            memory_budget(config, self._slot),
            config.in_flight_bytes_per_address,
            self._trimmer.on_scarce,
        )
        self._load = ProcessLoad(bound=partial(memory_bound, slot=self._slot))
        self._regions = Regions(SHARED_REGIONS.of(config))
        otlp = config.telemetry.otlp
        # The supervisor has the metrics of all workers.
        self._export = open_export(otlp, metrics=otlp.metrics and self._slot.is_single)
        new_path: Callable[..., CallPath] = CallPath
        record: Recorder = self.metrics.call
        if self._export is not None:
            new_path = self._export.new_path
            record = self._export.recorder(record, self.metrics.exemplify)
        lost = {"stderr": logs.lost_lines, "access": self._call_log.lost_lines}
        self.metrics.registry.register(LostLines(lost))
        self.parts = ServingParts.of(loaded, self._slot, self.metrics, new_path, setups, notify)
        tap = self.parts.tap
        self._access = self.parts.client_access
        self._process = ProcessParts(
            metrics=self.metrics,
            budget=self._budget,
            slot=self._slot,
            record=record,
            call_log=self._call_log,
            regions=self._regions,
            forwarded=ForwardedRegions(
                SHARED_REGIONS.of(config), is_shared=not self._slot.is_single
            ),
            pool=_region_pool(config, self._budget),
            load=self._load,
            obstacle=self._access.obstacle,
            parts=self.parts,
            new_path=(new_path if tap is None else partial(inherited_path, new_path=new_path)),
            tracing=None if self._export is None else self._export.tracing,
        )
        self._graph = ServiceGraph(loaded, self._process)
        self.parts.place(self._graph.placements())
        counts = self.metrics.model_counts
        self._counts = None if counts is None else _server_counts(lambda: self._graph, counts)
        self._totals = None if counts is None else TritonNames()
        # What the listeners call: the entries of the graph, except after a reload.
        self._entries = self._graph.entries
        self.metrics.watch(names.IN_FLIGHT_BYTES, lambda: self._budget.used)
        self.metrics.watch(names.IN_FLIGHT_BYTES_LIMIT, lambda: self._budget.limit)
        self.metrics.watch_config(lambda: {"sha256": self._graph.loaded.sha256})
        self._loop_lag = LoopLag(self._measure_load)
        self.names_checked: asyncio.Task[None] | None = None
        self.metrics.registry.register(self._access)
        shared = SharedResources(
            self._process,
            loaded,
            self._access,
            ProcessOptions(self._slot),
            self._sockets,
            self._page,
            process_usage(self._slot, self.metrics) if config.telemetry.metrics.orca else None,
        )
        self._listeners = [
            build_listener(listener, self._entries[listener.name], self.ready, shared)
            for listener in config.listeners
        ]
        self._admin_tls = (
            admin_tls(config.admin, loaded.directory) if self._slot.is_single else None
        )
        self._certificates = Certificates(self._tls_files, should_warn=self._slot.number == 1)
        self.metrics.registry.register(self._certificates)
        self._data_servers: dict[str, Server] = {}
        for built in self._listeners:
            self._data_servers |= built.servers
        self._admin_servers: dict[str, PagesServer] = {}

    def _tls_files(self) -> list[TlsFiles]:
        """Return the TLS files of the listeners and of the upstreams in force."""
        listeners = [each.tls for each in self._listeners if each.tls is not None]
        own = [] if self._admin_tls is None else [self._admin_tls]
        return [*listeners, *own, *self._graph.tls_files(), *self._access.tls_files()]

    @property
    def service(self) -> Service:
        """The entry of calls without a listener: no default model, no shared memory."""
        return self._graph.entries[""].service

    @property
    def longest_stop_s(self) -> float:
        """How long a stop may take: models and connections have some time after the calls."""
        lifecycle = self._graph.config.lifecycle
        return lifecycle.pre_stop + lifecycle.drain + _CLOSE_S

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
        return await write_page(await self.families(), accept)

    async def families(self) -> Iterable[Metric]:
        """Return the metrics, in pieces."""
        found = self.metrics.registry.collect()
        if self._totals is None or self._counts is None:
            return found
        self._totals.update(self, await self._counts.document(asks=True))
        return chain(found, await self._totals.collect())

    async def server_counts(self, *, asks: bool) -> Document | None:
        """Return what `TritonNames` adds up; None without such names.

        Args:
            asks: Whether this process asks its servers.
        """
        return None if self._counts is None else await self._counts.document(asks=asks)

    async def status(self) -> Document:
        """Return the status of the process, as GET /status shows it."""
        reason = self._not_ready_reason()
        return {
            "version": __version__,
            "ready": not reason,
            "reason": reason,
            "started": self._started.isoformat(timespec="seconds"),
            "listeners": self.addresses,
            **await self._graph.status(),
            "limits": {
                "in_flight_bytes": self._budget.used,
                "in_flight_bytes_limit": self._budget.limit,
                **gauge_entries(self.metrics.gauges),
            },
            "credentials": self._access.files(),
            "warnings": [
                *self._access.status(),
                *self._certificates.with_warnings(logs.recent_warnings()),
            ],
        }

    def _not_ready_reason(self) -> str:
        """Return why the gateway accepts no inference requests; "" if it accepts them."""
        is_starting = not (self._has_started.is_set() or self._is_stopping)
        return "starting" if is_starting else self._graph.server.not_ready_reason()

    async def ready(self) -> bool:
        """Return whether the gateway accepts inference requests."""
        return not self._not_ready_reason()

    async def start(
        self, reloader: Reloader | None = None, leading: LeadingParts | None = None
    ) -> None:
        """Open the admin pages, load the models, start the probes of the upstreams, and listen.

        Args:
            reloader: Reads the configuration again; None for an admin port with probes, metrics and
                status alone.
            leading: The leading parts of extensions, if this is the only process; else None.

        Raises:
            StartError: A model cannot be loaded, or an address is not available.
        """
        self._leading = leading
        limit_memory(lambda: BuildReservation(self._budget, BUILD_WAIT_S, CLIENT_MEMORY.get()))
        try:
            # Another gateway still has the port that a hand-over shares, and is ready.
            opens_pages_first = not self._graph.config.lifecycle.hand_over
            if opens_pages_first:
                await self._start_pages(reloader)
            if leading is not None:
                await leading.start()
            await self.parts.start()
            await self._graph.start()
            for server in self._data_servers.values():
                await server.start()
            self._certificates.start()
            self._access.start()
            self._header_watch.start()
            self._trimmer.start()
            self._loop_lag.start()
            if self._export is not None:
                self._export.start_metrics(self.families)
            if not opens_pages_first:
                await self._start_pages(reloader)
        except StartError:
            await self._close()
            raise
        except REASONS as error:
            await self._close()
            raise StartError(reason_of(error)) from error
        self._has_started.set()
        if self._slot.is_single:
            config = self._graph.config
            log_started(config, self.addresses)
            self.names_checked = start_background(log_unused_addresses(config), "names")

    def reopen_logs(self) -> None:
        """Open the files of the access log and the audit log again, as after logrotate."""
        self._call_log.reopen()
        for page in self._admin_servers.values():
            page.reopen_logs()
        if self._slot.is_single:
            log.info("log files reopened")

    async def _start_pages(self, reloader: Reloader | None) -> None:
        if not self._slot.is_single:  # the supervisor has the pages
            return
        self._admin_servers = await start_pages(
            self._graph.config.admin,
            RunningGateway(self, reloader, self._leading),
            directory=self._graph.loaded.directory,
            tls=self._admin_tls,
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

        TLS files that have changed are used, also those of listeners. Those that are broken now
        leave the earlier ones in force.

        Calls that begin from now on use the new configuration. Calls in progress finish with the
        old one. The method waits a second for them; the rest has until `lifecycle.drain`.

        Args:
            loaded: A configuration without errors, with the same listeners.
            drained: Endpoints that get no new calls, as "UPSTREAM/ENDPOINT".

        Raises:
            StartError: A file, an option or a model is invalid, or loading takes longer than
                `lifecycle.reload.timeout`. Nothing has changed.
        """
        await self._has_started.wait()
        async with self._reloading:
            self._drained = drained
            return await self._reload(loaded, drained)

    async def renew_headers(self) -> None:
        """Read the files of headers of upstreams, and use what has changed.

        Raises:
            OSError: A file cannot be read.
            ValueError: A file is not UTF-8.
            StartError: The new values cannot be applied. Nothing has changed.
        """
        async with self._reloading:
            if not has_header_files(self._graph.loaded):
                return
            loaded = await asyncio.to_thread(with_renewed_headers, self._graph.loaded)
            if loaded is not None:
                await self._reload(loaded, self._drained)
                log.info("headers renewed")

    async def _reload(
        self, loaded: LoadedConfig, drained: AbstractSet[str]
    ) -> dict[str, list[str]]:
        limit = asyncio.timeout(loaded.config.lifecycle.reload.timeout)
        try:
            change_access = self._access.prepare(loaded)
            graph = ServiceGraph(loaded, self._process, self._graph)
            try:
                async with limit:
                    await graph.start()
                if self._is_stopping:
                    raise ValueError("the gateway is stopping")  # noqa: TRY301  # as any reason
            except BaseException:
                await graph.close(self._graph.parts)
                raise
        except REASONS as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            raise StartError(RELOAD_LATE if late else reason_of(error)) from error
        graph.drain_endpoints(drained)
        self._authenticate(change_access())
        self.parts.change(loaded)
        await self._replace_graph(graph)
        return await self._certificates.renewed(graph.parts.changes())

    def _authenticate(self, asking: Mapping[str, Authenticator]) -> None:
        """Let the listeners *asking* begin to ask who calls, if they did not before."""
        for listener in self._listeners:
            if listener.name in asking:
                listener.authenticate(asking[listener.name])

    async def _replace_graph(self, graph: ServiceGraph) -> None:
        old, self._graph = self._graph, graph
        self.parts.place(graph.placements())
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
        await is_set_within(ended, _CONFIRM_S)

    def _configure_call_log(self, loaded: LoadedConfig) -> None:
        settings = loaded.config.telemetry.log
        error_texts.configure(settings.server_errors)
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
        if self.names_checked is not None:
            self.names_checked.cancel()
        await self._certificates.stop()
        await self._access.stop()
        await self._header_watch.stop()
        for server in self._servers.values():
            await server.stop()
        await self._retirements.finish(0)
        await self._graph.close()
        await self.parts.stop()
        if self._leading is not None:
            await self._leading.stop()
        self._regions.close()
        self._process.pool.close()
        self._trimmer.stop()
        self._loop_lag.stop()
        self._call_log.close()
        if self._export is not None:
            await self._export.close()


# The divisor of the memory budget, for shared memory beside it.
_HAND_OVER_SHARE: Final = 4

# A reload waits for the calls in progress for this time, before it is confirmed.
_CONFIRM_S = 1.0


def _server_counts(graph: Callable[[], ServiceGraph], counts: ModelCounts) -> ServerCounts:
    from gateway.app.run.server_counts import ServerCounts  # noqa: PLC0415  # only with `compat`

    return ServerCounts(graph, counts)


def _region_pool(config: Config, budget: MemoryBudget) -> RegionPool:
    """Return a pool of shared memory, from which large requests get their memory."""
    remove_leftovers()
    most_bytes = config.hand_over_bytes or budget.limit // _HAND_OVER_SHARE
    pool = RegionPool(most_bytes, group=config.hand_over_group)
    budget.pool = pool.memory
    return pool


def memory_budget(config: Config, slot: WorkerSlot = SINGLE_PROCESS) -> int:
    """Return the memory budget of a worker in bytes."""
    return config.in_flight_bytes or default_budget(slot)


def default_budget(slot: WorkerSlot = SINGLE_PROCESS) -> int:
    """Return a worker's share of 512 MiB, or of 40% of the cgroup's memory if that is less."""
    total = _BUDGET_BYTES
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(int(CGROUP_MEMORY.read_text()) * _CGROUP_SHARE))
    return slot.share(total)
