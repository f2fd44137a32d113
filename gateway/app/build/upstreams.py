"""Builds the service of each upstream: clients, codecs, endpoints and probes."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from gateway.api.protocol import (
    Codec,
    DefectKind,
    GrpcBinding,
    HttpBinding,
    Options,
    ProtocolSpec,
    StreamBinding,
)
from gateway.app.build.chain_context import NO_CONTEXT, ChainContext
from gateway.app.build.endpoint_discovery import BuiltEndpoint, EndpointDiscovery
from gateway.app.build.server_identity import ServerIdentity
from gateway.app.chains.upstream import ServerTraits
from gateway.app.layers import build_chain
from gateway.config.limits import ClientLimitsConfig, MessageLimitsConfig
from gateway.config.models import UpstreamConfig
from gateway.config.tls import TlsConfig, client_files
from gateway.ir.calls import SharedRegisterRequest
from gateway.ir.context import Need
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ServerMetadata
from gateway.model_info.sequence_ids import SequenceIdTypes
from gateway.policies.divide_rows import DivideRows
from gateway.policies.forward_headers import (
    CLIENT_HEADER,
    AddedHeaders,
    QuestionHeaders,
    forwards_authorization,
)
from gateway.policies.hand_over.policy import HandOver
from gateway.policies.hand_over.pool import RegionPool
from gateway.policies.known_models import KnownModels
from gateway.policies.signatures import DescribedModels
from gateway.registry import carrier_of, protocol
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoint_keys import SLOW_START, balancer_of, outlier_detection_of
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.balancing.health_probe import Identify, Prober
from gateway.routing.sequence_affinity import IDLE_S
from gateway.service import Service
from gateway.settings.units import Address, Url
from gateway.telemetry import names
from gateway.telemetry.call_path import current_route
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.upstream_metrics import EndpointAttempts
from gateway.telemetry.usage.model_calls import ModelCalls
from gateway.transports.choice import TransportImplementation, grpc_client, http_client
from gateway.transports.contract import ClientLimits, GrpcClient, HttpClient
from gateway.transports.grpc.withheld import WithheldCalls
from gateway.transports.http.passthrough import PassthroughClient
from gateway.transports.memory_budget import UNLIMITED, MemoryBudget
from gateway.transports.net.host_addresses import HAS_DNS, is_service, look_up_all
from gateway.transports.net.look_up import is_looked_up
from gateway.transports.net.tls_files import TlsFiles
from gateway.transports.stream.client import StreamClient
from gateway.upstream import DialectDetectingUpstream, Upstream
from gateway.wire.declarations import DeclaringCodec

Close = Callable[[], Awaitable[None]]

# A load or unload probes too, while a periodic probe may wait.
_PROBE_CONNECTIONS: Final = 2

# A server on this machine accepts connections at once, or is not running.
_LOOPBACK_CONNECT_S = 1.0


def overridden(defaults: Any, values: Mapping[str, Any]) -> Any:
    """Return the dataclass *defaults* with the values of a section of the file that are set.

    Durations have the suffix `_s` in code only: `queue_wait` in YAML is `queue_wait_s` here.
    """
    fields = {field.name for field in dataclasses.fields(defaults)}
    changes = {}
    for key, value in values.items():
        changes[key if key in fields else f"{key}_s"] = value
    return type(defaults)(**{**dataclasses.asdict(defaults), **changes})


@dataclass(frozen=True, slots=True)
class Connected:
    """A service that sends calls to one server, its client, and the codec of its messages."""

    service: Service
    needs: frozenset[Need]
    close: Close
    http: HttpClient | None = None
    codec: Codec[Any, Any] | None = None


def connect(  # noqa: PLR0913  # keyword-only, but for the first
    url: Url,
    *,
    options: Options | None = None,
    client_limits: ClientLimits | None = None,
    message_limits: MessageLimits | None = None,
    tls: TlsConfig | TlsFiles | None = None,
    directory: Path = Path(),
    transport: TransportImplementation = "native",
    withheld: WithheldCalls | None = None,
    budget: MemoryBudget = UNLIMITED,
    attempts: EndpointAttempts | None = None,
    question_headers: Mapping[str, str] | None = None,
    brief_errors: bool = False,
    address: str = "",
    adapt: Callable[[Codec[Any, Any]], Codec[Any, Any]] | None = None,
) -> Connected:
    """Build a service that sends calls to the server at *url*, without connecting yet.

    Calls about readiness, metadata, configuration and index have the *question_headers*. The server
    is at the IP address *address* of the host; "" looks it up. *adapt* returns the codec to use
    instead of that of the protocol.

    Raises:
        LookupError: The protocol does not exist, or does not support the carrier.
        ValueError: The path of the URL, an option or a TLS file is invalid.
    """
    spec, binding = protocol(url.protocol), carrier_of(url)
    name = str(url)
    if (
        isinstance(binding, HttpBinding)
        and binding.path_option
        and (url.path or (url.is_root and binding.sets_root_path))
    ):
        # In this protocol the path of a URL is complete, so it is an option, not a prefix.
        options = {binding.path_option: url.path or "/", **(options or {})}
        url = dataclasses.replace(url, path="")
    checked = spec.options(options or {})
    limits = message_limits or MessageLimits()
    if client_limits is None:
        client_limits = _client_limits(ClientLimitsConfig(), is_loopback=url.is_loopback)
    if tls is None and url.tls:
        tls = TlsConfig()
    files = tls if isinstance(tls, TlsFiles) else client_files(f"upstream {name}", tls, directory)
    how = _ClientSettings(files, transport, withheld, budget, address)
    client: Any = _client(url, binding, client_limits, limits, how)
    codec: Any = binding.codec

    def build(options: Options) -> Service:
        made = codec(limits, options) if adapt is None else adapt(codec(limits, options))
        upstream: Service = Upstream(name, made, client, attempts, brief_errors=brief_errors)
        if question_headers:
            upstream = QuestionHeaders(upstream, question_headers)
        if made.max_rows is not None:
            upstream = DivideRows(upstream, made.max_rows)
        return KnownModels(upstream, made.sends_on) if made.only_known_models else upstream

    service = _with_dialect_detection(spec, checked, build)
    plain = codec(limits, _default_dialect(spec, checked))
    http = cast("HttpClient", client) if isinstance(binding, HttpBinding) else None
    return Connected(service, plain.needs, client.close, http, plain)


def complete_service(
    connected: Connected,
    url: Url,
    headers: Mapping[str, str] = MappingProxyType({}),
    described: DescribedModels | None = None,
) -> Service:
    """Return a service that also adds names, shapes and classes that the protocol lacks.

    Each call gets the *headers*. What *described* says of models goes before what the server says.
    """
    spec = protocol(url.protocol)
    server = ServerTraits(
        connected.needs,
        spec.classifies,
        partial(spec.may_have, DefectKind.EMPTY_CLASSES, None, url.carrier),
        codec=connected.codec,
    )
    return chain_of_server(connected.service, server, headers, described)


def chain_of_server(
    end: Service,
    server: ServerTraits,
    headers: Mapping[str, str] = MappingProxyType({}),
    described: DescribedModels | None = None,
) -> Service:
    """Return the layers of an endpoint that belongs to no upstream of a configuration.

    Args:
        end: Sends the calls.
        server: What the layers need to know of the server.
        headers: The headers of each call.
        described: What a configuration says of models; None for nothing.
    """
    models = described or DescribedModels()
    at = NO_CONTEXT.with_parts(server, AddedHeaders(headers), models, ModelCalls())
    return build_chain("endpoint", end, at)


class _ClientSettings(NamedTuple):
    tls: TlsFiles | None
    transport: TransportImplementation
    withheld: WithheldCalls | None
    budget: MemoryBudget
    address: str


def _client(
    url: Url,
    binding: HttpBinding | GrpcBinding | StreamBinding,
    client_limits: ClientLimits,
    limits: MessageLimits,
    how: _ClientSettings,
) -> HttpClient | GrpcClient | StreamClient:
    tls, transport, withheld, budget, ip = how
    if isinstance(binding, GrpcBinding):
        return grpc_client(
            transport,
            url.authority,
            client_limits,
            tls=tls,
            withheld=withheld,
            budget=budget,
            address=ip,
        )
    if isinstance(binding, HttpBinding):
        server = f"{url.authority}{url.path}"
        return http_client(transport, server, client_limits, tls=tls, budget=budget, address=ip)
    return StreamClient(
        url.authority,
        partial(binding.client_framer, limits),
        client_limits,
        ordered=binding.is_ordered,
        tls=None if tls is None else tls.context(),
        budget=budget,
        address=ip,
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


class BuiltUpstream:
    """An upstream whose probes have not started yet.

    Args:
        name: Its name.
        service: Answers its calls.
        endpoints: Its endpoints.
        sequence_ids: The types of the sequence ids of its models.
        members: Its endpoints with all that belongs to them; none if *discovery* finds them.
        discovery: Follows the addresses of names; None for fixed addresses.
        by_name: A client of its first name, for passthrough; None for fixed addresses.
        tls: Its TLS files; None without TLS.
        hosts: The hosts of its URLs.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first three
        self,
        name: str,
        service: Service,
        endpoints: Endpoints,
        *,
        sequence_ids: SequenceIdTypes,
        members: Sequence[BuiltEndpoint],
        hosts: Iterable[str] = (),
        discovery: EndpointDiscovery | None = None,
        by_name: Connected | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self.name = name
        self.tls = tls
        self.service = service
        self.endpoints = endpoints
        self.sequence_ids = sequence_ids
        self._members = members
        self._hosts = tuple(hosts)
        self._discovery = discovery
        self._by_name = by_name

    @property
    def members(self) -> Sequence[BuiltEndpoint]:
        """Its endpoints, with all that belongs to them."""
        return self._members if self._discovery is None else self._discovery.members

    def follow(self, *, sequence_idle_s: float, longest_call_s: float) -> None:
        """Use other times from now on; see `build_upstream`."""
        self.endpoints.affinity.idle_s = sequence_idle_s
        for member in self.members:
            member.withheld.longest_s = longest_call_s
        if self._discovery is not None:
            self._discovery.leave_s = longest_call_s

    def passthrough_client(
        self, config: UpstreamConfig, *, passes_inferences: bool
    ) -> PassthroughClient | None:
        """Return an HTTP client for the requests that pass; None if it has none.

        Args:
            config: Its section of the file.
            passes_inferences: Whether the inferences of its server's own protocol pass unread.
        """
        clients = (each.http for each in (self._by_name, *self._members) if each is not None)
        found = next((each for each in clients if each is not None), None)
        if found is None:
            return None
        return PassthroughClient(
            found,
            self.known_posts if passes_inferences else tuple,
            gets_authorization=forwards_authorization(config),
            client_header=(CLIENT_HEADER.of(config) or "").lower(),
        )

    def known_posts(self) -> tuple[str, ...]:
        """Return the paths for POST of its servers, outside of their protocol."""
        found = (path for member in self.members for path in member.identity.own_posts())
        return tuple(dict.fromkeys(found))

    def has_statistics(self) -> bool:
        """Return whether the servers of all endpoints have told that they count inferences."""
        return all(member.identity.has_statistics for member in self.members)

    def waits_for_name(self) -> bool:
        """Return whether it waits for a name server."""
        is_asking = self._discovery is not None and self._discovery.is_asking
        return is_asking or any(map(is_looked_up, self._hosts))

    def ready(self) -> bool:
        """Return whether any endpoint is ready."""
        return self.endpoints.ready()

    async def probe(self) -> None:
        """Look up the names, and probe each endpoint once."""
        if self._discovery is not None:
            await self._discovery.update()
        await asyncio.gather(*(member.prober.probe() for member in self._members))

    def start(self) -> None:
        """Begin to probe periodically, and to follow the addresses of names."""
        if self._discovery is not None:
            self._discovery.start()
        for member in self._members:
            member.prober.start()
        if self.endpoints.placement is not None:
            self.endpoints.placement.start()

    async def drain(self, timeout_s: float) -> None:
        """Stop probing, and wait for cancelled calls that still run."""
        if self._discovery is not None:
            await self._discovery.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for member in self.members:
                    await member.drain()

    async def close(self) -> None:
        """Stop probing and close every connection."""
        if self.endpoints.placement is not None:
            await self.endpoints.placement.close()
        if self._discovery is not None:
            await self._discovery.close()
        for member in self.members:
            await member.close()
        if self._by_name is not None:
            await self._by_name.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndpointBuilder:
    """Builds the endpoints of one upstream.

    Attributes:
        described: What the configuration says of models.
        longest_call_s: How long a cancelled call may still run.
        at: What its layers may use, with its name.
    """

    config: UpstreamConfig
    described: DescribedModels
    tls: TlsFiles | None
    longest_call_s: float
    at: ChainContext

    def __call__(self, url: Url, address: str = "") -> BuiltEndpoint:
        """Build the endpoint of *url*, which has the IP address *address*; "" to look it up."""
        config, metrics, upstream = self.config, self.at.part(Metrics), self.at.name
        name = str(Address(address, url.port)) if address else url.authority
        cancellation = config.cancellation if config.transport == "native" else "forward"
        withheld = WithheldCalls(
            self.longest_call_s,
            enabled=cancellation != "forward"
            and protocol(url.protocol).may_have(DefectKind.CANCELLED_CALLS, None, url.carrier),
            report=partial(metrics.withheld_cancellation, upstream),
        )
        labels = {"upstream": upstream, "endpoint": name}
        metrics.gauges.watch(names.WITHHELD_CALLS, labels, withheld, lambda calls: calls.pending)
        is_loopback = Address(address, url.port).is_loopback if address else url.is_loopback
        limits = _client_limits(config.limits, is_loopback=is_loopback)
        open_client = partial(
            self.connect, url, address=address, attempts=metrics.attempts.of(upstream, name)
        )
        connected = open_client(client_limits=limits, withheld=withheld)
        # A probe must not wait for a connection or a slot that calls have. One whose time is over
        # must not hurt the server either.
        probing = open_client(
            client_limits=dataclasses.replace(limits, connections=_PROBE_CONNECTIONS),
            withheld=withheld,
        )
        identity = ServerIdentity(upstream, name, url, cancellation, withheld)
        service: Service = connected.service
        hand_over = None
        is_here = is_loopback or bool(url.socket)
        if config.hand_over == "auto" and is_here and _registers_regions(connected.codec):
            hand_over = service = HandOver(
                service,
                probing.service,
                self.at.part(RegionPool),
                lambda: identity.server,
                most_bytes=limits.message_bytes,
                upstream=upstream,
                endpoint=name,
            )
        server = ServerTraits(
            connected.needs,
            protocol(url.protocol).classifies,
            identity.ends_at_empty_classes,
            upstream,
            url,
            connected.codec,
        )
        at = self.at.inside(name, "upstream", config).with_parts(
            server, AddedHeaders(config.headers), self.described
        )
        endpoint = Endpoint(name, build_chain("endpoint", service, at))
        metrics.gauges.watch(names.UPSTREAM_SHARE, labels, endpoint, lambda it: it.share.value)
        questions = build_chain("endpoint", probing.service, at)
        prober = Prober(
            upstream,
            endpoint,
            interval_s=config.probe.interval,
            timeout_s=config.probe.timeout,
            report=partial(metrics.upstream_ready, upstream, name),
            identify=identity if hand_over is None else _identify_for(identity, hand_over),
            service=questions,
        )
        closes: tuple[Close, ...] = (connected.close, probing.close)
        if hand_over is not None:
            closes = (hand_over.close, *closes)
        return BuiltEndpoint(
            endpoint, prober, identity, withheld, connected.http, closes, questions, hand_over
        )

    def connect(self, url: Url, **settings: Any) -> Connected:
        """Build a client of the server at *url*; for the *settings* see `connect`."""
        config = self.config
        return connect(
            url,
            options=config.options,
            message_limits=message_limits(config.messages, config.limits.message_bytes),
            tls=self.tls,
            transport=config.transport,
            budget=self.at.part(MemoryBudget),
            question_headers={**config.headers, **config.probe.headers},
            brief_errors=config.errors == "brief",
            adapt=partial(self._declare, url.protocol),
            **settings,
        )

    def _declare(self, name: str, codec: Codec[Any, Any]) -> Codec[Any, Any]:
        """Return a codec that knows what the configuration declares of models for its protocol."""
        if isinstance(codec, DeclaringCodec):
            declared = self.described.declarations
            found = {model: each[name] for model, each in declared.items() if name in each}
            codec.declare(found)
        return codec


def build_upstream(
    config: UpstreamConfig,
    described: DescribedModels,
    directory: Path,
    at: ChainContext,
    *,
    sequence_idle_s: float = IDLE_S,
    longest_call_s: float = 60.0,
    text_routes: AbstractSet[str] = frozenset(),
) -> BuiltUpstream:
    """Build one upstream of the configuration.

    A cancelled call may still run for *longest_call_s*. The routes *text_routes* have
    `sequence_ids: text`. Layers use *at*, which has the name of the upstream.

    Raises:
        LookupError: The protocol does not exist, or does not support the carrier.
        ValueError: An option or a TLS file is invalid, or a package is missing.
    """
    name, metrics = at.name, at.part(Metrics)
    counts = metrics.model_counts
    at = at.with_parts(ModelCalls() if counts is None else counts.sent[name])
    build = _EndpointBuilder(
        config=config,
        described=described,
        tls=client_files(f"upstream {name}", config.server_tls, directory),
        longest_call_s=longest_call_s,
        at=at,
    )
    is_fixed = config.resolve == "first"
    members = [build(url) for url in config.all_urls] if is_fixed else []
    sequence_ids = SequenceIdTypes(allows_unknown=lambda: current_route() in text_routes)
    balanced = Endpoints(
        name,
        [member.endpoint for member in members],
        balancer=balancer_of(config),
        slow_start_s=SLOW_START.of(config) or 0.0,
        outliers=outlier_detection_of(config),
        on_ejected=partial(metrics.endpoint_ejected, name),
        sequence_idle_s=sequence_idle_s,
        sequence_ids=sequence_ids,
        is_fixed=is_fixed,
    )
    discovery = None if is_fixed else _discovery(build, balanced)
    return BuiltUpstream(
        name,
        build_chain("upstream", balanced, at.with_parts(balanced)),
        balanced,
        sequence_ids=sequence_ids,
        members=members,
        hosts=[url.host for url in config.all_urls],
        discovery=discovery,
        by_name=None if is_fixed else build.connect(config.all_urls[0]),
        tls=build.tls,
    )


def _identify_for(identity: ServerIdentity, hand_over: HandOver) -> Identify:
    """Return what also tells *hand_over* of the server."""

    def identify(server: ServerMetadata | None) -> None:
        identity(server)
        hand_over.identify()

    return identify


def _registers_regions(codec: Codec[Any, Any] | None) -> bool:
    """Return whether there is a message that registers shared memory at the server."""
    handling = None if codec is None else codec.calls.get(SharedRegisterRequest)
    return handling is not None and handling.encode_call is not None


def _discovery(build: _EndpointBuilder, endpoints: Endpoints) -> EndpointDiscovery:
    config, name = build.config, build.at.name
    for url in config.all_urls:
        if is_service(url.host) and not HAS_DNS:
            raise ValueError(
                f"{url.host!r} is the name of a service, whose records only dnspython reads: "
                "install tensor-gateway[dns]"
            )
    limits = _client_limits(config.limits)
    return EndpointDiscovery(
        name,
        config.all_urls,
        endpoints,
        build=build,
        floor_s=limits.resolve_floor_s,
        cap_s=limits.resolve_cap_s,
        leave_s=build.longest_call_s,
        on_removed=partial(build.at.part(Metrics).forget_endpoint, name),
        look_up=look_up_all,
    )


def max_connections(upstreams: Iterable[UpstreamConfig]) -> int:
    """Return how many connections the addresses in the configuration may have together."""
    return sum(
        len(each.all_urls) * _client_limits(each.limits).most_connections for each in upstreams
    )


def message_limits(config: MessageLimitsConfig, message_bytes: int | None) -> MessageLimits:
    """Return the limits on the content of a message that a listener or upstream configures."""
    limits: MessageLimits = overridden(MessageLimits(), config.model_dump(exclude_none=True))
    if message_bytes is not None:
        limits = dataclasses.replace(limits, message_bytes=message_bytes)
    return limits


def _client_limits(config: ClientLimitsConfig, *, is_loopback: bool = False) -> ClientLimits:
    defaults = ClientLimits()
    if is_loopback:
        defaults = dataclasses.replace(defaults, connect_timeout_s=_LOOPBACK_CONNECT_S)
    if config.keepalive is not None:
        defaults = dataclasses.replace(defaults, reuse_s=config.keepalive)
    limits: ClientLimits = overridden(defaults, config.model_dump(exclude_none=True))
    return limits
