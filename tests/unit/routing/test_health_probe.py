"""Probes: an endpoint's readiness follows what it says of itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import (
    ModelLoadRequest,
    ModelUnloadRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unavailable, Unsupported
from gateway.ir.metadata import ServerMetadata
from gateway.routing.endpoints import Endpoint, Endpoints
from gateway.routing.health_probe import Prober
from tests.fakes import FakeClock, ScriptedService, settle

TRITON = ServerMetadata("triton", "2.51.0")


class Identified:
    """A server that says who it is, and answers other questions as *service* does."""

    def __init__(self, service: ScriptedService, server: object = TRITON) -> None:
        self._service = service
        self.server = server
        self.asked = 0

    async def __call__(self, call: Any, /) -> Any:
        if not isinstance(call, ServerMetadataRequest):
            return await self._service(call)
        self.asked += 1
        if isinstance(self.server, Exception):
            raise self.server
        return self.server


def prober(
    service: ScriptedService | Identified, **settings: object
) -> tuple[Prober, Endpoint, FakeClock]:
    inner = Identified(service) if isinstance(service, ScriptedService) else service
    endpoint, clock = Endpoint("e", inner), FakeClock()
    return (
        Prober("up", endpoint, sleep=clock.sleep, clock=clock, **settings),  # type: ignore[arg-type]  # settings are of mixed types
        endpoint,
        clock,
    )


def test_not_ready_before_the_first_probe() -> None:
    """An endpoint that is probed counts as not ready until it said otherwise."""
    _, endpoint, _ = prober(ScriptedService())
    assert endpoint.ready is False


@pytest.mark.parametrize(
    ("answer", "ready", "log"),
    [
        (True, True, None),
        (False, False, "the endpoint reports that it is not ready"),
        (Unavailable("refused"), False, "refused"),
        (Unsupported("no such question"), True, None),
        (RuntimeError("bug"), False, "RuntimeError('bug')"),
    ],
)
async def test_outcome_of_a_probe(answer: object, ready: bool, log: str | None) -> None:
    """Every outcome sets readiness, is reported, and is logged with its reason."""
    reported: list[bool] = []
    probe, endpoint, _ = prober(ScriptedService(answer), report=reported.append)
    with capture_logs() as logs:
        assert ready == await probe.probe()
    assert (ready, [ready]) == (endpoint.ready, reported)
    assert log == logs[-1].get("reason")


async def test_only_changes_are_logged() -> None:
    """A probe that finds nothing new says nothing."""
    probe, _, _ = prober(ScriptedService(True, True, False, False, True))
    with capture_logs() as logs:
        for _ in range(5):
            await probe.probe()
    assert ["endpoint ready", "endpoint not ready", "endpoint ready"] == [
        entry["event"] for entry in logs
    ]


async def test_probe_carries_its_deadline_and_gives_up() -> None:
    """A probe without an answer in time has failed, and its call is cancelled."""
    service = ScriptedService()
    probe, endpoint, clock = prober(service, timeout_s=0.01)
    with capture_logs() as logs:
        assert await probe.probe() is False
    call = service.calls[0]
    assert isinstance(call, ServerReadyRequest)
    assert (clock() + 0.01, 1) == (call.context.deadline, service.cancelled)
    assert "no response within 0.01 s" == logs[0]["reason"]
    assert endpoint.ready is False


async def test_probes_go_on_until_closed() -> None:
    """It asks every interval, sooner while the endpoint is away; closing twice is harmless."""
    service = ScriptedService(False, True, False, True)  # then it waits
    probe, endpoint, clock = prober(service, interval_s=5.0)
    probe.start()
    probe.start()
    await settle()
    await settle()
    assert (5, [0.5, 5.0, 0.5, 5.0], True) == (len(service.calls), clock.sleeps, endpoint.ready)
    await probe.close()
    await probe.close()
    assert 1 == service.cancelled
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probe")]


async def test_a_server_that_has_become_ready_says_who_it_is() -> None:
    """It may be another one than before, and is unknown meanwhile."""
    told: list[ServerMetadata | None] = []
    server = Identified(ScriptedService(True, True, False, False, True))
    probe, _, _ = prober(server, identify=told.append)
    for _ in range(4):
        await probe.probe()
    server.server = other = ServerMetadata("triton", "2.60.0")
    await probe.probe()
    assert [TRITON, None, other] == told


@pytest.mark.parametrize(
    ("error", "times"), [(Unsupported("no such question"), 1), (Unavailable("gone"), 2)]
)
async def test_a_server_that_does_not_say_who_it_is(error: Exception, times: int) -> None:
    """It is asked again only if it may answer then."""
    told: list[ServerMetadata | None] = []
    server = Identified(ScriptedService(True, True), error)
    probe, _, _ = prober(server, identify=told.append)
    assert await probe.probe()
    assert await probe.probe()
    assert ([], times) == (told, server.asked)


async def test_an_older_probe_does_not_replace_a_newer_result() -> None:
    """A probe that began before a model was loaded may end after the one that follows the load."""
    service = ScriptedService()
    probe, endpoint, _ = prober(service)
    older, newer = asyncio.ensure_future(probe.probe()), asyncio.ensure_future(probe.probe())
    await settle()
    service.waiting[1].set_result(True)
    await newer
    service.waiting[0].set_result(False)
    assert True is await older
    assert endpoint.ready


@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
@pytest.mark.parametrize("error", [None, Unavailable("it failed")])
async def test_a_load_is_answered_after_a_probe(
    kind: type[ModelLoadRequest | ModelUnloadRequest], error: Unavailable | None
) -> None:
    """Whoever asks at once finds the server as it is after the load, not as the last probe did."""
    service = ScriptedService(error, True) if error else ScriptedService(lambda _: None, True)
    _, endpoint, clock = prober(service)
    with suppress(Unavailable):
        await Endpoints("up", [endpoint], clock=clock)(kind(model=ModelRef("m")))
    assert [kind, ServerReadyRequest] == [type(call) for call in service.calls]
    assert endpoint.ready


async def test_a_ready_server_may_miss_two_probes() -> None:
    """One process that works answers late; the third probe without a response decides."""
    reported: list[bool] = []
    service = ScriptedService(True)  # then it answers nothing
    probe, endpoint, _ = prober(service, timeout_s=0.01, report=reported.append)
    assert [True, True, True, False] == [await probe.probe() for _ in range(4)]
    assert ([True, False], False) == (reported, endpoint.ready)


async def test_a_response_in_time_begins_the_count_again() -> None:
    """Only probes in a row count."""
    service = ScriptedService(True)
    probe, _, _ = prober(service, timeout_s=0.01)
    await probe.probe()
    for _ in range(3):
        assert await probe.probe()
        service.waiting.clear()
        service._script.append(True)  # the script goes on
        assert await probe.probe()


async def test_a_refused_connection_decides_at_once() -> None:
    """Nobody is there."""
    probe, endpoint, _ = prober(ScriptedService(True, Unavailable("refused")))
    assert [True, False] == [await probe.probe() for _ in range(2)]
    assert not endpoint.ready
