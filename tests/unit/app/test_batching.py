"""Batching and caching of models, built from the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.app.build.batching import (
    PerModelService,
    batch_queues,
    shared_model,
    shared_models,
)
from gateway.app.build.chain_context import NO_CONTEXT, ChainContext, Keep, Sections
from gateway.app.build.models import build_models
from gateway.app.layers import build_chain
from gateway.config.load import load_text
from gateway.config.models import ModelConfig
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelMetadataRequest,
    ServerLiveRequest,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy
from gateway.policies.batch.layers import is_shared
from gateway.policies.reject_sequences import ModelProcesses
from gateway.policies.signatures import DescribedModels
from gateway.service import Service
from gateway.telemetry.metrics import Metrics
from tests.fakes import ScriptedService, settle
from tests.sections import config_of, model_context, model_of

BATCHES = ModelMetadata(
    name="m",
    inputs=(TensorMetadata("x", Datatype.INT32, (-1, 1)),),
    outputs=(TensorMetadata("y", Datatype.INT32, (-1, 1)),),
    max_batch_size=2,
)
LATE = {"max_delay": "5s"}
BATCHED = model_of(batching=LATE)


def ints(name: str, *values: int) -> Tensor:
    return array_tensor(name, np.array(values, np.int32).reshape(-1, 1))


def infer_request(model: str, value: int, **context: Any) -> InferRequest:
    return InferRequest(
        model=ModelRef(model), inputs=(ints("x", value),), context=Context(**context)
    )


def reply_to(call: Any) -> Any:
    if isinstance(call, ModelMetadataRequest):
        return BATCHES
    if isinstance(call, ModelConfigRequest):
        raise Unsupported("no configuration")
    doubled = array_tensor("y", 2 * as_numpy(call.inputs[0]))
    return InferResponse(model=call.model, outputs=(doubled,))


def values(reply: InferResponse) -> list[int]:
    found: list[int] = as_numpy(reply.outputs[0]).reshape(-1).tolist()
    return found


def inferences(target: ScriptedService) -> list[Any]:
    return [call for call in target.calls if isinstance(call, InferRequest)]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("test")


def upstream(target: Service, metrics: Metrics, **models: ModelConfig) -> Service:
    keys = {"url": "grpc://h:1", "forward_headers": ["x-tenant"]}
    config = config_of(upstreams={"u": keys}).upstreams["u"]
    at = ChainContext(
        name="u", sections={"upstream": config}, parts=NO_CONTEXT.parts, metrics=metrics
    )
    services = {
        name: shared_model(name, model, target, at) for name, model in shared_models(models).items()
    }
    return PerModelService(target, services)


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


# --- an upstream's models ---


def test_models_without_sharing_add_no_layer() -> None:
    """Models without batching or cache, or of the gateway itself, add none to an upstream."""
    assert not is_shared(ModelConfig())
    own = model_of(backend="python", cache={})
    assert {} == shared_models({"a": ModelConfig(), "b": own})


async def test_calls_of_an_upstream_model_are_batched(metrics: Metrics) -> None:
    """Requests for the configured model are one call; others are sent unchanged."""
    target = ScriptedService(always=reply_to)
    service = upstream(target, metrics, m=BATCHED)
    replies = await asyncio.gather(*[service(infer_request("m", value)) for value in (1, 2)])
    assert [[2], [4]] == [values(reply) for reply in replies]
    assert [(2, 1)] == [call.inputs[0].shape for call in inferences(target)]
    await asyncio.gather(*[service(infer_request("n", value)) for value in (1, 2)])
    assert 3 == len(inferences(target))
    assert 2 == sample(metrics, "gateway_batch_rows_sum", model="m")
    assert 2 == sample(metrics, "gateway_batch_requests_sum", model="m")
    assert 2 == sample(metrics, "gateway_batch_wait_seconds_count", model="m")
    assert 0 == sample(metrics, "gateway_batch_refused_total", model="m")


async def test_forwarded_headers_separate_batches(metrics: Metrics) -> None:
    """Only headers that the upstream receives separate calls; others are not forwarded."""
    target = ScriptedService(always=reply_to)
    # In so long a time, all three begin on a slow machine, too.
    service = upstream(target, metrics, m=model_of(batching={"max_delay": "500ms"}))
    calls = [
        infer_request("m", 1, metadata=(("x-tenant", "a"), ("user-agent", "1")), request_id="r1"),
        infer_request("m", 2, metadata=(("x-tenant", "a"), ("user-agent", "2")), request_id="r2"),
        infer_request("m", 3, metadata=(("x-tenant", "b"),)),
    ]
    await asyncio.gather(*map(service, calls))
    seen = {dict(call.context.metadata)["x-tenant"]: call for call in inferences(target)}
    assert {"a": (2, 1), "b": (1, 1)} == {
        tenant: call.inputs[0].shape for tenant, call in seen.items()
    }
    context = seen["a"].context
    assert ((("x-tenant", "a"),), "r1") == (context.metadata, context.request_id)


async def test_cached_replies_are_separated_by_forwarded_headers(metrics: Metrics) -> None:
    """A cached reply serves only callers with the same forwarded headers."""
    target = ScriptedService(always=reply_to)
    service = upstream(target, metrics, m=model_of(cache={}))
    for tenant in ("a", "b", "a"):
        await service(infer_request("m", 1, metadata=(("x-tenant", tenant),)))
    assert 2 == len(inferences(target))
    assert 1 == sample(metrics, "gateway_cache_lookups_total", model="m", outcome="hit")
    assert 2 == sample(metrics, "gateway_cache_lookups_total", model="m", outcome="miss")
    assert 2 == sample(metrics, "gateway_cache_entries", model="m")
    assert 2 * 1028 == sample(metrics, "gateway_cache_bytes", model="m")


async def test_cached_replies_bypass_the_batch(metrics: Metrics) -> None:
    """The cache is checked first; only misses are batched."""
    target = ScriptedService(always=reply_to)
    config = model_of(cache={"max_bytes": 1028}, batching=LATE)
    service = upstream(target, metrics, m=config)
    await asyncio.gather(*[service(infer_request("m", value)) for value in (1, 2)])
    assert [4] == values(await service(infer_request("m", 2)))
    assert 1 == len(inferences(target))
    dropped = "gateway_cache_dropped_total"
    assert 1 == sample(metrics, dropped, model="m", reason="evicted")


async def test_calls_of_different_protocols_share_a_batch(metrics: Metrics) -> None:
    """One call has a separate batch size, the other one has it in its shapes."""
    target = ScriptedService(always=reply_to)
    service = upstream(target, metrics, m=BATCHED)
    separate = infer_request("m", 1, needs=frozenset({Need.BATCHING})).changed(
        inputs=(Tensor("x", None, None, ints("x", 1).data),), batch_size=1
    )
    one, two = await asyncio.gather(service(separate), service(infer_request("m", 2)))
    assert [(1, (1,)), (None, (1, 1))] == [
        (reply.batch_size, reply.outputs[0].shape) for reply in (one, two)
    ]
    assert ([2], [4]) == (values(one), values(two))
    assert 1 == len(inferences(target))


async def test_server_calls_reach_the_upstream() -> None:
    """A call without a model is passed to the upstream itself."""
    assert await PerModelService(ScriptedService(True), {})(ServerLiveRequest())


# --- models of the gateway's own ---

OWN = """version: 1
listeners: [{http: 8000}]
models:
  simple:
    backend: python
    options: {callable: "gateway.backends.examples:simple", max_batch_size: 2}
    %s
"""


@asynccontextmanager
async def own(text: str, metrics: Metrics) -> AsyncIterator[Service]:
    def at(name: str, sections: Sections, keep: Keep) -> ChainContext:
        return ChainContext(
            name=name, sections=sections, keep=keep, parts=NO_CONTEXT.parts, metrics=metrics
        )

    models = build_models(load_text(OWN % text).config, Path(), at=at)
    await models.load()
    try:
        yield models.targets["simple"].service
    finally:
        await models.close()


def pair(value: int, **context: Any) -> InferRequest:
    array = np.full((1, 16), value, np.int32)
    inputs = (array_tensor("INPUT0", array), array_tensor("INPUT1", array))
    return InferRequest(model=ModelRef("simple"), inputs=inputs, context=Context(**context))


async def test_calls_of_a_local_model_are_batched(metrics: Metrics) -> None:
    """The model runs once, whatever the headers of the callers."""
    async with own("batching: {max_delay: 5s}", metrics) as service:
        calls = [service(pair(n, metadata=(("user-agent", str(n)),))) for n in (1, 2)]
        replies = await asyncio.gather(*calls)
    assert [[2] * 16, [4] * 16] == [values(reply) for reply in replies]
    assert 1 == sample(metrics, "gateway_batch_rows_count", model="simple")


async def test_replies_of_a_local_model_are_cached(metrics: Metrics) -> None:
    """A repeated request of another client is a cache hit."""
    async with own("cache: {max_age: 1m}", metrics) as service:
        for agent in ("one", "two"):
            found = await service(pair(3, metadata=(("user-agent", agent),)))
            assert [6] * 16 == values(found)
    assert 1 == sample(metrics, "gateway_cache_lookups_total", model="simple", outcome="hit")


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("backend: python\n    options: {instances: 3}\n    batching: {max_delay: 0s}", 3),
        ("backend: python\n    batching: {max_delay: 0s}", 1),
        (
            "backend: python\n    options: {instances: 3}\n    batching: {max_delay: 0s, in_flight: 5}",
            5,
        ),
        ("batching: {max_delay: 0s}", 2),
    ],
)
async def test_batches_in_flight_are_limited(text: str, calls: int, metrics: Metrics) -> None:
    """The limit is the number of instances, two for an upstream, or the configured one."""
    header = "version: 1\nlisteners: [{http: 8000}]\nmodels:\n  m:\n    "
    config = load_text(header + text).config.models["m"]
    waiting = asyncio.Event()
    seen = 0

    async def target(call: Any, /) -> Any:
        nonlocal seen
        if isinstance(call, InferRequest):
            seen += 1
            await waiting.wait()
        return reply_to(call)

    parts = (batch_queues("m", config, None), ModelProcesses(), DescribedModels())
    service = build_chain("model", target, model_context("m", config, metrics).with_parts(*parts))
    # Requests of other priorities are other batches.
    requests = [infer_request("m", value).changed(priority=value) for value in range(8)]
    tasks = [asyncio.ensure_future(service(request)) for request in requests]
    await settle()
    await settle()  # questions about the model come first
    assert calls == seen
    waiting.set()
    await asyncio.gather(*tasks)
