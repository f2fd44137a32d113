"""The layers of every chain, in the order in which a call passes them.

`LAYERS` is the only place that decides the order: `build_chain` builds each chain from it, and
`gateway explain --layers` prints it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from gateway.api.protocol import Codec
from gateway.api.tap import CountCall, RouteTap
from gateway.app.declarations import Declarations
from gateway.app.signatures import Signatures
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.config.models import CacheConfig
from gateway.config.signatures import SignatureConfig
from gateway.ir.context import Need
from gateway.ir.errors import GatewayError
from gateway.policies.access.apart import apart_by
from gateway.policies.access.authorise import Authorise, ListenerAccess
from gateway.policies.access.external import AskExternal
from gateway.policies.access.owners import OwnRegions, OwnSequences, SequenceIds
from gateway.policies.access.quotas.layer import ApplyQuotas
from gateway.policies.batch.normalize import NormalizeOutputs
from gateway.policies.batch.policy import Batch, BatchMeter
from gateway.policies.batch.queue import BatchRules
from gateway.policies.buffer_body import BufferBody
from gateway.policies.cache import Cache, CacheMeter
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.policies.confirm_unload import ConfirmUnload
from gateway.policies.forward_headers import ForwardHeaders, forwarding
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.policies.limits.deadline import RouteTimeout
from gateway.policies.limits.fair_share import FairShare
from gateway.policies.limits.hedge import Hedge
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import AttemptTimeout, RetryBudget
from gateway.policies.limits.sequences import LimitSequences
from gateway.policies.limits.shed_load import ShedLoad
from gateway.policies.model_config import ModelConfigurationLayer
from gateway.policies.observe import Observe, Recorder
from gateway.policies.reject_sequences import RejectSequences
from gateway.policies.shared_memory.policy import SharedMemory, SharedMemoryMode
from gateway.policies.tap import SampleCalls
from gateway.policies.usage_statistics import UsageStatistics
from gateway.routing.sequence_affinity import IDLE_S
from gateway.routing.server_status import ServerStatusLayer, UnknownModels
from gateway.routing.upstream_queries import RefreshModelIndex
from gateway.service import Service, bound_call, bound_inference
from gateway.settings.units import Url
from gateway.telemetry.call_log import CallLog
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.model_usage import Usage

_TENSORS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


class Chain(NamedTuple):
    """Two ways into one chain of layers.

    Attributes:
        calls: Handles every call.
        inference: Handles an InferRequest. It skips the layers that do nothing for one: each would
            cost a call frame.
    """

    calls: Service
    inference: Service


class Tracing(Protocol):
    """Builds the layers that make spans; `gateway.otlp.spans` does."""

    def call(self, inner: Service, /) -> Service:
        """Return the layer that makes the span of a client's call."""
        ...

    def attempt(self, upstream: str, url: Url, inner: Service, /) -> Service:
        """Return the layer that makes the span of each request to an endpoint."""
        ...

    def model(self, inner: Service, /) -> Service:
        """Return the layer that makes the span of each call of a model in this process."""
        ...

    def step(self, inner: Service, /) -> Service:
        """Return the layer that makes the span of each call of a pipeline."""
        ...

    def batch(self, *arguments: Any, **options: Any) -> Batch:
        """Return a batch queue that makes a span of each merged call."""
        ...

    def with_codec(self, inner: Service, codec: Codec[Any, Any], /) -> Service:
        """Return the layer that tells the span of a call which codec writes its response."""
        ...

    def rejected(
        self, listener: str, protocol: str, error: GatewayError, codec: Codec[Any, Any] | None, /
    ) -> None:
        """Make the span of a request that reached no service."""
        ...


Wrap = Callable[[Service], Service]
"""Returns a layer around a service."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a chain.

    Attributes:
        name: The name of the class.
        purpose: A description for `gateway explain --layers`.
        build: Returns the layer around the inner chain, or None if the configuration does not need
            it. It is None for the end of a chain, which is an argument of `build_chain`.
        inference: Whether the layer handles an InferRequest.
    """

    name: str
    purpose: str
    build: Callable[[Chain, Any], Service | None] | None = None
    inference: bool = True


@dataclass(frozen=True, slots=True)
class ListenerParts:
    """Parameters of the chain of a listener."""

    record: Recorder
    calls: CallLog | None
    usage: Usage | None
    is_counting: Callable[[], bool]
    forget: Callable[[], None]
    memory: SharedMemoryMode
    shed: Callable[[Service], ShedLoad] | None = None
    new_path: Callable[..., CallPath] = CallPath
    on_call: CountCall | None = None
    trace: Wrap | None = None
    access: ListenerAccess | None = None
    external: Callable[..., AskExternal] | None = None
    quotas: Callable[..., ApplyQuotas] | None = None
    sequence_ids: SequenceIds | None = None


@dataclass(frozen=True, slots=True)
class RouteParts:
    """Parameters of the chain of a route."""

    timeout: RouteTimeout
    stream_idle_s: float | None
    places: ConcurrencyLimit
    retries: RetryBudget | None
    attempt_timeout_s: float | None = None
    hedge: Callable[[Service], Hedge] | None = None
    share: Callable[[Service], FairShare] | None = None
    priority: Wrap | None = None
    sequences_per_client: int | None = None
    client_header: str = ""
    sequence_idle_s: float = IDLE_S
    taps: Sequence[RouteTap] = ()


@dataclass(frozen=True, slots=True)
class ModelParts:
    """Parameters of the chains of in-process models, and of models with a batch queue or cache."""

    signatures: Mapping[str, SignatureConfig] = field(default_factory=dict)
    declarations: Declarations = field(default_factory=dict)
    forward: tuple[tuple[str, ...], Mapping[str, str], str | None] | None = None
    workers: int = 1
    rules: BatchRules | None = None
    batch_meter: BatchMeter | None = None
    cache: CacheConfig | None = None
    cache_meter: CacheMeter | None = None
    batch: Callable[..., Batch] = Batch
    trace: Wrap | None = None

    @property
    def is_shared(self) -> bool:
        """Whether the model has a batch queue or a cache."""
        return self.rules is not None or self.cache is not None


@dataclass(frozen=True, slots=True)
class UpstreamParts:
    """Parameters of the chain of an upstream."""

    adaptive: Wrap | None = None


@dataclass(frozen=True, slots=True)
class EndpointParts:
    """Parameters of the chain of one endpoint of an upstream.

    Attributes:
        classifies: Whether the server computes classes; None if it depends on the server.
        client_header: The header with the name of the client; None for none.
        ends_at_empty_classes: Whether the server may end at classes of an empty output.
    """

    needs: frozenset[Need]
    signatures: Mapping[str, SignatureConfig]
    classifies: bool | None
    forward_headers: tuple[str, ...]
    headers: Mapping[str, str]
    client_header: str | None = None
    ends_at_empty_classes: Callable[[], bool] = bool
    declarations: Declarations = field(default_factory=dict)
    trace: Wrap | None = None


def _sample(inner: Service, taps: Sequence[RouteTap]) -> Service:
    for tap in taps:
        inner = SampleCalls(inner, tap)
    return inner


# fmt: off
_TENSOR_LAYERS: Final = (
    Layer("BufferBody", "waits for the whole body of a request",
          lambda inner, _: BufferBody(inner.calls, inference=inner.inference)),
    Layer("Classify", "computes classes",
          lambda inner, _: Classify(inner.calls, inference=inner.inference)),
    Layer("Complete", "adds missing names, datatypes and shapes of tensors",
          lambda inner, _: Complete(inner.calls, _TENSORS, inference=inner.inference)),
)
_SHARING: Final = (
    Layer("NormalizeOutputs", "makes requests that name all outputs equal to those that name none",
          lambda inner, at: NormalizeOutputs(inner.calls) if at.is_shared else None),
    Layer("Cache", "replies to a repeated request from memory",
          lambda inner, at: None if at.cache is None else Cache(
              inner.calls, max_bytes=at.cache.max_bytes, max_age_s=at.cache.max_age,
              meter=at.cache_meter, apart=apart_by(at.cache.apart))),
    Layer("Batch", "merges requests of several callers into one",
          lambda inner, at: None if at.rules is None else at.batch(
              inner.calls, at.rules, meter=at.batch_meter)),
)

LAYERS: Final[Mapping[str, tuple[Layer, ...]]] = MappingProxyType({
    "listener": (
        Layer("Observe", "counts, times and logs every call",
              lambda inner, at: Observe(
                  inner.calls, at.record, inference=inner.inference, calls=at.calls,
                  new_path=at.new_path, on_call=at.on_call)),
        Layer("TraceCall", "makes the span of each call, if `telemetry.otlp` has traces",
              lambda inner, at: None if at.trace is None else at.trace(inner.calls)),
        Layer("Authorise", "refuses what the client may not do, if `security.rules` has rules",
              lambda inner, at: None if at.access is None else Authorise(
                  inner.calls, at.access, inference=inner.inference)),
        Layer("AskExternal", "refuses what the program of `security.external` denies",
              lambda inner, at: None if at.external is None else at.external(
                  inner.calls, inference=inner.inference)),
        Layer("ApplyQuotas", "charges calls to `quotas`, and refuses those beyond one",
              lambda inner, at: None if at.quotas is None else at.quotas(
                  inner.calls, inference=inner.inference)),
        Layer("ShedLoad", "refuses inferences while the gateway is overloaded, if configured",
              lambda inner, at: None if at.shed is None else at.shed(inner.calls)),
        Layer("ServerStatusLayer", "replies to status calls of TensorRT v1 clients",
              lambda inner, _: ServerStatusLayer(inner.calls), inference=False),
        Layer("UnknownModels", "tells models that no server has from those that are not ready",
              lambda inner, _: UnknownModels(inner.calls), inference=False),
        Layer("UsageStatistics", "counts calls of each model, if a listener has `statistics` on",
              lambda inner, at: None if at.usage is None else UsageStatistics(
                  inner.calls, at.usage, is_counting=at.is_counting)),
        Layer("RefreshModelIndex", "updates the model index after a load or unload",
              lambda inner, at: RefreshModelIndex(inner.calls, at.forget), inference=False),
        Layer("OwnSequences", "keeps the sequences of clients apart, if there are clients",
              lambda inner, at: None if at.sequence_ids is None else OwnSequences(
                  inner.calls, at.sequence_ids)),
        Layer("OwnRegions", "keeps the shared memory of clients apart, if there are clients",
              lambda inner, at: None if at.sequence_ids is None else OwnRegions(
                  inner.calls, inference=inner.inference)),
        Layer("SharedMemory", "rejects, forwards or copies regions of shared memory",
              lambda inner, at: SharedMemory(inner.calls, at.memory, inference=inner.inference)),
        Layer("Router", "chooses the route by model, version and protocol"),
    ),
    "route": (
        Layer("SampleCalls", "passes chosen calls to the shadow process, if a migration has them",
              lambda inner, at: _sample(inner.calls, at.taps) if at.taps else None),
        Layer("LimitSequences", "limits the open sequences of each client, if configured",
              lambda inner, at: None if at.sequences_per_client is None else LimitSequences(
                  inner.calls, at.sequences_per_client, client=CLIENT_MEMORY.get,
                  header=at.client_header, idle_s=at.sequence_idle_s)),
        Layer("Prioritize", "gives calls their priority in queues, if `queue_priority` is set",
              lambda inner, at: None if at.priority is None else at.priority(inner.calls)),
        Layer("FairShare", "limits the inferences in flight of each caller, if `share` is set",
              lambda inner, at: None if at.share is None else at.share(inner.calls)),
        Layer("CallLimits", "applies the concurrency limit, the deadline and the retries",
              lambda inner, at: CallLimits(
                  inner.calls, at.timeout.seconds, timeout_key=at.timeout.key,
                  stream_idle_s=at.stream_idle_s, places=at.places, retries=at.retries)),
        Layer("AttemptTimeout", "limits the time of each attempt, if `per_try_timeout` is set",
              lambda inner, at: None if at.attempt_timeout_s is None else AttemptTimeout(
                  inner.calls, at.attempt_timeout_s)),
        Layer("Hedge", "makes a second attempt of slow calls, if `hedge` is set",
              lambda inner, at: None if at.hedge is None else at.hedge(inner.calls)),
        Layer("Balance", "chooses a target by weight (Discover: the upstream that has the model)"),
    ),
    "target": (
        Layer("Rename", "translates names of models and tensors, if the route configures it"),
        Layer("PerModelService", "sends batched or cached models to the chain 'upstream model'"),
    ),
    "upstream model": (
        Layer("ForwardHeaders", "drops the headers that are not forwarded",
              lambda inner, at: forwarding(inner.calls, *at.forward)),
        Layer("BufferBody", "waits for the whole body of a request",
              lambda inner, _: BufferBody(inner.calls, inference=inner.inference)),
        Layer("Complete", "adds missing names, datatypes and shapes of tensors",
              lambda inner, _: Complete(inner.calls, _TENSORS, inference=inner.inference)),
        *_SHARING,
        Layer("Endpoints", "the chain 'upstream', with the endpoint that balancing chooses"),
    ),
    "upstream": (
        Layer("AdaptiveConcurrency", "limits inferences by the latency of the upstream",
              lambda inner, at: None if at.adaptive is None else at.adaptive(inner.calls)),
        Layer("Endpoints", "the chain 'endpoint' of the endpoint that balancing chooses"),
    ),
    "endpoint": (
        Layer("ForwardHeaders", "drops the headers that are not forwarded, adds configured ones",
              lambda inner, at: forwarding(
                  inner.calls, at.forward_headers, at.headers, at.client_header,
                  inference=inner.inference)),
        Layer("Classify", "refuses classes of text, computes classes if the server does not",
              lambda inner, at: Classify(
                  inner.calls, by_target=at.classifies, inference=inner.inference,
                  ends_at_empty=at.ends_at_empty_classes)),
        Layer("Complete", "adds what the codecs need: names, datatypes, shapes, order",
              lambda inner, at: Complete(inner.calls, at.needs, inference=inner.inference)),
        Layer("ModelConfigurationLayer", "derives configurations from metadata, and batch sizes",
              lambda inner, _: ModelConfigurationLayer(inner.calls), inference=False),
        Layer("Signatures", "replies to metadata calls from the configuration's signatures",
              lambda inner, at: Signatures(inner.calls, at.signatures, at.declarations),
              inference=False),
        Layer("ConfirmUnload", "replies to an unload when the model is no longer ready",
              lambda inner, _: ConfirmUnload(inner.calls), inference=False),
        Layer("TraceAttempt", "makes the span of each request, if `telemetry.otlp` has traces",
              lambda inner, at: None if at.trace is None else at.trace(inner.calls)),
        Layer("Upstream", "encodes the call, sends it and decodes the response"),
    ),
    "model in process": (
        Layer("RejectSequences", "rejects sequences, whose requests would go to different workers",
              lambda inner, at: RejectSequences(inner.calls, at.workers)
              if at.workers > 1 else None),
        Layer("ForwardHeaders", "drops headers, which would separate requests",
              lambda inner, at: ForwardHeaders(inner.calls, (), {}) if at.is_shared else None),
        *_TENSOR_LAYERS,
        *_SHARING,
        Layer("ModelConfigurationLayer", "derives configurations from metadata, and batch sizes",
              lambda inner, _: ModelConfigurationLayer(inner.calls), inference=False),
        Layer("Signatures", "adds labels and batch sizes from the configuration",
              lambda inner, at: Signatures(inner.calls, at.signatures, at.declarations)
              if at.signatures or at.declarations else None,
              inference=False),
        Layer("TraceInside", "makes the span of each run, if `telemetry.otlp` has traces",
              lambda inner, at: None if at.trace is None else at.trace(inner.calls)),
        Layer("ReloadableModel", "runs the model"),
    ),
    "pipeline": (
        *_TENSOR_LAYERS,
        Layer("ModelConfigurationLayer", "derives configurations from metadata, and batch sizes",
              lambda inner, _: ModelConfigurationLayer(inner.calls), inference=False),
        Layer("Pipeline", "runs the steps"),
    ),
})
# fmt: on


def build_chain(name: str, end: Service, parts: Any = None) -> Service:
    """Return the outermost layer of a chain.

    Args:
        name: A key of `LAYERS`.
        end: The service that the innermost layer calls.
        parts: The parameters of this chain: an instance of one of the classes above.
    """
    outermost = end
    chain = Chain(bound_call(end), bound_inference(end))
    for layer in reversed(LAYERS[name]):
        built = None if layer.build is None else layer.build(chain, parts)
        if built is not None:
            outermost = built
            inference = bound_inference(built) if layer.inference else chain.inference
            chain = Chain(bound_call(built), inference)
    return outermost


def describe_layers() -> Iterator[str]:
    """Yield the lines of a table of all chains."""
    width = max(len(layer.name) for layers in LAYERS.values() for layer in layers)
    for name, layers in LAYERS.items():
        yield name
        for layer in layers:
            skipped = "" if layer.inference else " (not for inference)"
            yield f"  {layer.name:{width}}  {layer.purpose}{skipped}"
