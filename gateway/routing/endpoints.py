"""The endpoints of one upstream: which of them can be had, and which takes a call.

Two sources of health meet here: readiness as a prober last saw it (`probe`), and what calls
themselves meet ("passive" ejection). Where no endpoint looks healthy all are tried: a wrong guess
about health must not make a total outage.
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
from gateway.ir.context import Sequence as Place
from gateway.ir.errors import ErrorCode, GatewayError, Unavailable
from gateway.ir.streams import on_stream_end
from gateway.routing.broadcast import BROADCAST_CALLS, broadcast
from gateway.routing.sequence_affinity import IDLE_S, SequenceAffinity
from gateway.service import ReplyCoroutine, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

# They say nothing about the endpoint: the caller left, its time was over, or our own limits spoke.
_NEUTRAL = frozenset({ErrorCode.CANCELLED, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.OVERLOADED})


def _broke_off(error: BaseException | None) -> bool:
    """Tell whether the endpoint could not be reached, rather than said that it cannot serve."""
    return isinstance(error, Unavailable) and error.origin is None


class BalancingPolicy(enum.Enum):
    """How an endpoint is chosen among the available ones."""

    LEAST_PENDING = "least_pending"
    ROUND_ROBIN = "round_robin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ejection:
    """When an endpoint is left alone for a while; times in seconds.

    Attributes:
        errors: So many UNAVAILABLE answers in a row eject; 0 never ejects.
        base_s: Time out the first time; it grows by as much with each ejection that follows.
        longest_s: It grows no further than this.
    """

    errors: int = 5
    base_s: float = 30.0
    longest_s: float = 300.0


class Endpoint:
    """One address of an upstream.

    Attributes:
        name: Its address, for logs, metrics and errors.
        service: Asks it.
        ready: What its prober last saw; True while nobody probes.
        pending: Calls in flight; counted where there is another to choose.
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
    """A Service that gives each call to one of its endpoints.

    Args:
        name: Of the upstream.
        endpoints: At least one.
        picker: How one is chosen.
        ejection: When one is left alone.
        sequence_idle_s: How long a sequence stays at its endpoint without a request.
        clock: Monotonic seconds.
    """

    def __init__(  # all by name but the first two
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
        """Ask one endpoint, or all of them what each must know itself."""
        request = call if type(call) is InferRequest else inference_of(call)
        if request is not None and request.sequence is not None:
            return self._ask_holder(request.sequence, call)
        if self._only is not None:
            # Nothing to choose, nor to eject: the last one that can be had stays.
            return self._only.service(call)
        if type(call) in BROADCAST_CALLS:
            return broadcast(call, [partial(self._ask, endpoint) for endpoint in self.endpoints])
        return self._ask(self._choose(), call)

    async def _ask_holder(self, sequence: Place, call: Call[R]) -> R:
        """Ask the endpoint that holds *sequence*; when it breaks off, the sequence is over."""
        by_name = {endpoint.name: endpoint for endpoint in self._candidates()}
        weights = dict.fromkeys(by_name, 1.0)
        endpoint = by_name[self._affinity.assign(call.model, sequence, weights)]
        try:
            reply = await self._ask(endpoint, call)
        except GatewayError as error:
            if not _broke_off(error):
                raise
            self._affinity.mark_lost(call.model, sequence, endpoint.name)
            raise Unavailable(
                f"sequence {sequence.id!r} is lost, start it again: {error.message}",
                model=call.model,
            ) from error
        return on_stream_end(call, reply, partial(self._lose, call.model, sequence, endpoint))

    def _lose(
        self,
        model: ModelRef | None,
        sequence: Place,
        endpoint: Endpoint,
        error: BaseException | None,
    ) -> None:
        if _broke_off(error):
            self._affinity.mark_lost(model, sequence, endpoint.name)

    async def _ask(self, endpoint: Endpoint, call: Call[R], /) -> R:
        is_stream = type(call) is StreamInferRequest
        endpoint.pending += 1
        try:
            reply = await endpoint.service(call)
        except BaseException as error:
            self._ended(endpoint, error)
            raise
        if is_stream:
            return on_stream_end(call, reply, partial(self._ended, endpoint))
        self._ended(endpoint, None)
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
        # The turn breaks ties, so that idle endpoints share the calls.
        return min(candidates[turn:] + candidates[:turn], key=lambda endpoint: endpoint.pending)

    def _ended(self, endpoint: Endpoint, error: BaseException | None) -> None:
        endpoint.pending -= 1
        if error is None:
            pass
        elif isinstance(error, GatewayError):
            if error.code is ErrorCode.UNAVAILABLE:
                self._failed(endpoint, error)
                return
            if error.code in _NEUTRAL:
                return
        else:
            return
        endpoint.streak = 0
        if endpoint.ejections and self._clock() >= endpoint.ejected_until + self._ejection.base_s:
            endpoint.ejections = 0

    def _failed(self, endpoint: Endpoint, error: GatewayError) -> None:
        endpoint.streak += 1
        rules = self._ejection
        if not rules.errors or endpoint.streak < rules.errors:
            return
        now = self._clock()
        out = sum(other.ejected_until > now for other in self.endpoints)
        others = any(other.available(now) for other in self.endpoints if other is not endpoint)
        # Half of the endpoints at most, and never the last one that can be had.
        if out + 1 > len(self.endpoints) // 2 or not others or endpoint.ejected_until > now:
            return
        endpoint.ejections += 1
        endpoint.streak = 0
        out_s = min(rules.base_s * endpoint.ejections, rules.longest_s)
        endpoint.ejected_until = now + out_s
        log.warning(
            "endpoint ejected",
            upstream=self.name,
            endpoint=endpoint.name,
            seconds=out_s,
            error=error.message,
        )
