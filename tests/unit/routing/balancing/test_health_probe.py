"""Probes: the readiness of an endpoint follows its own reports."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelUnloadRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import (
    DeadlineExceeded,
    ErrorCode,
    InvalidRequest,
    Unavailable,
    Unsupported,
)
from gateway.ir.metadata import ServerMetadata
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.balancing.health_probe import Prober
from tests.fakes import FakeClock, ScriptedService, settle

TRITON = ServerMetadata("triton", "2.51.0")


class Identified:
    """A server with metadata, which passes other calls to *service*."""

    def __init__(self, service: ScriptedService, server: object = TRITON) -> None:
        self._service = service
        self.server = server
        self.identify_count = 0

    async def __call__(self, call: Any, /) -> Any:
        if not isinstance(call, ServerMetadataRequest):
            return await self._service(call)
        self.identify_count += 1
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


def test_an_endpoint_is_not_ready_before_the_first_probe() -> None:
    """A probed endpoint counts as not ready until a probe succeeds."""
    _, endpoint, _ = prober(ScriptedService())
    assert endpoint.is_ready is False


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
async def test_probe_outcomes_set_readiness(answer: object, ready: bool, log: str | None) -> None:
    """Every outcome is reported, and logged with its reason."""
    reported: list[bool] = []
    probe, endpoint, _ = prober(ScriptedService(answer), report=reported.append)
    with capture_logs() as logs:
        assert ready == await probe.probe()
    assert (ready, [ready]) == (endpoint.is_ready, reported)
    assert log == logs[-1].get("reason")


async def test_only_readiness_changes_are_logged() -> None:
    """A probe with the same result logs nothing."""
    probe, _, _ = prober(ScriptedService(True, True, False, False, True))
    with capture_logs() as logs:
        for _ in range(5):
            await probe.probe()
    assert ["endpoint ready", "endpoint not ready", "endpoint ready"] == [
        entry["event"] for entry in logs
    ]


async def test_a_probe_has_a_deadline() -> None:
    """A probe without a reply in time fails, and its call is cancelled."""
    service = ScriptedService()
    probe, endpoint, clock = prober(service, timeout_s=0.01)
    with capture_logs() as logs:
        assert await probe.probe() is False
    call = service.calls[0]
    assert isinstance(call, ServerReadyRequest)
    assert (clock() + 0.01, 1) == (call.context.deadline, service.cancelled)
    assert "no response within 0.01 s" == logs[0]["reason"]
    assert endpoint.is_ready is False


async def test_probes_repeat_until_closed() -> None:
    """The interval is shorter while the endpoint is not ready; closing twice is harmless."""
    service = ScriptedService(False, True, False, True)  # then it waits
    probe, endpoint, clock = prober(service, interval_s=5.0)
    probe.start()
    probe.start()
    await settle()
    await settle()
    assert (5, [0.5, 5.0, 0.5, 5.0], True) == (len(service.calls), clock.sleeps, endpoint.is_ready)
    await probe.close()
    await probe.close()
    assert 1 == service.cancelled
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probe")]


async def test_a_server_is_identified_when_it_becomes_ready() -> None:
    """It may be another server than before, and is unknown while not ready."""
    identities: list[ServerMetadata | None] = []
    server = Identified(ScriptedService(True, True, False, False, True))
    probe, endpoint, _ = prober(server, identify=identities.append)
    for expected in (TRITON, TRITON, None, None):
        await probe.probe()
        assert expected == endpoint.server
    server.server = other = ServerMetadata("triton", "2.60.0")
    await probe.probe()
    assert [TRITON, None, other] == identities


@pytest.mark.parametrize(
    ("error", "times"), [(Unsupported("no such question"), 1), (Unavailable("gone"), 2)]
)
async def test_a_server_without_metadata_stays_unknown(error: Exception, times: int) -> None:
    """The request is repeated only if it may succeed later."""
    identities: list[ServerMetadata | None] = []
    server = Identified(ScriptedService(True, True), error)
    probe, _, _ = prober(server, identify=identities.append)
    assert await probe.probe()
    assert await probe.probe()
    assert ([], times) == (identities, server.identify_count)


async def test_an_older_probe_does_not_replace_a_newer_result() -> None:
    """A probe from before a model load may end after the probe that follows the load."""
    service = ScriptedService()
    probe, endpoint, _ = prober(service)
    older, newer = asyncio.ensure_future(probe.probe()), asyncio.ensure_future(probe.probe())
    await settle()
    service.waiting[1].set_result(True)
    await newer
    service.waiting[0].set_result(False)
    assert True is await older
    assert endpoint.is_ready


@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
@pytest.mark.parametrize("error", [None, Unavailable("it failed")])
async def test_a_load_returns_after_a_probe(
    kind: type[ModelLoadRequest | ModelUnloadRequest], error: Unavailable | None
) -> None:
    """A client thus finds the server as it is after the load, not before it."""
    service = ScriptedService(error, True) if error else ScriptedService(lambda _: None, True)
    _, endpoint, clock = prober(service)
    with suppress(Unavailable):
        await Endpoints("up", [endpoint], clock=clock)(kind(model=ModelRef("m")))
    assert [kind, ServerReadyRequest] == [type(call) for call in service.calls]
    assert endpoint.is_ready


async def test_a_ready_server_may_miss_two_probes() -> None:
    """A busy single process replies late; the third missed probe in a row decides."""
    reported: list[bool] = []
    service = ScriptedService(True)  # then it answers nothing
    probe, endpoint, _ = prober(service, timeout_s=0.01, report=reported.append)
    assert [True, True, True, False] == [await probe.probe() for _ in range(4)]
    assert ([True, False], False) == (reported, endpoint.is_ready)


@pytest.mark.parametrize(
    ("error", "ready"),
    [
        (DeadlineExceeded("the client gave up"), True),
        (DeadlineExceeded("the server says so", origin=Origin("oip", None)), False),
    ],
)
async def test_a_client_timeout_is_no_response_of_the_server(error: Exception, ready: bool) -> None:
    """The same error from the server is a response."""
    probe, _, _ = prober(ScriptedService(True, error))
    await probe.probe()
    assert ready == await probe.probe()


async def test_a_response_resets_the_missed_probes() -> None:
    """Only consecutive probes count."""
    service = ScriptedService(True)
    probe, _, _ = prober(service, timeout_s=0.01)
    await probe.probe()
    for _ in range(3):
        assert await probe.probe()
        service.waiting.clear()
        service._script.append(True)  # the script goes on
        assert await probe.probe()


async def test_a_refused_connection_is_not_ready_at_once() -> None:
    """No further probe is needed."""
    probe, endpoint, _ = prober(ScriptedService(True, Unavailable("refused")))
    assert [True, False] == [await probe.probe() for _ in range(2)]
    assert not endpoint.is_ready


def is_infer(call: object) -> bool:
    return isinstance(call, InferRequest)


class HungServer:
    """Does not reply while it hangs, and counts the inferences it receives."""

    def __init__(self) -> None:
        self.hangs = False
        self.inferences = 0
        self.reply: object = InferResponse(model=ModelRef("m"), outputs=())

    async def __call__(self, call: Any, /) -> Any:
        self.inferences += is_infer(call)
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if isinstance(self.reply, Exception) and is_infer(call):
            raise self.reply
        return self.reply if is_infer(call) else True


async def hung() -> tuple[HungServer, Prober, Endpoints, FakeClock]:
    """Return a server that was ready, and had no response to its last three probes."""
    server = HungServer()
    probe, endpoint, clock = prober(server, timeout_s=0.01)  # type: ignore[arg-type]  # a Service
    assert await probe.probe()
    server.hangs = True
    for _ in range(3):
        await probe.probe()
    assert not endpoint.is_ready
    return server, probe, Endpoints("up", [endpoint], clock=clock), clock


CALL = InferRequest(model=ModelRef("m"))


async def test_calls_to_a_hung_server_fail_at_once() -> None:
    """They do not wait, and the server does not receive them."""
    server, _, endpoints, _ = await hung()
    with pytest.raises(Unavailable, match="endpoint 'e' does not respond") as caught:
        await endpoints(CALL)
    assert ErrorCode.UNAVAILABLE is caught.value.code
    assert 0 == server.inferences


@pytest.mark.parametrize("reply", [None, InvalidRequest("no", origin=Origin("oip", None))])
async def test_a_hung_server_gets_one_trial_call_per_interval(reply: Exception | None) -> None:
    """A hanging trial changes nothing; a trial with a response ends the rejections."""
    server, _, endpoints, clock = await hung()
    clock.advance(5.0)
    trial = asyncio.ensure_future(endpoints(CALL))
    await settle()
    for _ in range(3):
        with pytest.raises(Unavailable):
            await endpoints(CALL)
    assert 1 == server.inferences
    trial.cancel()
    server.hangs = False
    server.reply = server.reply if reply is None else reply
    with pytest.raises(Unavailable):
        await endpoints(CALL)
    clock.advance(5.0)
    for _ in range(2):
        with suppress(InvalidRequest):
            await endpoints(CALL)
    assert 3 == server.inferences


async def test_an_open_stream_is_no_response() -> None:
    """Only the first reply of a stream shows that the server responds."""
    server, _, endpoints, clock = await hung()
    clock.advance(5.0)
    server.hangs = False
    await endpoints(StreamInferRequest(request=CALL))
    with pytest.raises(Unavailable):
        await endpoints(CALL)


async def test_a_probe_with_a_response_ends_the_rejections() -> None:
    """A reply of "not ready" is also a response."""
    server, probe, endpoints, _ = await hung()
    server.hangs = False
    assert await probe.probe()
    await endpoints(CALL)
    assert 1 == server.inferences


async def test_an_unready_server_receives_calls() -> None:
    """A server with one broken model may never be ready, and still serve all others."""
    service = ScriptedService(*[False] * 5, "reply")
    probe, endpoint, clock = prober(service)
    for _ in range(5):
        await probe.probe()
    assert "reply" == await Endpoints("up", [endpoint], clock=clock)(CALL)


async def test_a_timed_out_call_is_not_sent_to_another_endpoint() -> None:
    """The first server may have started it."""
    first, second = ScriptedService(), ScriptedService(always="reply")
    endpoints = Endpoints("up", [Endpoint("a", first), Endpoint("b", second)])
    calls = [asyncio.ensure_future(endpoints(CALL)) for _ in range(2)]
    await settle()
    for future in first.waiting:
        future.set_exception(DeadlineExceeded("no response"))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert (1, 1) == (len(first.calls), len(second.calls))
    assert 1 == sum(isinstance(result, DeadlineExceeded) for result in results)


async def test_probes_use_a_separate_service() -> None:
    """A service that is busy with calls must not decide the readiness."""
    calls, probes = ScriptedService(), ScriptedService(True, TRITON)
    endpoint = Endpoint("e", calls)
    probe = Prober("up", endpoint, service=probes)
    assert await probe.probe()
    assert ([], TRITON) == (calls.calls, endpoint.server)
    assert endpoint.service is not probes
