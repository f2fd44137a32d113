"""Adaptive concurrency in virtual time: overload costs neither goodput nor the latency of others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from gateway.ir.calls import Call
from gateway.policies.limits.adaptive.overload import OverloadLimit
from gateway.policies.limits.policy import CallLimits
from gateway.service import Service
from tests.simulation.virtual_time import (
    REPLY,
    ModelServer,
    Outcome,
    Traffic,
    elapse,
    good,
    now,
    percentile,
    simulate,
)

WORKERS, SERVICE_S = 4, 0.04
CAPACITY = WORKERS / SERVICE_S


class BatchServer:
    """A server that merges requests that wait: a full batch has a high latency.

    Args:
        most: Requests of a batch.
        batch_s: Time of a batch without any.
        each_s: Further time of each request.

    Attributes:
        capacity: Requests in a second.
    """

    def __init__(self, most: int = 8, batch_s: float = 0.01, each_s: float = 0.005) -> None:
        self.capacity = most / (batch_s + most * each_s)
        self._most, self._batch_s, self._each_s = most, batch_s, each_s
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, _call: Call[Any], /) -> Any:
        """Reply when the batch of the call has run."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        await asyncio.shield(done)
        return REPLY

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            await elapse(self._batch_s + self._each_s * len(batch))
            for done in batch:
                if not done.done():
                    done.set_result(None)


def on_overload(server: Service, draw: random.Random) -> Service:
    """Return *server* with `adaptive_concurrency: on_overload`."""
    clock = asyncio.get_running_loop().time
    return OverloadLimit(server, clock=clock, draw=draw.random)


Phases = tuple[Traffic, tuple[float, ...]]


async def overload(server: Service, capacity: float, draw: random.Random) -> Phases:
    """Offer half of the capacity, three times, and half; return the traffic and the times."""
    clock = asyncio.get_running_loop().time
    traffic = Traffic(CallLimits(on_overload(server, draw), 20.0, clock=clock), draw)
    times = []
    for load, seconds in ((0.5, 6), (3.0, 10), (0.5, 6)):
        times.append(now())
        await traffic.run(load * capacity, seconds)
    return traffic, (*times, now())


@pytest.mark.parametrize("service_s", [0.02, 0.04])
def test_overload_limit_at_three_times_the_capacity(service_s: float) -> None:
    """Goodput and latency hold after two seconds, and one second after the overload."""
    draw = random.Random(1)  # noqa: S311
    capacity = WORKERS / service_s

    async def run() -> Phases:
        return await overload(ModelServer(WORKERS, service_s, draw), capacity, draw)

    traffic, (start, loaded_at, calm_at, end) = simulate(run)
    before, loaded = traffic.between(start + 2, loaded_at), traffic.between(loaded_at + 2, calm_at)
    loaded = [each for each in loaded if each.began < loaded_at + 10]
    served = good(loaded)
    assert len(served) / 8 > 0.9 * capacity
    assert percentile(served, 99) < 3 * percentile(good(before), 99)
    refused = [each for each in loaded if each.error == "overloaded"]
    assert len(refused) + len(served) == len(loaded)
    assert percentile(refused, 97) < 0.005
    after = traffic.between(calm_at + 1, end)
    assert len(good(after)) > 0.99 * len(after)
    assert percentile(good(after), 99) < 2 * percentile(good(before), 99)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("server", "least"),
    [
        (BatchServer(), 0.85),
        # These have been seen with 48 calls only, which is not their best rate.
        pytest.param(BatchServer(64, 0.18, 0), 0.6, marks=pytest.mark.slow),
        pytest.param(BatchServer(64, 0.02, 0.0025), 0.6, marks=pytest.mark.slow),
    ],
    ids=["batches of 8", "batches of 64", "batches of 64 that take longer when full"],
)
def test_a_batching_server_keeps_its_goodput(server: BatchServer, least: float) -> None:
    """The limit allows full batches, although they have a high latency."""
    draw = random.Random(1)  # noqa: S311

    async def run() -> Phases:
        return await overload(server, server.capacity, draw)

    traffic, (_start, loaded_at, _calm_at, _end) = simulate(run)
    loaded = traffic.between(loaded_at + 2, loaded_at + 10)
    assert len(good(loaded)) / 8 > least * server.capacity


async def closed_loop(server: Service, clients: int, start_s: float) -> list[Outcome]:
    """Let clients that begin within *start_s* send one call after another for 6 s."""
    draw = random.Random(1)  # noqa: S311
    traffic = Traffic(on_overload(server, draw), draw)
    await traffic.run(20, 4)
    first, end = now(), now() + 6 + start_s

    async def client() -> None:
        await elapse(start_s * draw.random())
        while now() < end:
            await traffic.run_one()

    await asyncio.gather(*(client() for _ in range(clients)))
    return traffic.between(first, end)


@pytest.mark.parametrize(("clients", "start_s"), [(64, 0.3), (100, 3), (160, 0)])
@pytest.mark.parametrize(
    ("server", "capacity"),
    [
        (lambda: ModelServer(WORKERS, SERVICE_S, random.Random(2)), CAPACITY),  # noqa: S311
        (BatchServer, BatchServer().capacity),
    ],
    ids=["workers", "batches"],
)
def test_closed_loop_clients_are_never_rejected(
    server: Callable[[], Service], capacity: float, clients: int, start_s: float
) -> None:
    """More clients than workers are no overload, whenever the clients start."""
    outcomes = simulate(lambda: closed_loop(server(), clients, start_s))
    assert good(outcomes) == outcomes
    assert len(outcomes) / (6 + start_s) > 0.9 * capacity


@pytest.mark.parametrize(("calls", "seconds"), [(50, 0.1), (100, 0.5), (150, 0.2)])
def test_a_short_burst_is_never_rejected(calls: int, seconds: float) -> None:
    """Every call of a short burst succeeds, as without a limit."""

    async def run() -> Traffic:
        draw = random.Random(1)  # noqa: S311
        traffic = Traffic(on_overload(ModelServer(WORKERS, SERVICE_S, draw), draw), draw)
        await traffic.run(20, 4)
        await traffic.run(calls / seconds, seconds)
        await traffic.run(20, 3)
        return traffic

    traffic = simulate(run)
    assert good(traffic.outcomes) == traffic.outcomes


def test_a_server_that_hung_gets_calls_again() -> None:
    """Calls to a hung server are never rejected, and succeed once it recovers."""

    async def run() -> tuple[Traffic, float]:
        draw = random.Random(1)  # noqa: S311
        server = ModelServer(WORKERS, SERVICE_S, draw)
        clock = asyncio.get_running_loop().time
        traffic = Traffic(CallLimits(on_overload(server, draw), 1.0, clock=clock), draw)
        await traffic.run(50, 4)
        server.is_hung = True
        await traffic.run(50, 3)
        server.is_hung = False
        healed = now()
        await traffic.run(50, 4)
        return traffic, healed

    traffic, healed = simulate(run)
    after = traffic.between(healed, healed + 4)
    assert len(good(after)) > 0.99 * len(after)
    assert {"", "deadline_exceeded"} >= {each.error for each in traffic.outcomes}
