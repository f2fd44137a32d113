"""Batching and caching of a model's calls, as its entry under `models` in YAML configures them.

`gateway.app.layers` decides the order of the layers. Both are inside `Complete`, so shapes are
complete and tensors have names in every protocol. Both are outside the endpoints of an upstream, so
a batch goes to one endpoint.

With `batching` or `cache`, the calls of a model pass these layers:

    policies/forward_headers: only calls with the same headers share
    policies/classify, complete: complete shapes and named tensors, whatever the caller's protocol
    policies/batch/normalize: a request for all outputs by name is a request for all outputs
    policies/cache: stored replies by content; one call for identical concurrent requests
    policies/batch/policy: rows of several callers in one call; each gets views of the reply
    the model, or the upstream with its endpoints

Batching is below `complete`, because only complete shapes have a known batch axis. It is above the
endpoints, so one endpoint gets the whole batch. If the model rejects a batch, its halves are sent
separately. A caller that leaves takes only its own rows with it. Cached replies are copies, because
a view would keep a whole message in memory.
"""

from collections.abc import Mapping
from typing import TypeVar

from gateway.api.model_spec import ModelSpec
from gateway.app.build.chain_context import ChainContext
from gateway.app.chains.tracing import Spans, Tracing
from gateway.app.layers import SHARED_MODEL, build_chain
from gateway.config.models import ModelConfig
from gateway.ir.calls import Call
from gateway.policies.batch.layers import BatchQueues, is_shared
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

_UPSTREAM_IN_FLIGHT = 2


def batch_queues(name: str, config: ModelConfig, tracing: Tracing | None) -> BatchQueues:
    """Return how the batches of a model are sent.

    Args:
        name: The name of the model.
        config: Its entry under `models`.
        tracing: Makes spans of merged calls; None for no spans.
    """
    in_flight = _default_in_flight(name, config)
    return BatchQueues(in_flight) if tracing is None else BatchQueues(in_flight, tracing.batch)


def _default_in_flight(name: str, config: ModelConfig) -> int:
    """Return how many batches to send to a model at a time."""
    if config.backend is None:
        return _UPSTREAM_IN_FLIGHT  # one running, and one on the network
    return ModelSpec(name=name, options=config.options).integer("instances", 1)


def shared_models(models: Mapping[str, ModelConfig]) -> dict[str, ModelConfig]:
    """Return the entries under `models` of upstreams' models with a batch queue or a cache."""
    return {
        name: model for name, model in models.items() if model.backend is None and is_shared(model)
    }


def shared_model(name: str, model: ModelConfig, service: Service, at: ChainContext) -> Service:
    """Wrap the *service* of an upstream in the batch queue and the cache of a model.

    The upstream may read forwarded headers, so `ForwardHeaders` runs before the batch and the
    cache: only calls with equal forwarded headers share a batch or a cached reply.

    Args:
        name: The name of the model at the upstream.
        model: Its entry under `models`.
        service: The upstream.
        at: The upstream, and what its layers may use.
    """
    queues = batch_queues(name, model, at.part(Spans).tracing)
    inside = at.inside(name, "model", model).with_parts(queues)
    return build_chain(SHARED_MODEL, service, inside)


class PerModelService:
    """Sends each call to the service of its model.

    Args:
        inner: Handles the calls of all other models.
        services: The services, by model name.
    """

    def __init__(self, inner: Service, services: Mapping[str, Service]) -> None:
        self._inner = inner
        self._services = services

    def replace(self, services: Mapping[str, Service]) -> None:
        """Use other *services* from the next call on; those of calls in progress stay."""
        self._services = services

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call the service of the call's model."""
        model = call.model
        service = None if model is None else self._services.get(model.name)
        return (service or self._inner)(call)
