"""EndpointResults: what the ends of calls tell about the endpoints of an upstream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from gateway.concurrency.timeouts import is_timeout
from gateway.ir.calls import Call, InferRequest, StreamInferRequest, inference_of
from gateway.ir.errors import ErrorCode, GatewayError, NotSent
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoint_share import EndpointShares
from gateway.routing.balancing.load_balancing import LoadBalancer
from gateway.routing.balancing.outlier_detection import OutlierDetection
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

# Errors that are independent of the endpoint's health: a cancellation, or a limit of the gateway or
# of the server.
_NEUTRAL = frozenset({ErrorCode.CANCELLED, ErrorCode.OVERLOADED})

# Errors of the endpoint: it is unavailable, or its response cannot be decoded.
_FAILURES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.BAD_UPSTREAM})

# How long other endpoints are preferred to one that could not be reached.
_UNREACHABLE_S = 1.0

OnEjected = Callable[[str, str], None]
"""Called with the name of an endpoint and the cause of its ejection."""


def ignore_ejection(_endpoint: str, _cause: str) -> None:
    """Do nothing."""


class EndpointResults:
    """Lowers the shares of endpoints that refuse calls, and ejects those whose calls fail.

    Args:
        name: The name of the upstream.
        shares: The shares of the endpoints.
        balancer: Has the average latencies.
        outliers: The conditions for ejecting an endpoint.
        on_ejected: Called at each ejection.
        on_share: Called after a share may have changed.
        clock: Monotonic seconds.

    Attributes:
        endpoints: The endpoints.
    """

    def __init__(
        self,
        name: str,
        shares: EndpointShares[Endpoint],
        balancer: LoadBalancer,
        outliers: OutlierDetection,
        *,
        on_ejected: OnEjected,
        on_share: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.endpoints: Sequence[Endpoint] = ()
        self._name = name
        self._shares = shares
        self._balancer = balancer
        self._outliers = outliers
        self._on_ejected = on_ejected
        self._on_share = on_share
        self._clock = clock
        self._next_sweep = clock() + outliers.interval_s

    def ended(
        self,
        endpoint: Endpoint,
        call: Call[Any],
        started: float,
        error: BaseException | None,
        *,
        is_reply: bool = False,
    ) -> None:
        """Record the end of a call; with *is_reply* the error is a reply, though without origin."""
        endpoint.pending -= 1
        health, now = endpoint.health, self._clock()
        if isinstance(error, GatewayError):
            error.attempted = endpoint.name
            is_reply = is_reply or error.origin is not None
        if is_reply or (error is None and self._shares.lowered):
            self._share(endpoint, call, started, now, error)
        if health.ejected_until is not None and started < health.ejected_at:
            return  # a call from before the ejection
        if error is None:
            is_stream = type(call) is StreamInferRequest
            self._succeeded(endpoint, now, None if is_stream else now - started)
        elif is_timeout(error, call, now):
            if health.is_slow(now - started):
                health.timeouts += 1
                self._eject_outlier(endpoint, "timeouts", now, error)
            else:
                health.has_trial_call = False
        elif not isinstance(error, GatewayError) or error.code in _NEUTRAL:
            health.has_trial_call = False  # the next call is the trial
        elif error.code in _FAILURES or error.code in self._outliers.failure_codes:
            self._failed(endpoint, now, error, is_reply=is_reply)
        else:
            self._succeeded(endpoint, now, None)

    def _share(
        self,
        endpoint: Endpoint,
        call: Call[Any],
        started: float,
        now: float,
        error: BaseException | None,
    ) -> None:
        """Change the share of *endpoint* after a reply to an inference, which may be an error."""
        if type(call) is not InferRequest and inference_of(call) is None:
            return
        if error is None:
            self._shares.served(endpoint, started)
        elif (
            isinstance(error, GatewayError)
            and self._outliers.lowers_shares
            and not (error.code is ErrorCode.DEADLINE_EXCEEDED and _is_late(call, started, now))
        ):
            self._shares.refused(endpoint, error, started, now, self._balancer.turn)
        self._on_share()

    def _failed(
        self, endpoint: Endpoint, now: float, error: GatewayError, *, is_reply: bool
    ) -> None:
        health = endpoint.health
        health.failures += 1
        is_full = is_reply and endpoint.pending > 0 and error.code is ErrorCode.UNAVAILABLE
        if is_full and not health.has_trial_call:
            return  # a server with a full queue refuses calls, and serves those that it has
        if isinstance(error, NotSent):
            health.note_unreachable(now + _UNREACHABLE_S)
        self._eject_outlier(endpoint, "failures", now, error)

    def _succeeded(self, endpoint: Endpoint, now: float, latency_s: float | None) -> None:
        if latency_s is not None:
            if self._balancer.measures_latency:
                endpoint.latency.observe(latency_s, now)
            if self._outliers.slow_factor:
                endpoint.health.count(latency_s)
                if now >= self._next_sweep:
                    self._sweep(now)
        health = endpoint.health
        if health.has_trial_call and health.was_too_slow:
            if latency_s is None:
                health.has_trial_call = False  # the next call is the trial
                return
            if self._outliers.is_slower(latency_s, (each.health for each in self.endpoints)):
                health.is_too_slow = True
                self._eject_outlier(endpoint, "slow", now, f"latency {latency_s:.3g} s")
                return
        if health.note_success(now, latency_s, self._outliers):
            endpoint.available_since = now
            log.info("endpoint reinstated", upstream=self._name, endpoint=endpoint.name)

    def _sweep(self, now: float) -> None:
        """Eject endpoints that are much slower than the others."""
        rules = self._outliers
        self._next_sweep = now + rules.interval_s
        for endpoint, mean_s in rules.slowest(self.endpoints):
            endpoint.health.is_too_slow = True
            self._eject_outlier(endpoint, "slow", now, f"mean latency {mean_s:.3g} s")
            endpoint.health.is_too_slow = False  # it may not have been ejected

    def _eject_outlier(
        self, endpoint: Endpoint, cause: str, now: float, error: BaseException | str
    ) -> None:
        health, rules = endpoint.health, self._outliers
        if not health.should_eject(rules):
            return
        if health.ejected_until is None:
            ejected = sum(other.health.ejected_until is not None for other in self.endpoints)
            others = any(
                other.is_available(now) for other in self.endpoints if other is not endpoint
            )
            if ejected >= rules.max_ejected(len(self.endpoints)) or not others:
                return
        elif not health.has_trial_call:
            return  # the trial has ended already
        length_s = health.eject(rules, now)
        self._on_ejected(endpoint.name, cause)
        log.warning(
            "endpoint ejected",
            upstream=self._name,
            endpoint=endpoint.name,
            cause=cause,
            seconds=length_s,
            error=error_text(error),
        )


def _is_late(call: Call[Any], started: float, now: float) -> bool:
    """Return whether the deadline of a caller may explain that a server had no time left."""
    deadline = call.context.deadline
    return deadline is not None and deadline - now < now - started
