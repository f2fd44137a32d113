"""ServerCounts: what servers are asked, when, and what the process tells of its own models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.app.run.server_counts import ServerCounts
from gateway.config.load import load_text
from gateway.ir.calls import InferRequest, ModelConfigRequest, ModelStatisticsRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unavailable, Unsupported
from gateway.ir.metadata import ModelConfiguration
from gateway.ir.statistics import Duration, InferStatistics, ModelStatistics
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor
from gateway.telemetry.usage.model_counts import ModelCounts
from gateway.telemetry.usage.model_usage import Usage
from tests.fakes import FakeClock, ScriptedService

TEXT = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
models: {simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}}
telemetry: {metrics: {compat: [triton]}}
lifecycle: {pre_stop: 0s}
"""
FOUND = (
    ModelStatistics(
        name="m",
        version="2",
        inference_count=7,
        inference=InferStatistics(success=Duration(7, 7000), fail=Duration(3, 10)),
    ),
)
CONFIGURATION = ModelConfiguration(
    {"instance_group": [{"count": 2}], "response_cache": {"enable": True}}
)


class Server:
    """An endpoint whose server counts, until it replies with something else."""

    def __init__(self) -> None:
        self.statistics: Any = FOUND
        self.requests: list[type] = []

    async def __call__(self, call: Any, /) -> Any:
        self.requests.append(type(call))
        if isinstance(call, ModelConfigRequest):
            return CONFIGURATION
        if isinstance(self.statistics, Exception):
            raise self.statistics
        return self.statistics


class Behind:
    """A service graph with one upstream of one endpoint, and no models of its own."""

    def __init__(self, *, is_ready: bool = True, has_statistics: bool = True) -> None:
        self.questions = Server()
        metadata = SimpleNamespace() if has_statistics else None
        identity = SimpleNamespace(server=metadata, has_statistics=has_statistics)
        endpoint = SimpleNamespace(name="127.0.0.1:1", is_ready=is_ready)
        member = SimpleNamespace(identity=identity, endpoint=endpoint, questions=self.questions)
        self.upstreams: Any = {"t": SimpleNamespace(members=[member])}
        self.models: Any = SimpleNamespace(loadable={})
        self.server = ScriptedService(always=())
        self.config = load_text(
            "version: 1\nlisteners: [{http: ':1'}]\nupstreams: {t: {url: 'grpc://127.0.0.1:1'}}"
        ).config


def built(graph: Any) -> tuple[ServerCounts, FakeClock]:
    clock = FakeClock()
    return ServerCounts(lambda: graph, ModelCounts(Usage()), clock), clock


def values(rows: list[list[Any]], name: str) -> dict[tuple[str, ...], float]:
    return {tuple(key[1:]): value for *key, value in rows if key[0] == name}


async def test_statistics_are_requested_at_most_once_a_second() -> None:
    """Pages that are read more often have the same values; configurations are kept longer."""
    graph = Behind()
    counts, clock = built(graph)
    for _ in range(2):
        await counts.document(asks=True)
    (found,) = (await counts.document(asks=True))["servers"]
    assert [ModelStatisticsRequest, ModelConfigRequest] == graph.questions.requests
    counters = list(found["counters"])
    assert {("m", "2", ""): 7} == values(counters, "nv_inference_count")
    assert {("m", "2", ""): 0} == values(counters, "nv_cache_num_hits_per_model")
    assert {("m", "2", "OTHER"): 3}.items() <= values(
        counters, "nv_inference_request_failure"
    ).items()
    assert [["m", "2", 2.0]] == found["instances"]
    clock.advance(1.0)
    await counts.document(asks=True)
    assert ModelStatisticsRequest is graph.questions.requests[-1]


async def test_another_worker_sends_no_requests() -> None:
    """It still tells what it counted."""
    graph = Behind()
    counts, _ = built(graph)
    assert (await counts.document(asks=False))["servers"] is None
    assert [] == graph.questions.requests


async def test_a_server_without_a_reply_keeps_its_last_values() -> None:
    """They are marked as old, and are new again after the next reply."""
    graph = Behind()
    counts, clock = built(graph)
    await counts.document(asks=True)
    graph.questions.statistics = Unavailable("gone")
    clock.advance(1.0)
    (found,) = (await counts.document(asks=True))["servers"]
    assert found["is_stale"]
    assert {("m", "2", ""): 7} == values(found["counters"], "nv_inference_count")
    graph.questions.statistics = FOUND
    clock.advance(1.0)
    (found,) = (await counts.document(asks=True))["servers"]
    assert not found["is_stale"]


async def test_a_server_that_never_replied_is_stale() -> None:
    """It may be a Triton: the calls that fail meanwhile are not counted as the gateway's."""
    graph = Behind(is_ready=False, has_statistics=False)
    graph.questions.statistics = Unavailable("gone")
    counts, _ = built(graph)
    (found,) = (await counts.document(asks=True))["servers"]
    assert (True, []) == (found["is_stale"], list(found["counters"]))
    graph.questions.statistics = Unsupported("none")
    assert [] == (await built(graph)[0].document(asks=True))["servers"]


async def test_servers_without_statistics_get_no_requests() -> None:
    """A server that replied and has no statistics has those of the gateway."""
    graph = Behind(has_statistics=False)
    counts, _ = built(graph)
    assert [] == (await counts.document(asks=True))["servers"]
    assert [] == graph.questions.requests


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    found = Gateway(load_text(TEXT))
    await found.start()
    yield found
    await found.stop()


async def page(gateway: Gateway) -> str:
    return (await gateway.page(""))[0].decode()


async def test_models_of_the_gateway_have_its_statistics(gateway: Gateway) -> None:
    """They are on the page with 0 from the first scrape, and a reload keeps them."""
    series = '{model="simple",version="1"}'
    first = await page(gateway)
    assert f"nv_inference_request_success{series} 0.0" in first
    assert f"nv_inference_pending_request_count{series} 0.0" in first
    assert 'nv_inference_request_failure{model="simple",reason="CANCELED",version="1"} 0.0' in first
    rows = [
        Tensor(name, Datatype.INT32, (1, 16), RawData(memoryview(bytes(64))))
        for name in ("INPUT0", "INPUT1")
    ]
    await gateway.service(InferRequest(model=ModelRef("simple"), inputs=tuple(rows)))
    assert f"nv_inference_request_success{series} 1.0" in await page(gateway)
    await gateway.reload(
        load_text(TEXT.replace("simple}", "simple, x: 1}") + "in_flight_bytes: 9MiB\n")
    )
    found = await page(gateway)
    assert f"nv_inference_request_success{series} 1.0" in found
    assert f"nv_inference_exec_count{series} 1.0" in found
