"""The endpoints of one upstream: their health, and the choice of one for each call.

Health has two sources: readiness from the last probe (`health_probe`), and the errors of calls,
which eject an endpoint. If no endpoint is healthy, all are used: a wrong health state must not
cause a total outage.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from gateway.ir.calls import Call, InferRequest, StreamInferRequest, inference_of
from gateway.ir.context import ModelRef
from gateway.ir.context import Sequence as InferSequence
from gateway.ir.errors import ErrorCode, GatewayError, Unavailable
from gateway.ir.streams import on_stream_end
from gateway.routing.broadcast import BROADCAST_CALLS, broadcast
from gateway.routing.sequence_affinity import IDLE_S, SequenceAffinity
from gateway.service import ReplyCoroutine, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

# Errors that are independent of the endpoint's health: the caller, its deadline or our limits.
_NEUTRAL = frozenset({ErrorCode.CANCELLED, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.OVERLOADED})


def _is_disconnect(error: BaseException | None) -> bool:
    """Return whether the endpoint was unreachable, as opposed to responding with an error."""
    return isinstance(error, Unavailable) and error.origin is None


class BalancingPolicy(enum.Enum):
    """How an endpoint is chosen among the available ones."""

    LEAST_PENDING = "least_pending"
    ROUND_ROBIN = "round_robin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ejection:
    """When an endpoint gets no calls for a while.

    Attributes:
        errors: Number of consecutive UNAVAILABLE errors that eject it; 0 never ejects.
        base_s: Duration of the first ejection; each further ejection is longer by this time.
        longest_s: Maximum duration.
    """

    errors: int = 5
    base_s: float = 30.0
    longest_s: float = 300.0


class Endpoint:
    """One address of an upstream.

    Attributes:
        name: Its address, for logs, metrics and errors.
        service: Sends it calls.
        ready: Result of the last probe; True without probes.
        pending: Calls in flight; counted only if the upstream has several endpoints.
    """

    def __init__(self, name: str, service: Service) -> None:
        self.name = name
        self.service = service
        self.ready = True
        self.pending = 0
        self.streak = 0
        self.ejections = 0
        self.ejected_until = 0.0

    def available(self, now: float) -> bool:
        """Return whether it is ready and not ejected."""
        return self.ready and now >= self.ejected_until


class Endpoints:
    """A Service that sends each call to one of its endpoints.

    Args:
        name: Name of the upstream.
        endpoints: At least one.
        picker: The load balancing policy.
        ejection: When an endpoint gets no calls for a while.
        sequence_idle_s: Time without a request after which a sequence may change its endpoint.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        endpoints: Sequence[Endpoint],
        *,
        picker: BalancingPolicy = BalancingPolicy.LEAST_PENDING,
        ejection: Ejection = Ejection(),
        sequence_idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not endpoints:
            raise ValueError(f"upstream {name!r} has no endpoints")
        self.name = name
        self.endpoints = tuple(endpoints)
        self._only = endpoints[0] if len(endpoints) == 1 else None
        self._picker = picker
        self._ejection = ejection
        self._clock = clock
        self._affinity = SequenceAffinity("endpoint", idle_s=sequence_idle_s, clock=clock)
        self._turn = 0

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call one endpoint; send broadcast calls to all endpoints."""
        request = call if type(call) is InferRequest else inference_of(call)
        if request is not None and request.sequence is not None:
            return self._call_assigned(request.sequence, call)
        if self._only is not None:
            # A single endpoint needs no choice, and the last endpoint is never ejected.
            return self._only.service(call)
        if type(call) in BROADCAST_CALLS:
            return broadcast(call, [partial(self._call, endpoint) for endpoint in self.endpoints])
        return self._call(self._choose(), call)

    async def _call_assigned(self, sequence: InferSequence, call: Call[R]) -> R:
        """Call the endpoint of *sequence*; the sequence is lost if the endpoint disconnects."""
        by_name = {endpoint.name: endpoint for endpoint in self._candidates()}
        weights = dict.fromkeys(by_name, 1.0)
        endpoint = by_name[self._affinity.assign(call.model, sequence, weights)]
        try:
            reply = await self._call(endpoint, call)
        except GatewayError as error:
            if not _is_disconnect(error):
                raise
            self._affinity.mark_lost(call.model, sequence, endpoint.name)
            raise Unavailable(
                f"sequence {sequence.id!r} is lost; restart it: {error.message}", model=call.model
            ) from error
        on_end = partial(self._on_sequence_stream_end, call.model, sequence, endpoint)
        return on_stream_end(call, reply, on_end)

    def _on_sequence_stream_end(
        self,
        model: ModelRef | None,
        sequence: InferSequence,
        endpoint: Endpoint,
        error: BaseException | None,
    ) -> None:
        if _is_disconnect(error):
            self._affinity.mark_lost(model, sequence, endpoint.name)

    async def _call(self, endpoint: Endpoint, call: Call[R], /) -> R:
        is_stream = type(call) is StreamInferRequest
        endpoint.pending += 1
        try:
            reply = await endpoint.service(call)
        except BaseException as error:
            self._on_call_end(endpoint, error)
            raise
        if is_stream:
            return on_stream_end(call, reply, partial(self._on_call_end, endpoint))
        self._on_call_end(endpoint, None)
        return reply

    def ready(self) -> bool:
        """Return whether some endpoint is available."""
        now = self._clock()
        return any(endpoint.available(now) for endpoint in self.endpoints)

    def _candidates(self) -> list[Endpoint]:
        now = self._clock()
        found = [endpoint for endpoint in self.endpoints if endpoint.available(now)]
        return found or list(self.endpoints)

    def _choose(self) -> Endpoint:
        candidates = self._candidates()
        self._turn += 1
        turn = self._turn % len(candidates)
        if self._picker is BalancingPolicy.ROUND_ROBIN:
            return candidates[turn]
        # The turn breaks ties, so that idle endpoints get equal shares of the calls.
        return min(candidates[turn:] + candidates[:turn], key=lambda endpoint: endpoint.pending)

    def _on_call_end(self, endpoint: Endpoint, error: BaseException | None) -> None:
        endpoint.pending -= 1
        if error is None:
            pass
        elif isinstance(error, GatewayError):
            if error.code is ErrorCode.UNAVAILABLE:
                self._on_unavailable(endpoint, error)
                return
            if error.code in _NEUTRAL:
                return
        else:
            return
        endpoint.streak = 0
        if endpoint.ejections and self._clock() >= endpoint.ejected_until + self._ejection.base_s:
            endpoint.ejections = 0

    def _on_unavailable(self, endpoint: Endpoint, error: GatewayError) -> None:
        endpoint.streak += 1
        rules = self._ejection
        if not rules.errors or endpoint.streak < rules.errors:
            return
        now = self._clock()
        ejected = sum(other.ejected_until > now for other in self.endpoints)
        has_other = any(other.available(now) for other in self.endpoints if other is not endpoint)
        # Eject at most half of the endpoints, and never the last available one.
        if ejected + 1 > len(self.endpoints) // 2 or not has_other or endpoint.ejected_until > now:
            return
        endpoint.ejections += 1
        endpoint.streak = 0
        duration_s = min(rules.base_s * endpoint.ejections, rules.longest_s)
        endpoint.ejected_until = now + duration_s
        log.warning(
            "endpoint ejected",
            upstream=self.name,
            endpoint=endpoint.name,
            seconds=duration_s,
            error=error.message,
        )
