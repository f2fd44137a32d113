"""The gateway as a whole: built from a configuration, started, drained, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import structlog

from gateway import __version__
from gateway.app.admin import start_pages
from gateway.app.batching import shared_upstream
from gateway.app.check import check
from gateway.app.errors import REASONS, StartError, reason_of
from gateway.app.layers import ListenerParts, build_chain
from gateway.app.listeners import Shared, build_listener, received_bytes
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
from gateway.policies.shared_memory.policy import (
    CopyRegions,
    ForwardRegions,
    SharedMemoryMode,
    SharedMemoryOff,
)
from gateway.policies.shared_memory.regions import Regions
from gateway.routing.match import Matcher
from gateway.routing.model_keys import ModelKeyIndex
from gateway.routing.router import Router
from gateway.routing.server_info import Index, ServerAnswers, ServerOptions
from gateway.routing.upstream_questions import UpstreamQuestions
from gateway.service import Service
from gateway.telemetry import log as logs
from gateway.telemetry.log_settings import LogSettings
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.rolling_stats import RollingStats
from gateway.transports.admission import MemoryBudget
from gateway.transports.contract import Server
from gateway.transports.http.passthrough import Passthrough

log = structlog.get_logger(__name__)

_MIB = 1 << 20
_BUDGET_BYTES = 512 * _MIB
_CGROUP_SHARE = 0.4
_CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")


class Gateway:
    """Everything one process runs.

    Args:
        loaded: A configuration whose form is right.
        seat: Which of several processes this one is; they share its addresses.
        sockets: Unix sockets that they share, by address.

    Raises:
        ConfigError: What the schema could not see is wrong.
        StartError: A file cannot be used.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        seat: WorkerSlot = SINGLE_PROCESS,
        sockets: Mapping[str, socket.socket] = MappingProxyType({}),
    ) -> None:
        problems = check(loaded)
        if problems:
            raise ConfigError(loaded.source, problems)
        config = loaded.config
        self._config = config
        self._seat = seat
        self._sockets = sockets
        self.metrics = Metrics(
            __version__,
            series=config.telemetry.metrics.series,
            triton="triton" in config.telemetry.metrics.compat,
        )
        self.metrics.allow_models({*config.models, *config.pipelines, *named_models(config)})
        self._trends = RollingStats()
        self._stopping = False
        try:
            self._build(loaded)
        except REASONS as error:
            raise StartError(reason_of(error)) from error

    def _build(self, loaded: LoadedConfig) -> None:
        config = self._config
        self._models: BuiltModels = build_models(
            config, loaded.directory, self.metrics, workers=self._seat.count
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
            )
            for name, upstream in config.upstreams.items()
        }
        places = {
            name: RouteTarget(
                shared_upstream(built.service, config.upstreams[name], config.models, self.metrics),
                built.ready,
            )
            for name, built in self._upstreams.items()
        }
        self._pipelines = build_pipelines(config, self.metrics)
        own = {**self._models.places, **self._pipelines.places}
        routes = [build_route(ruled, config, places, own) for ruled in ruled_routes(config)]
        self._targets = {name: place.service for name, place in places.items()}
        self._counts_usage = _asks_statistics(config)
        matcher = Matcher([rule for built in routes for rule in built.ruled.rules])
        self._server = self._server_answers(routes, matcher)
        self._pipelines.inside.connect(routes, own, self._server)
        self._routes = [route for built in routes for route in built.routes()]
        self.service: Service = self._observed("", SharedMemoryOff())
        self._budget = MemoryBudget(config.in_flight_bytes or default_budget(self._seat))
        self._freed = MemoryTrimmer(lambda: not self._budget.used_bytes)
        self.metrics.watch(
            "gateway_in_flight_bytes",
            "Bytes of requests held now.",
            lambda: self._budget.used_bytes,
        )
        shared = Shared(
            metrics=self.metrics,
            budget=self._budget,
            directory=loaded.directory,
            strict=config.security.strict,
            known=ModelKeyIndex(self._server, matcher.matches_model),
            passes_on=any(each.transport == "native" for each in config.upstreams.values()),
            fallbacks={
                name: Passthrough(built.http)
                for name, built in self._upstreams.items()
                if built.http is not None
            },
            reuse_port=not self._seat.is_alone,
            sockets=self._sockets,
        )
        self._regions = Regions(config.shared_regions)
        self._data: dict[str, Server] = {}
        for listener in config.listeners:
            self._data |= self._listener(listener, shared)
        self._admin: dict[str, Server] = {}

    @property
    def addresses(self) -> dict[str, str]:
        """Where it listens, by name: "main.http", "main.grpc", "admin", "metrics"."""
        return {name: server.address for name, server in (self._data | self._admin).items()}

    async def _page(self, accept: str) -> tuple[bytes, str]:
        return self.metrics.page(accept)

    async def ready(self) -> bool:
        """Return whether the gateway takes inference requests."""
        return self._server.ready()

    async def start(self) -> None:
        """Load models, begin to probe upstreams, and listen.

        Raises:
            StartError: A model cannot be loaded or an address cannot be had.
        """
        try:
            await self._models.load()
            await self._first_probes()
            await self._pipelines.check()
            for server in self._data.values():
                await server.start()
            self._freed.start()
            if self._seat.is_alone:
                self._admin = await start_pages(self._config.admin, self._page, self.ready)
        except REASONS as error:
            await self._close()
            raise StartError(reason_of(error)) from error
        if self._seat.is_alone:
            log.info("started", version=__version__, **self.addresses)

    async def stop(self, pre_stop_s: float | None = None, drain_s: float | None = None) -> None:
        """Be not ready, wait, finish what is in flight, and close; harmless the second time."""
        if self._stopping:
            return
        self._stopping = True
        lifecycle = self._config.lifecycle
        self._server.drain()
        if self._seat.is_alone:
            log.info("not ready", reason="stopping")
        await asyncio.sleep(lifecycle.pre_stop if pre_stop_s is None else pre_stop_s)
        drain = lifecycle.drain if drain_s is None else drain_s
        await asyncio.gather(*(server.drain(drain) for server in self._data.values()))
        await self._close()
        if self._seat.is_alone:  # of several, the supervisor tells what becomes of them
            log.info("stopped")

    async def _first_probes(self) -> None:
        """Ask each upstream once, so that readiness is true from the first request on."""
        probers = [prober for built in self._upstreams.values() for prober in built.probers]
        await asyncio.gather(*(prober.probe() for prober in probers))
        for prober in probers:
            prober.start()

    def _listener(self, listener: ListenerConfig, shared: Shared) -> dict[str, Server]:
        service = self._observed(listener.default_model or "", self._memory(listener))
        return build_listener(listener, service, self.ready, shared)

    def _memory(self, listener: ListenerConfig) -> SharedMemoryMode:
        if listener.shared_memory == "forward":
            return ForwardRegions([built.service for built in self._upstreams.values()])
        if listener.shared_memory == "map":
            return CopyRegions(self._regions, self._budget, received_bytes(listener))
        return SharedMemoryOff()

    def _observed(self, default_model: str, memory: SharedMemoryMode) -> Service:
        server = UpstreamQuestions(self._server, self._targets, self._server.served)
        router = Router(self._routes, server, default_model=default_model)
        parts = ListenerParts(
            record=self._record,
            lines_per_s=self._seat.share(self._config.telemetry.log.calls_per_second),
            usage=self.metrics.usage if self._counts_usage else None,
            forget=self._server.forget,
            memory=memory,
        )
        return build_chain("listener", router, parts)

    def _record(self, seen: CallRecord) -> None:
        kind, code, seconds = seen.kind, seen.code, seen.seconds
        labels = (seen.route, seen.model, seen.protocol, kind, code)
        self.metrics.call(labels, seen.version, seconds)
        if seen.limit is not None:
            self.metrics.limit_exceeded(seen.protocol, seen.limit)
        if kind in _INFERENCES:
            self._trends.add(seconds, failed=code != OK, at=seen.ended)

    def _server_answers(self, routes: list[BuiltRoute], matcher: Matcher) -> ServerAnswers:
        by_name = {built.ruled.name: built for built in routes}
        named = {name: by_name[route].ready for route, name in _named(self._config, routes)}
        models, pipelines = self._models.loadable, self._pipelines.pipelines
        indexes = [Index("local", self._models.index, ttl_s=0)]
        indexes.append(Index("pipelines", self._pipelines.index, ttl_s=0))
        indexes += [Index(name, built.service) for name, built in self._upstreams.items()]
        return ServerAnswers(
            ServerOptions(
                metadata=ServerMetadata("tensor-gateway", __version__, EXTENSIONS),
                routes=[ready_unless_unloaded(built, models, pipelines) for built in routes],
                trends=self._trends.read,
                online=self._config.lifecycle.online,
                named=named,
                served=matcher.matches_model,
                log=LogSettings(*logs.current(), logs.set_level),
            ),
            indexes,
        )

    async def _close(self) -> None:
        for server in (self._data | self._admin).values():
            await server.stop()
        for built in self._upstreams.values():
            await built.close()
        await self._models.close()
        self._regions.close()
        self._freed.stop()


_INFERENCES = frozenset({"InferRequest", "StreamInferRequest"})

# What needs no switch, in Triton's words; listeners and codecs add what is switched on there.
EXTENSIONS = ("binary_tensor_data", "classification", "parameters", "schedule_policy", "sequence")


def _asks_statistics(config: Config) -> bool:
    """Return whether some listener tells what models are used; counting costs a little."""
    return any(
        options.get("statistics", "off") != "off"
        for listener in config.listeners
        for options in listener.options.values()
    )


def _named(config: Config, routes: list[BuiltRoute]) -> list[tuple[str, str]]:
    names = set(named_models(config))
    return [
        (built.ruled.name, name)
        for built in reversed(routes)
        for name in names
        if any(rule.model == name for rule in built.ruled.rules) or built.ruled.model == name
    ]


def default_budget(seat: WorkerSlot = SINGLE_PROCESS) -> int:
    """Return a worker's share of 512 MiB in flight, or of 40% of the cgroup if that is less."""
    whole = _BUDGET_BYTES
    with contextlib.suppress(OSError, ValueError):
        whole = min(whole, int(int(_CGROUP_MEMORY.read_text()) * _CGROUP_SHARE))
    return seat.share(whole)
