"""The endpoints of one upstream: which of them are available, and which gets a call.

An endpoint is available when its last probe succeeded (`health_probe`) and its calls do not fail
(`outlier_detection`).  When no endpoint is available all of them get calls: a wrong guess about
health must not become a total outage.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog

from gateway.ir.calls import (
    MODEL_CONTROL_CALLS,
    Call,
    InferRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import ModelRef
from gateway.ir.context import Sequence as InferSequence
from gateway.ir.errors import ErrorCode, GatewayError, NotSent, Unavailable
from gateway.ir.streaming_body import streaming_body_of
from gateway.ir.streams import on_stream_end
from gateway.routing.broadcast import BROADCAST_CALLS, broadcast
from gateway.routing.outlier_detection import DEFAULT, EndpointHealth, OutlierDetection
from gateway.routing.sequence_affinity import IDLE_S, SequenceAffinity
from gateway.routing.sequence_ids import SequenceIdTypes
from gateway.service import ReplyCoroutine, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

# Errors that are independent of the endpoint's health: a cancellation, or a limit of the gateway.
_NEUTRAL = frozenset({ErrorCode.CANCELLED, ErrorCode.OVERLOADED})

# How long other endpoints are preferred to one that could not be reached.
_UNREACHABLE_S = 1.0

OnEjected = Callable[[str, str], None]
"""Called with the name of an endpoint and the cause of its ejection."""


def _ignore(_endpoint: str, _cause: str) -> None: ...


def _is_disconnect(error: BaseException | None) -> bool:
    """Return whether the endpoint was not reached; else it replied that it cannot serve."""
    return isinstance(error, Unavailable) and error.origin is None


class BalancingPolicy(enum.Enum):
    """How one of the available endpoints is chosen."""

    LEAST_PENDING = "least_pending"
    ROUND_ROBIN = "round_robin"


class Endpoint:
    """One address of an upstream.

    Attributes:
        name: Its address, for logs, metrics and errors.
        service: Sends calls to it.
        ready: Result of its last probe; True while nothing probes it.
        pending: Calls in flight; counted where there is more than one endpoint.
        health: What its calls tell.
        probe: Probes it once; None while nothing probes it.
    """

    def __init__(self, name: str, service: Service) -> None:
        self.name = name
        self.service = service
        self.ready = True
        self.pending = 0
        self.health = EndpointHealth()
        self.probe: Callable[[], Awaitable[bool]] | None = None

    def available(self, now: float) -> bool:
        """Return whether the endpoint is ready and may get a call."""
        return self.ready and self.health.is_available(now)

    def probed(self, ready: bool) -> None:
        """Note the result of a probe."""
        self.ready = ready
        if ready:
            self.health.allow_trial()


class Endpoints:
    """A Service that sends each call to one of its endpoints.

    A call that was certainly not sent, because its endpoint could not be reached, goes to the next
    available endpoint at once.

    Args:
        name: Name of the upstream.
        endpoints: At least one.
        picker: The load balancing policy.
        outliers: The conditions for ejecting an endpoint.
        on_ejected: Called at each ejection.
        sequence_idle_s: Time without a request after which a sequence may change its endpoint.
        sequence_ids: The allowed sequence ids of each model; None for any.
        clock: Monotonic seconds; that of `Context.deadline`.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first two
        self,
        name: str,
        endpoints: Sequence[Endpoint],
        *,
        picker: BalancingPolicy = BalancingPolicy.LEAST_PENDING,
        outliers: OutlierDetection = DEFAULT,
        on_ejected: OnEjected = _ignore,
        sequence_idle_s: float = IDLE_S,
        sequence_ids: SequenceIdTypes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not endpoints:
            raise ValueError(f"upstream {name!r} has no endpoints")
        self.name = name
        self.endpoints = tuple(endpoints)
        self._only = endpoints[0] if len(endpoints) == 1 else None
        self._picker = picker
        self._outliers = outliers
        self._on_ejected = on_ejected
        self._clock = clock
        self._affinity = SequenceAffinity("endpoint", idle_s=sequence_idle_s, clock=clock)
        self._sequence_ids = sequence_ids
        self._turn = 0

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Answer *call* by one endpoint, or by all of them where each must have the call."""
        request = call if type(call) is InferRequest else inference_of(call)
        if request is not None and request.sequence is not None:
            return self._call_assigned(request.sequence, call)
        if request is None and type(call) in MODEL_CONTROL_CALLS:
            return self._control(call)
        if self._only is not None:
            # Nothing to choose, and nothing to eject: the last endpoint always stays.
            return self._only.service(call)
        if type(call) in BROADCAST_CALLS:
            return broadcast(call, [partial(self._call, endpoint) for endpoint in self.endpoints])
        return self._call_available(call)

    async def _control(self, call: Call[R]) -> R:
        """Send *call* to every endpoint, and probe them before its reply.

        A server that loads a model is not ready meanwhile: a client that asks as soon as it has the
        reply must not read the result of an older probe.
        """
        try:
            return await broadcast(
                call, [partial(self._call, endpoint) for endpoint in self.endpoints]
            )
        finally:
            probes = [endpoint.probe for endpoint in self.endpoints if endpoint.probe is not None]
            await asyncio.gather(*(probe() for probe in probes))

    async def _call_available(self, call: Call[R]) -> R:
        """Send *call* to the chosen endpoint, and to others while none of them is reached."""
        endpoint = self._choose(self._candidates())
        try:
            return await self._call(endpoint, call)
        except NotSent as error:
            body = streaming_body_of(call)
            if body is not None and body.is_started:
                raise
            return await self._call_others(call, endpoint, error)

    async def _call_others(self, call: Call[R], tried: Endpoint, error: NotSent) -> R:
        others = [endpoint for endpoint in self._candidates() if endpoint is not tried]
        while others and self._has_time(call):
            endpoint = self._choose(others)
            others.remove(endpoint)
            try:
                return await self._call(endpoint, call)
            except NotSent as further:
                error = further
        raise error

    def _has_time(self, call: Call[Any]) -> bool:
        deadline = call.context.deadline
        return deadline is None or self._clock() < deadline

    async def _call_assigned(self, sequence: InferSequence, call: Call[R]) -> R:
        """Send *call* to the endpoint that holds *sequence*; without the endpoint, it is lost."""
        if self._sequence_ids is not None:
            await self._sequence_ids.check(call.model or ModelRef(""), sequence, self)
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
                f"sequence {sequence.id!r} is lost; restart it: {error.message}",
                model=call.model,
            ) from error
        return on_stream_end(call, reply, partial(self._lose, call.model, sequence, endpoint))

    def _lose(
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
        endpoint.health.begin()
        started = self._clock()
        try:
            reply = await endpoint.service(call)
        except BaseException as error:
            self._ended(endpoint, call, started, error)
            raise
        if is_stream:
            return on_stream_end(call, reply, partial(self._ended, endpoint, call, started))
        self._ended(endpoint, call, started, None)
        return reply

    def ready(self) -> bool:
        """Return whether some endpoint is available."""
        now = self._clock()
        return any(endpoint.available(now) for endpoint in self.endpoints)

    def _candidates(self) -> list[Endpoint]:
        now = self._clock()
        available = [endpoint for endpoint in self.endpoints if endpoint.available(now)]
        return available or list(self.endpoints)

    def _choose(self, candidates: Sequence[Endpoint]) -> Endpoint:
        self._turn += 1
        turn = self._turn % len(candidates)
        if self._picker is BalancingPolicy.ROUND_ROBIN:
            return candidates[turn]
        # The turn breaks ties, so that idle endpoints share the calls.
        return min((*candidates[turn:], *candidates[:turn]), key=lambda endpoint: endpoint.pending)

    def _ended(
        self, endpoint: Endpoint, call: Call[Any], started: float, error: BaseException | None
    ) -> None:
        endpoint.pending -= 1
        health, now = endpoint.health, self._clock()
        if error is None:
            is_stream = type(call) is StreamInferRequest
            self._succeeded(endpoint, now, None if is_stream else now - started)
        elif _is_timeout(error, call, now):
            if health.is_slow(now - started):
                health.timeouts += 1
                self._eject_outlier(endpoint, "timeouts", now, error)
            else:
                health.has_trial_call = False
        elif not isinstance(error, GatewayError) or error.code in _NEUTRAL:
            health.has_trial_call = False  # the next call is the trial
        elif error.code is ErrorCode.UNAVAILABLE:
            health.failures += 1
            if isinstance(error, NotSent):
                health.note_unreachable(now + _UNREACHABLE_S)
            self._eject_outlier(endpoint, "failures", now, error)
        else:
            self._succeeded(endpoint, now, None)

    def _succeeded(self, endpoint: Endpoint, now: float, latency_s: float | None) -> None:
        if endpoint.health.note_success(now, latency_s, self._outliers):
            log.info("endpoint reinstated", upstream=self.name, endpoint=endpoint.name)

    def _eject_outlier(
        self, endpoint: Endpoint, cause: str, now: float, error: BaseException
    ) -> None:
        health, rules = endpoint.health, self._outliers
        if not health.should_eject(rules):
            return
        if health.ejected_until is None:
            ejected = sum(other.health.ejected_until is not None for other in self.endpoints)
            others = any(other.available(now) for other in self.endpoints if other is not endpoint)
            if ejected >= rules.max_ejected(len(self.endpoints)) or not others:
                return
        elif not health.has_trial_call:
            return  # a call from before the ejection
        length_s = health.eject(rules, now)
        self._on_ejected(endpoint.name, cause)
        log.warning(
            "endpoint ejected",
            upstream=self.name,
            endpoint=endpoint.name,
            cause=cause,
            seconds=length_s,
            error=str(error),
        )


def _is_timeout(error: BaseException, call: Call[Any], now: float) -> bool:
    """Return whether a deadline ended the call: a layer above cancels the call at its deadline."""
    if isinstance(error, asyncio.CancelledError):
        deadline = call.context.deadline
        return deadline is not None and now >= deadline
    return isinstance(error, GatewayError) and error.code is ErrorCode.DEADLINE_EXCEEDED
