"""Outlier detection: an endpoint whose calls fail gets no calls for a while.

An endpoint is *ejected* (Envoy's term) after consecutive failures. A *trial* call reinstates it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gateway.ir.errors import ErrorCode

# A timeout counts if the call took this multiple of the endpoint's usual latency, because the
# short deadline of one caller does not depend on the endpoint.
_SLOW_FACTOR = 5.0
# A timeout after this time always counts.
_SLOW_S = 1.0
_LATENCY_WEIGHT = 0.1
# A probe allows no trial for this part of `base_ejection_s` after a failed one. With the default
# times the next probe allows it.
_PAUSE_SHARE = 0.5
# The same after an ejection of a slow endpoint, whose probes succeed in any case.
_SLOW_PAUSE_SHARE = 1.0


class HasHealth(Protocol):
    """What has calls whose health is watched."""

    @property
    def health(self) -> EndpointHealth:
        """What its calls tell."""


H = TypeVar("H", bound=HasHealth)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierDetection:
    """The conditions for ejecting an endpoint, and the duration of ejections.

    Attributes:
        consecutive_failures: Consecutive UNAVAILABLE errors, resets and connect failures; 0 to
            disable.
        consecutive_timeouts: Consecutive exceeded deadlines; 0 to disable.
        base_ejection_s: Duration of the first ejection; each further ejection is longer by it.
        max_ejection_s: Maximum duration.
        max_ejection_percent: Maximum percentage of ejected endpoints, rounded up.
        failure_codes: Further codes of errors that count as failures.
        slow_factor: An endpoint is ejected if its mean latency is above this multiple of the median
            of the others; 0 to disable.
        min_requests: Calls in an interval without which an endpoint has no mean latency.
        interval_s: Time between two comparisons of the latencies.
        lowers_shares: Whether refusals and errors of a server lower its share (`endpoint_share`).
    """

    consecutive_failures: int = 5
    consecutive_timeouts: int = 5
    base_ejection_s: float = 5.0
    max_ejection_s: float = 60.0
    max_ejection_percent: float = 50.0
    failure_codes: frozenset[ErrorCode] = frozenset()
    slow_factor: float = 0.0
    min_requests: int = 20
    interval_s: float = 10.0
    lowers_shares: bool = True

    def max_ejected(self, endpoints: int) -> int:
        """Return the maximum number of ejected endpoints of *endpoints*; one always remains."""
        return min(math.ceil(endpoints * self.max_ejection_percent / 100), endpoints - 1)

    def is_slower(self, latency_s: float, healths: Iterable[EndpointHealth]) -> bool:
        """Return whether a latency is much higher than those of the endpoints that get calls."""
        usual_s = [
            each.latency_s for each in healths if each.latency_s and each.ejected_until is None
        ]
        return bool(usual_s) and latency_s > self.slow_factor * statistics.median(usual_s)

    def slowest(self, endpoints: Iterable[H]) -> Iterator[tuple[H, float]]:
        """Yield the endpoints that are much slower than the others, with their mean latencies."""
        means_s = [
            (endpoint, mean_s)
            for endpoint in endpoints
            if (mean_s := endpoint.health.mean_latency_s(self.min_requests)) is not None
        ]
        for endpoint, mean_s in means_s:
            others_s = [each for other, each in means_s if other is not endpoint]
            if others_s and mean_s > self.slow_factor * statistics.median(others_s):
                yield endpoint, mean_s


DEFAULT = OutlierDetection()
OFF = OutlierDetection(consecutive_failures=0, consecutive_timeouts=0, lowers_shares=False)


class EndpointHealth:
    """The health of one endpoint, derived from its calls.

    An ejected endpoint gets one trial call when the ejection expires, or when a probe succeeds. The
    trial ends or extends the ejection. The probes of a server may succeed although its calls fail,
    so a successful probe allows no further trial soon after a failed one. It allows one later, so
    that a server that is well again does not wait for the end of a long ejection. The trial of a
    slow endpoint is judged by its latency.

    Attributes:
        failures: Consecutive failures.
        timeouts: Consecutive timeouts.
        ejections: Consecutive ejections.
        ejected_at: When it was ejected last, on the clock of calls.
        ejected_until: On the same clock; None if the endpoint is not ejected.
        is_too_slow: Its latency requires an ejection.
        was_too_slow: Its latency required the ejection.
        latency_s: An average of its latencies; 0 if none is known.
    """

    __slots__ = (
        "_early_trial_at",
        "_has_early_trial",
        "_reinstated_at",
        "_requests",
        "_total_s",
        "_unreachable_until",
        "ejected_at",
        "ejected_until",
        "ejections",
        "failures",
        "has_trial_call",
        "is_too_slow",
        "latency_s",
        "timeouts",
        "was_too_slow",
    )

    def __init__(self) -> None:
        self.failures = self.timeouts = self.ejections = 0
        self.ejected_at = -math.inf
        self.ejected_until: float | None = None
        self.has_trial_call = self.is_too_slow = self.was_too_slow = False
        self._requests, self._total_s = 0, 0.0
        self._early_trial_at = -math.inf
        self._has_early_trial = False
        self.latency_s = 0.0
        self._reinstated_at = -math.inf
        self._unreachable_until = -math.inf

    def is_available(self, now: float) -> bool:
        """Return whether the endpoint may get a call."""
        if self.ejected_until is None:
            return now >= self._unreachable_until
        return not self.has_trial_call and (now >= self.ejected_until or self._has_early_trial)

    def begin(self) -> None:
        """Record the start of a call, which is the trial of an ejected endpoint."""
        if self.ejected_until is not None:
            self.has_trial_call = True
            self._has_early_trial = False

    def allow_trial(self, now: float) -> None:
        """Record a successful probe, which allows a trial unless one has failed just now."""
        if self.ejected_until is not None and now >= self._early_trial_at:
            self._has_early_trial = True

    def note_unreachable(self, until: float) -> None:
        """Record that the endpoint is unreachable: prefer others until this time."""
        self._unreachable_until = until

    def note_success(self, now: float, latency_s: float | None, rules: OutlierDetection) -> bool:
        """Record a reply, or an error of the caller; return whether this ends an ejection.

        Args:
            now: On the clock of calls.
            latency_s: Latency of the call; None if it is not meaningful, as for a stream.
            rules: Defines when previous ejections are forgotten.
        """
        was_ejected = self.ejected_until is not None
        if was_ejected and not self.has_trial_call:
            return False  # the trial has ended already
        self.failures = self.timeouts = 0
        self.ejected_until, self.has_trial_call = None, False
        self._unreachable_until = -math.inf
        if was_ejected:
            self._reinstated_at = now
        elif self.ejections and now >= self._reinstated_at + rules.base_ejection_s * self.ejections:
            self.ejections = 0
        if latency_s is not None:
            average_s = self.latency_s or latency_s
            self.latency_s = average_s + _LATENCY_WEIGHT * (latency_s - average_s)
        return was_ejected

    def count(self, latency_s: float) -> None:
        """Count a call for `mean_latency_s`."""
        self._requests += 1
        self._total_s += latency_s

    def mean_latency_s(self, min_requests: int) -> float | None:
        """Return the mean latency since the last such question; None if it has too few calls."""
        requests, total_s = self._requests, self._total_s
        self._requests, self._total_s = 0, 0.0
        return total_s / requests if requests and requests >= min_requests else None

    def is_slow(self, latency_s: float) -> bool:
        """Return whether a call that timed out after *latency_s* took unusually long."""
        return latency_s >= min(_SLOW_S, _SLOW_FACTOR * self.latency_s or _SLOW_S)

    def should_eject(self, rules: OutlierDetection) -> bool:
        """Return whether consecutive failures, or a failed trial, require an ejection."""
        return (
            self.has_trial_call
            or self.is_too_slow
            or 0 < rules.consecutive_failures <= self.failures
            or 0 < rules.consecutive_timeouts <= self.timeouts
        )

    def eject(self, rules: OutlierDetection, now: float) -> float:
        """Eject the endpoint; return the duration in seconds."""
        self.ejections += 1
        self.failures = self.timeouts = 0
        self.was_too_slow, self.is_too_slow = self.is_too_slow, False
        pause = _SLOW_PAUSE_SHARE if self.was_too_slow else _PAUSE_SHARE * self.has_trial_call
        self._early_trial_at = now + pause * rules.base_ejection_s
        self.has_trial_call = self._has_early_trial = False
        duration_s = min(rules.base_ejection_s * self.ejections, rules.max_ejection_s)
        self.ejected_at = now
        self.ejected_until = now + duration_s
        return duration_s
