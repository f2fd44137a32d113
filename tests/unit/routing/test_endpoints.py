"""Endpoints: which takes a call, and which is left alone for a while."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef, Origin, Sequence
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    NotSent,
    Unavailable,
)
from gateway.ir.streams import close_stream
from gateway.routing.endpoints import BalancingPolicy, Ejection, Endpoint, Endpoints
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

CALL = InferRequest(model=ModelRef("m"))
REPLY = InferResponse(model=ModelRef("m"), outputs=())


def several(
    count: int, picker: BalancingPolicy = BalancingPolicy.ROUND_ROBIN, **settings: object
) -> tuple[Endpoints, list[ScriptedService], FakeClock]:
    clock = FakeClock()
    services = [ScriptedService(always=REPLY) for _ in range(count)]
    endpoints = [Endpoint(f"e{n}", service) for n, service in enumerate(services)]
    return Endpoints("up", endpoints, picker=picker, clock=clock, **settings), services, clock  # type: ignore[arg-type]  # settings are of mixed types


def fail(service: ScriptedService, error: BaseException | InferResponse) -> None:
    service._always = error


async def ask(endpoints: Endpoints, times: int = 1) -> None:
    for _ in range(times):
        with contextlib.suppress(GatewayError):
            await endpoints(CALL)


def counts(services: list[ScriptedService]) -> list[int]:
    return [len(service.calls) for service in services]


def test_there_must_be_an_endpoint() -> None:
    """An upstream without endpoints is a mistake of the configuration."""
    with pytest.raises(ValueError, match="upstream 'up' has no endpoints"):
        Endpoints("up", [])


async def test_round_robin_takes_turns() -> None:
    """Each endpoint gets the same share."""
    endpoints, services, _ = several(3)
    await ask(endpoints, 9)
    assert [3, 3, 3] == counts(services)


async def test_least_pending_avoids_the_busy_one() -> None:
    """The endpoint with fewest calls in flight is asked."""
    busy, idle = ScriptedService(), ScriptedService(always=REPLY)
    endpoints = Endpoints("up", [Endpoint("busy", busy), Endpoint("idle", idle)])
    tasks = [asyncio.ensure_future(endpoints(CALL)) for _ in range(2)]
    await settle()
    await ask(endpoints, 5)
    assert (1, 6) == (len(busy.calls), len(idle.calls))
    busy.waiting[0].set_result(REPLY)
    assert [REPLY, REPLY] == await asyncio.gather(*tasks)
    assert [0, 0] == [endpoint.pending for endpoint in endpoints.endpoints]


async def test_idle_endpoints_share_under_least_pending() -> None:
    """Ties do not all go to the first endpoint."""
    endpoints, services, _ = several(2, BalancingPolicy.LEAST_PENDING)
    await ask(endpoints, 4)
    assert [2, 2] == counts(services)


async def test_stream_is_pending_until_it_is_closed() -> None:
    """A stream counts as in flight while it is open."""
    both = [Endpoint(name, ScriptedService(FakeStream([REPLY]))) for name in ("a", "b")]
    endpoints = Endpoints("up", both)
    items = await endpoints(StreamInferRequest(request=CALL))
    assert [0, 1] == sorted(endpoint.pending for endpoint in both)
    await close_stream(items)
    assert [0, 0] == [endpoint.pending for endpoint in both]


async def test_five_unavailable_in_a_row_eject() -> None:
    """An endpoint that failed five times in a row is left alone for 30 s, then asked again."""
    endpoints, services, clock = several(2)
    fail(services[0], Unavailable("down"))
    await ask(endpoints, 10)
    assert [5, 5] == counts(services)
    await ask(endpoints, 10)
    assert [5, 15] == counts(services)
    clock.advance(30)
    await ask(endpoints, 2)
    assert [6, 16] == counts(services)


async def test_ejection_grows_and_is_forgiven() -> None:
    """Each ejection is longer by the base up to a cap; a good time after one forgets them."""
    endpoints, services, clock = several(2, ejection=Ejection(errors=1, base_s=10, longest_s=20))
    first = endpoints.endpoints[0]
    fail(services[0], NotSent("down"))
    lengths = []
    for _ in range(3):
        await ask(endpoints, 2)
        lengths.append(first.ejected_until - clock())
        clock.now = first.ejected_until
    assert [10, 20, 20] == lengths
    fail(services[0], REPLY)
    await ask(endpoints, 2)
    assert 3 == first.ejections
    clock.advance(10)
    await ask(endpoints, 2)
    assert 0 == first.ejections


async def test_other_outcomes_do_not_eject() -> None:
    """A caller's mistake proves the endpoint alive; a passed deadline proves nothing."""
    endpoints, services, _ = several(2)
    first = endpoints.endpoints[0]
    fail(services[0], Unavailable("down"))
    await ask(endpoints, 8)
    assert 4 == first.streak
    for error in (DeadlineExceeded("late"), RuntimeError("bug")):
        fail(services[0], error)
        try:
            await ask(endpoints, 2)
        except RuntimeError:
            await ask(endpoints)
        assert 4 == first.streak
    fail(services[0], InvalidRequest("wrong"))
    await ask(endpoints, 2)
    assert 0 == first.streak


async def test_never_more_than_half_and_never_the_last() -> None:
    """Of three endpoints one may be ejected; an only one never is."""
    endpoints, services, clock = several(3)
    for service in services:
        fail(service, Unavailable("down"))
    await ask(endpoints, 60)
    assert 1 == sum(endpoint.ejected_until > clock() for endpoint in endpoints.endpoints)
    single, services, clock = several(1)
    fail(services[0], Unavailable("down"))
    await ask(single, 60)
    assert single.ready()


async def test_last_available_one_is_not_ejected() -> None:
    """When the others are not ready the one left is kept, however it fails."""
    endpoints, services, _ = several(2)
    endpoints.endpoints[1].ready = False
    fail(services[0], Unavailable("down"))
    await ask(endpoints, 20)
    assert ([20, 0], True) == (counts(services), endpoints.ready())


async def test_ejection_can_be_turned_off() -> None:
    """With 0 errors nothing is ejected."""
    endpoints, services, _ = several(2, ejection=Ejection(errors=0))
    fail(services[0], Unavailable("down"))
    await ask(endpoints, 40)
    assert [20, 20] == counts(services)


async def test_calls_in_flight_do_not_eject_twice() -> None:
    """Failures that arrive after the ejection do not make it longer."""
    slow, good = ScriptedService(), ScriptedService(always=REPLY)
    clock = FakeClock()
    endpoints = Endpoints(
        "up",
        [Endpoint("slow", slow), Endpoint("good", good)],
        picker=BalancingPolicy.ROUND_ROBIN,
        ejection=Ejection(errors=1),
        clock=clock,
    )
    tasks = [asyncio.ensure_future(endpoints(CALL)) for _ in range(4)]
    await settle()
    for future in slow.waiting:
        future.set_exception(Unavailable("down"))
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (1, clock() + 30) == (
        endpoints.endpoints[0].ejections,
        endpoints.endpoints[0].ejected_until,
    )


async def test_with_none_healthy_all_are_tried() -> None:
    """Doubtful health must not make a total outage."""
    endpoints, services, _ = several(2)
    for endpoint in endpoints.endpoints:
        endpoint.ready = False
    await ask(endpoints, 4)
    assert ([2, 2], False) == (counts(services), endpoints.ready())


async def test_sequence_sticks_to_one_endpoint() -> None:
    """All requests of a sequence go to the endpoint that took the first."""
    endpoints, services, _ = several(3)
    for number in range(6):
        await endpoints(CALL.changed(sequence=Sequence(7, start=number == 0)))
    assert [0, 0, 6] == sorted(counts(services))


def in_sequence(*, start: bool = False) -> InferRequest:
    return CALL.changed(sequence=Sequence(7, start=start))


def _holder(services: list[ScriptedService]) -> ScriptedService:
    (holder,) = [service for service in services if service.calls]
    return holder


@pytest.mark.parametrize("error", [Unavailable("broke off"), NotSent("cannot connect")])
async def test_lost_endpoint_ends_its_sequence(error: Unavailable) -> None:
    """What its server knew is gone: no other is asked, nor it again, until the client starts."""
    endpoints, services, _ = several(3)
    await endpoints(in_sequence(start=True))
    holder = _holder(services)
    fail(holder, error)
    with pytest.raises(Unavailable, match="sequence 7 is lost; restart it: ") as caught:
        await endpoints(in_sequence())
    assert error is caught.value.__cause__
    assert type(caught.value) is Unavailable  # nothing that a retry would take for unsent
    fail(holder, REPLY)
    with pytest.raises(Unavailable, match="sequence 7 is lost: its endpoint"):
        await endpoints(in_sequence())
    assert [0, 0, 2] == sorted(counts(services))
    assert REPLY == await endpoints(in_sequence(start=True))
    assert [0, 1, 2] == sorted(counts(services))


async def test_what_a_server_says_ends_no_sequence() -> None:
    """A full queue, say, is no loss: the sequence goes on where it is."""
    endpoints, services, _ = several(3)
    await endpoints(in_sequence(start=True))
    holder = _holder(services)
    fail(holder, Unavailable("queue full", origin=Origin("oip.grpc", None)))
    with pytest.raises(Unavailable, match=r"^queue full$"):
        await endpoints(in_sequence())
    fail(holder, REPLY)
    assert REPLY == await endpoints(in_sequence())


async def test_stream_that_breaks_off_ends_its_sequence() -> None:
    """Also when that is learned after the stream was opened."""
    endpoints, services, _ = several(3)
    await endpoints(in_sequence(start=True))
    holder = _holder(services)
    holder._always = FakeStream([REPLY, Unavailable("broke off")])
    stream = await endpoints(StreamInferRequest(model=CALL.model, request=in_sequence()))
    assert REPLY == await anext(stream)
    with pytest.raises(Unavailable, match="broke off"):
        await anext(stream)
    with pytest.raises(Unavailable, match="restart the sequence"):
        await endpoints(in_sequence())


async def test_idle_sequence_may_move() -> None:
    """After the configured time an id is free again."""
    endpoints, services, clock = several(2, sequence_idle_s=10.0)
    await endpoints(in_sequence(start=True))
    holder = _holder(services)
    endpoints.endpoints[services.index(holder)].ready = False
    clock.advance(10.0)
    assert REPLY == await endpoints(in_sequence())
    assert [1, 1] == counts(services)
