"""The configuration file as frozen, typed models. Unknown keys are errors.

Every key has a docstring. It is the description in the JSON Schema and in docs/configuration.md,
and it ends with the default: "Default: `60s`." Options of protocols and backends are raw mappings
here; `gateway.app.check` passes them to their owners. Keys that only one policy reads belong to its
layer, and `extended.py` adds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from gateway.config.access import ClientConfig, ClientName, SecurityConfig
from gateway.config.admin import AdminConfig
from gateway.config.limits import ClientLimitsConfig, MessageLimitsConfig, ServerLimitsConfig
from gateway.config.permissions import QuotaConfig, QuotaStoreConfig
from gateway.config.pipelines import PipelineConfig
from gateway.config.routes import PoliciesConfig, RouteConfig
from gateway.config.telemetry import TelemetryConfig
from gateway.config.tls import TlsConfig
from gateway.config.yaml_tree import KeyPath
from gateway.settings.fields import (
    OFF_OR_FALSE,
    Duration,
    FieldName,
    FileMode,
    Folder,
    HeaderValue,
    InputFile,
    ListenAddress,
    Name,
    NameOf,
    Names,
    Origin,
    OrText,
    Size,
    SocketAddress,
    Text,
    UpstreamUrl,
    WorkerCount,
)
from gateway.settings.model import Model
from gateway.settings.patterns import is_pattern
from gateway.settings.units import Address, StreamAddress, Url, is_url


class StreamConfig(Model):
    """A listening socket for one protocol, without HTTP and gRPC."""

    protocol: Name
    """`graphpipe`, or `grps` for brpc."""
    address: SocketAddress
    """`HOST:PORT`, or `unix:/PATH`."""
    mode: FileMode = "0660"
    """Permissions of a unix socket, in octal: who may connect. Default: `0660`."""


class PassthroughConfig(Model):
    """Requests for paths of no protocol that a listener forwards.

    `passthrough: NAME` is short for `{upstream: NAME}`. GET and HEAD are forwarded, other methods
    as `post` says. Some paths of protocols, such as `/ping` and `/version`, go to a server that has
    them, unless the listener lists their protocol or has options for it.
    """

    upstream: Annotated[Name, NameOf("upstream")]
    """HTTP upstream that gets the requests, unchanged."""
    allow: Names = ()
    """Patterns of pages for operators that clients may read: `/metrics`, `/openapi.json`,
    `/docs` and `/redoc` are refused without it. Default: `[]`."""
    post: Names | None = None
    """Patterns of paths that clients may POST to, with at most 1 MiB. One request can occupy a
    server of one process for seconds. Default: `/v1/models/*:predict` and `/v1/models/*:explain`
    for KServe, else `[]`."""

    @model_validator(mode="before")
    @classmethod
    def _read_name(cls, value: object) -> object:
        return {"upstream": value} if isinstance(value, str) else value


class CorsConfig(Model):
    """Web pages of other origins that may use a listener over HTTP. They send no cookies."""

    origins: tuple[Origin, ...] = Field(min_length=1)
    """Origins such as `https://app.example.com`. `*` means all."""
    max_age: Duration = 600.0
    """How long browsers remember it. Default: `10m`."""


class ListenerConfig(Model):
    """Addresses that clients connect to, and the protocols that they may use there.

    A listener needs at least one of `address`, `http`, `grpc` and `streams`.
    """

    name: Name = "main"
    """Its name in logs and errors, different for each. Default: `main`."""
    address: ListenAddress | None = None
    """One address for HTTP/1, HTTP/2 and gRPC, instead of `http` and `grpc`. It needs
    `transport: native`. Default: none."""
    http: ListenAddress | None = None
    """Address for HTTP/1 and HTTP/2. Default: none."""
    grpc: ListenAddress | None = None
    """Address for gRPC. Default: none."""
    streams: tuple[StreamConfig, ...] = ()
    """Sockets of protocols that need neither HTTP nor gRPC. Default: `[]`."""
    protocols: Names | None = None
    """Protocols that clients may use, such as `oip` and `mlflow`. Default: all of them."""
    options: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Options of protocols here, by the name of the protocol. Default: none."""
    passthrough: Annotated[PassthroughConfig | None, OrText()] = None
    """HTTP upstream that gets requests for paths of no protocol. Default: none, which answers
    404."""
    default_model: Annotated[
        Name | None, BeforeValidator(lambda value: value or None), NameOf("model")
    ] = None
    """Model of requests that name none. GraphPipe and grps also accept `NAME/VERSION`. Default:
    the only model, if the gateway runs one and has no upstreams, or the routes name one; else
    none, and such requests are refused."""
    identity: Literal["gateway", "upstream"] = "gateway"
    """Whose name and version server metadata have: those of the gateway, or of the first
    upstream in the file that has told them. Default: `gateway`."""
    transport: Literal["reference", "native"] = "native"
    """Implementation of HTTP and gRPC: the gateway's own, or aiohttp and grpcio, which bound less
    and need several times the CPU. Default: `native`."""
    tls: TlsConfig | None = None
    """TLS of its TCP sockets. Default: none."""
    authentication: Annotated[Literal["required", "optional", "off"] | None, OFF_OR_FALSE] = None
    """Whether clients need a credential. `optional` calls those without one `anonymous`, and
    refuses wrong ones. `off` reads none. Default: `required` if the file names kinds of
    credentials, else `off`."""
    metrics: bool = False
    """Whether `/metrics` is served here, too, for platforms that know one port. Default:
    `false`."""
    cors: CorsConfig | None = None
    """Web pages of other origins that may use it over HTTP. They send no cookies. Default: none."""
    limits: ServerLimitsConfig = ServerLimitsConfig()
    """Limits on connections, requests, bytes and times."""
    messages: MessageLimitsConfig = MessageLimitsConfig()
    """Limits on the content of requests."""

    @model_validator(mode="after")
    def _check_addresses(self) -> ListenerConfig:
        if self.address is not None and (self.http is not None or self.grpc is not None):
            raise ValueError(
                "'address' serves HTTP and gRPC on one port; expected either 'address' alone, or "
                "'http' and 'grpc' without it"
            )
        if self.address is None and self.http is None and self.grpc is None and not self.streams:
            raise ValueError(
                "a listener needs at least one of 'address', 'http', 'grpc' and 'streams'"
            )
        return self

    def addresses(self) -> Iterator[tuple[KeyPath, Address | StreamAddress]]:
        """Yield its addresses, each with its key."""
        for key in ("http", "grpc", "address"):
            address = getattr(self, key)
            if address is not None:
                yield (key,), address
        for number, stream in enumerate(self.streams):
            yield ("streams", number, "address"), stream.address


class ProbeConfig(Model):
    """How the gateway checks whether an address of an upstream is ready."""

    interval: Duration = Field(5.0, gt=0)
    """Time between two probes of a ready address; others are probed at least every 500 ms. Default:
    `5s`."""
    timeout: Duration = Field(2.0, gt=0)
    """Longest time of a probe. Three slower ones in a row make an address not ready. A server that
    runs one request at a time needs more than its slowest request. Default: `2s`."""
    headers: Mapping[FieldName, HeaderValue] = Field(default_factory=dict, repr=False)
    """Headers or gRPC metadata of probes and requests for readiness, metadata, configuration and
    index, besides `headers`, of which they replace those of the same name. Clients get such replies
    without a key. Default: none."""


class UpstreamConfig(Model):
    """A model server with one address, or with several equivalent ones.

    An upstream needs exactly one of `url` and `urls`.
    """

    url: UpstreamUrl | None = None
    """Protocol, carrier and address of the server, such as `oip+grpc://HOST:PORT`. The other
    protocols are `trtis`, `graphpipe`, `grps`, `tfs`, `torchserve`, `seldon`, `mlflow`,
    `openai`. `https`, `grpcs`, `brpcs` and, for `tcp`, `tls` are the same with TLS. `http`,
    `https`, `grpc` and `grpcs` alone mean Open Inference. `+unix` is a unix socket, as in
    `oip+grpc+unix:///PATH`. Default: none."""
    urls: tuple[UpstreamUrl, ...] = ()
    """Addresses of equivalent servers of one protocol. Each is probed, and used while ready.
    Default: `[]`."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Options of its protocol, such as `dialect` of Open Inference. Default: none."""
    headers: Mapping[FieldName, HeaderValue] = Field(default_factory=dict, repr=False)
    """Headers or gRPC metadata of every request, such as an API key. Secrets come from
    `${env:NAME}`, or from `${file:PATH}`, whose changes are used within 2 s. Default: none."""
    resolve: Literal["first", "all"] = "first"
    """`first` connects to the first address of a host name that responds. `all` makes each (A
    and AAAA) an endpoint, and needs `transport: native`. Names are looked up every 5 s; with the
    extra `dns` at the end of the time to live, within 5 s to 30 s. With it, a name that begins
    with `_` is a service (SRV), whose servers of a later priority get calls only while none of
    an earlier one is available. Default: `first`."""
    errors: Literal["full", "brief"] = "full"
    """What clients read of the errors of the server. `brief` leaves failures of models and names of
    classes to the log. Default: `full`."""
    cancellation: Literal["auto", "forward", "withhold"] = "auto"
    """What happens to a gRPC call that its client has left, or whose deadline has passed. `forward`
    cancels it at the server. `withhold` drops its reply. `auto` withholds before Triton below 2.59,
    which cancelled calls end, and before unknown versions. `transport: reference` always forwards.
    Default: `auto`."""
    hand_over: Annotated[Literal["auto", "off"], OFF_OR_FALSE] = "auto"
    """Whether inputs from 64 KiB on, and outputs whose shape is configured, go to and from a server
    of Open Inference in shared memory. `auto` does that for Triton from 2.51 on, at a loopback
    address or a unix socket, if it can open files of the gateway. `/status` says why it does not.
    Default: `auto`."""
    probe: ProbeConfig = ProbeConfig()
    """Readiness probes of each address."""
    metrics: Names = ()
    """URL of the metrics page of the server; with `urls` one for each. It adds to
    `telemetry.metrics.compat` why requests failed and how many wait. With `resolve: all` the
    page of each address is read. Default: `[]`."""
    transport: Literal["reference", "native"] = "native"
    """As in a listener. Default: `native`."""
    tls: TlsConfig | None = None
    """TLS to the server. `tls: {}` verifies it with the authorities of the system. Default: that
    of the URL."""
    limits: ClientLimitsConfig = ClientLimitsConfig()
    """Limits on connections, requests, bytes and times."""
    messages: MessageLimitsConfig = MessageLimitsConfig()
    """Limits on the content of responses."""

    @model_validator(mode="after")
    def _check_urls(self) -> UpstreamConfig:
        if self.resolve == "all" and self.transport != "native":
            raise ValueError("'resolve: all' needs 'transport: native'")
        if (self.url is None) == (not self.urls):
            raise ValueError("an upstream needs exactly one of 'url' and 'urls'")
        carrier = self.all_urls[0].carrier
        if self.all_urls[0].socket:
            self._check_unix_socket()
        if self.cancellation == "withhold" and carrier != "grpc":
            raise ValueError(f"cancellation 'withhold' is for gRPC, and the carrier is {carrier!r}")
        kinds = {url.scheme for url in self.urls}
        if len(kinds) > 1:
            found = ", ".join(sorted(kinds))
            raise ValueError(f"the urls of one upstream need the same protocol, found {found}")
        return self

    def _check_unix_socket(self) -> None:
        """Raise ValueError for a key that has no meaning for a unix socket."""
        if self.resolve == "all":
            raise ValueError("'resolve: all' is for host names, and the url is a unix socket")
        if self.tls is not None:
            raise ValueError("'tls' is for TCP, and the url is a unix socket")
        if self.transport != "native" and self.all_urls[0].carrier == "http":
            raise ValueError("a unix socket with HTTP needs 'transport: native'")

    @model_validator(mode="after")
    def _check_metrics(self) -> UpstreamConfig:
        if self.metrics and len(self.metrics) != len(self.all_urls):
            raise ValueError(
                f"'metrics' has {len(self.metrics)} URLs and the upstream {len(self.all_urls)}; "
                "expected one for each address"
            )
        for page in self.metrics:
            if not is_url(page):
                raise ValueError(f"'metrics': {page!r} is no URL; expected http://HOST:PORT/PATH")
        return self

    @property
    def server_tls(self) -> TlsConfig | None:
        """TLS to the server: `tls`, or the default of a URL with TLS, such as `https://`."""
        return TlsConfig() if self.tls is None and self.all_urls[0].tls else self.tls

    @property
    def all_urls(self) -> tuple[Url, ...]:
        """The addresses of the upstream: `url` alone, or `urls`."""
        return (self.url,) if self.url is not None else self.urls


class ModelConfig(Model):
    """A model that runs in the gateway, or settings for a model of an upstream."""

    backend: Text | None = None
    """What runs it in the gateway: `onnx`, `torch`, `python`, or the dotted name of your own
    backend. Default: none, so the key names a model of an upstream."""
    path: InputFile | None = None
    """Model file, or folder with one subfolder for each version. A reload loads it again if its
    files have changed. Default: none."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Options of the backend, such as `device: auto`. Default: none."""
    protocols: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """What protocols without tensors must know about the model, by protocol, whose page has the
    keys. Default: what its metadata say."""


class ReloadConfig(Model):
    """When the gateway reads its configuration file again.

    SIGHUP and `POST /reload` always do that. Some keys need a restart.
    """

    watch: bool = False
    """Whether a change of the file reloads it, 500 ms after the last one. Files of
    `${file:PATH}` are not watched. Default: `false`."""
    timeout: Duration = 300.0
    """Longest time for reading the file and loading its models, after which the old one stays.
    Default: `5m`."""
    # Retired keys, see retired.py.
    signal: bool = True
    debounce: Duration = 0.5


class LifecycleConfig(Model):
    """Start and stop of the gateway."""

    online: bool = True
    """Whether the gateway is ready from the start, or once a grps client calls `online`.
    Default: `true`."""
    ready: Names | None = None
    """Routes that must be ready for the gateway to be: one, all, or each of a list of names.
    Liveness never depends on upstreams. Default: `any`."""
    pre_stop: Duration = 5.0
    """Time after SIGTERM in which the gateway still serves, but is not ready, so that load
    balancers remove it. SIGINT skips it. Default: `5s`."""
    reload: ReloadConfig = ReloadConfig()
    """When the configuration is read again."""
    drain: Duration = 25.0
    """Longest time after `pre_stop` for requests in flight. The rest is cancelled. Default:
    `25s`."""
    worker_timeout: Duration = 30.0
    """Time without a sign of life after which one of several processes is killed and started
    again. `0s` kills none. Default: `30s`."""
    hand_over: bool = False
    """Whether another gateway with this setting, of the same user, may listen on the same
    addresses, such as the next release. Default: `false`."""


class StateConfig(Model):
    """Files that the gateway keeps across restarts."""

    directory: Folder
    """Their directory. Each gateway needs its own; only those with `lifecycle.hand_over` that
    follow one another share it."""


class Config(Model):
    """The configuration file of Tensor Gateway."""

    version: Annotated[Literal["1"], WithJsonSchema({"enum": [1, "1"]})]
    """Version of the file format. It is always `1`."""
    workers: WorkerCount = 1
    """Processes that share the ports, 1 to 256. `auto` is one for each core. Each has its own
    limits and models. Default: `1`."""
    listeners: tuple[ListenerConfig, ...] = Field(min_length=1)
    """Addresses that clients connect to."""
    admin: AdminConfig | None = None
    """Metrics and probes for operators. Default: both default addresses, if their ports are
    free."""
    upstreams: Mapping[Name, UpstreamConfig] = Field(default_factory=dict)
    """Model servers, by a name of your choice. Default: none."""
    models: Mapping[Name, ModelConfig] = Field(default_factory=dict)
    """Models that run in the gateway, and settings for models of upstreams, by name. Default:
    none."""
    pipelines: Mapping[Name, PipelineConfig] = Field(default_factory=dict, max_length=256)
    """Graphs of models, by name. Clients call a pipeline like a model. Default: none."""
    routes: tuple[RouteConfig, ...] = ()
    """Rules that send calls to models, in order of precedence. Default: `[]`, which serves all
    models and pipelines under their own names."""
    policies: PoliciesConfig = PoliciesConfig()
    """Timeouts, retries and concurrency of all routes."""
    clients: Mapping[ClientName, ClientConfig] = Field(default_factory=dict)
    """Clients, by name. `anonymous` is reserved for those without a credential. Default: none."""
    security: SecurityConfig = SecurityConfig()
    """Credentials of clients, rules, and how strict the gateway is with its own configuration."""
    quotas: Mapping[ClientName, QuotaConfig] = Field(default_factory=dict)
    """How much clients may use, by a name of your choice. Default: none."""
    quota_store: QuotaStoreConfig | None = None
    """Where gateways share the budgets of `quotas`. Default: none, so each gateway has its own."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Logs and metrics."""
    lifecycle: LifecycleConfig = LifecycleConfig()
    """How the gateway starts and stops."""
    state: StateConfig | None = None
    """Files that the gateway keeps across restarts. Default: none."""
    in_flight_bytes: Size | None = None
    """Most bytes of requests and responses in a worker, with 16 KiB more for each request.
    Responses, and requests of clients that hold less than 1/64 of it, may exceed it by a quarter.
    Default: 512 MiB, or 40 % of the memory limit of the cgroup if that is less, divided by the
    workers."""
    hand_over_bytes: Size | None = None
    """Most bytes in `/dev/shm` in which a worker hands tensors over to servers on this machine, in
    parts of up to 32 MiB. Default: a quarter of `in_flight_bytes`."""
    hand_over_group: str = ""
    """Name or number of a group of the gateway, whose users may also open these files. Without it
    Triton runs as root or as the user of the gateway. Default: `""`."""
    in_flight_bytes_per_address: Size | None = None
    """Part of `in_flight_bytes` that no other client address, or connection of a unix socket,
    delays. It may have more while memory is free. Default: a quarter of `in_flight_bytes`."""

    def declared_protocols(self) -> dict[str, Mapping[str, Any]]:
        """Return `protocols` by model, also by the other names that models have at targets.

        A name that stands for models of different declarations has none.
        """
        found = {name: model.protocols for name, model in self.models.items() if model.protocols}
        defaults = {name for each in self.listeners if (name := self.default_model_of(each))}
        offered: dict[str, list[Mapping[str, Any]]] = {}
        for route in self.routes:
            names = (route.match and route.match.model) or defaults
            for target in route.targets:
                if target.model is not None:
                    offered.setdefault(target.model, []).extend(found.get(at, {}) for at in names)
        renamed = {
            name: forms[0]
            for name, forms in offered.items()
            if forms and forms[0] and all(form == forms[0] for form in forms)
        }
        return {**renamed, **found}

    def default_model_of(self, listener: ListenerConfig) -> str:
        """Return the model of requests to a listener that name none; "" for none.

        It is that of the listener, or else the only model that there is.
        """
        return listener.default_model or self._only_model()

    def authentication_of(self, listener: ListenerConfig) -> Literal["required", "optional", "off"]:
        """Return whether the clients of a listener need a credential."""
        if listener.authentication is not None:
            return listener.authentication
        return "required" if self.has_credentials() else "off"

    def has_credentials(self) -> bool:
        """Return whether there is a kind of credential that names clients."""
        security = self.security
        has_kinds = security.keys or security.jwt or security.certificates or security.proxies
        has_clients = any(each.certificates or each.unix_users for each in self.clients.values())
        return bool(has_kinds or has_clients or security.authenticator)

    def _only_model(self) -> str:
        names = [name for name, model in self.models.items() if model.backend is not None]
        names += self.pipelines
        if self.routes:
            matches = [route.match for route in self.routes]
            names = [name for match in matches for name in (match and match.model) or ("*",)]
        elif self.upstreams:
            return ""
        is_plain = len(names) == 1 and not is_pattern(names[0])
        return names[0] if is_plain else ""
