"""ConfirmUnload: an unload is answered when the model is gone."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import (
    ModelLoadRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import ModelNotFound, Unavailable, Unsupported
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.policies.confirm_unload import ConfirmUnload
from tests.fakes import FakeClock, ScriptedService

M = ModelRef("m")
UNLOAD = ModelUnloadRequest(model=M)


def unloading(
    *script: object, always: object = None
) -> tuple[ConfirmUnload, ScriptedService, FakeClock]:
    """Return the layer around a server that answers so, and its clock."""
    clock, service = FakeClock(), ScriptedService(*script, always=always)
    return ConfirmUnload(service, clock=clock, sleep=clock.sleep), service, clock


@pytest.mark.parametrize("last", [False, ModelNotFound("gone"), Unavailable("gone")])
async def test_waits_until_the_model_is_not_ready(last: object) -> None:
    """The question is put again until the server says no, or does not know the model."""
    layer, service, clock = unloading(None, True, True, last, Unsupported("no index"))
    await layer(UNLOAD)
    expected = [ModelUnloadRequest, *[ModelReadyRequest] * 3, RepositoryIndexRequest]
    assert expected == [type(call) for call in service.calls]
    assert [0.05, 0.05] == clock.sleeps


async def test_waits_until_no_version_is_being_unloaded() -> None:
    """A model that is not ready any more may still stand as UNLOADING in the index."""
    unloaded = RepositoryEntry("m", "1", ModelState.UNAVAILABLE, "unloaded")
    busy = RepositoryEntry("m", "2", ModelState.UNLOADING)
    other = RepositoryEntry("other", "1", ModelState.UNLOADING)
    layer, service, clock = unloading(None, False, (unloaded, busy), False, (unloaded, other))
    await layer(UNLOAD)
    assert 5 == len(service.calls)
    assert [0.05] == clock.sleeps


async def test_does_not_wait_for_ever() -> None:
    """A server that took the request and goes on serving is answered for, with a warning."""
    layer, _, clock = unloading(None, always=True)
    with capture_logs() as lines:
        await layer(UNLOAD)
    assert ["model still ready after it was unloaded"] == [line["event"] for line in lines]
    assert 10.0 == pytest.approx(sum(clock.sleeps), abs=0.1)


async def test_misses_no_deadline() -> None:
    """The caller has its answer before its time is over."""
    layer, _, clock = unloading(None, always=True)
    await layer(UNLOAD.with_context(deadline=clock() + 1.0))
    assert sum(clock.sleeps) < 1.0


async def test_failures_and_other_calls_pass() -> None:
    """What the server refused is not waited for, and nothing else is looked at."""
    layer, service, _ = unloading(Unavailable("down"), None)
    with pytest.raises(Unavailable):
        await layer(UNLOAD)
    await layer(ModelLoadRequest(model=M))
    assert 2 == len(service.calls)
