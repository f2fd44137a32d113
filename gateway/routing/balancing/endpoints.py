"""The endpoints of one upstream: which of them are available, and which gets a call.

An endpoint is available when its last probe succeeded (`health_probe`) and its calls do not fail
(`outlier_detection`).  When no endpoint is available all of them get calls: a wrong guess about
health must not become a total outage.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, TypeVar

from gateway.ir.attempts import ATTEMPT
from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.bodies.streams import map_stream, on_stream_end
from gateway.ir.calls import (
    MODEL_CONTROL_CALLS,
    Call,
    InferRequest,
    ModelLoadRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import GatewayError, NotSent, Unavailable
from gateway.model_info.sequence_ids import SequenceIdTypes
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoint_results import EndpointResults, OnEjected, ignore_ejection
from gateway.routing.balancing.endpoint_share import EndpointShares, FirstReplyStream
from gateway.routing.balancing.load_balancing import BalancingPolicy, LoadBalancer
from gateway.routing.balancing.outlier_detection import DEFAULT, OutlierDetection
from gateway.routing.balancing.placement import PLACEMENT, Placement
from gateway.routing.broadcast import BROADCAST_CALLS, broadcast
from gateway.routing.sequence_affinity import IDLE_S, SequenceAffinity
from gateway.service import ReplyCoroutine

R = TypeVar("R")

# The share of the calls with which a slow start begins.
_FIRST_SHARE = 0.1

# For new sequences, of an endpoint that does not have the first rank.
_NO_WEIGHT = 1e-9

ALL = "*"
"""Stands for all endpoints, where names are expected."""


def _is_disconnect(error: BaseException | None) -> bool:
    """Return whether the endpoint was not reached; else it replied that it cannot serve."""
    return isinstance(error, Unavailable) and error.origin is None


class Endpoints:
    """A Service that sends each call to one of its endpoints.

    A call that was certainly not sent, because its endpoint could not be reached, goes to the next
    available endpoint at once.

    Args:
        name: Name of the upstream.
        endpoints: At least one, unless they change.
        balancer: Chooses one of the available endpoints; by `least_request` without one.
        slow_start_s: Time in which the share of an endpoint that became available grows from 10%.
        outliers: The conditions for ejecting an endpoint.
        on_ejected: Called at each ejection.
        sequence_idle_s: Time without a request after which a sequence may change its endpoint.
        sequence_ids: The allowed sequence ids of each model; None for any.
        is_fixed: Whether the endpoints stay as they are; `replace` changes others. Also an
            attribute.
        clock: Monotonic seconds; that of `Context.deadline`.
        draw: Random numbers in [0, 1), for the slow start.

    Attributes:
        placement: The layer above that chooses among them; None for none.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first two
        self,
        name: str,
        endpoints: Sequence[Endpoint],
        *,
        balancer: LoadBalancer | None = None,
        slow_start_s: float = 0.0,
        outliers: OutlierDetection = DEFAULT,
        on_ejected: OnEjected = ignore_ejection,
        sequence_idle_s: float = IDLE_S,
        sequence_ids: SequenceIdTypes | None = None,
        is_fixed: bool = True,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if not endpoints and is_fixed:
            raise ValueError(f"upstream {name!r} has no endpoints")
        self.name = name
        self.is_fixed = is_fixed
        self._drained: AbstractSet[str] = frozenset()
        self._balancer = balancer or LoadBalancer(BalancingPolicy.LEAST_REQUEST)
        self._slow_start_s = slow_start_s
        self._draw = draw
        self._clock = clock
        self.affinity = SequenceAffinity("endpoint", idle_s=sequence_idle_s, clock=clock)
        self._sequence_ids = sequence_ids
        self._only: Endpoint | None = None
        self._has_placement = self._has_closed = False
        self.placement: Placement | None = None
        self._shares = EndpointShares[Endpoint](name, draw, outliers.max_ejection_s)
        self._results = EndpointResults(
            name,
            self._shares,
            self._balancer,
            outliers,
            on_ejected=on_ejected,
            on_share=self._compare,
            clock=clock,
        )
        self._ended = self._results.ended
        self.replace(endpoints)

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        """Choose among *endpoints* from now on; those that are leaving get no new calls."""
        for endpoint in endpoints:
            endpoint.clock = self._clock
        self.endpoints = tuple(endpoints)
        self._has_ranks = len({endpoint.rank for endpoint in endpoints}) > 1
        self._shares.replace(self.endpoints)
        self._results.endpoints = self.endpoints
        self._compare()
        self._balancer.is_weighted = len({endpoint.weight for endpoint in endpoints}) > 1
        self._update_drained()

    def _compare(self) -> None:
        # Neither ranks, a slow start nor a lowered share, so any two may be compared.
        differ = self._has_ranks or self._slow_start_s or self._shares.lowered
        self._are_equal = not (differ or self._has_placement or self._has_closed)

    def follow_placement(self) -> None:
        """Send each call to the endpoint of `PLACEMENT`, if it has one."""
        self._has_placement = True
        self._compare()

    def close_to(self, endpoint: Endpoint, model: str) -> None:
        """Send no new calls of a model to one endpoint."""
        endpoint.closed_to |= {model}
        self._update_closed()

    def open_to(self, endpoint: Endpoint, model: str) -> None:
        """Send calls of a model to one endpoint again."""
        endpoint.closed_to -= {model}
        self._update_closed()

    def _update_closed(self) -> None:
        self._has_closed = any(endpoint.closed_to for endpoint in self.endpoints)
        self._compare()
        self._update_drained()

    async def load_at(self, endpoint: Endpoint, call: ModelLoadRequest) -> None:
        """Load a model at one endpoint, and probe it before the reply; see `_control`."""
        try:
            if self.placement is None:
                await endpoint.service(call)
            else:
                await self.placement.load_at(endpoint, call)
        finally:
            if endpoint.probe is not None:
                await endpoint.probe()

    def drain(self, names: AbstractSet[str]) -> None:
        """Let the endpoints *names* finish what they have, and all others get calls.

        Args:
            names: Endpoints, present or future; "*" means all.
        """
        self._drained = names
        self._update_drained()

    def _update_drained(self) -> None:
        names = self._drained
        for endpoint in self.endpoints:
            is_named = endpoint.name in names or ALL in names
            endpoint.is_drained = is_named or endpoint.is_leaving
        # Calls of endpoints that change are counted, also those of the only one.
        only = self.endpoints[0] if self.is_fixed and len(self.endpoints) == 1 else None
        is_open = only is not None and not (only.is_drained or only.closed_to)
        self._only = only if is_open else None

    def is_used(self, endpoint: Endpoint) -> bool:
        """Return whether *endpoint* has calls or open sequences; only if endpoints may change."""
        return endpoint.pending > 0 or self.affinity.is_assigned(endpoint.name)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Send *call* to one endpoint, or to all of them where each must have the call."""
        request = call if type(call) is InferRequest else inference_of(call)
        if request is not None and request.sequence is not None:
            return self._call_assigned(request.sequence, call)
        if request is None and type(call) in MODEL_CONTROL_CALLS:
            return self._control(call)
        if self._only is not None:
            # Nothing to choose, and nothing to eject: the last endpoint always stays.
            service = self._only.service
            return service(call)
        if type(call) in BROADCAST_CALLS:
            return self._call_all(call)
        return self._call(call)

    async def _control(self, call: Call[R]) -> R:
        """Send *call* to every endpoint, and probe them before its reply.

        A server that loads a model is not ready meanwhile: a client that asks as soon as it has the
        reply must not read the result of an older probe.
        """
        try:
            return await self._call_all(call)
        finally:
            probes = [endpoint.probe for endpoint in self.endpoints if endpoint.probe is not None]
            await asyncio.gather(*(probe() for probe in probes))

    async def _call_all(self, call: Call[R]) -> R:
        if not self.endpoints:
            raise self._all_drained()
        return await broadcast(call, [partial(self._call, only=each) for each in self.endpoints])

    async def _call_others(self, call: Call[R], tried: Endpoint, error: NotSent) -> R:
        others = [each for each in self._candidates(self._clock(), call.model) if each is not tried]
        while others and self._can_repeat(call):
            endpoint = self._choose_among(others, call, self._clock())
            others.remove(endpoint)
            try:
                return await self._call(call, endpoint)
            except NotSent as further:
                error = further
        raise error

    def _can_repeat(self, call: Call[Any]) -> bool:
        """Return whether there is time, and no attempt has used a part of the body."""
        deadline, body = call.context.deadline, streaming_body_of(call)
        if body is not None and body.is_started:
            return False
        return deadline is None or self._clock() < deadline

    async def _call_assigned(self, sequence: CallSequence, call: Call[R]) -> R:
        """Send *call* to the endpoint that holds *sequence*; without the endpoint, it is lost."""
        if self._sequence_ids is not None:
            await self._sequence_ids.check(call.model or ModelRef(""), sequence, self)
        now = self._clock()
        candidates: Sequence[Endpoint] = self._candidates(now, call.model)
        if sequence.start:
            candidates = self._shares.willing(candidates, now)
        by_name = {endpoint.name: endpoint for endpoint in candidates}
        if not sequence.start:
            current = self.affinity.name_of(call.model, sequence)
            draining = [each for each in self.endpoints if each.is_drained or each.closed_to]
            drained = (each for each in draining if each.is_ready)
            by_name |= {endpoint.name: endpoint for endpoint in drained if endpoint.name == current}
        if not by_name:
            raise self._all_drained()
        # Sequences that an endpoint of another rank holds stay there; new ones do not go there.
        first = min(endpoint.rank for endpoint in by_name.values())
        weights = {
            name: endpoint.weight if endpoint.rank == first else _NO_WEIGHT
            for name, endpoint in by_name.items()
        }
        endpoint = by_name[self.affinity.assign(call.model, sequence, weights)]
        endpoint.share.begin(now)
        try:
            reply = await self._call(call, endpoint)
        except GatewayError as error:
            if not _is_disconnect(error):
                raise
            self.affinity.mark_lost(call.model, sequence, endpoint.name)
            raise Unavailable(
                f"sequence {sequence.id!r} is lost; restart it: {error.message}",
                model=call.model,
            ) from error
        return on_stream_end(call, reply, partial(self._lose, call.model, sequence, endpoint))

    def _lose(
        self,
        model: ModelRef | None,
        sequence: CallSequence,
        endpoint: Endpoint,
        error: BaseException | None,
    ) -> None:
        if _is_disconnect(error):
            self.affinity.mark_lost(model, sequence, endpoint.name)

    async def _call(self, call: Call[R], /, only: Endpoint | None = None) -> R:
        """Send *call* to an endpoint, and to others while none of them is reached.

        Args:
            call: The call.
            only: The endpoint that must have it; by default the load balancer chooses.
        """
        is_stream = type(call) is StreamInferRequest
        started = self._clock()
        endpoint = self._choose(call, started) if only is None else only
        endpoint.pending += 1
        endpoint.health.begin()
        try:
            reply = await endpoint.service(call)
        except BaseException as error:
            self._ended(endpoint, call, started, error)
            if only is not None or not isinstance(error, NotSent):
                raise
            return await self._call_others(call, endpoint, error)
        if is_stream:
            ended = partial(self._ended, endpoint, call, started)
            refused = partial(ended, is_reply=True)
            return map_stream(call, reply, lambda items: FirstReplyStream(items, ended, refused))
        self._ended(endpoint, call, started, None)
        return reply

    def ready(self) -> bool:
        """Return whether some endpoint is available."""
        now = self._clock()
        return any(endpoint.is_available(now) for endpoint in self.endpoints)

    def _candidates(self, now: float, model: ModelRef | None) -> list[Endpoint]:
        chosen = PLACEMENT.get() if self._has_placement else None
        if chosen is not None and chosen in self.endpoints:
            return [chosen]
        return self.candidates(now, "" if model is None else model.name)

    def candidates(self, now: float, model: str = "") -> list[Endpoint]:
        """Return the endpoints that may get calls: those available, else all not drained.

        Args:
            now: The time.
            model: The model of the call; "" for none.
        """
        endpoints: Sequence[Endpoint] = self.endpoints
        if self._has_closed:
            endpoints = [endpoint for endpoint in endpoints if model not in endpoint.closed_to]
        available = [endpoint for endpoint in endpoints if endpoint.is_available(now)]
        return available or [endpoint for endpoint in endpoints if not endpoint.is_drained]

    def _all_drained(self) -> Unavailable:
        if not self.endpoints:
            return Unavailable(
                f"upstream {self.name!r} has no address: its name could not be looked up"
            )
        if any(not endpoint.is_drained for endpoint in self.endpoints):
            text = "has no endpoint for the model: all are loading it, or have failed to"
            return Unavailable(f"upstream {self.name!r} {text} (rolling_load)")
        return Unavailable(
            f"all endpoints of upstream {self.name!r} are drained; an operator enables them with "
            f"'gateway upstream enable {self.name}'"
        )

    def _choose(self, call: Call[Any], now: float) -> Endpoint:
        attempt = ATTEMPT.get()
        chosen = PLACEMENT.get() if self._has_placement else None
        if chosen is not None and chosen in self.endpoints:
            if attempt is not None:
                attempt.tried = chosen.name
            chosen.share.begin(now)
            return chosen
        if self._are_equal and (attempt is None or not attempt.avoid):
            endpoint = self._balancer.choose_of_two(self.endpoints, now)
            if endpoint is not None:
                if attempt is not None:
                    attempt.tried = endpoint.name
                return endpoint
        return self._choose_among(self._candidates(now, call.model), call, now)

    def _choose_among(
        self, candidates: Sequence[Endpoint], call: Call[Any], now: float
    ) -> Endpoint:
        if not candidates:
            raise self._all_drained()
        attempt = ATTEMPT.get()
        if attempt is None:
            return self._balance(candidates, call, now)
        endpoint = self._balance(attempt.preferred(candidates), call, now)
        attempt.tried = endpoint.name
        return endpoint

    def _balance(self, candidates: Sequence[Endpoint], call: Call[Any], now: float) -> Endpoint:
        candidates = self._shares.willing(candidates, now)
        if self._has_ranks:
            first = min(endpoint.rank for endpoint in candidates)
            candidates = [endpoint for endpoint in candidates if endpoint.rank == first]
        if self._shares.lowered:
            endpoint = self._shares.choose(
                candidates, lambda among: self._balancer.choose(among, call, now)
            )
            endpoint.share.begin(now)
        else:
            endpoint = self._balancer.choose(candidates, call, now)
        slow_start_s = self._slow_start_s
        if slow_start_s and now < endpoint.available_since + slow_start_s:
            share = max(_FIRST_SHARE, (now - endpoint.available_since) / slow_start_s)
            warm = [each for each in candidates if each is not endpoint]
            if warm and self._draw() >= share:
                return self._balancer.choose(warm, call, now)
        return endpoint
