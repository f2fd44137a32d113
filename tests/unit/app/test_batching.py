"""Models whose callers share calls, built as the configuration says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.app.batching import (
    PerModelService,
    is_shared,
    model_parts,
    share_upstream_calls,
)
from gateway.app.layers import build_chain
from gateway.app.models import build_models
from gateway.config.load import load_text
from gateway.config.models import BatchingConfig, CacheConfig, ModelConfig, UpstreamConfig
from gateway.config.units import parse_url
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelMetadataRequest,
    ServerLiveRequest,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import Tensor, array_tensor, as_numpy
from gateway.service import Service
from gateway.telemetry.metrics import Metrics
from tests.fakes import ScriptedService, settle

BATCHES = ModelMetadata(
    name="m",
    inputs=(TensorMetadata("x", Datatype.INT32, (-1, 1)),),
    outputs=(TensorMetadata("y", Datatype.INT32, (-1, 1)),),
    max_batch_size=2,
)
BATCHED = ModelConfig(batching=BatchingConfig(max_delay=5.0))


def ints(name: str, *values: int) -> Tensor:
    return array_tensor(name, np.array(values, np.int32).reshape(-1, 1))


def ask(model: str, value: int, **context: Any) -> InferRequest:
    return InferRequest(
        model=ModelRef(model), inputs=(ints("x", value),), context=Context(**context)
    )


def answer(call: Any) -> Any:
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
    config = UpstreamConfig(url=parse_url("grpc://h:1"), forward_headers=("x-tenant",))
    return share_upstream_calls(target, config, models, metrics)


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


# --- an upstream's models ---


def test_nothing_to_share_is_no_layer(metrics: Metrics) -> None:
    """Models that say nothing of it, or run in the gateway, leave an upstream as it is."""
    target = ScriptedService()
    assert not is_shared(ModelConfig())
    assert target is upstream(
        target, metrics, a=ModelConfig(), b=ModelConfig(backend="python", cache=CacheConfig())
    )


async def test_callers_of_an_upstreams_model_share_a_call(metrics: Metrics) -> None:
    """Requests for the model by its name are one call; others go as they come."""
    target = ScriptedService(always=answer)
    service = upstream(target, metrics, m=BATCHED)
    replies = await asyncio.gather(*[service(ask("m", value)) for value in (1, 2)])
    assert [[2], [4]] == [values(reply) for reply in replies]
    assert [(2, 1)] == [call.inputs[0].shape for call in inferences(target)]
    await asyncio.gather(*[service(ask("n", value)) for value in (1, 2)])
    assert 3 == len(inferences(target))
    assert 2 == sample(metrics, "gateway_batch_rows_sum", model="m")
    assert 2 == sample(metrics, "gateway_batch_requests_sum", model="m")
    assert 2 == sample(metrics, "gateway_batch_wait_seconds_count", model="m")
    assert 0 == sample(metrics, "gateway_batch_refused_total", model="m")


async def test_what_crosses_keeps_calls_apart(metrics: Metrics) -> None:
    """Headers that the upstream sees are in the joined call; others neither cross nor matter."""
    target = ScriptedService(always=answer)
    service = upstream(target, metrics, m=ModelConfig(batching=BatchingConfig(max_delay=0.05)))
    calls = [
        ask("m", 1, metadata=(("x-tenant", "a"), ("user-agent", "1")), request_id="r1"),
        ask("m", 2, metadata=(("x-tenant", "a"), ("user-agent", "2")), request_id="r2"),
        ask("m", 3, metadata=(("x-tenant", "b"),)),
    ]
    await asyncio.gather(*map(service, calls))
    seen = {dict(call.context.metadata)["x-tenant"]: call for call in inferences(target)}
    assert {"a": (2, 1), "b": (1, 1)} == {
        tenant: call.inputs[0].shape for tenant, call in seen.items()
    }
    context = seen["a"].context
    assert ((("x-tenant", "a"),), "r1") == (context.metadata, context.request_id)


async def test_one_tenant_does_not_get_anothers_answer(metrics: Metrics) -> None:
    """A kept answer is for callers with the same headers that cross."""
    target = ScriptedService(always=answer)
    service = upstream(target, metrics, m=ModelConfig(cache=CacheConfig()))
    for tenant in ("a", "b", "a"):
        await service(ask("m", 1, metadata=(("x-tenant", tenant),)))
    assert 2 == len(inferences(target))
    assert 1 == sample(metrics, "gateway_cache_lookups_total", model="m", outcome="hit")
    assert 2 == sample(metrics, "gateway_cache_lookups_total", model="m", outcome="miss")
    assert 2 == sample(metrics, "gateway_cache_entries", model="m")
    assert 2 * 1028 == sample(metrics, "gateway_cache_bytes", model="m")


async def test_what_is_answered_from_memory_is_in_no_batch(metrics: Metrics) -> None:
    """The cache is asked first; what it lacks goes in batches."""
    target = ScriptedService(always=answer)
    config = ModelConfig(cache=CacheConfig(max_bytes=1028), batching=BATCHED.batching)
    service = upstream(target, metrics, m=config)
    await asyncio.gather(*[service(ask("m", value)) for value in (1, 2)])
    assert [4] == values(await service(ask("m", 2)))
    assert 1 == len(inferences(target))
    dropped = "gateway_cache_dropped_total"
    assert 1 == sample(metrics, dropped, model="m", reason="evicted")


async def test_protocols_meet_in_a_batch(metrics: Metrics) -> None:
    """A caller whose protocol keeps the batch size apart shares a call with one that does not."""
    target = ScriptedService(always=answer)
    service = upstream(target, metrics, m=BATCHED)
    apart = ask("m", 1, needs=frozenset({Need.BATCHING})).changed(
        inputs=(Tensor("x", None, None, ints("x", 1).data),), batch_size=1
    )
    one, two = await asyncio.gather(service(apart), service(ask("m", 2)))
    assert [(1, (1,)), (None, (1, 1))] == [
        (reply.batch_size, reply.outputs[0].shape) for reply in (one, two)
    ]
    assert ([2], [4]) == (values(one), values(two))
    assert 1 == len(inferences(target))


async def test_questions_to_the_server_pass() -> None:
    """A call about no model goes to the upstream itself."""
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
    models = build_models(load_text(OWN % text).config, Path(), metrics)
    await models.load()
    try:
        yield models.targets["simple"].service
    finally:
        await models.close()


def pair(value: int, **context: Any) -> InferRequest:
    array = np.full((1, 16), value, np.int32)
    inputs = (array_tensor("INPUT0", array), array_tensor("INPUT1", array))
    return InferRequest(model=ModelRef("simple"), inputs=inputs, context=Context(**context))


async def test_callers_of_an_own_model_share_a_call(metrics: Metrics) -> None:
    """The model runs once, and headers of callers do not matter to it."""
    async with own("batching: {max_delay: 5s}", metrics) as service:
        calls = [service(pair(n, metadata=(("user-agent", str(n)),))) for n in (1, 2)]
        replies = await asyncio.gather(*calls)
    assert [[2] * 16, [4] * 16] == [values(reply) for reply in replies]
    assert 1 == sample(metrics, "gateway_batch_rows_count", model="simple")


async def test_answers_of_an_own_model_are_kept(metrics: Metrics) -> None:
    """The same request is answered once, whoever asks."""
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
async def test_calls_in_hand(text: str, calls: int, metrics: Metrics) -> None:
    """As many as the model has instances, two at an upstream, or what the file says."""
    header = "version: 1\nlisteners: [{http: 8000}]\nmodels:\n  m:\n    "
    config = load_text(header + text).config.models["m"]
    waiting = asyncio.Event()
    seen = 0

    async def target(call: Any, /) -> Any:
        nonlocal seen
        if isinstance(call, InferRequest):
            seen += 1
            await waiting.wait()
        return answer(call)

    service = build_chain("model in process", target, model_parts("m", config, metrics))
    # Requests of other priorities are other batches.
    requests = [ask("m", value).changed(priority=value) for value in range(8)]
    tasks = [asyncio.ensure_future(service(request)) for request in requests]
    await settle()
    await settle()  # questions about the model come first
    assert calls == seen
    waiting.set()
    await asyncio.gather(*tasks)
