"""Checks that the schema cannot do: names of protocols and backends, and their options."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, SOCK_DGRAM, gethostname, socket
from typing import Any, Final

from gateway.app.build.declarations import check_declarations
from gateway.app.build.pipeline_graphs import check_graphs
from gateway.app.build.route_rules import required_routes, ruled_routes, target_name
from gateway.app.check.exposure import forbid_exposure
from gateway.app.check.strict_checks import strict_findings
from gateway.app.check.worker_limits import check_workers
from gateway.app.listen.path_ownership import PathConflictError, owned_paths
from gateway.config.load import LoadedConfig
from gateway.config.models import Config, ListenerConfig, UpstreamConfig
from gateway.config.routes import RouteConfig
from gateway.config.tls import TlsConfig
from gateway.config.yaml_tree import NOWHERE, Finding, KeyPath, Problem, path_text
from gateway.ir.calls import Call, ModelLoadRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unsupported
from gateway.ir.limits import MessageLimits
from gateway.policies.batch.layers import BATCHING, BatchingConfig
from gateway.policies.forward_headers import CLIENT_HEADER
from gateway.policies.limits.hedge import HEDGE
from gateway.policies.limits.retry_keys import ROUTE_RETRY, retries_of
from gateway.policies.signatures import SIGNATURE
from gateway.policies.transform_tensors import TRANSFORM
from gateway.registry import (
    backend,
    carrier_of,
    extensions,
    layers,
    own_layers,
    protocol,
    protocol_names,
    transform,
)
from gateway.routing.rolling.settings import ROLLING_LOAD
from gateway.settings.setting import Setting
from gateway.settings.signature import SignatureConfig
from gateway.settings.units import Address, StreamAddress, Url
from gateway.telemetry.faults import FAULTS
from gateway.wire.heads.metadata import carries_header

_NOT_ON_ONE_PORT: Final = (
    "'transport: reference' cannot serve HTTP and gRPC on one port: aiohttp has no HTTP/2, and "
    "grpcio takes no connection of another server; use 'transport: native', or 'http' and 'grpc'"
)

LOAD: Final = ModelLoadRequest(model=ModelRef("m"))
_NOT_WITHHELD: Final = (
    "'withhold' is not possible with 'transport: reference', which cancels all calls whose client "
    "has left; use 'transport: native'"
)


def check(loaded: LoadedConfig) -> list[Problem]:
    """Return every problem of a configuration that matches the schema."""
    found = [
        *_findings(loaded.config),
        *strict_findings(loaded),
        *check_declarations(loaded.config, loaded.directory),
        *_check_transforms(loaded),
    ]
    for layer in own_layers():
        found += layer.check(loaded)
    of_packages = [(f"extension {name!r}", each.check) for name, each in extensions().items()]
    of_packages += [(f"layer {name!r}", each.check) for name, each in layers().items()]
    faults = []
    for part, of_package in of_packages:
        try:
            found += of_package(loaded)
        except FAULTS as error:
            faults.append(f"{part} cannot check its keys: {type(error).__name__}: {error}")
    problems = [loaded.problem(path, message) for path, message in found]
    return [*problems, *(Problem(NOWHERE, "", fault) for fault in faults)]


def _findings(config: Config) -> Iterator[Finding]:
    for index, listener in enumerate(config.listeners):
        yield from _check_listener(("listeners", index), listener, config)
    for name, upstream in config.upstreams.items():
        at: KeyPath = ("upstreams", name)
        url = upstream.all_urls[0]
        key = "urls" if upstream.urls else "url"
        for each in upstream.all_urls:
            findings = list(_raised((*at, key), carrier_of, each))
            yield from findings
            if findings:
                break
        if url.protocol in protocol_names():
            yield from _raised((*at, "options"), _check_options, url.protocol, upstream.options)
        yield from _unsent_headers(at, upstream)
        if upstream.cancellation == "withhold" and upstream.transport == "reference":
            yield (*at, "cancellation"), _NOT_WITHHELD
    for name, model in config.models.items():
        at = ("models", name)
        if model.backend is not None:
            yield from _raised((*at, "backend"), backend, model.backend)
        batching, signature = BATCHING.of(model), SIGNATURE.of(model)
        if batching is not None and signature is not None:
            yield from _raised((*at, "batching"), _check_batching, batching, signature)
    yield from _raised(("lifecycle", "ready"), _check_required_routes, config)
    yield from _check_target_names(config)
    yield from _check_repeated_calls(config)
    yield from _check_packages(config)
    yield from _repeated_ports(config)
    yield from _loops(config)
    yield from check_graphs(config)
    yield from check_workers(config)
    yield from check_model_control(config, ROLLING_LOAD, LOAD)
    yield from _check_tls(config)


def _unsent_headers(at: KeyPath, upstream: UpstreamConfig) -> Iterator[Finding]:
    """Yield the headers of an upstream that its requests would not have."""
    carrier = upstream.all_urls[0].carrier
    fields: list[tuple[KeyPath, str, str]] = []
    for path, headers in ((("headers",), upstream.headers), (_PROBE, upstream.probe.headers)):
        names = [name.lower() for name in headers]
        for index, (name, value) in enumerate(headers.items()):
            fields.append(((*path, name), name.lower(), value))
            if names.index(name.lower()) < index:
                yield (*at, *path, name), f"duplicate header {name!r}: names have no case"
    client_header = CLIENT_HEADER.of(upstream)
    if client_header is not None:
        fields.append((("client_header",), client_header, "a name"))
    for path, name, value in fields:
        if not carries_header(carrier, name, value):
            why = (
                "its values are base64"
                if carrier == "grpc" and name.endswith("-bin")
                else "expected the name of a header that the gateway does not write itself"
                if carrier in ("http", "grpc")
                else "its frames have no headers"
            )
            yield (*at, *path), f"header {name!r} is not sent over {carrier}: {why}"


_PROBE: Final[KeyPath] = ("probe", "headers")


def _check_transforms(loaded: LoadedConfig) -> Iterator[Finding]:
    """Yield the transforms that no installed package has."""
    for path, name in loaded.values(TRANSFORM):
        if name is not None:
            yield from _raised(path, transform, name)


def _check_packages(config: Config) -> Iterator[Finding]:
    """Yield the keys that need a package that is not installed."""
    if config.telemetry.otlp.is_on and find_spec("opentelemetry") is None:
        yield ("telemetry", "otlp"), "needs OpenTelemetry: pip install 'tensor-gateway[otel]'"


def _check_paths(at: KeyPath, listener: ListenerConfig, config: Config) -> Iterator[Finding]:
    try:
        owned_paths(listener, config.upstreams)
    except PathConflictError as error:
        yield (*at, *error.at), str(error)


def _check_listener(at: KeyPath, listener: ListenerConfig, config: Config) -> Iterator[Finding]:
    for number, name in enumerate(listener.protocols or ()):
        yield from _raised((*at, "protocols", number), protocol, name)
    for name in protocol_names() if listener.protocols is None else ():
        yield from _raised(at, protocol, name)
    for number, stream in enumerate(listener.streams):
        path: KeyPath = (*at, "streams", number, "protocol")
        yield from _raised(path, _check_stream, stream.protocol, listener)
    names = listener.protocols or protocol_names()
    broken = any(list(_raised(at, protocol, name)) for name in names)
    for name, options in listener.options.items():
        path = (*at, "options", name)
        findings = list(_raised(path, _check_options, name, options))
        yield from findings
        broken = broken or bool(findings)
    if not broken:
        yield from _check_paths(at, listener, config)
    if listener.address is not None and listener.transport == "reference":
        yield (*at, "address"), _NOT_ON_ONE_PORT
    if listener.passthrough is not None:
        carrier = config.upstreams[listener.passthrough.upstream].all_urls[0].carrier
        if carrier != "http":
            name = listener.passthrough.upstream
            message = f"upstream {name!r} uses {carrier!r}; passthrough needs an HTTP upstream"
            yield (*at, "passthrough"), message
    for key, address in listener.addresses() if config.security.strict else ():
        yield from _raised((*at, *key), forbid_exposure, listener, address)


def _listener_addresses(config: Config) -> Iterator[tuple[KeyPath, Address | StreamAddress]]:
    for index, listener in enumerate(config.listeners):
        yield from ((("listeners", index, *key), each) for key, each in listener.addresses())


def _check_options(name: str, options: Any) -> None:
    protocol(name).options(options)


def _check_stream(name: str, listener: ListenerConfig) -> None:
    spec = protocol(name)
    if spec.stream is None:
        raise LookupError(f"protocol {name!r} does not support byte streams")
    key = "" if spec.stream.names_models else spec.default_model
    if key and listener.default_model is None and key not in listener.options.get(name, {}):
        raise ValueError(
            f"a {name} stream names no model; set 'default_model' of the listener, or the "
            f"protocol's option {key!r}"
        )


def _check_required_routes(config: Config) -> None:
    names = [route.name for route in ruled_routes(config)]
    unknown = [name for name in required_routes(config) or () if name not in names]
    if unknown or config.lifecycle.ready == ():
        found = f"unknown route {unknown[0]!r}" if unknown else "no route"
        raise ValueError(f"{found}; expected 'any', 'all', or a list of {', '.join(names)}")


def _check_target_names(config: Config) -> Iterator[Finding]:
    """Yield the targets of a route that weights, metrics and cut-overs cannot tell apart."""
    for index, route in enumerate(config.routes):
        used: dict[str, tuple[str | None, str | None]] = {}
        for number, target in enumerate(route.targets):
            name, place = target_name(target), (target.upstream, target.model)
            if used.setdefault(name, place) != place:
                message = f"two different targets of the route are called {name!r}; rename one"
                yield ("routes", index, "targets", number), message


def _check_repeated_calls(config: Config) -> Iterator[Finding]:
    """Yield each route that repeats calls of a model that holds sequences."""
    for index, route in enumerate(config.routes):
        retry = retries_of(route, config.policies)
        repeats = retry is not None and retry.repeats_sent_calls
        if not repeats and HEDGE.of(route) is None:
            continue
        is_own = ROUTE_RETRY.of(route) is not None
        where: KeyPath = ("routes", index, "retry") if is_own else ("policies", "retry")
        for name in _models_of(route):
            signature = SIGNATURE.of(config.models.get(name))
            if signature is not None and signature.stateful:
                own = route.name or f"route-{index + 1}"
                message = f"route {own!r} leads to model {name!r}, which holds sequences"
                if repeats:
                    yield (*where, "on"), f"{message}: expected only 'unsent' and 'connect_failure'"
                else:
                    yield ("routes", index, "hedge"), f"{message}: expected no 'hedge'"


def _models_of(route: RouteConfig) -> Iterator[str]:
    """Yield the models that a route names, at its clients and at its targets."""
    if route.match is not None:
        yield from route.match.model or ()
    yield from (target.model for target in route.targets if target.model)


def _repeated_ports(config: Config) -> Iterator[Finding]:
    """Yield the addresses that another address of the file uses, too."""
    used: dict[int, list[tuple[str, str]]] = {}
    for path, address in _addresses(config):
        where = used.setdefault(address.port, [])
        other = next((name for name, host in where if _overlap(host, address.host)), None)
        if other is not None:
            yield path, f"port {address.port} is used twice: by {other} too"
        where.append((path_text(path), address.host))


def _loops(config: Config) -> Iterator[Finding]:
    """Yield the upstreams that are a listener of the file: each call would go round."""
    listeners = list(_listener_addresses(config))
    for name, upstream in config.upstreams.items():
        for number, url in enumerate(upstream.all_urls):
            own = (path for path, address in listeners if _is_reached(address, url))
            listener = next(own, None)
            if listener is not None:
                key: KeyPath = ("url",) if upstream.url is not None else ("urls", number)
                text = (
                    f"{url} is {path_text(listener)} of this gateway, so that calls would go round"
                )
                yield ("upstreams", name, *key), f"{text}: expected the address of another server"


def _is_reached(address: Address | StreamAddress, url: Url) -> bool:
    """Return whether a client of *url* on this machine reaches a listener at *address*."""
    own = address.tcp if isinstance(address, StreamAddress) else address
    if own is None or url.socket:
        return str(address) == url.authority
    if not own.port or own.port != url.port:
        return False
    # A connection to 0.0.0.0 goes to this machine.
    every = url.host in _EVERY_ADDRESS
    if own.host in _EVERY_ADDRESS:
        return url.is_loopback or every or url.host == gethostname() or _is_of_machine(url.host)
    names = {"127.0.0.1", "::1", "localhost"}
    return own.host == url.host or (
        own.host in names and (every or (url.host in names and "localhost" in {own.host, url.host}))
    )


def _is_of_machine(host: str) -> bool:
    """Return whether *host* is an IP address of this machine."""
    try:
        version = ip_address(host).version
    except ValueError:
        return False
    try:
        with socket(AF_INET if version == 4 else AF_INET6, SOCK_DGRAM) as sock:  # noqa: PLR2004
            sock.bind((host, 0))
    except OSError:
        return False
    return True


def _addresses(config: Config) -> Iterator[tuple[KeyPath, Address]]:
    """Yield every TCP address of the file with a port of its own."""
    found: list[tuple[KeyPath, Address | StreamAddress | None]] = [*_listener_addresses(config)]
    if config.admin is not None:
        keys = config.admin.model_fields_set & {"address", "metrics"}
        found += [(("admin", key), getattr(config.admin, key)) for key in sorted(keys)]
    for path, own in found:
        address = own.tcp if isinstance(own, StreamAddress) else own
        if address is not None and address.port:
            yield path, address


def _overlap(one: str, other: str) -> bool:
    return one == other or bool({one, other} & _EVERY_ADDRESS)


_EVERY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # compared, not bound


def _check_batching(batching: BatchingConfig, signature: SignatureConfig) -> None:
    limit = signature.max_batch_size
    if limit == 0:
        raise ValueError("the model does not batch: 'max_batch_size' of its signature is 0")
    for size in batching.preferred_sizes:
        if limit is not None and size > limit:
            raise ValueError(
                f"preferred size {size} exceeds 'max_batch_size' {limit} of the signature"
            )


def _raised(path: KeyPath, check: Callable[..., object], *arguments: Any) -> Iterator[Finding]:
    """Yield what *check* raises as a finding about *path*."""
    try:
        check(*arguments)
    except (LookupError, ValueError) as error:
        yield path, str(error.args[0])


def check_model_control(
    config: Config, setting: Setting[Any], *calls: Call[Any]
) -> Iterator[Finding]:
    """Yield where a key of upstreams is set, before a server whose protocol lacks a call."""
    for name, upstream in config.upstreams.items():
        url = upstream.all_urls[0]
        if setting.of(upstream) is not None and not all(
            _has_form(url, upstream.options, call) for call in calls
        ):
            text = f"{url.scheme} has no loads of models, or no index of them"
            yield ("upstreams", name, setting.key), f"{text}; expected a protocol with both"


def _has_form(url: Url, options: Any, call: Call[Any]) -> bool:
    """Return whether a protocol has a form of *call*; unknown ones are reported elsewhere."""
    try:
        spec, binding = protocol(url.protocol), carrier_of(url)
        codec = binding.codec(MessageLimits(), spec.options(options or {}))
    except (LookupError, ValueError):
        return True
    try:
        codec.encode_call(call)
    except Unsupported:
        return False
    return True


_LISTENER_KEYS = ("client_certificates", "certificates")


def _check_tls(config: Config) -> Iterator[Finding]:
    """Yield the problems of `tls` of listeners, upstreams and the admin port."""
    for index, listener in enumerate(config.listeners):
        if listener.tls is not None:
            at: KeyPath = ("listeners", index, "tls")
            yield from _check_server(at, listener.tls, "a listener")
            if listener.transport == "reference" and listener.grpc is not None:
                yield from _check_grpcio(at, listener.tls)
    if config.admin is not None and config.admin.tls is not None:
        yield from _check_server(("admin", "tls"), config.admin.tls, "the admin port")
    external = config.security.external
    if external is not None and external.tls is not None:
        yield from _check_client(("security", "external", "tls"), external.tls)
    for name, upstream in config.upstreams.items():
        if upstream.tls is not None:
            at = ("upstreams", name, "tls")
            yield from _check_client(at, upstream.tls)
            if upstream.transport == "reference" and upstream.all_urls[0].carrier == "grpc":
                yield from _check_grpcio(at, upstream.tls)


def _check_server(at: KeyPath, tls: TlsConfig, owner: str) -> Iterator[Finding]:
    if tls.cert is None or tls.key is None:
        yield at, f"'cert' or 'key' is missing; {owner} needs both"
    if "client_certificates" in tls.model_fields_set and tls.ca is None:
        message = "needs 'ca', the authorities that issue the certificates of clients"
        yield (*at, "client_certificates"), message
    if not tls.verify:
        yield (*at, "verify"), "is for upstreams; use 'client_certificates' of a listener"


def _check_client(at: KeyPath, tls: TlsConfig) -> Iterator[Finding]:
    if (tls.cert is None) != (tls.key is None):
        yield at, "'cert' or 'key' is missing; expected both or neither"
    for key in _LISTENER_KEYS:
        if key in tls.model_fields_set:
            yield (*at, key), "is for listeners; a client has 'cert' and 'key'"


def _check_grpcio(at: KeyPath, tls: TlsConfig) -> Iterator[Finding]:
    """Yield what the C core of gRPC cannot do."""
    for key, is_default in (
        ("client_certificates", tls.client_certificates == "required"),
        ("min_version", tls.min_version == "1.2"),
        ("verify", tls.verify),
    ):
        if not is_default:
            message = "cannot be changed for gRPC with 'transport: reference'; use 'native'"
            yield (*at, key), message
