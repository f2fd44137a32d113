"""Tests of calls that every endpoint of an upstream sees."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    ModelLoadRequest,
    ModelUnloadRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import RegionExists, Unavailable
from gateway.ir.metadata import SharedRegion
from gateway.routing.endpoints import Endpoint, Endpoints
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
async def test_every_endpoint_is_asked(call: Any) -> None:
    """What changes a server is said to every server."""
    services = [ScriptedService(always=lambda _: None) for _ in range(3)]
    endpoints = upstream(*services)
    await endpoints(call)
    assert [service.calls for service in services] == [[call]] * 3
    assert [endpoint.pending for endpoint in endpoints.endpoints] == [0, 0, 0]


async def test_questions_go_to_one() -> None:
    """What only asks is asked once."""
    services = [ScriptedService(always=()) for _ in range(2)]
    await upstream(*services)(SharedStatusRequest())
    assert sum(len(service.calls) for service in services) == 1


async def test_one_failure_is_the_answer() -> None:
    """A model that one server could not load is not loaded."""
    good, bad = ScriptedService(always=lambda _: None), ScriptedService(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await upstream(good, bad)(ModelLoadRequest(model=M))
    assert len(good.calls) == 1


async def test_a_region_that_is_not_everywhere_is_taken_back() -> None:
    """Only those that took it are told to forget it: elsewhere the name may be another's."""
    good, bad = ScriptedService(always=lambda _: None), ScriptedService(RegionExists("taken"))
    with pytest.raises(RegionExists):
        await upstream(good, bad)(REGISTER)
    assert good.calls == [REGISTER, SharedUnregisterRequest(region="r")]
    assert bad.calls == [REGISTER]


async def test_a_region_that_cannot_be_taken_back_is_no_other_error() -> None:
    """What the registration said is the answer, whatever the taking back says."""
    good = ScriptedService(lambda _: None, Unavailable("gone now"))
    with pytest.raises(RegionExists):
        await upstream(good, ScriptedService(RegionExists("taken")))(REGISTER)
