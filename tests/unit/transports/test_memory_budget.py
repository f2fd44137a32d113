"""Budget, reservations, slots and connection counts."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Literal

import pytest

from gateway.concurrency.limiter import CLIENT_MEMORY, QUEUE_TIMEOUT_US
from gateway.concurrency.waiters import Share
from gateway.ir.errors import DeadlineExceeded, Overloaded, QueueTimeout
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import ClientLimits, ServerLimits
from gateway.transports.memory_budget import CALL_BYTES, UNLIMITED, MemoryBudget
from gateway.transports.reservation import Reservation
from gateway.transports.slots import (
    CONNECTION_KEYS,
    ConcurrencyLimiter,
    request_slots,
    upstream_slots,
)
from tests.fakes import settle


def test_the_budget_may_be_used_up_to_its_limit() -> None:
    """A byte beyond the limit is refused and reserves nothing."""
    budget = MemoryBudget(10)
    assert budget.try_acquire(10)
    assert not budget.try_acquire(1)
    assert budget.used == 10
    budget.release(4)
    assert budget.try_acquire(4)


async def test_a_waiter_acquires_the_released_bytes() -> None:
    """Waiters are served in order, each when its bytes are free."""
    budget = MemoryBudget(10)
    budget.try_acquire(10)
    first = asyncio.create_task(budget.acquire(6, timeout_s=5))
    await asyncio.sleep(0)
    second = asyncio.create_task(budget.acquire(4, timeout_s=5))
    await asyncio.sleep(0)
    budget.release(5)
    await asyncio.sleep(0)
    assert (first.done(), second.done(), budget.used) == (False, False, 5)
    budget.release(5)
    await asyncio.gather(first, second)
    assert budget.used == 10


async def test_a_waiter_that_times_out_lets_the_next_one_pass() -> None:
    """When the first in the queue times out, the next is tried at once."""
    budget = MemoryBudget(10)
    budget.try_acquire(6)
    big = asyncio.create_task(Reservation(budget, 0.02).grow(9))
    await asyncio.sleep(0)
    small = asyncio.create_task(budget.acquire(4, timeout_s=5))
    with pytest.raises(Overloaded) as caught:
        await big
    await asyncio.wait_for(small, 20)
    assert (caught.value.limit, budget.used) == ("in_flight_bytes", 10)


async def test_a_cancelled_waiter_releases_its_bytes() -> None:
    """A waiter cancelled in the iteration in which it is served keeps nothing."""
    budget = MemoryBudget(10)
    budget.try_acquire(10)
    waiter = asyncio.create_task(budget.acquire(10, timeout_s=5))
    await asyncio.sleep(0)
    budget.release(10)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert budget.used == 0


async def test_a_reservation_releases_its_bytes_once() -> None:
    """All steps are released by the first close."""
    budget = MemoryBudget(10)
    reservation = Reservation(budget, 0)
    await reservation.grow(3)
    await reservation.grow(4)
    assert budget.used == 7
    with pytest.raises(Overloaded):
        await reservation.grow(4)
    reservation.close()
    reservation.close()
    assert budget.used == 0


def steps_of(reservation: Reservation, total: int | None) -> list[tuple[int, int]]:
    """Return when a reservation grows while a body arrives, and by how much."""
    steps = []
    for arrived in range(0, 3_000_000, 50_000):
        more = reservation.step(arrived, total)
        if more:
            steps.append((arrived, more))
            assert reservation.try_grow(more)
    return steps


def test_a_reservation_grows_ahead_of_the_received_bytes() -> None:
    """It begins with 1 MiB, doubles when three quarters are used, and ends with the message."""
    reservation = Reservation(MemoryBudget(1 << 30), 0)
    steps = steps_of(reservation, 3_000_000)
    assert [(0, 1_048_576), (800_000, 1_048_576), (1_600_000, 902_848)] == steps


def test_a_body_of_usual_size_is_reserved_at_once() -> None:
    """602,112 bytes need one step, unless the budget is so small that they are much of it."""
    assert MemoryBudget(1 << 30).buffers.step_bytes > 602_112
    assert MemoryBudget(32 << 20).buffers.step_bytes == 512 << 10
    assert MemoryBudget(1 << 20).buffers.step_bytes == 256 << 10


def test_a_reservation_grows_in_small_steps_while_memory_is_scarce_or_the_length_unknown() -> None:
    """It begins with 256 KiB, so that a false length and a short body hold no more."""
    budget = MemoryBudget(1 << 30)
    budget.buffers.allocated(1 << 28)
    small = [(0, 262_144), (200_000, 262_144), (400_000, 524_288), (800_000, 1_048_576)]
    assert [*small, (1_600_000, 902_848)] == steps_of(Reservation(budget, 0), 3_000_000)
    budget.buffers.allocated(-(1 << 28))
    assert [*small, (1_600_000, 2_097_152)] == steps_of(Reservation(budget, 0), None)


async def test_slots_are_queued_and_then_refused() -> None:
    """A released slot is acquired by the first in the queue."""
    slots = ConcurrencyLimiter("requests_in_flight", 1, 2)
    await slots.wait(None)
    order: list[int] = []

    async def wait(number: int) -> None:
        await slots.wait(5)
        order.append(number)
        slots.release()

    waiting = [asyncio.create_task(wait(number)) for number in (1, 2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await slots.wait(5)
    assert caught.value.limit == "requests_in_flight"
    slots.release()
    await asyncio.gather(*waiting)
    assert ([1, 2], 0) == (order, slots.used)


async def test_waiting_for_a_slot_times_out() -> None:
    """The queue is empty afterwards."""
    slots = ConcurrencyLimiter("requests_in_flight", 1, 1)
    await slots.wait(None)
    for _ in range(3):
        with pytest.raises(Overloaded):
            await slots.wait(0.01)
    slots.release()
    assert slots.used == 0


async def test_a_slot_granted_to_a_cancelled_waiter_is_freed() -> None:
    """A waiter cancelled in the iteration in which it is served keeps nothing."""
    slots = ConcurrencyLimiter("requests_in_flight", 1, 1)
    await slots.wait(None)
    waiter = asyncio.create_task(slots.wait(5))
    await asyncio.sleep(0)
    slots.release()
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert slots.used == 0


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        (ServerLimits(), 64),
        (ServerLimits(requests_in_flight=1), 1),
        (ServerLimits(requests_in_flight=256), 64),
        (ServerLimits(requests_in_flight=5), 2),
        (ServerLimits(requests_per_address=7), 7),
    ],
)
def test_one_client_has_a_quarter_of_the_slots(limits: ServerLimits, share: int) -> None:
    """The share is rounded up, unless the configuration sets another."""
    assert share == request_slots(limits, UNLIMITED).share_limit


async def test_one_address_may_use_every_slot() -> None:
    """By default memory is the only limit of the requests of a single address."""
    slots = request_slots(ServerLimits(), MemoryBudget(1000 * CALL_BYTES))
    share = slots.share("10.0.0.1")
    most, are_all_used = 0, asyncio.Event()

    async def request() -> None:
        nonlocal most
        await slots.wait(None, share)
        most = max(most, slots.used)
        if most == slots.limit:
            are_all_used.set()
        await are_all_used.wait()
        slots.release(1, share)

    await asyncio.gather(*(request() for _ in range(1024)))
    assert (1000, 0) == (most, slots.used)


def test_connections_are_counted_by_address() -> None:
    """Each address has a limit of its own within the total."""
    count = ConnectionCount(3, 2)
    count.enter("a")
    count.enter("a")
    assert ("connections_per_address", None) == (count.exceeded("a"), count.exceeded("b"))
    count.enter("b")
    assert count.exceeded("b") == "connections"
    count.leave("a")
    assert (count.exceeded("a"), count.total) == (None, 2)


@pytest.mark.parametrize(
    ("pending_by", "served"),
    [("route", ["busy", "quiet", "busy", "busy"]), ("none", ["busy", "busy", "busy", "quiet"])],
)
async def test_routes_take_turns_at_an_upstream(
    pending_by: Literal["route", "none"], served: list[str]
) -> None:
    """A busy route does not delay a quiet one, unless requests are queued in one order."""
    slots = upstream_slots("pending", 1, ClientLimits(pending_by=pending_by), "a:1")
    assert slots.try_acquire()
    found: list[str] = []

    async def call(route: str) -> None:
        CALL_PATH.set(CallPath(route))
        await slots.wait(None)
        found.append(route)
        slots.release()

    tasks = [asyncio.create_task(call(route)) for route in ("busy", "busy", "busy", "quiet")]
    await settle()
    slots.release()
    await asyncio.gather(*tasks)
    assert served == found


@pytest.mark.parametrize("timeout_s", [None, 5.0])
async def test_the_queue_timeout_of_a_request_bounds_its_wait(timeout_s: float | None) -> None:
    """The shorter one of the request's and the caller's timeout holds."""
    slots = ConcurrencyLimiter("pending", 1, 1)
    await slots.wait(None)
    token = QUEUE_TIMEOUT_US.set(30)
    try:
        with pytest.raises(QueueTimeout, match=r"Request timeout expired: .*pending.* 30 us"):
            await slots.wait(timeout_s)
        QUEUE_TIMEOUT_US.set(5_000_000)
        with pytest.raises(Overloaded, match="none ended within 1e-05 s"):
            await slots.wait(0.00001)
    finally:
        QUEUE_TIMEOUT_US.reset(token)
    slots.release()
    assert (0, 0) == (slots.used, slots.queued)


async def test_the_error_of_a_request_in_a_queue_names_what_it_waits_for() -> None:
    """Its deadline ends its wait, and the error names the keys that allow more."""
    slots = upstream_slots("pending", 1, ClientLimits(), "a:1", CONNECTION_KEYS)
    await slots.wait(None)
    with pytest.raises(DeadlineExceeded) as caught:
        await slots.wait(None, deadline=monotonic() + 0.02)
    text = (
        "deadline exceeded in a queue: 1 requests to a:1 are in flight, at most 1 are allowed "
        "(limits.connections, limits.in_flight, limits.pending of the upstream)"
    )
    assert (text, "pending") == (caught.value.message, caught.value.limit)
    slots.release()
    assert (0, 0) == (slots.used, slots.queued)


async def test_clients_of_a_model_take_turns_at_an_upstream() -> None:
    """A client with many calls of a model does not delay those of another client."""
    slots = upstream_slots("pending", 1, ClientLimits(), "a:1")
    assert slots.try_acquire()
    found: list[str] = []
    shares = {"busy": Share(), "quiet": Share()}

    async def call(client: str) -> None:
        CLIENT_MEMORY.set(shares[client])
        await slots.wait(None)
        found.append(client)
        slots.release()

    tasks = [asyncio.create_task(call(client)) for client in ("busy", "busy", "busy", "quiet")]
    await settle()
    slots.release()
    await asyncio.gather(*tasks)
    assert ["busy", "quiet", "busy", "busy"] == found


async def test_small_clients_do_not_wait() -> None:
    """Requests and responses of large clients leave a margin of memory for small ones."""
    budget = MemoryBudget(6400)
    large = [budget.share(number) for number in range(4)]
    assert all(budget.try_acquire(1600, share) for share in large)
    # The margin is 1600; large clients may use three quarters of it.
    assert all(budget.try_acquire_response(300, share) for share in large)
    assert not budget.try_acquire_response(1, large[0])
    waits = asyncio.create_task(Reservation(budget, 5, budget.share("larger")).grow(101))
    await asyncio.sleep(0)
    small = budget.share("small")
    first = Reservation(budget, 5, small)
    await asyncio.wait_for(first.grow(60), 20)
    await asyncio.wait_for(first.grow(40), 20)
    assert budget.try_acquire_response(100, budget.share("smaller"))
    with pytest.raises(Overloaded):
        await Reservation(budget, 0, small).grow(1)
    assert not waits.done()
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    assert (budget.used, small.used) == (6400 + 1200 + 200, 100)


def test_the_margin_for_small_clients_is_limited() -> None:
    """The sum of requests and responses is at most five quarters of the limit."""
    budget = MemoryBudget(640)
    number = 0
    while budget.try_acquire_response(10, budget.share(number)):
        number += 1
    assert budget.used == 800


def test_scarce_memory_is_reported_once() -> None:
    """Buffers count as soon as they are allocated, and reserved bytes count as well."""
    seen: list[bool] = []
    budget = MemoryBudget(800, on_scarce=seen.append)
    reservation = Reservation(budget, 0)
    reservation.allocated(100)
    assert seen == []
    reservation.allocated(1)
    reservation.allocated(50)
    assert seen == [True]
    reservation.allocated(-100)
    assert (seen, budget.buffers.is_scarce) == ([True], True)
    reservation.allocated(-51)
    assert (seen, budget.buffers.is_scarce) == ([True, False], False)
    assert budget.try_acquire(200)
    reservation.allocated(0)
    assert seen == [True, False, True]
