"""Load balancing: which of the available endpoints of an upstream gets a call."""

import enum
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from gateway.ir.call_keys import Key
from gateway.ir.calls import Call
from gateway.routing.sequence_affinity import rendezvous

_DECAY_S: Final = 2.0
# An endpoint whose latency is unknown must not get all calls.
_LEAST_S: Final = 0.001


class BalancingPolicy(enum.Enum):
    """How one of the available endpoints is chosen."""

    ROUND_ROBIN = "round_robin"
    LEAST_REQUEST = "least_request"
    PEAK_EWMA = "peak_ewma"
    RANDOM = "random"
    HASH = "hash"


class PeakEwma:
    """An average of latencies that follows increases at once, and decreases within seconds.

    It decays without calls, so that an endpoint that was slow is tried again.

    Source: linkerd and Finagle, "Beyond Round Robin: Load Balancing for Latency".
    """

    __slots__ = ("_at", "_value_s")

    def __init__(self) -> None:
        self._value_s = 0.0
        self._at = 0.0

    def observe(self, latency_s: float, now: float) -> None:
        """Add the latency of a call that ended at *now*."""
        weight = math.exp((self._at - now) / _DECAY_S)
        average_s = self._value_s * weight
        self._value_s = max(latency_s, average_s + (1 - weight) * latency_s)
        self._at = now

    def read(self, now: float) -> float:
        """Return the average in seconds."""
        return self._value_s * math.exp((self._at - now) / _DECAY_S)


class BalancedEndpoint(Protocol):
    """What a policy needs to know of an endpoint.

    Attributes:
        pending: Calls in flight.
        last_turn: Number of the call that was sent to it last.
        latency: The average latency of its calls.
        name: Its address.
        weight: Its share of the calls, relative to the others.
        next_turn: Its place in the turns of weighted round robin.
    """

    pending: int
    last_turn: int
    latency: PeakEwma
    name: str
    weight: float
    next_turn: float

    def is_available(self, now: float, /) -> bool:
        """Return whether it may get a call."""


E = TypeVar("E", bound=BalancedEndpoint)


class LoadBalancer:
    """Chooses an endpoint for each call of an upstream.

    With `least_request` and `peak_ewma` two endpoints are drawn, and the better one gets the call:
    many gateways then do not all choose the same endpoint. If weights differ, one is drawn: with
    `least_request` the chance of an endpoint is its weight / (its calls in flight + 1), and
    `peak_ewma` also divides by the latency.

    Args:
        policy: How an endpoint is chosen.
        key: For `HASH`; calls without a key are balanced as with `LEAST_REQUEST`.
        draw: Random numbers in [0, 1).

    Attributes:
        is_weighted: Whether the weights of the endpoints differ.
        turn: Number of choices so far.

    Sources: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing"; Envoy, "Weighted
    least request".
    """

    def __init__(
        self,
        policy: BalancingPolicy,
        key: Key | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.measures_latency = policy not in {BalancingPolicy.ROUND_ROBIN, BalancingPolicy.RANDOM}
        self._draws_two = policy in {BalancingPolicy.LEAST_REQUEST, BalancingPolicy.PEAK_EWMA}
        self._policy = policy
        self._key = key
        self._draw = draw
        self.turn = 0
        self._first_turn = 0.0
        self.is_weighted = False

    def choose_of_two(self, endpoints: Sequence[E], now: float) -> E | None:
        """Return the better one of two endpoints drawn from *endpoints*, if both are available.

        `choose` needs the available endpoints, and finding them means checking all of them for each
        call. This checks two, and the shares are the same if the caller uses `choose` for None.

        Returns:
            None if an endpoint that was drawn is not available. Always None if the policy does not
            draw two, if weights differ, and without endpoints.
        """
        if not (self._draws_two and endpoints) or self.is_weighted:
            return None
        first, second = self._two(endpoints)
        if not (first.is_available(now) and second.is_available(now)):
            return None
        self.turn += 1
        chosen = self._better(first, second, now)
        chosen.last_turn = self.turn
        return chosen

    def choose(self, endpoints: Sequence[E], call: Call[Any], now: float) -> E:
        """Return one of *endpoints*, of which there is at least one."""
        self.turn += 1
        chosen = self._choose(endpoints, call, now) if len(endpoints) > 1 else endpoints[0]
        chosen.last_turn = self.turn
        return chosen

    def _choose(self, endpoints: Sequence[E], call: Call[Any], now: float) -> E:
        policy = self._policy
        if self.is_weighted and policy is not BalancingPolicy.HASH:
            return self._choose_by_weight(endpoints, now)
        if policy is BalancingPolicy.ROUND_ROBIN:
            return endpoints[self.turn % len(endpoints)]
        if policy is BalancingPolicy.RANDOM:
            return endpoints[int(self._draw() * len(endpoints))]
        if policy is BalancingPolicy.HASH:
            key = None if self._key is None else self._key(call)
            if key is not None:
                name = rendezvous(key, {each.name: each.weight for each in endpoints})
                return next(each for each in endpoints if each.name == name)
            if self.is_weighted:
                return self._choose_by_weight(endpoints, now)
        return self._better(*self._two(endpoints), now)

    def _choose_by_weight(self, endpoints: Sequence[E], now: float) -> E:
        if self._policy is BalancingPolicy.ROUND_ROBIN:
            return self._take_turn(endpoints)
        shares = [self._share(each, now) for each in endpoints]
        point = self._draw() * sum(shares)
        for endpoint, share in zip(endpoints, shares, strict=True):
            point -= share
            if point < 0:
                return endpoint
        return endpoints[-1]

    def _take_turn(self, endpoints: Sequence[E]) -> E:
        """Return the endpoint whose turn is the earliest; its next one is 1 / weight later.

        An endpoint that was away begins with the others, and makes up for nothing.
        """
        for each in endpoints:
            each.next_turn = max(each.next_turn, self._first_turn)
        chosen = min(endpoints, key=lambda each: (each.next_turn, each.last_turn))
        self._first_turn = chosen.next_turn
        chosen.next_turn += 1 / chosen.weight
        return chosen

    def _share(self, endpoint: BalancedEndpoint, now: float) -> float:
        if self._policy is BalancingPolicy.RANDOM:
            return endpoint.weight
        share = endpoint.weight / (endpoint.pending + 1)
        if self._policy is BalancingPolicy.PEAK_EWMA:
            share /= max(endpoint.latency.read(now), _LEAST_S)
        return share

    def _two(self, endpoints: Sequence[E]) -> tuple[E, E]:
        count = len(endpoints)
        first = int(self._draw() * count)
        second = (first + 1 + int(self._draw() * (count - 1))) % count
        return endpoints[first], endpoints[second]

    def _better(self, first: E, second: E, now: float) -> E:
        """Return the one for which another call costs less, or the one that waited longer."""
        costs: tuple[float, float]
        if self._policy is BalancingPolicy.PEAK_EWMA:
            costs = self._peak_cost(first, now), self._peak_cost(second, now)
        elif first.pending != second.pending:
            costs = first.pending, second.pending
        else:
            costs = _magnitude(first.latency, now), _magnitude(second.latency, now)
        if costs[0] == costs[1]:
            costs = first.last_turn, second.last_turn
        return first if costs[0] <= costs[1] else second

    def _peak_cost(self, endpoint: BalancedEndpoint, now: float) -> float:
        return max(endpoint.latency.read(now), _LEAST_S) * (endpoint.pending + 1)


def _magnitude(latency: PeakEwma, now: float) -> int:
    """Return the power of two above *latency*: smaller differences are noise."""
    return math.frexp(max(latency.read(now), _LEAST_S))[1]
