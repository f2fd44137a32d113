"""The layers of models and pipelines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.api.layer import Calls, Entries, Layer, LayerContext
from gateway.app.chains.rows import always, for_questions, with_part
from gateway.app.chains.tracing import Wrap
from gateway.app.declarations import Declarations
from gateway.app.signatures import Signatures
from gateway.config.models import CacheConfig
from gateway.config.signatures import SignatureConfig
from gateway.ir.context import Need
from gateway.policies.access.apart import apart_by
from gateway.policies.batch.normalize import NormalizeOutputs
from gateway.policies.batch.policy import Batch, BatchMeter
from gateway.policies.batch.queue import BatchRules
from gateway.policies.buffer_body import BufferBody
from gateway.policies.cache import Cache, CacheMeter
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.policies.forward_headers import ForwardHeaders, forwarding
from gateway.policies.model_config import ModelConfigurationLayer
from gateway.policies.reject_sequences import RejectSequences
from gateway.service import Service

_TENSORS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


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


def _complete(inner: Entries, _at: LayerContext) -> Service:
    return Complete(inner.questions, _TENSORS, inference=inner.inference)


def _forward_headers(inner: Entries, at: ModelParts) -> Service | None:
    return None if at.forward is None else forwarding(inner.questions, *at.forward)


def _drop_headers(inner: Entries, at: ModelParts) -> Service | None:
    return ForwardHeaders(inner.questions, (), {}) if at.is_shared else None


def _normalize(inner: Entries, at: ModelParts) -> Service | None:
    return NormalizeOutputs(inner.questions) if at.is_shared else None


def _cache(inner: Entries, at: ModelParts) -> Service | None:
    if at.cache is None:
        return None
    return Cache(
        inner.questions,
        max_bytes=at.cache.max_bytes,
        max_age_s=at.cache.max_age,
        meter=at.cache_meter,
        apart=apart_by(at.cache.apart),
    )


def _batch(inner: Entries, at: ModelParts) -> Service | None:
    if at.rules is None:
        return None
    return at.batch(inner.questions, at.rules, meter=at.batch_meter)


def _reject_sequences(inner: Entries, at: ModelParts) -> Service | None:
    return RejectSequences(inner.questions, at.workers) if at.workers > 1 else None


def _describe(inner: Entries, at: ModelParts) -> Service | None:
    if not (at.signatures or at.declarations):
        return None
    return Signatures(inner.questions, at.signatures, at.declarations)


def _trace(inner: Entries, at: ModelParts) -> Service | None:
    return None if at.trace is None else at.trace(inner.questions)


BUFFER_BODY: Final = Layer(
    "BufferBody", "waits for the whole body of a request", "model", always(BufferBody)
)
CLASSIFY: Final = Layer("Classify", "computes classes", "model", always(Classify))
COMPLETE: Final = Layer(
    "Complete", "adds missing names, datatypes and shapes of tensors", "model", _complete
)
NORMALIZE_OUTPUTS: Final = Layer(
    "NormalizeOutputs",
    "makes requests that name all outputs equal to those that name none",
    "model",
    with_part(ModelParts, _normalize),
)
CACHE: Final = Layer(
    "Cache",
    "replies to a repeated request from memory",
    "model",
    with_part(ModelParts, _cache),
)
BATCH: Final = Layer(
    "Batch",
    "merges requests of several callers into one",
    "model",
    with_part(ModelParts, _batch),
)
FORWARD_HEADERS: Final = Layer(
    "ForwardHeaders",
    "drops the headers that are not forwarded",
    "model",
    with_part(ModelParts, _forward_headers),
)
DROP_HEADERS: Final = Layer(
    "ForwardHeaders",
    "drops headers, which would separate requests",
    "model",
    with_part(ModelParts, _drop_headers),
)
REJECT_SEQUENCES: Final = Layer(
    "RejectSequences",
    "rejects sequences, whose requests would go to different workers",
    "model",
    with_part(ModelParts, _reject_sequences),
)
MODEL_CONFIGURATION: Final = Layer(
    "ModelConfigurationLayer",
    "derives configurations from metadata, and batch sizes",
    "model",
    for_questions(ModelConfigurationLayer),
    Calls.QUESTIONS,
)
SIGNATURES: Final = Layer(
    "Signatures",
    "adds labels and batch sizes from the configuration",
    "model",
    with_part(ModelParts, _describe),
    Calls.QUESTIONS,
)
TRACE_INSIDE: Final = Layer(
    "TraceInside",
    "makes the span of each run, if `telemetry.otlp` has traces",
    "model",
    with_part(ModelParts, _trace),
)
PIPELINE: Final = tuple(
    replace(layer, chain="pipeline")
    for layer in (BUFFER_BODY, CLASSIFY, COMPLETE, MODEL_CONFIGURATION)
)
