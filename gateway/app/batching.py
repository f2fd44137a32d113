"""Models whose callers share calls: batches and cached replies, as `models` in YAML says.

`gateway.app.layers` has their place: within `Complete`, where tensors are named and shapes are
complete whatever protocol the caller speaks, and outside the endpoints of an upstream, so that a
batch goes to one endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from gateway.app.layers import ModelParts, build_chain
from gateway.backends.model_spec import ModelSpec
from gateway.config.models import ModelConfig, UpstreamConfig
from gateway.ir.calls import Call
from gateway.policies.batch.queue import BatchRules
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.metrics import Metrics

R = TypeVar("R")

_AT_UPSTREAM = 2


def is_shared(config: ModelConfig) -> bool:
    """Return whether callers of a model share anything."""
    return config.batching is not None or config.cache is not None


def model_parts(name: str, config: ModelConfig, metrics: Metrics, **others: Any) -> ModelParts:
    """Return what the layers of a model need.

    Args:
        name: Of the model, for metrics.
        config: Of the model.
        metrics: Count what happens.
        **others: Further fields of `ModelParts`.
    """
    batching, cache = config.batching, config.cache
    rules = None
    if batching is not None:
        rules = BatchRules(
            max_batch_size=batching.max_batch_size,
            max_delay_s=batching.max_delay,
            max_bytes=batching.max_bytes,
            preferred_sizes=batching.preferred_sizes,
            in_flight=batching.in_flight or _in_flight(name, config),
        )
    return ModelParts(
        rules=rules,
        batch_meter=None if batching is None else metrics.sharing.batches(name),
        cache=cache,
        cache_meter=None if cache is None else metrics.sharing.cache(name),
        **others,
    )


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
    forward: tuple[tuple[str, ...], Mapping[str, str]] = (tuple(config.forward_headers), {})
    own = {
        name: build_chain(
            "upstream model", service, model_parts(name, model, metrics, forward=forward)
        )
        for name, model in models.items()
        if model.backend is None and is_shared(model)
    }
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
