"""Listeners of the configuration -> servers: which protocols are spoken where."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

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
from gateway.transports.admission import ConnectionCount, MemoryBudget
from gateway.transports.contract import GrpcMount, HttpFrontend, HttpMount, Server, ServerLimits
from gateway.transports.grpc.health import Health
from gateway.transports.grpc.reflection import Reflection
from gateway.transports.grpc.server import GrpcServer as HandedGrpcServer
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

log = structlog.get_logger(__name__)

Ready = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Shared:
    """What every listener of the process shares.

    Attributes:
        reuse_port: Other processes listen on the same addresses.
        sockets: Unix sockets that other processes have too, by address.
        passes_on: Some upstream can be sent what is still to come of a request.
    """

    metrics: Metrics
    budget: MemoryBudget
    directory: Path
    strict: bool
    known: ModelKeyIndex
    fallbacks: Mapping[str, HttpFrontend] = field(default_factory=dict)
    reuse_port: bool = False
    sockets: Mapping[str, socket.socket] = field(default_factory=dict)
    passes_on: bool = False


def build_listener(
    config: ListenerConfig, service: Service, ready: Ready, shared: Shared
) -> dict[str, Server]:
    """Build the servers of one listener, by name ("main.http").

    Args:
        config: The listener.
        service: Answers its calls.
        ready: Async function that tells whether the server is ready, for grpc.health.v1.
        shared: Of the process.

    Raises:
        LookupError: No such protocol.
        ValueError: An option or TLS file is wrong, or strict security forbids the address.
    """
    limits = _limits(config, passes_on=shared.passes_on)
    http: list[HttpMount] = []
    grpc: list[GrpcMount] = []
    descriptors: list[tuple[bytes, ...]] = []
    messages = message_limits(config.messages, limits.message_bytes)
    for name in config.protocols or PROTOCOLS:
        spec = protocol(name)
        options = _options(spec, config)
        refused = shared.metrics.refused_by
        answers = _answers(spec, service, shared)
        if spec.http is not None and config.http is not None:
            codec: Any = spec.http.codec(messages, options)
            frontend: Any = Frontend(codec, answers, refused=refused, stamp=stamp_http)
            http.append(HttpMount(_prefixes(spec.http, config, options), frontend))
        if spec.grpc is not None and config.grpc is not None:
            codec = spec.grpc.codec(messages, options)
            frontend = Frontend(codec, answers, refused=refused, stamp=stamp_grpc)
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
            fallback=shared.fallbacks.get(config.passthrough or ""),
            ssl_context=_http_tls(config.tls, shared.directory),
            refused=partial(_refused, shared.metrics, "http"),
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
            tls=None if config.tls is None else _files(config.tls, shared.directory),
            refused=partial(_refused, shared.metrics, "grpc"),
            reuse_port=shared.reuse_port,
        )
    for stream in config.streams:
        name = f"{config.name}.{stream.protocol}.{_carrier(stream)}"
        name = _unused(name, servers)
        answers = _answers(protocol(stream.protocol), service, shared)
        servers[name] = _stream_server(config, stream, answers, (limits, messages), shared)
    return servers


def _answers(spec: ProtocolSpec, service: Service, shared: Shared) -> Service:
    """Return what answers the calls of a protocol."""
    return ResolveModelKeys(service, shared.known) if spec.model_keys else service


def received_bytes(config: ListenerConfig) -> int:
    """Return the most bytes of one message that a listener takes."""
    return _limits(config).message_bytes


def _limits(config: ListenerConfig, *, passes_on: bool = True) -> ServerLimits:
    defaults = ServerLimits() if passes_on else ServerLimits(cut_through_bytes=0)
    limits: ServerLimits = overridden(defaults, config.limits)
    return limits


def _carrier(stream: StreamConfig) -> str:
    """Return what carries a stream, by the name that stands in URLs."""
    if stream.address.tcp is None:
        return UNIX
    binding = protocol(stream.protocol).stream
    known = () if binding is None else binding.carriers
    return next((carrier for carrier in known if carrier != UNIX), "tcp")


def _stream_server(
    config: ListenerConfig,
    stream: StreamConfig,
    service: Service,
    limits: tuple[ServerLimits, MessageLimits],
    shared: Shared,
) -> StreamServer:
    spec = protocol(stream.protocol)
    binding = spec.stream
    if binding is None:
        raise LookupError(f"protocol {stream.protocol!r} has no form for byte streams")
    _check_exposure(config, stream.address, shared.strict)
    codec = binding.codec(limits[1], _options(spec, config))
    return StreamServer(
        str(stream.address),
        partial(binding.server_framer, limits[1]),
        Frontend(codec, service, refused=shared.metrics.refused_by),
        limits=limits[0],
        budget=shared.budget,
        ordered=binding.ordered,
        ssl_context=None if stream.address.tcp is None else _http_tls(config.tls, shared.directory),
        mode=int(stream.mode, 8),
        refused=partial(_refused, shared.metrics, "stream"),
        beside=_beside(spec, config, service, limits, shared),
        reuse_port=shared.reuse_port,
        sock=shared.sockets.get(str(stream.address)),
    )


def _beside(
    spec: ProtocolSpec,
    config: ListenerConfig,
    service: Service,
    limits: tuple[ServerLimits, MessageLimits],
    shared: Shared,
) -> SharedPortProtocols | None:
    """Return what else is spoken on the port of a protocol's stream, if anything is."""
    if spec.stream is None or spec.stream.is_frame is None:
        return None
    options, budget, metrics = _options(spec, config), shared.budget, shared.metrics
    count = ConnectionCount(limits[0].connections, limits[0].connections_per_address)
    servers: list[tuple[MatchesPrefix, ConnectionServer]] = []
    if spec.http is not None and spec.stream.http_prefixes:
        codec: Any = spec.http.codec(limits[1], options)
        frontend: Any = Frontend(codec, service, refused=metrics.refused_by, stamp=stamp_http)
        http = HTTP_SERVERS[config.transport](
            mounts=[HttpMount(spec.stream.http_prefixes, frontend)],
            limits=limits[0],
            budget=budget,
            refused=partial(_refused, metrics, "http"),
            listens=False,
            count=count,
        )
        servers.append((may_be_http, http))
    if spec.grpc is not None and spec.stream.grpc_methods:
        codec = spec.grpc.codec(limits[1], options)
        frontend = Frontend(codec, service, refused=metrics.refused_by, stamp=stamp_grpc)
        # grpcio takes no connection from others: our own does, whatever the listener's transport.
        grpc = HandedGrpcServer(
            "",
            [GrpcMount(spec.stream.grpc_methods, frontend)],
            limits[0],
            budget,
            refused=partial(_refused, metrics, "grpc"),
            listens=False,
            count=count,
        )
        servers.append((may_be_http2, grpc))
    return SharedPortProtocols(spec.stream.is_frame, tuple(servers), count)


def _prefixes(binding: HttpBinding, config: ListenerConfig, options: Options) -> Sequence[str]:
    """Return the paths that a protocol claims: all of them where it is alone and takes them."""
    prefixes = (*binding.prefixes, *binding.own_paths(options))
    spoken = [name for name in config.protocols or PROTOCOLS if protocol(name).http is not None]
    alone = len(spoken) == 1 and config.passthrough is None
    return (*prefixes, "/") if alone and binding.any_path else prefixes


def _options(spec: ProtocolSpec, config: ListenerConfig) -> Options:
    """Return the protocol's options on this listener, with its default model among them."""
    options = config.options.get(spec.name, {})
    if spec.default_model and config.default_model is not None:
        options = {spec.default_model: config.default_model, **options}
    return spec.options(options)


def _unused(name: str, taken: Mapping[str, object]) -> str:
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)


def _services(mounts: Sequence[GrpcMount]) -> list[str]:
    paths = [path for mount in mounts for path in mount.methods]
    return list(dict.fromkeys(path.split("/")[1] for path in paths))


def _extras(
    services: list[str], descriptors: list[tuple[bytes, ...]], ready: Ready
) -> tuple[GrpcMount, ...]:
    async def status(service: str) -> bool | None:
        return await ready() if service in known else None

    known = frozenset(["", *services])
    return Health(status).mount, Reflection(services, descriptors).mount


def _grpc_address(address: Address) -> str:
    return str(address) if address.host else f"[::]:{address.port}"


def _refused(metrics: Metrics, carrier: str, error: GatewayError) -> None:
    metrics.refused(carrier, error.code.value, error.limit)


def _check_exposure(config: ListenerConfig, address: Address | StreamAddress, strict: bool) -> None:
    """Refuse, or warn of, what other machines can do where they can connect."""
    if address.is_loopback:
        return
    for danger, instead in _dangers(config):
        if strict:
            raise ValueError(
                f"listener {config.name!r} on {address} {danger}, which security.strict forbids: "
                f"{instead}, or listen on 127.0.0.1"
            )
        log.warning(_EVENTS[danger], listener=config.name, address=str(address))


_OPEN = "can be reached from other machines without TLS"
_SHARING = "lets other machines use this one's shared memory"
_EVENTS = {danger: f"listener {danger}" for danger in (_OPEN, _SHARING)}


def _dangers(config: ListenerConfig) -> Iterator[tuple[str, str]]:
    """Yield what is dangerous, and what to do instead."""
    if config.tls is None:
        yield _OPEN, "add 'tls'"
    if config.shared_memory != "off":
        yield _SHARING, "set 'shared_memory: off'"


def _files(tls: TlsConfig, directory: Path) -> ServerTls:
    if tls.cert is None or tls.key is None:
        raise ValueError("tls of a listener needs 'cert' and 'key'")
    ca = None if tls.ca is None else str(directory / tls.ca)
    return ServerTls(cert=str(directory / tls.cert), key=str(directory / tls.key), client_ca=ca)


def _http_tls(tls: TlsConfig | None, directory: Path) -> Any:
    return None if tls is None else server_context(_files(tls, directory))
