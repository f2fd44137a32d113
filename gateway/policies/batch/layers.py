"""The layers of models that several callers share: of `batching`, and of `batching` or `cache`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar, cast

from pydantic import Field, model_validator

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.ir.calls import MODEL_CONTROL_CALLS, Call, InferRequest
from gateway.ir.context import ModelRef
from gateway.model_info.metadata_cache import METADATA_TTL_S, MetadataCache
from gateway.policies.access.apart import apart_by
from gateway.policies.batch.policy import Batch
from gateway.policies.batch.queue import BatchRules
from gateway.policies.cache import CACHE
from gateway.policies.forward_headers import ForwardHeaders
from gateway.service import Service
from gateway.settings.fields import Duration, Size
from gateway.settings.model import Model
from gateway.settings.setting import Setting
from gateway.telemetry.metrics import Metrics

R = TypeVar("R")


class BatchingConfig(Model):
    """Dynamic batching: requests of several clients are merged along the batch axis into one."""

    max_batch_size: int | None = Field(None, ge=2)
    """Most rows of a batch, as far as the model allows. Default: that of the model, or 64."""
    max_delay: Duration = 0.001
    """Longest wait of a request for others. `0s` merges only those that arrive while the model
    is busy. Default: `1ms`."""
    max_bytes: Size = 16 << 20
    """Largest inputs of a batch. Default: `16MiB`."""
    preferred_sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Rows at which a batch is sent at once. Default: `[]`."""
    in_flight: int | None = Field(None, ge=1)
    """Most batches at the model at the same time. Default: the instances of the model, or 2 for
    one of an upstream."""
    apart: Literal["none", "group", "client"] = "none"
    """Whose requests are never merged: those of different groups, or of different clients.
    Default: `none`, which merges all."""

    @model_validator(mode="after")
    def _check_preferred_sizes(self) -> "BatchingConfig":
        most = self.max_batch_size
        for size in self.preferred_sizes:
            if most is not None and size > most:
                raise ValueError(f"preferred size {size} is larger than max_batch_size {most}")
        return self


BATCHING: Final = Setting[BatchingConfig | None](
    key="batching",
    type=BatchingConfig | None,
    default=None,
    help="Dynamic batching. `{}` switches it on. Default: none.",
    places=("model",),
)


def is_shared(model: Model) -> bool:
    """Return whether a model, by its section of the file, has a batch queue or a cache."""
    return BATCHING.of(model) is not None or CACHE.of(model) is not None


@dataclass(frozen=True, slots=True)
class BatchQueues:
    """How the batches of a model are sent.

    Attributes:
        in_flight: How many are at the model at a time, if the file does not say so.
        make: Makes the queue.
    """

    in_flight: int
    make: Callable[..., Batch] = Batch


class NormalizeOutputs:
    """Replaces a list of all the model's outputs by an empty list, which has the same meaning.

    Some clients name every output they request; others name none and get all outputs. Equal
    requests then look equal, for batching and caching.

    Replies then have the target's order of outputs, as those of Triton and of in-process models
    always do. `Complete`, which is outside, restores the caller's order if its protocol has one.

    Args:
        inner: The service to call.
        metadata: The outputs of the model; None for a cache over *inner*.
    """

    def __init__(self, inner: Service, metadata: MetadataCache | None = None) -> None:
        self._inner = inner
        self._metadata = (
            MetadataCache(inner, ttl_s=METADATA_TTL_S) if metadata is None else metadata
        )

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner* with the normalized request."""
        if isinstance(call, InferRequest):
            has_all = call.outputs and await self._requests_all(call)
            # The R of an InferRequest is InferResponse.
            return cast("R", await self._inner(call.changed(outputs=()) if has_all else call))
        try:
            return await self._inner(call)
        finally:
            if type(call) in MODEL_CONTROL_CALLS:
                self._metadata.forget(call.model)

    async def _requests_all(self, call: InferRequest) -> bool:
        for output in call.outputs:
            if output.classes or output.parameters or output.shared is not None:
                return False
        metadata = await self._metadata.get_or_none(call.model or ModelRef(""), batching=True)
        declared = () if metadata is None else metadata.outputs
        return {output.name for output in call.outputs} == {output.name for output in declared}


def _is_shared(at: LayerContext) -> bool:
    return at.setting(BATCHING) is not None or at.setting(CACHE) is not None


def _drop_headers(inner: Entries, at: LayerContext) -> Service | None:
    return ForwardHeaders(inner.questions, (), {}) if _is_shared(at) else None


def _normalize(inner: Entries, at: LayerContext) -> Service | None:
    return NormalizeOutputs(inner.questions) if _is_shared(at) else None


def _batch(inner: Entries, at: LayerContext) -> Service | None:
    config = at.setting(BATCHING)
    if config is None:
        return None
    queues = at.part(BatchQueues)
    rules = BatchRules(
        max_batch_size=config.max_batch_size,
        max_delay_s=config.max_delay,
        max_bytes=config.max_bytes,
        preferred_sizes=config.preferred_sizes,
        in_flight=config.in_flight or queues.in_flight,
        apart=apart_by(config.apart),
    )
    return queues.make(inner.questions, rules, meter=at.part(Metrics).sharing.batches(at.name))


DROP_HEADERS: Final = Layer(
    "ForwardHeaders", "drops headers, which would separate requests", "model", _drop_headers
)
NORMALIZE_OUTPUTS: Final = Layer(
    "NormalizeOutputs",
    "makes requests that name all outputs equal to those that name none",
    "model",
    _normalize,
)
BATCH: Final = Layer(
    "Batch", "merges requests of several callers into one", "model", _batch, settings=(BATCHING,)
)
