"""ConfirmUnload: an unload succeeds when the model is unloaded."""

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
    """Return the layer, its scripted server, and its clock."""
    clock, service = FakeClock(), ScriptedService(*script, always=always)
    return ConfirmUnload(service, clock=clock, sleep=clock.sleep), service, clock


@pytest.mark.parametrize("last", [False, ModelNotFound("gone"), Unavailable("gone")])
async def test_unload_waits_until_the_model_is_not_ready(last: object) -> None:
    """Readiness is checked until the server reports not ready, or fails for an unknown model."""
    layer, service, clock = unloading(None, True, True, last, Unsupported("no index"))
    await layer(UNLOAD)
    expected = [ModelUnloadRequest, *[ModelReadyRequest] * 3, RepositoryIndexRequest]
    assert expected == [type(call) for call in service.calls]
    assert [0.05, 0.05] == clock.sleeps


async def test_unload_waits_until_no_version_is_unloading() -> None:
    """A model that is not ready may still be UNLOADING in the index."""
    unloaded = RepositoryEntry("m", "1", ModelState.UNAVAILABLE, "unloaded")
    busy = RepositoryEntry("m", "2", ModelState.UNLOADING)
    other = RepositoryEntry("other", "1", ModelState.UNLOADING)
    layer, service, clock = unloading(None, False, (unloaded, busy), False, (unloaded, other))
    await layer(UNLOAD)
    assert 5 == len(service.calls)
    assert [0.05] == clock.sleeps


async def test_wait_for_the_unload_is_limited() -> None:
    """If the model stays ready, the unload succeeds with a warning."""
    layer, _, clock = unloading(None, always=True)
    with capture_logs() as lines:
        await layer(UNLOAD)
    assert ["model still ready after it was unloaded"] == [line["event"] for line in lines]
    assert 10.0 == pytest.approx(sum(clock.sleeps), abs=0.1)


async def test_unload_ends_before_the_deadline() -> None:
    """The caller gets its reply before its deadline."""
    layer, _, clock = unloading(None, always=True)
    await layer(UNLOAD.with_context(deadline=clock() + 1.0))
    assert sum(clock.sleeps) < 1.0


async def test_failures_and_other_calls_pass_through() -> None:
    """A failed unload is not confirmed, and other calls are unchanged."""
    layer, service, _ = unloading(Unavailable("down"), None)
    with pytest.raises(Unavailable):
        await layer(UNLOAD)
    await layer(ModelLoadRequest(model=M))
    assert 2 == len(service.calls)
