"""Builds the servers of each listener, with a frontend for each of its protocols."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import structlog

from gateway.app.passthrough import passthrough_rules
from gateway.app.transports import HTTP_SERVERS, grpc_server
from gateway.app.upstreams import message_limits, overridden
from gateway.config.models import ListenerConfig, StreamConfig, TlsConfig
from gateway.config.units import UNIX, Address, StreamAddress
from gateway.frontend import Frontend, stamp_grpc, stamp_http
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.registry import PROTOCOLS, protocol
from gateway.routing.model_keys import ModelKeyIndex, ResolveModelKeys
from gateway.service import Service
from gateway.telemetry.metrics import Metrics
from gateway.transports.admission import ConnectionCount, MemoryBudget, TooManyConnections
from gateway.transports.contract import (
    GrpcMount,
    HttpClient,
    HttpFrontend,
    HttpMount,
    Server,
    ServerLimits,
)
from gateway.transports.grpc.health import Health
from gateway.transports.grpc.reflection import Reflection
from gateway.transports.grpc.server import GrpcServer as NativeGrpcServer
from gateway.transports.http.passthrough import Passthrough
from gateway.transports.net.tls import ServerTls, server_context
from gateway.transports.stream.protocol_sniffing import (
    ConnectionServer,
    MatchesPrefix,
    SharedPortProtocols,
    may_be_http,
    may_be_http2,
)
from gateway.transports.stream.server import StreamServer
from gateway.wire.codec import HttpBinding, Options, ProtocolSpec
from gateway.wire.request_ids import OPTION as REQUEST_IDS
from gateway.wire.request_ids import RequestIds

log = structlog.get_logger(__name__)

Ready = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class SharedResources:
    """Objects that all listeners of the process share.

    Attributes:
        directory: TLS files are relative to it.
        strict: Whether `security.strict` is on.
        http_clients: Clients of HTTP upstreams, by the name of the upstream.
        reuse_port: Whether other processes listen on the same addresses.
        sockets: Unix sockets that the processes share, by address.
        can_cut_through: Whether an upstream accepts the body of a request while it arrives.
        request_ids: Counters for protocols whose servers number requests.
    """

    metrics: Metrics
    budget: MemoryBudget
    directory: Path
    strict: bool
    model_keys: ModelKeyIndex
    http_clients: Mapping[str, HttpClient] = field(default_factory=dict)
    reuse_port: bool = False
    sockets: Mapping[str, socket.socket] = field(default_factory=dict)
    can_cut_through: bool = False
    request_ids: RequestIds = field(default_factory=RequestIds)


def build_listener(
    config: ListenerConfig, service: Service, ready: Ready, shared: SharedResources
) -> dict[str, Server]:
    """Build the servers of one listener, by name ("main.http").

    Args:
        config: The listener.
        service: Handles its calls.
        ready: Returns whether the gateway is ready, for grpc.health.v1.
        shared: The objects that all listeners share.

    Raises:
        LookupError: A protocol does not exist.
        ValueError: An option or a TLS file is invalid, or `security.strict` forbids the address.
    """
    limits = _limits(config, can_cut_through=shared.can_cut_through)
    http: list[HttpMount] = []
    grpc: list[GrpcMount] = []
    descriptors: list[tuple[bytes, ...]] = []
    messages = message_limits(config.messages, limits.message_bytes)
    for name in config.protocols or PROTOCOLS:
        spec = protocol(name)
        options = _options(spec, config, shared)
        own_service = _protocol_service(spec, service, shared)
        if spec.http is not None and config.http is not None:
            codec: Any = spec.http.codec(messages, options)
            frontend: Any = _frontend(codec, own_service, shared.metrics, stamp_http)
            prefixes = _prefixes(spec.http, config, options)
            http.append(HttpMount(prefixes, frontend, spec.http.root))
        if spec.grpc is not None and config.grpc is not None:
            codec = spec.grpc.codec(messages, options)
            frontend = _frontend(codec, own_service, shared.metrics, stamp_grpc)
            grpc.append(GrpcMount(spec.grpc.methods, frontend))
            descriptors.append(spec.grpc.file_descriptors())
    servers: dict[str, Server] = {}
    if config.http is not None:
        _check_exposure(config, config.http, shared.strict)
        servers[f"{config.name}.http"] = HTTP_SERVERS[config.transport](
            config.http.host,
            config.http.port,
            mounts=http,
            limits=limits,
            budget=shared.budget,
            fallback=_fallback(config, messages, shared),
            ssl_context=_ssl_context(config.tls, shared.directory),
            refused=partial(RejectionLog(shared.metrics, config.name).count, "http"),
            reuse_port=shared.reuse_port,
        )
    if config.grpc is not None:
        _check_exposure(config, config.grpc, shared.strict)
        servers[f"{config.name}.grpc"] = grpc_server(
            config.transport,
            _grpc_address(config.grpc),
            mounts=grpc,
            extras=_extras(_services(grpc), descriptors, ready),
            limits=limits,
            budget=shared.budget,
            tls=None if config.tls is None else _server_tls(config.tls, shared.directory),
            refused=partial(RejectionLog(shared.metrics, config.name).count, "grpc"),
            reuse_port=shared.reuse_port,
        )
    for stream in config.streams:
        name = _unique_name(f"{config.name}.{stream.protocol}.{_carrier(stream)}", servers)
        own_service = _protocol_service(protocol(stream.protocol), service, shared)
        servers[name] = _stream_server(config, stream, own_service, (limits, messages), shared)
    return servers


def _protocol_service(spec: ProtocolSpec, service: Service, shared: SharedResources) -> Service:
    return ResolveModelKeys(service, shared.model_keys) if spec.model_keys else service


def _frontend(
    codec: Any, service: Service, metrics: Metrics, stamp: Any = None
) -> Frontend[Any, Any]:
    """Return the frontend of a codec, with metrics for its rejections and slow steps."""
    stamps = {} if stamp is None else {"stamp": stamp}
    return Frontend(
        codec, service, refused=metrics.rejected, blocked=metrics.loop_blocked, **stamps
    )


def max_message_bytes(config: ListenerConfig) -> int:
    """Return the maximum size of a message that a listener accepts."""
    return _limits(config).message_bytes


def _limits(config: ListenerConfig, *, can_cut_through: bool = True) -> ServerLimits:
    defaults = ServerLimits() if can_cut_through else ServerLimits(cut_through_bytes=0)
    limits: ServerLimits = overridden(defaults, config.limits)
    return limits


def _carrier(stream: StreamConfig) -> str:
    """Return the carrier of a stream, by its name in URLs."""
    if stream.address.tcp is None:
        return UNIX
    binding = protocol(stream.protocol).stream
    carriers = () if binding is None else binding.carriers
    return next((carrier for carrier in carriers if carrier != UNIX), "tcp")


def _stream_server(
    config: ListenerConfig,
    stream: StreamConfig,
    service: Service,
    limits: tuple[ServerLimits, MessageLimits],
    shared: SharedResources,
) -> StreamServer:
    spec = protocol(stream.protocol)
    binding = spec.stream
    if binding is None:
        raise LookupError(f"protocol {stream.protocol!r} does not support byte streams")
    _check_exposure(config, stream.address, shared.strict)
    codec = binding.codec(limits[1], _options(spec, config, shared))
    return StreamServer(
        str(stream.address),
        partial(binding.server_framer, limits[1]),
        _frontend(codec, service, shared.metrics),
        limits=limits[0],
        budget=shared.budget,
        ordered=binding.ordered,
        ssl_context=None
        if stream.address.tcp is None
        else _ssl_context(config.tls, shared.directory),
        mode=int(stream.mode, 8),
        refused=partial(RejectionLog(shared.metrics, config.name).count, "stream"),
        beside=_shared_port(spec, config, service, limits, shared),
        reuse_port=shared.reuse_port,
        sock=shared.sockets.get(str(stream.address)),
    )


def _shared_port(
    spec: ProtocolSpec,
    config: ListenerConfig,
    service: Service,
    limits: tuple[ServerLimits, MessageLimits],
    shared: SharedResources,
) -> SharedPortProtocols | None:
    """Return the HTTP and gRPC servers on the port of a protocol's byte stream, if it has any."""
    if spec.stream is None or spec.stream.is_frame is None:
        return None
    options, budget, metrics = _options(spec, config, shared), shared.budget, shared.metrics
    count = ConnectionCount(limits[0].connections, limits[0].connections_per_address)
    servers: list[tuple[MatchesPrefix, ConnectionServer]] = []
    if spec.http is not None and spec.stream.http_prefixes:
        codec: Any = spec.http.codec(limits[1], options)
        frontend: Any = _frontend(codec, service, metrics, stamp_http)
        http = HTTP_SERVERS[config.transport](
            mounts=[HttpMount(spec.stream.http_prefixes, frontend, spec.http.root)],
            limits=limits[0],
            budget=budget,
            refused=partial(RejectionLog(metrics, config.name).count, "http"),
            listens=False,
            count=count,
        )
        servers.append((may_be_http, http))
    if spec.grpc is not None and spec.stream.grpc_methods:
        codec = spec.grpc.codec(limits[1], options)
        frontend = _frontend(codec, service, metrics, stamp_grpc)
        # grpcio cannot serve a connection that another server accepted; the native server can.
        grpc = NativeGrpcServer(
            "",
            [GrpcMount(spec.stream.grpc_methods, frontend)],
            limits[0],
            budget,
            refused=partial(RejectionLog(metrics, config.name).count, "grpc"),
            listens=False,
            count=count,
        )
        servers.append((may_be_http2, grpc))
    return SharedPortProtocols(spec.stream.is_frame, tuple(servers), count)


def _fallback(
    config: ListenerConfig, messages: MessageLimits, shared: SharedResources
) -> HttpFrontend | None:
    """Return the handler of paths that no protocol claims."""
    if config.passthrough is None:
        return None
    client = shared.http_clients[config.passthrough.upstream]
    return Passthrough(client, passthrough_rules(config.passthrough, messages))


def _prefixes(binding: HttpBinding, config: ListenerConfig, options: Options) -> Sequence[str]:
    """Return the path prefixes of a protocol; "/" among them if it is the only one here."""
    prefixes = (*binding.prefixes, *binding.own_paths(options))
    names = [name for name in config.protocols or PROTOCOLS if protocol(name).http is not None]
    is_only = len(names) == 1 and config.passthrough is None
    return (*prefixes, "/") if is_only and binding.any_path else prefixes


def _options(spec: ProtocolSpec, config: ListenerConfig, shared: SharedResources) -> Options:
    """Return the protocol's options on this listener, with what is not in YAML among them."""
    options = config.options.get(spec.name, {})
    if spec.default_model and config.default_model is not None:
        options = {spec.default_model: config.default_model, **options}
    checked = spec.options(options)
    return {**checked, REQUEST_IDS: shared.request_ids} if spec.numbers_requests else checked


def _unique_name(name: str, used: Mapping[str, object]) -> str:
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in used)


def _services(mounts: Sequence[GrpcMount]) -> list[str]:
    paths = [path for mount in mounts for path in mount.methods]
    return list(dict.fromkeys(path.split("/")[1] for path in paths))


def _extras(
    services: list[str], descriptors: list[tuple[bytes, ...]], ready: Ready
) -> tuple[GrpcMount, ...]:
    async def status(service: str) -> bool | None:
        return await ready() if service in names else None

    names = frozenset(["", *services])
    return Health(status).mount, Reflection(services, descriptors).mount


def _grpc_address(address: Address) -> str:
    return str(address) if address.host else f"[::]:{address.port}"


class RejectionLog:
    """Counts what reaches no frontend, and logs refused connections, once a second at most."""

    def __init__(self, metrics: Metrics, listener: str) -> None:
        self._metrics = metrics
        self._listener = listener
        self._logged = 0.0
        self._unlogged = 0

    def count(self, carrier: str, error: GatewayError) -> None:
        """Count *error*."""
        self._metrics.rejected(carrier, error)
        if not isinstance(error, TooManyConnections):
            return
        now = monotonic()
        self._unlogged += 1
        if now - self._logged >= 1.0:
            log.warning(
                "connections refused",
                listener=self._listener,
                address=error.address,
                limit=error.limit,
                count=self._unlogged,
            )
            self._logged, self._unlogged = now, 0


def _check_exposure(config: ListenerConfig, address: Address | StreamAddress, strict: bool) -> None:
    """Reject an insecure listener on a public address, or warn without `security.strict`."""
    if address.is_loopback:
        return
    for risk, remedy in _risks(config):
        if strict:
            raise ValueError(
                f"listener {config.name!r} on {address} {risk}, which security.strict forbids; "
                f"{remedy}, or listen on 127.0.0.1"
            )
        log.warning(_EVENTS[risk], listener=config.name, address=str(address))


_OPEN = "can be reached from other machines without TLS"
_SHARING = "lets other machines use this one's shared memory"
_EVENTS = {risk: f"listener {risk}" for risk in (_OPEN, _SHARING)}


def _risks(config: ListenerConfig) -> Iterator[tuple[str, str]]:
    """Yield the security risks of a listener, each with its remedy."""
    if config.tls is None:
        yield _OPEN, "add 'tls'"
    if config.shared_memory.mode != "off":
        yield _SHARING, "set 'shared_memory: off'"


def _server_tls(tls: TlsConfig, directory: Path) -> ServerTls:
    if tls.cert is None or tls.key is None:
        raise ValueError("'tls' of a listener is incomplete; expected 'cert' and 'key'")
    ca = None if tls.ca is None else str(directory / tls.ca)
    return ServerTls(cert=str(directory / tls.cert), key=str(directory / tls.key), client_ca=ca)


def _ssl_context(tls: TlsConfig | None, directory: Path) -> Any:
    return None if tls is None else server_context(_server_tls(tls, directory))
