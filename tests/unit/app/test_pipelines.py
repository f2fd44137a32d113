"""Pipelines in a whole gateway: routes of steps, metrics, and limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from gateway.app import Gateway, StartError
from gateway.app.build.pipelines import StepRouter
from gateway.config.load import load_text
from gateway.ir.calls import (
    InferRequest,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerStatusRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import DeadlineExceeded, Overloaded, Unavailable, Unsupported, UpstreamError
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy
from tests.integration.http_kit import eventually
from tests.unit.app.waiting_models import RUNNING

HEAD = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
  simple_string: {backend: python, options: {callable: "gateway.backends.examples:simple_string"}}
  wait: {backend: python, options: {callable: "tests.unit.app.waiting_models:wait", instances: 4}}
  fail: {backend: python, options: {callable: "gateway.backends.examples:fail"}}
"""

SUMS = """
pipelines:
  sums:
    steps:
      first: {model: simple, inputs: {INPUT0: request.a, INPUT1: request.b}}
      second: {model: simple, inputs: {INPUT0: first.OUTPUT0, INPUT1: first.OUTPUT1}}
    outputs: {a: second.OUTPUT0, b: second.OUTPUT1}
"""

A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.ones((1, 16), np.int32)
INPUTS = (array_tensor("a", A), array_tensor("b", B))


@asynccontextmanager
async def gateway(text: str) -> AsyncIterator[Gateway]:
    started = Gateway(load_text(HEAD + text))
    await started.start()
    try:
        yield started
    finally:
        await started.stop()


def call(model: str, *inputs: Tensor, **context: Any) -> InferRequest:
    return InferRequest(
        model=ModelRef(model),
        inputs=inputs or INPUTS,
        context=Context(protocol="oip.http", **context),
    )


def counted(one: Gateway, name: str) -> dict[str, float]:
    """Return the samples of a metric, by their labels."""
    page, _ = one.metrics.page("")
    lines = [line for line in page.decode().splitlines() if line.startswith(f"{name}{{")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def test_a_pipeline_behaves_like_a_model() -> None:
    """Inference, metadata, configuration, readiness, index and status work as for a model."""
    ref = ModelRef("sums")
    async with gateway(SUMS) as one:
        reply = await one.service(call("sums"))
        assert ({"a": (2 * A).tolist(), "b": (2 * B).tolist()}, ModelRef("sums", "1")) == (
            {tensor.name: as_numpy(tensor).tolist() for tensor in reply.outputs},
            reply.model,
        )
        metadata = await one.service(ModelMetadataRequest(model=ref))
        assert (("1",), "pipeline", ["a", "b"]) == (
            metadata.versions,
            metadata.platform,
            [tensor.name for tensor in metadata.inputs],
        )
        configuration = await one.service(ModelConfigRequest(model=ref))
        assert "sums" == configuration.document["name"]
        assert await one.service(ModelReadyRequest(model=ref)) is True
        entry = RepositoryEntry("sums", "1", ModelState.READY)
        assert entry in await one.service(RepositoryIndexRequest())
        status = await one.service(ServerStatusRequest(about=ref))
        assert [(entry,)] == [found.entries for found in status.models]


async def test_steps_are_not_counted_as_client_calls() -> None:
    """One client call is one log line and one count, with its own route and target."""
    async with gateway(SUMS) as one:
        with capture_logs() as logs:
            await one.service(call("sums"))
            await one.service(ModelReadyRequest(model=ModelRef("sums")))
        lines = [(line["model"], line["route"], line["target"]) for line in logs]
        assert [("sums", "sums", "local/sums")] == lines
        requests = counted(one, "gateway_requests_total")
        assert all('model="sums"' in labels for labels in requests)
        assert {1.0} == set(requests.values())
        assert {
            "gateway_pipeline_step_duration_seconds_count"
            f'{{code="ok",pipeline="sums",step="{step}"}}': 1.0
            for step in ("first", "second")
        } == counted(one, "gateway_pipeline_step_duration_seconds_count")


ROUTED = (
    SUMS
    + """
routes:
  - {name: front, match: {model: sums}, targets: [{model: sums}], in_flight: 1}
  - {name: back, match: {model: simple}, targets: [{model: simple}], in_flight: 1}
"""
)


async def test_a_route_with_in_flight_1_does_not_deadlock() -> None:
    """A pipeline holds the limit of its route while its steps acquire those of theirs."""
    async with gateway(ROUTED) as one:
        replies = await asyncio.gather(*(one.service(call("sums")) for _ in range(8)))
        assert [(2 * A).tolist()] * 8 == [as_numpy(r.outputs[0]).tolist() for r in replies]


SLOW = """
pipelines:
  waits:
    steps:
      one: {model: wait, inputs: {x: request.x}}
      other: {model: wait, inputs: {x: request.x}}
    outputs: {one: one.y, other: other.y}
  doomed:
    steps:
      wait: {inputs: {x: request.x}}
      fail: {inputs: {INPUT0: request.x}}
    outputs: {one: wait.y, other: fail.OUTPUT0}
"""


X = array_tensor("x", np.zeros((1,), np.int32))


async def test_the_client_deadline_applies_to_all_steps() -> None:
    """The deadline ends the steps and cancels their models."""
    async with gateway(SLOW) as one:
        loop = asyncio.get_running_loop()
        request = call("waits", X, deadline=loop.time() + 0.1)
        with pytest.raises(DeadlineExceeded):
            await one.service(request)
        await eventually(lambda: not RUNNING)


async def test_a_failing_step_cancels_the_others() -> None:
    """The error names the step and its model."""
    async with gateway(SLOW) as one:
        with capture_logs(), pytest.raises(UpstreamError) as caught:
            await one.service(call("doomed", X))
        assert caught.value.message.startswith(
            "pipeline 'doomed', step 'fail' (model 'fail'): model 'fail version 1' failed: "
        )
        await eventually(lambda: not RUNNING)


BUSY = (
    SLOW.replace("doomed:", "unused:")
    + """
policies: {queue_wait: 10ms, queued: 0}
routes:
  - {match: {model: waits}, targets: [{model: waits}]}
  - {name: back, match: {model: wait}, targets: [{model: wait}], in_flight: 1}
"""
)


async def test_steps_obey_the_limits_of_their_routes() -> None:
    """A step beyond the limit is rejected as overloaded, with its name in the error."""
    async with gateway(BUSY) as one:
        with pytest.raises(
            Overloaded, match=r"step 'other' \(model 'wait'\): route 'back' is overloaded"
        ):
            await one.service(call("waits", X))


async def test_mismatched_models_prevent_the_start() -> None:
    """Models of the gateway are checked against the pipeline at start."""
    text = SUMS.replace("second: {model: simple,", "second: {model: simple_string,")
    message = (
        r"the models of pipeline 'sums' do not match: step 'second' \(model 'simple_string'\) needs "
        r"input 'INPUT0' as BYTES \[-1, 16\], 'first.OUTPUT0' is INT32 \[-1, 16\]"
    )
    with pytest.raises(StartError, match=message):
        async with gateway(text):
            pass
    text = SUMS.replace(
        "inputs: {INPUT0: request.a, INPUT1: request.b}", "inputs: {INPUT0: request.a}"
    )
    with pytest.raises(StartError, match=r"step 'first' .* needs input 'INPUT1'"):
        async with gateway(text):
            pass


FAR = (
    SUMS
    + """
upstreams: {far: {url: "grpc://127.0.0.1:1", probe: {interval: 60s}}}
routes:
  - {name: front, match: {model: sums}, targets: [{model: sums}]}
  - {name: back, match: {model: simple}, targets: [{upstream: far}]}
"""
)


async def test_a_pipeline_with_an_unreachable_upstream_is_not_ready() -> None:
    """The gateway starts, and calls fail with the step and the address."""
    with capture_logs() as logs:
        async with gateway(FAR) as one:
            assert await one.service(ModelReadyRequest(model=ModelRef("sums"))) is False
            assert RepositoryEntry("sums", "1", ModelState.UNAVAILABLE) in await one.service(
                RepositoryIndexRequest()
            )
            message = r"pipeline 'sums', step 'first' \(model 'simple'\): .*127.0.0.1:1"
            with pytest.raises(Unavailable, match=message):
                await one.service(call("sums"))
    assert "pipeline not checked" in [line["event"] for line in logs]


TEXTS = """
pipelines:
  texts:
    steps:
      only: {model: simple_string, inputs: {INPUT0: request.a, INPUT1: request.b}}
    outputs: {sum: only.OUTPUT0}
"""


async def test_pipelines_carry_bytes_tensors() -> None:
    """BYTES are tensors like all others."""
    async with gateway(TEXTS) as one:
        numbers = np.array([[str(n).encode() for n in range(16)]], object)
        inputs = (array_tensor("a", numbers), array_tensor("b", numbers))
        reply = await one.service(call("texts", *inputs))
        expected = [str(2 * n).encode() for n in range(16)]
        assert expected == [bytes(item) for item in as_items(reply.outputs[0])]


async def test_cancellation_reaches_the_models() -> None:
    """A cancelled call leaves no model running."""
    async with gateway(SLOW) as one:
        task = asyncio.ensure_future(one.service(call("waits", X)))
        await eventually(lambda: len(RUNNING) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not RUNNING)


async def test_pipelines_are_ready_when_their_models_are_loaded() -> None:
    """Models count whether steps reach them by a route or directly."""
    built = Gateway(load_text(HEAD + ROUTED))
    target = built._graph.pipelines.targets["sums"]
    assert not target.ready()
    await built.start()
    assert target.ready()
    await built.stop()
    direct = SUMS + "routes: [{match: {model: sums}, targets: [{model: sums}]}]\n"
    async with gateway(direct) as one:
        assert one._graph.pipelines.targets["sums"].ready()
        assert await one.ready()
        assert (2 * A).tolist() == as_numpy((await one.service(call("sums"))).outputs[0]).tolist()


async def test_steps_accept_only_calls_of_models() -> None:
    """An unbound router rejects calls, and the index of pipelines rejects inference."""
    with pytest.raises(Unsupported, match="the call of a pipeline step names no model"):
        await StepRouter()(call("sums"))
    built = Gateway(load_text(HEAD + SUMS))
    with pytest.raises(Unsupported, match="the index of pipelines does not support InferRequest"):
        await built._graph.pipelines.index(call("sums"))
