"""Batching and caching of a model's calls, as its entry under `models` in YAML configures them.

`gateway.app.layers` decides the order of the layers. Both are inside `Complete`, so shapes are
complete and tensors have names in every protocol. Both are outside the endpoints of an upstream, so
a batch goes to one endpoint.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from gateway.app.layers import ModelParts, Tracing, build_chain
from gateway.backends.model_spec import ModelSpec
from gateway.config.models import ModelConfig, UpstreamConfig
from gateway.ir.calls import Call
from gateway.policies.access.apart import apart_by
from gateway.policies.batch.policy import Batch
from gateway.policies.batch.queue import BatchRules
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.metrics import Metrics

R = TypeVar("R")

_UPSTREAM_IN_FLIGHT = 2


def is_shared(config: ModelConfig) -> bool:
    """Return whether a model has a batch queue or a cache."""
    return config.batching is not None or config.cache is not None


def model_parts(
    name: str,
    config: ModelConfig,
    metrics: Metrics,
    tracing: Tracing | None = None,
    **others: Any,
) -> ModelParts:
    """Return the parameters of a model's layers.

    Args:
        name: The model's name in metrics.
        config: The model's entry under `models`.
        metrics: Counts batches and cache lookups.
        tracing: Makes spans of merged calls; None for no spans.
        **others: Other fields of `ModelParts`.
    """
    batching, cache = config.batching, config.cache
    rules = None
    if batching is not None:
        rules = BatchRules(
            max_batch_size=batching.max_batch_size,
            max_delay_s=batching.max_delay,
            max_bytes=batching.max_bytes,
            preferred_sizes=batching.preferred_sizes,
            in_flight=batching.in_flight or _default_in_flight(name, config),
            apart=apart_by(batching.apart),
        )
    return ModelParts(
        rules=rules,
        batch_meter=None if batching is None else metrics.sharing.batches(name),
        cache=cache,
        cache_meter=None if cache is None else metrics.sharing.cache(name),
        batch=Batch if tracing is None else tracing.batch,
        **others,
    )


def _default_in_flight(name: str, config: ModelConfig) -> int:
    """Return how many batches to send to a model at a time."""
    if config.backend is None:
        return _UPSTREAM_IN_FLIGHT  # one running, and one on the network
    return ModelSpec(name=name, options=config.options).integer("instances", 1)


def share_upstream_calls(
    service: Service,
    config: UpstreamConfig,
    models: Mapping[str, ModelConfig],
    metrics: Metrics,
    tracing: Tracing | None = None,
) -> Service:
    """Wrap the *service* of an upstream in the batch queues and caches of its *models*.

    The upstream may read forwarded headers, so `ForwardHeaders` runs before the batch and the
    cache: only calls with equal forwarded headers share a batch or a cached reply.
    """
    forward: tuple[tuple[str, ...], Mapping[str, str], str | None] = (
        tuple(config.forward_headers),
        {},
        config.client_header,
    )
    services = {
        name: build_chain(
            "upstream model", service, model_parts(name, model, metrics, tracing, forward=forward)
        )
        for name, model in models.items()
        if model.backend is None and is_shared(model)
    }
    return PerModelService(service, services) if services else service


class PerModelService:
    """Sends each call to the service of its model.

    Args:
        inner: Handles the calls of all other models.
        services: The services, by model name.
    """

    def __init__(self, inner: Service, services: Mapping[str, Service]) -> None:
        self._inner = inner
        self._services = dict(services)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call the service of the call's model."""
        model = call.model
        service = None if model is None else self._services.get(model.name)
        return (service or self._inner)(call)
