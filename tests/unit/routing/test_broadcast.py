"""Tests of calls that every endpoint of an upstream sees."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    LogSettingsRequest,
    ModelLoadRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    TraceSettingRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import RegionExists, Unavailable
from gateway.ir.metadata import SharedRegion
from gateway.ir.statistics import ModelStatistics
from gateway.routing.balance import Balance, Target
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from tests.fakes import ScriptedService

M = ModelRef("m")
REGISTER = SharedRegisterRequest(region=SharedRegion(name="r", size_bytes=1, key="/k"))
CALLS: list[Any] = [
    ModelLoadRequest(model=M),
    ModelUnloadRequest(model=M),
    REGISTER,
    SharedUnregisterRequest(region="r"),
]


def upstream(*services: ScriptedService) -> Endpoints:
    return Endpoints("up", [Endpoint(f"e{n}", service) for n, service in enumerate(services)])


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
async def test_server_changes_reach_every_endpoint(call: Any) -> None:
    """A call that changes a server is sent to every server."""
    services = [ScriptedService(always=lambda _: None) for _ in range(3)]
    endpoints = upstream(*services)
    await endpoints(call)
    assert [service.calls for service in services] == [[call]] * 3
    assert [endpoint.pending for endpoint in endpoints.endpoints] == [0, 0, 0]


async def test_reads_reach_one_endpoint() -> None:
    """A call that changes nothing is sent once."""
    services = [ScriptedService(always=()) for _ in range(2)]
    await upstream(*services)(SharedStatusRequest())
    assert sum(len(service.calls) for service in services) == 1


async def test_one_failure_fails_the_call() -> None:
    """A model that one server could not load is not loaded."""
    good, bad = ScriptedService(always=lambda _: None), ScriptedService(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await upstream(good, bad)(ModelLoadRequest(model=M))
    assert len(good.calls) == 1


async def test_a_partial_registration_is_reverted() -> None:
    """Only endpoints that accepted the region unregister it."""
    good, bad = ScriptedService(always=lambda _: None), ScriptedService(RegionExists("taken"))
    with pytest.raises(RegionExists):
        await upstream(good, bad)(REGISTER)
    assert good.calls == [REGISTER, SharedUnregisterRequest(region="r")]
    assert bad.calls == [REGISTER]


async def test_an_internal_error_of_the_revert_is_raised() -> None:
    """Errors other than those of a server are not hidden."""
    good = ScriptedService(lambda _: None, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await upstream(good, ScriptedService(RegionExists("taken")))(REGISTER)


async def test_a_failed_revert_keeps_the_registration_error() -> None:
    """The error of the registration is raised, whatever the revert returns."""
    good = ScriptedService(lambda _: None, Unavailable("gone now"))
    with pytest.raises(RegionExists):
        await upstream(good, ScriptedService(RegionExists("taken")))(REGISTER)


SETTINGS: list[Any] = [
    TraceSettingRequest(changes={"trace_level": ("OFF",)}),
    LogSettingsRequest(changes={"log_info": False}),
]


@pytest.mark.parametrize("call", SETTINGS, ids=lambda call: type(call).__name__)
async def test_settings_are_changed_at_every_endpoint(call: Any) -> None:
    """The reply is that of the first server."""
    services = [ScriptedService(always=reply) for reply in ({"a": 1}, {"a": 2})]
    assert {"a": 1} == await upstream(*services)(call)
    assert [[call], [call]] == [service.calls for service in services]


async def test_statistics_are_added_up() -> None:
    """The counts of a model are the sum of those of all its servers."""
    used = ModelStatistics(name="m", inference_count=2)
    services = [ScriptedService(always=(used,)) for _ in range(2)]
    found = await upstream(*services)(ModelStatisticsRequest(model=M))
    assert (ModelStatistics(name="m", inference_count=4),) == found


async def test_loads_reach_every_target_of_a_route() -> None:
    """A model is loaded at each target that may receive inferences."""
    services = [ScriptedService(always=lambda _: None) for _ in range(2)]
    balance = Balance("r", [Target(f"t{n}", service) for n, service in enumerate(services)])
    await balance(ModelLoadRequest(model=M))
    assert [1, 1] == [len(service.calls) for service in services]
