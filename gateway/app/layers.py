"""The layers of every chain, in the order in which a call passes them.

`LAYERS` is the only place that decides the order: `build_chain` builds each chain from it, and
`gateway explain --layers` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gateway.app.signatures import Signatures
from gateway.config.models import CacheConfig
from gateway.config.signatures import SignatureConfig
from gateway.ir.context import Need
from gateway.policies.batch.normalize import NormalizeOutputs
from gateway.policies.batch.policy import Batch, BatchMeter
from gateway.policies.batch.queue import BatchRules
from gateway.policies.buffer_body import BufferBody
from gateway.policies.cache import Cache, CacheMeter
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.policies.confirm_unload import ConfirmUnload
from gateway.policies.forward_headers import ForwardHeaders
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import RetryBudget
from gateway.policies.model_config import ModelConfigurationLayer
from gateway.policies.observe import Observe, Recorder
from gateway.policies.reject_sequences import RejectSequences
from gateway.policies.shared_memory.policy import SharedMemory, SharedMemoryMode
from gateway.policies.single_reply import SingleReply
from gateway.policies.usage_statistics import UsageStatistics
from gateway.routing.server_status import ServerStatusLayer
from gateway.routing.upstream_questions import RefreshModelIndex
from gateway.service import Service
from gateway.telemetry.model_usage import Usage

_TENSORS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


class Chain(NamedTuple):
    """Two ways into one chain of layers.

    Attributes:
        calls: Answers every call.
        inference: Answers an InferRequest.  It leaves out the layers that have nothing to do with
            one, which would cost a call frame each.
    """

    calls: Service
    inference: Service


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a chain.

    Attributes:
        name: The class.
        purpose: What the layer does, for readers.
        build: Returns the layer over the chain within, or None where the configuration has no use
            for it.  None for the end of a chain, which `build_chain` is given.
        inference: An InferRequest passes the layer.
    """

    name: str
    purpose: str
    build: Callable[[Chain, Any], Service | None] | None = None
    inference: bool = True


@dataclass(frozen=True, slots=True)
class ListenerParts:
    """What the chain of a listener needs."""

    record: Recorder
    lines_per_s: int
    usage: Usage | None
    forget: Callable[[], None]
    memory: SharedMemoryMode


@dataclass(frozen=True, slots=True)
class RouteParts:
    """What the chain of a route needs."""

    timeout_s: float | None
    stream_idle_s: float | None
    places: ConcurrencyLimit
    retries: RetryBudget | None


@dataclass(frozen=True, slots=True)
class ModelParts:
    """What the chains of in-process models, and of models that share calls, need."""

    signatures: Mapping[str, SignatureConfig] = field(default_factory=dict)
    forward: tuple[tuple[str, ...], Mapping[str, str]] | None = None
    workers: int = 1
    rules: BatchRules | None = None
    batch_meter: BatchMeter | None = None
    cache: CacheConfig | None = None
    cache_meter: CacheMeter | None = None

    @property
    def is_shared(self) -> bool:
        """Whether requests of several callers share calls."""
        return self.rules is not None or self.cache is not None


@dataclass(frozen=True, slots=True)
class EndpointParts:
    """What the chain of one endpoint of an upstream needs.

    Attributes:
        classifies: The protocol carries classification; None where it depends on the server.
    """

    needs: frozenset[Need]
    signatures: Mapping[str, SignatureConfig]
    classifies: bool | None
    forward_headers: tuple[str, ...]
    headers: Mapping[str, str]


# fmt: off
_SHARING: Final = (
    Layer("NormalizeOutputs", "makes requests that name all outputs equal to those that name none",
          lambda inner, at: NormalizeOutputs(inner.calls) if at.is_shared else None),
    Layer("Cache", "answers a repeated request from memory",
          lambda inner, at: None if at.cache is None else Cache(
              inner.calls, max_bytes=at.cache.max_bytes, max_age_s=at.cache.max_age,
              meter=at.cache_meter)),
    Layer("Batch", "merges requests of several callers into one",
          lambda inner, at: None if at.rules is None else Batch(
              inner.calls, at.rules, meter=at.batch_meter)),
)

LAYERS: Final[Mapping[str, tuple[Layer, ...]]] = MappingProxyType({
    "listener": (
        Layer("Observe", "counts, times and logs every call",
              lambda inner, at: Observe(
                  inner.calls, at.record, inference=inner.inference, lines_per_s=at.lines_per_s)),
        Layer("ServerStatusLayer", "answers the status of a TensorRT v1 server",
              lambda inner, _: ServerStatusLayer(inner.calls), inference=False),
        Layer("UsageStatistics", "counts for each model, where a listener has `statistics` on",
              lambda inner, at: None if at.usage is None else UsageStatistics(
                  inner.calls, at.usage)),
        Layer("RefreshModelIndex", "lists the models again after a load or unload",
              lambda inner, at: RefreshModelIndex(inner.calls, at.forget), inference=False),
        Layer("SharedMemory", "refuses, forwards or copies regions of shared memory",
              lambda inner, at: SharedMemory(inner.calls, at.memory)),
        Layer("Router", "chooses the route by model, version and protocol"),
    ),
    "route": (
        Layer("CallLimits", "applies the concurrency limit, the deadline and the retry budget",
              lambda inner, at: CallLimits(
                  inner.calls, at.timeout_s, stream_idle_s=at.stream_idle_s, places=at.places,
                  retries=at.retries)),
        Layer("Balance", "chooses a target by weight (Discover: the upstream that has the model)"),
    ),
    "target": (
        Layer("Rename", "translates names of models and tensors, where the route says so"),
        Layer("PerModelService", "sends models that share calls to the chain 'upstream model'"),
    ),
    "upstream model": (
        Layer("ForwardHeaders", "drops the headers that are not forwarded",
              lambda inner, at: ForwardHeaders(inner.calls, *at.forward)),
        Layer("BufferBody", "waits for the whole body of a request",
              lambda inner, _: BufferBody(inner.calls)),
        Layer("Complete", "gives tensors names, datatypes and shapes",
              lambda inner, _: Complete(inner.calls, _TENSORS, inference=inner.inference)),
        *_SHARING,
        Layer("Endpoints", "the chain 'endpoint' of the endpoint that balancing chooses"),
    ),
    "endpoint": (
        Layer("ForwardHeaders", "drops the headers that are not forwarded, adds configured ones",
              lambda inner, at: ForwardHeaders(inner.calls, at.forward_headers, at.headers)),
        Layer("Classify", "computes classes where the server does not",
              lambda inner, at: None if at.classifies else Classify(
                  inner.calls, ask_first=at.classifies is None)),
        Layer("Complete", "gives tensors what either codec needs: names, datatypes, shapes, order",
              lambda inner, at: Complete(inner.calls, at.needs, inference=inner.inference)),
        Layer("ModelConfigurationLayer", "derives configurations from metadata, and batch sizes",
              lambda inner, _: ModelConfigurationLayer(inner.calls), inference=False),
        Layer("Signatures", "answers metadata from the configuration's signatures",
              lambda inner, at: Signatures(inner.calls, at.signatures), inference=False),
        Layer("SingleReply", "asks a decoupled model with a stream for its only reply",
              lambda inner, _: SingleReply(inner.calls, inference=inner.inference)),
        Layer("ConfirmUnload", "answers an unload once the model is not ready any more",
              lambda inner, _: ConfirmUnload(inner.calls), inference=False),
        Layer("Upstream", "encodes the call, sends it and decodes the response"),
    ),
    "model in process": (
        Layer("RejectSequences", "refuses sequences that several workers would divide",
              lambda inner, at: RejectSequences(inner.calls, at.workers)
              if at.workers > 1 else None),
        Layer("ForwardHeaders", "drops headers, so that they keep no requests apart",
              lambda inner, at: ForwardHeaders(inner.calls, (), {}) if at.is_shared else None),
        Layer("BufferBody", "waits for the whole body of a request",
              lambda inner, _: BufferBody(inner.calls)),
        Layer("Classify", "computes classes",
              lambda inner, _: Classify(inner.calls)),
        Layer("Complete", "gives tensors names, datatypes and shapes",
              lambda inner, _: Complete(inner.calls, _TENSORS, inference=inner.inference)),
        *_SHARING,
        Layer("ModelConfigurationLayer", "derives configurations from metadata, and batch sizes",
              lambda inner, _: ModelConfigurationLayer(inner.calls), inference=False),
        Layer("Signatures", "adds labels and batch sizes from the configuration",
              lambda inner, at: Signatures(inner.calls, at.signatures) if at.signatures else None,
              inference=False),
        Layer("ReloadableModel", "runs the model"),
    ),
    "pipeline": (
        Layer("BufferBody", "waits for the whole body of a request",
              lambda inner, _: BufferBody(inner.calls)),
        Layer("Classify", "computes classes",
              lambda inner, _: Classify(inner.calls)),
        Layer("Complete", "gives tensors names, datatypes and shapes",
              lambda inner, _: Complete(inner.calls, _TENSORS, inference=inner.inference)),
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
        end: What the innermost layer calls.
        parts: What the layers of this chain need: an instance of one of the classes above.
    """
    chain = Chain(end, end)
    for layer in reversed(LAYERS[name]):
        built = None if layer.build is None else layer.build(chain, parts)
        if built is not None:
            chain = Chain(built, built if layer.inference else chain.inference)
    return chain.calls


def describe_layers() -> Iterator[str]:
    """Yield the lines of a table of all chains."""
    width = max(len(layer.name) for layers in LAYERS.values() for layer in layers)
    for name, layers in LAYERS.items():
        yield name
        for layer in layers:
            skipped = "" if layer.inference else " (not for inference)"
            yield f"  {layer.name:{width}}  {layer.purpose}{skipped}"
