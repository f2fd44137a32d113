"""ServerStatusLayer: the status of the server, composed from other calls."""

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
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import ModelNotFound, NoRoute, Unavailable, UnknownToServer, Unsupported
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    ModelStatus,
    RepositoryEntry,
    ServerStatus,
    Trend,
)
from gateway.ir.statistics import ModelStatistics
from gateway.routing.server_status import ServerStatusLayer, UnknownModels, model_status
from gateway.telemetry.log.error_texts import error_text
from tests.fakes import FakeClock, ScriptedService

INDEX = (
    RepositoryEntry("a", "1", ModelState.READY),
    RepositoryEntry("b", "", ModelState.LOADING),
    RepositoryEntry("a", "2", ModelState.UNAVAILABLE, "broken"),
)


def router(*, index: Any = INDEX, counted: Any = (), trends: Any = None) -> ScriptedService:
    def reply_to(call: Any) -> Any:
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

    return ScriptedService(always=reply_to)


A = ModelStatus(ModelMetadata(name="a", versions=("1", "2")), (INDEX[0], INDEX[2]))


async def test_lists_models_with_metadata() -> None:
    """Each model has its metadata and states; models without metadata are omitted."""
    clock = FakeClock()
    statuses = ServerStatusLayer(router(), clock=clock)
    clock.advance(5)
    found = await statuses(ServerStatusRequest())
    assert found == ServerStatus(is_ready=True, uptime_s=5.0, models=(A,))


async def test_reports_a_single_model() -> None:
    """A request for one model returns that model, or its error."""
    statuses = ServerStatusLayer(router())
    found = await statuses(ServerStatusRequest(about=ModelRef("a")))
    assert found.models == (A,)
    with pytest.raises(ModelNotFound):
        await statuses(ServerStatusRequest(about=ModelRef("x")))


async def test_reports_statistics() -> None:
    """Each model has the statistics of its versions, in a list or alone."""
    mine = ModelStatistics(name="a", version="1", inference_count=3)
    service = router(counted=(mine, ModelStatistics(name="z", version="1")))
    (model,) = (await ServerStatusLayer(service)(ServerStatusRequest())).models
    assert (mine,) == model.statistics
    (model,) = (
        await ServerStatusLayer(router(counted=(mine,)))(ServerStatusRequest(about=ModelRef("a")))
    ).models
    assert (mine,) == model.statistics


async def test_reports_trends_on_request() -> None:
    """They need another call, which is sent only on request."""
    trends = {"qps": Trend(((0, 1.0),))}
    inner = router(trends=trends)
    found = await ServerStatusLayer(inner)(ServerStatusRequest(trends=True))
    assert (trends, ServerTrendsRequest) == (found.trends, type(inner.calls[-1]))
    assert {} == (await ServerStatusLayer(inner)(ServerStatusRequest())).trends


async def test_works_without_an_index() -> None:
    """A named model is described, and the list is empty."""
    statuses = ServerStatusLayer(router(index=Unsupported("no index")))
    one = await statuses(ServerStatusRequest(about=ModelRef("a")))
    assert one.models == (ModelStatus(A.metadata),)
    assert (await statuses(ServerStatusRequest())).models == ()


async def test_slow_models_are_omitted() -> None:
    """A model that does not reply does not delay the list."""

    def reply_to(call: Any) -> Any:
        if isinstance(call, ServerReadyRequest):
            return False
        return INDEX

    service = ScriptedService(reply_to, reply_to)  # the questions for metadata wait for ever
    found = await ServerStatusLayer(service, timeout_s=0.01)(ServerStatusRequest())
    assert found.is_ready is False
    assert found.models == ()
    assert service.cancelled == 3  # two models, and what is counted


async def test_other_calls_are_passed_on() -> None:
    """They reach the router unchanged."""
    assert await ServerStatusLayer(router())(ServerLiveRequest()) == "passed"  # type: ignore[comparison-overlap]  # the fake says so


@pytest.mark.parametrize("state", [ModelState.UNAVAILABLE, ModelState.UNLOADING])
async def test_unloaded_models_keep_their_versions(state: ModelState) -> None:
    """Without metadata, the name and the states of the versions are reported."""
    entries = (RepositoryEntry("x", "1", state, "unloaded"), RepositoryEntry("x", "2", state))
    expected = (ModelStatus(ModelMetadata(name="x"), entries),)
    layer = ServerStatusLayer(router(index=entries))
    assert expected == (await layer(ServerStatusRequest())).models
    assert expected == (await layer(ServerStatusRequest(about=ModelRef("x")))).models


async def test_models_that_were_never_loaded_are_omitted() -> None:
    """An index also lists folders, without a version or state."""
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
async def test_unknown_models_differ_from_unready_ones(
    ready: Any, index: Any, metadata: Any, expected: bool | None
) -> None:
    """Servers report unknown names as not ready, so index and metadata decide."""
    replies = {
        ModelReadyRequest: ready,
        RepositoryIndexRequest: index,
        ModelMetadataRequest: metadata,
    }

    def reply_to(call: Any) -> Any:
        kind: Any = type(call)
        reply = replies[kind]
        if isinstance(reply, Exception):
            raise reply
        return reply

    service = ScriptedService(always=reply_to)
    assert expected is await model_status(service, "m")


@pytest.mark.parametrize("name", ["..", "a\n", "x" * 300])
async def test_invalid_model_names_are_unknown(name: str) -> None:
    """No server receives a call for them."""
    service = ScriptedService()
    assert await model_status(service, name) is None
    assert [] == service.calls


UNLOADED = (RepositoryEntry("m", "", ModelState.UNAVAILABLE),)
OTHER_VERSION = (RepositoryEntry("m", "1", ModelState.READY),)


@pytest.mark.parametrize(
    ("ready", "metadata", "index", "expected"),
    [
        (True, DOWN, (), True),
        (False, ModelMetadata(name="m"), (), False),
        (False, DOWN, (), False),
        (False, ModelNotFound("no m here"), (), "no m here"),
        (False, ModelNotFound("no m here"), Unsupported("no index"), "no m here"),
        (False, ModelNotFound("no m here"), DOWN, False),
        (False, ModelNotFound("no m here"), UNLOADED, False),
        (False, ModelNotFound("no m here"), LISTED, False),
    ],
)
async def test_readiness_of_a_model_that_no_server_has_is_an_error(
    ready: bool, metadata: Any, index: Any, expected: bool | str
) -> None:
    """`GET /v2/models/NOPE/ready` was 503, as if the model were to come."""
    replies = {
        ModelReadyRequest: ready,
        ModelMetadataRequest: metadata,
        RepositoryIndexRequest: index,
    }

    def reply_to(call: Any) -> Any:
        kind: Any = type(call)
        if isinstance(replies[kind], Exception):
            raise replies[kind]
        return replies[kind]

    service = UnknownModels(ScriptedService(always=reply_to))
    call = ModelReadyRequest(model=ModelRef("m"))
    if isinstance(expected, bool):
        assert expected is await service(call)
        return
    with pytest.raises(UnknownToServer, match=expected):
        await service(call)


async def test_the_text_of_a_server_without_the_model_is_marked() -> None:
    """The log shows the text of the error that stands for it as one of a server."""
    missing = ModelNotFound("no m here", origin=Origin("oip.http", None))
    with pytest.raises(UnknownToServer) as found:
        await UnknownModels(ScriptedService(False, missing, ()))(
            ModelReadyRequest(model=ModelRef("m"))
        )
    assert "server said: no m here" == error_text(found.value)


async def test_readiness_of_a_version_that_no_server_has_is_an_error() -> None:
    """The index lists other versions of the model."""
    service = UnknownModels(ScriptedService(False, ModelNotFound("no 7"), OTHER_VERSION))
    with pytest.raises(UnknownToServer, match="no 7"):
        await service(ModelReadyRequest(model=ModelRef("m", "7")))
    service = UnknownModels(ScriptedService(False, ModelNotFound("no 1"), OTHER_VERSION))
    assert await service(ModelReadyRequest(model=ModelRef("m", "1"))) is False


async def test_other_calls_pass_to_the_router() -> None:
    """Metadata of an unknown model is asked once, by the client."""
    inner = ScriptedService(ModelNotFound("no m here"))
    with pytest.raises(ModelNotFound):
        await UnknownModels(inner)(ModelMetadataRequest(model=ModelRef("m")))
    assert 1 == len(inner.calls)
