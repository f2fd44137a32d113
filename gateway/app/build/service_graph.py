"""The services between the listeners and the sockets of upstreams, for one configuration.

A reload builds the next graph from the previous one, and keeps what `kept_parts.py` lists.
`gateway.py` exchanges the graphs.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import structlog

from gateway import __version__
from gateway.api.extension import ModelPlacement, TrafficShift
from gateway.api.layer import Layer
from gateway.app.admin.status.document import route_entries, upstream_entries
from gateway.app.build.batching import PerModelService, shared_model, shared_models
from gateway.app.build.chain_context import ChainContext, Keep, Sections, keep_nothing
from gateway.app.build.declarations import described_models, read_declarations
from gateway.app.build.kept_parts import KeptParts
from gateway.app.build.models import BuiltModels, build_models, model_loader_of
from gateway.app.build.package_layers import ListenerRoutes, configured_readers
from gateway.app.build.pipelines import BuiltPipelines, build_pipelines
from gateway.app.build.route_rules import (
    RuledRoute,
    longest_timeout,
    models_at,
    named_models,
    required_routes,
    routes_by_upstream,
    ruled_routes,
    text_routes,
)
from gateway.app.build.routes import (
    BuiltRoute,
    RouteTarget,
    build_route,
    ready_unless_unloaded,
    route_state,
    routes_of_models,
)
from gateway.app.build.upstreams import BuiltUpstream, build_upstream
from gateway.app.chains.listener import ServedModels
from gateway.app.chains.tracing import Spans
from gateway.app.layers import build_chain
from gateway.app.listen.listeners import ListenerEntry, max_message_bytes
from gateway.app.run.process_parts import ProcessParts
from gateway.concurrency.slices import in_slices
from gateway.config.load import LoadedConfig
from gateway.config.models import Config, ListenerConfig, ModelConfig, UpstreamConfig
from gateway.ir.metadata import ServerMetadata
from gateway.policies.access.authorise import ListenerAccess
from gateway.policies.access.layers import ClientAccess
from gateway.policies.hand_over.pool import RegionPool
from gateway.policies.limits.sequences import SEQUENCE_IDLE
from gateway.policies.shared_memory.forwarded import ForwardRegions
from gateway.policies.shared_memory.layer import SHARED_MEMORY, SharedRegions
from gateway.policies.shared_memory.policy import (
    CopyRegions,
    SharedMemoryMode,
    SharedMemoryOff,
)
from gateway.registry import layers, own_layers, recorded_calls
from gateway.routing.balance import Readiness
from gateway.routing.match import Matcher, matched_name
from gateway.routing.model_keys import ModelKeyIndex
from gateway.routing.rolling.settings import RecordedCalls
from gateway.routing.router import Router
from gateway.routing.server_info import Index, ServerInfo, ServerOptions
from gateway.routing.upstream_queries import UpstreamQuestions
from gateway.service import Service
from gateway.settings.patterns import Matches
from gateway.telemetry.log import logs
from gateway.telemetry.log.log_settings import LogSettings
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.net.tls_files import TlsFiles

log = structlog.get_logger(__name__)

P = TypeVar("P")

# How long names that are looked up, and the first probes, may delay the start.
_FIRST_NAMES_S = 0.25
_FIRST_PROBES_S = 1.0

# Extensions that are always on, by Triton's names; listeners and codecs add the optional ones.
EXTENSIONS = ("binary_tensor_data", "classification", "parameters", "schedule_policy", "sequence")


class ServiceGraph:
    """The upstreams, models, pipelines and routes of one configuration.

    Args:
        loaded: A configuration without errors.
        process: The objects of the process.
        previous: The graph whose parts are kept if their configuration did not change.

    Attributes:
        parts: All parts, and those that are kept from the previous graph.
        server: Handles the calls to the gateway itself.
        entries: What each listener calls, by the name of the listener. The name "" has no default
            model and no shared memory.
        models: The models of this process.
        upstreams: The upstreams.
        pipelines: The pipelines of the configuration.
    """

    def __init__(
        self, loaded: LoadedConfig, process: ProcessParts, previous: ServiceGraph | None = None
    ) -> None:
        self.loaded = loaded
        self.config = config = loaded.config
        self._process = process
        self.parts: KeptParts = KeptParts.after(None if previous is None else previous.parts)
        process.metrics.allow_models({*config.models, *config.pipelines, *named_models(config)})
        self._declarations = read_declarations(config, loaded.directory)
        self.models: BuiltModels = build_models(
            config,
            loaded.directory,
            self.parts,
            workers=process.slot.count,
            at=self._context,
            shared=self._shared_settings("model"),
            loader=model_loader_of(loaded),
            declarations=self._declarations,
        )
        self._routes_to = routes_by_upstream(config)
        self.upstreams = self._build_upstreams()
        self._shared_models = self._build_shared_models()
        self._targets = self._build_targets()
        self.pipelines: BuiltPipelines = build_pipelines(
            config, self._context("", {}, self.parts.keep_of("pipelines", ""))
        )
        own = {**self.models.targets, **self.pipelines.targets}
        shifts = process.parts.shifts(loaded)
        self._route_settings = self._shared_settings("route", "target")
        self._routes = routes = [
            self._build_route(ruled, own, shifts.get(ruled.name)) for ruled in ruled_routes(config)
        ]
        matcher = Matcher([rule for built in routes for rule in built.ruled.rules])
        online = config.lifecycle.online if previous is None else previous.server.is_online
        self.server: ServerInfo = self._server_info(routes, matcher, online=online)
        self.pipelines.step_router.connect(routes, own, self.server)
        model_keys = ModelKeyIndex(self.server, matcher.matches_model)
        route_names = [built.ruled.name for built in routes for _ in built.ruled.rules]
        notes = process.parts.reply_notes(loaded)
        is_read = bool(configured_readers(self.loaded))
        passthrough = {
            name: built.passthrough_client(config.upstreams[name], passes_inferences=not is_read)
            for name, built in self.upstreams.items()
        }
        http_clients = {name: each for name, each in passthrough.items() if each is not None}
        parts: dict[str, tuple[object, ...]] = {
            listener.name: tuple(
                process.parts.listener_parts(
                    loaded, listener.name, lambda call: matched_name(matcher, route_names, call)
                )
            )
            for listener in config.listeners
        }
        services = {
            each.name: self._listener_entry(each, parts[each.name]) for each in config.listeners
        }
        self.entries: Mapping[str, ListenerEntry] = {
            name: ListenerEntry(
                service,
                model_keys,
                http_clients,
                _rules_of(parts.get(name, ())),
                notes,
                self._declarations,
            )
            for name, service in {"": self._entry("", SharedMemoryOff()), **services}.items()
        }

    async def start(self) -> None:
        """Load the new models and probe the new upstreams.

        Raises:
            LoadError: A model cannot be loaded; the others are unloaded.
            MismatchError: The models of a pipeline do not fit together.
        """
        await self.models.load(
            [name for name in self.models.loadable if self.parts.is_new("model", name)]
        )
        upstreams = [
            built for name, built in self.upstreams.items() if self.parts.is_new("upstream", name)
        ]
        await _probe_once(upstreams)
        for built in upstreams:
            built.start()
        await self.pipelines.check()
        self._change_kept_parts()

    def _change_kept_parts(self) -> None:
        """Tell kept parts what of this configuration they follow without being replaced."""
        for name, built in self.upstreams.items():
            built.follow(
                sequence_idle_s=SEQUENCE_IDLE.of(self.config.policies),
                longest_call_s=longest_timeout(self.config, self._routes_to[name]),
            )
        for name, target in self._targets.items():
            if isinstance(target.service, PerModelService):
                target.service.replace(self._shared_models[name])

    def retire(self) -> asyncio.Event:
        """Give up the entries; return an event that is set when the last call of them has ended.

        A call in progress refers to the entry at which it began. Listeners must have been connected
        to another graph, so that calls in progress are the only ones that still do.
        """
        ended = asyncio.Event()
        entries, self.entries = self.entries.values(), {}
        pending: set[weakref.ref[object]] = set()

        def on_end(reference: weakref.ref[object]) -> None:
            pending.discard(reference)
            if not pending:
                ended.set()

        for entry in entries:
            for used in (entry.service, *entry.http_clients.values()):
                pending.add(weakref.ref(used, on_end))
        return ended

    async def status(self) -> dict[str, Any]:
        """Return the part of the status that a configuration decides; see `status`."""
        names = (ruled.name for ruled in ruled_routes(self.config))
        required = frozenset(required_routes(self.config) or names)
        routes = route_entries(self._routes, self.upstreams, required)
        upstreams = upstream_entries(self.upstreams, self._process.metrics.attempts)
        return {
            "config": {"file": self.loaded.source, "sha256": self.loaded.sha256},
            "routes": [each async for each in in_slices(routes)],
            "upstreams": [each async for each in in_slices(upstreams)],
            **await self._process.parts.status(),
            "models": [
                {"name": name, "ready": model.ready(), "unloaded": model.is_unloaded}
                async for name, model in in_slices(list(self.models.loadable.items()))
            ],
        }

    def route_service(self, name: str) -> Service:
        """Return the service of the route *name*.

        Raises:
            LookupError: There is no such route.
        """
        found = [built.service for built in self._routes if built.ruled.name == name]
        if not found:
            raise LookupError(f"unknown route {name!r}")
        return found[0]

    def placements(self) -> dict[str, ModelPlacement]:
        """Return what places the models of the gateway and of upstreams, by name."""
        loader = self.models.loader
        own: dict[str, ModelPlacement] = {} if loader is None else {loader.name: loader}
        found = {name: built.endpoints.placement for name, built in self.upstreams.items()}
        return {**own, **{name: each for name, each in found.items() if each is not None}}

    def open_sequences(self, kept: KeptParts) -> Callable[[], bool] | None:
        """Return a function that tells whether a sequence that is open now still is.

        Returns:
            None if there is no such sequence, or if *kept* has all routes.
        """
        if all(kept.has("route", built.ruled.name, built) for built in self._routes):
            return None
        models = self.models.loadable.items()
        if any(
            model.has_sequences() for name, model in models if not kept.has("model", name, model)
        ):
            return lambda: True  # only the model knows which of them have ended
        found = [
            (built.endpoints.affinity, built.endpoints.affinity.open_sequences())
            for built in self.upstreams.values()
        ]
        open_at_first = [(affinity, sequences) for affinity, sequences in found if sequences]
        if not open_at_first:
            return None
        return lambda: any(affinity.is_any_open(sequences) for affinity, sequences in open_at_first)

    def drain_endpoints(self, names: AbstractSet[str]) -> None:
        """Let the endpoints *names* get no new calls, and all others get calls.

        Args:
            names: As "UPSTREAM/ENDPOINT"; the endpoint "*" means all of the upstream.
        """
        for name, built in self.upstreams.items():
            prefix = f"{name}/"
            own = {each.removeprefix(prefix) for each in names if each.startswith(prefix)}
            built.endpoints.drain(own)

    def tls_files(self) -> list[TlsFiles]:
        """Return the TLS files of the upstreams."""
        return [built.tls for built in self.upstreams.values() if built.tls is not None]

    def endpoints(self) -> set[tuple[str, str]]:
        """Return the names of all upstreams, each with its endpoints."""
        return {
            (name, endpoint.name)
            for name, built in self.upstreams.items()
            for endpoint in built.endpoints.endpoints
        }

    async def drain(self, timeout_s: float, kept: KeptParts | None = None) -> None:
        """Wait for cancelled calls that still run, because closing would cancel them too.

        Args:
            timeout_s: The longest time to wait.
            kept: Has the upstreams that are not closed.
        """
        removed = self._removed_upstreams(kept)
        await asyncio.gather(*(built.drain(timeout_s) for built in removed))

    async def close(self, kept: KeptParts | None = None) -> None:
        """Close the upstreams and models, except those in *kept*; idempotent."""
        for built in self._removed_upstreams(kept):
            await built.close()
        kept = kept or KeptParts()
        models = self.models.loadable.items()
        await self.models.close(
            [name for name, model in models if not kept.has("model", name, model)]
        )
        loader = self.models.loader
        if loader is not None and not kept.has("model loader", "", loader):
            await loader.close()

    def _removed_upstreams(self, kept: KeptParts | None) -> list[BuiltUpstream]:
        kept = kept or KeptParts()
        upstreams = self.upstreams.items()
        return [built for name, built in upstreams if not kept.has("upstream", name, built)]

    def _build_upstreams(self) -> dict[str, BuiltUpstream]:
        config = self.config
        described = described_models(config, self._declarations)
        shared = self._shared_settings("upstream", "endpoint")

        def build(name: str, upstream: UpstreamConfig) -> BuiltUpstream:
            routes = self._routes_to[name]
            in_text = text_routes(routes)
            callable_models = described.of(self._models_at(name))
            source = (upstream, callable_models, in_text, *shared)
            return self.parts.get(
                "upstream",
                name,
                source,
                lambda: build_upstream(
                    upstream,
                    described,
                    self.loaded.directory,
                    self._context(
                        name, {"upstream": upstream}, self.parts.keep_of("upstream", name)
                    ),
                    sequence_idle_s=SEQUENCE_IDLE.of(config.policies),
                    longest_call_s=longest_timeout(config, routes),
                    text_routes=in_text,
                ),
            )

        return {name: build(name, upstream) for name, upstream in config.upstreams.items()}

    def _models_at(self, upstream: str) -> Matches:
        """Return whether calls of a model may go to an upstream, by the model's name there."""
        inside = {"route", "target", "upstream"}
        if any(layer.chain in inside for layer in layers().values()):
            return lambda _name: True  # a layer of a package may send calls of other models
        return models_at(upstream, self._routes_to[upstream])

    def _build_shared_models(self) -> dict[str, dict[str, Service]]:
        """Return the services of models with a batch queue or a cache, by upstream and model."""
        config = self.config
        shared = self._shared_settings("model")

        def build(upstream: str, built: BuiltUpstream, name: str, model: ModelConfig) -> Service:
            part = f"{upstream}/{name}"
            sections: Sections = {"upstream": config.upstreams[upstream]}
            return self.parts.get(
                "shared model",
                part,
                (built, model, *shared),
                lambda: shared_model(
                    name,
                    model,
                    built.service,
                    self._context(upstream, sections, self.parts.keep_of("shared model", part)),
                ),
            )

        models = shared_models(config.models)
        return {
            upstream: {name: build(upstream, built, name, each) for name, each in models.items()}
            for upstream, built in self.upstreams.items()
        }

    def _build_targets(self) -> dict[str, RouteTarget]:
        def build(name: str, built: BuiltUpstream) -> RouteTarget:
            models = self._shared_models[name]
            return self.parts.get(
                "target",
                name,
                (built, bool(models)),
                lambda: RouteTarget(
                    PerModelService(built.service, models) if models else built.service,
                    built.ready,
                ),
            )

        return {name: build(name, built) for name, built in self.upstreams.items()}

    def _build_route(
        self, ruled: RuledRoute, own: Mapping[str, RouteTarget], shift: TrafficShift | None
    ) -> BuiltRoute:
        if ruled.config is not None:
            targets = [
                self._targets[target.upstream]
                if target.upstream is not None
                else own[target.model or ""]
                for target in ruled.config.targets
            ]
        else:
            targets = [own[ruled.model]] if ruled.model else list(self._targets.values())
        state = route_state(ruled, self.config.policies, self.parts)
        source = (ruled, targets, shift, *self._route_settings)
        return self.parts.get(
            "route",
            ruled.name,
            source,
            lambda: build_route(
                ruled,
                self.config,
                self._targets,
                own,
                state,
                self._context(
                    ruled.name, {"route": ruled.config}, self.parts.keep_of("route", ruled.name)
                ),
                shift=shift,
                taps=self._process.parts.route_taps(ruled.name),
            ),
        )

    def _listener_entry(
        self,
        listener: ListenerConfig,
        parts: Iterable[object],
    ) -> Service:
        return self._entry(
            self.config.default_model_of(listener),
            self._shared_memory_mode(listener),
            self._upstream_identity if listener.identity == "upstream" else lambda: None,
            listener,
            parts,
        )

    def _shared_memory_mode(self, listener: ListenerConfig) -> SharedMemoryMode:
        sharing, process = SHARED_MEMORY.of(listener), self._process
        if sharing.mode == "forward":
            services = [built.service for built in self.upstreams.values()]
            return ForwardRegions(services, sharing.keys, process.forwarded)
        if sharing.mode == "map":
            return CopyRegions(
                process.regions, process.budget, max_message_bytes(listener), sharing.keys
            )
        return SharedMemoryOff()

    def _entry(
        self,
        default_model: str,
        memory: SharedMemoryMode,
        identity: Callable[[], ServerMetadata | None] = lambda: None,
        listener: ListenerConfig | None = None,
        parts: Iterable[object] = (),
    ) -> Service:
        process = self._process
        services = {name: target.service for name, target in self._targets.items()}
        server = UpstreamQuestions(self.server, services, self.server.served, identity)
        routes = [route for built in self._routes for route in built.routes()]
        router = Router(routes, server, default_model=default_model)
        models = ServedModels(
            usage=process.metrics.usage if _statistics_of(self.config) else None,
            is_counting=self._is_counting(),
            forget=self._forget,
        )
        name = "" if listener is None else listener.name
        at = self._context(
            name, {"listener": listener}, self.parts.keep_of("listener", name)
        ).with_parts(
            process,
            process.load,
            models,
            SharedRegions(memory),
            ListenerRoutes(routes, default_model),
            *parts,
        )
        return build_chain("listener", router, at)

    def _shared_settings(self, *chains: str) -> tuple[object, ...]:
        """Return the values of `policies` and the file itself that layers of some chains read."""
        at = self._context("", {}, keep_nothing)
        found = [each for each in (*own_layers(), *layers().values()) if isinstance(each, Layer)]
        return tuple(
            at.setting(setting)
            for layer in found
            if layer.chain in chains
            for setting in layer.settings
        )

    def _context(self, name: str, sections: Sections, keep: Keep) -> ChainContext:
        """Return what the layers of a chain may use."""
        return ChainContext(
            name=name,
            sections={**sections, "policies": self.config.policies, "top": self.config},
            parts={
                MemoryBudget: self._process.budget,
                RegionPool: self._process.pool,
                Spans: Spans(self._process.tracing),
                RecordedCalls: RecordedCalls(self.loaded, recorded_calls),
            },
            metrics=self._process.metrics,
            keep=keep,
        )

    def _upstream_identity(self) -> ServerMetadata | None:
        """Return the metadata of the first server that has told them; None if none has."""
        members = [each for built in self.upstreams.values() for each in built.members]
        servers = (each.identity.server for each in members)
        return next((server for server in servers if server is not None), None)

    def _is_counting(self) -> Callable[[], bool]:
        """Return a function: whether inferences are counted, because a target counts none itself.

        Targets do not know the names of routes, nor models and pipelines of the gateway.
        """
        config, upstreams = self.config, tuple(self.upstreams.values())
        if self.models.loadable or config.pipelines or config.routes:
            return lambda: True
        if _statistics_of(config) != {"target"}:
            return lambda: True
        return lambda: not all(built.has_statistics() for built in upstreams)

    def _forget(self) -> None:
        """Forget what a load or unload may have changed."""
        self.server.forget()
        for built in self.upstreams.values():
            built.sequence_ids.forget()

    def _server_info(
        self, routes: list[BuiltRoute], matcher: Matcher, *, online: bool
    ) -> ServerInfo:
        by_name = {built.ruled.name: built for built in routes}
        named = {
            name: by_name[route].ready for route, name in routes_of_models(self.config, routes)
        }
        models, pipelines = self.models.loadable, self.pipelines.pipelines
        required = required_routes(self.config)
        decisive = [built for built in routes if required is None or built.ruled.name in required]
        indexes = [Index("local", self.models.index, ttl_s=0)]
        indexes.append(Index("pipelines", self.pipelines.index, ttl_s=0))
        indexes += [Index(name, built.service) for name, built in self.upstreams.items()]
        return ServerInfo(
            ServerOptions(
                metadata=ServerMetadata("tensor-gateway", __version__, EXTENSIONS),
                routes=[ready_unless_unloaded(built, models, pipelines) for built in decisive],
                readiness=Readiness.ANY if required is None else Readiness.ALL,
                obstacle=self._process.obstacle,
                trends=self._process.metrics.trends.read,
                online=online,
                named=named,
                served=matcher.matches_model,
                log=LogSettings(*logs.current(), logs.set_level),
            ),
            indexes,
        )


def _rules_of(parts: Iterable[object]) -> ListenerAccess | None:
    """Return what the clients of a listener with these parts may do; None if there are no rules."""
    found = (each.rules for each in parts if isinstance(each, ClientAccess))
    return next(found, None)


async def _probe_once(upstreams: Sequence[BuiltUpstream]) -> None:
    """Probe each upstream once, so that readiness is correct from the first request on.

    One whose name server or server is silent does not delay the others for long.
    """
    probes = {asyncio.ensure_future(built.probe()): built for built in upstreams}
    waiting = set(probes)
    try:
        for timeout_s in (_FIRST_NAMES_S, _FIRST_PROBES_S - _FIRST_NAMES_S):
            if waiting:
                _, waiting = await asyncio.wait(waiting, timeout=timeout_s)
            waiting = {probe for probe in waiting if not probes[probe].waits_for_name()}
    finally:
        for probe in probes:
            probe.cancel()
    for found in await asyncio.gather(*probes, return_exceptions=True):
        if isinstance(found, Exception):
            raise found


def _statistics_of(config: Config) -> set[str]:
    """Return whose statistics the listeners report: "target", "gateway" or both; empty for none."""
    return {
        options["statistics"]
        for listener in config.listeners
        for options in listener.options.values()
        if options.get("statistics", "off") != "off"
    }
