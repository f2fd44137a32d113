from __future__ import annotations

import asyncio

import pytest

from gateway.ir.calls import ServerLiveRequest, ServerReadyRequest
from gateway.ir.errors import Unsupported
from gateway.service import Dispatch, SelectiveLayer, Timeout, resolve_for
from tests.fakes import ScriptedService


class Ready(SelectiveLayer):
    """Answers whether the server is ready; it is not."""

    handles = frozenset({ServerReadyRequest})

    async def handle(self, _call: ServerReadyRequest, /) -> bool:
        return False


async def test_aside_lets_other_calls_by() -> None:
    """A layer aside answers the types that it takes; others go to the service within."""
    service = ScriptedService(always=True)
    layer = Ready(service)
    assert (False, True) == (await layer(ServerReadyRequest()), await layer(ServerLiveRequest()))
    assert [ServerLiveRequest()] == service.calls


def test_past_is_the_first_that_has_something_to_do() -> None:
    """Layers aside are passed as far as they do not take the type; other services are not."""
    service = ScriptedService()
    inner = Ready(service)
    outer = Ready(inner)
    found = [resolve_for(each, ServerLiveRequest) for each in (outer, inner, service)]
    assert [service, service, service] == found
    assert outer is resolve_for(outer, ServerReadyRequest)


async def test_dispatch_picks_by_type() -> None:
    """The method of the call's own type answers."""

    async def live(_call: ServerLiveRequest) -> bool:
        return True

    assert await Dispatch("it", {ServerLiveRequest: live})(ServerLiveRequest()) is True


async def test_dispatch_refuses_what_it_has_no_method_for() -> None:
    """A call without a method is Unsupported, and the text names both."""
    with pytest.raises(Unsupported, match="it does not support ServerReadyRequest"):
        await Dispatch("it", {})(ServerReadyRequest())


async def test_alarm_ends_what_takes_too_long() -> None:
    """A block that is still waiting when the alarm rings ends with TimeoutError."""
    alarm = Timeout(0.01)
    with pytest.raises(TimeoutError), alarm:
        await asyncio.Event().wait()
    assert alarm.expired
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_alarm_in_time_is_silent() -> None:
    """A block that ends in time ends as it would without the alarm, and nothing rings later."""
    alarm = Timeout(0.01)
    with alarm:
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    assert not alarm.expired


async def test_alarm_lets_another_cancellation_through() -> None:
    """A task that somebody else cancels is cancelled, even when the alarm rings as well."""

    async def guarded() -> None:
        with Timeout(0.0):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(guarded())
    await asyncio.sleep(0)
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_alarm_passes_errors_of_the_block() -> None:
    """What the block raises is raised, TimeoutErrors of its own included."""
    alarm = Timeout(60.0)
    with pytest.raises(LookupError), alarm:
        raise LookupError
    assert not alarm.expired
