"""Memory is shared only while others wait for it: who is served, and who gives way."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.ir.errors import DeadlineExceeded, Overloaded
from gateway.transports.contract import ServerLimits
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import Reservation, ResponseReservation
from gateway.transports.slots import requests_in_flight
from tests.fakes import settle
from tests.simulation.virtual_time import elapse, simulate


async def test_one_client_may_use_all_memory() -> None:
    """A share is no limit while nobody else waits; responses may use their margin, too."""
    budget = MemoryBudget(1000)
    share = budget.share("one")
    for _ in range(10):
        await Reservation(budget, 0.1, share).grow(100)
    assert 1000 == budget.used
    assert Reservation(budget, 0, share).try_grow_response(150)


async def test_the_error_of_a_wait_above_a_share_names_its_key() -> None:
    """A client above its share waits because others come first, so either key helps it."""
    budget = MemoryBudget(1000)
    greedy = Reservation(budget, 0.01, budget.share("greedy"))
    await greedy.grow(900)
    with pytest.raises(Overloaded, match=r"\(in_flight_bytes, in_flight_bytes_per_address\)"):
        await greedy.grow(200)
    with pytest.raises(Overloaded, match=r"\(in_flight_bytes\)"):
        await Reservation(budget, 0.01, budget.share("other")).grow(200)
    greedy.close()


async def test_memory_is_for_others_first() -> None:
    """Released bytes serve a client within its share, although the other one waited before."""
    budget = MemoryBudget(1000)
    greedy = budget.share("greedy")
    held = [Reservation(budget, None, greedy) for _ in range(10)]
    for each in held:
        await each.grow(100)
    waits = asyncio.ensure_future(Reservation(budget, None, greedy).grow(100))
    await settle()
    other = asyncio.ensure_future(Reservation(budget, None, budget.share("other")).grow(200))
    await settle()
    held[0].close()
    held[1].close()
    await other
    assert not waits.done()
    held[2].close()
    await waits
    assert 1000 == budget.used


def test_bodies_of_a_greedy_client_give_way() -> None:
    """A client within its share gets memory although every body of the other one makes progress."""

    async def run() -> tuple[float, int, int]:
        loop = asyncio.get_running_loop()
        budget = MemoryBudget(1000)
        refusals: list[Overloaded] = []
        greedy = budget.share("greedy")
        for _ in range(10):
            drip = Reservation(budget, None, greedy)
            await drip.grow(100)
            drip.watch_progress(lambda: int(10 * loop.time()), refusals.append)
        began = loop.time()
        await Reservation(budget, None, budget.share("other")).grow(200)
        return loop.time() - began, len(refusals), greedy.used

    waited_s, refused, left = simulate(run)
    assert (2, 800) == (refused, left)
    assert 1.0 <= waited_s <= 1.5


def test_bodies_that_wait_for_each_other_do_not_wait_for_ever() -> None:
    """The newest one is refused, and its memory serves the others."""

    async def run() -> list[str]:
        budget = MemoryBudget(1000)
        bodies = [Reservation(budget, None, budget.share("one")) for _ in range(4)]
        for each in bodies:
            await each.grow(250)

        async def rest(body: Reservation) -> str:
            try:
                await body.grow(250)
            except Overloaded as error:
                return f"refused ({error.limit})"
            else:
                return "served"
            finally:
                body.close()

        return await asyncio.gather(*map(rest, bodies))

    assert ["served"] * 3 + ["refused (in_flight_bytes)"] == simulate(run)


async def test_messages_that_have_arrived_do_not_wait_for_each_other() -> None:
    """What each needs beside its bytes may exceed the limit by an eighth; responses have more."""
    budget = MemoryBudget(1000, 1000)
    budget.call_bytes = 25
    arrived = [Reservation(budget, 0, budget.share("one")) for _ in range(10)]
    for each in arrived:
        await each.grow(100)
    assert [True] * 5 + [False] * 5 == [each.try_grow_rest(25) for each in arrived]
    assert not Reservation(budget, 0, budget.share("one")).try_grow_rest(25)
    assert Reservation(budget, 0, budget.share("one")).try_grow_response(50)


def test_bodies_wait_for_calls_that_run() -> None:
    """Memory of a call in progress comes free: a body that waits for it is not refused."""

    async def run() -> int:
        budget = MemoryBudget(1000)
        running = Reservation(budget, None, budget.share("one"))
        await running.grow(800)
        body = Reservation(budget, None, budget.share("one"))
        await body.grow(200)
        waits = asyncio.ensure_future(body.grow(200))
        await elapse(1.3)
        assert not waits.done()
        running.close()
        await waits
        return body.size_bytes

    assert 400 == simulate(run)


async def test_responses_come_before_requests_that_wait() -> None:
    """They release their requests, whatever their client uses."""
    budget = MemoryBudget(1000)
    share = budget.share("one")
    calls = [Reservation(budget, None, share) for _ in range(10)]
    for call in calls:
        await call.grow(100)
    request = asyncio.ensure_future(Reservation(budget, None, share).grow(100))
    await settle()
    response = ResponseReservation(budget, None, share)
    waits = asyncio.ensure_future(response.grow(100))
    await settle()
    calls[0].close()
    await waits
    assert not request.done()
    calls[1].close()
    await request


def test_responses_that_wait_for_each_other_do_not_wait_for_ever() -> None:
    """Requests hold all memory, and their responses need some: one is refused, others are served."""

    async def run() -> tuple[int, float]:
        budget = MemoryBudget(1000)
        share = budget.share("one")
        served = 0

        async def call() -> None:
            nonlocal served
            request = Reservation(budget, None, share)
            await request.grow(240)
            response = ResponseReservation(budget, None, share)
            try:
                await response.grow(100)
                await elapse(0.1)
                await response.grow(100)
                served += 1
            finally:
                response.close()
                request.close()

        await asyncio.gather(*(call() for _ in range(4)), return_exceptions=True)
        assert 0 == budget.used
        return served, asyncio.get_running_loop().time()

    served, seconds = simulate(run)
    assert served >= 3
    assert seconds < 3


async def test_the_deadline_of_a_request_ends_its_wait() -> None:
    """The error names the key."""
    budget = MemoryBudget(100)
    budget.try_acquire(100)
    start = time.monotonic()
    waits = Reservation(budget, None, budget.share("one"), start + 0.01)
    with pytest.raises(DeadlineExceeded, match=r"waiting for memory: .*\(in_flight_bytes\)"):
        await waits.grow(10)
    duration_s = time.monotonic() - start
    assert duration_s >= 0.01
    assert 0 < waits.waited_s <= duration_s


async def test_small_budgets_have_room_for_some_calls() -> None:
    """What a call counts beside its bytes depends on the budget, and is at most 16 KiB."""
    for limit_bytes, expected in ((1 << 20, (4096, 256)), (512 << 20, (16384, 32768))):
        budget = MemoryBudget(limit_bytes)
        assert expected == (budget.call_bytes, requests_in_flight(ServerLimits(), budget))
