"""Load balancing: the endpoint that each policy chooses."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import Client, Context, ModelRef
from gateway.routing.endpoints import Endpoint
from gateway.routing.load_balancing import (
    BalancingPolicy,
    LoadBalancer,
    PeakEwma,
    key_of,
)
from tests.fakes import ScriptedService

CALL = InferRequest(model=ModelRef("m"))


def endpoints(count: int) -> list[Endpoint]:
    return [Endpoint(f"10.0.0.{n}:8001", ScriptedService()) for n in range(count)]


def of_user(name: str) -> InferRequest:
    context = Context(metadata=(("x-user", name),))
    return InferRequest(model=ModelRef("m"), context=context)


@pytest.mark.parametrize("policy", BalancingPolicy)
def test_a_single_endpoint_gets_every_call(policy: BalancingPolicy) -> None:
    """There is nothing to choose."""
    (only,) = endpoints(1)
    assert only is LoadBalancer(policy).choose([only], CALL, 0.0)


@pytest.mark.parametrize("policy", [policy for policy in BalancingPolicy if policy.value != "hash"])
def test_equal_endpoints_have_equal_shares(policy: BalancingPolicy) -> None:
    """No endpoint has more than 1.2 times its share of 5,000 calls."""
    balancer = LoadBalancer(policy, draw=random.Random(1).random)  # noqa: S311
    many = endpoints(5)
    counts = Counter(balancer.choose(many, CALL, 0.0).name for _ in range(5000))
    assert 5 == len(counts)
    assert 800 < min(counts.values()) <= max(counts.values()) < 1200


def test_least_request_takes_the_one_with_fewer_calls() -> None:
    """Of two endpoints the idle one gets the call, even if it was slower."""
    busy, idle = endpoints(2)
    busy.pending = 1
    idle.latency.observe(1.0, 0.0)
    balancer = LoadBalancer(BalancingPolicy.LEAST_REQUEST)
    assert {idle.name} == {balancer.choose([busy, idle], CALL, 0.0).name for _ in range(20)}


def test_peak_ewma_weighs_calls_by_latency() -> None:
    """Five calls at a fast endpoint cost less than one at a slow endpoint."""
    fast, slow = endpoints(2)
    fast.pending, slow.pending = 5, 1
    fast.latency.observe(0.01, 0.0)
    slow.latency.observe(0.5, 0.0)
    balancer = LoadBalancer(BalancingPolicy.PEAK_EWMA)
    assert {fast.name} == {balancer.choose([fast, slow], CALL, 0.0).name for _ in range(20)}


def test_an_unmeasured_endpoint_does_not_get_all_calls() -> None:
    """Its calls in flight count even before the first one ends."""
    known, new = endpoints(2)
    known.latency.observe(0.002, 0.0)
    balancer = LoadBalancer(BalancingPolicy.PEAK_EWMA)
    for _ in range(30):
        balancer.choose([known, new], CALL, 0.0).pending += 1
    assert known.pending >= 8


def test_latency_rises_at_once_and_is_forgotten() -> None:
    """A peak counts at once; it decays with samples below it, and without any."""
    latency = PeakEwma()
    latency.observe(0.01, 0.0)
    latency.observe(1.0, 0.001)
    assert 1.0 == latency.read(0.001)
    latency.observe(0.01, 1.001)
    assert 0.5 < latency.read(1.001) < 0.65
    assert latency.read(20.0) < 0.001


def test_a_key_keeps_its_endpoint() -> None:
    """The same key gets the same endpoint, and keys spread over all endpoints."""
    many = endpoints(5)
    balancer = LoadBalancer(BalancingPolicy.HASH, key_of("header:X-User"))
    first = {n: balancer.choose(many, of_user(f"u{n}"), 0.0).name for n in range(1000)}
    again = {n: balancer.choose(many, of_user(f"u{n}"), 0.0).name for n in range(1000)}
    assert first == again
    assert 150 < min(Counter(first.values()).values())
    assert max(Counter(first.values()).values()) < 250


def test_only_keys_of_a_lost_endpoint_move() -> None:
    """All other keys keep their endpoint (rendezvous hashing)."""
    many = endpoints(5)
    balancer = LoadBalancer(BalancingPolicy.HASH, key_of("header:x-user"))
    for n in range(200):
        before = balancer.choose(many, of_user(f"u{n}"), 0.0)
        after = balancer.choose(many[:4], of_user(f"u{n}"), 0.0)
        assert before is after or before is many[4]


def test_calls_without_a_key_are_balanced() -> None:
    """A call without the header goes to the endpoint with fewer calls."""
    busy, idle = endpoints(2)
    busy.pending = 1
    balancer = LoadBalancer(BalancingPolicy.HASH, key_of("header:x-user"))
    assert idle is balancer.choose([busy, idle], CALL, 0.0)


@pytest.mark.parametrize(
    ("source", "call", "key"),
    [
        ("model", CALL, "m"),
        ("address", CALL.changed(context=Context(client=Client("10.0.0.7"))), "10.0.0.7"),
        ("address", CALL, None),
        ("header:X-User", of_user("ann"), "ann"),
        ("header:X-User", of_user(""), None),
        ("header:x-tenant", of_user("ann"), None),
    ],
)
def test_keys(source: str, call: InferRequest, key: str | None) -> None:
    """A key is the model, or the value of a header that is not empty."""
    assert key == key_of(source)(call)
