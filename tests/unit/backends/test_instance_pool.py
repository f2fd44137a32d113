"""InstancePool: who gets which instance, and when."""

from __future__ import annotations

import asyncio

import pytest

from gateway.backends.instance_pool import InstancePool, instance_of
from gateway.ir.context import ModelRef, Sequence
from gateway.ir.errors import Overloaded, QueueTimeout
from tests.fakes import settle


def places(instances: int, queue: int = 8) -> InstancePool:
    return InstancePool(ModelRef("m", "1"), instances, queue)


async def test_no_two_have_one_instance() -> None:
    """Each gets an instance of its own until there is none; the next waits for one given back."""
    some = places(2)
    assert some.is_idle
    instances = {await some.acquire(), await some.acquire()}
    assert {0, 1} == instances
    third = asyncio.ensure_future(some.acquire())
    await settle()
    assert (1, False) == (some.waiting, third.done())
    some.release(1)
    assert 1 == await third
    assert (0, False) == (some.waiting, some.is_idle)


async def test_first_come_first_served() -> None:
    """Those who wait are served in the order they came."""
    some = places(1)
    place = await some.acquire()
    order: list[str] = []

    async def wait(name: str) -> None:
        instance = await some.acquire()
        order.append(name)
        some.release(instance)

    waiting = [asyncio.ensure_future(wait(name)) for name in "abc"]
    await settle()
    some.release(place)
    await asyncio.gather(*waiting)
    assert ["a", "b", "c"] == order


async def test_a_full_queue_refuses() -> None:
    """Beyond the queue nobody waits; the text tells how many run and wait."""
    some = places(1, queue=1)
    await some.acquire()
    waiting = asyncio.ensure_future(some.acquire())
    await settle()
    text = r"is overloaded: 1 inferences running and 1 queued \(options instances, queue\)"
    with pytest.raises(Overloaded, match=text) as caught:
        await some.acquire()
    assert "queue" == caught.value.limit
    waiting.cancel()


async def test_a_queue_timeout_bounds_the_wait() -> None:
    """A request that waits too long leaves the queue; with a free instance it never waits."""
    some = places(1)
    place = await some.acquire(timeout_us=1)
    with pytest.raises(QueueTimeout, match="an instance of model 'm version 1' longer than 30 us"):
        await some.acquire(timeout_us=30)
    assert some.waiting == 0
    some.release(place)
    assert some.is_idle


@pytest.mark.parametrize("at_once", [False, True], ids=["while it waits", "as it is served"])
async def test_who_leaves_the_queue_leaves_no_hole(at_once: bool) -> None:
    """An instance given to one who has just left goes to the next."""
    some = places(1)
    place = await some.acquire()
    leaver, stayer = (asyncio.ensure_future(some.acquire()) for _ in range(2))
    await settle()
    if at_once:
        some.release(place)
    leaver.cancel()
    await settle()
    if not at_once:
        some.release(place)
    assert 0 == await stayer
    assert leaver.cancelled()
    some.release(0)
    assert some.is_idle


async def test_a_sequence_keeps_to_one_instance() -> None:
    """Requests of a sequence wait for their own instance while others are free."""
    some = places(4)
    sequence = Sequence("chat", start=True)
    own = await some.acquire(sequence)
    assert instance_of(sequence, 4) == own
    second = asyncio.ensure_future(some.acquire(Sequence("chat")))
    await settle()
    other = await some.acquire()
    assert (False, True) == (second.done(), other != own)
    some.release(other)
    await settle()
    assert not second.done()
    some.release(own)
    assert own == await second


def test_sequences_are_spread_over_the_instances() -> None:
    """Ids, numbers as well as text, fall on every instance."""
    assert {0, 1, 2} == {instance_of(Sequence(number), 3) for number in range(1, 30)}
    assert {0, 1, 2} == {instance_of(Sequence(f"s{number}"), 3) for number in range(30)}


async def test_taking_all_waits_for_those_who_run_and_wait() -> None:
    """What waits already is served before everything is taken."""
    some = places(2, queue=1)
    first = await some.acquire()
    everything = asyncio.ensure_future(some.acquire_all())
    await settle()
    assert not everything.done()
    some.release(first)
    await everything
    assert not some.is_idle
