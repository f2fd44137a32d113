"""Balancing, ejection and retries in virtual time: failures end, and retries stay few."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

import pytest

from gateway.ir.context import Origin
from gateway.ir.errors import NotSent, Unavailable
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import AttemptTimeout, RetryBudget, RetryRules
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.balancing.load_balancing import BalancingPolicy, LoadBalancer
from tests.simulation.virtual_time import ModelServer, Traffic, good, percentile, simulate

SERVICE_S = 0.02
WORKERS = 4
EVERYTHING = frozenset({"unsent", "reset_before_answer", "unavailable", "timeout"})


class Replicas:
    """Some servers behind the layers of a route, and traffic through them.

    Args:
        count: Servers.
        draw: A generator of random numbers.
        policy: The load balancing policy.
        rules: The retries.
        timeout_s: Of a call.
        attempt_timeout_s: Of an attempt.
    """

    def __init__(
        self,
        count: int,
        draw: random.Random,
        *,
        policy: BalancingPolicy = BalancingPolicy.LEAST_REQUEST,
        rules: RetryRules | None = None,
        timeout_s: float = 1.0,
        attempt_timeout_s: float = 0.4,
    ) -> None:
        clock = asyncio.get_running_loop().time
        self.servers = [ModelServer(WORKERS, SERVICE_S, draw) for _ in range(count)]
        self.endpoints = Endpoints(
            "up",
            [Endpoint(f"e{n}", server) for n, server in enumerate(self.servers)],
            balancer=LoadBalancer(policy, draw=draw.random),
            clock=clock,
            draw=draw.random,
        )
        retries = RetryBudget(
            RetryRules(reasons=EVERYTHING) if rules is None else rules,
            clock=clock,
            draw=draw.random,
        )
        attempts = AttemptTimeout(self.endpoints, attempt_timeout_s, clock=clock)
        limits = CallLimits(attempts, timeout_s, retries=retries, clock=clock)
        self.traffic = Traffic(limits, draw)
        self.capacity = count * WORKERS / SERVICE_S

    @property
    def received(self) -> int:
        """Attempts that reached the servers."""
        return sum(server.received for server in self.servers)


def hang(server: ModelServer) -> None:
    server.is_hung = True


def reset(server: ModelServer) -> None:
    server.failure = Unavailable


def answer_503(server: ModelServer) -> None:
    server.failure = partial(Unavailable, origin=Origin("oip.http", None))


def refuse(server: ModelServer) -> None:
    server.failure = NotSent


def slow_down(server: ModelServer) -> None:
    server.slowdown = 50.0


def heal(server: ModelServer) -> None:
    server.failure, server.is_hung, server.slowdown = None, False, 1.0


@pytest.mark.parametrize("fault", [hang, reset, answer_503, refuse, slow_down])
@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_one_bad_replica_costs_few_calls(fault: Callable[[ModelServer], None], count: int) -> None:
    """It gets few calls after 1.5 s, and at least half its share 10 s after it recovers."""

    async def run() -> tuple[Replicas, int]:
        replicas = Replicas(count, random.Random(1))  # noqa: S311
        bad, rate = replicas.servers[0], 30.0 * count
        await replicas.traffic.run(rate, 4)
        fault(bad)
        await replicas.traffic.run(rate, 6)
        heal(bad)
        await replicas.traffic.run(rate, 10)
        healed = bad.received
        await replicas.traffic.run(rate, 4)
        return replicas, bad.received - healed

    replicas, returned = simulate(run)
    traffic = replicas.traffic
    before, during = traffic.between(0, 4), traffic.between(5.5, 10)
    assert len(good(during)) > 0.995 * len(during)
    assert percentile(good(during), 99) < 2 * percentile(good(before), 99) + 0.01
    assert returned > 0.5 * 30 * 4
    assert replicas.received <= 1.2 * len(traffic.outcomes) + 3


@pytest.mark.parametrize("fault", [reset, answer_503, refuse])
def test_retries_hide_two_dead_replicas_of_three(
    fault: Callable[[ModelServer], None],
) -> None:
    """With a sufficient retry budget every call succeeds at the third server."""

    async def run() -> Replicas:
        rules = RetryRules(reasons=EVERYTHING, attempts=3, ratio=1.0, least=20)
        replicas = Replicas(3, random.Random(1), rules=rules)  # noqa: S311
        await replicas.traffic.run(40, 3)
        for server in replicas.servers[:2]:
            fault(server)
        await replicas.traffic.run(40, 6)
        return replicas

    outcomes = simulate(run).traffic.outcomes
    assert good(outcomes) == outcomes


def test_retries_do_not_prolong_an_outage_of_all_replicas() -> None:
    """While every attempt fails, the servers get at most 1.2 times the calls."""

    async def run() -> tuple[Replicas, int, int]:
        replicas = Replicas(3, random.Random(2))  # noqa: S311
        await replicas.traffic.run(100, 4)
        calls, received = len(replicas.traffic.outcomes), replicas.received
        for server in replicas.servers:
            reset(server)
        await replicas.traffic.run(100, 8)
        calls = len(replicas.traffic.outcomes) - calls
        received = replicas.received - received
        for server in replicas.servers:
            heal(server)
        await replicas.traffic.run(100, 8)
        return replicas, calls, received

    replicas, calls, received = simulate(run)
    assert received <= 1.2 * calls + 0.2 * 400 + 3  # the calls of the window before count too
    after = replicas.traffic.between(14, 20)
    assert len(good(after)) > 0.99 * len(after)


@pytest.mark.parametrize("seed", [3])
def test_a_burst_does_not_become_a_metastable_failure(seed: int) -> None:
    """After an overload with retries of timeouts, the servers recover at a load they can bear.

    Without a budget each call that times out would become five, and would keep the servers busy
    with attempts that no caller waits for.
    """

    async def run(rules: RetryRules, seconds: float) -> Replicas:
        replicas = Replicas(
            2,
            random.Random(seed),  # noqa: S311
            rules=rules,
            timeout_s=0.5,
            attempt_timeout_s=0.1,
        )
        await replicas.traffic.run(0.7 * replicas.capacity, 3)
        await replicas.traffic.run(1.5 * replicas.capacity, 2)
        await replicas.traffic.run(0.7 * replicas.capacity, seconds)
        return replicas

    budgeted = RetryRules(reasons=EVERYTHING, attempts=5)
    replicas = simulate(lambda: run(budgeted, 15))
    after = replicas.traffic.between(16, 20)
    assert len(good(after)) > 0.97 * len(after)
    assert replicas.received <= 1.2 * len(replicas.traffic.outcomes) + 3

    unbounded = RetryRules(reasons=EVERYTHING, attempts=5, ratio=1.0, least=1_000_000)
    without = simulate(lambda: run(unbounded, 5))
    after = without.traffic.between(7, 10)
    assert without.received > 1.5 * len(without.traffic.outcomes)
    assert len(good(after)) < 0.5 * len(after)


@pytest.mark.parametrize("policy", [policy for policy in BalancingPolicy if policy.value != "hash"])
@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_every_policy_uses_all_endpoints(policy: BalancingPolicy, count: int) -> None:
    """Every endpoint gets calls, and none gets five times its share."""

    async def run() -> Replicas:
        replicas = Replicas(count, random.Random(5), policy=policy)  # noqa: S311
        await replicas.traffic.run(10.0 * count, 2)
        return replicas

    replicas = simulate(run)
    received = sorted(server.received for server in replicas.servers)
    assert received[0] > 0
    assert received[-1] < 5 * 20
    assert len(good(replicas.traffic.outcomes)) == len(replicas.traffic.outcomes)
