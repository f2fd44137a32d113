"""Builds the servers of each listener, with a frontend for each of its protocols."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from gateway.api.access import Authenticator, Gatekeeper
from gateway.api.extension import ReplyNotes
from gateway.api.protocol import Options, ProtocolSpec
from gateway.app.build.declarations import Declarations
from gateway.app.build.upstreams import max_connections, message_limits, overridden
from gateway.app.check.exposure import warn_of_exposure
from gateway.app.listen import metrics_page
from gateway.app.listen.health_services import HEALTH_PROTOCOL, DescribedProtocol, server_services
from gateway.app.listen.path_ownership import ProtocolPaths, listener_authentication, owned_paths
from gateway.app.listen.rejection_log import RejectionLog
from gateway.app.listen.server_names import inherited_sockets, stream_server_name
from gateway.app.run.process_parts import ProcessParts
from gateway.config.load import LoadedConfig
from gateway.config.models import ListenerConfig, PassthroughConfig, StreamConfig
from gateway.config.tls import server_files
from gateway.frontend import passthrough
from gateway.frontend.call_reader import CheckInference
from gateway.frontend.frontend import Frontend
from gateway.frontend.load_report import Load, LoadReportingFrontend
from gateway.frontend.passthrough import ObservedPassthrough, check_json_body
from gateway.ir.context import Client, ModelRef
from gateway.ir.errors import Unauthenticated
from gateway.ir.identity import ANONYMOUS
from gateway.ir.limits import MessageLimits
from gateway.policies.access.authorise import ListenerAccess
from gateway.policies.access.operations import HEALTH, METRICS, PASSTHROUGH
from gateway.policies.shared_memory.layer import SHARED_MEMORY
from gateway.processes.worker_slot import ProcessOptions
from gateway.registry import protocol, protocol_names
from gateway.routing.model_keys import ModelKeyIndex, ResolveModelKeys
from gateway.routing.server_status import model_status
from gateway.service import Service
from gateway.settings.units import Address
from gateway.telemetry import names
from gateway.transports.authentication import Authentication
from gateway.transports.choice import grpc_server, http_alpn, http_server_class
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import (
    GrpcMount,
    HttpFrontend,
    HttpMount,
    Server,
    ServerLimits,
)
from gateway.transports.http.cors import CorsRules
from gateway.transports.http.passthrough import PassthroughClient, PassthroughRules
from gateway.transports.http2.frames import may_be_http2
from gateway.transports.net.tls_files import TlsContext, TlsFiles
from gateway.transports.stream.protocol_sniffing import SharedPortProtocols, may_be_http
from gateway.transports.stream.server import StreamServer
from gateway.wire.declarations import DeclaringCodec
from gateway.wire.heads.request_id import (
    attach_grpc_request_id,
    attach_http_request_id,
    grpc_request_id,
    http_request_id,
)

log = structlog.get_logger(__name__)

Ready = Callable[[], Awaitable[bool]]

_HTTP_IDS: Final = {
    "attach_headers": attach_http_request_id,
    "read_request_id": http_request_id,
}
_GRPC_IDS: Final = {
    "attach_headers": attach_grpc_request_id,
    "read_request_id": grpc_request_id,
}


@dataclass(frozen=True, slots=True)
class ListenerEntry:
    """What a listener calls.

    Attributes:
        service: Handles its calls.
        model_keys: Resolves keys of models for protocols that need it.
        http_clients: Clients of HTTP upstreams, by the name of the upstream.
        access: What its clients may do; None if there are no rules.
        notes: Adds what extensions tell clients to responses; None for nothing.
        declarations: What the configuration declares of models for protocols, by model.
    """

    service: Service
    model_keys: ModelKeyIndex
    http_clients: Mapping[str, PassthroughClient] = field(default_factory=dict)
    access: ListenerAccess | None = None
    notes: ReplyNotes | None = None
    declarations: Declarations = field(default_factory=dict)

    def of_protocol(self, spec: ProtocolSpec) -> Service:
        """Return what handles the calls of one protocol."""
        return (
            ResolveModelKeys(self.service, self.model_keys) if spec.has_model_keys else self.service
        )

    def declared(self, spec: ProtocolSpec) -> Mapping[str, object]:
        """Return what is declared for one protocol, by model."""
        return {
            name: found[spec.name]
            for name, found in self.declarations.items()
            if spec.name in found
        }


class BuiltListener:
    """The servers of one listener, and their frontends.

    Args:
        config: The listener.
        entry: What it calls at first.
        shared: The objects that all listeners share.

    Attributes:
        servers: By name ("main.http").
        paths: The HTTP paths of its protocols.
        rejections: Counts and logs the requests that reach no service.
        tls: Its TLS files; None without TLS.
        authentication: Asks who sends each request; None if nobody asks.
    """

    def __init__(
        self, config: ListenerConfig, entry: ListenerEntry, shared: SharedResources
    ) -> None:
        process, gatekeeper = shared.process, shared.gatekeeper
        self.servers: dict[str, Server] = {}
        self.paths = owned_paths(config, shared.loaded.config.upstreams)
        self.rejections = RejectionLog(
            config.name, process.metrics, process.call_log, process.tracing, process.parts.on_call
        )
        self.tls = server_files(f"listener {config.name}", config.tls, shared.loaded.directory)
        self._config = config
        self._entry = entry
        self._tap = process.parts.tap
        self._tracing = process.tracing
        self._load = shared.load
        self._needs_client = partial(gatekeeper.needs_client, config.name)
        authenticator = gatekeeper.authenticator(config.name)
        self.authentication: Authentication | None = None
        if authenticator is not None:
            self.authentication = listener_authentication(authenticator, config, self.paths)
        self._frontends: list[tuple[ProtocolSpec, Any, Frontend[Any, Any], Any]] = []
        self._passthrough: ObservedPassthrough | None = None

    def connect(self, entries: Mapping[str, ListenerEntry]) -> None:
        """Send all calls that begin from now on to the entry of this listener."""
        self._entry = entries[self._config.name]
        for spec, codec, frontend, attach in self._frontends:
            self._connect_frontend(frontend, spec, codec, attach)
        if self._passthrough is not None:
            self._passthrough.replace_client(self._http_client())

    @property
    def name(self) -> str:
        """Its name."""
        return self._config.name

    def authenticate(self, authenticator: Authenticator) -> None:
        """Ask who sends each request from now on, unless the servers do so already."""
        if self.authentication is None:
            self.authentication = listener_authentication(authenticator, self._config, self.paths)
            for server in self.servers.values():
                server.authenticate(self.authentication)

    def frontend(self, spec: ProtocolSpec, codec: Any, **request_ids: Any) -> Any:
        """Return a new frontend of this listener.

        Args:
            spec: The protocol.
            codec: The codec of one carrier of the protocol.
            request_ids: What reads and attaches request ids on this carrier; nothing for none.
        """
        options = {**self.rejections.reports(codec.name, codec), **request_ids}
        service = self._service_of(spec, codec)
        built: Frontend[Any, Any] = Frontend(codec, service, tap=self._tap, **options)
        attach = request_ids.get("attach_headers")
        self._connect_frontend(built, spec, codec, attach)
        self._frontends.append((spec, codec, built, attach))
        if self._load is None or attach is None:
            return built
        return LoadReportingFrontend(built, self._load)

    def _connect_frontend(
        self, frontend: Frontend[Any, Any], spec: ProtocolSpec, codec: Any, attach: Any
    ) -> None:
        """Send the calls of a frontend to the entry, and let responses have its notes."""
        notes = self._entry.notes
        if attach is not None and notes is not None:
            own = None if spec.http is None else spec.http.quota_headers
            attach = notes.http(own) if attach is attach_http_request_id else notes.grpc
        if isinstance(codec, DeclaringCodec):
            codec.declare(self._entry.declared(spec))
        frontend.replace_service(self._service_of(spec, codec), self._check_of(codec), attach)

    def _service_of(self, spec: ProtocolSpec, codec: Any) -> Service:
        service = self._entry.of_protocol(spec)
        return service if self._tracing is None else self._tracing.with_codec(service, codec)

    def _check_of(self, codec: Any) -> CheckInference | None:
        """Return what checks an inference before its inputs are read; None without rules."""
        access = self._entry.access
        return None if access is None else partial(access.check_inference, protocol=codec.name)

    async def model_status(self, name: str, client: Client) -> bool | None:
        """Return whether a model is ready; None if no server has it.

        Raises:
            Unauthenticated: The client has no name, which only questions for the server allow.
            Forbidden: The client may not ask.
        """
        if self._needs_client() and client.identity is ANONYMOUS:
            raise Unauthenticated("a credential is missing: only the server's health is public")
        self.check(client, HEALTH, HEALTH_PROTOCOL, ModelRef(name))
        return await model_status(
            self._entry.service, name, protocol=HEALTH_PROTOCOL, client=client
        )

    def check(
        self, client: Client, operation: str, protocol: str, model: ModelRef | None = None
    ) -> None:
        """Check a request that is no call.

        Raises:
            Forbidden: The client may not make it.
        """
        if self._entry.access is not None:
            self._entry.access.check(client, operation, protocol, model)

    def usable_protocols(self, client: Client, protocols: Iterable[str]) -> frozenset[str]:
        """Return those of *protocols* that reflection shows a client.

        Raises:
            Forbidden: The client may not ask.
        """
        access = self._entry.access
        return (
            frozenset(protocols) if access is None else access.usable_protocols(client, protocols)
        )

    def fallback(self, messages: MessageLimits) -> HttpFrontend | None:
        """Return the handler of paths that no protocol claims, if the listener has one."""
        config = self._config.passthrough
        if config is not None:
            rules = passthrough_rules(config, messages)
            reports = self.rejections.reports(passthrough.NAME)
            self._passthrough = ObservedPassthrough(
                self._http_client(),
                rules,
                config.upstream,
                report=self.rejections.call,
                reject=reports["on_rejected"],
                count_bytes=reports["message_bytes"],
                tap=self._tap,
                check=lambda client: self.check(client, PASSTHROUGH, passthrough.NAME),
            )
        return self._passthrough

    def _http_client(self) -> PassthroughClient:
        assert self._config.passthrough is not None  # noqa: S101  # only then there is a fallback
        return self._entry.http_clients[self._config.passthrough.upstream]


def passthrough_rules(config: PassthroughConfig, limits: MessageLimits) -> PassthroughRules:
    """Return the passthrough rules of a listener."""
    check = partial(check_json_body, limits)
    return PassthroughRules(config.allow, config.post or (), check, post_known=config.post is None)


@dataclass(frozen=True, slots=True)
class SharedResources:
    """Objects that all listeners of the process share.

    Attributes:
        process: The objects of the process.
        loaded: The configuration at the start; TLS files are relative to its folder.
        gatekeeper: Knows who calls.
        options: Options of protocols that the listeners share.
        sockets: Sockets that the processes share: unix sockets by address, and those of a service
            manager as `inherited_sockets` finds them.
        page: Returns the metrics page.
        load: Returns the load that responses tell; None where they tell none.
    """

    process: ProcessParts
    loaded: LoadedConfig
    gatekeeper: Gatekeeper
    options: ProcessOptions
    sockets: Mapping[str, socket.socket]
    page: metrics_page.Page
    load: Callable[[], Load] | None = None

    @property
    def reuse_port(self) -> bool:
        """Whether other processes listen on the same addresses."""
        return self.loaded.config.lifecycle.hand_over or not self.process.slot.is_single


def build_listener(
    config: ListenerConfig, entry: ListenerEntry, ready: Ready, shared: SharedResources
) -> BuiltListener:
    """Build the servers of one listener.

    Args:
        config: The listener.
        entry: Handles its calls.
        ready: Returns whether the gateway is ready, for grpc.health.v1.
        shared: The objects that all listeners share.

    Raises:
        LookupError: A protocol does not exist.
        ValueError: An option or a TLS file is invalid.
    """
    built = BuiltListener(config, entry, shared)
    tls, budget = built.tls, shared.process.budget
    upstreams = shared.loaded.config.upstreams.values()
    limits = _limits(config, can_cut_through=any(each.transport == "native" for each in upstreams))
    http_address = config.http or config.address
    serves_grpc = config.grpc is not None or config.address is not None
    http: list[HttpMount] = _metrics_mounts(built, config, shared)
    grpc: list[GrpcMount] = []
    described: list[DescribedProtocol] = []
    messages = message_limits(config.messages, limits.message_bytes)
    for name in config.protocols or protocol_names():
        spec = protocol(name)
        options = _options(spec, config, shared)
        if spec.http is not None and http_address is not None:
            http.append(_http_mount(built, spec, messages, options, built.paths[name]))
        if spec.grpc is not None and serves_grpc:
            codec: Any = spec.grpc.codec(messages, options)
            frontend = built.frontend(spec, codec, **_GRPC_IDS)
            grpc.append(GrpcMount(spec.grpc.methods, frontend))
            described.append(
                DescribedProtocol(codec.name, spec.grpc.methods, spec.grpc.file_descriptors())
            )
    _warn_of_forwarded_memory(config)
    for _, address in config.addresses():
        warn_of_exposure(config, address)
    servers = built.servers
    if http_address is not None:
        # One port of both has a server of both.
        is_both = config.address is not None
        name = f"{config.name}.http{'+grpc' * is_both}"
        servers[name] = http_server_class(config.transport)(
            http_address.host,
            http_address.port,
            mounts=http,
            limits=limits,
            budget=budget,
            fallback=built.fallback(messages),
            tls=None if tls is None else tls.context(*http_alpn(config.transport)),
            cors=_cors_rules(config, shared),
            on_reject=partial(built.rejections.rejected, "http"),
            count=_connection_count(name, limits, shared),
            reuse_port=shared.reuse_port,
            authentication=built.authentication,
            inherited=inherited_sockets(name, shared.sockets),
            grpc=grpc if is_both else (),
            extras=server_services(described, ready, built) if is_both else (),
            grpc_on_reject=partial(built.rejections.rejected, "grpc"),
        )
    if config.grpc is not None:
        servers[f"{config.name}.grpc"] = grpc_server(
            config.transport,
            _grpc_address(config.grpc),
            mounts=grpc,
            extras=server_services(described, ready, built),
            limits=limits,
            budget=budget,
            tls=tls,
            on_reject=partial(built.rejections.rejected, "grpc"),
            count=_connection_count(f"{config.name}.grpc", limits, shared),
            reuse_port=shared.reuse_port,
            authentication=built.authentication,
            inherited=inherited_sockets(f"{config.name}.grpc", shared.sockets),
        )
    for stream in config.streams:
        name = stream_server_name(config, stream, servers)
        count = _connection_count(name, limits, shared)
        servers[name] = _stream_server(
            name, config, stream, built, (limits, messages), shared, count
        )
    return built


def _connection_count(
    server: str, limits: ServerLimits, shared: SharedResources
) -> ConnectionCount:
    """Return what counts the connections of one server, which the metrics publish."""
    to_upstreams = max_connections(shared.loaded.config.upstreams.values())
    count = ConnectionCount(limits.connections, limits.connections_per_address, to_upstreams)
    gauges = shared.process.metrics.gauges
    gauges.watch(names.CONNECTIONS, {"server": server}, count, lambda each: each.total)
    return count


def max_message_bytes(config: ListenerConfig) -> int:
    """Return the maximum size of a message that a listener accepts."""
    return _limits(config).message_bytes


def _limits(config: ListenerConfig, *, can_cut_through: bool = True) -> ServerLimits:
    defaults = ServerLimits() if can_cut_through else ServerLimits(cut_through_bytes=0)
    limits: ServerLimits = overridden(defaults, config.limits.by_side())
    return limits


def _stream_server(  # one caller
    name: str,
    config: ListenerConfig,
    stream: StreamConfig,
    built: BuiltListener,
    limits: tuple[ServerLimits, MessageLimits],
    shared: SharedResources,
    count: ConnectionCount,
) -> StreamServer:
    spec = protocol(stream.protocol)
    binding = spec.stream
    if binding is None:
        raise LookupError(f"protocol {stream.protocol!r} does not support byte streams")
    codec = binding.codec(limits[1], _options(spec, config, shared))
    beside = _shared_port(spec, config, built, limits, shared, count)
    return StreamServer(
        str(stream.address),
        partial(binding.server_framer, limits[1]),
        built.frontend(spec, codec),
        limits=limits[0],
        budget=shared.process.budget,
        ordered=binding.is_ordered,
        tls=_stream_tls(stream, built.tls, beside, config),
        mode=int(stream.mode, 8),
        on_reject=partial(built.rejections.rejected, "stream"),
        beside=beside,
        count=count,
        reuse_port=shared.reuse_port,
        sock=shared.sockets.get(str(stream.address)),
        inherited=inherited_sockets(name, shared.sockets),
        replaces=shared.loaded.config.lifecycle.hand_over,
        authentication=built.authentication,
        credentials=binding.credentials,
        without_credentials=binding.without_credentials,
        closes_denied=binding.closes_denied,
    )


def _stream_tls(
    stream: StreamConfig,
    tls: TlsFiles | None,
    beside: SharedPortProtocols | None,
    config: ListenerConfig,
) -> TlsContext | None:
    """Return TLS of a stream; clients of HTTP and gRPC on its port choose by ALPN, as elsewhere."""
    if tls is None or stream.address.tcp is None:
        return None
    return tls.context() if beside is None else tls.context(*http_alpn(config.transport))


def _shared_port(  # one caller
    spec: ProtocolSpec,
    config: ListenerConfig,
    built: BuiltListener,
    limits: tuple[ServerLimits, MessageLimits],
    shared: SharedResources,
    count: ConnectionCount,
) -> SharedPortProtocols | None:
    """Return the HTTP and gRPC server on the port of a protocol's byte stream, if it has any."""
    if spec.stream is None or spec.stream.is_frame is None:
        return None
    options = _options(spec, config, shared)
    http: list[HttpMount] = []
    grpc: list[GrpcMount] = []
    if spec.http is not None and spec.stream.http_prefixes:
        codec: Any = spec.http.codec(limits[1], options)
        frontend = built.frontend(spec, codec, **_HTTP_IDS)
        http.append(HttpMount(spec.stream.http_prefixes, frontend, spec.http.root))
    if spec.grpc is not None and spec.stream.grpc_methods:
        codec = spec.grpc.codec(limits[1], options)
        frontend = built.frontend(spec, codec, **_GRPC_IDS)
        grpc.append(GrpcMount(spec.stream.grpc_methods, frontend))
    server = http_server_class(config.transport)(
        mounts=http,
        limits=limits[0],
        budget=shared.process.budget,
        on_reject=partial(built.rejections.rejected, "http"),
        listens=False,
        cors=_cors_rules(config, shared),
        count=count,
        grpc=grpc,
        grpc_on_reject=partial(built.rejections.rejected, "grpc"),
        authentication=built.authentication,
    )
    connections = ((may_be_http, server.connection), (may_be_http2, server.http2_connection))
    return SharedPortProtocols(spec.stream.is_frame, connections, (server,), count)


def _http_mount(
    built: BuiltListener,
    spec: ProtocolSpec,
    messages: MessageLimits,
    options: Options,
    paths: ProtocolPaths,
) -> HttpMount:
    binding = spec.http
    assert binding is not None  # noqa: S101  # only then it has paths
    shared = {"shared": paths.shared} if paths.shared else {}
    codec = binding.codec(messages, {**options, **shared})
    frontend = built.frontend(spec, codec, **_HTTP_IDS)
    return HttpMount(paths.prefixes, frontend, binding.root, paths.whole, paths.passes)


def _metrics_mounts(
    built: BuiltListener, config: ListenerConfig, shared: SharedResources
) -> list[HttpMount]:
    if not config.metrics:
        return []
    page = metrics_page.MetricsPage(
        shared.page,
        lambda client: built.check(client, METRICS, metrics_page.NAME),
        built.rejections.rejected,
    )
    return [HttpMount((metrics_page.PATH,), page)]


def _cors_rules(config: ListenerConfig, shared: SharedResources) -> CorsRules | None:
    found = config.cors
    if found is None:
        return None
    names = config.protocols or protocol_names()
    bindings = [each for name in names if (each := protocol(name).http) is not None]
    return CorsRules(
        found.origins,
        found.max_age,
        shared.gatekeeper.key_header,
        sent=[name for each in bindings for name in each.request_headers],
        read=[name for each in bindings for name in each.response_headers],
    )


def _options(spec: ProtocolSpec, config: ListenerConfig, shared: SharedResources) -> Options:
    """Return the protocol's options on this listener, with what is not in YAML among them."""
    options = config.options.get(spec.name, {})
    if spec.default_model and config.default_model is not None:
        options = {spec.default_model: config.default_model, **options}
    return {**spec.options(options), **shared.options.of_protocol(spec)}


def _grpc_address(address: Address) -> str:
    return str(address) if address.host else f"[::]:{address.port}"


def _warn_of_forwarded_memory(config: ListenerConfig) -> None:
    if SHARED_MEMORY.of(config).mode == "forward":
        log.warning(
            "a client that makes a shared-memory segment smaller ends the server",
            listener=config.name,
            instead="shared_memory: map",
        )
