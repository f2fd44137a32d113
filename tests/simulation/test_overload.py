"""Adaptive concurrency in virtual time: overload costs neither goodput nor the latency of others."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.policies.limits.adaptive_concurrency import AdaptiveConcurrency, AdaptiveRules
from gateway.policies.limits.policy import CallLimits
from tests.simulation.virtual_time import ModelServer, Traffic, good, now, percentile, simulate

WORKERS, SERVICE_S = 4, 0.04
CAPACITY = WORKERS / SERVICE_S


@pytest.mark.parametrize("algorithm", ["gradient", "aimd"])
@pytest.mark.parametrize("seed", [1])
def test_three_times_the_capacity(algorithm: str, seed: int) -> None:
    """Goodput stays, accepted calls stay fast, others are refused at once; the end is quick."""
    draw = random.Random(seed)  # noqa: S311

    async def run() -> Traffic:
        server = ModelServer(WORKERS, SERVICE_S, draw)
        rules = AdaptiveRules(algorithm=algorithm)  # type: ignore[arg-type]  # a parameter
        clock = asyncio.get_running_loop().time
        limited = AdaptiveConcurrency(server, rules, clock=clock, draw=draw.random)
        traffic = Traffic(CallLimits(limited, 2.0, clock=clock), draw)
        await traffic.run(0.5 * CAPACITY, 6)
        await traffic.run(3 * CAPACITY, 9)
        await traffic.run(0.5 * CAPACITY, 5)
        assert now() >= 20
        return traffic

    traffic = simulate(run)
    before, loaded = traffic.between(3, 6), traffic.between(7, 15)
    served = good(loaded)
    assert len(served) / 8 > 0.9 * CAPACITY
    assert percentile(served, 99) < 3 * percentile(good(before), 99)
    refused = [each for each in loaded if each.error == "overloaded"]
    assert len(refused) + len(served) == len(loaded)
    assert percentile(refused, 97) < 0.005
    after = traffic.between(17, 20)
    assert len(good(after)) > 0.99 * len(after)
    assert percentile(good(after), 99) < 2 * percentile(good(before), 99)
