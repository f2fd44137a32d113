"""One limiter for all: first come first served, shares, timeouts, and no lost units."""

from __future__ import annotations

import ast
import asyncio
import random
import re
import time
from pathlib import Path

import pytest

import gateway
from gateway.backends.instance_pool import InstancePool
from gateway.concurrency.limiter import LENT_AT_ONCE, ControlledDelay, Limiter, LimiterFull
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import Overloaded
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import Reservation
from gateway.transports.slots import ConcurrencyLimiter
from tests.fakes import settle
from tests.simulation.virtual_time import elapse, hold_up, in_virtual_time, now, simulate


async def test_a_release_in_the_same_iteration_as_a_timeout() -> None:
    """It raises no error, and no unit stays acquired."""
    budget = MemoryBudget(100)
    await budget.acquire(100, timeout_s=1)
    waiter = asyncio.ensure_future(budget.acquire(100, timeout_s=0.02))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    loop.call_soon(time.sleep, 0.03)
    loop.call_later(0.0201, budget.release, 100)
    found = (await asyncio.gather(waiter, return_exceptions=True))[0]
    if not isinstance(found, TimeoutError):
        budget.release(100)
    await settle()
    assert ([], 0, 0) == (errors, budget.used, budget.queued)


async def test_a_client_at_a_strict_share_does_not_block_others() -> None:
    """Its callers wait; callers of other clients are served although they came later."""
    limiter = Limiter(4, share=1, is_strict=True)
    one, other = limiter.share("one"), limiter.share("other")
    assert limiter.try_acquire(1, one)
    waiting = asyncio.ensure_future(limiter.acquire(1, one))
    await settle()
    assert limiter.try_acquire(1, other)
    assert not waiting.done()
    limiter.release(1, one)
    await waiting
    assert (2, 1, 1) == (limiter.used, one.used, other.used)


class Clients:
    """A limiter of eight units, of which two are the share of a client."""

    def __init__(self, queue: int = 100) -> None:
        self.limiter = Limiter(8, queue=queue, share=2)
        self.shares = {name: self.limiter.share(name) for name in "abc"}
        self.served: list[str] = []

    async def call(self, names: str) -> list[asyncio.Task[None]]:
        """Start a caller of each client that *names* has a letter of."""
        tasks = [asyncio.ensure_future(self._acquire(name)) for name in names]
        await settle()
        return tasks

    async def _acquire(self, name: str) -> None:
        await self.limiter.acquire(1, self.shares[name])
        self.served.append(name)

    async def end(self, name: str) -> None:
        self.limiter.release(1, self.shares[name])
        await settle()

    def names(self) -> str:
        return "".join(self.served)


async def test_one_client_may_use_every_unit() -> None:
    """A share is no limit while nobody else waits."""
    clients = Clients()
    await clients.call("a" * 10)
    assert (8, 2) == (clients.limiter.used, clients.limiter.queued)
    await clients.end("a")
    assert (8, 1) == (clients.limiter.used, clients.limiter.queued)


async def test_a_client_above_its_share_gives_way() -> None:
    """The next free unit is for a client within its share, however many others wait."""
    clients = Clients()
    await clients.call("a" * 12)
    await clients.call("b")
    await clients.end("a")
    assert "a" * 8 + "b" == clients.names()
    await clients.end("a")
    assert "a" * 8 + "ba" == clients.names()


async def test_clients_above_their_shares_take_turns() -> None:
    """Callers of one client do not wait for all of another."""
    clients = Clients()
    await clients.call("a" * 12)
    await clients.call("b" * 4)
    for name in "aaaaaa":
        await clients.end(name)
    assert "a" * 8 + "bb" + "abab" == clients.names()


async def test_units_are_lent_in_turns_of_the_loop() -> None:
    """A burst of one client leaves room for others between its callers."""
    limiter = Limiter(1000, share=1)
    greedy, other = limiter.share("greedy"), limiter.share("other")
    tasks = [asyncio.ensure_future(limiter.acquire(1, greedy)) for _ in range(100)]
    await asyncio.sleep(0)  # they wait
    most = 0
    while greedy.used < 100:
        before = greedy.used
        assert limiter.try_acquire(1, other)
        limiter.release(1, other)
        await asyncio.sleep(0)
        most = max(most, greedy.used - before)
    assert LENT_AT_ONCE == most
    await asyncio.gather(*tasks)


async def test_a_full_queue_drops_callers_of_the_busiest_client() -> None:
    """The newest caller of the client that has the most above its share gives way."""
    clients = Clients(queue=3)
    tasks = await clients.call("a" * 11)
    (refused,) = await clients.call("a")
    await clients.call("b")
    found = await asyncio.gather(tasks[10], refused, return_exceptions=True)
    assert [LimiterFull, LimiterFull] == [type(each) for each in found]
    for _ in range(3):
        await clients.end("a")
    assert ("a" * 8 + "baa", 0) == (clients.names(), clients.limiter.queued)


async def test_a_burst_needs_no_queue_while_units_are_free() -> None:
    """Callers above their share that are served in the next turns take no place in the queue."""
    clients = Clients(queue=0)
    tasks = await clients.call("a" * 9)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [LimiterFull] == [type(each) for each in found if each is not None]


async def test_callers_above_a_share_that_leave_are_forgotten() -> None:
    """They leave no unit and no turn behind."""
    clients = Clients()
    tasks = await clients.call("a" * 10)
    for task in tasks[8:]:
        task.cancel()
    await asyncio.gather(*tasks[8:], return_exceptions=True)
    for _ in range(8):
        await clients.end("a")
    limiter = clients.limiter
    assert (0, 0, 0) == (limiter.used, limiter.queued, clients.shares["a"].used)
    assert not limiter._borrowers


@pytest.mark.parametrize("share", [None, 2])
async def test_thousands_that_leave_in_one_moment_cost_no_unit(share: int | None) -> None:
    """Their clients have gone when the units come free: the next caller is served all the same."""
    limiter = Limiter(2, share=share)
    busy = None if share is None else limiter.share("busy")
    for _ in range(2):
        await limiter.acquire(1, busy)
    tasks = [asyncio.ensure_future(limiter.acquire(1, busy)) for _ in range(5000)]
    last = asyncio.ensure_future(limiter.acquire(1, busy))
    await settle()
    for task in tasks:
        task.cancel()
    for _ in range(2):
        limiter.release(1, busy)
    assert {None} == set(await asyncio.gather(last))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert {asyncio.CancelledError} == {type(each) for each in found}
    limiter.release(1, busy)
    assert (0, 0) == (limiter.used, limiter.queued)


def test_one_greedy_client_does_not_slow_others() -> None:
    """Twenty clients that call ten times a second wait for the end of one call, not for 1,000."""

    async def run() -> float:
        limiter = Limiter(256, share=64)
        waits: list[float] = []

        async def call(client: str, seconds: float) -> None:
            share, began = limiter.share(client), now()
            await limiter.acquire(1, share)
            if client != "greedy":
                waits.append(now() - began)
            await elapse(seconds)
            limiter.release(1, share)

        draw = random.Random(5)  # noqa: S311  # no secret
        tasks = [asyncio.create_task(call("greedy", draw.uniform(0, 1))) for _ in range(1000)]
        for number in range(400):
            await elapse(0.005)
            tasks.append(asyncio.create_task(call(f"client {number % 20}", 0.02)))
        await asyncio.gather(*tasks)
        return sorted(waits)[int(len(waits) * 0.99)]

    assert simulate(run) <= 0.02


class Groups:
    """A limiter of one unit whose callers belong to groups."""

    def __init__(self, queue: int) -> None:
        self._group = ""
        self._priority = 0
        self.served: list[str] = []
        self.limiter = Limiter(
            1, queue=queue, group=lambda: self._group, priority=lambda: self._priority
        )
        assert self.limiter.try_acquire()

    async def wait(self, name: str, priority: int = 0) -> asyncio.Task[None]:
        """Start a caller that waits; its group is the first letter of its name."""
        self._group, self._priority = name[0], priority
        task = asyncio.ensure_future(self._acquire(name))
        await settle()
        return task

    async def _acquire(self, name: str) -> None:
        await self.limiter.acquire()
        self.served.append(name)

    async def serve_all(self) -> None:
        while self.limiter.used:
            self.limiter.release()
            await settle()


async def test_groups_take_turns() -> None:
    """A caller of a quiet group waits for one caller of a busy group, not for all of them."""
    groups = Groups(queue=8)
    for name in ("a1", "a2", "a3", "b1", "a4", "c1", "b2"):
        await groups.wait(name)
    await groups.serve_all()
    assert ["a1", "b1", "c1", "a2", "b2", "a3", "a4"] == groups.served


async def test_a_busy_group_does_not_fill_the_queue() -> None:
    """In a full queue a caller displaces the newest one of the largest group."""
    groups = Groups(queue=4)
    busy = [await groups.wait(f"a{n}") for n in range(4)]
    refused = await groups.wait("a4")
    quiet = [await groups.wait(f"b{n}") for n in range(3)]
    found = await asyncio.gather(*busy[2:], refused, quiet[2], return_exceptions=True)
    assert [LimiterFull] * 4 == [type(each) for each in found]
    assert 4 == groups.limiter.queued
    await groups.serve_all()
    assert (["a0", "b0", "a1", "b1"], 0) == (groups.served, groups.limiter.queued)


async def test_callers_that_leave_are_removed_from_their_group() -> None:
    """Cancelled and displaced callers leave no trace in the queue."""
    groups = Groups(queue=3)
    first, second = await groups.wait("a1"), await groups.wait("b1")
    await groups.wait("b2")
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await groups.wait("c1")
    await groups.serve_all()
    assert (["b2", "c1"], 0, 0) == (groups.served, groups.limiter.queued, groups.limiter.used)
    assert not groups.limiter.waiting


async def test_a_higher_priority_is_served_first() -> None:
    """Groups of the same priority take turns."""
    groups = Groups(queue=8)
    for name, priority in (("a1", -1), ("a2", 0), ("a3", 0), ("b1", 0), ("c1", 1), ("c2", 1)):
        await groups.wait(name, priority)
    await groups.serve_all()
    assert ["c1", "c2", "a2", "b1", "a3", "a1"] == groups.served


async def test_a_higher_priority_displaces_the_newest_of_the_lowest() -> None:
    """The lowest priority may be a small group; a lower priority displaces no caller."""
    groups = Groups(queue=3)
    low = [await groups.wait("a1", -1), await groups.wait("b1", -1), await groups.wait("b2", -1)]
    await groups.wait("c1", 0)
    await groups.wait("c2", 1)
    refused = await groups.wait("d1", -1)
    found = await asyncio.gather(low[2], low[0], refused, return_exceptions=True)
    assert [LimiterFull] * 3 == [type(each) for each in found]
    await groups.serve_all()
    assert ["c2", "c1", "b1"] == groups.served
    assert not groups.limiter.waiting


CODEL = ControlledDelay(target_s=0.005, interval_s=0.1)


async def outcome_of(limiter: Limiter, timeout_s: float = 1.0) -> tuple[str, float]:
    """Acquire a unit; return the outcome and the milliseconds it took."""
    began = now()
    try:
        await limiter.acquire(timeout_s=timeout_s)
    except (LimiterFull, TimeoutError) as error:
        return type(error).__name__, round(1e3 * (now() - began), 1)
    return "served", round(1e3 * (now() - began), 1)


def callers_of(limiter: Limiter, count: int) -> list[asyncio.Task[tuple[str, float]]]:
    return [asyncio.create_task(outcome_of(limiter)) for _ in range(count)]


def test_a_burst_that_ends_within_the_interval_is_served() -> None:
    """A queue that empties is not late, whatever its callers waited."""

    async def run() -> list[tuple[str, float]]:
        limiter = Limiter(1, delay=CODEL)
        assert limiter.try_acquire()
        waiting = callers_of(limiter, 4)
        for _ in waiting:
            await elapse(0.02)
            limiter.release()
        return await asyncio.gather(*waiting)

    assert [("served", 20.0), ("served", 40.0), ("served", 60.0), ("served", 80.0)] == simulate(run)


def test_a_late_queue_drops_its_oldest_callers() -> None:
    """The newest is served; those before it have waited too long."""

    async def run() -> list[tuple[str, float]]:
        limiter = Limiter(1, delay=CODEL)
        assert limiter.try_acquire()
        waiting = callers_of(limiter, 3)
        await elapse(0.2)
        waiting += callers_of(limiter, 2)
        await elapse(0.001)
        limiter.release()
        await elapse(0.05)
        assert (limiter.used, limiter.queued) == (1, 0)
        return await asyncio.gather(*waiting)

    assert [("QueueLate", 201.0)] * 3 + [("served", 1.0), ("QueueLate", 5.0)] == simulate(run)


def test_a_late_queue_keeps_its_last_caller() -> None:
    """A free unit always serves a caller."""

    async def run() -> list[tuple[str, float]]:
        limiter = Limiter(1, delay=CODEL)
        assert limiter.try_acquire()
        waiting = callers_of(limiter, 3)
        await elapse(0.2)
        limiter.release()
        return await asyncio.gather(*waiting)

    assert [("QueueLate", 200.0)] * 2 + [("served", 200.0)] == simulate(run)


def test_a_callers_timeout_below_the_target_delay_holds() -> None:
    """It raises TimeoutError, which is no sign of a late queue."""

    async def run() -> tuple[str, float]:
        limiter = Limiter(1, delay=CODEL)
        assert limiter.try_acquire()
        waiting = callers_of(limiter, 1)
        await elapse(0.2)
        found = await outcome_of(limiter, timeout_s=0.002)
        limiter.release()
        await asyncio.gather(*waiting)
        return found

    assert ("TimeoutError", 2.0) == simulate(run)


async def test_a_larger_limit_serves_waiting_callers() -> None:
    """A smaller limit revokes nothing, and holds once enough units are released."""
    limiter = Limiter(1)
    assert limiter.try_acquire()
    waiting = asyncio.ensure_future(limiter.acquire())
    await settle()
    limiter.resize(2)
    await waiting
    limiter.resize(1)
    limiter.release()
    assert not limiter.try_acquire()
    limiter.release()
    assert limiter.try_acquire()


async def test_a_client_fills_a_strict_share_of_the_queue_only() -> None:
    """Beyond it its callers are refused, while those of other clients may still wait."""
    limiter = Limiter(4, queue=4, share=2, is_strict=True)
    one = limiter.share("one")
    assert limiter.try_acquire(2, one)
    assert limiter.try_acquire(2, limiter.share("two"))
    tasks = [asyncio.ensure_future(limiter.acquire(1, one)) for _ in range(2)]
    await settle()
    with pytest.raises(LimiterFull):
        await limiter.acquire(1, one)
    tasks.append(asyncio.ensure_future(limiter.acquire(1, limiter.share("three"))))
    await settle()
    assert 3 == limiter.queued
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (4, 0, 2) == (limiter.used, limiter.queued, one.used)


async def test_a_single_reservation_may_exceed_its_share() -> None:
    """A message larger than the share is accepted while its client has no other reservation."""
    budget = MemoryBudget(100)
    reservation = Reservation(budget, 0.01, budget.share("one"))
    assert reservation.try_grow(30)
    assert reservation.try_grow(30)
    other = Reservation(budget, 0.01, budget.share("one"))
    assert not other.try_grow(1)
    reservation.close()
    assert other.try_grow(1)


def test_an_unused_share_is_removed() -> None:
    """Clients that have left need no memory."""
    limiter = Limiter(1)
    share = limiter.share("one")
    assert limiter.share("one") is share
    del share
    assert 0 == len(limiter._shares)


async def test_a_stalled_body_is_ended_for_a_waiting_one() -> None:
    """The stalest reservation fails, and the waiting one is served in time."""
    budget = MemoryBudget(100)
    refusals: list[Overloaded] = []
    still = Reservation(budget, 0.1, budget.share("still"))
    assert still.try_grow(60)
    still.watch_progress(lambda: 7, refusals.append)
    moves = iter(range(1000))
    moving = Reservation(budget, 0.1, budget.share("moving"))
    assert moving.try_grow(40)
    moving.watch_progress(lambda: next(moves), refusals.append)
    waiting = Reservation(budget, 1, budget.share("waiting"))
    await waiting.grow(50)
    assert ([0, 40, 50], ["in_flight_bytes"]) == (
        [each.size_bytes for each in (still, moving, waiting)],
        [error.limit for error in refusals],
    )


async def test_bodies_that_block_each_other_do_not_all_fail() -> None:
    """When each holds memory that another needs, some fail and the others finish."""
    budget = MemoryBudget(100, share_bytes=100)
    done = 0

    async def body() -> None:
        nonlocal done
        reservation = Reservation(budget, 0.02, budget.share("one"))
        try:
            for _ in range(4):
                await reservation.grow(5)
                await asyncio.sleep(0)
            done += 1
        finally:
            reservation.close()

    found = await asyncio.gather(*(body() for _ in range(10)), return_exceptions=True)
    assert {type(None), Overloaded} >= {type(each) for each in found}
    assert (True, 0) == (done >= 5, budget.used)


async def test_responses_may_exceed_the_limit_by_a_quarter() -> None:
    """Responses have priority over new requests, and are limited as well."""
    budget = MemoryBudget(100, share_bytes=100)
    reservation = Reservation(budget, 0)
    assert reservation.try_grow(100)
    answer = Reservation(budget, 0)
    assert (True, False) == (answer.try_grow_response(25), answer.try_grow_response(1))
    assert not Reservation(budget, 0).try_grow(1)


async def _run_random_operations(operations: int, seed: int) -> list[tuple[int, int]]:
    """Run random operations on every kind of limiter on a busy loop; return the final use."""
    choice = random.Random(seed)  # noqa: S311  # no secret
    budget = MemoryBudget(1000)
    slots = ConcurrencyLimiter("requests_in_flight", 8, 32, 3)
    route = ConcurrencyLimit("r", in_flight=6, queue=32, wait_s=0.002)
    pool = InstancePool(ModelRef("m"), 4, 1000)
    remaining = operations

    async def hold() -> None:
        await elapse(choice.choice((0, 0, 0, 0.001)))
        if choice.random() < 0.01:
            hold_up(0.003)

    async def client(name: str) -> None:
        nonlocal remaining
        while remaining > 0:
            remaining -= 1
            kind = choice.randrange(5)
            try:
                if kind == 0:
                    reservation = Reservation(budget, 0.002, budget.share(name))
                    try:
                        for _ in range(choice.randrange(1, 4)):
                            await reservation.grow(choice.randrange(1, 200))
                            await hold()
                        reservation.try_grow_response(choice.randrange(1, 300))
                        await hold()
                    finally:
                        reservation.close()
                elif kind == 1:
                    share = slots.share(name)
                    await slots.wait(0.002, share)
                    try:
                        await hold()
                    finally:
                        slots.release(1, share)
                elif kind == 2:
                    await route.acquire(timeout_s=0.002)
                    try:
                        await hold()
                    finally:
                        route.release()
                else:
                    sequence = CallSequence(choice.randrange(9)) if kind == 3 else None
                    async with asyncio.timeout(0.002):
                        instance = await pool.acquire(sequence)
                    try:
                        await hold()
                    finally:
                        pool.release(instance)
            except (Overloaded, TimeoutError, LimiterFull):
                await asyncio.sleep(0)

    async def leaver(tasks: list[asyncio.Task[None]]) -> None:
        while remaining > 0:
            await elapse(0.001)
            place = choice.randrange(len(tasks))
            tasks[place].cancel()
            tasks[place] = asyncio.ensure_future(client(f"c{place % 7}"))

    tasks = [asyncio.ensure_future(client(f"c{number % 7}")) for number in range(40)]
    await leaver(tasks)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (True, 0) == (pool.is_idle, pool.waiting)
    return [(each.used, each.queued) for each in (budget, slots, route)]


@pytest.mark.parametrize(
    "operations",
    [5_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])],
    ids=["thousands", "a_million"],
)
@in_virtual_time
async def test_random_operations_leave_nothing_behind(operations: int) -> None:
    """After random acquires, timeouts, cancellations and releases every limiter is at zero."""
    assert [(0, 0)] * 3 == await _run_random_operations(operations, seed=operations)


def outside_changes(text: str) -> list[str]:
    """Return the statements of a module that change counters of what is not `self`."""
    found: list[str] = []
    if re.search(r"\.(used|queued)\b", text) is None:  # most modules: to parse one takes a while
        return found
    for node in ast.walk(ast.parse(text)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found += [
            ast.unparse(node)
            for target in targets
            if isinstance(target, ast.Attribute) and target.attr in {"used", "queued"}
            if ast.unparse(target.value) != "self"
        ]
    return found


def test_changes_of_counters_are_found() -> None:
    """A limiter changes its own, in any form of assignment."""
    text = "self.used += 1\nslots.used += 1\nplaces.queued = 0\nself.x.used -= 1"
    assert ["slots.used += 1", "places.queued = 0", "self.x.used -= 1"] == outside_changes(text)


# Two pairs on the path of every call: four calls of a limiter take 1.2 % of its instructions. Each
# counts only where nobody waits.
INLINED = [
    "policies/limits/policy.py: places.used += 1",
    "policies/limits/policy.py: places.used -= 1",
    "transports/grpc/client.py: slots.used += 1",
    "transports/grpc/client.py: slots.used -= 1",
]


def test_counters_of_a_limiter_are_changed_by_itself_only() -> None:
    """A unit that is counted by hand is not given to a caller that waits."""
    package = Path(gateway.__file__).parent
    limiters = {"limiter.py", "memory_budget.py"}  # and their clients' shares
    assert INLINED == [
        f"{path.relative_to(package)}: {found}"
        for path in sorted(package.rglob("*.py"))
        if path.name not in limiters
        for found in outside_changes(path.read_text())
    ]
