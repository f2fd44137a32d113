"""Load balancing: the endpoint that each policy chooses."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gateway.ir.call_keys import key_of
from gateway.ir.calls import InferRequest
from gateway.ir.context import Client, Context, ModelRef
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.load_balancing import (
    BalancingPolicy,
    LoadBalancer,
    PeakEwma,
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
    """Every policy selects it."""
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


DRAWING = [BalancingPolicy.LEAST_REQUEST, BalancingPolicy.PEAK_EWMA]


@pytest.mark.parametrize("policy", DRAWING)
def test_two_endpoints_are_drawn_without_a_look_at_the_others(policy: BalancingPolicy) -> None:
    """The less loaded of the two receives the call."""
    balancer = LoadBalancer(policy, draw=random.Random(1).random)  # noqa: S311
    many = endpoints(4)
    for endpoint in many[2:]:
        endpoint.pending = 1
    drawn = [balancer.choose_of_two(many, 0.0) for _ in range(600)]
    counts = Counter(endpoint.name for endpoint in drawn if endpoint is not None)
    assert 600 == counts.total()
    # Both busy ones are drawn together in one draw of six.
    assert 200 < min(counts[each.name] for each in many[:2])
    assert 70 < counts[many[2].name] + counts[many[3].name] < 130


@pytest.mark.parametrize("policy", DRAWING)
def test_an_unavailable_endpoint_is_not_drawn(policy: BalancingPolicy) -> None:
    """A draw that includes it returns None, as in half of the draws with one of four."""
    balancer = LoadBalancer(policy, draw=random.Random(1).random)  # noqa: S311
    many = endpoints(4)
    many[0].probed(ready=False)
    drawn = [balancer.choose_of_two(many, 0.0) for _ in range(600)]
    assert 250 < drawn.count(None) < 350
    assert many[0] not in drawn


@pytest.mark.parametrize("policy", [each for each in BalancingPolicy if each not in DRAWING])
def test_other_policies_draw_no_endpoint(policy: BalancingPolicy) -> None:
    """They choose among the available endpoints."""
    assert LoadBalancer(policy).choose_of_two(endpoints(4), 0.0) is None


@pytest.mark.parametrize("policy", DRAWING)
def test_weighted_or_missing_endpoints_are_not_drawn(policy: BalancingPolicy) -> None:
    """A single endpoint is drawn."""
    balancer, many = weighted(policy, 1, 2)
    assert balancer.choose_of_two(many, 0.0) is None
    assert LoadBalancer(policy).choose_of_two([], 0.0) is None
    assert many[0] is LoadBalancer(policy).choose_of_two(many[:1], 0.0)


def weighted(policy: BalancingPolicy, *weights: float) -> tuple[LoadBalancer, list[Endpoint]]:
    balancer = LoadBalancer(policy, key=key_of("header:x-user"), draw=random.Random(1).random)  # noqa: S311
    balancer.is_weighted = True
    many = endpoints(len(weights))
    for endpoint, weight in zip(many, weights, strict=True):
        endpoint.weight = weight
    return balancer, many


@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("policy", BalancingPolicy)
def test_shares_follow_weights(policy: BalancingPolicy, *, has_key: bool) -> None:
    """Of 5,000 calls each endpoint gets its share, give or take a tenth."""
    balancer, many = weighted(policy, 3.0, 1.0, 0.5, 0.5)
    calls = (of_user(f"user-{n}") if has_key else CALL for n in range(5000))
    counts = Counter(balancer.choose(many, call, 0.0).name for call in calls)
    found = [counts[each.name] / 1000 for each in many]
    assert found == pytest.approx([3.0, 1.0, 0.5, 0.5], rel=0.1)


def test_weighted_round_robin_has_no_bursts() -> None:
    """Calls of the heavier endpoint are spread, and a returning endpoint gets no extra calls."""
    balancer, (a, b) = weighted(BalancingPolicy.ROUND_ROBIN, 2.0, 1.0)
    choices = [balancer.choose([a, b], CALL, 0.0) for _ in range(9)]
    assert 3 == choices.count(b)
    assert all(b in choices[start : start + 4] for start in range(6))
    third = endpoints(1)[0]
    for _ in range(30):
        balancer.choose([a, third], CALL, 0.0)
    choices = [balancer.choose([a, b], CALL, 0.0) for _ in range(9)]
    assert 3 == choices.count(b)


@pytest.mark.parametrize("policy", [BalancingPolicy.LEAST_REQUEST, BalancingPolicy.PEAK_EWMA])
def test_calls_in_flight_lower_a_weighted_share(policy: BalancingPolicy) -> None:
    """An endpoint that does not reply gets few calls, whatever its weight."""
    balancer, (heavy, light) = weighted(policy, 2.0, 1.0)
    heavy.pending = 99
    counts = Counter(balancer.choose([heavy, light], CALL, 0.0).name for _ in range(1000))
    assert counts[heavy.name] < 50


def test_latency_lowers_a_weighted_share() -> None:
    """With `peak_ewma` an endpoint that is ten times slower gets a tenth of its share."""
    balancer, (slow, fast) = weighted(BalancingPolicy.PEAK_EWMA, 2.0, 1.0)
    slow.latency.observe(0.2, 0.0)
    fast.latency.observe(0.02, 0.0)
    counts = Counter(balancer.choose([slow, fast], CALL, 0.0).name for _ in range(1000))
    assert 130 < counts[slow.name] < 200


def test_least_request_selects_the_endpoint_with_fewer_calls() -> None:
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
    old, new = endpoints(2)
    old.latency.observe(0.002, 0.0)
    balancer = LoadBalancer(BalancingPolicy.PEAK_EWMA)
    for _ in range(30):
        balancer.choose([old, new], CALL, 0.0).pending += 1
    assert old.pending >= 8


def test_latency_rises_at_once_and_decays() -> None:
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
def test_keys_are_the_model_the_address_or_a_header(
    source: str, call: InferRequest, key: str | None
) -> None:
    """An empty or missing value is no key."""
    assert key == key_of(source)(call)
