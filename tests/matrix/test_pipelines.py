"""A pipeline called in every protocol, and one whose steps call every protocol: numpy's result.

The pipeline has two steps one after the other and one beside them, and a model of text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import numpy as np
import pytest

from gateway.backends.python import PythonBackend
from gateway.backends.versions import Versions
from gateway.frontend.frontend import Frontend
from gateway.ir.calls import Call
from gateway.ir.context import ModelRef
from gateway.ir.tensors.datatypes import Datatype
from gateway.model_info.metadata_cache import MetadataCache
from gateway.pipelines.graph import Graph, Step, parse_source
from gateway.pipelines.pipeline import Pipeline
from gateway.pipelines.signature_cache import SignatureCache
from gateway.policies.complete.policy import Complete
from gateway.policies.forward_headers import ForwardHeaders
from gateway.upstream import Upstream
from tests.matrix.clients import CLIENTS, WHOLE, Array, Client, OipGrpc
from tests.memory_client import grpc_memory, http_memory, stream_memory
from tests.properties.carries import WAYS, Carries
from tests.properties.chains import Told
from tests.properties.registered import REGISTERED

R = TypeVar("R")

_MEMORY: dict[str, Any] = {"http": http_memory, "grpc": grpc_memory, "stream": stream_memory}
_EXAMPLES = "gateway.backends.examples"


class ByModel:
    """Passes the call of a step to its model."""

    def __init__(self, models: Mapping[str, Any]) -> None:
        self._models = models

    async def __call__(self, call: Call[R], /) -> R:
        """Return the model's reply."""
        assert call.model is not None
        reply: R = await self._models[call.model.name](call)
        return reply


def graph(name: str, model: str, text: str) -> Graph:
    """Return the graph of a pipeline whose steps call *model*, and one step for text."""

    def step(step_name: str, model_name: str, first: str, second: str) -> Step:
        inputs = {"INPUT0": parse_source(first), "INPUT1": parse_source(second)}
        return Step(step_name, ModelRef(model_name), inputs)

    steps = [
        step("second", model, "first.OUTPUT0", "first.OUTPUT1"),
        step("first", model, "request.a", "request.b"),
        step("beside", model, "request.b", "request.a"),
        step("text", text, "request.t", "request.t"),
    ]
    outputs = {
        "twice_a": "second.OUTPUT0",
        "twice_b": "second.OUTPUT1",
        "difference": "beside.OUTPUT1",
        "twice_t": "text.OUTPUT0",
    }
    return Graph(name, "1", steps, {key: parse_source(text) for key, text in outputs.items()})


@asynccontextmanager
async def step_target(way: Carries | None, name: str, source: str) -> AsyncIterator[Any]:
    """Yield the Python model *source* as a step's target: behind an upstream, or in process."""
    versions = Versions(name, [PythonBackend(name, f"{_EXAMPLES}:{source}")])
    await versions.start()
    try:
        if way is None:
            yield Complete(versions, WHOLE)
        else:
            there = way.registered
            frontend = Frontend(there.make(way.listener), Told(Complete(versions, WHOLE)))
            codec = there.make(way.upstream)
            upstream = Upstream("behind", codec, _MEMORY[there.carrier](frontend))
            yield ForwardHeaders(Complete(upstream, codec.needs), (), {})
    finally:
        await versions.stop()


@asynccontextmanager
async def pipeline(client: Client, way: Carries | None) -> AsyncIterator[Any]:
    """Yield a transport to a gateway that serves a pipeline, whose steps are called in *way*."""
    fixed = None if way is None else way.model
    model, text = (fixed.name, "text") if fixed is not None else ("simple", "text")
    name = "pipeline" if client.model is None else client.model.name
    async with AsyncExitStack() as stack:
        # Where messages name no model, the upstream has only one: text runs in process.
        there = {
            model: await stack.enter_async_context(step_target(way, model, "simple")),
            text: await stack.enter_async_context(
                step_target(None if fixed is not None else way, text, "simple_string")
            ),
        }
        inner = ByModel(there)
        parts = graph(name, model, text)
        service = Pipeline(parts, inner, SignatureCache(parts, MetadataCache(inner)))
        here = REGISTERED[client.codec]
        frontend = Frontend(here.make(client.listener), Told(Complete(service, WHOLE)))
        yield _MEMORY[here.carrier](frontend)


def texts(numbers: Array) -> Array:
    found = np.empty(numbers.shape, object)
    for index, number in np.ndenumerate(numbers):
        found[index] = str(number).encode()
    return found


async def check(client: Client, way: Carries | None) -> None:
    rng = np.random.default_rng(0)
    async with pipeline(client, way) as transport:
        for batch in (1, 3):
            a, b = rng.integers(-(2**28), 2**28, (2, batch, 16), "<i4")
            found = await client.infer(
                transport,
                client.model or ModelRef("pipeline"),
                {
                    "a": (Datatype.INT32, a),
                    "b": (Datatype.INT32, b),
                    "t": (Datatype.BYTES, texts(a)),
                },
            )
            expected = {
                "twice_a": 2 * a,
                "twice_b": 2 * b,
                "difference": b - a,
                "twice_t": texts(2 * a.astype(np.int64)),
            }
            assert list(expected) == list(found)
            for name, array in expected.items():
                assert (name, array.tolist()) == (name, found[name].tolist())


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_a_pipeline_serves_every_protocol(client: Client) -> None:
    """A client of any protocol gets the sums that numpy computes."""
    await check(client, None)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
async def test_steps_call_upstreams_of_every_protocol(way: Carries) -> None:
    """A step can call a model behind an upstream of any protocol."""
    await check(OipGrpc("oip.grpc-raw", typed=False), way)
