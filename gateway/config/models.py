"""The configuration file as frozen typed models; unknown keys are refused.

Options of protocols and backends stay raw mappings: their owners validate them (`app`).
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
    Scalar,
    Size,
    SocketAddress,
    Text,
    UpstreamUrl,
    WorkerCount,
)
from gateway.config.pipelines import PipelineConfig
from gateway.config.signatures import Model, SignatureConfig
from gateway.config.units import Address, Url


class TlsConfig(Model):
    """TLS of a listener, or towards an upstream."""

    cert: Text | None = None
    """Certificate chain, a PEM file."""
    key: Text | None = None
    """Private key, a PEM file."""
    ca: Text | None = None
    """Who is trusted, a PEM file: a listener's clients (mutual TLS), or an upstream's server."""


class ServerLimitsConfig(Model):
    """Limits of a listener in each worker; what is left out has the limits table's default."""

    message_bytes: Size | None = None
    """Largest body or message, before and after decompression."""
    decompressed_ratio: int | None = Field(None, ge=1)
    decompressed_ratio_floor_bytes: Size | None = None
    header_line_bytes: Size | None = None
    header_field_bytes: Size | None = None
    header_total_bytes: Size | None = None
    header_count: int | None = Field(None, ge=1)
    grpc_metadata_bytes: Size | None = None
    body_chunks: int | None = Field(None, ge=1)
    connections: int | None = Field(None, ge=1)
    connections_per_address: int | None = Field(None, ge=1)
    requests_in_flight: int | None = Field(None, ge=1)
    requests_queued: int | None = Field(None, ge=0)
    queue_wait: Duration | None = None
    h2_streams: int | None = Field(None, ge=1)
    connection_age: Duration | None = None
    header_timeout: Duration | None = None
    body_idle_timeout: Duration | None = None
    body_min_rate_bytes_s: Size | None = None
    body_min_rate_grace: Duration | None = None
    body_timeout: Duration | None = None
    write_idle_timeout: Duration | None = None
    keepalive: Duration | None = None
    tls_handshake: Duration | None = None
    pipelined_requests: int | None = Field(None, ge=1)
    stream_requests: int | None = Field(None, ge=1)
    """Messages of one bidirectional stream that are answered at a time."""
    cut_through_bytes: Size | None = None
    """So much must be missing of a body of binary tensors to be passed on as it comes; 0: never."""


class MessageLimitsConfig(Model):
    """Limits on what one message may hold, the same for every protocol."""

    json_bytes: Size | None = None
    json_depth: int | None = Field(None, ge=4, le=512)
    json_keys: int | None = Field(None, ge=1)
    tensors: int | None = Field(None, ge=1)
    outputs: int | None = Field(None, ge=1)
    rank: int | None = Field(None, ge=1, le=64)
    dim: int | None = Field(None, ge=1)
    elements: int | None = Field(None, ge=1)
    bytes_elements: int | None = Field(None, ge=1)
    bytes_element_size: Size | None = None
    model_name_bytes: Size | None = None
    name_bytes: Size | None = None
    parameters: int | None = Field(None, ge=0)
    error_text_bytes: Size | None = None


class ClientLimitsConfig(Model):
    """Limits of an upstream, for each worker."""

    message_bytes: Size | None = None
    connections: int | None = Field(None, ge=1)
    in_flight: int | None = Field(None, ge=1)
    pending: int | None = Field(None, ge=0)
    connect_timeout: Duration | None = None
    keepalive: Duration | None = None
    connection_age: Duration | None = None
    resolve_floor: Duration | None = None
    resolve_cap: Duration | None = None


class StreamConfig(Model):
    """A byte stream to listen on, which speaks one protocol."""

    protocol: Name
    """Protocol that has a form for byte streams, such as graphpipe."""
    address: SocketAddress
    """HOST:PORT, or unix:/PATH."""
    mode: FileMode = "0660"
    """Who may connect to a unix socket: the permissions of its file."""


class ListenerConfig(Model):
    """Where clients connect, and which protocols they may speak there."""

    name: Name = "main"
    http: ListenAddress | None = None
    """HOST:PORT for the protocols that use HTTP."""
    grpc: ListenAddress | None = None
    """HOST:PORT for the protocols that use gRPC."""
    streams: tuple[StreamConfig, ...] = ()
    """Byte streams, each for one protocol."""
    protocols: Names | None = None
    """Protocol names, such as oip; all of them by default."""
    options: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Options of a protocol on this listener, by protocol name."""
    passthrough: Name | None = None
    """HTTP upstream that gets the paths no protocol claims."""
    default_model: Name | None = None
    """Model of requests whose protocol names none."""
    shared_memory: Literal["off", "forward", "map"] = "off"
    """Tensors in POSIX shared memory: forward passes regions on to the upstreams, map copies from
    and to them here. Whoever can connect reaches every segment that the gateway's user can."""
    transport: Literal["reference", "native"] = "native"
    """What carries HTTP and gRPC here: aiohttp and grpcio, or our own protocols."""
    tls: TlsConfig | None = None
    limits: ServerLimitsConfig = ServerLimitsConfig()
    messages: MessageLimitsConfig = MessageLimitsConfig()

    @model_validator(mode="after")
    def _listens(self) -> ListenerConfig:
        if self.http is None and self.grpc is None and not self.streams:
            raise ValueError("a listener needs 'http', 'grpc' or 'streams'")
        return self


class AdminConfig(Model):
    """Metrics and probes for operators; never on a data port."""

    address: ListenAddress | None = Address("127.0.0.1", 9901)
    metrics: ListenAddress | None = Address("127.0.0.1", 8002)
    """A second place for Prometheus to read, where Triton has it."""


class ProbeConfig(Model):
    """How an upstream's readiness is asked for."""

    interval: Duration = 5.0
    timeout: Duration = 2.0


class UpstreamConfig(Model):
    """A model server, at one address or several alike."""

    url: UpstreamUrl | None = None
    urls: tuple[UpstreamUrl, ...] = ()
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Options of the protocol, such as dialect: triton | mlserver | kserve | ovms."""
    headers: Mapping[Name, Scalar] = Field(default_factory=dict, repr=False)
    """Headers or gRPC metadata sent with every request, such as an API key."""
    forward_headers: Names = ()
    """Callers' headers that cross, by name, * at the end allowed."""
    balance: Literal["round_robin", "least_pending"] = "round_robin"
    probe: ProbeConfig = ProbeConfig()
    transport: Literal["reference", "native"] = "native"
    """What carries HTTP or gRPC there, as in a listener."""
    tls: TlsConfig | None = None
    limits: ClientLimitsConfig = ClientLimitsConfig()
    messages: MessageLimitsConfig = MessageLimitsConfig()

    @model_validator(mode="after")
    def _somewhere(self) -> UpstreamConfig:
        if (self.url is None) == (not self.urls):
            raise ValueError("an upstream needs 'url' or 'urls', not both")
        kinds = {(url.protocol, url.carrier) for url in self.urls}
        if len(kinds) > 1:
            raise ValueError("the urls of one upstream must speak the same protocol")
        return self

    @property
    def all_urls(self) -> tuple[Url, ...]:
        """Every address, one or many."""
        return (self.url,) if self.url is not None else self.urls


class BatchingConfig(Model):
    """Requests of several callers joined along the batch axis into one call of the model."""

    max_batch_size: int | None = Field(None, ge=2)
    """Most rows of a call; by default what the model says it takes, or 64. Never more than that."""
    max_delay: Duration = 0.001
    """How long a request waits for others."""
    max_bytes: Size = 16 << 20
    """Most bytes of the inputs of a call."""
    preferred_sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Numbers of rows that go at once, without waiting for more."""
    in_flight: int | None = Field(None, ge=1)
    """Calls at the model at a time, while further requests gather; by default as many as the
    model's instances, or 2 at an upstream."""

    @model_validator(mode="after")
    def _preferred_fit(self) -> BatchingConfig:
        most = self.max_batch_size
        for size in self.preferred_sizes:
            if most is not None and size > most:
                raise ValueError(f"preferred size {size} is above max_batch_size {most}")
        return self


class CacheConfig(Model):
    """Answers kept for requests that are the same; for models that depend on nothing else."""

    max_bytes: Size = 64 << 20
    """Most bytes of all answers that a worker keeps."""
    max_age: Duration = 60.0
    """How long an answer holds."""


class ModelConfig(Model):
    """A model in the gateway's own process, or what there is to say of an upstream's."""

    backend: Text | None = None
    """onnx, torch, python, or the dotted name of a backend of your own."""
    path: Text | None = None
    """Model file or folder of versions; relative to this file."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Options of the backend, such as device: auto."""
    signature: SignatureConfig | None = None
    batching: BatchingConfig | None = None
    """Joins requests into batches; left out: each request is a call of its own."""
    cache: CacheConfig | None = None
    """Keeps answers; left out: every request is asked."""


class MatchConfig(Model):
    """Which calls a route takes; every key given must match."""

    model: Names | None = None
    """Names or globs."""
    version: Names | None = None
    protocol: Names | None = None
    """Codec names or globs, such as oip.http or oip.*."""
    headers: Mapping[Name, Scalar] = Field(default_factory=dict)
    """Header or metadata name to the glob its value must match."""


class TensorNamesConfig(Model):
    """Names that differ: what the caller says to what the target says."""

    inputs: Mapping[Name, Name] = Field(default_factory=dict)
    outputs: Mapping[Name, Name] = Field(default_factory=dict)


class TargetConfig(Model):
    """One place a route sends calls to."""

    upstream: Name | None = None
    """Upstream that serves the model."""
    model: Name | None = None
    """The model's name at the target; with no upstream, a model of this gateway."""
    version: Scalar | None = None
    """The version at the target."""
    weight: int = Field(1, ge=0, le=1_000_000)
    tensors: TensorNamesConfig = TensorNamesConfig()

    @model_validator(mode="after")
    def _somewhere(self) -> TargetConfig:
        if self.upstream is None and self.model is None:
            raise ValueError("a target needs 'upstream', or 'model' for one of this gateway")
        return self


class RetryConfig(Model):
    """Retries of calls that the upstream cannot have seen."""

    budget: float = Field(0.2, ge=0, le=1)
    min_retries: int = Field(3, ge=0)


class PoliciesConfig(Model):
    """What every route does unless it says otherwise."""

    timeout: Duration = 60.0
    """Until the answer; of a stream, until the first one."""
    stream_idle: Duration = 300.0
    """Longest wait for a further answer of a stream."""
    retry: RetryConfig | None = RetryConfig()
    in_flight: int = Field(256, ge=1)
    queued: int = Field(256, ge=0)
    queue_wait: Duration = 0.1
    sequence_idle: Duration = 600.0
    """How long a sequence is held to its target and server without a request."""


class RouteConfig(Model):
    """Calls that match go to one of the targets; the first route that matches is taken."""

    name: Name | None = None
    match: MatchConfig | None = None
    """Left out: the default route."""
    targets: tuple[TargetConfig, ...] = Field(min_length=1)
    timeout: Duration | None = None
    readiness: Literal["any", "all"] = "any"
    """How many targets must be ready for the route to be ready."""
    retry: RetryConfig | None = None
    in_flight: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _weighted(self) -> RouteConfig:
        if not any(target.weight for target in self.targets):
            raise ValueError("at least one target needs a weight above 0")
        return self


class SecurityConfig(Model):
    """How strict the gateway is with its own configuration."""

    strict: bool = False
    """Refuse to listen beyond this machine without TLS, instead of warning."""


class LogConfig(Model):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"
    """auto: console on a terminal, JSON otherwise."""
    calls_per_second: int = Field(100, ge=0)
    """Most calls a second, of all workers, that get a line; one after a gap says how many miss."""


class MetricsConfig(Model):
    """What is measured beyond the gateway's own metrics."""

    compat: tuple[Literal["triton"], ...] = ()
    """Also publish under the names that users' dashboards already read."""
    series: int = Field(500, ge=1)
    """Most label combinations that requests may create."""


class TelemetryConfig(Model):
    """Logs and metrics."""

    log: LogConfig = LogConfig()
    metrics: MetricsConfig = MetricsConfig()


class LifecycleConfig(Model):
    """How the gateway starts and stops."""

    online: bool = True
    """Ready from the start; false: not before a client of grps says that it is online."""
    pre_stop: Duration = 5.0
    """Not ready but still serving, so that load balancers notice."""
    drain: Duration = 25.0
    """Most time for what is in flight."""


class Config(Model):
    """The whole file."""

    version: Annotated[Literal["1"], WithJsonSchema({"enum": [1, "1"]})]
    """Version of this file's format."""
    workers: WorkerCount = 1
    """Processes that share the ports, each with limits and models of its own; auto: one a core."""
    listeners: tuple[ListenerConfig, ...] = Field(min_length=1)
    admin: AdminConfig | None = None
    upstreams: Mapping[Name, UpstreamConfig] = Field(default_factory=dict)
    models: Mapping[Name, ModelConfig] = Field(default_factory=dict)
    pipelines: Mapping[Name, PipelineConfig] = Field(default_factory=dict, max_length=256)
    """Graphs of models, each of which is a model to callers."""
    routes: tuple[RouteConfig, ...] = ()
    """Left out: each model and every upstream's models, under their own names."""
    policies: PoliciesConfig = PoliciesConfig()
    security: SecurityConfig = SecurityConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    lifecycle: LifecycleConfig = LifecycleConfig()
    in_flight_bytes: Size | None = None
    """Most bytes of requests a worker holds; by default a share of 512 MiB or 40% of the cgroup."""
    shared_regions: int = Field(128, ge=1)
    """Most regions of shared memory registered at once."""
