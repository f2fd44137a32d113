"""What the shadow calls of a migration show so far: counts, guards, outputs, times, noise.

It is pure: it gets one comparison at a time, with its time, and makes a document of JSON values.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.migration.compare.reasons import Reasons
from gateway.migration.compare.replies import Comparison
from gateway.migration.compare.statistics import ratio_bounds
from gateway.migration.compare.summary import OutputSummary, finite, percentile
from gateway.migration.compare.tensors import Outcome
from gateway.migration.evidence.guards import Guards
from gateway.migration.evidence.verdicts import Evidence
from gateway.migration.settings import GuardsConfig

_MINUTE_US: Final = 60_000_000
_MINUTES: Final = 1_440
_LATENCY_CALLS: Final = 10_000
_NOISE_CALLS: Final = 10_000
_NOISE_SHARE: Final = 0.999
_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_LARGEST_OUTPUTS: Final = 256
_RESUME_FORMAT: Final = 1


class UnusableEvidence(Exception):
    """Earlier evidence, or a part of it, with which no guard can continue."""


class _EarlierGuards(msgspec.Struct):
    """What the guards of earlier evidence continue with."""

    since_us: int
    guards: dict[str, list[float]]
    # Earlier versions of the gateway wrote none.
    format: int = _RESUME_FORMAT


class ShadowedCall(msgspec.Struct, frozen=True):
    """One call that both targets were asked.

    Attributes:
        id: Names the sample.
        at_us: Start of the client's call in UTC, microseconds since 1970.
        error: The text of the error that ended it at one of the targets, as it may be shown.
    """

    id: str
    at_us: int
    evidence: Evidence
    comparison: Comparison
    error: str = ""


class MigrationEvidence:
    """The evidence of one migration since a moment.

    Args:
        name: The name of the migration.
        guards: Its limits.
        since_us: The moment, in UTC, microseconds since 1970.
        has_noise: Whether some calls are put to the old target twice.
    """

    def __init__(
        self, name: str, guards: GuardsConfig, since_us: int, *, has_noise: bool = False
    ) -> None:
        self._name = name
        self._since_us = since_us
        self._guards = Guards(guards, has_noise=has_noise)
        self._arrived = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._skipped: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._outputs: dict[str, OutputSummary] = {}
        self._replies_compared = 0
        self._failed = 0
        self._reasons = Reasons()
        # By minute: calls whose replies were compared, and those that differ.
        self._minutes: dict[int, list[int]] = {}
        self._times: deque[tuple[float, float]] = deque(maxlen=_LATENCY_CALLS)
        self._latency: tuple[int, dict[str, Any]] = (-1, {})
        self._timed = 0
        self._noise = _NoiseMeasure() if has_noise else None
        self._metadata: tuple[str, ...] = ()
        self._models: dict[str, dict[str, dict[str, Any]]] = {}

    @property
    def compared(self) -> int:
        """Number of calls with a result of both targets, errors included."""
        return self._outcomes.total()

    @property
    def in_flight(self) -> int:
        """Number of calls that arrived and have no result."""
        return self._arrived - self.compared - self._skipped.total() - self._dropped.total()

    def count_arrival(self) -> None:
        """Count a call that will be compared, skipped or dropped."""
        self._arrived += 1

    def skip(self, reason: str, count: int = 1) -> None:
        """Count calls that arrived and cannot be compared."""
        self._skipped[reason] += count

    def drop(self, reason: str, count: int = 1) -> None:
        """Count calls that arrived and were lost."""
        self._dropped[reason] += count

    def report(self, skipped: Mapping[str, int], dropped: Mapping[str, int]) -> None:
        """Count calls that a serving process did not send, by reason."""
        self._arrived += sum(skipped.values()) + sum(dropped.values())
        self._skipped.update(skipped)
        self._dropped.update(dropped)

    def add(self, call: ShadowedCall) -> None:
        """Add a call that arrived and was compared."""
        comparison = call.comparison
        self._outcomes[comparison.outcome] += 1
        self._replies_compared += comparison.is_compared
        self._failed += comparison.error is not None
        self._reasons.add_comparison(call.id, comparison, call.error)
        for name, found in comparison.outputs.items():
            if name in self._outputs or len(self._outputs) < _LARGEST_OUTPUTS:
                self._outputs.setdefault(name, OutputSummary()).add(call.id, found)
        if comparison.is_compared:
            self._add_minute(call.at_us, comparison.differs)
        if call.evidence.times_s is not None:
            self._times.append(call.evidence.times_s)
            self._timed += 1
        self._guards.add(call.evidence)

    def add_noise(self, comparison: Comparison) -> None:
        """Add two replies of the old target to one call."""
        if self._noise is not None and comparison.is_compared:
            self._noise.add(comparison)
            self._guards.add_noise(comparison.differs)

    def set_metadata(self, differences: tuple[str, ...]) -> None:
        """Replace the differences of the metadata of both targets."""
        self._metadata = differences

    def set_model(self, model: str, target: str, identity: Mapping[str, Any]) -> None:
        """Replace what a target says of a model: `metadata_differences.model_identity`."""
        self._models.setdefault(model, {})[target] = dict(identity)

    def resume(self, earlier: Mapping[str, Any]) -> None:
        """Add the counts of the guards of earlier evidence: `resume` of its document.

        Raises:
            UnusableEvidence: It is damaged or of an unknown version. Guards whose own counts are
                whole go on with them.
        """
        try:
            found = msgspec.convert(earlier, _EarlierGuards)
        except msgspec.ValidationError as error:
            raise UnusableEvidence(f"earlier evidence is damaged: {error}") from error
        if found.format != _RESUME_FORMAT:
            raise UnusableEvidence(
                f"earlier evidence has format {found.format}; expected {_RESUME_FORMAT}"
            )
        self._since_us = min(self._since_us, found.since_us)
        damaged = self._guards.resume(found.guards)
        if damaged:
            raise UnusableEvidence(f"earlier counts of {', '.join(damaged)} are damaged")

    def document(self, at_us: int) -> dict[str, Any]:
        """Return everything as JSON values.

        Args:
            at_us: Now, in UTC, microseconds since 1970.
        """
        return {
            "migration": self._name,
            "since_us": self._since_us,
            "at_us": at_us,
            "sampled": self._arrived,
            "compared": self.compared,
            "replies_compared": self._replies_compared,
            "failed": self._failed,
            "reasons": [each.document() for each in self._reasons.list()],
            "outcomes": {each.value: self._outcomes.get(each, 0) for each in Outcome},
            "skipped": dict(self._skipped),
            "dropped": dict(self._dropped),
            "in_flight": self.in_flight,
            "guards": [each.document() for each in self._guards.verdicts()],
            "outputs": [_output_document(name, each) for name, each in self._outputs.items()],
            "timeline": [
                {"minute_us": minute * _MINUTE_US, "compared": total, "mismatched": bad}
                for minute, (total, bad) in sorted(self._minutes.items())
            ],
            "latency": self._latency_document(),
            "noise": None if self._noise is None else self._noise.document(),
            "metadata": list(self._metadata),
            "models": self._models,
            "resume": {
                "format": _RESUME_FORMAT,
                "since_us": self._since_us,
                "guards": self._guards.counts(),
            },
        }

    def _add_minute(self, at_us: int, is_bad: bool) -> None:
        minute = at_us // _MINUTE_US
        found = self._minutes.setdefault(minute, [0, 0])
        found[0] += 1
        found[1] += is_bad
        if len(self._minutes) > _MINUTES:
            del self._minutes[min(self._minutes)]

    def _latency_document(self) -> dict[str, Any]:
        """Return the quantiles of both targets; sorting is done once for the same calls."""
        if self._latency[0] != self._timed:
            self._latency = self._timed, _latency(self._times)
        return self._latency[1]


class _NoiseMeasure:
    """How much the old target's replies to one call differ."""

    def __init__(self) -> None:
        self._compared = 0
        self._mismatched = 0
        self._errors: dict[str, deque[float]] = {}

    def add(self, comparison: Comparison) -> None:
        self._compared += 1
        self._mismatched += comparison.differs
        for name, found in comparison.outputs.items():
            if found.errors is None or not math.isfinite(found.errors.max_abs):
                continue
            if name in self._errors or len(self._errors) < _LARGEST_OUTPUTS:
                errors = self._errors.setdefault(name, deque(maxlen=_NOISE_CALLS))
                errors.append(found.errors.max_abs)

    def document(self) -> dict[str, Any]:
        """Return the counts, and the least absolute tolerance of 99.9 % of the calls."""
        return {
            "compared": self._compared,
            "mismatched": self._mismatched,
            "tolerance": {
                name: percentile(errors, _NOISE_SHARE) for name, errors in self._errors.items()
            },
        }


def _latency(times: deque[tuple[float, float]]) -> dict[str, Any]:
    old, new = sorted(old for old, _ in times), sorted(new for _, new in times)
    found: dict[str, Any] = {}
    for side, values in (("old", old), ("new", new)):
        found[side] = {
            name: percentile(values, share) if values else None for name, share in _SHARES.items()
        }
    found["p99_ratio"] = None
    if times:
        low, high = ratio_bounds(new, old, _SHARES["p99"])
        value = found["new"]["p99"] / found["old"]["p99"] if found["old"]["p99"] > 0 else None
        found["p99_ratio"] = [low, value, finite(high)]
        differences = sorted(new - old for old, new in times)
        found["median_difference"] = percentile(differences, _SHARES["p50"])
    return found


def _output_document(name: str, output: OutputSummary) -> dict[str, Any]:
    errors = output.errors
    return {
        "name": name,
        "compared": output.compared,
        "mismatched": output.mismatched,
        "interval": list(output.interval),
        "max_abs": None if errors is None else finite(errors.max_abs),
        "max_rel": None if errors is None else finite(errors.max_rel),
        "mean_abs": None if errors is None else finite(errors.mean_abs),
        "max_ulp": None if errors is None else errors.max_ulp,
        "histogram": [] if errors is None else errors.histogram,
        "worst": output.worst or None,
        "reshaped": output.shape_text or None,
    }
