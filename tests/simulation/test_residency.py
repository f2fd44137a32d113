"""Residency in virtual time: few loads, enough room, no unload in use, and nobody starves."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.ir.errors import DeadlineExceeded, LoadFailed, Overloaded
from gateway.residency.plan import UnloadReason
from tests.simulation.residency import Callers, LoadingServer, controller, lru_loads, zipf
from tests.simulation.virtual_time import elapse, now, simulate

NAMES = [f"m{number}" for number in range(12)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("clients", "load_s", "loads"), [(8, 0.3, 1), (8, 0.05, 2), (2, 0.5, 1)])
def test_zipf_calls_need_few_loads(seed: int, clients: int, load_s: float, loads: int) -> None:
    """Twelve models in the room of four need at most 1.25 times the loads of offline LRU."""
    server = LoadingServer(NAMES, load_s)

    async def run() -> Callers:
        draw = random.Random(seed)  # noqa: S311
        callers = Callers(server, controller(server, loads=loads))
        callers.controller.start()

        async def client() -> None:
            while now() < 60:
                await callers.call(zipf(NAMES, draw), draw.uniform(0.001, 0.02))
                await elapse(draw.uniform(0, 0.02))

        await asyncio.gather(*(client() for _ in range(clients)))
        await callers.controller.close()
        return callers

    callers = simulate(run)
    assert [] == callers.errors + server.faults
    assert server.most <= 4
    assert len(server.loads) <= 1.25 * lru_loads(callers.calls, 4)
    assert len(callers.calls) > 200


@pytest.mark.parametrize("seed", range(8))
def test_no_schedule_breaks_the_promises(seed: int) -> None:
    """Random calls, pins, evictions and costs: nothing in use is unloaded, and every call ends."""
    draw = random.Random(seed)  # noqa: S311
    costs = {name: draw.randint(1, 3) for name in NAMES} if seed % 2 else {}
    room = 13 if costs else 4
    server = LoadingServer(NAMES, 0.2, broken=frozenset({"m11"}), costs=costs)

    async def run() -> Callers:
        control = controller(
            server,
            room,
            loads=draw.randint(1, 3),
            drain_after_s=draw.choice([0.0, 0.5, 2.0]),
            idle_s=draw.choice([math.inf, 3.0]),
            costs=costs,
            pinned=("m3",) if seed % 3 == 0 else (),
        )
        callers = Callers(server, control)
        control.start()

        async def client() -> None:
            for _ in range(40):
                await leave_early(
                    callers.call(zipf(NAMES, draw, 0.5), draw.choice([0.01, 0.1, 3.0]))
                )

        async def leave_early(call: Coroutine[Any, Any, None]) -> None:
            task = asyncio.ensure_future(call)
            if draw.random() < 0.1:
                await asyncio.wait([task], timeout=draw.uniform(0, 1))
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def operate() -> None:
            for _ in range(20):
                await elapse(draw.uniform(0, 10))
                name = draw.choice(NAMES[:3])
                choice = draw.randint(0, 2)
                if choice == 0:
                    control.pin(name)
                elif choice == 1:
                    control.unpin(name)
                elif not control.plan.resident(name).is_pinned:
                    await control.unload(name, UnloadReason.EVICTION)
            for name in NAMES[:3]:
                control.unpin(name)

        await asyncio.gather(operate(), *(client() for _ in range(10)))
        assert all(not each.uses and not each.callers for each in control.plan.models.values())
        await control.close()
        return callers

    callers = simulate(run)
    assert [] == server.faults
    assert server.most <= room
    assert all(error.startswith("m11: ") for error in callers.errors), callers.errors
    assert callers.longest_s < 120


def test_calls_that_never_pause_do_not_starve_another_model() -> None:
    """A model that is always in use is drained for one that waits, and comes back."""
    server = LoadingServer(["a", "b"], 0.2)

    async def run() -> float:
        callers = Callers(server, controller(server, 1))
        callers.controller.start()

        async def client(name: str, seconds: float) -> None:
            while now() < 60:
                await callers.call(name, seconds)

        await asyncio.gather(client("a", 0.3), client("a", 0.5), client("a", 0.7), client("b", 0.1))
        assert [] == callers.errors
        return callers.longest_s

    assert simulate(run) < 4
    assert [] == server.faults
    assert server.most == 1


def test_one_load_serves_all_callers() -> None:
    """Callers of an absent model wait for the same load."""
    server = LoadingServer(["a"], 1.0)

    async def run() -> float:
        callers = Callers(server, controller(server, 1))
        callers.controller.start()
        await asyncio.gather(*(callers.call("a") for _ in range(50)))
        return now()

    assert simulate(run) < 1.1
    assert ["a"] == server.loads


def test_a_failed_load_fails_every_caller_and_pauses() -> None:
    """All callers get the reason of the server; the next load is tried after the pause."""
    server = LoadingServer(["a"], 1.0, broken=frozenset({"a"}))

    async def run() -> list[str]:
        callers = Callers(server, controller(server, 1))
        callers.controller.start()
        await asyncio.gather(*(callers.call("a") for _ in range(5)))
        with pytest.raises(LoadFailed, match="model a is broken"):
            await callers.controller.hold("a")
        assert ["a"] == server.loads
        await elapse(10)
        await callers.call("a")
        assert ["a", "a"] == server.loads
        return callers.errors

    assert ["a: model 'a' cannot be loaded: model a is broken"] * 6 == simulate(run)


def test_a_load_continues_after_its_callers_have_left() -> None:
    """The wait has a limit; the load has none of it."""
    server = LoadingServer(["a"], 5.0)

    async def run() -> None:
        control = controller(server, 1, wait_s=1.0)
        control.start()
        with pytest.raises(DeadlineExceeded, match=r"residency\.wait"):
            await control.hold("a")
        await elapse(5)
        assert now() < 7
        control.release(await control.hold("a"))

    simulate(run)
    assert ["a"] == server.loads


def test_more_callers_than_the_queue_has_are_refused() -> None:
    """The limit counts the calls that wait."""
    server = LoadingServer(["a", "b"], 1.0)

    async def run() -> None:
        control = controller(server, 1, queued=2)
        control.start()
        first = [asyncio.ensure_future(control.hold(name)) for name in ("a", "b")]
        await elapse(0.5)
        with pytest.raises(Overloaded, match=r"residency\.queued"):
            await control.hold("a")
        control.release(await first[0])
        control.release(await first[1])

    simulate(run)


def test_models_that_are_loaded_already_are_adopted() -> None:
    """They need no load, and count as held."""
    server = LoadingServer(["a", "b", "c"], 1.0)

    async def run() -> None:
        await server.load("a", {})
        await server.load("b", {})
        callers = Callers(server, controller(server, 2))
        callers.controller.start()
        await callers.call("a")
        await callers.call("c")
        assert [] == callers.errors

    simulate(run)
    assert ["a", "b", "c"] == server.loads
    assert ["b"] == server.unloads
    assert server.most == 2


def test_pinned_models_stay() -> None:
    """They are loaded at the start, whoever calls others."""
    server = LoadingServer(NAMES, 0.1)

    async def run() -> None:
        callers = Callers(server, controller(server, 2, pinned=("m7",)))
        callers.controller.start()
        for name in NAMES[:5]:
            await callers.call(name)
        assert [] == callers.errors

    simulate(run)
    assert server.loads[0] == "m7"
    assert "m7" not in server.unloads


def test_models_without_calls_are_unloaded() -> None:
    """After the time that `idle` says."""
    server = LoadingServer(["a"], 0.1)

    async def run() -> None:
        callers = Callers(server, controller(server, 2, idle_s=30.0))
        callers.controller.start()
        await callers.call("a")
        await elapse(29)
        assert server.held()
        await elapse(2)
        assert not server.held()

    simulate(run)


@pytest.mark.parametrize("seed", range(2))
def test_two_gateways_share_a_server(seed: int) -> None:
    """Calls whose model the other gateway has unloaded are sent again, and none fails."""
    server = LoadingServer(NAMES, 0.2)

    async def run() -> list[str]:
        draw = random.Random(seed)  # noqa: S311
        turn = asyncio.Lock()  # of a machine; see `HostTurn`
        both = [Callers(server, controller(server, turn=lambda: turn)) for _ in range(2)]
        for each in both:
            each.controller.start()

        async def client(callers: Callers) -> None:
            while now() < 30:
                await callers.call(zipf(NAMES, draw, 1.2), draw.uniform(0.001, 0.02))
                await elapse(draw.uniform(0, 0.05))

        await asyncio.gather(*(client(callers) for callers in both for _ in range(4)))
        return both[0].errors + both[1].errors

    assert [] == simulate(run)
    assert [] == [fault for fault in server.faults if fault.startswith("load of")]
    assert server.most <= 4
