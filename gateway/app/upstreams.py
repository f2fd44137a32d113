"""Builds the service of each upstream: clients, codecs, endpoints and probes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import structlog

from gateway.app.layers import EndpointParts, build_chain
from gateway.app.transports import TransportImplementation, grpc_client, http_client
from gateway.app.weaknesses import CANCELLED_CALLS, weaknesses_of, withholds_before
from gateway.config.limits import ClientLimitsConfig, MessageLimitsConfig
from gateway.config.models import OutlierDetectionConfig, TlsConfig, UpstreamConfig
from gateway.config.signatures import Model, SignatureConfig
from gateway.config.units import UNIX, Url
from gateway.ir.context import Need
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ServerMetadata
from gateway.registry import protocol
from gateway.routing.endpoints import BalancingPolicy, Endpoint, Endpoints
from gateway.routing.health_probe import Prober
from gateway.routing.outlier_detection import OFF, OutlierDetection
from gateway.routing.sequence_affinity import IDLE_S
from gateway.routing.sequence_ids import SequenceIdTypes
from gateway.service import Service
from gateway.telemetry.call_path import current_route
from gateway.telemetry.metrics import Metrics
from gateway.transports.admission import UNLIMITED, MemoryBudget
from gateway.transports.contract import ClientLimits, GrpcClient, HttpClient
from gateway.transports.grpc.withheld import WithheldCalls
from gateway.transports.net.tls import ClientTls, client_context
from gateway.transports.stream.client import StreamClient
from gateway.upstream import DialectDetectingUpstream, Upstream
from gateway.wire.codec import GrpcBinding, HttpBinding, Options, ProtocolSpec, StreamBinding

log = structlog.get_logger(__name__)

GRPC = "grpc"

Close = Callable[[], Awaitable[None]]

# Servers of the first may be Triton, and those of the second are its ancestor.
_WITHHELD_PROTOCOLS = frozenset({"oip", "trtis"})

# A server on this machine accepts connections at once, or is not running.
_LOOPBACK_CONNECT_S = 1.0


def overridden(defaults: Any, config: Model) -> Any:
    """Return the dataclass *defaults* with the values that *config* sets.

    Durations have the suffix `_s` in code only: `queue_wait` in YAML is `queue_wait_s` here.
    """
    fields = {field.name for field in dataclasses.fields(defaults)}
    changes = {}
    for key, value in config.model_dump(exclude_none=True).items():
        changes[key if key in fields else f"{key}_s"] = value
    return type(defaults)(**{**dataclasses.asdict(defaults), **changes})


@dataclass(frozen=True, slots=True)
class Connected:
    """A service that sends calls to one server, and its client."""

    service: Service
    needs: frozenset[Need]
    close: Close
    http: HttpClient | None = None


def connect(  # noqa: PLR0913  # keyword-only, but for the first
    url: Url,
    *,
    options: Options | None = None,
    client_limits: ClientLimits | None = None,
    message_limits: MessageLimits | None = None,
    tls: TlsConfig | None = None,
    directory: Path | None = None,
    transport: TransportImplementation = "native",
    withheld: WithheldCalls | None = None,
    budget: MemoryBudget = UNLIMITED,
) -> Connected:
    """Build a service that sends calls to the server at *url*, without connecting yet.

    Raises:
        LookupError: The protocol does not exist, or does not support the carrier.
        ValueError: An option or a TLS file is invalid.
    """
    spec = protocol(url.protocol)
    binding = spec.carriers.get(url.carrier)
    if binding is None:
        carriers = ", ".join(spec.carriers)
        raise LookupError(
            f"protocol {url.protocol!r} does not support {url.carrier!r}; expected {carriers}"
        )
    name = str(url)
    if isinstance(binding, HttpBinding) and binding.path_option and url.path:
        # In this protocol the URL of a model is complete, so the path is an option, not a prefix.
        options = {binding.path_option: url.path, **(options or {})}
        url = Url(url.protocol, url.carrier, url.host, url.port)
    checked = spec.options(options or {})
    limits = message_limits or MessageLimits()
    if client_limits is None:
        client_limits = _client_limits(url, ClientLimitsConfig())
    files = None if tls is None else _tls_files(tls, directory)
    how = (files, transport, withheld, budget)
    client: Any = _client(url, binding, client_limits, limits, how)
    codec: Any = binding.codec

    def build(options: Options) -> Service:
        return Upstream(name, codec(limits, options), client)

    service = _with_dialect_detection(spec, checked, build)
    needs = codec(limits, _default_dialect(spec, checked)).needs
    http = cast("HttpClient", client) if isinstance(binding, HttpBinding) else None
    return Connected(service, needs, client.close, http)


def _client(
    url: Url,
    binding: HttpBinding | GrpcBinding | StreamBinding,
    client_limits: ClientLimits,
    limits: MessageLimits,
    how: tuple[ClientTls | None, TransportImplementation, WithheldCalls | None, MemoryBudget],
) -> HttpClient | GrpcClient | StreamClient:
    tls, transport, withheld, budget = how
    if isinstance(binding, GrpcBinding):
        return grpc_client(
            transport, url.authority, client_limits, tls=tls, withheld=withheld, budget=budget
        )
    if isinstance(binding, HttpBinding):
        address = f"{url.authority}{url.path}"
        return http_client(transport, address, client_limits, tls=tls, budget=budget)
    context = None if tls is None else client_context(tls)
    return StreamClient(
        url.authority,
        partial(binding.client_framer, limits),
        client_limits,
        ordered=binding.ordered,
        ssl_context=None if url.carrier == UNIX else context,
        budget=budget,
    )


def _default_dialect(spec: ProtocolSpec, options: Options) -> Options:
    return options if spec.resolve_dialect is None else spec.resolve_dialect(options, "")


def _with_dialect_detection(
    spec: ProtocolSpec, options: Options, build: Callable[[Options], Service]
) -> Service:
    service = build(_default_dialect(spec, options))
    resolve = spec.resolve_dialect
    if resolve is None or resolve(options, "") == options:
        return service
    return DialectDetectingUpstream(service, lambda server: build(resolve(options, server)))


@dataclass(frozen=True, slots=True)
class BuiltUpstream:
    """An upstream whose probes have not started yet.

    Attributes:
        http: The HTTP client of its first endpoint, for passthrough; None if it has none.
        withheld: Cancelled calls that still run at each endpoint.
        sequence_ids: The types of the sequence ids of its models.
    """

    name: str
    service: Service
    endpoints: Endpoints
    probers: tuple[Prober, ...]
    closes: tuple[Close, ...]
    http: HttpClient | None
    withheld: tuple[WithheldCalls, ...]
    sequence_ids: SequenceIdTypes

    def ready(self) -> bool:
        """Return whether any endpoint is ready."""
        return self.endpoints.ready()

    async def drain(self, timeout_s: float) -> None:
        """Stop probing, and wait for cancelled calls that still run."""
        for prober in self.probers:
            await prober.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for withheld in self.withheld:
                    await withheld.drained()

    async def close(self) -> None:
        """Stop probing and close every connection."""
        for prober in self.probers:
            await prober.close()
        for close in self.closes:
            await close()


def build_upstream(  # noqa: PLR0913  # by name but the first five
    name: str,
    config: UpstreamConfig,
    signatures: Mapping[str, SignatureConfig],
    metrics: Metrics,
    directory: Path,
    *,
    sequence_idle_s: float = IDLE_S,
    longest_call_s: float = 60.0,
    text_routes: AbstractSet[str] = frozenset(),
    budget: MemoryBudget = UNLIMITED,
) -> BuiltUpstream:
    """Build one upstream of the configuration.

    A cancelled call may still run for *longest_call_s*. The routes *text_routes* have
    `sequence_ids: text`.

    Raises:
        LookupError: The protocol does not exist, or does not support the carrier.
        ValueError: An option or a TLS file is invalid.
    """
    endpoints: list[Endpoint] = []
    probers: list[Prober] = []
    closes: list[Close] = []
    clients: list[HttpClient] = []
    withheld_calls: list[WithheldCalls] = []
    for url in config.all_urls:
        withheld = WithheldCalls(
            longest_call_s,
            enabled=config.cancellation != "forward" and url.protocol in _WITHHELD_PROTOCOLS,
            report=partial(metrics.withheld_cancellation, name),
        )
        withheld_calls.append(withheld)
        connected = connect(
            url,
            options=config.options,
            client_limits=_client_limits(url, config.limits),
            message_limits=message_limits(config.messages, config.limits.message_bytes),
            tls=config.tls,
            directory=directory,
            transport=config.transport,
            withheld=withheld,
            budget=budget,
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
                identify=_Identity(name, url, config.cancellation, withheld),
            )
        )
        closes.append(connected.close)
        if connected.http is not None:
            clients.append(connected.http)
    sequence_ids = SequenceIdTypes(allows_unknown=lambda: current_route() in text_routes)
    balanced = Endpoints(
        name,
        endpoints,
        picker=BalancingPolicy(config.balance),
        outliers=_outlier_detection(config.outlier_detection),
        on_ejected=partial(metrics.endpoint_ejected, name),
        sequence_idle_s=sequence_idle_s,
        sequence_ids=sequence_ids,
    )
    return BuiltUpstream(
        name,
        balanced,
        balanced,
        tuple(probers),
        tuple(closes),
        clients[0] if clients else None,
        tuple(withheld_calls),
        sequence_ids,
    )


def _outlier_detection(config: OutlierDetectionConfig | Literal[False]) -> OutlierDetection:
    if config is False:
        return OFF
    return OutlierDetection(
        consecutive_failures=config.consecutive_failures,
        consecutive_timeouts=config.consecutive_timeouts,
        base_ejection_s=config.base_ejection_time,
        max_ejection_s=config.max_ejection_time,
        max_ejection_percent=config.max_ejection_percent,
    )


class _Identity:
    """Logs the identity and the weaknesses of an endpoint's server, and sets its cancellation.

    Args:
        upstream: The name of the upstream in the log.
        url: The URL of the endpoint.
        cancellation: The configuration key `cancellation`.
        withheld: The cancelled calls of its client.
    """

    def __init__(self, upstream: str, url: Url, cancellation: str, withheld: WithheldCalls) -> None:
        self._upstream = upstream
        self._url = url
        self._cancellation = cancellation
        self._withheld = withheld
        self._server: ServerMetadata | None = None

    def __call__(self, server: ServerMetadata | None) -> None:
        """Set the server's metadata; None if it is unknown."""
        if self._cancellation == "auto" and self._url.protocol == "oip":
            self._withheld.enabled = withholds_before(server)
        if server is None or server == self._server:
            return
        self._server = server
        names = {"upstream": self._upstream, "endpoint": self._url.authority}
        log.info("server identified", server=server.name, version=server.version, **names)
        for weakness in weaknesses_of(server):
            if weakness is CANCELLED_CALLS:
                if self._url.carrier == GRPC:
                    self._log_cancellation(names)
            elif weakness.notable:
                log.info("known weakness", weakness=weakness.source, defence=weakness.defence)

    def _log_cancellation(self, names: Mapping[str, str]) -> None:
        row = CANCELLED_CALLS
        facts = {"weakness": row.source, "repaired": "2.59.0", "effect": row.effect, **names}
        if self._withheld.enabled:
            log.info("known weakness", defence=row.defence, **facts)
        else:
            log.warning("cancelled calls can end the server", use="cancellation: auto", **facts)


def message_limits(config: MessageLimitsConfig, message_bytes: int | None) -> MessageLimits:
    """Return the limits on the content of a message that a listener or upstream configures."""
    limits: MessageLimits = overridden(MessageLimits(), config)
    if message_bytes is not None:
        limits = dataclasses.replace(limits, message_bytes=message_bytes)
    return limits


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
