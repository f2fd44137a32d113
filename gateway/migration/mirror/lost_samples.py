"""The sampled calls of a serving process that died before it knew what became of them.

Its last metrics count them as sampled only. The supervisor counts them as dropped, so that the sum
of all results is that of the sampled calls again.
"""

from collections import Counter
from typing import Any, Final

from gateway.migration import names
from gateway.telemetry.aggregation import Snapshot

_REASON: Final = "worker_died"
_RESULTS: Final = {
    names.MIGRATION_SAMPLED.family: (
        names.MIGRATION_SAMPLES.family,
        names.MIGRATION_SKIPPED.family,
        names.MIGRATION_DROPPED.family,
    ),
    names.CAPTURE_SAMPLED.family: (names.CAPTURE_CALLS.family, names.CAPTURE_DROPPED.family),
    names.EVENTS_SAMPLED.family: (names.EVENTS_DELIVERED.family, names.EVENTS_DROPPED.family),
}
"""The counters of sampled calls, and those of their results; the last one is that of lost calls."""

_OWNERS: Final = frozenset({"migration", "sink"})
"""The labels that name whose samples they are."""

_Labels = tuple[tuple[str, str], ...]


def with_lost_samples(metrics: Snapshot) -> Snapshot:
    """Return the last metrics of a process that has died, with its calls in flight as dropped."""
    families = {family[0]: family for family in metrics}
    added: dict[str, list[Any]] = {}
    for sampled, results in _RESULTS.items():
        counts = _counts(families.get(sampled))
        for result in results:
            counts.subtract(_counts(families.get(result)))
        lost = {labels: count for labels, count in counts.items() if count > 0}
        if lost:
            added[results[-1]] = [
                [f"{results[-1]}_total", {**dict(labels), "reason": _REASON}, count]
                for labels, count in lost.items()
            ]
    return [
        [name, text, kind, [*samples, *added.get(name, ())]]
        for name, text, kind, samples in metrics
    ]


def _counts(family: Any) -> Counter[_Labels]:
    """Return a counter by its migration or sink; the labels of a capture are none."""
    found: Counter[_Labels] = Counter()
    for name, labels, value, *_ in () if family is None else family[3]:
        if name == f"{family[0]}_total":
            found[tuple((key, each) for key, each in labels.items() if key in _OWNERS)] += int(
                value
            )
    return found
