"""The configuration file as frozen, typed models. Unknown keys are errors.

Every key has a docstring. It is the description in the JSON Schema and in docs/configuration.md,
and it ends with the default: "Default: `60s`." Options of protocols and backends are raw mappings
here; `gateway.app.check` passes them to their owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, model_validator

from gateway.config.fields import (
    Duration,
    FileMode,
    ListenAddress,
    Name,
    Names,
    OrText,
    Scalar,
    Size,
    SocketAddress,
    Text,
    UpstreamUrl,
    WorkerCount,
)
from gateway.config.limits import ClientLimitsConfig, MessageLimitsConfig, ServerLimitsConfig
from gateway.config.pipelines import PipelineConfig
from gateway.config.signatures import Model, SignatureConfig
from gateway.config.units import Address, Url
from gateway.ir.context import TRITON_PREFIX


class TlsConfig(Model):
    """TLS files of a listener or an upstream. Paths are relative to the configuration file."""

    cert: Text | None = None
    """PEM file with the certificate chain. A listener requires it. An upstream sends it as client
    certificate. Default: no certificate."""
    key: Text | None = None
    """PEM file with the private key of `cert`. Default: no key."""
    ca: Text | None = None
    """PEM file with the trusted certificate authorities. With it, a listener requires client
    certificates (mutual TLS). Default: no client certificates for a listener, and the authorities
    of the system for an upstream."""


class StreamConfig(Model):
    """A listening socket for one protocol, without HTTP and gRPC."""

    protocol: Name
    """Protocol of the socket: `graphpipe`, or `grps` for brpc."""
    address: SocketAddress
    """Address to listen on: `HOST:PORT`, or `unix:/PATH` for a unix socket."""
    mode: FileMode = "0660"
    """Permissions of the file of a unix socket, in octal. They decide which users may connect.
    Default: `0660`, which allows the owner and the group."""


class SharedMemoryConfig(Model):
    """Tensors that clients pass in shared memory. `shared_memory: map` is short for `{mode: map}`.

    Clients reach every segment that the user of the gateway, or of the upstream, can open.
    """

    mode: Literal["off", "forward", "map"] = "off"
    """`forward` registers the regions with the upstreams, which must run on this machine. A client
    that makes a segment smaller after it was registered ends the server. `map` copies from and to
    POSIX regions in the gateway, and has no such weakness. Default: `off`."""
    keys: Names = ()
    """Patterns of the names of segments that clients may register with `forward`, such as
    `myapp-*`. Clients can read and write each of them. `forward` requires at least one.
    Default: `[]`."""

    @model_validator(mode="before")
    @classmethod
    def _read_mode(cls, value: object) -> object:
        return {"mode": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_keys(self) -> SharedMemoryConfig:
        if self.mode == "forward" and not self.keys:
            raise ValueError(
                "'forward' needs 'keys': the names of the segments that clients may register, such "
                "as {mode: forward, keys: ['myapp-*']}. Without them a client could write over "
                "memory of the server"
            )
        if self.mode != "forward" and self.keys:
            raise ValueError(f"'keys' belong to 'forward', and the mode is {self.mode!r}")
        return self


class PassthroughConfig(Model):
    """Requests for paths of no protocol that a listener forwards.

    `passthrough: NAME` is short for `{upstream: NAME}`. GET and HEAD are forwarded, and nothing
    else by default.
    """

    upstream: Name
    """HTTP upstream that receives the requests, unchanged."""
    allow: Names = ()
    """Patterns of pages for operators that clients may read: `/metrics`, `/openapi.json`, `/docs`
    and `/redoc` are refused without it. They tell clients how the server is used. Default: `[]`."""
    post: Names = ()
    """Patterns of paths that clients may POST to, such as `/v1/models/*:predict`. The body has at
    most 1 MiB. The gateway cannot see what the server does with it: one request can occupy a server
    of one process for seconds. Default: `[]`."""

    @model_validator(mode="before")
    @classmethod
    def _read_name(cls, value: object) -> object:
        return {"upstream": value} if isinstance(value, str) else value


class ListenerConfig(Model):
    """Addresses that clients connect to, and the protocols that they may use there.

    A listener needs at least one of `http`, `grpc` and `streams`.
    """

    name: Name = "main"
    """Name of the listener in logs and errors. Each listener needs a different one.
    Default: `main`."""
    http: ListenAddress | None = None
    """Address of the HTTP server, `HOST:PORT`. A port alone means 127.0.0.1, `*:PORT` means every
    address. Default: no HTTP server."""
    grpc: ListenAddress | None = None
    """Address of the gRPC server, `HOST:PORT`. Default: no gRPC server."""
    streams: tuple[StreamConfig, ...] = ()
    """Sockets of protocols that need neither HTTP nor gRPC. Default: `[]`."""
    protocols: Names | None = None
    """Protocols that clients may use: `oip`, `trtis`, `graphpipe`, `grps`. Default: all of
    them."""
    options: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Options of protocols on this listener, by the name of the protocol. Default: none, so each
    option has its own default."""
    passthrough: Annotated[PassthroughConfig | None, OrText()] = None
    """Forwarding of requests for paths of no protocol to an HTTP upstream. Default: none, and such
    requests get status 404."""
    default_model: Name | None = None
    """Model of requests that name none. GraphPipe and grps also accept `NAME/VERSION`. Default:
    none, and such requests are refused."""
    shared_memory: Annotated[SharedMemoryConfig, OrText("off", "forward", "map")] = (
        SharedMemoryConfig()
    )
    """Whether clients may pass tensors in shared memory. Default: `off`."""
    transport: Literal["reference", "native"] = "native"
    """Implementation of HTTP and gRPC. `native` is the gateway's own. `reference` uses aiohttp and
    grpcio, and needs several times the CPU. Default: `native`."""
    tls: TlsConfig | None = None
    """TLS of every TCP socket of the listener. Default: no TLS."""
    limits: ServerLimitsConfig = ServerLimitsConfig()
    """Limits on connections, requests, bytes and times."""
    messages: MessageLimitsConfig = MessageLimitsConfig()
    """Limits on the content of requests."""

    @model_validator(mode="after")
    def _check_addresses(self) -> ListenerConfig:
        if self.http is None and self.grpc is None and not self.streams:
            raise ValueError("a listener needs at least one of 'http', 'grpc' and 'streams'")
        return self


class AdminConfig(Model):
    """Metrics and probes for operators, on ports of their own."""

    address: ListenAddress | None = Address("127.0.0.1", 9901)
    """Address of `/metrics`, `/livez` and `/readyz`. `null` switches it off.
    Default: `127.0.0.1:9901`, if the port is free."""
    metrics: ListenAddress | None = Address("127.0.0.1", 8002)
    """Second address of `/metrics`, on the port where Triton has it. `null` switches it off.
    Default: `127.0.0.1:8002`, if the port is free."""


class ProbeConfig(Model):
    """How the gateway checks whether each address of an upstream is ready."""

    interval: Duration = 5.0
    """Time between two probes of a ready address. An address that is not ready is probed every
    500 ms, or more often if `interval` is shorter. Default: `5s`."""
    timeout: Duration = 2.0
    """Longest time of one probe. A ready address that is slower three times in a row counts as not
    ready. Default: `2s`."""


class OutlierDetectionConfig(Model):
    """When an address of an upstream is ejected, which means that it gets no calls for a while.

    One trial call ends the ejection or prolongs it. It is sent when the time is over, or after the
    first successful probe. While no other address is available no address is ejected.
    """

    consecutive_failures: Annotated[int, Field(ge=0)] = 5
    """Failures in a row that eject an address: failed connections, resets, and replies that it is
    unavailable. `0` ejects no address for failures. Default: `5`."""
    consecutive_timeouts: Annotated[int, Field(ge=0)] = 5
    """Timeouts in a row that eject an address. A timeout counts if the call had five times the
    usual latency of the address, or 1 s. `0` ejects no address for timeouts. Default: `5`."""
    base_ejection_time: Duration = 5.0
    """Length of the first ejection. Each ejection that follows is longer by as much. Default:
    `5s`."""
    max_ejection_time: Duration = 60.0
    """Longest ejection. Default: `60s`."""
    max_ejection_percent: Annotated[int, Field(ge=0, le=100)] = 50
    """Largest share of the addresses that may be ejected at a time, rounded up. One address always
    stays. Default: `50`."""


class UpstreamConfig(Model):
    """A model server with one address, or with several equivalent ones.

    An upstream needs exactly one of `url` and `urls`.
    """

    url: UpstreamUrl | None = None
    """Address and protocol of the server: `oip+http`, `oip+grpc`, `trtis+http`, `trtis+grpc`,
    `graphpipe+http`, `graphpipe+tcp`, `graphpipe+unix`, `grps+http`, `grps+grpc` or `grps+brpc`,
    followed by `://HOST:PORT`. `http` and `grpc` alone mean Open Inference. Default: none."""
    urls: tuple[UpstreamUrl, ...] = ()
    """Addresses of equivalent servers of the same protocol. Each is probed, and used while it is
    ready. Default: `[]`."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Options of the protocol of the server, such as `dialect` of Open Inference. Default: none, so
    each option has its own default."""
    headers: Mapping[Name, Scalar] = Field(default_factory=dict, repr=False)
    """Headers or gRPC metadata that the gateway adds to every request, such as an API key. Secrets
    come from `${env:NAME}` or `${file:PATH}`. Default: no headers."""
    forward_headers: Names = ()
    """Names of client headers that are forwarded. `x-*` forwards every header that begins with
    `x-`. Names that begin with `triton_` are refused, because they can end a Triton server.
    Tracing headers are always forwarded, and HTTP servers get the request id. Default: `[]`."""
    balance: Literal["round_robin", "least_pending"] = "round_robin"
    """How one of several addresses is chosen for a call. `least_pending` prefers the address with
    the fewest calls in flight. Default: `round_robin`."""
    cancellation: Literal["auto", "forward", "withhold"] = "auto"
    """What happens to a gRPC call whose client has left, or whose deadline has passed. `forward`
    cancels it at the server. `withhold` lets it end, and drops the reply: cancelled calls end
    Triton before 2.59. It keeps its place in `in_flight` until then. `auto` withholds before Triton
    below 2.59 and before servers that have not told their version. Streams are always cancelled.
    HTTP upstreams need none of this. Default: `auto`."""
    probe: ProbeConfig = ProbeConfig()
    """Readiness probes of each address."""
    outlier_detection: OutlierDetectionConfig | Literal[False] = OutlierDetectionConfig()
    """When an address whose calls fail gets no calls for a while. It concerns upstreams with
    several addresses. `false` switches it off. Default: the values of its keys."""
    transport: Literal["reference", "native"] = "native"
    """Implementation of HTTP and gRPC, as in a listener. Default: `native`."""
    tls: TlsConfig | None = None
    """TLS to the server. `tls: {}` verifies it with the authorities of the system. Default: no
    TLS."""
    limits: ClientLimitsConfig = ClientLimitsConfig()
    """Limits on connections, requests, bytes and times."""
    messages: MessageLimitsConfig = MessageLimitsConfig()
    """Limits on the content of responses."""

    @model_validator(mode="after")
    def _check_urls(self) -> UpstreamConfig:
        for name in self.forward_headers:
            if name.lower().startswith(TRITON_PREFIX):
                raise ValueError(
                    f"forward_headers must not contain {name!r}: a client could set what Triton "
                    "keeps for itself, and end it"
                )
        if (self.url is None) == (not self.urls):
            raise ValueError("an upstream needs exactly one of 'url' and 'urls'")
        carrier = self.all_urls[0].carrier
        if self.cancellation == "withhold" and carrier != "grpc":
            raise ValueError(f"cancellation 'withhold' is for gRPC, and the carrier is {carrier!r}")
        kinds = {f"{url.protocol}+{url.carrier}" for url in self.urls}
        if len(kinds) > 1:
            found = ", ".join(sorted(kinds))
            raise ValueError(f"the urls of one upstream need the same protocol, found {found}")
        return self

    @property
    def all_urls(self) -> tuple[Url, ...]:
        """The addresses of the upstream: `url` alone, or `urls`."""
        return (self.url,) if self.url is not None else self.urls


class BatchingConfig(Model):
    """Dynamic batching: requests of several clients are merged along the batch axis into one."""

    max_batch_size: int | None = Field(None, ge=2)
    """Largest number of rows in a batch. A batch is never larger than the model allows. Default:
    the `max_batch_size` of the model, or 64 if it is unknown."""
    max_delay: Duration = 0.001
    """Longest time that a request waits for others. `0s` merges only requests that arrive while
    the model is busy. Default: `1ms`."""
    max_bytes: Size = 16 << 20
    """Largest size of the inputs of a batch, in bytes. Default: `16MiB`."""
    preferred_sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Numbers of rows at which a batch is sent without waiting for more. Default: `[]`."""
    in_flight: int | None = Field(None, ge=1)
    """Largest number of batches that the model processes at the same time. Default: the number of
    instances of the model, or 2 for a model of an upstream."""

    @model_validator(mode="after")
    def _check_preferred_sizes(self) -> BatchingConfig:
        most = self.max_batch_size
        for size in self.preferred_sizes:
            if most is not None and size > most:
                raise ValueError(f"preferred size {size} is larger than max_batch_size {most}")
        return self


class CacheConfig(Model):
    """Response cache, for models whose outputs depend on the request alone."""

    max_bytes: Size = 64 << 20
    """Largest size of the responses that a worker stores for the model. The least recently used
    are removed first. Default: `64MiB`."""
    max_age: Duration = 60.0
    """Time for which a stored response is used. Default: `60s`."""


class ModelConfig(Model):
    """A model that runs in the gateway, or settings for a model of an upstream.

    With `backend` the model runs in the gateway. Without it, the key names a model of an upstream.
    """

    backend: Text | None = None
    """Backend that runs the model in the gateway: `onnx`, `torch`, `python`, or the dotted name of
    your own backend. Default: none, so the key names a model of an upstream."""
    path: Text | None = None
    """Model file, or folder with one subfolder for each version. It is relative to the
    configuration file. Default: no file, which suits `python`."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Options of the backend, such as `device: auto`. Default: none, so each option has its own
    default."""
    signature: SignatureConfig | None = None
    """Inputs, outputs and other metadata. Default: the metadata of the model itself."""
    batching: BatchingConfig | None = None
    """Dynamic batching. `{}` switches it on with its defaults. Default: no batching."""
    cache: CacheConfig | None = None
    """Response cache. `{}` switches it on with its defaults. Default: no cache."""


class MatchConfig(Model):
    """Conditions on a call. All of them must hold. Patterns may contain `*`, `?` and `[...]`."""

    model: Names | None = None
    """Names or patterns of models. Default: every model."""
    version: Names | None = None
    """Requested versions. `""` stands for requests without a version. Default: every version."""
    protocol: Names | None = None
    """Names or patterns of protocol and carrier, such as `oip.http` or `oip.*`. Default: every
    protocol."""
    headers: Mapping[Name, Scalar] = Field(default_factory=dict)
    """Names of headers or gRPC metadata, each with the pattern of its value. Default: no
    condition."""


class TensorNamesConfig(Model):
    """Translation of tensor names between the client and the target."""

    inputs: Mapping[Name, Name] = Field(default_factory=dict)
    """Input names of the client, each with the name at the target. Default: the same names."""
    outputs: Mapping[Name, Name] = Field(default_factory=dict)
    """Output names of the client, each with the name at the target. Default: the same names."""


class TargetConfig(Model):
    """A destination of a route: a model of an upstream, or a model of the gateway."""

    upstream: Name | None = None
    """Upstream that serves the model. Default: the gateway itself, which runs `model`."""
    model: Name | None = None
    """Name of the model at the target. It is required without `upstream`. Default: the name that
    the client requested."""
    version: Scalar | None = None
    """Version of the model at the target. Default: the version that the client requested."""
    weight: int = Field(1, ge=0, le=1_000_000)
    """Share of the calls, relative to the weights of the other targets. `0` sends no calls.
    Default: `1`."""
    tensors: TensorNamesConfig = TensorNamesConfig()
    """Tensor names that differ between the client and the target."""

    @model_validator(mode="after")
    def _check_destination(self) -> TargetConfig:
        if self.upstream is None and self.model is None:
            raise ValueError("a target needs 'upstream', or 'model' for a model of the gateway")
        return self


class RetryConfig(Model):
    """One retry for calls that cannot have reached the upstream."""

    budget: float = Field(0.2, ge=0, le=1)
    """Largest number of concurrent retries, as a share of the calls in flight. `0` switches
    retries off. Default: `0.2`."""
    min_retries: int = Field(3, ge=0)
    """Number of concurrent retries that are always allowed, however few calls are in flight.
    Default: `3`."""


class PoliciesConfig(Model):
    """Timeouts, retries and concurrency of every route. A route may override some of them."""

    timeout: Duration = 60.0
    """Longest time until the response, or until the first response of a stream. A client may ask
    for less. Default: `60s`."""
    stream_idle: Duration = 300.0
    """Longest time between two responses of a stream. Default: `5m`."""
    retry: RetryConfig | None = RetryConfig()
    """Retries. `null` switches them off. Default: retries with the defaults of their keys."""
    in_flight: int = Field(256, ge=1)
    """Largest number of inferences of a route that are processed at the same time.
    Default: `256`."""
    queued: int = Field(256, ge=0)
    """Largest number of inferences of a route that wait because `in_flight` is reached. Further
    ones are refused as overloaded. Default: `256`."""
    queue_wait: Duration = 0.1
    """Longest time that an inference waits in the queue. It is then refused as overloaded.
    Default: `100ms`."""
    sequence_idle: Duration = 600.0
    """Time without a request after which a sequence loses its target and its server.
    Default: `10m`."""


class RouteConfig(Model):
    """A rule that sends matching calls to one of its targets. The first matching route applies."""

    name: Name | None = None
    """Name of the route in logs, metrics and errors. Each route needs a different one. Default:
    `route-N`, with the position of the route in the list from 1."""
    match: MatchConfig | None = None
    """Conditions on the calls of this route. Default: every call."""
    targets: tuple[TargetConfig, ...] = Field(min_length=1)
    """Destinations. Each call goes to one of them, by weight. At least one weight must be above
    0."""
    timeout: Duration | None = None
    """Longest time until the response. Default: `policies.timeout`."""
    readiness: Literal["any", "all"] = "any"
    """Number of targets that must be ready for the route to be ready: one or all.
    Default: `any`."""
    retry: RetryConfig | None = None
    """Retries. `{budget: 0}` switches them off for this route. Default: `policies.retry`."""
    in_flight: int | None = Field(None, ge=1)
    """Largest number of inferences that are processed at the same time. Default:
    `policies.in_flight`."""
    sequence_ids: Literal["checked", "text"] = "checked"
    """What happens to a sequence id that is a string, if the upstream does not show the
    configuration of the model. `checked` refuses it. `text` forwards it: a client can then end a
    Triton server whose model has its sequence ids as numbers. Default: `checked`."""

    @model_validator(mode="after")
    def _check_weights(self) -> RouteConfig:
        if not any(target.weight for target in self.targets):
            raise ValueError("all targets have weight 0: at least one needs a weight above 0")
        return self


class SecurityConfig(Model):
    """Checks that the gateway applies to its own configuration."""

    strict: bool = False
    """Refuse to start if a listener exposes data without TLS, or shared memory, to other machines.
    Default: `false`, which logs a warning."""


class LogConfig(Model):
    """Settings of the log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. Default: `info`."""
    format: Literal["auto", "console", "json"] = "auto"
    """Form of a log line. Default: `auto`, which means `console` on a terminal and `json`
    elsewhere."""
    calls_per_second: int = Field(100, ge=0)
    """Largest number of log lines about calls per second, over all workers. The line after a gap
    counts the omitted calls. `0` logs no calls. Default: `100`."""


class MetricsConfig(Model):
    """Settings of the metrics."""

    compat: tuple[Literal["triton"], ...] = ()
    """Servers whose metric names are published too. `triton` adds the `nv_inference_*` metrics, for
    existing dashboards. Default: `[]`."""
    series: int = Field(500, ge=1)
    """Largest number of model names in metric labels. Calls to further models have the label
    `_unknown`. Default: `500`."""


class TelemetryConfig(Model):
    """Settings of logs and metrics."""

    log: LogConfig = LogConfig()
    """Log lines on standard error."""
    metrics: MetricsConfig = MetricsConfig()
    """Contents of the metrics page."""


class LifecycleConfig(Model):
    """Start and stop of the gateway."""

    online: bool = True
    """Whether the gateway is ready from the start. `false` waits until a grps client calls
    `online`. Default: `true`."""
    pre_stop: Duration = 5.0
    """Time after SIGTERM in which the gateway reports not ready and still serves. Load balancers
    remove it meanwhile. Default: `5s`."""
    drain: Duration = 25.0
    """Longest time after `pre_stop` for requests in flight. The rest is cancelled.
    Default: `25s`."""


class Config(Model):
    """The configuration file of Tensor Gateway."""

    version: Annotated[Literal["1"], WithJsonSchema({"enum": [1, "1"]})]
    """Version of the file format. It is always `1`."""
    workers: WorkerCount = 1
    """Number of processes that share the ports, from 1 to 256. `auto` starts one for each core.
    Each worker has its own limits and its own models. Default: `1`."""
    listeners: tuple[ListenerConfig, ...] = Field(min_length=1)
    """Addresses that clients connect to."""
    admin: AdminConfig | None = None
    """Metrics and probes for operators. Default: both default addresses, if their ports are
    free."""
    upstreams: Mapping[Name, UpstreamConfig] = Field(default_factory=dict)
    """Model servers, by a name of your choice. Default: none."""
    models: Mapping[Name, ModelConfig] = Field(default_factory=dict)
    """Models that run in the gateway, and settings for models of upstreams, by name.
    Default: none."""
    pipelines: Mapping[Name, PipelineConfig] = Field(default_factory=dict, max_length=256)
    """Graphs of models, by name. Clients call a pipeline like a model. Default: none."""
    routes: tuple[RouteConfig, ...] = ()
    """Rules that send calls to models, in order of precedence. Default: `[]`, which serves every
    model, every pipeline and the models of all upstreams under their own names."""
    policies: PoliciesConfig = PoliciesConfig()
    """Timeouts, retries and concurrency of every route."""
    security: SecurityConfig = SecurityConfig()
    """How strict the gateway is with its own configuration."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Logs and metrics."""
    lifecycle: LifecycleConfig = LifecycleConfig()
    """How the gateway starts and stops."""
    in_flight_bytes: Size | None = None
    """Largest number of bytes of requests and responses that a worker holds in memory. What has
    arrived counts, not what was announced. Responses may exceed it by a quarter. Default: 512 MiB,
    or 40 % of the memory limit of the cgroup if that is less, divided by the number of workers."""
    in_flight_bytes_per_address: Size | None = None
    """Largest part of `in_flight_bytes` that one client address has. One message of a client may be
    larger if the client has no other. Clients of unix sockets have it for each connection. Default:
    a quarter of `in_flight_bytes`."""
    shared_regions: int = Field(128, ge=1)
    """Largest number of shared-memory regions that clients may register. Default: `128`."""
