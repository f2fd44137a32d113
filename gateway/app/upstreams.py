"""Upstreams of the configuration -> services: clients, codecs, endpoints, probes."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from gateway.app.layers import EndpointParts, build_chain
from gateway.app.transports import TransportImplementation, grpc_client, http_client
from gateway.config.limits import ClientLimitsConfig, MessageLimitsConfig
from gateway.config.models import TlsConfig, UpstreamConfig
from gateway.config.signatures import Model, SignatureConfig
from gateway.config.units import UNIX, Url
from gateway.ir.context import Need
from gateway.ir.limits import MessageLimits
from gateway.registry import protocol
from gateway.routing.endpoints import BalancingPolicy, Endpoint, Endpoints
from gateway.routing.health_probe import Prober
from gateway.routing.sequence_affinity import IDLE_S
from gateway.service import Service
from gateway.telemetry.metrics import Metrics
from gateway.transports.contract import ClientLimits, GrpcClient, HttpClient
from gateway.transports.net.tls import ClientTls, client_context
from gateway.transports.stream.client import StreamClient
from gateway.upstream import DialectDetectingUpstream, Upstream
from gateway.wire.codec import GrpcBinding, HttpBinding, Options, ProtocolSpec, StreamBinding

Close = Callable[[], Awaitable[None]]

# A peer on this machine that does not answer at once is not there.
_LOOPBACK_CONNECT_S = 1.0


def overridden(defaults: Any, config: Model) -> Any:
    """Return the dataclass *defaults* with every value that *config* gives.

    A duration is called `queue_wait` in YAML, where its unit is written beside it, and
    `queue_wait_s` in code.
    """
    fields = {field.name for field in dataclasses.fields(defaults)}
    changes = {}
    for key, value in config.model_dump(exclude_none=True).items():
        changes[key if key in fields else f"{key}_s"] = value
    return type(defaults)(**{**dataclasses.asdict(defaults), **changes})


@dataclass(frozen=True, slots=True)
class Connected:
    """One client with the service it carries."""

    service: Service
    needs: frozenset[Need]
    close: Close
    http: HttpClient | None = None


def connect(
    url: Url,
    *,
    options: Options | None = None,
    client_limits: ClientLimits | None = None,
    message_limits: MessageLimits | None = None,
    tls: TlsConfig | None = None,
    directory: Path | None = None,
    transport: TransportImplementation = "native",
) -> Connected:
    """Make the service that asks the server at *url*; nothing is sent yet.

    Raises:
        LookupError: No such protocol, or it has no such carrier.
        ValueError: An option or a TLS file is wrong.
    """
    spec = protocol(url.protocol)
    binding = spec.carriers.get(url.carrier)
    if binding is None:
        raise LookupError(f"protocol {url.protocol!r} is not carried by {url.carrier!r}")
    name = str(url)
    if isinstance(binding, HttpBinding) and binding.path_option and url.path:
        # There a URL is a model, and nothing is asked below it.
        options = {binding.path_option: url.path, **(options or {})}
        url = Url(url.protocol, url.carrier, url.host, url.port)
    checked = spec.options(options or {})
    limits = message_limits or MessageLimits()
    carried = client_limits or _client_limits(url, ClientLimitsConfig())
    files = None if tls is None else _tls_files(tls, directory)
    client = _client(url, binding, carried, limits, (files, transport))
    codec: Any = binding.codec
    make = partial(_upstream, name, codec, limits, client)
    service = _settled(spec, checked, make)
    needs = codec(limits, _plain_options(spec, checked)).needs
    http = cast("HttpClient", client) if isinstance(binding, HttpBinding) else None
    return Connected(service, needs, client.close, http)


def _client(
    url: Url,
    binding: HttpBinding | GrpcBinding | StreamBinding,
    carried: ClientLimits,
    limits: MessageLimits,
    how: tuple[ClientTls | None, TransportImplementation],
) -> HttpClient | GrpcClient | StreamClient:
    tls, transport = how
    if isinstance(binding, GrpcBinding):
        return grpc_client(transport, url.authority, carried, tls=tls)
    if isinstance(binding, HttpBinding):
        return http_client(transport, f"{url.authority}{url.path}", carried, tls=tls)
    context = None if tls is None else client_context(tls)
    return StreamClient(
        url.authority,
        partial(binding.client_framer, limits),
        carried,
        ordered=binding.ordered,
        ssl_context=None if url.carrier == UNIX else context,
    )


def _upstream(
    name: str, codec: Any, limits: MessageLimits, client: Any, options: Options
) -> Service:
    return Upstream(name, codec(limits, options), client)


def _plain_options(spec: ProtocolSpec, options: Options) -> Options:
    return options if spec.resolve_dialect is None else spec.resolve_dialect(options, "")


def _settled(spec: ProtocolSpec, options: Options, make: Callable[[Options], Service]) -> Service:
    plain = make(_plain_options(spec, options))
    settle = spec.resolve_dialect
    if settle is None or settle(options, "") == options:
        return plain
    return DialectDetectingUpstream(plain, lambda server: make(settle(options, server)))


@dataclass(frozen=True, slots=True)
class BuiltUpstream:
    """An upstream, ready to be started.

    Attributes:
        http: The client of its first endpoint, for what passes through; None where it is gRPC.
    """

    name: str
    service: Service
    endpoints: Endpoints
    probers: tuple[Prober, ...]
    closes: tuple[Close, ...]
    http: HttpClient | None

    def ready(self) -> bool:
        """Return whether any endpoint is ready."""
        return self.endpoints.ready()

    async def close(self) -> None:
        """Stop probing and close every connection."""
        for prober in self.probers:
            await prober.close()
        for close in self.closes:
            await close()


def build_upstream(
    name: str,
    config: UpstreamConfig,
    signatures: Mapping[str, SignatureConfig],
    metrics: Metrics,
    directory: Path,
    *,
    sequence_idle_s: float = IDLE_S,
) -> BuiltUpstream:
    """Build one upstream of the configuration.

    Raises:
        LookupError: No such protocol or carrier.
        ValueError: An option or a TLS file is wrong.
    """
    endpoints: list[Endpoint] = []
    probers: list[Prober] = []
    closes: list[Close] = []
    clients: list[HttpClient] = []
    for url in config.all_urls:
        connected = connect(
            url,
            options=config.options,
            client_limits=_client_limits(url, config.limits),
            message_limits=message_limits(config.messages, config.limits.message_bytes),
            tls=config.tls,
            directory=directory,
            transport=config.transport,
        )
        parts = EndpointParts(
            needs=connected.needs,
            signatures=signatures,
            classifies=protocol(url.protocol).classifies,
            forward_headers=tuple(config.forward_headers),
            headers=config.headers,
        )
        service = build_chain("endpoint", connected.service, parts)
        endpoint = Endpoint(url.authority, service)
        endpoints.append(endpoint)
        probers.append(
            Prober(
                name,
                endpoint,
                interval_s=config.probe.interval,
                timeout_s=config.probe.timeout,
                report=partial(metrics.upstream_ready, name, url.authority),
            )
        )
        closes.append(connected.close)
        if connected.http is not None:
            clients.append(connected.http)
    balanced = Endpoints(
        name, endpoints, picker=BalancingPolicy(config.balance), sequence_idle_s=sequence_idle_s
    )
    return BuiltUpstream(
        name, balanced, balanced, tuple(probers), tuple(closes), clients[0] if clients else None
    )


def message_limits(config: MessageLimitsConfig, message_bytes: int | None) -> MessageLimits:
    """Return the limits on what a message may hold, as a listener or upstream sets them."""
    limits: MessageLimits = overridden(MessageLimits(), config)
    if message_bytes is not None:
        limits = overridden(limits, _OnlySize(message_bytes=message_bytes))
    return limits


class _OnlySize(Model):
    message_bytes: int


def _client_limits(url: Url, config: ClientLimitsConfig) -> ClientLimits:
    defaults = ClientLimits()
    if url.is_loopback:
        defaults = overridden(defaults, ClientLimitsConfig(connect_timeout=_LOOPBACK_CONNECT_S))
    limits: ClientLimits = overridden(defaults, config)
    return limits


def _tls_files(tls: TlsConfig, directory: Path | None) -> ClientTls:
    base = Path() if directory is None else directory
    files = {"cert": tls.cert, "key": tls.key, "ca": tls.ca}
    return ClientTls(
        **{key: None if value is None else str(base / value) for key, value in files.items()}
    )
