"""The gateway of one process: built from a configuration, started, drained, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from types import MappingProxyType

import structlog

from gateway import __version__
from gateway.app.admin import start_pages
from gateway.app.batching import share_upstream_calls
from gateway.app.check import check
from gateway.app.errors import REASONS, StartError, reason_of
from gateway.app.layers import ListenerParts, build_chain
from gateway.app.listeners import SharedResources, build_listener, max_message_bytes
from gateway.app.models import BuiltModels, build_models
from gateway.app.pipelines import build_pipelines
from gateway.app.process import MemoryTrimmer
from gateway.app.route_rules import named_models, ruled_routes
from gateway.app.routes import BuiltRoute, RouteTarget, build_route, ready_unless_unloaded
from gateway.app.upstreams import BuiltUpstream, build_upstream
from gateway.app.worker_slot import SINGLE_PROCESS, WorkerSlot
from gateway.config.load import ConfigError, LoadedConfig
from gateway.config.models import Config, ListenerConfig
from gateway.ir.metadata import ServerMetadata
from gateway.policies.observe import OK, CallRecord
from gateway.policies.shared_memory.forwarded import ForwardedRegions, ForwardRegions
from gateway.policies.shared_memory.policy import (
    CopyRegions,
    SharedMemoryMode,
    SharedMemoryOff,
)
from gateway.policies.shared_memory.regions import Regions
from gateway.routing.match import Matcher
from gateway.routing.model_keys import ModelKeyIndex
from gateway.routing.router import Router
from gateway.routing.server_info import Index, ServerInfo, ServerOptions
from gateway.routing.upstream_questions import UpstreamQuestions
from gateway.service import Service
from gateway.telemetry import log as logs
from gateway.telemetry.log_settings import LogSettings
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.rolling_stats import RollingStats
from gateway.transports.admission import MemoryBudget
from gateway.transports.contract import Server

log = structlog.get_logger(__name__)

_MIB = 1 << 20
_BUDGET_BYTES = 512 * _MIB
_CGROUP_SHARE = 0.4
_CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")


class Gateway:
    """All listeners, routes, upstreams and models of one process.

    Args:
        loaded: A configuration that matches the schema.
        slot: The number of this process among all workers, which share its addresses.
        sockets: Unix sockets that the workers share, by address.

    Raises:
        ConfigError: The configuration has an error that the schema does not find.
        StartError: A file, an option or an address is invalid.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        slot: WorkerSlot = SINGLE_PROCESS,
        sockets: Mapping[str, socket.socket] = MappingProxyType({}),
    ) -> None:
        problems = check(loaded)
        if problems:
            raise ConfigError(loaded.source, problems)
        config = loaded.config
        self._config = config
        self._slot = slot
        self._sockets = sockets
        self.metrics = Metrics(
            __version__,
            series=config.telemetry.metrics.series,
            triton="triton" in config.telemetry.metrics.compat,
        )
        self.metrics.allow_models({*config.models, *config.pipelines, *named_models(config)})
        self._rolling_stats = RollingStats()
        self._stopping = False
        try:
            self._build(loaded)
        except REASONS as error:
            raise StartError(reason_of(error)) from error

    def _build(self, loaded: LoadedConfig) -> None:
        config = self._config
        self._budget = MemoryBudget(
            config.in_flight_bytes or default_budget(self._slot),
            config.in_flight_bytes_per_address,
        )
        self._models: BuiltModels = build_models(
            config, loaded.directory, self.metrics, workers=self._slot.count
        )
        signatures = {
            name: model.signature
            for name, model in config.models.items()
            if model.backend is None and model.signature is not None
        }
        self._upstreams: dict[str, BuiltUpstream] = {
            name: build_upstream(
                name,
                upstream,
                signatures,
                self.metrics,
                loaded.directory,
                sequence_idle_s=config.policies.sequence_idle,
                longest_call_s=_longest_timeout(config),
                text_routes=_text_routes(config),
                budget=self._budget,
            )
            for name, upstream in config.upstreams.items()
        }
        targets = {
            name: RouteTarget(
                share_upstream_calls(
                    built.service, config.upstreams[name], config.models, self.metrics
                ),
                built.ready,
            )
            for name, built in self._upstreams.items()
        }
        self._targets = {name: target.service for name, target in targets.items()}
        self._pipelines = build_pipelines(config, self.metrics)
        own = {**self._models.targets, **self._pipelines.targets}
        routes = [build_route(ruled, config, targets, own) for ruled in ruled_routes(config)]
        self._counts_usage = _has_statistics(config)
        matcher = Matcher([rule for built in routes for rule in built.ruled.rules])
        self._server = self._server_answers(routes, matcher)
        self._pipelines.step_router.connect(routes, own, self._server)
        self._routes = [route for built in routes for route in built.routes()]
        self.service: Service = self._observed_service("", SharedMemoryOff())
        self._trimmer = MemoryTrimmer(lambda: not self._budget.used_bytes)
        self.metrics.watch(
            "gateway_in_flight_bytes",
            "Bytes of the memory budget in use by requests and responses.",
            lambda: self._budget.used_bytes,
        )
        shared = SharedResources(
            metrics=self.metrics,
            budget=self._budget,
            directory=loaded.directory,
            strict=config.security.strict,
            model_keys=ModelKeyIndex(self._server, matcher.matches_model),
            can_cut_through=any(each.transport == "native" for each in config.upstreams.values()),
            http_clients={
                name: built.http
                for name, built in self._upstreams.items()
                if built.http is not None
            },
            reuse_port=not self._slot.is_single,
            sockets=self._sockets,
            request_ids=self._slot.request_ids(),
        )
        self._regions = Regions(config.shared_regions)
        self._forwarded = ForwardedRegions(
            config.shared_regions, is_shared=not self._slot.is_single
        )
        self._data_servers: dict[str, Server] = {}
        for listener in config.listeners:
            self._data_servers |= self._build_listener(listener, shared)
        self._admin_servers: dict[str, Server] = {}

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses it listens on, by name: "main.http", "main.grpc", "admin", "metrics"."""
        return {name: server.address for name, server in self._servers.items()}

    @property
    def _servers(self) -> dict[str, Server]:
        return self._data_servers | self._admin_servers

    async def _page(self, accept: str) -> tuple[bytes, str]:
        return self.metrics.page(accept)

    async def ready(self) -> bool:
        """Return whether the gateway accepts inference requests."""
        return self._server.ready()

    async def start(self) -> None:
        """Load the models, start the probes of the upstreams, and listen.

        Raises:
            StartError: A model cannot be loaded, or an address is not available.
        """
        try:
            await self._models.load()
            await self._first_probes()
            await self._pipelines.check()
            for server in self._data_servers.values():
                await server.start()
            self._trimmer.start()
            if self._slot.is_single:
                self._admin_servers = await start_pages(self._config.admin, self._page, self.ready)
        except REASONS as error:
            await self._close()
            raise StartError(reason_of(error)) from error
        if self._slot.is_single:
            log.info("started", version=__version__, **self.addresses)

    async def stop(self, pre_stop_s: float | None = None, drain_s: float | None = None) -> None:
        """Report not ready, wait, finish the calls in flight, and close; idempotent.

        Args:
            pre_stop_s: Time to report not ready before draining; `lifecycle.pre_stop` by default.
            drain_s: Longest time to wait for calls in flight; `lifecycle.drain` by default.
        """
        if self._stopping:
            return
        self._stopping = True
        lifecycle = self._config.lifecycle
        self._server.drain()
        if self._slot.is_single:
            log.info("not ready", reason="stopping")
        await asyncio.sleep(lifecycle.pre_stop if pre_stop_s is None else pre_stop_s)
        drain = lifecycle.drain if drain_s is None else drain_s
        end = monotonic() + drain
        await asyncio.gather(*(server.drain(drain) for server in self._data_servers.values()))
        await self._drain_upstreams(max(0.0, end - monotonic()))
        await self._close()
        if self._slot.is_single:  # the supervisor logs this for its workers
            log.info("stopped")

    async def _drain_upstreams(self, timeout_s: float) -> None:
        """Wait for cancelled calls that still run, because closing would cancel them too."""
        await asyncio.gather(*(built.drain(timeout_s) for built in self._upstreams.values()))

    async def _first_probes(self) -> None:
        """Probe each upstream once, so that readiness is correct from the first request on."""
        probers = [prober for built in self._upstreams.values() for prober in built.probers]
        await asyncio.gather(*(prober.probe() for prober in probers))
        for prober in probers:
            prober.start()

    def _build_listener(
        self, listener: ListenerConfig, shared: SharedResources
    ) -> dict[str, Server]:
        mode = self._shared_memory_mode(listener)
        service = self._observed_service(listener.default_model or "", mode)
        return build_listener(listener, service, self.ready, shared)

    def _shared_memory_mode(self, listener: ListenerConfig) -> SharedMemoryMode:
        sharing = listener.shared_memory
        if sharing.mode == "forward":
            log.warning(
                "a client that makes a shared-memory segment smaller ends the server",
                listener=listener.name,
                instead="shared_memory: map",
            )
            services = [built.service for built in self._upstreams.values()]
            return ForwardRegions(services, sharing.keys, self._forwarded)
        if sharing.mode == "map":
            return CopyRegions(self._regions, self._budget, max_message_bytes(listener))
        return SharedMemoryOff()

    def _observed_service(self, default_model: str, memory: SharedMemoryMode) -> Service:
        server = UpstreamQuestions(self._server, self._targets, self._server.served)
        router = Router(self._routes, server, default_model=default_model)
        parts = ListenerParts(
            record=self._record,
            lines_per_s=self._slot.share(self._config.telemetry.log.calls_per_second),
            usage=self.metrics.usage if self._counts_usage else None,
            forget=self._forget,
            memory=memory,
        )
        return build_chain("listener", router, parts)

    def _forget(self) -> None:
        """Forget what a load or unload may have changed."""
        self._server.forget()
        for built in self._upstreams.values():
            built.sequence_ids.forget()

    def _record(self, record: CallRecord) -> None:
        kind, code, seconds = record.kind, record.code, record.seconds
        labels = (record.route, record.model, record.protocol, kind, code)
        self.metrics.call(labels, record.version, seconds)
        if record.limit is not None:
            self.metrics.limit_exceeded(record.protocol, record.limit)
        if kind in _INFERENCES:
            self._rolling_stats.add(seconds, failed=code != OK, at=record.ended)

    def _server_answers(self, routes: list[BuiltRoute], matcher: Matcher) -> ServerInfo:
        by_name = {built.ruled.name: built for built in routes}
        named = {name: by_name[route].ready for route, name in _routes_of(self._config, routes)}
        models, pipelines = self._models.loadable, self._pipelines.pipelines
        indexes = [Index("local", self._models.index, ttl_s=0)]
        indexes.append(Index("pipelines", self._pipelines.index, ttl_s=0))
        indexes += [Index(name, built.service) for name, built in self._upstreams.items()]
        return ServerInfo(
            ServerOptions(
                metadata=ServerMetadata("tensor-gateway", __version__, EXTENSIONS),
                routes=[ready_unless_unloaded(built, models, pipelines) for built in routes],
                trends=self._rolling_stats.read,
                online=self._config.lifecycle.online,
                named=named,
                served=matcher.matches_model,
                log=LogSettings(*logs.current(), logs.set_level),
            ),
            indexes,
        )

    async def _close(self) -> None:
        for server in self._servers.values():
            await server.stop()
        for built in self._upstreams.values():
            await built.close()
        await self._models.close()
        self._regions.close()
        self._trimmer.stop()


_INFERENCES = frozenset({"InferRequest", "StreamInferRequest"})

# Extensions that are always on, by Triton's names; listeners and codecs add the optional ones.
EXTENSIONS = ("binary_tensor_data", "classification", "parameters", "schedule_policy", "sequence")


def _longest_timeout(config: Config) -> float:
    """Return the longest timeout of any route."""
    own = [route.timeout for route in config.routes if route.timeout is not None]
    return max([config.policies.timeout, *own])


def _text_routes(config: Config) -> frozenset[str]:
    """Return the routes that forward text sequence ids to models of unknown id type."""
    return frozenset(
        ruled.name
        for ruled in ruled_routes(config)
        if ruled.config is not None and ruled.config.sequence_ids == "text"
    )


def _has_statistics(config: Config) -> bool:
    """Return whether a listener reports model statistics; only then calls are counted."""
    return any(
        options.get("statistics", "off") != "off"
        for listener in config.listeners
        for options in listener.options.values()
    )


def _routes_of(config: Config, routes: list[BuiltRoute]) -> list[tuple[str, str]]:
    """Return the routes of each model that the configuration names: pairs of route and model."""
    names = set(named_models(config))
    return [
        (built.ruled.name, name)
        for built in reversed(routes)
        for name in names
        if any(rule.model == name for rule in built.ruled.rules) or built.ruled.model == name
    ]


def default_budget(slot: WorkerSlot = SINGLE_PROCESS) -> int:
    """Return a worker's share of 512 MiB, or of 40% of the cgroup's memory if that is less."""
    total = _BUDGET_BYTES
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(int(_CGROUP_MEMORY.read_text()) * _CGROUP_SHARE))
    return slot.share(total)
