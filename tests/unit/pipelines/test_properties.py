"""Any graph of sums and differences has numpy's results, whatever the order of its steps."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.calls import Call, InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, array_tensor, as_numpy
from gateway.pipelines.graph import REQUEST, Graph, Source, Step
from gateway.pipelines.pipeline import Pipeline
from gateway.pipelines.signature_cache import SignatureCache

R = TypeVar("R")

A, B = np.array([1, -2, 3], np.int64), np.array([5, 7, -11], np.int64)
REQUEST_INPUTS = {Source(REQUEST, "a"): A, Source(REQUEST, "b"): B}


def _pair(first: str, second: str) -> tuple[TensorMetadata, TensorMetadata]:
    return (
        TensorMetadata(first, Datatype.INT64, (-1,)),
        TensorMetadata(second, Datatype.INT64, (-1,)),
    )


METADATA = ModelMetadata(name="m", inputs=_pair("l", "r"), outputs=_pair("sum", "difference"))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, tuple[str, ...]]:
    """Return a graph, in which steps stand in any order, and some of its outputs."""
    sources = list(REQUEST_INPUTS)
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 7))):
        name = f"s{number}"
        inputs = {key: draw(st.sampled_from(sources)) for key in ("l", "r")}
        steps.append(Step(name, ModelRef("m"), inputs))
        sources += [Source(name, "sum"), Source(name, "difference")]
    output_sources = draw(st.lists(st.sampled_from(sources), min_size=1, max_size=4))
    used = {source.step for step in steps for source in step.inputs.values()}
    used |= {source.step for source in output_sources}
    output_sources += [Source(step.name, "sum") for step in steps if step.name not in used]
    outputs = {f"o{number}": source for number, source in enumerate(output_sources)}
    output_names = draw(st.lists(st.sampled_from(sorted(outputs)), unique=True))
    return Graph("p", "1", draw(st.permutations(steps)), outputs), tuple(output_names)


class Sums:
    """Adds and subtracts, after a number of turns of the event loop."""

    def __init__(self, turns: list[int]) -> None:
        self._turns = turns
        self.call_count = 0

    async def __call__(self, call: Call[R], /) -> R:
        if isinstance(call, ModelMetadataRequest):
            return cast("R", METADATA)
        assert isinstance(call, InferRequest)
        assert call.model is not None
        turns = self._turns[self.call_count % len(self._turns)]
        self.call_count += 1
        for _ in range(turns):
            await asyncio.sleep(0)
        left, right = (as_numpy(tensor) for tensor in call.inputs)
        made = {"sum": left + right, "difference": left - right}
        outputs = tuple(array_tensor(one.name, made[one.name]) for one in call.outputs)
        return cast("R", InferResponse(model=call.model, outputs=outputs))


def numpy_result(graph: Graph, source: Source) -> Any:
    """Return the value of *source*, by numpy alone."""
    if source.step == REQUEST:
        return REQUEST_INPUTS[source]
    step = next(one for one in graph.steps if one.name == source.step)
    left, right = (numpy_result(graph, step.inputs[key]) for key in ("l", "r"))
    return left + right if source.tensor == "sum" else left - right


@given(graphs(), st.lists(st.integers(0, 5), min_size=1, max_size=7))
def test_any_graph_has_the_result_of_numpy(
    graph_and_outputs: tuple[Graph, tuple[str, ...]], turns: list[int]
) -> None:
    """Each output is right, and each required step is called once, and no other."""
    graph, output_names = graph_and_outputs
    inner = Sums(turns)

    async def infer() -> InferResponse:
        pipeline = Pipeline(graph, inner, SignatureCache(graph, inner))
        own = {"a": A, "b": B}
        return await pipeline(
            InferRequest(
                model=ModelRef("p"),
                inputs=tuple(array_tensor(name, own[name]) for name in graph.inputs),
                outputs=tuple(RequestedOutput(name) for name in output_names),
            )
        )

    reply = asyncio.run(infer())
    names = [name for name in graph.outputs if name in (output_names or graph.outputs)]
    assert names == [tensor.name for tensor in reply.outputs]
    for tensor in reply.outputs:
        expected = numpy_result(graph, graph.outputs[tensor.name])
        assert expected.tolist() == as_numpy(tensor).tolist()
    assert len(graph.required_steps(tuple(names))) == inner.call_count
