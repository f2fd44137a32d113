"""Concurrency limit: calls in flight, a short queue, and slots that are always released."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import Overloaded, QueueTimeout, Unavailable
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.policies.limits.policy import CallLimits
from gateway.telemetry.call_path import CALL_PATH, CallPath
from tests.fakes import FakeStream, ScriptedService, settle

M = ModelRef("m")
CALL = InferRequest(model=M)
REPLY = InferResponse(model=M, outputs=())


async def test_calls_beyond_the_limit_wait_in_order() -> None:
    """At most `in_flight` calls reach the service, and the others follow in their order."""
    service = ScriptedService()
    limit = CallLimits(service, places=ConcurrencyLimit("r", in_flight=2, wait_s=5))
    tasks = [asyncio.ensure_future(limit(CALL.changed(id=str(n)))) for n in range(4)]
    await settle()
    assert ["0", "1"] == [c.id for c in service.calls if isinstance(c, InferRequest)]
    for number in range(4):
        service.waiting[number].set_result(REPLY)
        await settle()
    assert [REPLY] * 4 == await asyncio.gather(*tasks)
    assert ["0", "1", "2", "3"] == [c.id for c in service.calls if isinstance(c, InferRequest)]


@pytest.mark.parametrize("queue", [0, 1])
async def test_full_queue_rejects_at_once(queue: int) -> None:
    """A call beyond slots and queue is rejected; the error names route and limit."""
    service = ScriptedService()
    limit = CallLimits(service, places=ConcurrencyLimit("r", in_flight=1, queue=queue, wait_s=5))
    tasks = [asyncio.ensure_future(limit(CALL)) for _ in range(1 + queue)]
    await settle()
    with pytest.raises(Overloaded) as caught:
        await limit(CALL)
    text = (
        f"route 'r' is overloaded: 1 requests in flight and {queue} queued "
        "(policies.in_flight, policies.queued)"
    )
    assert (text, "queue") == (caught.value.message, caught.value.limit)
    for _ in range(1 + queue):
        service.waiting[-1].set_result(REPLY)
        await settle()
    assert [REPLY] * (1 + queue) == await asyncio.gather(*tasks)


async def test_wait_in_the_queue_is_limited() -> None:
    """A call that waits too long is rejected, and its place in the queue is freed."""
    service = ScriptedService()
    limit = CallLimits(service, places=ConcurrencyLimit("r", in_flight=1, queue=1, wait_s=0.01))
    first = asyncio.ensure_future(limit(CALL))
    await settle()
    for _ in range(2):
        with pytest.raises(Overloaded, match=r"no slot of route 'r' within 0\.01 s: 1 inf"):
            await limit(CALL)
    service.waiting[0].set_result(REPLY)
    assert REPLY == await first


@pytest.mark.parametrize(
    "call",
    [CALL.changed(timeout_us=30), StreamInferRequest(model=M, request=CALL.changed(timeout_us=30))],
)
async def test_queue_timeout_of_a_request_limits_its_wait(call: Call[Any]) -> None:
    """The queue timeout expires before `queue_wait`; a running call is not affected."""
    service = ScriptedService()
    limit = CallLimits(service, places=ConcurrencyLimit("r", in_flight=1, wait_s=60))
    first = asyncio.ensure_future(limit(CALL.changed(timeout_us=1)))
    await settle()
    with pytest.raises(
        QueueTimeout, match=r"Request timeout expired: .* slot of route 'r' .* 30 us"
    ):
        await limit(call)
    assert not first.done()
    service.waiting[0].set_result(REPLY)
    assert REPLY == await first


@pytest.mark.parametrize("error", [Unavailable("down"), RuntimeError("bug")])
async def test_failed_call_releases_its_slot(error: Exception) -> None:
    """After a failure the next call acquires the slot."""
    limit = CallLimits(
        ScriptedService(error, REPLY), places=ConcurrencyLimit("r", in_flight=1, queue=0)
    )
    with pytest.raises(type(error)):
        await limit(CALL)
    assert REPLY == await limit(CALL)


async def test_cancelled_call_releases_its_slot() -> None:
    """The slot of a cancelled call passes to the next one."""
    service = ScriptedService()
    limit = CallLimits(service, places=ConcurrencyLimit("r", in_flight=1, wait_s=5))
    first, second = (asyncio.ensure_future(limit(CALL)) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    service.waiting[1].set_result(REPLY)
    assert REPLY == await second


async def test_cancelled_waiter_leaves_the_queue() -> None:
    """A cancelled waiter is skipped, and does not fill the queue."""
    service = ScriptedService()
    limit = CallLimits(service, places=ConcurrencyLimit("r", in_flight=1, queue=1, wait_s=5))
    first, second = (asyncio.ensure_future(limit(CALL)) for _ in range(2))
    await settle()
    second.cancel()
    await settle()
    third = asyncio.ensure_future(limit(CALL))
    await settle()
    service.waiting[0].set_result(REPLY)
    await settle()
    service.waiting[1].set_result(REPLY)
    assert (REPLY, REPLY) == (await first, await third)


async def test_waiter_cancelled_while_acquiring_releases_its_slot() -> None:
    """A slot is not lost if its waiter is cancelled in the same moment."""
    service = ScriptedService()
    limit = CallLimits(service, places=ConcurrencyLimit("r", in_flight=1, wait_s=5))
    first, second, third = (asyncio.ensure_future(limit(CALL)) for _ in range(3))
    await settle()
    service.waiting[0].set_result(REPLY)
    while limit._places.queued == 2:  # noqa: ASYNC110  # nothing announces it
        await asyncio.sleep(0)
    second.cancel()  # it holds the slot, and has not run
    await settle()
    assert 2 == len(service.waiting), "the third has the place"
    service.waiting[1].set_result(REPLY)
    assert (REPLY, REPLY) == (await first, await third)


async def test_slot_is_not_granted_to_a_cancelled_waiter() -> None:
    """A waiter cancelled just before a release is skipped."""
    service = ScriptedService()
    limit = CallLimits(service, places=ConcurrencyLimit("r", in_flight=1, wait_s=5))
    first, second, third = (asyncio.ensure_future(limit(CALL)) for _ in range(3))
    await settle()
    second.cancel()
    limit._places.release()  # before the cancelled waiter has run
    await settle()
    assert 2 == len(service.waiting)
    for future in service.waiting:
        future.set_result(REPLY)
    assert (REPLY, REPLY) == (await first, await third)
    assert second.cancelled()


async def test_stream_holds_its_slot_until_it_ends() -> None:
    """An open stream counts as a call in flight."""
    limit = CallLimits(
        ScriptedService(FakeStream([REPLY]), REPLY),
        places=ConcurrencyLimit("r", in_flight=1, queue=0),
    )
    items = await limit(StreamInferRequest(model=M, request=CALL))
    with pytest.raises(Overloaded):
        await limit(CALL)
    await close_stream(items)
    assert REPLY == await limit(CALL)


async def test_health_calls_are_not_limited() -> None:
    """A full route still reports whether its model is ready."""
    service = ScriptedService()
    limit = CallLimits(service, places=ConcurrencyLimit("r", in_flight=1, queue=0))
    task = asyncio.ensure_future(limit(CALL))
    await settle()
    ready = asyncio.ensure_future(limit(ModelReadyRequest(model=M)))
    await settle()
    service.waiting[1].set_result(True)
    service.waiting[0].set_result(REPLY)
    assert (True, REPLY) == (await ready, await task)


def test_limit_of_zero_is_rejected() -> None:
    """A route without slots is a configuration error."""
    with pytest.raises(ValueError, match="route 'r': in_flight is 0; expected at least 1"):
        CallLimits(ScriptedService(), places=ConcurrencyLimit("r", in_flight=0))


async def test_a_call_has_the_only_target_of_its_route_once_it_has_a_slot() -> None:
    """No layer below records it; a call that is refused in the queue has reached no target."""
    service = ScriptedService()
    places = ConcurrencyLimit("r", in_flight=1, queue=0)
    limit = CallLimits(service, places=places, target="triton")
    paths = []
    tasks = []
    for _ in range(2):
        token = CALL_PATH.set(path := CallPath())
        tasks.append(asyncio.ensure_future(limit(CALL)))
        CALL_PATH.reset(token)
        paths.append(path)
    await settle()
    service.waiting[0].set_result(REPLY)
    replies = await asyncio.gather(*tasks, return_exceptions=True)
    assert [InferResponse, Overloaded] == [type(each) for each in replies]
    assert ["triton", ""] == [path.target for path in paths]
