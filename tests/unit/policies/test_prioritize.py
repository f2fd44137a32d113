"""Prioritize: a route or a header decides which calls leave queues first."""

from __future__ import annotations

import asyncio

import pytest

from gateway.ir.call_keys import key_of
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import Overloaded
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.policies.limits.policy import CallLimits
from gateway.policies.prioritize import Prioritize
from gateway.telemetry.call_path import CALL_PATH, CallPath, queue_priority
from tests.fakes import ScriptedService, settle
from tests.simulation.virtual_time import elapse, now, simulate

CALL = InferRequest(model=ModelRef("m"))
REPLY = InferResponse(model=ModelRef("m"), outputs=())


def of_priority(text: str) -> InferRequest:
    return CALL.changed(context=Context(metadata=(("x-priority", text),)), id=text)


@pytest.mark.parametrize(
    ("default", "text", "expected"),
    [
        ("normal", "high", 1),
        ("high", "low", -1),
        ("low", "", -1),
        ("high", "urgent", 1),
        ("low", " Normal ", 0),
    ],
)
async def test_priority_of_a_call(default: str, text: str, expected: int) -> None:
    """A valid priority in the header applies, otherwise that of the route."""
    CALL_PATH.set(CallPath())
    seen: list[int] = []

    async def inner(_call: object, /) -> InferResponse:
        seen.append(queue_priority())
        return REPLY

    layer = Prioritize(inner, default, key_of("header:x-priority"))  # type: ignore[arg-type]  # a double
    await layer(of_priority(text))
    assert [expected] == seen


async def test_call_without_a_call_path_has_normal_priority() -> None:
    """Steps of pipelines have no call path."""
    service = ScriptedService(always=REPLY)
    assert await Prioritize(service, "high")(CALL) == REPLY
    assert queue_priority() == 0


async def test_urgent_calls_of_a_route_overtake_others() -> None:
    """The queue of a route serves calls of high priority first."""
    service = ScriptedService()
    places = ConcurrencyLimit("r", in_flight=1, wait_s=5)
    route = Prioritize(CallLimits(service, places=places), "normal", key_of("header:x-priority"))

    async def call(text: str) -> InferResponse:
        CALL_PATH.set(CallPath(route="r"))
        return await route(of_priority(text))

    tasks = [asyncio.create_task(call(text)) for text in ("normal", "low", "normal", "high")]
    await settle()
    for number in range(4):
        service.waiting[number].set_result(REPLY)
        await settle()
    await asyncio.gather(*tasks)
    order = [call.id for call in service.calls if isinstance(call, InferRequest)]
    assert ["normal", "high", "normal", "low"] == order


def test_overload_limits_the_wait_of_a_route() -> None:
    """At twice the load, served calls wait little and the others are rejected soon."""

    async def run() -> tuple[list[float], list[float], set[str | None]]:
        async def serve(_call: object, /) -> InferResponse:
            await elapse(0.01)
            return REPLY

        places = ConcurrencyLimit("r", in_flight=1, wait_s=0.1, target_s=0.02)
        limits = CallLimits(serve, places=places)  # type: ignore[arg-type]  # a double
        served, rejected, names = [], [], set()

        async def call() -> None:
            began = now()
            try:
                await limits(CALL)
                served.append((began, now() - began))
            except Overloaded as error:
                rejected.append((began, now() - began))
                names.add(error.limit)

        tasks = []
        for _ in range(400):
            tasks.append(asyncio.create_task(call()))
            await elapse(0.005)
        await asyncio.gather(*tasks)
        late = 0.3
        return (
            [waited for began, waited in served if began > late],
            [waited for began, waited in rejected if began > late],
            names,
        )

    served, rejected, names = simulate(run)
    assert max(served) < 0.02 + 0.01 + 0.012
    assert max(rejected) < 0.021
    assert len(served) > 0.97 * 170
    assert names == {"queue_target"}
