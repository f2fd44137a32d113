"""Inferences by model: in flight, at servers and ended, and why they failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.api.layer import Entries
from gateway.ir.calls import InferRequest, InferResponse, ModelReadyRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    Cancelled,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    UpstreamError,
)
from gateway.policies.count_models import CountModels
from gateway.routing.rolling.model_calls import CountModelCalls
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.telemetry.usage.model_counts import REASONS, ModelCounts
from gateway.telemetry.usage.model_usage import Usage
from tests.fakes import FakeStream, ScriptedService

CALL = InferRequest(model=ModelRef("m"))
REPLY = InferResponse(model=ModelRef("m", "3"), outputs=())


def layer(*script: Any) -> tuple[CountModels, ModelCounts]:
    counts = ModelCounts(Usage())
    return CountModels(ScriptedService(*script), counts), counts


def at_server(inner: ScriptedService, counts: ModelCounts) -> CountModelCalls:
    return CountModelCalls(Entries(inner, inner, inner), counts.sent["t"], "endpoint")


async def test_a_reply_has_the_version() -> None:
    """Requests without a version count for the one that replied; other calls do not count."""
    service, counts = layer(REPLY, True)
    await service(CALL)
    await service(ModelReadyRequest(model=ModelRef("m")))
    (found,) = counts.statistics()
    assert ("m", "3", 1) == (found.name, found.version, found.inference.success.count)
    assert not counts.arrived


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Overloaded("full"), "REJECTED"),
        (Cancelled("left"), "CANCELED"),
        (UpstreamError("broken"), "BACKEND"),
        (InvalidRequest("wrong"), "OTHER"),
        (asyncio.CancelledError(), "CANCELED"),
    ],
)
async def test_failures_have_reasons(error: BaseException, reason: str) -> None:
    """Each failure of a served model counts once, for the version that has served."""
    service, counts = layer(REPLY, error)
    await service(CALL)
    with pytest.raises(type(error)):
        await service(InferRequest(model=ModelRef("m", "made up")))
    assert {each: int(each == reason) for each in REASONS} == counts.failures("m", "3")
    assert not counts.arrived


async def test_names_that_clients_make_up_are_no_labels() -> None:
    """A model that no server has leaves nothing, however it fails."""
    errors: list[GatewayError] = [ModelNotFound("none"), InvalidRequest("wrong")]
    service, counts = layer(*errors)
    for error in errors:
        with pytest.raises(type(error)):
            await service(InferRequest(model=ModelRef("x")))
    assert [] == list(counts.statistics())


async def test_failures_before_the_first_reply_count_for_listed_models() -> None:
    """A model of the index has a value before its first call."""
    service, counts = layer(UpstreamError("broken"))
    counts.serve(["m"])
    with pytest.raises(UpstreamError):
        await service(CALL)
    assert 1 == counts.failures("m", "")["BACKEND"]


async def test_upstreams_that_count_are_not_counted() -> None:
    """The target of the call's path decides."""
    service, counts = layer(REPLY, REPLY)
    counts.counts_itself = lambda target: target == "triton"
    for target in ("triton", "other"):
        token = CALL_PATH.set(CallPath(target=target))
        try:
            await service(CALL)
        finally:
            CALL_PATH.reset(token)
    (found,) = counts.statistics()
    assert 1 == found.inference.success.count


async def test_a_stream_is_in_flight_until_its_end() -> None:
    """Both layers count it until then, also if it is closed early."""
    counts = ModelCounts(Usage())
    inner = ScriptedService(FakeStream([REPLY, REPLY]), FakeStream([REPLY]))
    service = CountModels(at_server(inner, counts), counts)
    stream = await service(StreamInferRequest(request=CALL, model=CALL.model))
    assert ({"m": 1}, {"m": 1}) == (dict(counts.arrived), dict(counts.sent["t"].by_model()))
    assert 2 == len([each async for each in stream])
    assert ({}, {}) == (dict(counts.arrived), dict(counts.sent["t"].by_model()))
    await (await service(StreamInferRequest(request=CALL, model=CALL.model))).aclose()  # type: ignore[attr-defined]  # FakeStream has it
    assert ({}, {}) == (dict(counts.arrived), dict(counts.sent["t"].by_model()))


async def test_calls_at_the_server_are_counted_by_upstream() -> None:
    """A call that fails is no longer in flight."""
    counts, inner = ModelCounts(Usage()), ScriptedService()
    service = at_server(inner, counts)
    tasks = [asyncio.ensure_future(service(CALL)) for _ in range(2)]
    await asyncio.sleep(0)
    assert 2 == counts.sent["t"].by_model()["m"]
    inner.waiting[0].set_result(REPLY)
    inner.waiting[1].set_exception(UpstreamError("broken"))
    await asyncio.gather(*tasks, return_exceptions=True)
    assert {} == dict(counts.sent["t"].by_model())
