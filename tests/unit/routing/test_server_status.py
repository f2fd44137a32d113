"""Tests of ServerStatusLayer: how the server is, from the calls there are."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    ServerTrendsRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import ModelNotFound, NoRoute, Unavailable, Unsupported
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    ModelStatus,
    RepositoryEntry,
    ServerStatus,
    Trend,
)
from gateway.ir.statistics import ModelStatistics
from gateway.routing.server_status import ServerStatusLayer, model_status
from tests.fakes import FakeClock, ScriptedService

INDEX = (
    RepositoryEntry("a", "1", ModelState.READY),
    RepositoryEntry("b", "", ModelState.LOADING),
    RepositoryEntry("a", "2", ModelState.UNAVAILABLE, "broken"),
)


def router(*, index: Any = INDEX, counted: Any = (), trends: Any = None) -> ScriptedService:
    def answer(call: Any) -> Any:
        if isinstance(call, ServerReadyRequest):
            return True
        if isinstance(call, RepositoryIndexRequest):
            if isinstance(index, Exception):
                raise index
            return index
        if isinstance(call, ModelMetadataRequest) and call.model == ModelRef("a"):
            return ModelMetadata(name="a", versions=("1", "2"))
        if isinstance(call, ModelMetadataRequest):
            raise ModelNotFound("no such model")
        if isinstance(call, ModelStatisticsRequest):
            if not counted:
                raise Unsupported("nobody counts")
            return counted
        if isinstance(call, ServerTrendsRequest):
            return trends
        return "passed"

    return ScriptedService(always=answer)


A = ModelStatus(ModelMetadata(name="a", versions=("1", "2")), (INDEX[0], INDEX[2]))


async def test_lists_models_that_can_be_described() -> None:
    """Every model of the index with its metadata and states; one without metadata is left out."""
    clock = FakeClock()
    statuses = ServerStatusLayer(router(), clock=clock)
    clock.advance(5)
    found = await statuses(ServerStatusRequest())
    assert found == ServerStatus(is_ready=True, uptime_s=5.0, models=(A,))


async def test_tells_of_one_model() -> None:
    """A question about one model is answered with that one, or with its error."""
    statuses = ServerStatusLayer(router())
    found = await statuses(ServerStatusRequest(about=ModelRef("a")))
    assert found.models == (A,)
    with pytest.raises(ModelNotFound):
        await statuses(ServerStatusRequest(about=ModelRef("x")))


async def test_tells_what_is_counted() -> None:
    """Each model has the statistics of its versions, asked about alone or among all."""
    mine = ModelStatistics(name="a", version="1", inference_count=3)
    service = router(counted=(mine, ModelStatistics(name="z", version="1")))
    (model,) = (await ServerStatusLayer(service)(ServerStatusRequest())).models
    assert (mine,) == model.statistics
    (model,) = (
        await ServerStatusLayer(router(counted=(mine,)))(ServerStatusRequest(about=ModelRef("a")))
    ).models
    assert (mine,) == model.statistics


async def test_tells_trends_where_they_are_asked_for() -> None:
    """They are the router's answer to a question of their own, which is not always asked."""
    trends = {"qps": Trend(((0, 1.0),))}
    inner = router(trends=trends)
    found = await ServerStatusLayer(inner)(ServerStatusRequest(trends=True))
    assert (trends, ServerTrendsRequest) == (found.trends, type(inner.calls[-1]))
    assert {} == (await ServerStatusLayer(inner)(ServerStatusRequest())).trends


async def test_does_without_an_index() -> None:
    """Where nothing lists models, a known one is described and the list is empty."""
    statuses = ServerStatusLayer(router(index=Unsupported("no index")))
    one = await statuses(ServerStatusRequest(about=ModelRef("a")))
    assert one.models == (ModelStatus(A.metadata),)
    assert (await statuses(ServerStatusRequest())).models == ()


async def test_slow_model_is_left_out() -> None:
    """A model that does not answer does not hold up the list."""

    def answer(call: Any) -> Any:
        if isinstance(call, ServerReadyRequest):
            return False
        return INDEX

    service = ScriptedService(answer, answer)  # the questions for metadata wait for ever
    found = await ServerStatusLayer(service, timeout_s=0.01)(ServerStatusRequest())
    assert found.is_ready is False
    assert found.models == ()
    assert service.cancelled == 3  # two models, and what is counted


async def test_other_calls_go_through() -> None:
    """Anything else is the router's."""
    assert await ServerStatusLayer(router())(ServerLiveRequest()) == "passed"  # type: ignore[comparison-overlap]  # the fake says so


@pytest.mark.parametrize("state", [ModelState.UNAVAILABLE, ModelState.UNLOADING])
async def test_an_unloaded_model_stays_with_its_versions(state: ModelState) -> None:
    """Its metadata are gone, its name and the states of its versions are not."""
    entries = (RepositoryEntry("x", "1", state, "unloaded"), RepositoryEntry("x", "2", state))
    expected = (ModelStatus(ModelMetadata(name="x"), entries),)
    layer = ServerStatusLayer(router(index=entries))
    assert expected == (await layer(ServerStatusRequest())).models
    assert expected == (await layer(ServerStatusRequest(about=ModelRef("x")))).models


async def test_a_model_that_was_never_loaded_is_not_told() -> None:
    """An index lists folders too, without a version or state."""
    layer = ServerStatusLayer(router(index=(RepositoryEntry("x"),)))
    assert () == (await layer(ServerStatusRequest())).models
    with pytest.raises(ModelNotFound):
        await layer(ServerStatusRequest(about=ModelRef("x")))


LISTED = (RepositoryEntry("m", "1", ModelState.UNAVAILABLE),)
DOWN = Unavailable("connection refused")


@pytest.mark.parametrize(
    ("ready", "index", "metadata", "expected"),
    [
        (True, (), ModelNotFound("-"), True),
        (False, LISTED, ModelNotFound("-"), False),
        (False, (), ModelMetadata(name="m"), False),
        (False, (), ModelNotFound("no such model"), None),
        (False, (), DOWN, False),
        (NoRoute("no route"), LISTED, ModelMetadata(name="m"), None),
        (DOWN, (), ModelNotFound("-"), False),
    ],
)
async def test_the_status_of_a_model_tells_unknown_from_not_ready(
    ready: Any, index: Any, metadata: Any, expected: bool | None
) -> None:
    """A server says "not ready" of unknown names too; the index and the metadata decide."""
    replies = {
        ModelReadyRequest: ready,
        RepositoryIndexRequest: index,
        ModelMetadataRequest: metadata,
    }

    def answer(call: Any) -> Any:
        kind: Any = type(call)
        reply = replies[kind]
        if isinstance(reply, Exception):
            raise reply
        return reply

    service = ScriptedService(always=answer)
    assert expected is await model_status(service, "m")


@pytest.mark.parametrize("name", ["..", "a\n", "x" * 300])
async def test_a_name_that_no_model_can_have_is_unknown(name: str) -> None:
    """No server is asked for it."""
    service = ScriptedService()
    assert await model_status(service, name) is None
    assert [] == service.calls
