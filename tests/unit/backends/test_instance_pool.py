"""InstancePool: the order in which callers acquire instances."""

from __future__ import annotations

import asyncio

import pytest

from gateway.backends.instance_pool import InstancePool, instance_of
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.concurrency.waiters import Share
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import Overloaded, QueueTimeout
from tests.fakes import settle


def pool_of(instances: int, queue: int = 8) -> InstancePool:
    return InstancePool(ModelRef("m", "1"), instances, queue)


async def test_each_caller_has_its_own_instance() -> None:
    """When all instances are acquired, the next caller waits for a released one."""
    pool = pool_of(2)
    assert pool.is_idle
    instances = {await pool.acquire(), await pool.acquire()}
    assert {0, 1} == instances
    third = asyncio.ensure_future(pool.acquire())
    await settle()
    assert (1, False) == (pool.waiting, third.done())
    pool.release(1)
    assert 1 == await third
    assert (0, False) == (pool.waiting, pool.is_idle)


async def test_first_come_first_served() -> None:
    """Waiting callers acquire instances in their order of arrival."""
    pool = pool_of(1)
    instance = await pool.acquire()
    order: list[str] = []

    async def wait(name: str) -> None:
        instance = await pool.acquire()
        order.append(name)
        pool.release(instance)

    waiting = [asyncio.ensure_future(wait(name)) for name in "abc"]
    await settle()
    pool.release(instance)
    await asyncio.gather(*waiting)
    assert ["a", "b", "c"] == order


class Clients:
    """Callers of two clients that wait for the only instance of a model."""

    def __init__(self, queue: int) -> None:
        self.pool = pool_of(1, queue)
        self.order: list[str] = []
        self._shares = {"busy": Share(), "quiet": Share()}

    async def call(self, client: str) -> None:
        CLIENT_MEMORY.set(self._shares[client])
        instance = await self.pool.acquire()
        self.order.append(client)
        self.pool.release(instance)


async def test_clients_take_turns() -> None:
    """A client with many callers does not delay another one."""
    clients = Clients(queue=8)
    instance = await clients.pool.acquire()
    names = ("busy", "busy", "busy", "quiet")
    waiting = [asyncio.ensure_future(clients.call(name)) for name in names]
    await settle()
    clients.pool.release(instance)
    await asyncio.gather(*waiting)
    assert ["busy", "quiet", "busy", "busy"] == clients.order


async def test_a_busy_client_does_not_fill_the_queue() -> None:
    """In a full queue a caller of another client displaces its newest one."""
    clients = Clients(queue=3)
    instance = await clients.pool.acquire()
    names = ("busy", "busy", "busy", "quiet")
    waiting = [asyncio.ensure_future(clients.call(name)) for name in names]
    await settle()
    clients.pool.release(instance)
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(None), type(None), Overloaded, type(None)] == [type(each) for each in found]
    assert ["busy", "quiet", "busy"] == clients.order


async def test_a_full_queue_rejects_callers() -> None:
    """The error has the number of running and queued inferences."""
    pool = pool_of(1, queue=1)
    await pool.acquire()
    waiting = asyncio.ensure_future(pool.acquire())
    await settle()
    text = r"is overloaded: 1 inferences running and 1 queued \(options instances, queue\)"
    with pytest.raises(Overloaded, match=text) as caught:
        await pool.acquire()
    assert "queue" == caught.value.limit
    waiting.cancel()


async def test_a_queue_timeout_bounds_the_wait() -> None:
    """A caller that waits too long leaves the queue; a free instance needs no wait."""
    pool = pool_of(1)
    instance = await pool.acquire(timeout_us=1)
    with pytest.raises(QueueTimeout, match="an instance of model 'm version 1' longer than 30 us"):
        await pool.acquire(timeout_us=30)
    assert pool.waiting == 0
    pool.release(instance)
    assert pool.is_idle


@pytest.mark.parametrize("at_once", [False, True], ids=["while it waits", "as it is served"])
async def test_a_cancelled_waiter_passes_its_instance_on(at_once: bool) -> None:
    """An instance granted to a cancelled caller is acquired by the next one."""
    pool = pool_of(1)
    instance = await pool.acquire()
    leaver, stayer = (asyncio.ensure_future(pool.acquire()) for _ in range(2))
    await settle()
    if at_once:
        pool.release(instance)
    leaver.cancel()
    await settle()
    if not at_once:
        pool.release(instance)
    assert 0 == await stayer
    assert leaver.cancelled()
    pool.release(0)
    assert pool.is_idle


async def test_a_sequence_uses_one_instance() -> None:
    """Its requests wait for that instance while others are free."""
    pool = pool_of(4)
    sequence = CallSequence("chat", start=True)
    own = await pool.acquire(sequence)
    assert instance_of(sequence, 4) == own
    second = asyncio.ensure_future(pool.acquire(CallSequence("chat")))
    await settle()
    other = await pool.acquire()
    assert (False, True) == (second.done(), other != own)
    pool.release(other)
    await settle()
    assert not second.done()
    pool.release(own)
    assert own == await second


def test_sequences_are_spread_over_the_instances() -> None:
    """Numeric and text ids reach every instance."""
    assert {0, 1, 2} == {instance_of(CallSequence(number), 3) for number in range(1, 30)}
    assert {0, 1, 2} == {instance_of(CallSequence(f"s{number}"), 3) for number in range(30)}


async def test_acquire_all_waits_for_running_callers() -> None:
    """It completes when every instance has been released."""
    pool = pool_of(2, queue=1)
    first = await pool.acquire()
    everything = asyncio.ensure_future(pool.acquire_all())
    await settle()
    assert not everything.done()
    pool.release(first)
    await everything
    assert not pool.is_idle
