"""Models whose callers share calls: batches, and answers that are kept; as `models` in YAML says.

Both stand within `Complete`, where shapes are whole and tensors named whatever protocol a caller
speaks, and outside the addresses of an upstream, so that a batch goes to one of them as a whole.
The cache is the outer one: what it answers is in no batch. Outside both requests are made alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from gateway.backends.model_spec import ModelSpec
from gateway.config.models import ModelConfig, UpstreamConfig
from gateway.ir.calls import Call
from gateway.ir.context import Need
from gateway.policies.batch.normalize import NormalizeOutputs
from gateway.policies.batch.policy import Batch
from gateway.policies.batch.queue import BatchRules
from gateway.policies.buffer_body import BufferBody
from gateway.policies.cache import Cache
from gateway.policies.complete.policy import Complete
from gateway.policies.forward_headers import ForwardHeaders
from gateway.policies.metadata_cache import Known
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.metrics import Metrics

R = TypeVar("R")

_AT_UPSTREAM = 2
_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def is_shared(config: ModelConfig) -> bool:
    """Return whether callers of a model share anything."""
    return config.batching is not None or config.cache is not None


def shared(name: str, service: Service, config: ModelConfig, metrics: Metrics) -> Service:
    """Return *service*, one model's, behind the layers that its configuration asks for.

    Args:
        name: Of the model, for metrics.
        service: Answers calls whose tensors are named and whose shapes are whole.
        config: Of the model.
        metrics: Count what happens.
    """
    batching, cache = config.batching, config.cache
    if not is_shared(config):
        return service
    known = Known(service)
    if batching is not None:
        rules = BatchRules(
            max_batch_size=batching.max_batch_size,
            max_delay_s=batching.max_delay,
            max_bytes=batching.max_bytes,
            preferred_sizes=batching.preferred_sizes,
            in_flight=batching.in_flight or _in_flight(name, config),
        )
        service = Batch(service, rules, known=known, meter=metrics.sharing.batches(name))
    if cache is not None:
        service = Cache(
            service,
            max_bytes=cache.max_bytes,
            max_age_s=cache.max_age,
            meter=metrics.sharing.cache(name),
        )
    return NormalizeOutputs(service, known)


def _in_flight(name: str, config: ModelConfig) -> int:
    """Return how many calls a model can do something with at a time."""
    if config.backend is None:
        return _AT_UPSTREAM  # one at work, and one on its way
    return ModelSpec(name=name, options=config.options).integer("instances", 1)


def shared_upstream(
    service: Service, config: UpstreamConfig, models: Mapping[str, ModelConfig], metrics: Metrics
) -> Service:
    """Return an upstream whose models share calls where *models*, by name there, say so.

    What crosses of a caller's headers is decided out here, because the upstream may answer by it:
    only calls that carry the same are shared.
    """
    own = {}
    for name, model in models.items():
        if model.backend is None and is_shared(model):
            layers = BufferBody(Complete(shared(name, service, model, metrics), _NEEDS))
            own[name] = ForwardHeaders(layers, config.forward_headers, {})
    return PerModelService(service, own) if own else service


class PerModelService:
    """Gives calls about some models to services of their own.

    Args:
        inner: Answers about all others.
        own: Answers, by name of the model.
    """

    def __init__(self, inner: Service, own: Mapping[str, Service]) -> None:
        self._inner = inner
        self._own = dict(own)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call* by its model's service."""
        model = call.model
        service = None if model is None else self._own.get(model.name)
        return (service or self._inner)(call)
