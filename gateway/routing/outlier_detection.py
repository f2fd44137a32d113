"""Outlier detection: an endpoint whose calls fail gets no calls for a while.

An endpoint is *ejected*, as Envoy calls it, after failures in a row.  A *trial* call reinstates
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# A timeout counts when the endpoint needed so many times its usual latency: the short deadline of
# one caller says nothing about the endpoint.
_SLOW_FACTOR = 5.0
# Without a usual latency, and at most, a timeout counts from here on.
_SLOW_S = 1.0
_LATENCY_WEIGHT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierDetection:
    """When an endpoint is ejected, and for how long; times in seconds.

    Attributes:
        consecutive_failures: UNAVAILABLE, resets and connect failures in a row; 0 for never.
        consecutive_timeouts: Passed deadlines in a row; 0 for never.
        base_ejection_s: Length of the first ejection; each that follows is longer by as much.
        max_ejection_s: Longest ejection.
        max_ejection_percent: Largest share of the endpoints, rounded up.
    """

    consecutive_failures: int = 5
    consecutive_timeouts: int = 5
    base_ejection_s: float = 5.0
    max_ejection_s: float = 60.0
    max_ejection_percent: float = 50.0

    def max_ejected(self, endpoints: int) -> int:
        """Return how many of *endpoints* may be ejected at a time; one always stays."""
        return min(math.ceil(endpoints * self.max_ejection_percent / 100), endpoints - 1)


DEFAULT = OutlierDetection()
OFF = OutlierDetection(consecutive_failures=0, consecutive_timeouts=0)


class EndpointHealth:
    """What the calls of one endpoint tell about it.

    After an ejection the endpoint gets one trial call: when the time is over, or as soon as a probe
    succeeds.  The trial ends the ejection, or prolongs it.  After a failed trial only time allows
    the next one: a server whose probes succeed while its calls hang costs few callers their time.

    Attributes:
        failures: Failures in a row.
        timeouts: Timeouts in a row.
        ejections: Ejections in a row.
        ejected_until: On the clock of calls; None while the endpoint is not ejected.
    """

    __slots__ = (
        "_can_try_early",
        "_has_early_trial",
        "_latency_s",
        "_reinstated_at",
        "_unreachable_until",
        "ejected_until",
        "ejections",
        "failures",
        "has_trial_call",
        "timeouts",
    )

    def __init__(self) -> None:
        self.failures = self.timeouts = self.ejections = 0
        self.ejected_until: float | None = None
        self.has_trial_call = False
        self._can_try_early = self._has_early_trial = False
        self._latency_s = 0.0
        self._reinstated_at = -math.inf
        self._unreachable_until = -math.inf

    def is_available(self, now: float) -> bool:
        """Return whether the endpoint may get a call."""
        if self.ejected_until is None:
            return now >= self._unreachable_until
        return not self.has_trial_call and (now >= self.ejected_until or self._has_early_trial)

    def begin(self) -> None:
        """Note a call to the endpoint: to an ejected one it is the trial."""
        if self.ejected_until is not None:
            self.has_trial_call = True
            self._has_early_trial = False

    def allow_trial(self) -> None:
        """Note a successful probe: the first trial of an ejection need not wait."""
        if self.ejected_until is not None and self._can_try_early:
            self._has_early_trial = True

    def note_unreachable(self, until: float) -> None:
        """Note that the endpoint could not be reached: others are preferred until then."""
        self._unreachable_until = until

    def note_success(self, now: float, latency_s: float | None, rules: OutlierDetection) -> bool:
        """Note a reply, an error of the caller included; return whether an ejection has ended.

        Args:
            now: On the clock of calls.
            latency_s: Of the call; None where it says nothing, as for a stream.
            rules: After how long ejections are forgotten.
        """
        was_ejected = self.ejected_until is not None
        if was_ejected and not self.has_trial_call:
            return False  # a call from before the ejection
        self.failures = self.timeouts = 0
        self.ejected_until, self.has_trial_call = None, False
        self._unreachable_until = -math.inf
        if was_ejected:
            self._reinstated_at = now
        elif self.ejections and now >= self._reinstated_at + rules.base_ejection_s * self.ejections:
            self.ejections = 0
        if latency_s is not None:
            known = self._latency_s or latency_s
            self._latency_s = known + _LATENCY_WEIGHT * (latency_s - known)
        return was_ejected

    def is_slow(self, latency_s: float) -> bool:
        """Return whether a call that timed out after *latency_s* had more than the usual time."""
        return latency_s >= min(_SLOW_S, _SLOW_FACTOR * self._latency_s or _SLOW_S)

    def should_eject(self, rules: OutlierDetection) -> bool:
        """Return whether the failures in a row, or a failed trial, call for an ejection."""
        return (
            self.has_trial_call
            or 0 < rules.consecutive_failures <= self.failures
            or 0 < rules.consecutive_timeouts <= self.timeouts
        )

    def eject(self, rules: OutlierDetection, now: float) -> float:
        """Eject the endpoint; return for how many seconds."""
        self.ejections += 1
        self.failures = self.timeouts = 0
        self._can_try_early = not self.has_trial_call
        self.has_trial_call = self._has_early_trial = False
        length_s = min(rules.base_ejection_s * self.ejections, rules.max_ejection_s)
        self.ejected_until = now + length_s
        return length_s
