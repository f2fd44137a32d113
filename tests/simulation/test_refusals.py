"""Servers that refuse calls or fail at once, in virtual time: they get few of the calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import cache, partial
from typing import TypeVar

import pytest

from gateway.ir.calls import Call, InferRequest
from gateway.ir.context import Origin
from gateway.ir.errors import Forbidden, GatewayError, Overloaded, Unavailable, UpstreamError
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import RetryBudget, RetryRules
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.balancing.load_balancing import BalancingPolicy, LoadBalancer
from gateway.routing.balancing.outlier_detection import DEFAULT, OutlierDetection
from gateway.service import Service
from tests.simulation.virtual_time import (
    ModelServer,
    Traffic,
    elapse,
    good,
    now,
    percentile,
    simulate,
)

R = TypeVar("R")

SERVICE_S = 0.05
CALLS = 1200
RETRY = RetryRules(reasons=frozenset({"unsent", "overloaded"}))
SAID = Origin("oip.http", None)

Fault = Callable[[str], GatewayError]

refuse: Fault = partial(Overloaded, origin=SAID)
fail: Fault = partial(UpstreamError, origin=SAID)
be_unavailable: Fault = partial(Unavailable, origin=SAID)
deny: Fault = partial(Forbidden, origin=SAID)
FAULTS = {"refuse": refuse, "fail": fail, "unavailable": be_unavailable, "deny": deny}


class Replicas:
    """Three servers of one upstream, and clients."""

    def __init__(
        self,
        policy: BalancingPolicy = BalancingPolicy.LEAST_REQUEST,
        *,
        workers: int = 1000,
        rules: RetryRules | None = None,
        outliers: OutlierDetection = DEFAULT,
        seed: int = 1,
    ) -> None:
        clock, draw = asyncio.get_running_loop().time, random.Random(seed)  # noqa: S311
        self.servers = [ModelServer(workers, SERVICE_S, draw) for _ in range(3)]
        key = (lambda call: call.id) if policy is BalancingPolicy.HASH else None
        self.endpoints = Endpoints(
            "up",
            [Endpoint(f"e{n}", server) for n, server in enumerate(self.servers)],
            balancer=LoadBalancer(policy, key, draw.random),
            outliers=outliers,
            clock=clock,
            draw=draw.random,
        )
        retries = RetryBudget(rules or RetryRules(), clock=clock, draw=draw.random)
        self.traffic = Traffic(CallLimits(self.endpoints, None, retries=retries, clock=clock), draw)

    @property
    def received(self) -> list[int]:
        """Calls of each server."""
        return [server.received for server in self.servers]

    @property
    def failed(self) -> int:
        """Calls that failed."""
        return len(self.traffic.outcomes) - len(good(self.traffic.outcomes))


async def flap(server: ModelServer, fault: Fault) -> None:
    """Fail for 2 s, serve for 2 s, and so on."""
    while True:
        server.failure = fault
        await elapse(2)
        server.failure = None
        await elapse(2)


def run_closed(
    policy: BalancingPolicy,
    clients: int,
    fault: Fault | None,
    *,
    flaps: bool = False,
    rules: RetryRules | None = None,
) -> tuple[Replicas, float]:
    """Return the servers after 1,200 calls, the first server with a fault, and the seconds."""

    async def run() -> tuple[Replicas, float]:
        replicas = Replicas(policy, rules=rules)
        flapping = None
        if fault is not None and flaps:
            flapping = asyncio.create_task(flap(replicas.servers[0], fault))
            await asyncio.sleep(0)
        replicas.servers[0].failure = fault
        await replicas.traffic.run_closed(clients, CALLS)
        if flapping is not None:
            flapping.cancel()
        return replicas, now()

    return simulate(run)


@cache
def healthy_s(policy: BalancingPolicy, clients: int) -> float:
    """Return the seconds of the calls to three good servers."""
    return run_closed(policy, clients, None)[1]


@pytest.mark.parametrize(
    ("fault", "clients"), [*((fault, 64) for fault in FAULTS), ("refuse", 1), ("fail", 1)]
)
@pytest.mark.parametrize("policy", BalancingPolicy)
def test_a_server_that_refuses_at_once_attracted_the_calls(
    policy: BalancingPolicy, fault: str, clients: int
) -> None:
    """At most 3 % of the calls fail: those that lower its share, and its trials."""
    replicas, _ = run_closed(policy, clients, FAULTS[fault])
    assert 0 < replicas.failed <= 0.03 * CALLS


@pytest.mark.parametrize(("clients", "flaps"), [(6, False), (64, False), (64, True)])
@pytest.mark.parametrize("policy", BalancingPolicy)
def test_a_retry_of_refusals_hides_a_refusing_server(
    policy: BalancingPolicy, clients: int, flaps: bool
) -> None:
    """It goes to another server, also where many calls are refused at the same moment."""
    replicas, _ = run_closed(policy, clients, refuse, flaps=flaps, rules=RETRY)
    assert 0 == replicas.failed


@pytest.mark.parametrize(
    ("fault", "clients"), [*((fault, 16) for fault in FAULTS), ("refuse", 1), ("fail", 1)]
)
@pytest.mark.parametrize("policy", [BalancingPolicy.LEAST_REQUEST, BalancingPolicy.ROUND_ROBIN])
def test_a_flapping_server_costs_little_goodput(
    policy: BalancingPolicy, fault: str, clients: int
) -> None:
    """It is at least 0.95 of that of three good servers."""
    replicas, seconds = run_closed(policy, clients, FAULTS[fault], flaps=True)
    goodput = (CALLS - replicas.failed) / seconds
    assert goodput >= 0.95 * CALLS / healthy_s(policy, clients)


def test_a_server_that_refused_gets_its_share_back() -> None:
    """It has at least three quarters of it 10 s after its last refusal."""

    async def run() -> tuple[Replicas, int]:
        replicas = Replicas()
        replicas.servers[0].failure = refuse
        await replicas.traffic.run(60, 20)
        replicas.servers[0].failure = None
        await replicas.traffic.run(60, 10)
        before = replicas.servers[0].received
        await replicas.traffic.run(60, 10)
        return replicas, replicas.servers[0].received - before

    replicas, returned = simulate(run)
    assert returned > 0.75 * 200
    assert not replicas.endpoints._shares.lowered


@pytest.mark.parametrize("full", [refuse, be_unavailable])
@pytest.mark.parametrize(("load", "least"), [(0.95, 0.9), (1.1, 0.95), (3.0, 0.95)])
def test_a_full_queue_ejected_a_server_that_works(full: Fault, load: float, least: float) -> None:
    """Three servers with queues of four keep their goodput, whatever they refuse calls with."""

    async def run() -> Replicas:
        replicas = Replicas(workers=4)
        for server in replicas.servers:
            server.queue, server.full = 4, full
        await replicas.traffic.run(load * 12 / SERVICE_S, 20)
        return replicas

    replicas = simulate(run)
    assert len(good(replicas.traffic.outcomes)) >= least * min(load, 1.0) * 12 / SERVICE_S * 20
    assert not any(endpoint.health.ejections for endpoint in replicas.endpoints.endpoints)


def test_errors_of_all_servers_lower_no_share() -> None:
    """A caller whose requests fail everywhere, half of all, makes nobody else wait."""

    async def run() -> Replicas:
        replicas = Replicas(workers=4)
        wrong = Traffic(_Wrong(replicas), replicas.traffic.draw)
        rate = 0.8 * 12 / SERVICE_S
        await asyncio.gather(wrong.run(rate, 20), replicas.traffic.run(rate, 20))
        return replicas

    replicas = simulate(run)
    assert 0 == replicas.failed
    assert percentile(replicas.traffic.outcomes, 99) < 3 * SERVICE_S


class _Wrong:
    """Sends requests that fail at each server."""

    def __init__(self, replicas: Replicas) -> None:
        self._inner = replicas.endpoints
        for endpoint in replicas.endpoints.endpoints:
            endpoint.service = partial(self._serve, endpoint.service)

    async def __call__(self, call: Call[R], /) -> R:
        return await self._inner(call.changed(id="wrong"))

    async def _serve(self, served: Service, call: Call[R]) -> R:
        if isinstance(call, InferRequest) and call.id == "wrong":
            await elapse(0.001)
            raise fail("its model raised")
        return await served(call)


def test_refusals_of_all_servers_make_no_storm() -> None:
    """Each call gets one refusal, and all servers serve again as soon as they can."""

    async def run() -> tuple[Replicas, int, int]:
        replicas = Replicas(rules=RETRY)
        await replicas.traffic.run(100, 4)
        calls, received = len(replicas.traffic.outcomes), sum(replicas.received)
        for server in replicas.servers:
            server.failure = refuse
        await replicas.traffic.run(100, 10)
        calls = len(replicas.traffic.outcomes) - calls
        received = sum(replicas.received) - received
        for server in replicas.servers:
            server.failure = None
        await replicas.traffic.run(100, 10)
        return replicas, calls, received

    replicas, calls, received = simulate(run)
    assert received <= 1.02 * calls
    after = replicas.traffic.between(14.1, 24)
    assert good(after) == after


@pytest.mark.parametrize("policy", [BalancingPolicy.ROUND_ROBIN, BalancingPolicy.LEAST_REQUEST])
def test_a_slow_reply_ended_the_ejection_of_a_slow_server(policy: BalancingPolicy) -> None:
    """It is tried again about every 5 s, also while its probes succeed, and its latency decides."""

    async def run() -> tuple[Replicas, int, int]:
        rules = OutlierDetection(slow_factor=5.0, min_requests=1, interval_s=1.0)
        replicas = Replicas(policy, outliers=rules)
        slow = replicas.endpoints.endpoints[0]
        replicas.servers[0].slowdown = 50.0
        probing = asyncio.create_task(_probe(slow))
        await replicas.traffic.run(100, 20)
        assert slow.health.ejections
        calls, received = len(replicas.traffic.outcomes), replicas.servers[0].received
        await replicas.traffic.run(100, 60)
        calls = len(replicas.traffic.outcomes) - calls
        received = replicas.servers[0].received - received
        replicas.servers[0].slowdown = 1.0
        await replicas.traffic.run(100, 15)
        before = replicas.servers[0].received
        await replicas.traffic.run(100, 5)
        probing.cancel()
        assert replicas.servers[0].received - before > 0.2 * 500
        return replicas, calls, received

    _, calls, received = simulate(run)
    assert 0 < received <= 0.003 * calls


async def _probe(endpoint: Endpoint) -> None:
    while True:
        await elapse(1)
        endpoint.probed(ready=True)
